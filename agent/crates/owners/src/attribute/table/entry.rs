//! One entry of the ownership table: a process's attribution, and what is still missing.

use crate::attribute::{KernelCgroups, Method, ProcessAttribution, Workload};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{CgroupId, ProcKey};
use gpuwho_model::labels::OTHER;
use std::sync::Arc;

/// One process.
#[derive(Debug)]
pub(super) struct ProcessEntry {
    pub(super) attribution: Arc<ProcessAttribution>,
    pub(super) cgroups: KernelCgroups,
    /// When it opened its first device; `None` for a process that only the driver listed. Taken
    /// when the owner becomes known.
    pub(super) opened_ns: Option<u64>,
    /// Only the driver listed it: its exit is not announced.
    pub(super) listed: bool,
    /// Its exit was noticed, not reported: it may have happened long before.
    pub(super) end_is_late: bool,
    /// Counts changes that make earlier resolutions outdated.
    pub(super) epoch: u32,
    /// Names that it had, of the programs that it executed one after the other.
    pub(super) names: u8,
    /// Resolutions so far with a name missing.
    pub(super) tries: u8,
}

/// The resolution of an entry, made outside the table's lock.
#[derive(Clone, Debug)]
pub(crate) struct Resolution {
    pub(crate) attribution: ProcessAttribution,
    pub(crate) cgroups: KernelCgroups,
    pub(super) epoch: u32,
    /// Whether it moved: its former place is invalid.
    pub(super) moved: bool,
    /// Whether its place is known; then only names are looked up.
    pub(crate) placed: bool,
}

/// Names of a process, by the programs that it executes; each makes other series. After these it is `other`.
const MAX_NAMES: u8 = 3;
/// Maximum number of nodes of a process: a host has some tens at most.
const MAX_NODES: usize = 64;
/// Resolutions of an entry with missing names; after that, only new facts about its pod or
/// container cause one.
const MAX_TRIES: u8 = 60;
/// Nanoseconds in a tick of `/proc/PID/stat` (`USER_HZ` is 100 on every supported Linux ABI).
pub(super) const TICK_NS: u64 = 10_000_000;

/// The earliest possible start time of a process.
pub(crate) fn started_ns(process: ProcKey) -> u64 {
    process.start_ticks.saturating_mul(TICK_NS)
}

impl KernelCgroups {
    /// Whether a hierarchy that both contain differs: the kernel and `/proc` do not report the same
    /// set, nor in the same order.
    pub(crate) fn have_moved(&self, now: &Self) -> bool {
        now.0.iter().any(|cgroup| self.get(cgroup.hierarchy).is_some_and(|id| id != cgroup.id))
    }
}

impl ProcessEntry {
    pub(super) fn new(
        owner: ProcessAttribution,
        cgroups: KernelCgroups,
        opened_ns: Option<u64>,
    ) -> Self {
        Self {
            attribution: Arc::new(owner),
            cgroups,
            opened_ns,
            listed: opened_ns.is_none(),
            end_is_late: false,
            epoch: 0,
            names: 1,
            tries: 0,
        }
    }

    /// It executes another program.
    pub(super) fn rename(&mut self, comm: &Arc<str>) {
        self.epoch += 1;
        self.names = self.names.saturating_add((self.attribution.comm != *comm).into());
        let comm = if self.names > MAX_NAMES { OTHER.into() } else { Arc::clone(comm) };
        Arc::make_mut(&mut self.attribution).comm = comm;
    }

    pub(super) fn started_by(&self, at_ns: u64) -> bool {
        started_ns(self.attribution.process) <= at_ns
    }

    pub(super) fn is_alive(&self, at_ns: u64) -> bool {
        let ended = self.attribution.exited_ns;
        self.started_by(at_ns) && !self.end_is_late && ended.is_none_or(|ended| at_ns <= ended)
    }

    /// Whether its owner or a name is missing and may still be found without new facts.
    pub(super) fn is_incomplete(&self) -> bool {
        let is_tried = self.tries >= MAX_TRIES;
        self.attribution.method == Method::Pending || (!self.attribution.is_named() && !is_tried)
    }

    /// Whether no resolution has had a result yet.
    pub(super) fn is_unresolved(&self) -> bool {
        self.attribution.method == Method::Pending && self.tries == 0
    }

    pub(super) fn resolution(&self, moved: bool) -> Resolution {
        Resolution {
            attribution: ProcessAttribution {
                workload: Workload::default(),
                cgroup: None,
                method: Method::Pending,
                ..(*self.attribution).clone()
            },
            cgroups: self.cgroups.clone(),
            epoch: self.epoch,
            moved,
            placed: false,
        }
    }

    /// A resolution of its names only.
    pub(super) fn name_resolution(&self) -> Resolution {
        let mut owner = (*self.attribution).clone();
        owner.workload.clear_names();
        let (cgroups, epoch) = (self.cgroups.clone(), self.epoch);
        Resolution { attribution: owner, cgroups, epoch, moved: false, placed: true }
    }

    /// Stores newer cgroup ids; returns whether they show an unannounced move.
    pub(super) fn moves_to(&mut self, cgroups: &KernelCgroups) -> bool {
        let is_news = |cgroup: &&CgroupId| self.cgroups.get(cgroup.hierarchy) != Some(cgroup.id);
        let news: Vec<CgroupId> = cgroups.0.iter().filter(is_news).copied().collect();
        if news.is_empty() {
            return false;
        }
        let moved = self.cgroups.have_moved(cgroups);
        if moved {
            self.cgroups = cgroups.clone();
        } else {
            self.cgroups.0.extend(news);
        }
        self.epoch += 1;
        moved
    }

    pub(super) fn note_nodes(&mut self, nodes: &[Arc<str>]) {
        // The kernel's report of a fork has no node: the child has its parent's.
        for node in nodes.iter().filter(|node| !node.is_empty()) {
            if self.attribution.nodes.len() < MAX_NODES && !self.attribution.nodes.contains(node) {
                Arc::make_mut(&mut self.attribution).nodes.push(Arc::clone(node));
            }
        }
    }
}

/// A process without an owner yet.
pub(super) fn unresolved(process: ProcKey, comm: &Arc<str>, uid: u32) -> ProcessAttribution {
    ProcessAttribution {
        process,
        comm: Arc::clone(comm),
        uid,
        user: None,
        cgroup: None,
        workload: Workload::default(),
        method: Method::Pending,
        nodes: Vec::new(),
        exited_ns: None,
        owner: OwnerId::UNATTRIBUTED,
    }
}
