//! Pod names from the log directories that the kubelet makes before a container starts:
//! `NAMESPACE_NAME_UID/CONTAINER/N.log`.
//!
//! An index by UID, updated by inotify; a lookup is in memory. An unknown UID causes a new listing,
//! at most once a second. The directory may appear later or be replaced.

use super::{Host, KernelCgroups, ProcessAttribution};
use gpuwho_model::ids::{ContainerId, PodUid};
use inotify::{EventMask, Inotify, WatchMask};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The node's pods, by their log directories.
#[derive(Debug)]
pub(crate) struct PodLogs {
    dir: PathBuf,
    index: Mutex<Index>,
}

/// The names in a pod's directory name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

#[derive(Debug, Default)]
struct Index {
    /// `None` until the directory exists.
    watch: Option<Inotify>,
    pods: HashMap<PodUid, PodName>,
    containers: HashMap<ContainerId, Arc<str>>,
    listed: Option<Instant>,
}

/// Minimum time between two listings caused by unknown UIDs.
const RELIST: Duration = Duration::from_secs(1);
/// Maximum number of pods; a node runs a few hundred, and a listing starts empty.
const MAX_PODS: usize = 16_384;
/// Maximum number of container names; beyond it all are removed, and found again.
const MAX_CONTAINERS: usize = 4096;

impl PodLogs {
    /// Indexes the pods with logs below `dir`, which need not exist yet.
    pub(crate) fn new(dir: &Path) -> Self {
        let podlogs = Self { dir: dir.to_owned(), index: Mutex::default() };
        podlogs.poll();
        podlogs
    }

    /// A pod's names. Not for the tick path: a miss reads the directory.
    pub(crate) fn pod(&self, uid: &PodUid) -> Option<PodName> {
        if let Some(name) = self.index.lock().pods.get(uid) {
            return Some(name.clone());
        }
        self.poll();
        if let Some(name) = self.index.lock().pods.get(uid) {
            return Some(name.clone());
        }
        let due = self.index.lock().listed.is_none_or(|at| at.elapsed() >= RELIST);
        if due {
            self.list();
        }
        self.index.lock().pods.get(uid).cloned()
    }

    /// The pod of a namespace and name, if exactly one directory has them.
    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<PodUid> {
        self.poll();
        let index = self.index.lock();
        let is_it = |pod: &PodName| &*pod.namespace == namespace && &*pod.name == name;
        let mut found = index.pods.iter().filter(|(_, pod)| is_it(pod));
        let (uid, _) = found.next()?;
        found.next().is_none().then(|| uid.clone())
    }

    /// A container's name, if its pod has exactly one container directory. The kubelet makes a
    /// container's directory before it starts the container, so the only directory is this
    /// container's.
    pub(crate) fn container(&self, uid: &PodUid, id: &ContainerId) -> Option<Arc<str>> {
        let (known, pod) = {
            let index = self.index.lock();
            (index.containers.get(id).map(Arc::clone), index.pods.get(uid).cloned())
        };
        if known.is_some() {
            return known;
        }
        let pod = pod?;
        let only = only_directory(&self.dir.join(format!("{}_{}_{uid}", pod.namespace, pod.name)))?;
        let mut index = self.index.lock();
        if index.containers.len() >= MAX_CONTAINERS {
            index.containers.clear();
        }
        index.containers.insert(id.clone(), Arc::clone(&only));
        Some(only)
    }

    /// Reads the inotify events; starts to watch if necessary.
    pub(crate) fn poll(&self) {
        if self.index.lock().watch.is_none() {
            let watch = watch(&self.dir);
            let started = watch.is_some();
            self.index.lock().watch = watch;
            // Listed after the watch started, so that no change is missed.
            if started {
                self.list();
            }
            return;
        }
        if self.index.lock().take_events() == Next::List {
            self.list();
        }
    }

    fn list(&self) {
        let mut pods = HashMap::new();
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries.take(MAX_PODS) {
            if let Some((uid, pod)) = parse_name(&entry.file_name()) {
                pods.insert(uid, pod);
            }
        }
        let mut index = self.index.lock();
        index.pods = pods;
        index.listed = Some(Instant::now());
    }
}

/// The action that the events require.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Nothing,
    List,
}

impl Index {
    fn take_events(&mut self) -> Next {
        let mut buffer = [0; 4096];
        let mut next = Next::Nothing;
        loop {
            let Some(watch) = &mut self.watch else { return Next::List };
            let events = match watch.read_events(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return next,
                Err(_) => {
                    self.watch = None;
                    return Next::List;
                }
            };
            let mut gone = false;
            for event in events {
                if event.mask.intersects(GONE) {
                    gone = true;
                } else if event.mask.contains(EventMask::Q_OVERFLOW) {
                    next = Next::List;
                } else if let Some((uid, pod)) = event.name.and_then(parse_name) {
                    apply(&mut self.pods, event.mask, uid, pod);
                }
            }
            if gone {
                // Removed or replaced: the next poll watches the new directory.
                self.watch = None;
                self.pods.clear();
                return Next::Nothing;
            }
        }
    }
}

/// Events of the watched directory's own removal.
const GONE: EventMask = EventMask::IGNORED
    .union(EventMask::DELETE_SELF)
    .union(EventMask::MOVE_SELF)
    .union(EventMask::UNMOUNT);

fn apply(pods: &mut HashMap<PodUid, PodName>, mask: EventMask, uid: PodUid, pod: PodName) {
    if mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
        pods.remove(&uid);
    } else if pods.len() < MAX_PODS {
        pods.insert(uid, pod);
    }
}

fn watch(dir: &Path) -> Option<Inotify> {
    let mask = WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    let inotify = Inotify::init().ok()?;
    inotify.watches().add(dir, mask).ok()?;
    Some(inotify)
}

/// Parses `NAMESPACE_NAME_UID`. Neither namespace nor name can contain a `_` (both are DNS names).
fn parse_name(directory: &OsStr) -> Option<(PodUid, PodName)> {
    let (namespace, rest) = directory.to_str()?.split_once('_')?;
    let (name, uid) = rest.rsplit_once('_')?;
    let is_dns = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            })
    };
    let is_uid = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let pod = PodName { namespace: Arc::from(namespace), name: Arc::from(name) };
    (is_dns(namespace) && is_dns(name) && is_uid(uid)).then(|| (PodUid::new(uid), pod))
}

/// The name of the only directory in `dir`; `None` if there are several.
fn only_directory(dir: &Path) -> Option<Arc<str>> {
    let mut directories = std::fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let only = directories.next()?;
    if directories.next().is_some() {
        return None;
    }
    only.file_name().to_str().map(Arc::from)
}

/// Names from the log directories, if no better source has them.
///
/// A pod named inside a container, a machine or a service has its logs there, not here.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let workload = &mut owner.workload;
    let Some(pod) = &mut workload.pod else { return };
    if workload.nested {
        return;
    }
    if pod.name.is_none()
        && let Some(found) = host.podlogs.pod(&pod.uid)
    {
        pod.namespace = Some(found.namespace);
        pod.name = Some(found.name);
    }
    // If the runtime describes the container without a name, it is the pod's sandbox.
    if pod.container.is_none()
        && workload.facts.is_none()
        && let Some(id) = &workload.container
    {
        pod.container = host.podlogs.container(&pod.uid, id);
    }
}

#[cfg(test)]
mod tests;
