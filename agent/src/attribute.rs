//! Whose work it is: from what the kernel and the node's own files say about a process to its
//! owner. Nothing here is guessed, and nothing asks the Kubernetes API.

pub mod cgroup;
pub mod ownership;

use crate::catalog::attributes::AttrSet;
use crate::ids::{CgroupId, ContainerId, Hierarchy, PodUid, ProcKey, SlurmJobId};
use std::sync::Arc;

/// What the kernel saw, as a source of evidence reports it. Times are nanoseconds of
/// `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A process opened an accelerator's device node.
    Opened(Opened),
    /// A holder's child got the holder's open files.
    Forked {
        /// The holder.
        parent: ProcKey,
        /// The child, now a holder too.
        child: Opened,
    },
    /// A holder became another program.
    Execed {
        /// The holder.
        process: ProcKey,
        /// Its new command name.
        comm: Arc<str>,
    },
    /// A holder was moved to another cgroup.
    Moved {
        /// The holder.
        process: ProcKey,
        /// Where it is now.
        cgroups: KernelCgroups,
    },
    /// A holder's last thread ended.
    Exited {
        /// The holder.
        process: ProcKey,
        /// When.
        at_ns: u64,
    },
    /// A cgroup directory was made: the one chance to learn the path of a short-lived one.
    CgroupMade {
        /// Its number.
        id: CgroupId,
        /// Its path within its hierarchy.
        path: Arc<str>,
    },
    /// A cgroup directory was removed. Its path stays known for the processes that were in it.
    CgroupRemoved {
        /// Its number.
        id: CgroupId,
    },
}

/// A process seen to hold an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Who.
    pub process: ProcKey,
    /// Real user id, in the host's user namespace.
    pub uid: u32,
    /// Command name at that moment.
    pub comm: Arc<str>,
    /// The cgroups it was in, as numbers.
    pub cgroups: KernelCgroups,
    /// The node's path or device number, as the source saw it.
    pub node: Arc<str>,
    /// When.
    pub at_ns: u64,
}

/// The cgroups of a process as the kernel numbers them; a hierarchy that is not mounted or that
/// the process is not in has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCgroups(pub Vec<CgroupId>);

impl KernelCgroups {
    /// The number in one hierarchy.
    pub fn get(&self, hierarchy: Hierarchy) -> Option<u64> {
        self.0.iter().find(|cgroup| cgroup.hierarchy == hierarchy).map(|cgroup| cgroup.id)
    }
}

/// What a cgroup path says about the work in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The innermost container.
    pub container: Option<ContainerId>,
    /// The pod.
    pub pod: Option<Pod>,
    /// The Slurm job.
    pub slurm: Option<SlurmTask>,
    /// The systemd unit (service or scope).
    pub unit: Option<Arc<str>>,
    /// The user a slice or a Slurm v1 path names.
    pub uid: Option<u32>,
}

/// A pod, as far as the node tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: PodUid,
    /// Quality-of-service class.
    pub qos: Option<&'static str>,
    /// Name, from the pod-log directory.
    pub name: Option<Arc<str>>,
    /// Namespace, from the pod-log directory.
    pub namespace: Option<Arc<str>>,
    /// Container name, where the log directory or the runtime tells.
    pub container: Option<Arc<str>>,
}

/// A Slurm step or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmTask {
    /// The job as the cgroup names it.
    pub job: SlurmJobId,
    /// `0`, `batch`, `extern`, `interactive`, ….
    pub step: Option<Arc<str>>,
    /// Task on this node.
    pub task: Option<Arc<str>>,
}

/// How an owner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `/proc/PID/cgroup` of the living process.
    Proc,
    /// The cgroup numbers the kernel captured; the process may be gone.
    Kernel,
    /// Not yet: the process is known, its cgroup's path is not.
    Pending,
}

/// A process and all that is known about whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    /// The process.
    pub process: ProcKey,
    /// Command name.
    pub comm: Arc<str>,
    /// Real user id.
    pub uid: u32,
    /// User name, where the host knows one.
    pub user: Option<Arc<str>>,
    /// Most specific cgroup path.
    pub cgroup: Option<Arc<str>>,
    /// What the path and the node's files say.
    pub workload: Workload,
    /// How it was found.
    pub method: Method,
    /// Device nodes it was seen to open.
    pub nodes: Vec<Arc<str>>,
    /// When it ended, in nanoseconds of `CLOCK_BOOTTIME`.
    pub exited_ns: Option<u64>,
}

impl Owner {
    /// What is known about the owner, as attributes.
    pub fn attributes(&self) -> AttrSet {
        AttrSet::new()
    }
}
