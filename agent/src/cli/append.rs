//! `gpuwho append-line`: for a hook that root runs, a line at the end of a user's file. Root must not follow that
//! user's paths, and no program may run as the user outside his job, so a copy of this process opens the file with
//! the user's rights and nothing else of his (`sys::process::open_files_as`).

use anyhow::bail;
use clap::Args;
use gpuwho_sys::{confine, process};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Longest line, with its end. A receipt's has some hundred bytes.
const MAX_LINE_BYTES: usize = 4096;
/// How long opening and writing may take: a file system over the network may not answer.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct AppendArgs {
    /// The file, which is there already, is the user's, and is a regular one.
    file: PathBuf,
    /// The user's id.
    #[arg(long)]
    user: u32,
    /// The group's id.
    #[arg(long)]
    group: u32,
}

pub(super) fn append(args: &AppendArgs) -> anyhow::Result<ExitCode> {
    // Nothing is open yet.
    confine::close_inherited();
    let line = line(io::stdin())?;
    let work = || match write(&line, args) {
        Ok(()) => 0,
        // Errors of this system are small.
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    match process::in_child(WRITTEN_WITHIN, work)? {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(error) => {
            bail!("{}: {}", args.file.display(), io::Error::from_raw_os_error(error))
        }
        None => bail!("{}: not written within {WRITTEN_WITHIN:?}", args.file.display()),
    }
}

/// The first line of the input, or what fits of it.
fn line(input: impl io::Read) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES as u64 - 1).read_to_end(&mut line)?;
    line.truncate(line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len()));
    line.push(b'\n');
    Ok(line)
}

fn write(line: &[u8], args: &AppendArgs) -> io::Result<()> {
    process::open_files_as(args.user, args.group)?;
    let mut file = own_file(&args.file, args.user)?;
    // One call: what does not fit on the disk is left out.
    file.write(line).map(drop)
}

/// Opens a user's regular file to append to it. What it is is known before it is opened, because opening a device does
/// something already, and opening a pipe waits.
fn own_file(path: &Path, user: u32) -> io::Result<File> {
    let place = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    require(&place, user)?;
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    // Without a wait for a lease that the user has on it.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().append(true).custom_flags(flags).open(again)
}

fn require(place: &OwnedFd, user: u32) -> io::Result<()> {
    let found = fstat(place)?;
    let is_own =
        FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_uid == user;
    if is_own { Ok(()) } else { Err(Errno::PERM.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_line_is_one_and_bounded() {
        let of = |text: &str| String::from_utf8(line(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(of("a b\nc\n"), "a b\n");
        assert_eq!(of(""), "\n");
        assert_eq!(of(&"x".repeat(MAX_LINE_BYTES * 2)).len(), MAX_LINE_BYTES);
    }

    #[test]
    fn only_a_regular_file_of_the_user_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = rustix::process::geteuid().as_raw();
        fs::write(at("file"), "before\n").unwrap();
        own_file(&at("file"), own).unwrap().write_all(b"line\n").unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "before\nline\n");
        symlink(at("file"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["link", "pipe", "absent", ""] {
            assert!(own_file(&at(name), own).is_err(), "{name}");
        }
        assert!(own_file(&at("file"), own + 1).is_err());
        assert!(own_file(Path::new("/dev/zero"), own).is_err());
    }
}
