//! The entries of the ownership table: live processes and recently ended ones.
//!
//! Bookkeeping only: reads no file and no clock. Only evidence about an entry's own [`ProcKey`]
//! changes it, so a reused PID has two entries.
//!
//! Live, ended and incomplete entries are kept in separate collections, so that each tick visits
//! only those it concerns: minutes of short processes leave thousands of ended entries.

mod entry;
mod stale;

use super::{KernelCgroups, Method, Opened, ProcessAttribution};
use entry::{ProcessEntry, TICK_NS, unresolved};
pub(crate) use entry::{Resolution, started_ns};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use stale::StaleNumbers;
use std::collections::{HashMap, HashSet, VecDeque};
use std::slice;
use std::sync::Arc;

/// Every process known to hold a device, and those that held one until recently.
#[derive(Debug, Default)]
pub(crate) struct Table {
    living: HashMap<ProcKey, ProcessEntry>,
    past: HashMap<ProcKey, ProcessEntry>,
    /// Entries without an owner or a name that may still be found.
    incomplete: HashSet<ProcKey>,
    by_pid: HashMap<u32, Vec<ProcKey>>,
    stale: StaleNumbers,
    /// Ended processes in the order in which their exits became known.
    ended: VecDeque<ProcKey>,
    /// Processes that found no room.
    pub(crate) refused: u64,
    /// Counts changes of the results of [`Table::attribution`].
    version: u64,
}

/// Maximum number of ended processes, which a driver may list late.
pub(crate) const MAX_ENDED: usize = 16_384;
/// Ended processes removed at once beyond the maximum: each removal scans all.
const REMOVED_AT_ONCE: usize = 128;
/// Maximum number of live processes: as many as the kernel follows.
pub(crate) const MAX_HOLDERS: usize = gpuwho_common::device_users::MAX_HOLDERS as usize;
/// How long an ended process stays.
const KEEP_ENDED_NS: u64 = 300_000_000_000;
/// How long an ended process's missing names are retried.
const RETRY_ENDED_NS: u64 = 30_000_000_000;
/// How long a driver may take to free an ended process's memory, and still lists the process.
const TEARDOWN_NS: u64 = 10_000_000_000;

impl Table {
    /// A process's attribution: one lookup.
    pub(crate) fn attribution(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.entry(process).map(|entry| Arc::clone(&entry.attribution))
    }

    /// Changes whenever an attribution changes.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// All live processes.
    pub(crate) fn openers(&self) -> Vec<Arc<ProcessAttribution>> {
        self.living.values().map(|entry| Arc::clone(&entry.attribution)).collect()
    }

    /// Whether a process is known and alive.
    pub(crate) fn is_living(&self, process: ProcKey) -> bool {
        self.living.contains_key(&process)
    }

    /// Whether a process has no result of a resolution yet: another thread is at its first.
    pub(crate) fn is_unresolved(&self, process: ProcKey) -> bool {
        self.entry(process).is_some_and(ProcessEntry::is_unresolved)
    }

    /// The number of live processes.
    pub(crate) fn holding(&self) -> usize {
        self.living.len()
    }

    /// Calls `each` with the nodes of every live process, and the process's owner.
    pub(crate) fn open_nodes(&self, mut each: impl FnMut(OwnerId, &[Arc<str>])) {
        for entry in self.living.values() {
            each(entry.attribution.owner, &entry.attribution.nodes);
        }
    }

    /// All ended processes that are still stored.
    pub(crate) fn ended(&self) -> Vec<Arc<ProcessAttribution>> {
        self.past.values().map(|entry| Arc::clone(&entry.attribution)).collect()
    }

    /// The number of ended processes.
    pub(crate) fn ended_count(&self) -> usize {
        self.past.len()
    }

    /// The number of processes without a known owner.
    pub(crate) fn pending(&self) -> usize {
        self.entries().filter(|entry| entry.attribution.method == Method::Pending).count()
    }

