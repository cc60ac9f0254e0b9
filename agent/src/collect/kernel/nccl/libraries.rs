//! Which mapped files are collective libraries, and who maps them.
//!
//! A file is known by its device and inode as the kernel shows them among a process's mappings,
//! so that names, links, containers and copies do not matter. It is opened through
//! `/proc/PID/map_files`, which leads to the mapped file itself also when it was deleted or is in
//! a container, else below `/proc/PID/root`. A file that is no such library is remembered as long
//! as somebody maps it.
//!
//! Overlay mounts show one file below them each as a file of its own, while the kernel's probes are
//! on the one below. Such twins agree in size, times and build id, and the memory of a process that
//! maps the second has the probes of the first in it.

use super::elf::{Exports, exports, version};
use super::fields::{Fields, fields};
use crate::ids::ProcKey;
use crate::paths::Paths;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileKey {
    /// `major:minor`, as the mappings show it.
    device: Box<str>,
    inode: u64,
}

/// A collective library in use.
#[derive(Debug)]
pub(super) struct Library {
    /// The path as the first process that mapped it sees it.
    pub path: Arc<str>,
    /// Where it can be opened; good as long as `opener` maps it.
    pub file: PathBuf,
    /// The process through which it is opened.
    opener: ProcKey,
    /// What it offers.
    pub exports: Exports,
    /// Where it keeps what a communicator is, as far as its code tells.
    pub fields: Option<Fields>,
    /// Who maps it.
    pub users: HashSet<ProcKey>,
    /// Its size and times.
    stamp: Stamp,
    /// Where a process has it in memory.
    memory: Memory,
}

/// What tells a file from a copy of it: size, and the times of writing and of change to the
/// nanosecond.
type Stamp = (u64, [i64; 4]);

/// Version and path, as they are told.
pub(super) type Told = (Arc<str>, Arc<str>);

/// A file in a process's memory.
#[derive(Debug)]
struct Memory {
    /// `/proc/PID/mem`.
    path: PathBuf,
    /// Address of the file's first byte, were it mapped like its code.
    base: u64,
}

impl Library {
    /// Version and path, as they are told.
    pub(super) fn told(&self) -> Told {
        let version = self.exports.version.split('+').next().unwrap_or_default();
        (version.into(), Arc::clone(&self.path))
    }

    /// Whether this is the file that another library's probes are on, though it goes by another
    /// device.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        self.stamp == other.stamp
            && self.exports.build_id == other.exports.build_id
            && self.exports.entries == other.exports.entries
            && self.is_probed().unwrap_or(false)
    }

    /// It is opened through another of its users when the one that it was opened through has let it
    /// go.
    fn leave(&mut self, process: ProcKey, key: &FileKey) {
        if self.opener != process {
            return;
        }
        let Some(proc) = self.memory.path.ancestors().nth(2).map(Path::to_owned) else { return };
        let place_of = |user: &ProcKey| {
            let folder = proc.join(user.pid.to_string());
            let maps = fs::read(folder.join("maps")).ok()?;
            let maps = String::from_utf8_lossy(&maps);
            let mapping = maps.lines().filter_map(mapping).find(|one| one.key == *key)?;
            let (file, _) = place(&folder, &mapping)?;
            Some((file, memory(&folder, &mapping)?, *user))
        };
        if let Some((file, memory, opener)) = self.users.iter().find_map(place_of) {
            (self.file, self.memory, self.opener) = (file, memory, opener);
        }
    }

    /// Whether the code in memory is not the code in the file.
    fn is_probed(&self) -> io::Result<bool> {
        let Some((_, offset)) = self.exports.entries.first() else { return Ok(false) };
        let (mut in_file, mut in_memory) = ([0; 4], [0; 4]);
        File::open(&self.file)?.read_exact_at(&mut in_file, *offset)?;
        let address = self.memory.base.wrapping_add(*offset);
        File::open(&self.memory.path)?.read_exact_at(&mut in_memory, address)?;
        Ok(in_file != in_memory)
    }
}

/// An executable mapping of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapping<'a> {
    range: &'a str,
    offset: u64,
    key: FileKey,
    path: &'a str,
}

