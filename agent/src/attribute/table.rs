//! The rows of the ownership table: which processes there are, and which there just were.
//!
//! Pure bookkeeping: nothing here reads a file or a clock. A row is changed only by the evidence
//! about its own [`ProcKey`], so a number used twice is two rows.
//!
//! The living, the ended and those with something still to be found out are kept apart, so that
//! what is done every tick costs as many steps as there are of those it is about: minutes of short
//! processes leave thousands of ended rows, which no tick walks.

mod row;

use super::owner::OwnerId;
use super::{KernelCgroups, Method, Opened, ProcessAttribution};
use crate::ids::ProcKey;
use row::{ProcessEntry, TICK_NS, unresolved};
pub(crate) use row::{Resolution, started_ns};
use std::collections::{HashMap, HashSet, VecDeque};
use std::slice;
use std::sync::Arc;

/// Every process known to hold a device, and those that held one until recently.
#[derive(Debug, Default)]
pub(crate) struct Table {
    living: HashMap<ProcKey, ProcessEntry>,
    past: HashMap<ProcKey, ProcessEntry>,
    /// Rows whose owner or names are not complete and may yet be found.
    open: HashSet<ProcKey>,
    by_pid: HashMap<u32, Vec<ProcKey>>,
    /// Ended processes in the order their end became known.
    ended: VecDeque<ProcKey>,
    /// Holders that found no room.
    pub(crate) refused: u64,
    /// Counts changes of what [`Table::owner`] gives.
    version: u64,
}

/// Ended processes kept, for a driver that lists them late.
pub(crate) const MAX_ENDED: usize = 16_384;
/// Ended processes forgotten at once when there are too many: each time costs a walk over all.
const FORGOTTEN_AT_ONCE: usize = 128;
/// Processes kept at once: twice what a node's `pid_max` of 32,768 allows.
pub(crate) const MAX_HOLDERS: usize = 65_536;
/// How long an ended process is kept.
const KEEP_ENDED_NS: u64 = 300_000_000_000;
/// How long an ended process is still tried for what was missing.
const RETRY_ENDED_NS: u64 = 30_000_000_000;
/// A driver takes this long to let go of an ended process's memory and still lists it.
const TEARDOWN_NS: u64 = 10_000_000_000;

impl Table {
    /// One lookup.
    pub(crate) fn attribution(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.row(process).map(|row| Arc::clone(&row.attribution))
    }

    /// While it is the same, so is every owner.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Everything that has not ended.
    pub(crate) fn openers(&self) -> Vec<Arc<ProcessAttribution>> {
        self.living.values().map(|row| Arc::clone(&row.attribution)).collect()
    }

    /// Whether it is known and has not ended.
    pub(crate) fn is_living(&self, process: ProcKey) -> bool {
        self.living.contains_key(&process)
    }

    /// How many have not ended.
    pub(crate) fn holding(&self) -> usize {
        self.living.len()
    }

    /// Every node that a live process opened, with the process's party.
    pub(crate) fn open_nodes(&self, mut each: impl FnMut(OwnerId, &[Arc<str>])) {
        for row in self.living.values() {
            each(row.attribution.owner, &row.attribution.nodes);
        }
    }

    /// Everything that ended and is not forgotten yet.
    pub(crate) fn ended(&self) -> Vec<Arc<ProcessAttribution>> {
        self.past.values().map(|row| Arc::clone(&row.attribution)).collect()
    }

    /// How many ended and are not forgotten yet.
    pub(crate) fn ended_count(&self) -> usize {
        self.past.len()
    }

    /// How many there are whose owner is not known.
    pub(crate) fn pending(&self) -> usize {
        self.rows().filter(|row| row.attribution.method == Method::Pending).count()
    }

    /// A process holds a device, with what it has from its parent; a case if its owner is to be
    /// found out.
    pub(crate) fn opened(&mut self, opened: &Opened, inherited: &[Arc<str>]) -> Option<Resolution> {
        let process = opened.process;
        if let Some(row) = self.living.get_mut(&process).or_else(|| self.past.get_mut(&process)) {
            let nodes = row.attribution.nodes.len();
            row.note_nodes(inherited);
            row.note_nodes(slice::from_ref(&opened.node));
            self.version += u64::from(row.attribution.nodes.len() != nodes);
            row.listed = false;
            let moved = row.attribution.exited_ns.is_none() && row.moves_to(&opened.cgroups);
            let open = row.attribution.method == Method::Pending;
            return (moved || open).then(|| row.case(moved));
        }
        let mut owner = unresolved(process, &opened.comm, opened.uid);
        owner.nodes = inherited.to_vec();
        self.insert(owner, opened.cgroups.clone(), Some(opened.at_ns))?;
        let row = self.living.get_mut(&process)?;
        row.note_nodes(slice::from_ref(&opened.node));
        Some(row.case(false))
    }

