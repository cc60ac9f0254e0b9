//! Owners: the units that a process's use of a device is accounted to, such as a pod's container, a
//! Slurm job, a service or a user. Many processes have one owner; an owner outlives each of them.
//!
//! Owners are numbered, so that a sample stays small; the facts behind a number are replaced as a
//! whole when they change. One lookup for each use.

mod place;

use super::slurm::SlurmTask;
use super::{Method, ProcessAttribution, Workload};
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{ContainerId, PodUid, SlurmJobId};
use parking_lot::RwLock;
pub use place::MAX_DEPTH;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The identity of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A container of a pod; the pod alone while the container's name is unknown.
    Pod {
        /// The pod.
        uid: PodUid,
        /// The container's name: unchanged by a restart, unlike its id.
        container: Option<Arc<str>>,
        /// The outer owner of a nested kubelet's pods: they differ from pods of other clusters on
        /// this host, even with equal UIDs.
        within: Option<Box<Owner>>,
    },
    /// A Slurm job, with all its steps and tasks.
    Job(SlurmJobId),
    /// The unit of work of another scheduler.
    Allocation {
        /// `nomad`, `htcondor` or `ecs`.
        scheduler: &'static str,
        /// Its name there.
        id: Arc<str>,
    },
    /// A container outside pods.
    Container(ContainerId),
    /// An LXC, nspawn or libvirt machine.
    Machine(Arc<str>),
    /// A system service.
    Service(Arc<str>),
    /// A user's own processes: those in the user's slice, else those with the user's real uid.
    User(u32),
    /// All owners beyond the limit of a device.
    Other,
    /// Processes without a known owner.
    Unattributed,
}

/// An owner and its attributes.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnerFacts {
    /// The owner.
    pub owner: Owner,
    /// The small identity for every point of its account.
    pub attributes: AttrSet,
    /// All attributes, for `gpu.allocation.info`.
    pub details: AttrSet,
}

/// All owners seen since the agent started, up to a bound.
#[derive(Debug)]
pub(crate) struct OwnerRegistry(RwLock<OwnerIndex>);

#[derive(Debug, Default)]
struct OwnerIndex {
    ids: HashMap<Owner, OwnerId>,
    facts: HashMap<OwnerId, Arc<OwnerFacts>>,
    /// Owners that were unused at the last [`OwnerRegistry::retain`].
    idle: HashSet<OwnerId>,
    next: u32,
    /// Counts changes of the results of [`OwnerRegistry::facts`].
    version: u64,
}

/// Maximum number of owners: a busy node has some hundred a day, and one takes less than a
/// kilobyte. Beyond it, new owners are unattributed until [`OwnerRegistry::retain`] makes room.
const MAX_OWNERS: usize = 32_768;

impl Default for OwnerRegistry {
    fn default() -> Self {
        let mut known = OwnerIndex::default();
        known.insert(Owner::Unattributed, &Workload::default(), None);
        known.insert(Owner::Other, &Workload::default(), None);
        Self(RwLock::new(known))
    }
}

impl OwnerRegistry {
    /// The number of a process's owner, with its current names; `name` resolves user ids.
    pub(crate) fn of(
        &self,
        owner: &ProcessAttribution,
        name: impl FnOnce(u32) -> Option<Arc<str>>,
    ) -> OwnerId {
        let owner_id = Owner::of(owner);
        let user = match owner_id {
            Owner::User(uid) if uid == owner.uid => Some(owner.user_text()),
            Owner::User(uid) => Some(name(uid).unwrap_or_else(|| Arc::from(uid.to_string()))),
            _ => None,
        };
        self.put(owner_id, &owner.workload, user)
    }

    /// The number of an owner, with the names of one of its workloads.
    pub(crate) fn put(
        &self,
        owner_id: Owner,
        workload: &Workload,
        user: Option<Arc<str>>,
    ) -> OwnerId {
        let mut known = self.0.write();
        known.insert(owner_id, workload, user)
    }

    /// The number of an owner of an allocation. Names from its processes stay if they include the
    /// allocator's; otherwise the names would alternate.
    pub(crate) fn allocated(&self, owner_id: Owner, workload: &Workload) -> OwnerId {
        let mut known = self.0.write();
        let allocated = OwnerFacts::new(owner_id.clone(), workload, None);
        let named = known.ids.get(&owner_id).and_then(|id| known.facts.get(id).map(|f| (*id, f)));
        match named {
            Some((id, facts)) if facts.details.holds(&allocated.details) => id,
            _ => known.insert(owner_id, workload, None),
        }
    }

    /// An owner's facts; the `Arc` changes with the facts.
    pub(crate) fn facts(&self, id: OwnerId) -> Option<Arc<OwnerFacts>> {
        let known = self.0.read();
        known.facts.get(&id).map(Arc::clone)
    }

    /// Changes whenever the names of an owner change.
    pub(crate) fn version(&self) -> u64 {
        self.0.read().version
    }

    /// Removes owners that are unused now and were unused at the last call: an owner numbered a
    /// moment ago may not be in use yet.
    pub(crate) fn retain(&self, in_use: impl Fn(OwnerId) -> bool) {
        let mut known = self.0.write();
        let OwnerIndex { ids, facts, idle, version, .. } = &mut *known;
        let unused = facts.keys().copied().filter(|id| *id > OwnerId::OTHER && !in_use(*id));
        let unused: HashSet<OwnerId> = unused.collect();
        let is_over = |id: &OwnerId| unused.contains(id) && idle.contains(id);
        ids.retain(|_, id| !is_over(id));
        let before = facts.len();
        facts.retain(|id, _| !is_over(id));
        *version += u64::from(facts.len() != before);
        *idle = unused;
    }
}

