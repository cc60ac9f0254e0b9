//! Opening the Inspector's files, wherever a job put them, without being led anywhere else.
//!
//! The surest way is through the writer's own open files: `/proc/PID/fd/N` leads to the file
//! itself, in whatever container, under whatever path, also after it was removed. Where these
//! cannot be looked at or their process has ended, directories are looked in: a process's below its own
//! root, from which no link leads out (`openat2`, Linux 5.6).
//!
//! Nothing is opened before it is known to be a plain file (`O_PATH` first): no FIFO is waited
//! for, and no device is touched.

use super::names::{Kind, kind};
use super::sharing::MAX_OF_PROCESS;
use crate::ids::ProcKey;
use crate::paths::Paths;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2,
    readlinkat, statat, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Open files of one process that are looked at; `ulimit -n` is often a million, used are some
/// thousands.
const MAX_OPEN: usize = 65_536;
/// Entries of a directory that are looked at.
const MAX_ENTRIES: usize = 65_536;
/// Files of one directory.
const MAX_FOUND: usize = 256;

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileKey {
    device: (u32, u32),
    inode: u64,
}

#[cfg(test)]
impl FileKey {
    /// Of no real file.
    pub(super) fn of(device: u32, inode: u64) -> Self {
        Self { device: (0, device), inode }
    }
}

/// A plain file of a name of the Inspector's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub key: FileKey,
    pub kind: Kind,
    pub uid: u32,
    pub modified: SystemTime,
}

/// One that was opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub seen: Seen,
    pub file: File,
}

/// Whether to open a file.
pub(super) type Wanted<'a> = &'a dyn Fn(&Seen) -> bool;

/// What a look found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub files: Vec<Opened>,
    /// Files of the Inspector's names that are none, or cannot be opened.
    pub refused: u64,
}

impl Found {
    fn take(&mut self, opened: Result<Option<Opened>, Errno>) {
        match opened {
            Ok(opened) => self.files.extend(opened),
            // Closed or removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(_) => self.refused += 1,
        }
    }
}

/// The Inspector's files among those that a process has open for writing. `pid` is its number in
/// its own PID namespace.
pub(super) fn open_by(
    (paths, process, pid): (&Paths, ProcKey, u32),
    is_wanted: Wanted<'_>,
) -> Result<Found, Errno> {
    let folder = paths.proc.join(format!("{}/fd", process.pid));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, &folder, flags, Mode::empty())?;
    let mut found = Found::default();
    for entry in Dir::read_from(&folder)?.take(MAX_OPEN).flatten() {
        let Ok(path) = readlinkat(&folder, entry.file_name(), Vec::new()) else { continue };
        let path = path.to_string_lossy();
        let Some(kind) = path.rsplit('/').next().and_then(kind) else { continue };
        // A child inherits what its parent writes; its name is the parent's.
        let is_anothers = matches!(kind, Kind::Records { pid: named } if named != pid);
        if is_anothers || !is_written(folder.as_fd(), entry.file_name()) {
            continue;
        }
        if found.files.len() >= MAX_OF_PROCESS {
            found.refused += 1;
            continue;
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let place = openat(&folder, entry.file_name(), flags, Mode::empty());
        found.take(place.and_then(|place| plain(&place, kind, is_wanted)));
    }
    Ok(found)
}

/// The Inspector's records in a directory. Expositions do not say who wrote them.
pub(super) fn in_directory(place: BorrowedFd<'_>, is_wanted: Wanted<'_>) -> Result<Found, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(place, ".", flags, Mode::empty())?;
    let mut found = Found::default();
    for entry in Dir::read_from(&folder)?.take(MAX_ENTRIES).flatten() {
        let Some(kind) = entry.file_name().to_str().ok().and_then(kind) else { continue };
        if kind == Kind::Exposition {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(&folder, entry.file_name(), flags, Mode::empty());
        found.take(place.and_then(|place| plain(&place, kind, is_wanted)));
        if found.files.len() >= MAX_FOUND {
            break;
        }
    }
    Ok(found)
}

/// A directory as a process names it: below its own root, or below the directory it is in.
pub(super) fn directory_of(
    paths: &Paths,
    process: ProcKey,
    directory: &Path,
) -> Result<OwnedFd, Errno> {
    let is_absolute = directory.is_absolute();
    let from = if is_absolute { "root" } else { "cwd" };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let from = paths.proc.join(process.pid.to_string()).join(from);
    let from = openat(CWD, &from, flags, Mode::empty())?;
    let stay = if is_absolute { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
    openat2(&from, directory, flags, Mode::empty(), stay | ResolveFlags::NO_MAGICLINKS)
}

/// A directory that the operator named.
pub(super) fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The link of an open file shows in its mode how the file was opened.
fn is_written(folder: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & 0o200 != 0)
}

/// Opens what a place stands for, if it is a plain file and wanted.
fn plain(place: &OwnedFd, kind: Kind, is_wanted: Wanted<'_>) -> Result<Option<Opened>, Errno> {
    // Without asking the server of a network file system again.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(place, c"", flags, StatxFlags::BASIC_STATS)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let key = FileKey { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino };
    let (seconds, ns) = (stat.stx_mtime.tv_sec.max(0).unsigned_abs(), stat.stx_mtime.tv_nsec);
    let modified = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(ns.into());
    let seen = Seen { key, kind, uid: stat.stx_uid, modified };
    if !is_wanted(&seen) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let through = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = openat(CWD, through, flags, Mode::empty())?.into();
    Ok(Some(Opened { seen, file }))
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
