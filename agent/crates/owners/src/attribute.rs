//! Attribution: from what the kernel and the node's own files say about a process to its owner.
//! Nothing is guessed, and nothing asks the Kubernetes API.

pub mod allocations;
pub mod cgroup;
pub mod delegated;
mod describe;
#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests only"
)]
pub mod fake;
pub mod hierarchies;
pub mod names;
pub mod owner;
pub mod ownership;
pub mod pid_cache;
mod pidfds;
mod podlogs;
mod pods;
pub mod process;
pub mod providers;
pub mod quota;
pub mod slurm;
mod table;
mod tenant;
pub mod users;
pub mod variables;
pub mod view;
pub mod workload;

use crate::tenant_files::TenantFiles;
use delegated::SelfClaims;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{CgroupId, ContainerId, Hierarchy, PodUid, ProcKey};
use gpuwho_model::paths::Paths;
use hierarchies::Hierarchies;
use names::{ContainerFacts, MetadataCache, PodFacts};
use owner::OwnerRegistry;
use podlogs::PodLogs;
use slurm::{Slurm, SlurmTask};
use std::sync::Arc;
use users::Users;

pub use tenant::tenant;

/// A kernel observation, as a source of evidence reports it. Times are nanoseconds of
/// `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A process opened an accelerator's device node.
    Opened(Opened),
    /// A child inherited the open files of a process that holds a device.
    Forked {
        /// The parent.
        parent: ProcKey,
        /// The child, which now holds the device too.
        child: Opened,
    },
    /// A process that holds a device executed another program.
    Execed {
        /// The process.
        process: ProcKey,
        /// Its new command name.
        comm: Arc<str>,
    },
    /// A process that holds a device was moved to another cgroup.
    Moved {
        /// The process.
        process: ProcKey,
        /// Its new cgroups.
        cgroups: KernelCgroups,
    },
    /// The last thread of a process that holds a device exited.
    Exited {
        /// The process.
        process: ProcKey,
        /// Time of the exit.
        at_ns: u64,
    },
    /// A cgroup directory was made: the only chance to learn the path of a short-lived one.
    CgroupMade {
        /// Its id.
        id: CgroupId,
        /// Its path within its hierarchy.
        path: Arc<str>,
    },
    /// A cgroup directory was removed. Its path stays known for the processes that were in it.
    CgroupRemoved {
        /// Its id.
        id: CgroupId,
    },
}

/// A process that opened an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The process.
    pub process: ProcKey,
    /// Real user id, in the host's user namespace.
    pub uid: u32,
    /// Command name at the open.
    pub comm: Arc<str>,
    /// Ids of the cgroups it was in.
    pub cgroups: KernelCgroups,
    /// The node's path or device number, as the source reports it.
    pub node: Arc<str>,
    /// Time of the open.
    pub at_ns: u64,
}

/// The ids of a process's cgroups; a hierarchy that is not mounted, or that the process is not in,
/// has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCgroups(pub Vec<CgroupId>);

impl KernelCgroups {
    /// The id in one hierarchy.
    pub fn get(&self, hierarchy: Hierarchy) -> Option<u64> {
        self.0.iter().find(|cgroup| cgroup.hierarchy == hierarchy).map(|cgroup| cgroup.id)
    }
}

/// The units of work that a cgroup path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The container: the pod's own, or the outermost outside pods.
    pub container: Option<ContainerId>,
    /// The pod.
    pub pod: Option<Pod>,
    /// The Slurm job.
    pub slurm: Option<SlurmTask>,
    /// The unit of work of another scheduler.
    pub allocation: Option<SchedulerUnit>,
    /// The LXC, nspawn or libvirt machine.
    pub machine: Option<Arc<str>>,
    /// The systemd unit (service or scope).
    pub unit: Option<Arc<str>>,
    /// The user named by a slice or a Slurm v1 path.
    pub uid: Option<u32>,
    /// The container that is the node of a nested kubelet (kind, k3d), if `pod` is inside it.
    pub node: Option<ContainerId>,
    /// `pod` was named inside a container, a machine or a user's slice, where not only the host's
    /// root can name directories: it is a claim, unless the operator allows nested pods.
    pub nested: bool,
    /// Below `user-N.slice`: user `uid` can name everything except the slice itself.
    pub user_slice: bool,
    /// The container runtime's facts about the container.
    pub facts: Option<Arc<ContainerFacts>>,
    /// Claims of the workload about itself, without proof.
    pub claimed: SelfClaims,
}

/// A pod, as far as it is known on the node.
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
    /// Container name, from the runtime or the log directory.
    pub container: Option<Arc<str>>,
    /// Further facts from the kubelet or the runtime.
    pub facts: Option<Arc<PodFacts>>,
}

/// The unit of work of a scheduler that appears in the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerUnit {
    /// `nomad`, `htcondor` or `ecs`.
    pub scheduler: &'static str,
    /// Nomad's allocation, HTCondor's slot, ECS's task.
    pub id: Arc<str>,
    /// Nomad's task.
    pub task: Option<Arc<str>>,
}

