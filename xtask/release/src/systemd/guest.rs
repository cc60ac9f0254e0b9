//! A running guest: QEMU, and a shell on its second serial line that runs one command at a time.

use super::disk::Host;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xtask::shell;

/// For QEMU to make its socket.
const SOCKET_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most that a command's answer may have; the guest cuts it at 256 KiB.
const ANSWER_BYTES: usize = 300 << 10;
/// What the guest's shell says when it begins (`disk::SHELL`).
const READY: &str = "@@READY\n";
/// Lines of the console that a failure shows.
const LINES: usize = 30;

/// A guest; ended when dropped.
pub(super) struct Guest {
    qemu: Child,
    line: Line,
    console: PathBuf,
}

/// The guest's second serial line, until a moment.
struct Line {
    stream: UnixStream,
    ends: Instant,
}

impl Guest {
    /// Boots it and waits for its shell; all of its life may take `limit`.
    pub(super) fn start(host: &Host, kvm: bool, limit: Duration) -> Result<Self> {
        let socket = host.disk.with_extension("socket");
        let console = host.disk.with_extension("console");
        let errors = File::create(console.with_extension("log")).context("making a log")?;
        let (accelerator, cpu) = if kvm { ("kvm", "host") } else { ("tcg,thread=multi", "max") };
        let mut command = shell::program("qemu-system-x86_64", ["-machine", "q35", "-smp", "2"]);
        command.args(["-accel", accelerator, "-cpu", cpu, "-m", "1024", "-display", "none"]);
        command.args(["-net", "none", "-no-user-config", "-monitor", "none", "-append"]);
        command.arg("console=ttyS0 root=/dev/vda rw quiet panic=-1 systemd.show_status=0");
        command.arg("-kernel").arg(&host.kernel).arg("-initrd").arg(&host.initrd);
        // The disk is thrown away, so nothing waits for this machine's own.
        let disk = format!("file={},format=raw,if=virtio,cache=unsafe", host.disk.display());
        command.arg("-drive").arg(disk).arg("-serial").arg(format!("file:{}", console.display()));
        let line = format!("socket,id=shell,path={},server=on,wait=off", socket.display());
        command.arg("-chardev").arg(line).args(["-serial", "chardev:shell"]);
        command.stdout(Stdio::null()).stderr(errors);
        let mut qemu = command.spawn().context("starting qemu")?;
        let began = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < SOCKET_WITHIN && qemu.try_wait()?.is_none() => {
                    thread::sleep(LOOK_EVERY);
                }
                Err(error) => {
                    let _ = qemu.kill();
                    let _ = qemu.wait();
                    return Err(error).context("connecting to the guest's serial line");
                }
            }
        };
        let line = Line { stream, ends: began + limit };
        let mut guest = Self { qemu, line, console };
        guest.line.wait(READY)?;
        println!("   booted in {:.0} s", began.elapsed().as_secs_f64());
        Ok(guest)
    }

    /// Runs a line of bash; gives its output, and fails if it fails.
    pub(super) fn run(&mut self, line: &str) -> Result<String> {
        let (code, output) = self.attempt(line)?;
        ensure!(code == 0, "`{line}` ended with {code}: {}", output.trim());
        Ok(output)
    }

    /// Runs a line of bash; gives its exit code and output.
    pub(super) fn attempt(&mut self, line: &str) -> Result<(i32, String)> {
        self.line.attempt(line)
    }

    /// Reboots it and waits for its shell.
    pub(super) fn reboot(&mut self) -> Result<()> {
        let began = Instant::now();
        writeln!(self.line.stream, "systemctl --no-block reboot")
            .context("writing to the guest")?;
        self.line.wait(READY).context("rebooting")?;
        println!("   rebooted in {:.0} s", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// The console's last lines.
    pub(super) fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }
}

impl Line {
    /// Runs a line of bash in the guest; gives its exit code and output.
    fn attempt(&mut self, line: &str) -> Result<(i32, String)> {
        ensure!(!line.contains('\n'), "a command is one line: {line}");
        writeln!(self.stream, "{line}").context("writing to the guest")?;
        let output = self.wait("\n@@END ").with_context(|| format!("running `{line}`"))?;
        let code = self.wait("\n")?;
        Ok((code.trim().parse().context("reading an exit code")?, output))
    }

    /// What comes before a mark.
    fn wait(&mut self, mark: &str) -> Result<String> {
        let mut read = Vec::new();
        let mut byte = [0];
        while !read.ends_with(mark.as_bytes()) {
            let left = self.ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the guest took too long; it said {}", String::from_utf8_lossy(&read));
            }
            ensure!(read.len() < ANSWER_BYTES, "an answer of the guest is too long");
            self.stream.set_read_timeout(Some(left)).context("setting a limit")?;
            match self.stream.read(&mut byte) {
                Ok(0) => bail!("the guest ended; it said {}", String::from_utf8_lossy(&read)),
                Ok(_) if byte != *b"\r" => read.extend(byte),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("reading from the guest"),
            }
        }
        read.truncate(read.len() - mark.len());
        Ok(String::from_utf8_lossy(&read).into_owned())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // One that has ended by itself is fine too.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    /// A line whose other end answers each command with these bytes, then hangs up.
    fn answered_with(answers: &'static [&'static [u8]]) -> Line {
        let (stream, mut guest) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut commands = BufReader::new(guest.try_clone().unwrap()).lines();
            for answer in answers {
                commands.next();
                guest.write_all(answer).unwrap();
            }
        });
        Line { stream, ends: Instant::now() + Duration::from_mins(1) }
    }

    #[test]
    fn an_answer_is_the_output_and_the_exit_code_of_its_own_command() {
        let mut line = answered_with(&[b"one\r\ntwo\n\n@@END 0\n", b"\n@@END 127\n"]);
        assert_eq!(line.attempt("first").unwrap(), (0, "one\ntwo\n".to_owned()));
        assert_eq!(line.attempt("second").unwrap(), (127, String::new()));
    }

    #[test]
    fn a_guest_that_ends_in_an_answer_is_an_error_with_what_it_said() {
        let error = answered_with(&[b"half an ans"]).attempt("any").unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("`any`") && text.contains("half an ans"), "{text}");
    }

    #[test]
    fn a_guest_that_says_nothing_is_waited_for_until_its_time_is_over() {
        let (stream, _guest) = UnixStream::pair().unwrap();
        let mut line = Line { stream, ends: Instant::now() };
        assert!(format!("{:#}", line.wait(READY).unwrap_err()).contains("took too long"));
    }

    #[test]
    fn an_answer_without_an_end_is_cut() {
        let (stream, mut guest) = UnixStream::pair().unwrap();
        // It blocks once the socket is full, and fails when the line is dropped.
        thread::spawn(move || while guest.write_all(&[b'x'; 4096]).is_ok() {});
        let mut line = Line { stream, ends: Instant::now() + Duration::from_mins(1) };
        assert!(format!("{:#}", line.attempt("yes").unwrap_err()).contains("too long"));
        assert!(line.attempt("two\nlines").is_err());
    }

    #[test]
    fn a_line_that_is_no_number_is_no_exit_code() {
        let text = format!("{:#}", answered_with(&[b"\n@@END zero\n"]).attempt("x").unwrap_err());
        assert!(text.contains("exit code"), "{text}");
    }
}
