//! One process's own files in `/proc`: who it is, when it started, where it is.
//!
//! Every file is opened through one handle on `/proc/PID`, which stays with that process: when
//! the process ends and its number goes to another, reads fail (`ESRCH`) instead of answering for
//! the other. Four reads a process, once, when it is first seen.

use super::cgroup::{Placement, parse_proc_cgroup};
use super::{Host, KernelCgroups, Method, Owner};
use crate::ids::{ContainerId, ProcKey};
use crate::paths::Paths;
use procfs::process::{Process, Stat};
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

/// A living process and the handle that stays with it.
pub(crate) struct Living {
    handle: Process,
    /// The process.
    pub(crate) key: ProcKey,
    /// Command name; bytes that are not UTF-8 are replaced.
    pub(crate) comm: Arc<str>,
}

impl Living {
    /// The process that has this number now. One that is exiting is not living.
    pub(crate) fn find(paths: &Paths, pid: u32) -> Option<Self> {
        let handle = Process::new_with_root(paths.proc.join(pid.to_string())).ok()?;
        let stat = handle.stat().ok().filter(|stat| !is_exiting(stat))?;
        let key = ProcKey { pid, start_ticks: stat.starttime };
        Some(Self { handle, key, comm: Arc::from(stat.comm) })
    }

    /// This very process, if it lives.
    pub(crate) fn same(paths: &Paths, key: ProcKey) -> Option<Self> {
        Self::find(paths, key.pid).filter(|living| living.key == key)
    }

    /// Whether this very process is still there. A group whose leader ended is, while it has
    /// other threads.
    pub(crate) fn remains(paths: &Paths, key: ProcKey) -> bool {
        let stat = Process::new_with_root(paths.proc.join(key.pid.to_string()))
            .and_then(|handle| handle.stat());
        stat.is_ok_and(|stat| {
            stat.starttime == key.start_ticks && (!is_exiting(&stat) || stat.num_threads > 1)
        })
    }

    /// Real user id; `None` for the number of a thread that does not lead its group.
    pub(crate) fn uid(&self) -> Option<u32> {
        let status = self.read("status")?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_ascii_whitespace)
        };
        let group: u32 = field("Tgid:")?.next()?.parse().ok()?;
        let uid = field("Uid:")?.next()?.parse().ok()?;
        (group == self.key.pid).then_some(uid)
    }

    /// Real, effective, saved and file system user ids.
    pub(crate) fn uids(&self) -> Option<[u32; 4]> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let ids: Vec<u32> =
            line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        ids.try_into().ok()
    }

    /// The process that started it, or that took it over.
    pub(crate) fn parent(&self) -> Option<u32> {
        u32::try_from(self.handle.stat().ok()?.ppid).ok()
    }

    /// The file it runs, where the agent may look.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        self.handle.exe().ok()
    }

    /// One of its files in `/proc`.
    pub(crate) fn open(&self, name: &str) -> Option<File> {
        self.handle.open_relative(name).ok()
    }

    /// Where it is; unknown if it began to exit before this was read.
    pub(crate) fn placement(&self) -> Option<Placement> {
        let text = self.read("cgroup")?;
        let stat = self.handle.stat().ok()?;
        (!is_exiting(&stat)).then(|| parse_proc_cgroup(&text))
    }

    /// One of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = self.open(name)?;
        file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The directory of a container, if the host's process of this number is in it.
pub(crate) fn container_cgroup(paths: &Paths, pid: u32, id: &ContainerId) -> Option<Arc<str>> {
    let living = Living::find(paths, pid)?;
    let Placement::Known { path, workload } = living.placement()? else { return None };
    if workload.container.as_ref() != Some(id) || workload.pod.is_some() {
        return None;
    }
    // An init system in the container moves its processes further down.
    let mut end = 0;
    for component in path.split_inclusive('/') {
        end += component.len();
        if component.contains(id.as_str()) {
            break;
        }
    }
    path.get(..end).map(|path| Arc::from(path.trim_end_matches('/')))
}

/// An exiting task's v1 lines say `/` whatever it did (`proc_cgroup_show`, 6.18), so that its
/// most specific line may be a weaker one.
fn is_exiting(stat: &Stat) -> bool {
    const PF_EXITING: u32 = 0x4;
    stat.flags & PF_EXITING != 0 || matches!(stat.state, 'Z' | 'X' | 'x')
}

/// More than `cgroup` can hold: 14 lines of the longest path the kernel prints (`PATH_MAX`).
const MAX_FILE: u64 = 128 * 1024;

/// The first source: the living process's own files.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut Owner) {
    let Some(living) = Living::same(&host.paths, owner.process) else { return };
    owner.comm = Arc::clone(&living.comm);
    if let Some(uid) = living.uid() {
        owner.uid = uid;
    }
    match living.placement() {
        Some(Placement::Known { path, workload }) => {
            owner.cgroup = Some(path);
            owner.workload = *workload;
            owner.method = Method::Proc;
        }
        Some(Placement::WrongNamespace) => host.hierarchies.note_wrong_namespace(),
        Some(Placement::Disagree | Placement::Nothing) | None => {}
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