/// How the owner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `/proc/PID/cgroup` of the live process.
    Proc,
    /// The cgroup ids the kernel captured; the process may be gone.
    Kernel,
    /// A slurmstepd among its parents; no cgroup identifies the owner.
    Slurmstepd,
    /// Not yet found: the process is known, its cgroup's path is not.
    Pending,
}

impl Method {
    /// The value of the `gpuwho.owner.method` attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Proc => "cgroup",
            Self::Kernel => "kernel",
            Self::Slurmstepd => "slurmstepd",
            Self::Pending => "none",
        }
    }
}

/// The sources of the resolvers: the node's own files, each cached by its resolver.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) paths: Paths,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) names: MetadataCache,
    pub(crate) podlogs: PodLogs,
    pub(crate) users: Users,
    pub(crate) owners: OwnerRegistry,
    pub(crate) slurm: Slurm,
    /// Whether pods of clusters inside containers, machines and services are identities.
    pub(crate) nested: bool,
}

/// The operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of Slurm.
    pub slurm: slurm::Settings,
    /// The host runs nodes of other clusters (kind, k3d); their pods are identities.
    pub nested: bool,
}

impl Settings {
    /// The settings without configuration.
    pub fn default_settings(paths: &Paths) -> Self {
        Self { slurm: slurm::Settings::default_settings(paths), nested: false }
    }
}

impl Host {
    /// Files that a tenant can make hang are read through `files`.
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

/// A resolution step: adds what it knows to the attribution and leaves the rest.
pub(crate) type Resolve = fn(&Host, &KernelCgroups, &mut ProcessAttribution);

/// The resolvers of a process's cgroup, the most direct first. A resolver without an answer leaves
/// the attribution unchanged.
pub(crate) const PLACES: &[(&str, Resolve)] =
    &[("proc", process::resolve), ("kernel", hierarchies::resolve)];

/// The resolvers of names for the cgroup found, in order of precedence: the first that knows a name
/// counts. All of them read memory; a missing name is requested and arrives later.
pub(crate) const NAMES: &[(&str, Resolve)] = &[
    ("delegated", delegated::resolve),
    ("runtime", names::resolve),
    ("unconfirmed", delegated::confirm),
    ("podlogs", podlogs::resolve),
    ("slurm", slurm::resolve),
    ("users", users::resolve),
];

/// A process and everything known about its owner.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessAttribution {
    /// The process.
    pub process: ProcKey,
    /// Command name.
    pub comm: Arc<str>,
    /// Real user id.
    pub uid: u32,
    /// User name, if the host has one.
    pub user: Option<Arc<str>>,
    /// Most specific cgroup path.
    pub cgroup: Option<Arc<str>>,
    /// The workload, from the path and the node's files.
    pub workload: Workload,
    /// How the owner was found.
    pub method: Method,
    /// Device nodes that it opened.
    pub nodes: Vec<Arc<str>>,
    /// Time of its exit, in nanoseconds of `CLOCK_BOOTTIME`.
    pub exited_ns: Option<u64>,
    /// The owner whose account its device use goes to.
    pub owner: OwnerId,
}

impl ProcessAttribution {
    /// The small identity for every point about the process; unknown parts are absent.
    pub fn attributes(&self) -> AttrSet {
        let mut all = AttrSet::new();
        self.parts().iter().for_each(|part| all.extend(part));
        all
    }

    /// The same in parts: the process's own, its workload's, and how the owner was found.
    pub fn parts(&self) -> [AttrSet; 3] {
        let [mut own, mut workload, mut method] = <[AttrSet; 3]>::default();
        own.set(&attr::PROCESS_PID, i64::from(self.process.pid));
        if !self.comm.is_empty() {
            own.set(&attr::PROCESS_EXECUTABLE_NAME, Arc::clone(&self.comm));
        }
        own.set(&attr::PROCESS_OWNER, self.user_text());
        self.workload.describe(&mut workload);
        method.set(&attr::OWNER_METHOD, self.method.as_str());
        [own, workload, method]
    }

    /// All attributes, for `gpu.process.info`.
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

    /// The earliest possible start time, in nanoseconds of `CLOCK_BOOTTIME`.
    pub fn started_ns(&self) -> u64 {
        table::started_ns(self.process)
    }

    /// The user's name, or the number if the name is unknown.
    pub fn user_text(&self) -> Arc<str> {
        self.user.clone().unwrap_or_else(|| Arc::from(self.uid.to_string()))
    }

    /// Whether no name that a source may know is missing.
    fn is_named(&self) -> bool {
        let pod = self.workload.pod.as_ref();
        // A pod's sandbox is in none of its containers: the runtime has facts about it, but no
        // name.
        let is_known = |pod: &Pod| pod.container.is_some() || self.workload.facts.is_some();
        pod.is_none_or(|pod| pod.name.is_some() && is_known(pod))
    }
}

impl Pod {
    /// A pod with only its UID known.
    pub fn unnamed(uid: PodUid) -> Self {
        Self { uid, qos: None, name: None, namespace: None, container: None, facts: None }
    }
}