/// All mapped files that were looked at.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    known: HashMap<FileKey, Library>,
    /// Files that are none.
    others: HashSet<FileKey>,
    /// Files each process maps.
    mapped: HashMap<ProcKey, HashSet<FileKey>>,
    /// How many processes map each of them.
    mappers: HashMap<FileKey, usize>,
}

impl Libraries {
    /// Looks at a process's mappings; true if that changed who maps a library.
    pub(super) fn look(&mut self, paths: &Paths, process: ProcKey) -> bool {
        let folder = paths.proc.join(process.pid.to_string());
        let Ok(maps) = fs::read(folder.join("maps")) else { return self.forget(process) };
        let maps = String::from_utf8_lossy(&maps);
        let mut mapped = HashSet::new();
        let mut changed = false;
        for mapping in maps.lines().filter_map(mapping) {
            if !mapped.insert(mapping.key.clone()) {
                continue;
            }
            if let Some(library) = self.library((&folder, process), mapping) {
                changed |= library.users.insert(process);
            }
        }
        for key in &mapped {
            if !self.mapped.get(&process).is_some_and(|before| before.contains(key)) {
                *self.mappers.entry(key.clone()).or_insert(0) += 1;
            }
        }
        let before = self.mapped.insert(process, mapped).unwrap_or_default();
        let closed: Vec<FileKey> = match self.mapped.get(&process) {
            Some(mapped) => before.difference(mapped).cloned().collect(),
            None => Vec::new(),
        };
        changed | self.leave(process, closed)
    }

    /// The library that a mapped file is.
    fn library(&mut self, process: (&Path, ProcKey), mapping: Mapping<'_>) -> Option<&mut Library> {
        if self.others.contains(&mapping.key) {
            return None;
        }
        match self.known.entry(mapping.key.clone()) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let library = open(process, &mapping);
                if library.is_none() {
                    self.others.insert(mapping.key);
                }
                library.map(|library| new.insert(library))
            }
        }
    }

    /// Reads a library's version, which takes longer than to attach to it.
    pub(super) fn tell_version(&mut self, key: &FileKey) {
        if let Some(library) = self.known.get_mut(key)
            && let Some(version) =
                File::open(&library.file).ok().and_then(|file| version(&file).ok()?)
        {
            library.exports.version = version;
        }
    }

    /// A process has ended; true if it mapped a library.
    pub(super) fn forget(&mut self, process: ProcKey) -> bool {
        let mapped = self.mapped.remove(&process).unwrap_or_default();
        self.leave(process, mapped)
    }

    /// Everybody that maps a library.
    pub(super) fn users(&self) -> HashSet<ProcKey> {
        self.in_use().flat_map(|(_, library)| library.users.iter().copied()).collect()
    }

    /// The libraries that somebody maps.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (&FileKey, &Library)> {
        self.known.iter()
    }

    /// The library of a process, the newest of several.
    pub(super) fn of(&self, process: ProcKey) -> Option<&Library> {
        let mine = self.in_use().filter(|(_, library)| library.users.contains(&process));
        mine.map(|(_, library)| library)
            .max_by(|one, other| one.exports.version.cmp(&other.exports.version))
    }

    /// Where a process's communicators have their fields, unless it maps libraries that differ.
    pub(super) fn fields_of(&self, process: ProcKey) -> Option<Fields> {
        let mut mine = self.in_use().filter(|(_, library)| library.users.contains(&process));
        let first = mine.next()?.1.fields;
        first.filter(|_| mine.all(|(_, library)| library.fields == first))
    }

    fn leave(&mut self, process: ProcKey, files: impl IntoIterator<Item = FileKey>) -> bool {
        let mut changed = false;
        for key in files {
            let others = self.mappers.get_mut(&key).map_or(0, |mappers| {
                *mappers = mappers.saturating_sub(1);
                *mappers
            });
            if let Some(library) = self.known.get_mut(&key) {
                changed |= library.users.remove(&process);
                library.leave(process, &key);
            }
            if others == 0 {
                self.mappers.remove(&key);
                self.known.remove(&key);
                self.others.remove(&key);
            }
        }
        changed
    }
}

