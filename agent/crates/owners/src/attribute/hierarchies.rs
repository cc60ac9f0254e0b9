//! The host's cgroup hierarchies, and the path of a cgroup by its id.
//!
//! Paths come from the kernel's announcements (`cgroup_mkdir` carries id and path); else from
//! opening the id as a file handle (two system calls); else, without the capability for that, from
//! one bounded walk. All of it runs when a process is first seen, never on a tick.
//!
//! Cgroup ids are 64 bits with a generation in them (`kernfs_node.id`) and are not reused within a
//! boot; a path stays with its id for [`KEEP_REMOVED_NS`] after the cgroup was removed.

use super::cgroup::{Placement, most_specific};
use super::{Host, KernelCgroups, Method, ProcessAttribution};
use gpuwho_model::ids::{CgroupId, Hierarchy};
use gpuwho_model::paths::Paths;
use gpuwho_sys::handle::open_kernfs_node;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Which cgroup versions the host uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Only the unified hierarchy.
    V2,
    /// Only v1 hierarchies.
    V1,
    /// v1 controllers beside a unified hierarchy.
    Hybrid,
    /// No cgroup file system is mounted where the agent can see it.
    None,
}

/// The mounted hierarchies and their known paths.
#[derive(Debug)]
pub struct Hierarchies {
    mountinfo: PathBuf,
    below: PathBuf,
    mounts: Mutex<Vec<(Hierarchy, PathBuf)>>,
    known: Mutex<PathCache>,
    /// Whether the capability for file handles is missing; found out once.
    handles_refused: AtomicBool,
    walk_allowed: AtomicBool,
    wrong_namespace: AtomicU64,
}

#[derive(Debug, Default)]
struct PathCache {
    paths: HashMap<CgroupId, Arc<str>>,
    /// In order of arrival, for the bound.
    order: VecDeque<CgroupId>,
    /// In order of removal, for the expiry.
    removed: VecDeque<(u64, CgroupId)>,
}

/// Maximum number of stored paths. A node has a few hundred cgroups; this bounds a host that makes
/// them without end.
const MAX_PATHS: usize = 32_768;
/// How long a removed cgroup's path stays known, for processes with late evidence.
const KEEP_REMOVED_NS: u64 = 300_000_000_000;
/// Directories that one walk visits in a hierarchy before it gives up.
const MAX_WALK: usize = 50_000;
/// Maximum length of an announced path; the kernel's own limit.
const MAX_PATH_LEN: usize = 4096;
/// Levels climbed at once from a cgroup with a path that is too long: as `../` they fit into a
/// path.
const MAX_LEVELS: usize = 1024;
/// Climbs from one such cgroup: enough for some 200,000 levels, at some microseconds each.
const MAX_CLIMB: usize = 256;

impl Hierarchies {
    /// Finds the hierarchies mounted at or below `paths.cgroup` in this mount namespace.
    pub fn new(paths: &Paths) -> Self {
        let hierarchies = Self {
            mountinfo: paths.proc.join("self/mountinfo"),
            below: paths.cgroup.clone(),
            mounts: Mutex::default(),
            known: Mutex::default(),
            handles_refused: AtomicBool::new(false),
            walk_allowed: AtomicBool::new(true),
            wrong_namespace: AtomicU64::new(0),
        };
        hierarchies.discover();
        hierarchies
    }

    /// The cgroup versions in use.
    pub(crate) fn layout(&self) -> Layout {
        let mounts = self.mounts.lock();
        let v2 = mounts.iter().any(|(hierarchy, _)| *hierarchy == Hierarchy::V2);
        let v1 = mounts.iter().any(|(hierarchy, _)| *hierarchy != Hierarchy::V2);
        match (v1, v2) {
            (true, true) => Layout::Hybrid,
            (true, false) => Layout::V1,
            (false, true) => Layout::V2,
            (false, false) => Layout::None,
        }
    }

    /// The hierarchies with their mount points.
    pub fn mounts(&self) -> Vec<(Hierarchy, PathBuf)> {
        self.mounts.lock().clone()
    }

    /// Stores an announced path. A long-lived cgroup is announced once, so the newest path counts.
    pub(crate) fn made(&self, id: CgroupId, path: &Arc<str>) {
        if path.len() <= MAX_PATH_LEN && path.starts_with('/') {
            self.known.lock().put(id, Arc::clone(path));
        }
    }