    /// Records an open, with the nodes inherited from the parent; returns a resolution if the owner
    /// is unknown.
    pub(crate) fn opened(&mut self, opened: &Opened, inherited: &[Arc<str>]) -> Option<Resolution> {
        let process = opened.process;
        if let Some(entry) = self.living.get_mut(&process).or_else(|| self.past.get_mut(&process)) {
            let nodes = entry.attribution.nodes.len();
            entry.note_nodes(inherited);
            entry.note_nodes(slice::from_ref(&opened.node));
            self.version += u64::from(entry.attribution.nodes.len() != nodes);
            entry.listed = false;
            let moved = entry.attribution.exited_ns.is_none() && entry.moves_to(&opened.cgroups);
            let incomplete = entry.attribution.method == Method::Pending;
            return (moved || incomplete).then(|| entry.resolution(moved));
        }
        let mut owner = unresolved(process, &opened.comm, opened.uid);
        owner.nodes = inherited.to_vec();
        self.insert(owner, opened.cgroups.clone(), Some(opened.at_ns))?;
        let entry = self.living.get_mut(&process)?;
        entry.note_nodes(slice::from_ref(&opened.node));
        Some(entry.resolution(false))
    }

    /// Records a process that the driver lists and that has no reported open.
    pub(crate) fn listed(
        &mut self,
        process: ProcKey,
        comm: &Arc<str>,
        uid: u32,
    ) -> Option<Resolution> {
        if self.entry(process).is_some() {
            return None;
        }
        self.insert(unresolved(process, comm, uid), KernelCgroups::default(), None)?;
        Some(self.living.get(&process)?.resolution(false))
    }

    /// Records an exec.
    pub(crate) fn execed(&mut self, process: ProcKey, comm: &Arc<str>) -> Option<Resolution> {
        let entry = self.entry_mut(process)?;
        entry.rename(comm);
        Some(entry.resolution(false))
    }

    /// Records a move to other cgroups.
    pub(crate) fn moved(&mut self, process: ProcKey, cgroups: KernelCgroups) -> Option<Resolution> {
        let entry = self.entry_mut(process)?;
        entry.epoch += 1;
        entry.cgroups = cgroups;
        Some(entry.resolution(true))
    }

    /// Records an exit; of several reports the earliest counts, because the later ones noticed it
    /// late.
    pub(crate) fn exited(&mut self, process: ProcKey, at_ns: u64) {
        let known = self.entry(process).and_then(|entry| entry.attribution.exited_ns);
        if known.is_some_and(|known| known <= at_ns) {
            return;
        }
        let Some(entry) = self.entry_mut(process) else { return };
        Arc::make_mut(&mut entry.attribution).exited_ns = Some(at_ns);
        entry.end_is_late = false;
        let Some(entry) = self.living.remove(&process) else { return };
        self.past.insert(process, entry);
        self.ended.push_back(process);
        if self.ended.len() > MAX_ENDED {
            self.make_room();
        }
    }

