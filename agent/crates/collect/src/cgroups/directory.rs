//! The directories of a cgroup in the host's hierarchies, opened component by component: no link
//! and no `..` is followed, and a cgroup of the same name that is made later is another one.

use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::owner::MAX_DEPTH;
use gpuwho_owners::proc_scan::unified_root;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Longer than `memory.stat`, the longest of the files that are read.
const MAX_FILE: usize = 64 * 1024;

/// Most of them are shorter.
const COMMON_FILE: usize = 4096;

/// Where the hierarchies are mounted.
#[derive(Debug, Default)]
pub(super) struct Roots {
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

/// A cgroup: the directory of its name in each hierarchy that has one.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) unified: Option<Folder>,
    pub(super) memory: Option<Folder>,
    pub(super) cpu: Option<Folder>,
    pub(super) cpuacct: Option<Folder>,
}

/// A directory, and those of its files that stay open: opening one costs several times as much as reading it.
#[derive(Debug)]
pub(super) struct Folder {
    directory: OwnedFd,
    files: Vec<(&'static str, File)>,
}

impl Roots {
    /// Those of this host.
    pub(super) fn find(paths: &Paths) -> Self {
        let unified = unified_root(paths);
        if unified.as_ref() == Some(&paths.cgroup) {
            // A directory `memory` there is a cgroup.
            return Self { unified, ..Self::default() };
        }
        let v1 = |controller| {
            let root = paths.cgroup.join(controller);
            root.join("cgroup.procs").exists().then_some(root)
        };
        Self { unified, memory: v1("memory"), cpu: v1("cpu"), cpuacct: v1("cpuacct") }
    }

    /// For a person; `None` where nothing is mounted.
    pub(super) fn describe(&self) -> Option<String> {
        let v1 = [("memory", &self.memory), ("cpu", &self.cpu), ("cpuacct", &self.cpuacct)];
        let v1: Vec<_> =
            v1.iter().filter(|(_, root)| root.is_some()).map(|(name, _)| *name).collect();
        let v1 = (!v1.is_empty()).then(|| format!("version 1 ({})", v1.join(", ")));
        let v2 = self.unified.as_ref().map(|_| "version 2".to_owned());
        let all: Vec<String> = v1.into_iter().chain(v2).collect();
        (!all.is_empty()).then(|| format!("owners' cgroups are read: {}", all.join(" and ")))
    }

    /// A cgroup by its path within the hierarchies.
    pub(super) fn open(&self, path: &str) -> Directory {
        let at = |root: &Option<PathBuf>| {
            Some(Folder { directory: below(root.as_deref()?, path)?, files: Vec::new() })
        };
        Directory {
            unified: at(&self.unified),
            memory: at(&self.memory),
            cpu: at(&self.cpu),
            cpuacct: at(&self.cpuacct),
        }
    }
}

fn below(root: &Path, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, root, flags, Mode::empty()).ok()?;
    for (depth, name) in path.split('/').filter(|name| !name.is_empty()).enumerate() {
        if depth >= MAX_DEPTH || name == "." || name == ".." {
            return None;
        }
        directory = openat(&directory, name, flags | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    }
    Some(directory)
}

impl Folder {
    /// What a file says.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        read(&self.open(name)?)
    }

    /// What a file says, which stays open until it cannot be read: the file of a cgroup that is gone says nothing,
    /// whatever has its name now.
    pub(super) fn text_kept(&mut self, name: &'static str) -> Option<String> {
        let known = self.files.iter().position(|(known, _)| *known == name);
        let kept = known.map(|known| self.files.swap_remove(known));
        let kept = kept.or_else(|| Some((name, self.open(name)?)))?;
        let text = read(&kept.1)?;
        self.files.push(kept);
        Some(text)
    }

    fn open(&self, name: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).ok().map(File::from)
    }
}

/// The whole file from its beginning. The kernel gives the whole of one that fits: a short read is its end.
fn read(file: &File) -> Option<String> {
    let mut text = vec![0; COMMON_FILE];
    let mut length = file.read_at(&mut text, 0).ok()?;
    while length == text.len() && length < MAX_FILE {
        text.resize((length * 2).min(MAX_FILE), 0);
        length += file.read_at(text.get_mut(length..)?, u64::try_from(length).ok()?).ok()?;
    }
    text.truncate(length);
    String::from_utf8(text).ok()
}