/// Reads the functions of a mapped file. One that cannot be opened or read is no library.
fn open((process, opener): (&Path, ProcKey), mapping: &Mapping<'_>) -> Option<Library> {
    let (file, opened) = place(process, mapping)?;
    let exports = exports(&opened).ok().flatten()?;
    let fields = fields(&opened).ok().flatten();
    let found = opened.metadata().ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    let (path, users) = (Arc::from(mapping.path), HashSet::new());
    let (stamp, memory) = ((found.len(), times), memory(process, mapping)?);
    Some(Library { path, file, opener, exports, fields, users, stamp, memory })
}

/// The code of the file of which a process has something at an address.
pub(super) fn code_of(maps: &str, address: u64) -> Option<Mapping<'_>> {
    let (found, _) = maps.lines().filter_map(file_mapping).find(|(found, _)| {
        let bounds = found.range.split_once('-');
        let hex = |text| u64::from_str_radix(text, 16).ok();
        bounds.is_some_and(|(begin, end)| {
            hex(begin) <= Some(address) && hex(end).is_some_and(|end| address < end)
        })
    })?;
    maps.lines().filter_map(mapping).find(|code| code.key == found.key)
}

/// Where a mapped file can be opened, and opened there.
pub(super) fn place(process: &Path, mapping: &Mapping<'_>) -> Option<(PathBuf, File)> {
    let in_root = mapping.path.trim_end_matches(" (deleted)").trim_start_matches('/');
    let places =
        [process.join("map_files").join(mapping.range), process.join("root").join(in_root)];
    places.into_iter().find_map(|place| Some((place.clone(), File::open(place).ok()?)))
}

fn memory(process: &Path, mapping: &Mapping<'_>) -> Option<Memory> {
    let begin = u64::from_str_radix(mapping.range.split('-').next()?, 16).ok()?;
    Some(Memory { path: process.join("mem"), base: begin.wrapping_sub(mapping.offset) })
}

/// Code of a file, as a line of `/proc/PID/maps` shows it.
fn mapping(line: &str) -> Option<Mapping<'_>> {
    file_mapping(line).filter(|(_, is_code)| *is_code).map(|(mapping, _)| mapping)
}

/// A file's mapping, and whether it is code: `7f00-7f01 r-xp 00001000 08:01 1234 /path`.
fn file_mapping(line: &str) -> Option<(Mapping<'_>, bool)> {
    let mut fields = line.splitn(6, ' ');
    let range = fields.next()?;
    let permissions = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let device = fields.next()?;
    let inode = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
    let path = fields.next()?.trim_start();
    let is_code = permissions.get(2..3) == Some("x");
    let key = FileKey { device: device.into(), inode };
    path.starts_with('/').then_some((Mapping { range, offset, key, path }, is_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_looked_at() {
        let code = "7f12-7f13 r-xp 00026000 fd:00 1234                       /lib/libnccl.so.2";
        let key = FileKey { device: "fd:00".into(), inode: 1234 };
        assert_eq!(
            mapping(code),
            Some(Mapping { range: "7f12-7f13", offset: 0x26000, key, path: "/lib/libnccl.so.2" })
        );
        for other in [
            "7f12-7f13 r--p 00026000 fd:00 1234                       /lib/libnccl.so.2",
            "7f12-7f13 rwxp 00000000 00:00 0                          [heap]",
            "7f12-7f13 r-xp 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(mapping(other), None, "{other}");
        }
    }

    #[test]
    fn the_code_of_a_file_is_found_from_where_the_file_begins_in_memory() {
        let maps = "7f10-7f12 r--p 00000000 fd:00 12  /lib/ld-2.31.so\n\
                    7f12-7f13 r-xp 00002000 fd:00 12  /lib/ld-2.31.so\n\
                    7f20-7f21 r-xp 00000000 fd:00 13  /lib/libc.so\n";
        let key = FileKey { device: "fd:00".into(), inode: 12 };
        let code = Mapping { range: "7f12-7f13", offset: 0x2000, key, path: "/lib/ld-2.31.so" };
        assert_eq!(code_of(maps, 0x7f10), Some(code));
        assert_eq!(code_of(maps, 0x7f20).map(|code| code.path), Some("/lib/libc.so"));
        assert_eq!(code_of(maps, 0x7f13), None);
    }
}