    /// Removes the oldest processes of the owner with the most ended ones, so that a storm of one
    /// owner's short processes displaces its own entries.
    fn make_room(&mut self) {
        let mut counts: HashMap<OwnerId, usize> = HashMap::new();
        for entry in self.past.values() {
            *counts.entry(entry.attribution.owner).or_default() += 1;
        }
        let Some((owner, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return;
        };
        let mut left = count.min(REMOVED_AT_ONCE);
        let (mut rest, mut removed) = (VecDeque::with_capacity(MAX_ENDED), Vec::new());
        for process in std::mem::take(&mut self.ended) {
            let is_of = |entry: &ProcessEntry| entry.attribution.owner == owner;
            if left > 0 && self.past.get(&process).is_some_and(is_of) {
                left -= 1;
                removed.push(process);
            } else {
                rest.push_back(process);
            }
        }
        self.ended = rest;
        for process in removed {
            self.remove(process);
        }
    }

    /// Records that a process no longer exists; it ended at `now_ns` or before.
    pub(crate) fn missing(&mut self, process: ProcKey, now_ns: u64) {
        let is_live = self.living.contains_key(&process);
        self.exited(process, now_ns);
        if let Some(entry) = self.past.get_mut(&process).filter(|_| is_live) {
            entry.end_is_late = true;
        }
    }

    /// Stores the result of a resolution unless the entry has changed since. Returns the time of
    /// the first open if this made the owner known.
    pub(crate) fn apply(&mut self, resolution: Resolution) -> Option<u64> {
        let process = resolution.attribution.process;
        let entry = self.living.get_mut(&process).or_else(|| self.past.get_mut(&process))?;
        if entry.epoch != resolution.epoch {
            return None;
        }
        let mut owner = resolution.attribution;
        if owner.method == Method::Pending && !resolution.moved {
            // Not found this time: the known owner stays.
            owner.workload = entry.attribution.workload.clone();
            owner.cgroup.clone_from(&entry.attribution.cgroup);
            owner.method = entry.attribution.method;
            owner.owner = entry.attribution.owner;
        }
        entry.tries = entry.tries.saturating_add(u8::from(!owner.is_named()));
        owner.nodes.clone_from(&entry.attribution.nodes);
        owner.exited_ns = entry.attribution.exited_ns;
        let is_known = owner.method != Method::Pending;
        if *entry.attribution != owner {
            entry.attribution = Arc::new(owner);
            self.version += 1;
        }
        if entry.is_incomplete() {
            self.incomplete.insert(process);
        } else {
            self.incomplete.remove(&process);
        }
        if is_known { entry.opened_ns.take() } else { None }
    }

    /// The process that had this PID at a given time. The older of two comes first, because its
    /// exit is known to the nanosecond and the start of the younger only to the tick.
    pub(crate) fn alive_at(&self, pid: u32, at_ns: u64) -> Option<ProcKey> {
        self.of(pid).find(|entry| entry.is_alive(at_ns)).map(|entry| entry.attribution.process)
    }

    /// The last known process with this PID, if it ended so shortly before that the driver may
    /// still list it.
    pub(crate) fn just_ended(&self, pid: u32, at_ns: u64) -> Option<ProcKey> {
        let last = self.of(pid).filter(|entry| entry.started_by(at_ns)).last()?;
        let ended = last.attribution.exited_ns?;
        (at_ns.saturating_sub(ended) <= TEARDOWN_NS).then_some(last.attribution.process)
    }

    /// Whether a driver may list this number for a process that has ended: whoever has it now did not open
    /// a node.
    pub(crate) fn is_stale(&self, pid: u32) -> bool {
        self.stale.contains(pid) || self.by_pid.contains_key(&pid)
    }

    /// Remembers that a driver lists this number without a process that held a device, while it does.
    pub(crate) fn note_stale(&mut self, pid: u32) {
        self.refused += u64::from(!self.stale.note(pid));
    }

    /// Removes processes that ended long ago, and numbers that no driver lists any more.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        self.stale.expire();
        while let Some(oldest) = self.ended.front().copied()
            && self.ended_before(oldest, now_ns.saturating_sub(KEEP_ENDED_NS))
        {
            self.ended.pop_front();
            self.remove(oldest);
        }
    }

    /// Resolutions of up to `limit` incomplete entries.
    pub(crate) fn incomplete(&mut self, now_ns: u64, limit: usize) -> Vec<Resolution> {
        let Self { living, past, incomplete, .. } = self;
        let is_recent = |entry: &ProcessEntry| {
            let ended = entry.attribution.exited_ns;
            ended.is_none_or(|ended| now_ns.saturating_sub(ended) <= RETRY_ENDED_NS)
        };
        incomplete.retain(|process| {
            living.contains_key(process) || past.get(process).is_some_and(is_recent)
        });
        let entry = |process| living.get(process).or_else(|| past.get(process));
        let entries = incomplete.iter().filter_map(entry);
        let resolution = |entry: &ProcessEntry| match entry.attribution.method {
            Method::Pending => entry.resolution(false),
            _ => entry.name_resolution(),
        };
        entries.take(limit).map(resolution).collect()
    }

