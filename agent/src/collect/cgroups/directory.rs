//! The directories of a cgroup in the host's hierarchies, opened component by component: no link
//! and no `..` is followed, and a cgroup of the same name that is made later is another one.

use crate::attribute::owner::MAX_DEPTH;
use crate::collect::proc_scan::unified_root;
use crate::paths::Paths;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Longer than `memory.stat`, the longest of the files that are read.
const MAX_FILE: u64 = 64 * 1024;

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
    pub(super) unified: Option<OwnedFd>,
    pub(super) memory: Option<OwnedFd>,
    pub(super) cpu: Option<OwnedFd>,
    pub(super) cpuacct: Option<OwnedFd>,
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
        let at = |root: &Option<PathBuf>| below(root.as_deref()?, path);
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

/// A file of a cgroup. The kernel gives the whole of one that fits: a short read is its end.
pub(super) fn text(directory: Option<&OwnedFd>, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory?, name, flags, Mode::empty()).ok()?);
    let mut text = vec![0; COMMON_FILE];
    let length = file.read(&mut text).ok()?;
    text.truncate(length);
    if length == COMMON_FILE {
        file.take(MAX_FILE - COMMON_FILE as u64).read_to_end(&mut text).ok()?;
    }
    String::from_utf8(text).ok()
}