    /// Records a removed cgroup; its path stays known for [`KEEP_REMOVED_NS`].
    pub(crate) fn removed(&self, id: CgroupId, now_ns: u64) {
        let mut known = self.known.lock();
        if known.paths.contains_key(&id) {
            known.removed.push_back((now_ns, id));
        }
    }

    /// Removes paths of cgroups removed long ago, finds hierarchies mounted since, and allows the
    /// next walk.
    pub(crate) fn expire(&self, now_ns: u64) {
        self.walk_allowed.store(true, Ordering::Relaxed);
        if self.layout() == Layout::None {
            self.discover();
        }
        let mut known = self.known.lock();
        while let Some((at_ns, id)) = known.removed.front().copied()
            && now_ns.saturating_sub(at_ns) > KEEP_REMOVED_NS
        {
            known.removed.pop_front();
            known.paths.remove(&id);
        }
        let PathCache { paths, order, .. } = &mut *known;
        // Skips tens of thousands of lookups if no path was removed.
        if order.len() > paths.len() {
            order.retain(|id| paths.contains_key(id));
        }
    }

    /// Counts a path that leaves the cgroup namespace.
    pub(crate) fn note_wrong_namespace(&self) {
        self.wrong_namespace.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of such paths.
    pub(crate) fn wrong_namespace(&self) -> u64 {
        self.wrong_namespace.load(Ordering::Relaxed)
    }

    /// The path of a cgroup; `None` if it is gone and was never announced.
    pub(crate) fn path(&self, id: CgroupId) -> Option<Arc<str>> {
        if let Some(path) = self.known.lock().paths.get(&id) {
            return Some(Arc::clone(path));
        }
        let mount = self.mount(id.hierarchy)?;
        let path = match self.open(&mount, id.id) {
            Ok(path) => path?,
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.handles_refused.store(true, Ordering::Relaxed);
                return self.walk(id, &mount);
            }
            Err(_) => return None,
        };
        self.known.lock().put(id, Arc::clone(&path));
        Some(path)
    }

    /// Whether `cgroups` has an id in every mounted hierarchy.
    fn is_complete(&self, cgroups: &KernelCgroups) -> bool {
        let mounts = self.mounts.lock();
        !mounts.is_empty() && mounts.iter().all(|(mounted, _)| cgroups.get(*mounted).is_some())
    }

    fn mount(&self, hierarchy: Hierarchy) -> Option<PathBuf> {
        let mounts = self.mounts.lock();
        mounts.iter().find(|(known, _)| *known == hierarchy).map(|(_, at)| at.clone())
    }

    fn discover(&self) {
        let text = std::fs::read(&self.mountinfo).unwrap_or_default();
        let found = parse_mountinfo(&String::from_utf8_lossy(&text), &self.below);
        *self.mounts.lock() = found;
    }

    /// Opens the id as a file handle and returns the kernel's path of the directory.
    fn open(&self, mount: &Path, id: u64) -> Result<Option<Arc<str>>, Errno> {
        if self.handles_refused.load(Ordering::Relaxed) {
            return Err(Errno::PERM);
        }
        // Not `O_PATH`: `open_by_handle_at` needs a real descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(mount, flags, Mode::empty())?;
        let node = open_kernfs_node(root.as_fd(), id)
            .map_err(|source| Errno::from_io_error(&source).unwrap_or(Errno::IO))?;
        let full = match path_of(&node) {
            Err(Errno::NAMETOOLONG) => nearest_path_above(node)?,
            full => full?,
        };
        Ok(relative(mount, &full))
    }

    /// Stores the inode and path of every directory, at most once between two calls of
    /// [`Hierarchies::expire`].
    fn walk(&self, id: CgroupId, mount: &Path) -> Option<Arc<str>> {
        if !self.walk_allowed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let mounts = self.mounts.lock().clone();
        for (hierarchy, at) in &mounts {
            for (inode, path) in directories(at) {
                self.known.lock().put(CgroupId { hierarchy: *hierarchy, id: inode }, path);
            }
        }
        tracing::debug!(mount = %mount.display(), "walked the cgroup trees for an id");
        self.known.lock().paths.get(&id).map(Arc::clone)
    }
}

impl PathCache {
    fn put(&mut self, id: CgroupId, path: Arc<str>) {
        if self.paths.insert(id, path).is_none() {
            self.order.push_back(id);
        }
        while self.paths.len() > MAX_PATHS
            && let Some(oldest) = self.order.pop_front()
        {
            self.paths.remove(&oldest);
        }
    }
}