    /// Resolutions that refresh the names of the entries that satisfy `test`.
    pub(crate) fn to_refresh(&self, test: impl Fn(&ProcessAttribution) -> bool) -> Vec<Resolution> {
        let known = self.entries().filter(|entry| {
            entry.attribution.method != Method::Pending && test(&entry.attribution)
        });
        known.map(ProcessEntry::name_resolution).collect()
    }

    /// A resolution that refreshes the names of one entry, if it satisfies `test`.
    pub(crate) fn one_to_refresh(
        &self,
        process: ProcKey,
        test: impl Fn(&ProcessAttribution) -> bool,
    ) -> Option<Resolution> {
        self.entry(process)
            .filter(|entry| test(&entry.attribution))
            .map(ProcessEntry::name_resolution)
    }

    /// The owners of all entries.
    pub(crate) fn owners(&self) -> HashSet<OwnerId> {
        self.entries().map(|entry| entry.attribution.owner).collect()
    }

    /// Live processes without announced exits; all live ones if `all`.
    pub(crate) fn unwatched(&self, all: bool) -> Vec<ProcKey> {
        let live = self.living.iter().filter(|(_, entry)| all || entry.listed);
        live.map(|(process, _)| *process).collect()
    }

    /// All entries of a PID, by start time.
    fn of(&self, pid: u32) -> impl Iterator<Item = &ProcessEntry> {
        self.by_pid.get(&pid).into_iter().flatten().filter_map(|key| self.entry(*key))
    }

    fn entry(&self, process: ProcKey) -> Option<&ProcessEntry> {
        self.living.get(&process).or_else(|| self.past.get(&process))
    }

    /// An entry with a change of its attribution.
    fn entry_mut(&mut self, process: ProcKey) -> Option<&mut ProcessEntry> {
        self.version += 1;
        self.living.get_mut(&process).or_else(|| self.past.get_mut(&process))
    }

    fn entries(&self) -> impl Iterator<Item = &ProcessEntry> {
        self.living.values().chain(self.past.values())
    }

    fn insert(
        &mut self,
        owner: ProcessAttribution,
        cgroups: KernelCgroups,
        opened: Option<u64>,
    ) -> Option<()> {
        let process = owner.process;
        if self.living.len() >= MAX_HOLDERS {
            self.refused += 1;
            return None;
        }
        self.end_older(process);
        let keys = self.by_pid.entry(process.pid).or_default();
        let at = keys.partition_point(|key| key.start_ticks < process.start_ticks);
        keys.insert(at, process);
        self.living.insert(process, ProcessEntry::new(owner, cgroups, opened));
        self.incomplete.insert(process);
        self.version += 1;
        Some(())
    }

    /// A PID is reused only after its process is gone: an older entry that seems to live until
    /// later has lost its exit. An exit within the start's tick is valid.
    fn end_older(&mut self, process: ProcKey) {
        let start_ns = started_ns(process);
        let older = self.by_pid.get(&process.pid).into_iter().flatten();
        let is_lost = |key: &&ProcKey| {
            let ended = self.entry(**key).and_then(|entry| entry.attribution.exited_ns);
            key.start_ticks < process.start_ticks
                && ended.is_none_or(|ended| ended >= start_ns.saturating_add(TICK_NS))
        };
        let lost: Vec<ProcKey> = older.filter(is_lost).copied().collect();
        for key in lost {
            self.exited(key, start_ns.saturating_sub(1));
        }
    }

    fn ended_before(&self, process: ProcKey, at_ns: u64) -> bool {
        let ended = self.past.get(&process).and_then(|entry| entry.attribution.exited_ns);
        ended.is_none_or(|ended| ended < at_ns)
    }

    fn remove(&mut self, process: ProcKey) {
        self.past.remove(&process);
        self.incomplete.remove(&process);
        self.version += 1;
        if let Some(keys) = self.by_pid.get_mut(&process.pid) {
            keys.retain(|key| *key != process);
            if keys.is_empty() {
                self.by_pid.remove(&process.pid);
            }
        }
    }
}
