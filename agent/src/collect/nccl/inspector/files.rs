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
use super::processes::ProcessNames;
use super::sharing::MAX_OF_PROCESS;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::tenant_files::{self, MAX_DESCRIPTORS, Stat, TenantFile};
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Open files of one process that are looked at; `ulimit -n` is often a million, used are some
/// thousands.
const MAX_OPEN: usize = 65_536;
/// Entries of a directory that are looked at.
const MAX_ENTRIES: usize = 65_536;
/// Files of one directory that one look finds.
const MAX_FOUND: usize = MAX_DESCRIPTORS;

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FileKey {
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
pub(crate) struct FoundFile {
    pub key: FileKey,
    pub kind: Kind,
    pub uid: u32,
    pub modified: SystemTime,
}

/// One that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub seen: FoundFile,
    pub file: TenantFile,
}

/// Which files to open.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileFilter {
    /// Not these.
    pub known: Vec<FileKey>,
    /// Only those written since.
    pub since: Option<SystemTime>,
    /// Only those that this process wrote.
    pub by: Option<ProcessNames>,
}

/// Where to look for files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Search {
    /// Among those that a process has open for writing. `pid` is its number in its own PID
    /// namespace.
    OpenBy { process: ProcKey, pid: u32 },
    /// In a directory that is passed: records only. Expositions do not say who wrote them.
    Directory,
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    pub files: Vec<Opened>,
    /// Files of the Inspector's names that are none, or cannot be opened.
    pub refused: u64,
}

/// The same before it is known whose files they are.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub files: Vec<(Kind, Stat, OwnedFd)>,
    pub refused: u64,
}

impl FoundFile {
    pub(crate) fn new(kind: Kind, stat: &Stat) -> Self {
        let key = FileKey { device: stat.device, inode: stat.inode };
        let modified = UNIX_EPOCH + Duration::from_nanos(stat.modified_ns);
        Self { key, kind, uid: stat.uid, modified }
    }
}

impl FileFilter {
    fn takes(&self, seen: &FoundFile) -> bool {
        !self.known.contains(&seen.key)
            && self.since.is_none_or(|since| seen.modified >= since)
            && self.by.is_none_or(|by| by.wrote(seen))
    }
}

impl Places {
    fn take(&mut self, place: Result<OwnedFd, Errno>, kind: Kind, wanted: &FileFilter) {
        match place.and_then(|place| plain(place, kind, wanted)) {
            Ok(found) => self.files.extend(found),
            // Closed or removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(_) => self.refused += 1,
        }
    }
}

/// Looks; in the calling thread, which may hang.
pub(crate) fn search(
    paths: &Paths,
    search: &Search,
    place: Option<BorrowedFd<'_>>,
    wanted: &FileFilter,
) -> Result<Places, Errno> {
    match search {
        Search::OpenBy { process, pid } => open_by((paths, *process, *pid), wanted),
        Search::Directory => in_directory(place.ok_or(Errno::BADF)?, wanted),
    }
}

fn open_by(
    (paths, process, pid): (&Paths, ProcKey, u32),
    wanted: &FileFilter,
) -> Result<Places, Errno> {
    let folder = paths.proc.join(format!("{}/fd", process.pid));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, &folder, flags, Mode::empty())?;
    let mut found = Places::default();
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
        found.take(openat(&folder, entry.file_name(), flags, Mode::empty()), kind, wanted);
    }
    Ok(found)
}

fn in_directory(place: BorrowedFd<'_>, wanted: &FileFilter) -> Result<Places, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(place, ".", flags, Mode::empty())?;
    let mut found = Places::default();
    for entry in Dir::read_from(&folder)?.take(MAX_ENTRIES).flatten() {
        let Some(kind) = entry.file_name().to_str().ok().and_then(kind) else { continue };
        if kind == Kind::Exposition {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        found.take(openat(&folder, entry.file_name(), flags, Mode::empty()), kind, wanted);
        if found.files.len() >= MAX_FOUND {
            break;
        }
    }
    Ok(found)
}

/// A directory as a process names it: below its own root, or below the directory it is in.
pub(crate) fn directory_of(
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
pub(crate) fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The link of an open file shows in its mode how the file was opened.
fn is_written(folder: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & 0o200 != 0)
}

/// What a place stands for, if it is a plain file that can be opened, and wanted.
fn plain(
    place: OwnedFd,
    kind: Kind,
    wanted: &FileFilter,
) -> Result<Option<(Kind, Stat, OwnedFd)>, Errno> {
    // Without asking the server of a network file system again.
    let stat = tenant_files::regular(&place, AtFlags::STATX_DONT_SYNC)?;
    if !wanted.takes(&FoundFile::new(kind, &stat)) {
        return Ok(None);
    }
    tenant_files::open_place(place.as_fd())?;
    Ok(Some((kind, stat, place)))
}

#[cfg(test)]
mod tests;
