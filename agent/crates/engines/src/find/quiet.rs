//! Processes and groups of which it is known that they are no servers, and for how long.

use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::slurm::inspect::pids;
use gpuwho_owners::process::Living;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a group without a server is looked at no more, the first time.
pub(super) const FIRST: Duration = Duration::from_mins(1);
/// How long a process is no server by what it runs, unless it executes another program or names
/// itself otherwise: a program can write over its arguments without either.
pub(super) const NO_SERVER: Duration = Duration::from_mins(5);
/// Processes that are known to be no server; beyond that they are looked at again.
const MAX_OTHERS: usize = 4_096;
/// Processes of a cgroup that are looked at: a server has some per device.
const MAX_PROCESSES: usize = 512;

/// Processes that are no server by what they run.
#[derive(Debug, Default)]
pub(super) struct Others(pub(super) HashMap<ProcKey, Other>);

/// What would change with what such a process runs.
#[derive(Debug)]
pub(super) struct Other {
    comm: Arc<str>,
    arguments_at: u64,
    until: Instant,
}

impl Others {
    /// Whether this process is one, still.
    pub(super) fn has(&self, living: &Living, now: Instant) -> bool {
        self.0.get(&living.key).is_some_and(|other| other.is_still(living, now))
    }

    pub(super) fn add(&mut self, living: &Living, now: Instant) {
        if self.0.len() >= MAX_OTHERS {
            self.0.retain(|_, other| other.until > now);
        }
        if self.0.len() < MAX_OTHERS {
            let (comm, until) = (Arc::clone(&living.comm), now + NO_SERVER);
            self.0.insert(living.key, Other { comm, arguments_at: living.arguments_at, until });
        }
    }

    /// The same, also of a new process that runs what its parent runs, which is one.
    pub(super) fn knows(&mut self, living: &Living, parent: Option<&Living>, now: Instant) -> bool {
        let is_shown = living.arguments_at != 0;
        let is_new_fork = living.is_fork && is_shown && !self.0.contains_key(&living.key);
        let runs_the_same = |parent: &Living| {
            (&parent.comm, parent.arguments_at) == (&living.comm, living.arguments_at)
        };
        let parent = parent.filter(|parent| is_new_fork && runs_the_same(parent));
        if parent.is_some_and(|parent| self.has(parent, now)) {
            self.add(living, now);
        }
        self.has(living, now)
    }

    pub(super) fn remove(&mut self, process: ProcKey) {
        self.0.remove(&process);
    }
}

impl Other {
    pub(super) fn is_still(&self, living: &Living, now: Instant) -> bool {
        now < self.until && (&self.comm, self.arguments_at) == (&living.comm, living.arguments_at)
    }
}

/// A group in which no process is a server by what it runs. While it has the same processes none of
/// them is looked at, for a while.
#[derive(Debug)]
pub(super) struct Quiet {
    pub(super) since: Instant,
    pub(super) length: Duration,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) members: BTreeSet<u32>,
}

impl Quiet {
    /// Whether it is so still.
    pub(super) fn lasts(&self, holders: &[Arc<ProcessAttribution>], now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.length
            && members(self.cgroup.as_deref(), holders) == self.members
    }

    /// The same for longer, if the last look found it so with the same processes.
    pub(super) fn after(self, before: Option<&Self>) -> Self {
        let before = before.filter(|before| before.members == self.members);
        let length = before.map_or(self.length, |before| (before.length * 2).min(NO_SERVER));
        Self { length, ..self }
    }
}

/// The processes of a group.
pub(super) fn members(cgroup: Option<&Path>, holders: &[Arc<ProcessAttribution>]) -> BTreeSet<u32> {
    let holders = holders.iter().map(|holder| holder.process.pid);
    let others = cgroup.map(members_of).unwrap_or_default();
    holders.chain(others).collect()
}

/// The processes of a cgroup.
pub(in super::super) fn members_of(directory: &Path) -> Vec<u32> {
    pids(&directory.join("cgroup.procs"), MAX_PROCESSES)
}