/// The path of an open directory; the kernel returns none of `PATH_MAX` bytes or more.
fn path_of(node: &OwnedFd) -> Result<String, Errno> {
    // The agent's own descriptor table, whatever `Paths.proc` is.
    let link = format!("/proc/self/fd/{}", node.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.to_string_lossy().into_owned())
}

/// The path of the nearest directory above one with a path that is too long: a user who can make
/// cgroups can nest them without end, and the names that identify the owner are further up.
fn nearest_path_above(mut node: OwnedFd) -> Result<String, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut levels = MAX_LEVELS;
    for _ in 0..MAX_CLIMB {
        let above = rustix::fs::openat(&node, "../".repeat(levels), flags, Mode::empty())?;
        match path_of(&above) {
            Ok(path) if levels == 1 => return Ok(path),
            // Perhaps too far: try again from the same directory with half as many levels.
            Ok(_) => levels /= 2,
            Err(Errno::NAMETOOLONG) => node = above,
            Err(error) => return Err(error),
        }
    }
    Err(Errno::NAMETOOLONG)
}

/// `full` relative to `mount`, as the kernel prints cgroup paths.
fn relative(mount: &Path, full: &str) -> Option<Arc<str>> {
    let full = full.strip_suffix(" (deleted)").unwrap_or(full);
    let tail = full.strip_prefix(mount.to_str()?)?;
    match tail {
        "" => Some(Arc::from("/")),
        _ => tail.starts_with('/').then(|| Arc::from(tail)),
    }
}

/// Inode and path of every directory of a hierarchy, breadth first.
fn directories(mount: &Path) -> Vec<(u64, Arc<str>)> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([mount.to_owned()]);
    while let Some(dir) = queue.pop_front() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            if found.len() >= MAX_WALK {
                return found;
            }
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if let Some(name) = path.to_str().and_then(|path| relative(mount, path)) {
                found.push((entry.ino(), name));
            }
            queue.push_back(path);
        }
    }
    found
}

/// Whole hierarchies (mount root `/`) at or below `below`; of several at one mount point the last.
fn parse_mountinfo(text: &str, below: &Path) -> Vec<(Hierarchy, PathBuf)> {
    let mut mounts: Vec<(Hierarchy, PathBuf)> = Vec::new();
    for line in text.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let mut place = place.split(' ').skip(3);
        let (Some("/"), Some(at)) = (place.next(), place.next()) else { continue };
        let at = PathBuf::from(unescape_mount(at));
        if !at.starts_with(below) {
            continue;
        }
        for hierarchy in hierarchies_of(kind) {
            mounts.retain(|(known, _)| *known != hierarchy);
            mounts.push((hierarchy, at.clone()));
        }
    }
    mounts
}

/// The hierarchies of a mount, from its `type source options`; co-mounted controllers are several.
fn hierarchies_of(kind: &str) -> Vec<Hierarchy> {
    let mut fields = kind.split(' ');
    let options = match fields.next() {
        Some("cgroup2") => return vec![Hierarchy::V2],
        Some("cgroup") => fields.nth(1).unwrap_or_default(),
        _ => return Vec::new(),
    };
    let v1 = |option: &str| match option {
        "devices" => Some(Hierarchy::Devices),
        "memory" => Some(Hierarchy::Memory),
        "freezer" => Some(Hierarchy::Freezer),
        _ => None,
    };
    options.split(',').filter_map(v1).collect()
}

/// Decodes mountinfo's octal escapes for space, tab, newline and backslash.
fn unescape_mount(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The second resolver: the ids that the kernel captured, if `/proc` gave no answer.
///
/// A process with only root cgroups is a host process only if every mounted hierarchy was captured
/// and its path is known; a pod, a container or a job needs no such proof.
pub(crate) fn resolve(host: &Host, cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    if owner.method == Method::Proc {
        return;
    }
    let paths: Vec<Arc<str>> =
        cgroups.0.iter().filter_map(|id| host.hierarchies.path(*id)).collect();
    let placement = most_specific(&paths.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    let Placement::Known { path, workload } = placement else { return };
    let is_owned =
        workload.pod.is_some() || workload.container.is_some() || workload.slurm.is_some();
    let all = paths.len() == cgroups.0.len() && host.hierarchies.is_complete(cgroups);
    if is_owned || all {
        owner.cgroup = Some(path);
        owner.workload = *workload;
        owner.method = Method::Kernel;
    }
}

#[cfg(test)]
mod tests;