impl OwnerIndex {
    fn insert(&mut self, owner_id: Owner, workload: &Workload, user: Option<Arc<str>>) -> OwnerId {
        let id = match self.ids.get(&owner_id) {
            Some(id) => *id,
            None if self.ids.len() >= MAX_OWNERS => return OwnerId::UNATTRIBUTED,
            None => {
                let id = OwnerId::numbered(self.next);
                self.next += 1;
                self.ids.insert(owner_id.clone(), id);
                id
            }
        };
        self.idle.remove(&id);
        let mut facts = OwnerFacts::new(owner_id, workload, user);
        if let Some(known) = self.facts.get(&id) {
            facts.keep(known);
        }
        if self.facts.get(&id).is_none_or(|known| **known != facts) {
            self.facts.insert(id, Arc::new(facts));
            self.version += 1;
        }
        id
    }
}

impl Owner {
    /// The owner of a process: the innermost unit of work that the host's own schedulers name.
    pub fn of(owner: &ProcessAttribution) -> Self {
        let workload = &owner.workload;
        if owner.method == Method::Pending {
            return Self::Unattributed;
        }
        // A user's slice belongs to the user, whatever uid sudo or a user namespace gave the
        // process.
        let user = workload.uid.unwrap_or(owner.uid);
        if let Some(pod) = &workload.pod {
            let (uid, container) = (pod.uid.clone(), pod.container.clone());
            // The place of the nested kubelet.
            let within = workload
                .nested
                .then(|| Box::new(Self::place(workload, workload.node.as_ref(), user)));
            return Self::Pod { uid, container, within };
        }
        if let Some(slurm) = &workload.slurm {
            return Self::Job(slurm.job.clone());
        }
        if let Some(allocation) = &workload.allocation {
            let (scheduler, id) = (allocation.scheduler, Arc::clone(&allocation.id));
            return Self::Allocation { scheduler, id };
        }
        Self::place(workload, workload.container.as_ref(), user)
    }

    /// The outermost unit that the host itself made.
    fn place(workload: &Workload, container: Option<&ContainerId>, uid: u32) -> Self {
        // Before the container: the machine's root names what is in a machine, and the unit what is
        // in a unit.
        if let Some(machine) = &workload.machine {
            return Self::Machine(Arc::clone(machine));
        }
        let is_named_inside = workload.user_slice || workload.is_in_unit();
        if let Some(container) = container.filter(|_| !is_named_inside) {
            return Self::Container(container.clone());
        }
        match &workload.unit {
            Some(unit) if !workload.user_slice && !is_session(unit) => {
                Self::Service(Arc::clone(unit))
            }
            _ => Self::User(uid),
        }
    }

    /// Whether it is a pod as a whole.
    pub fn is_pod(&self) -> bool {
        matches!(self, Self::Pod { container: None, .. })
    }

    /// Whether it is a container of a pod.
    pub fn is_container_of(&self, pod: &Self) -> bool {
        match self {
            Self::Pod { uid, container: Some(_), within } => {
                *pod == Self::Pod { uid: uid.clone(), container: None, within: within.clone() }
            }
            _ => false,
        }
    }

    /// The value of the `gpuwho.owner.kind` attribute.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Job(_) => "slurm_job",
            Self::Allocation { .. } => "allocation",
            Self::Container(_) => "container",
            Self::Machine(_) => "machine",
            Self::Service(_) => "service",
            Self::User(_) => "user",
            Self::Other => "other",
            Self::Unattributed => "unattributed",
        }
    }
}

/// Whether a unit is a login session, not a service of the host.
fn is_session(unit: &str) -> bool {
    unit.starts_with("session-") || unit.starts_with("user@")
}

impl OwnerFacts {
    fn new(owner_id: Owner, workload: &Workload, user: Option<Arc<str>>) -> Self {
        let mut attributes = AttrSet::new();
        attributes.set(&attr::OWNER_KIND, owner_id.kind());
        match &owner_id {
            Owner::User(_) | Owner::Other | Owner::Unattributed => {}
            Owner::Container(id) => {
                attributes.set(&attr::CONTAINER_ID, id.as_str());
                workload.name(&mut attributes);
            }
            Owner::Machine(name) => attributes.set(&attr::MACHINE_NAME, Arc::clone(name)),
            Owner::Service(unit) => attributes.set(&attr::SYSTEMD_UNIT, Arc::clone(unit)),
            _ => workload.name(&mut attributes),
        }
        // A job's user, not the process's: slurmstepd and sudo in the job run as root.
        let job = workload.slurm.as_ref().filter(|_| matches!(owner_id, Owner::Job(_)));
        attributes.set_some(&attr::PROCESS_OWNER, user.or_else(|| job.and_then(SlurmTask::user)));
        let mut details = attributes.clone();
        workload.detail(&mut details);
        Self { owner: owner_id, attributes, details }
    }

    /// Adds known attributes that are missing now: an allocator and a process each know only a
    /// part, and a source that is down never removes an owner's names.
    fn keep(&mut self, known: &Self) {
        for (new, old) in
            [(&mut self.attributes, &known.attributes), (&mut self.details, &known.details)]
        {
            let reported = std::mem::replace(new, old.clone());
            new.extend(&reported);
        }
    }
}

#[cfg(test)]
mod tests;