    /// The driver lists a process nobody saw open a device.
    pub(crate) fn listed(
        &mut self,
        process: ProcKey,
        comm: &Arc<str>,
        uid: u32,
    ) -> Option<Resolution> {
        if self.row(process).is_some() {
            return None;
        }
        self.insert(unresolved(process, comm, uid), KernelCgroups::default(), None)?;
        Some(self.living.get(&process)?.case(false))
    }

    /// A process is another program now.
    pub(crate) fn execed(&mut self, process: ProcKey, comm: &Arc<str>) -> Option<Resolution> {
        let row = self.row_mut(process)?;
        row.epoch += 1;
        Arc::make_mut(&mut row.attribution).comm = Arc::clone(comm);
        Some(row.case(false))
    }

    /// A process is elsewhere now.
    pub(crate) fn moved(&mut self, process: ProcKey, cgroups: KernelCgroups) -> Option<Resolution> {
        let row = self.row_mut(process)?;
        row.epoch += 1;
        row.cgroups = cgroups;
        Some(row.case(true))
    }

    /// A process ended; of several reports the earliest counts, the later were late to notice.
    pub(crate) fn exited(&mut self, process: ProcKey, at_ns: u64) {
        let before = self.row(process).and_then(|row| row.attribution.exited_ns);
        if before.is_some_and(|before| before <= at_ns) {
            return;
        }
        let Some(row) = self.row_mut(process) else { return };
        Arc::make_mut(&mut row.attribution).exited_ns = Some(at_ns);
        row.end_is_late = false;
        let Some(row) = self.living.remove(&process) else { return };
        self.past.insert(process, row);
        self.ended.push_back(process);
        if self.ended.len() > MAX_ENDED {
            self.make_room();
        }
    }

