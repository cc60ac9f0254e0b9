//! Whose work it is: from what the kernel and the node's own files say about a process to its
//! owner. Nothing here is guessed, and nothing asks the Kubernetes API.

pub mod cgroup;
#[cfg(test)]
mod fake;
pub mod hierarchies;
pub mod ownership;
mod podlogs;
mod process;
pub mod slurm;
mod table;
mod users;

use crate::catalog::attributes::{self as attr, AttrSet};
use crate::ids::{CgroupId, ContainerId, Hierarchy, PodUid, ProcKey};
use crate::paths::Paths;
use hierarchies::Hierarchies;
use podlogs::PodLogs;
use slurm::{Slurm, SlurmTask};
use std::sync::Arc;
use users::Users;

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
    /// The container: the pod's own, or the outermost where there is no pod.
    pub container: Option<ContainerId>,
    /// The pod.
    pub pod: Option<Pod>,
    /// The Slurm job.
    pub slurm: Option<SlurmTask>,
    /// What another scheduler calls its unit of work.
    pub allocation: Option<Allocation>,
    /// The LXC, nspawn or libvirt machine.
    pub machine: Option<Arc<str>>,
    /// The systemd unit (service or scope).
    pub unit: Option<Arc<str>>,
    /// The user a slice or a Slurm v1 path names.
    pub uid: Option<u32>,
    /// The container that is the node of a nested kubelet (kind, k3d), where `pod` is inside it.
    pub node: Option<ContainerId>,
    /// `pod` was named inside a container, a machine or a user's slice, where others than the
    /// host's root can name directories: not to be believed against the host's own pods.
    pub nested: bool,
    /// Below `user-N.slice`: user `uid` can name everything but the slice itself.
    pub user_slice: bool,
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

/// The unit of work of a scheduler whose paths name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// `nomad`, `htcondor` or `ecs`.
    pub scheduler: &'static str,
    /// Nomad's allocation, HTCondor's slot, ECS's task.
    pub id: Arc<str>,
    /// Nomad's task.
    pub task: Option<Arc<str>>,
}

/// How an owner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `/proc/PID/cgroup` of the living process.
    Proc,
    /// The cgroup numbers the kernel captured; the process may be gone.
    Kernel,
    /// A slurmstepd among its parents; no cgroup says whose it is.
    Slurmstepd,
    /// Only its own environment, which is the user's word.
    Environment,
    /// Not yet: the process is known, its cgroup's path is not.
    Pending,
}

impl Method {
    /// The word on the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Proc => "cgroup",
            Self::Kernel => "kernel",
            Self::Slurmstepd => "slurmstepd",
            Self::Environment => "environment",
            Self::Pending => "none",
        }
    }
}

/// What the resolvers read: the node's own files, each cached by its resolver.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) paths: Paths,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) podlogs: PodLogs,
    pub(crate) users: Users,
    pub(crate) slurm: Slurm,
}

impl Host {
    pub(crate) fn new(paths: &Paths, slurm: slurm::Settings) -> Self {
        let hierarchies = Hierarchies::new(paths);
        Self {
            paths: paths.clone(),
            slurm: Slurm::new(paths, slurm, &hierarchies),
            hierarchies,
            podlogs: PodLogs::new(&paths.pod_logs),
            users: Users::new(&paths.passwd),
        }
    }
}

/// A step of resolution: adds to the owner what it knows and leaves the rest.
pub(crate) type Resolve = fn(&Host, &KernelCgroups, &mut Owner);

/// Every source of ownership, in order of precedence: first what says where the process is, the
/// most direct first; then what gives names to what was found. A source that cannot tell leaves
/// the owner as it is.
pub(crate) const SOURCES: &[(&str, Resolve)] = &[
    ("proc", process::resolve),
    ("kernel", hierarchies::resolve),
    ("podlogs", podlogs::resolve),
    ("slurm", slurm::resolve),
    ("users", users::resolve),
];

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
    /// What is known, as attributes; what is not known is not there.
    pub fn attributes(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set(&attr::PROCESS_PID, i64::from(self.process.pid));
        if !self.comm.is_empty() {
            set.set(&attr::PROCESS_EXECUTABLE_NAME, Arc::clone(&self.comm));
        }
        let user = self.user.clone().unwrap_or_else(|| Arc::from(self.uid.to_string()));
        set.set(&attr::PROCESS_OWNER, user);
        self.workload.describe(&mut set);
        set.set(&attr::OWNER_METHOD, self.method.as_str());
        set
    }
}

impl Workload {
    fn describe(&self, set: &mut AttrSet) {
        set.set_some(&attr::CONTAINER_ID, self.container.as_ref().map(ContainerId::as_str));
        if let Some(pod) = &self.pod {
            set.set(&attr::K8S_POD_UID, pod.uid.as_str());
            set.set_some(&attr::K8S_POD_NAME, pod.name.clone());
            set.set_some(&attr::K8S_NAMESPACE_NAME, pod.namespace.clone());
            set.set_some(&attr::K8S_CONTAINER_NAME, pod.container.clone());
            set.set_some(&attr::K8S_POD_QOS, pod.qos);
        }
        if let Some(slurm) = &self.slurm {
            slurm.describe(set);
        }
        if let Some(allocation) = &self.allocation {
            set.set(&attr::SCHEDULER, allocation.scheduler);
            set.set(&attr::SCHEDULER_ALLOCATION, Arc::clone(&allocation.id));
            set.set_some(&attr::SCHEDULER_TASK, allocation.task.clone());
        }
        set.set_some(&attr::MACHINE_NAME, self.machine.clone());
        set.set_some(&attr::SYSTEMD_UNIT, self.unit.clone());
    }
}
