//! The guest's only file system: busybox, the agent and perhaps test programs with what they start,
//! each with its libraries, and an `init`.

use super::machine::Machine;
use crate::cross::Cross;
use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Where the kernel expects things, before anything is mounted.
const FOLDERS: &[&str] = &["bin", "dev", "proc", "sys", "tmp", "run", "etc", "root"];

/// Busybox's names that `init` uses.
const APPLETS: &[&str] = &["sh", "mount", "mkdir", "cat", "grep", "ip", "poweroff", "setsid"];

/// The first process: mounts what the agent expects of a host, runs the program, powers off.
/// cgroup controllers stay on the unified hierarchy, as on every current distribution.
const INIT: &str = r#"#!/bin/sh
export PATH=/bin HOME=/root RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t cgroup2 none /sys/fs/cgroup
mount -t tracefs t /sys/kernel/tracing
mount -t bpf b /sys/fs/bpf
mount -t securityfs s /sys/kernel/security
mount -t tmpfs t /tmp
ip link set lo up
echo "@@BEGIN"
sh /checks 2>&1
echo "@@END rc=$?"
poweroff -f
"#;

/// The agent in the guest.
pub(super) const PROGRAM: &str = "/program";

/// One run of a program in the guest.
pub(super) struct Check {
    /// One word, for the marks on the console and for the table.
    pub(super) name: String,
    /// Which program.
    pub(super) program: &'static str,
    /// The program's arguments.
    pub(super) args: Vec<OsString>,
    /// What shows in its output (a pattern of `grep`) that nothing was checked.
    pub(super) idle: Option<&'static str>,
}

/// Test programs, each with its place in the guest, and the programs and libraries they look for beside
/// themselves.
pub(super) struct Tests {
    pub(super) programs: Vec<(PathBuf, &'static str)>,
    pub(super) beside: Vec<PathBuf>,
}

/// An image on disk, together with the console output beside it, until this is dropped.
pub(super) struct Image {
    folder: PathBuf,
}

impl Image {
    /// Puts a kernel's checks in; gives what QEMU takes as `-initrd`.
    pub(super) fn with(&self, version: &str, checks: &[Check]) -> Result<PathBuf> {
        let (root, image) = (self.root(), self.folder.join(format!("initramfs-{version}.cpio")));
        write_script(&root.join("checks"), &script(checks))?;
        pack(&root, &image)?;
        Ok(image)
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Left behind, it is some megabytes in the cache: not worth an error.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes an image with the programs for a machine.
pub(super) fn build(
    machine: &Machine,
    busybox: &Path,
    program: &Path,
    tests: Option<&Tests>,
) -> Result<Image> {
    // One folder a process, so that two runs at once do not write the same image.
    let name = format!("initramfs-{}-{}", machine.name, std::process::id());
    let image = Image { folder: place::cache("kernels")?.join(name) };
    let root = image.root();
    for folder in FOLDERS {
        make_folder(&root.join(folder))?;
    }
    copy(busybox, &root.join("bin/busybox"))?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).context("naming a busybox applet")?;
    }
    let contents = Contents { root: &root, cross: machine.cross() };
    contents.add(program, PROGRAM)?;
    contents.strip(PROGRAM)?;
    if let Some(Tests { programs, beside }) = tests {
        for (program, place) in programs {
            contents.add(program, place)?;
            contents.strip(place)?;
        }
        for file in beside {
            let name = file.file_name().context("a file without a name")?;
            contents.add(file, &format!("/target/{}", name.display()))?;
        }
    }
    write_script(&root.join("init"), INIT)?;
    Ok(image)
}

/// The programs in the image, with their libraries.
struct Contents<'a> {
    root: &'a Path,
    cross: Option<&'a Cross>,
}

impl Contents<'_> {
    /// A program or library at a place in the guest, and the libraries it needs.
    fn add(&self, file: &Path, at: &str) -> Result<()> {
        copy(file, &self.inside(Path::new(at)))?;
        let Some(cross) = self.cross else {
            return libraries(file)?.iter().try_for_each(|path| copy(path, &self.inside(path)));
        };
        for name in needed_names(cross, file)? {
            // Where the loader looks last, on every machine.
            let at = Path::new("/lib").join(&name);
            if !self.inside(&at).exists() {
                self.add(&cross.libraries().join(&name), &at.to_string_lossy())?;
            }
        }
        Ok(())
    }

    /// The guest's memory holds all of it.
    fn strip(&self, at: &str) -> Result<()> {
        let program = self.cross.map_or_else(|| "strip".to_owned(), |cross| cross.tool("strip"));
        shell::run(&mut shell::program(program, [self.inside(Path::new(at))]))
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// This machine's busybox.
pub(super) fn busybox() -> Result<PathBuf> {
    let busybox = shell::on_path("busybox").context("no busybox")?;
    if !libraries(&busybox)?.is_empty() {
        bail!("{} is not static: install the package busybox-static", busybox.display());
    }
    Ok(busybox)
}

/// The shared libraries that a program needs, loader included; none for a static one or a script.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails on what is not dynamic.
    let Ok(text) = shell::capture(shell::program("ldd", [program]).env("LC_ALL", "C")) else {
        return Ok(Vec::new());
    };
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} lacks a library: {}", program.display(), line.trim());
    }
    Ok(library_paths(&text))
}

