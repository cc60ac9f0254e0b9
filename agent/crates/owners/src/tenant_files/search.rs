//! Opens the Inspector's files, wherever a job put them, without following links elsewhere.
//!
//! The safest way is through the writer's open files: `/proc/PID/fd/N` refers to the file itself,
//! in any container, under any path, also after it was removed. If these cannot be read or their
//! process has ended, directories are searched: a process's below its own root, which no link can
//! leave (`openat2`, Linux 5.6).
//!
//! A file is opened only once it is known to be a regular file (`O_PATH` first): the agent never
//! blocks on a FIFO and never touches a device.

use super::names::{Kind, kind};
use crate::tenant_files::{self, MAX_DESCRIPTORS, Stat, TenantFile};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Limit on the open files of one process that are checked; `ulimit -n` is often a million, but
/// programs use some thousands.
const MAX_OPEN: usize = 65_536;
/// Limit on the directory entries that are checked.
const MAX_ENTRIES: usize = 65_536;
/// Files of one process: its records, and an exposition for each of up to sixteen devices.
pub const MAX_OF_PROCESS: usize = 32;
/// Limit on the files of one directory that a search returns.
const MAX_FOUND: usize = MAX_DESCRIPTORS;

/// Identifies a file whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    device: (u32, u32),
    inode: u64,
}

#[cfg(any(test, feature = "fixtures"))]
impl FileKey {
    /// Not of a real file.
    pub fn of(device: u32, inode: u64) -> Self {
        Self { device: (0, device), inode }
    }
}

/// A regular file with a name of the Inspector's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Which file.
    pub key: FileKey,
    /// What its name says that it is.
    pub kind: Kind,
    /// Its user.
    pub uid: u32,
    /// When it was last written.
    pub modified: SystemTime,
}

/// An opened file.
#[derive(Debug)]
pub struct Opened {
    /// What was found.
    pub seen: FoundFile,
    /// The file.
    pub file: TenantFile,
}

/// The PID, user and parent of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessNames {
    /// Its PID in its own namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The parent's PID in the host's namespace.
    pub parent: u32,
}

impl ProcessNames {
    /// Whether a file's name and user match this process.
    pub fn wrote(self, seen: &FoundFile) -> bool {
        seen.kind == Kind::Records { pid: self.pid } && seen.uid == self.uid
    }
}

/// Which files to open.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileFilter {
    /// Excludes these.
    pub known: Vec<FileKey>,
    /// Only files modified since.
    pub since: Option<SystemTime>,
    /// Only files written by this process.
    pub by: Option<ProcessNames>,
}

/// Where to search for files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Search {
    /// Among the files that a process has open for writing. `pid` is its PID in its own namespace.
    OpenBy { process: ProcKey, pid: u32 },
    /// In a directory that is passed: records only, because expositions do not name their writer.
    Directory,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct SearchResult {
    /// What was opened.
    pub files: Vec<Opened>,
    /// Entries with a name of the Inspector's that are not regular files or cannot be opened.
    pub refused: u64,
}

/// The result of a search before the owners of the files are known.
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
    fn matches(&self, seen: &FoundFile) -> bool {
        !self.known.contains(&seen.key)
            && self.since.is_none_or(|since| seen.modified >= since)
            && self.by.is_none_or(|by| by.wrote(seen))
    }
}

impl Places {
    fn take(&mut self, place: Result<OwnedFd, Errno>, kind: Kind, wanted: &FileFilter) {
        match place.and_then(|place| plain(place, kind, wanted)) {
            Ok(found) => self.files.extend(found),
            // Closed or removed in the meantime.
            Err(Errno::NOENT) => {}
            Err(_) => self.refused += 1,
        }
    }
}

/// Runs a search in the calling thread, which may hang.
pub(crate) fn search(
    paths: &Paths,
    search: &Search,
    place: Option<BorrowedFd<'_>>,
    wanted: &FileFilter,
) -> Result<Places, Errno> {
    match search {
        Search::OpenBy { process, pid } => open_by(paths, *process, *pid, wanted),
        Search::Directory => in_directory(place.ok_or(Errno::BADF)?, wanted),
    }
}

fn open_by(
    paths: &Paths,
    process: ProcKey,
    pid: u32,
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
        // A child inherits its parent's open files; their names have the parent's PID.
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

/// Opens a directory as a process names it: below its own root, or below its working directory.
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

/// Opens a directory from the configuration.
pub fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a file is open for writing: the mode of its link in `/proc` shows it.
fn is_written(folder: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & 0o200 != 0)
}

/// The file behind a place, if it is a regular file that can be opened and matches the filter.
fn plain(
    place: OwnedFd,
    kind: Kind,
    wanted: &FileFilter,
) -> Result<Option<(Kind, Stat, OwnedFd)>, Errno> {
    // Does not query the server of a network file system.
    let stat = tenant_files::regular(&place, AtFlags::STATX_DONT_SYNC)?;
    if !wanted.matches(&FoundFile::new(kind, &stat)) {
        return Ok(None);
    }
    tenant_files::open_place(place.as_fd())?;
    Ok(Some((kind, stat, place)))
}

#[cfg(test)]
mod tests;
