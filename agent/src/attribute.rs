//! Whose work it is: from what the kernel and the node's own files say about a process to its
//! owner. Nothing here is guessed, and nothing asks the Kubernetes API.

pub mod allocations;
pub mod cgroup;
pub mod delegated;
mod describe;
#[cfg(test)]
pub(crate) mod fake;
pub mod hierarchies;
pub mod names;
pub mod owner;
pub mod ownership;
pub mod pid_cache;
mod pidfds;
mod podlogs;
mod pods;
pub(crate) mod process;
pub mod providers;
pub mod quota;
pub mod slurm;
mod table;
pub(crate) mod users;
pub(crate) mod workload;

use crate::catalog::attributes::{self as attr, AttrSet};
use crate::ids::{CgroupId, ContainerId, Hierarchy, PodUid, ProcKey};
use crate::paths::Paths;
use crate::tenant_files::TenantFiles;
use delegated::SelfClaims;
use hierarchies::Hierarchies;
use names::{ContainerFacts, MetadataCache, PodFacts};
use owner::{OwnerId, OwnerRegistry};
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
    pub allocation: Option<SchedulerUnit>,
    /// The LXC, nspawn or libvirt machine.
    pub machine: Option<Arc<str>>,
    /// The systemd unit (service or scope).
    pub unit: Option<Arc<str>>,
    /// The user a slice or a Slurm v1 path names.
    pub uid: Option<u32>,
    /// The container that is the node of a nested kubelet (kind, k3d), where `pod` is inside it.
    pub node: Option<ContainerId>,
    /// `pod` was named inside a container, a machine or a user's slice, where others than the
    /// host's root can name directories: a claim, unless the operator says otherwise.
    pub nested: bool,
    /// Below `user-N.slice`: user `uid` can name everything but the slice itself.
    pub user_slice: bool,
    /// What the container's runtime says about it.
    pub facts: Option<Arc<ContainerFacts>>,
    /// What the work says of itself, and nothing proves.
    pub claimed: SelfClaims,
}

/// A pod, as far as the node tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: PodUid,
    /// Quality-of-service class.
    pub qos: Option<&'static str>,
    /// Name, from the kubelet, the runtime or the pod-log directory.
    pub name: Option<Arc<str>>,
    /// Namespace, from the same.
    pub namespace: Option<Arc<str>>,
    /// Container name, where the runtime or the log directory tells.
    pub container: Option<Arc<str>>,
    /// What the kubelet or the runtime says beyond the names.
    pub facts: Option<Arc<PodFacts>>,
}

/// The unit of work of a scheduler whose paths name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerUnit {
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
            Self::Pending => "none",
        }
    }
}

/// What the resolvers read: the node's own files, each cached by its resolver.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) paths: Paths,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) names: MetadataCache,
    pub(crate) podlogs: PodLogs,
    pub(crate) users: Users,
    pub(crate) owners: OwnerRegistry,
    pub(crate) slurm: Slurm,
    /// Whether pods of clusters in containers, machines and services are believed.
    pub(crate) nested: bool,
}

/// What the operator has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// About Slurm.
    pub slurm: slurm::Settings,
    /// The host runs nodes of other clusters (kind, k3d): their pods are identities.
    pub nested: bool,
}

impl Settings {
    /// What holds where nobody has said anything.
    pub fn default_settings(paths: &Paths) -> Self {
        Self { slurm: slurm::Settings::default_settings(paths), nested: false }
    }
}

impl Host {
    /// What a tenant can make hang is read through `files`.
    pub(crate) fn new(settings: Settings, files: &TenantFiles) -> Self {
        let paths = files.paths();
        let hierarchies = Hierarchies::new(paths);
        Self {
            paths: paths.clone(),
            names: MetadataCache::default(),
            slurm: Slurm::new(files, settings.slurm, &hierarchies),
            hierarchies,
            podlogs: PodLogs::new(&paths.pod_logs),
            users: Users::new(&paths.passwd),
            owners: OwnerRegistry::default(),
            nested: settings.nested,
        }
    }
}

/// A step of resolution: adds to the owner what it knows and leaves the rest.
pub(crate) type Resolve = fn(&Host, &KernelCgroups, &mut ProcessAttribution);

/// What says where a process is, the most direct first. A source that cannot tell leaves the owner
/// as it is.
pub(crate) const PLACES: &[(&str, Resolve)] =
    &[("proc", process::resolve), ("kernel", hierarchies::resolve)];

/// What gives names to the place that was found, in order of precedence: of two that know a name
/// the first counts. All of it is in memory; what is not there is asked for and comes later.
pub(crate) const NAMES: &[(&str, Resolve)] = &[
    ("delegated", delegated::resolve),
    ("runtime", names::resolve),
    ("unconfirmed", delegated::confirm),
    ("podlogs", podlogs::resolve),
    ("slurm", slurm::resolve),
    ("users", users::resolve),
];

/// A process and all that is known about whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessAttribution {
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
    /// The one whose account its use of a device goes on.
    pub owner: OwnerId,
}

impl ProcessAttribution {
    /// The small identity that is on every point about the process; what is not known is not there.
    pub fn attributes(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set(&attr::PROCESS_PID, i64::from(self.process.pid));
        if !self.comm.is_empty() {
            set.set(&attr::PROCESS_EXECUTABLE_NAME, Arc::clone(&self.comm));
        }
        set.set(&attr::PROCESS_OWNER, self.user_text());
        self.workload.describe(&mut set);
        set.set(&attr::OWNER_METHOD, self.method.as_str());
        set
    }

    /// Everything known, for `gpu.process.info`.
    pub fn details(&self) -> AttrSet {
        let mut set = self.attributes();
        self.workload.detail(&mut set);
        self.workload.claimed.describe(&mut set);
        set.set_some(
            &attr::NODE_CONTAINER_ID,
            self.workload.node.as_ref().map(ContainerId::as_str),
        );
        if let Some(slurm) = &self.workload.slurm {
            slurm.detail_task(&mut set);
        }
        set
    }

    /// The earliest moment it can have started, in nanoseconds of `CLOCK_BOOTTIME`.
    pub fn started_ns(&self) -> u64 {
        table::started_ns(self.process)
    }

    /// The user's name, or the number where no name is known.
    pub fn user_text(&self) -> Arc<str> {
        self.user.clone().unwrap_or_else(|| Arc::from(self.uid.to_string()))
    }

    /// Whether nothing that a source of names could tell is missing.
    fn is_named(&self) -> bool {
        let pod = self.workload.pod.as_ref();
        // A pod's sandbox is in none of its containers: its runtime knows it and has no name.
        let is_known = |pod: &Pod| pod.container.is_some() || self.workload.facts.is_some();
        pod.is_none_or(|pod| pod.name.is_some() && is_known(pod))
    }
}

impl Pod {
    /// A pod of which only the UID is known.
    pub fn unnamed(uid: PodUid) -> Self {
        Self { uid, qos: None, name: None, namespace: None, container: None, facts: None }
    }
}
