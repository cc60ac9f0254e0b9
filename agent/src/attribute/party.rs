//! Whose account a process's use of a device goes on: the pod's container, the Slurm job, the
//! service, the user. Many processes are one party; a party outlives each of them.
//!
//! Numbered, so that a sample stays small; the names behind a number are replaced as a whole when
//! they change. One lookup a use.

use super::{Method, Owner, Workload};
use crate::catalog::attributes::{self as attr, AttrSet};
use crate::ids::{ContainerId, PodUid, SlurmJobId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What makes an owner one owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A container of a pod; the pod alone while the container's name is not known.
    Pod {
        /// The pod.
        uid: PodUid,
        /// The container's name: the same after a restart, unlike its id.
        container: Option<Arc<str>>,
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
    /// A user's own processes.
    User(u32),
    /// Nobody that is known.
    Unattributed,
}

/// A party by number; meaningless outside this process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartyId(u32);

impl PartyId {
    /// The number of [`Party::Unattributed`].
    pub const UNATTRIBUTED: Self = Self(0);
}

/// A party and its names.
#[derive(Debug, PartialEq, Eq)]
pub struct PartyFacts {
    /// Who.
    pub party: Party,
    /// The small identity that is on every point of its account.
    pub attributes: AttrSet,
    /// Everything known, for `gpu.allocation.info`.
    pub details: AttrSet,
}

/// Every party seen since the agent started, up to a bound.
#[derive(Debug)]
pub(crate) struct Parties(RwLock<Known>);

#[derive(Debug)]
struct Known {
    ids: HashMap<Party, PartyId>,
    facts: HashMap<PartyId, Arc<PartyFacts>>,
    next: u32,
}

/// Parties kept: a busy node sees some hundred a day, and one takes less than a kilobyte. When
/// there are more, later ones are unattributed until [`Parties::retain`] makes room.
const MAX_PARTIES: usize = 32_768;

impl Default for Parties {
    fn default() -> Self {
        let mut known = Known { ids: HashMap::new(), facts: HashMap::new(), next: 0 };
        known.insert(Party::Unattributed, &Workload::default(), None);
        Self(RwLock::new(known))
    }
}

impl Parties {
    /// The number of a process's party, with its names as they are known now.
    pub(crate) fn of(&self, owner: &Owner) -> PartyId {
        let party = Party::of(owner);
        let user = matches!(party, Party::User(_) | Party::Job(_)).then(|| owner.user_text());
        self.put(party, &owner.workload, user)
    }

    /// The number of a party, with the names of a workload of its.
    pub(crate) fn put(&self, party: Party, workload: &Workload, user: Option<Arc<str>>) -> PartyId {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(party, workload, user)
    }

    /// Who that is; the `Arc` changes when the names do.
    pub(crate) fn facts(&self, id: PartyId) -> Option<Arc<PartyFacts>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.facts.get(&id).map(Arc::clone)
    }

    /// Forgets those that are in no use any more.
    pub(crate) fn retain(&self, in_use: impl Fn(PartyId) -> bool) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let keep = |id: PartyId| id == PartyId::UNATTRIBUTED || in_use(id);
        known.ids.retain(|_, id| keep(*id));
        known.facts.retain(|id, _| keep(*id));
    }
}

impl Known {
    fn insert(&mut self, party: Party, workload: &Workload, user: Option<Arc<str>>) -> PartyId {
        let id = match self.ids.get(&party) {
            Some(id) => *id,
            None if self.ids.len() >= MAX_PARTIES => return PartyId::UNATTRIBUTED,
            None => {
                let id = PartyId(self.next);
                self.next += 1;
                self.ids.insert(party.clone(), id);
                id
            }
        };
        let facts = PartyFacts::new(party, workload, user);
        if self.facts.get(&id).is_none_or(|known| **known != facts) {
            self.facts.insert(id, Arc::new(facts));
        }
        id
    }
}

impl Party {
    /// The account of a process: the innermost unit of work that the host's own schedulers named.
    pub fn of(owner: &Owner) -> Self {
        let workload = &owner.workload;
        if owner.method == Method::Pending {
            return Self::Unattributed;
        }
        if let Some(pod) = &workload.pod {
            return Self::Pod { uid: pod.uid.clone(), container: pod.container.clone() };
        }
        if let Some(slurm) = &workload.slurm {
            return Self::Job(slurm.job.clone());
        }
        if let Some(allocation) = &workload.allocation {
            let (scheduler, id) = (allocation.scheduler, Arc::clone(&allocation.id));
            return Self::Allocation { scheduler, id };
        }
        if let Some(container) = workload.container.as_ref().filter(|_| !workload.user_slice) {
            return Self::Container(container.clone());
        }
        if let Some(machine) = &workload.machine {
            return Self::Machine(Arc::clone(machine));
        }
        match &workload.unit {
            Some(unit) if !workload.user_slice && !is_session(unit) => {
                Self::Service(Arc::clone(unit))
            }
            _ => Self::User(owner.uid),
        }
    }

    /// The word for `gpuwho.owner.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Job(_) => "slurm_job",
            Self::Allocation { .. } => "allocation",
            Self::Container(_) => "container",
            Self::Machine(_) => "machine",
            Self::Service(_) => "service",
            Self::User(_) => "user",
            Self::Unattributed => "unattributed",
        }
    }
}

/// A login of somebody, not a service of the host.
fn is_session(unit: &str) -> bool {
    unit.starts_with("session-") || unit.starts_with("user@")
}

impl PartyFacts {
    fn new(party: Party, workload: &Workload, user: Option<Arc<str>>) -> Self {
        let mut attributes = AttrSet::new();
        attributes.set(&attr::OWNER_KIND, party.kind());
        match &party {
            Party::User(_) | Party::Unattributed => {}
            Party::Container(id) => {
                attributes.set(&attr::CONTAINER_ID, id.as_str());
                workload.name(&mut attributes);
            }
            Party::Machine(name) => attributes.set(&attr::MACHINE_NAME, Arc::clone(name)),
            Party::Service(unit) => attributes.set(&attr::SYSTEMD_UNIT, Arc::clone(unit)),
            _ => workload.name(&mut attributes),
        }
        attributes.set_some(&attr::PROCESS_OWNER, user);
        let mut details = attributes.clone();
        workload.detail(&mut details);
        Self { party, attributes, details }
    }
}

#[cfg(test)]
#[path = "party_tests.rs"]
mod tests;