    /// Forgets the oldest of the owner of whom most have ended, so that a storm of one owner's short
    /// processes pushes out its own.
    fn make_room(&mut self) {
        let mut counts: HashMap<OwnerId, usize> = HashMap::new();
        for row in self.past.values() {
            *counts.entry(row.attribution.owner).or_default() += 1;
        }
        let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return;
        };
        let mut left = count.min(FORGOTTEN_AT_ONCE);
        let (mut kept, mut gone) = (VecDeque::with_capacity(MAX_ENDED), Vec::new());
        for process in std::mem::take(&mut self.ended) {
            let is_of = |row: &ProcessEntry| row.attribution.owner == most;
            if left > 0 && self.past.get(&process).is_some_and(is_of) {
                left -= 1;
                gone.push(process);
            } else {
                kept.push_back(process);
            }
        }
        self.ended = kept;
        for process in gone {
            self.remove(process);
        }
    }

    /// A process is no longer there; it ended at `now_ns` or before.
    pub(crate) fn missing(&mut self, process: ProcKey, now_ns: u64) {
        let is_live = self.living.contains_key(&process);
        self.exited(process, now_ns);
        if let Some(row) = self.past.get_mut(&process).filter(|_| is_live) {
            row.end_is_late = true;
        }
    }

    /// Takes the outcome of a case unless the row has changed since. Gives the moment of the
    /// first open when this made the owner known.
    pub(crate) fn apply(&mut self, case: Resolution) -> Option<u64> {
        let process = case.attribution.process;
        let row = self.living.get_mut(&process).or_else(|| self.past.get_mut(&process))?;
        if row.epoch != case.epoch {
            return None;
        }
        let mut owner = case.attribution;
        if owner.method == Method::Pending && !case.moved {
            // Not found out this time: what is known stays.
            owner.workload = row.attribution.workload.clone();
            owner.cgroup.clone_from(&row.attribution.cgroup);
            owner.method = row.attribution.method;
            owner.owner = row.attribution.owner;
        }
        row.tries = row.tries.saturating_add(u8::from(!owner.is_named()));
        owner.nodes.clone_from(&row.attribution.nodes);
        owner.exited_ns = row.attribution.exited_ns;
        let is_known = owner.method != Method::Pending;
        if *row.attribution != owner {
            row.attribution = Arc::new(owner);
            self.version += 1;
        }
        if row.is_open() {
            self.open.insert(process);
        } else {
            self.open.remove(&process);
        }
        if is_known { row.opened_ns.take() } else { None }
    }

    /// Known under this number and alive at that moment: the older of two goes first, because its
    /// end is known to the nanosecond and the younger one's start only to the tick.
    pub(crate) fn alive_at(&self, pid: u32, at_ns: u64) -> Option<ProcKey> {
        self.of(pid).find(|row| row.is_alive(at_ns)).map(|row| row.attribution.process)
    }

    /// The last known under this number, if it ended so shortly before that the driver may still
    /// have it.
    pub(crate) fn just_ended(&self, pid: u32, at_ns: u64) -> Option<ProcKey> {
        let last = self.of(pid).filter(|row| row.started_by(at_ns)).last()?;
        let ended = last.attribution.exited_ns?;
        (at_ns.saturating_sub(ended) <= TEARDOWN_NS).then_some(last.attribution.process)
    }

    /// Forgets what ended long ago.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.ended.front().copied()
            && self.ended_before(oldest, now_ns.saturating_sub(KEEP_ENDED_NS))
        {
            self.ended.pop_front();
            self.remove(oldest);
        }
    }

    /// Rows whose owner or names are not complete and may yet be found, at most `limit`.
    pub(crate) fn incomplete(&mut self, now_ns: u64, limit: usize) -> Vec<Resolution> {
        let Self { living, past, open, .. } = self;
        let is_recent = |row: &ProcessEntry| {
            let ended = row.attribution.exited_ns;
            ended.is_none_or(|ended| now_ns.saturating_sub(ended) <= RETRY_ENDED_NS)
        };
        open.retain(|process| {
            living.contains_key(process) || past.get(process).is_some_and(is_recent)
        });
        let row = |process| living.get(process).or_else(|| past.get(process));
        let rows = open.iter().filter_map(row);
        let case = |row: &ProcessEntry| match row.attribution.method {
            Method::Pending => row.case(false),
            _ => row.naming(),
        };
        rows.take(limit).map(case).collect()
    }

    /// The rows that satisfy `test`, to be named again.
    pub(crate) fn to_name(&self, test: impl Fn(&ProcessAttribution) -> bool) -> Vec<Resolution> {
        let known = self
            .rows()
            .filter(|row| row.attribution.method != Method::Pending && test(&row.attribution));
        known.map(ProcessEntry::naming).collect()
    }

    /// One row, to be named again if its owner satisfies `test`.
    pub(crate) fn one_to_name(
        &self,
        process: ProcKey,
        test: impl Fn(&ProcessAttribution) -> bool,
    ) -> Option<Resolution> {
        self.row(process).filter(|row| test(&row.attribution)).map(ProcessEntry::naming)
    }

    /// The parties of all rows.
    pub(crate) fn owners(&self) -> HashSet<OwnerId> {
        self.rows().map(|row| row.attribution.owner).collect()
    }

    /// Live processes whose end nobody announces; all live ones if `all`.
    pub(crate) fn unwatched(&self, all: bool) -> Vec<ProcKey> {
        let live = self.living.iter().filter(|(_, row)| all || row.listed);
        live.map(|(process, _)| *process).collect()
    }

    /// Every row of a number, by start.
    fn of(&self, pid: u32) -> impl Iterator<Item = &ProcessEntry> {
        self.by_pid.get(&pid).into_iter().flatten().filter_map(|key| self.row(*key))
    }

    fn row(&self, process: ProcKey) -> Option<&ProcessEntry> {
        self.living.get(&process).or_else(|| self.past.get(&process))
    }

    /// A row whose owner changes.
    fn row_mut(&mut self, process: ProcKey) -> Option<&mut ProcessEntry> {
        self.version += 1;
        self.living.get_mut(&process).or_else(|| self.past.get_mut(&process))
    }

    fn rows(&self) -> impl Iterator<Item = &ProcessEntry> {
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
        let listed = opened.is_none();
        let owner = Arc::new(owner);
        let row = ProcessEntry {
            attribution: owner,
            cgroups,
            opened_ns: opened,
            listed,
            end_is_late: false,
            epoch: 0,
            tries: 0,
        };
        self.living.insert(process, row);
        self.open.insert(process);
        self.version += 1;
        Some(())
    }

    /// A number is free to be used again only when its process is gone: an older row that seems
    /// to live until later has lost its end. An end within the tick of the start stands.
    fn end_older(&mut self, process: ProcKey) {
        let start_ns = started_ns(process);
        let older = self.by_pid.get(&process.pid).into_iter().flatten();
        let is_lost = |key: &&ProcKey| {
            let ended = self.row(**key).and_then(|row| row.attribution.exited_ns);
            key.start_ticks < process.start_ticks
                && ended.is_none_or(|ended| ended >= start_ns.saturating_add(TICK_NS))
        };
        let lost: Vec<ProcKey> = older.filter(is_lost).copied().collect();
        for key in lost {
            self.exited(key, start_ns.saturating_sub(1));
        }
    }

    fn ended_before(&self, process: ProcKey, at_ns: u64) -> bool {
        let ended = self.past.get(&process).and_then(|row| row.attribution.exited_ns);
        ended.is_none_or(|ended| ended < at_ns)
    }

    fn remove(&mut self, process: ProcKey) {
        self.past.remove(&process);
        self.open.remove(&process);
        self.version += 1;
        if let Some(keys) = self.by_pid.get_mut(&process.pid) {
            keys.retain(|key| *key != process);
            if keys.is_empty() {
                self.by_pid.remove(&process.pid);
            }
        }
    }
}