/// The absolute paths in what `ldd` prints.
fn library_paths(text: &str) -> Vec<PathBuf> {
    let path_in =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter_map(path_in).collect()
}

/// The names of the libraries that a program for another machine asks for itself, loader included.
fn needed_names(cross: &Cross, program: &Path) -> Result<Vec<String>> {
    let mut command = shell::program(cross.tool("readelf"), ["--wide", "--dynamic", "--segments"]);
    Ok(asked_for(&shell::capture(command.arg(program).env("LC_ALL", "C"))?))
}

/// The file names in the lines of `readelf` that name a library or the loader.
fn asked_for(text: &str) -> Vec<String> {
    let name_in = |line: &str| {
        let (_, rest) =
            line.split_once("Shared library: [").or_else(|| line.split_once("interpreter: "))?;
        let path = rest.split(']').next()?;
        path.rsplit('/').next().map(str::to_owned)
    };
    text.lines().filter_map(name_in).collect()
}

/// Runs every check, says which passed, and ends with the last failure's exit code.
fn script(checks: &[Check]) -> String {
    let mut script = "result=0\n".to_owned();
    for Check { name, program, args, idle } in checks {
        let quoted = args.iter().map(|arg| quote(&arg.to_string_lossy()));
        let words: Vec<_> = std::iter::once((*program).to_owned()).chain(quoted).collect();
        script += &words.join(" ");
        if let Some(pattern) = idle {
            script += " > /tmp/said; code=$?; cat /tmp/said\nif grep -q ";
            script += &quote(pattern);
            script += " /tmp/said; then code=9; fi\n";
        } else {
            script += "; code=$?\n";
        }
        script += "if [ $code = 0 ]; then echo '@@PASSED ";
        script += name;
        script += "'; else result=$code; fi\n";
    }
    script + "exit $result\n"
}

/// A word that the shell reads as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).with_context(|| format!("making {} executable", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_folder(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))
}

/// The kernel's own archive format; not compressed, because the guest would be slow to unpack it.
fn pack(root: &Path, image: &Path) -> Result<()> {
    let files = shell::capture(shell::program("find", ["."]).current_dir(root))?;
    let output = File::create(image).with_context(|| format!("making {}", image.display()))?;
    let mut command = shell::program("cpio", ["--create", "--format=newc", "--quiet"]);
    command.current_dir(root).stdin(Stdio::piped()).stdout(output);
    let mut cpio = command.spawn().context("starting cpio")?;
    let mut input = cpio.stdin.take().context("cpio takes no input")?;
    input.write_all(files.as_bytes()).context("naming the files to cpio")?;
    drop(input);
    if !cpio.wait().context("waiting for cpio")?.success() {
        bail!("cpio could not write {}", image.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Check, PROGRAM, asked_for, library_paths, script};
    use std::ffi::OsString;
    use std::path::PathBuf;

    #[test]
    fn the_loader_and_every_library_come_along() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected =
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(library_paths(text), expected);
    }

    #[test]
    fn a_program_for_another_machine_brings_what_it_asks_for() {
        let text = "  LOAD           0x000000 0x0000000000000000 0x0000000000000000\n\
                    \x20     [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n\
                    \x200x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n\
                    \x200x000000000000000e (SONAME)             Library soname: [libnccl.so]\n";
        assert_eq!(asked_for(text), ["ld-linux-aarch64.so.1", "libgcc_s.so.1"]);
    }

    fn run(checks: &[Check]) -> (Option<i32>, String) {
        // `echo` in place of the program: the script only has to name it.
        let script = script(checks).replace("/program", "echo");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn arguments_reach_the_guest_as_they_are() {
        let args = ["self-test", "it's", "$HOME"].map(OsString::from).to_vec();
        let expected = "self-test it's $HOME\n@@PASSED a\n".to_owned();
        let check = Check { name: "a".into(), program: PROGRAM, args, idle: None };
        assert_eq!(run(&[check]), (Some(0), expected));
    }

    #[test]
    fn a_check_that_says_it_has_checked_nothing_has_failed() {
        let check = |word: &str| Check {
            name: "a".into(),
            program: PROGRAM,
            args: vec![OsString::from(word)],
            idle: Some("needs .*BPF"),
        };
        assert_eq!(run(&[check("done")]), (Some(0), "done\n@@PASSED a\n".to_owned()));
        let skipped = "skipped: needs root and BPF";
        assert_eq!(run(&[check(skipped)]), (Some(9), format!("{skipped}\n")));
    }

    #[test]
    fn one_failing_check_fails_the_guest_and_the_others_still_run() {
        let check = |name: &str, word: &str| Check {
            name: name.into(),
            program: PROGRAM,
            args: vec![OsString::from(word)],
            idle: None,
        };
        let script = script(&[check("a", "3"), check("b", "0")]);
        let script = script.replace("/program", "sh -c 'exit $0'");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let reported = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), reported.as_str()), (Some(3), "@@PASSED b\n"));
    }
}
