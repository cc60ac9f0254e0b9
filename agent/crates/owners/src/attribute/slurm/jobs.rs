//! The jobs on this node, also those without a process on a GPU: the kernel announces their
//! cgroups' creation and removal, one walk finds them at the start, and a short listing every 30 s
//! finds those with lost announcements (or without BPF).
//!
//! Bookkeeping only; a tick without changes costs one comparison.

use super::devices::{DeviceAccess, Undecided};
use super::facts::Facts;
use gpuwho_model::ids::{CgroupId, ProcKey, SlurmJobId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its cgroup path, which is unique on this node at any time.
    pub path: Arc<str>,
    /// The cgroup's name of it: a number, or a SLUID from Slurm 26.05 on.
    pub name: SlurmJobId,
    /// When the agent first saw it, in nanoseconds of `CLOCK_BOOTTIME`.
    pub first_seen_ns: u64,
    /// When its cgroup was removed.
    pub removed_ns: Option<u64>,
    /// The known facts about it.
    pub facts: Arc<Facts>,
    /// The devices it may open on this node.
    pub devices: DeviceAccess,
}

/// Processes whose environment adds nothing to the facts about their job, each with the program that
/// it runs ([`crate::process::ProcStat::arguments_at`]).
pub(super) type ReadProcesses = Vec<(ProcKey, u64)>;

/// All jobs by cgroup path.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    entries: HashMap<Arc<str>, Entry>,
    by_id: HashMap<CgroupId, Arc<str>>,
    /// Jobs with new facts since the last [`Jobs::take_changed`].
    changed: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    job: Arc<Job>,
    /// Its cgroup in each hierarchy that has it.
    ids: Vec<CgroupId>,
    /// Number of inspections that were due since its last change.
    inspections: u32,
    /// When to inspect it again; `None` if nothing more is expected.
    next_ns: Option<u64>,
    /// Its processes whose environment is in the facts.
    read: ReadProcesses,
}

/// Maximum number of jobs; a node runs a few hundred at most.
pub(super) const MAX_JOBS: usize = 4096;
/// How long an ended job stays: as long as the processes that were in it.
const KEEP_REMOVED_NS: u64 = 300_000_000_000;
/// Inspections of a job with missing facts: after 0, 1, 3, 7, 15 and 31 seconds.
const MAX_INSPECTIONS: u32 = 6;
const FIRST_WAIT_NS: u64 = 1_000_000_000;

impl Jobs {
    /// Records a job's cgroup. Returns `true` if the job is new and is to be inspected.
    pub(super) fn appeared(
        &mut self,
        path: &str,
        name: &SlurmJobId,
        ids: &[CgroupId],
        now_ns: u64,
    ) -> bool {
        if let Some(entry) = self.entries.get_mut(path)
            && !entry.is_another(ids)
        {
            for id in ids.iter().filter(|id| !entry.ids.contains(id)).copied().collect::<Vec<_>>() {
                entry.ids.push(id);
                self.by_id.insert(id, Arc::clone(&entry.job.path));
            }
            return false;
        }
        // Requeued: the same name, another run.
        self.remove(path);
        if self.entries.len() >= MAX_JOBS && !self.make_room() {
            return false;
        }
        let path: Arc<str> = Arc::from(path);
        let job = Job {
            path: Arc::clone(&path),
            name: name.clone(),
            first_seen_ns: now_ns,
            removed_ns: None,
            facts: Arc::default(),
            devices: DeviceAccess::Unknown(Undecided::NotRead),
        };
        for id in ids {
            self.by_id.insert(*id, Arc::clone(&path));
        }
        let (job, ids) = (Arc::new(job), ids.to_vec());
        let entry = Entry { job, ids, inspections: 0, next_ns: Some(now_ns), read: Vec::new() };
        self.entries.insert(path, entry);
        true
    }

    /// Whether a cgroup is known to be a job's that runs.
    pub(super) fn has(&self, id: CgroupId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Records the removal of one of a job's cgroups; the job ends with the last.
    pub(super) fn removed(&mut self, id: CgroupId, now_ns: u64) {
        let Some(path) = self.by_id.remove(&id) else { return };
        let Some(entry) = self.entries.get_mut(&path) else { return };
        entry.ids.retain(|known| *known != id);
        if entry.ids.is_empty() {
            entry.end(now_ns);
        }
    }

    /// Records that a job's directories are gone without an announcement.
    pub(super) fn missing(&mut self, path: &str, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        for id in entry.ids.drain(..) {
            self.by_id.remove(&id);
        }
        entry.end(now_ns);
    }

    /// Records a change of a job: a step started.
    pub(super) fn touched(&mut self, path: &str, now_ns: u64) {
        if let Some(entry) = self.entries.get_mut(path).filter(|entry| entry.is_live())
            && entry.next_ns.is_none()
            && !is_complete(&entry.job)
        {
            entry.inspections = 0;
            entry.next_ns = Some(now_ns);
        }
    }

    /// Stores the results of an inspection.
    pub(super) fn inspected(
        &mut self,
        path: &str,
        facts: &Facts,
        devices: DeviceAccess,
        now_ns: u64,
    ) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        let was_known = matches!(entry.job.devices, DeviceAccess::Known { .. });
        let is_known = matches!(devices, DeviceAccess::Known { .. });
        // Known devices stay known after the cgroup's removal.
        let devices = if was_known && !is_known { entry.job.devices.clone() } else { devices };
        if entry.merge(facts) {
            self.changed.insert(Arc::clone(&entry.job.path));
        }
        if entry.job.devices != devices {
            Arc::make_mut(&mut entry.job).devices = devices;
        }
        // A late inspection counts for all that were due by now.
        let mut next_ns = entry.next_ns.unwrap_or(now_ns);
        while entry.inspections < MAX_INSPECTIONS && next_ns <= now_ns {
            next_ns = next_ns.saturating_add(FIRST_WAIT_NS << entry.inspections);
            entry.inspections += 1;
        }
        let is_done = is_complete(&entry.job)
            || entry.inspections >= MAX_INSPECTIONS
            || !entry.is_live()
            || entry.job.devices == DeviceAccess::Unknown(Undecided::Gone);
        entry.next_ns = (!is_done).then_some(next_ns);
    }

    /// Stores which processes' environments are in the facts of the last inspection.
    pub(super) fn set_read(&mut self, path: &str, read: ReadProcesses) {
        if let Some(entry) = self.entries.get_mut(path) {
            entry.read = read;
        }
    }

    /// The processes whose environments are in a job's facts.
    pub(super) fn read(&self, path: &str) -> ReadProcesses {
        self.entries.get(path).map(|entry| entry.read.clone()).unwrap_or_default()
    }

    /// Adds the facts of one of a job's processes, without an inspection.
    pub(super) fn add_facts(&mut self, path: &str, facts: &Facts) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        if entry.merge(facts) {
            self.changed.insert(Arc::clone(&entry.job.path));
        }
    }

    /// Returns the jobs with new facts since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<Arc<Job>> {
        let changed = std::mem::take(&mut self.changed);
        changed.iter().filter_map(|path| self.get(path).map(Arc::clone)).collect()
    }

    /// One job.
    pub(super) fn get(&self, path: &str) -> Option<&Arc<Job>> {
        self.entries.get(path).map(|entry| &entry.job)
    }

    /// Whether a job is to be inspected now.
    pub(super) fn is_due(&self, path: &str, now_ns: u64) -> bool {
        let next_ns = self.entries.get(path).and_then(|entry| entry.next_ns);
        next_ns.is_some_and(|next_ns| next_ns <= now_ns)
    }

    /// All jobs, including recently ended ones.
    pub(super) fn all(&self) -> Vec<Arc<Job>> {
        self.entries.values().map(|entry| Arc::clone(&entry.job)).collect()
    }

    /// Paths of the live jobs.
    pub(super) fn live(&self) -> Vec<Arc<str>> {
        let live = self.entries.values().filter(|entry| entry.is_live());
        live.map(|entry| Arc::clone(&entry.job.path)).collect()
    }

    /// Jobs to inspect now.
    pub(super) fn due(&self, now_ns: u64) -> Vec<Arc<str>> {
        let is_due = |entry: &&Entry| entry.next_ns.is_some_and(|next_ns| next_ns <= now_ns);
        let due = self.entries.values().filter(is_due);
        due.map(|entry| Arc::clone(&entry.job.path)).collect()
    }

    /// Removes jobs that ended long ago.
    pub(super) fn expire(&mut self, now_ns: u64) {
        let is_old = |entry: &Entry| {
            entry.job.removed_ns.is_some_and(|at| now_ns.saturating_sub(at) > KEEP_REMOVED_NS)
        };
        self.entries.retain(|_, entry| !is_old(entry));
    }

    fn remove(&mut self, path: &str) {
        if let Some(entry) = self.entries.remove(path) {
            for id in entry.ids {
                self.by_id.remove(&id);
            }
        }
    }

    /// Removes the job that ended first.
    fn make_room(&mut self) -> bool {
        let ended = self.entries.values().filter(|entry| !entry.is_live());
        let oldest = ended.min_by_key(|entry| entry.job.removed_ns);
        let Some(path) = oldest.map(|entry| Arc::clone(&entry.job.path)) else { return false };
        self.remove(&path);
        true
    }
}

impl Entry {
    /// Merges facts, because another process may have added some meanwhile; returns whether that
    /// changed anything.
    fn merge(&mut self, facts: &Facts) -> bool {
        let mut merged = (*self.job.facts).clone();
        merged.merge(facts);
        let is_changed = merged != *self.job.facts;
        if is_changed {
            Arc::make_mut(&mut self.job).facts = Arc::new(merged);
        }
        is_changed
    }

    fn is_live(&self) -> bool {
        self.job.removed_ns.is_none()
    }

    /// Whether these are the cgroups of a later job of the same name.
    fn is_another(&self, ids: &[CgroupId]) -> bool {
        let differs = |id: &CgroupId| {
            self.ids.iter().any(|known| known.hierarchy == id.hierarchy && known.id != id.id)
        };
        (!self.is_live() && !ids.is_empty()) || ids.iter().any(differs)
    }

    fn end(&mut self, now_ns: u64) {
        if self.is_live() {
            Arc::make_mut(&mut self.job).removed_ns = Some(now_ns);
        }
        self.next_ns = None;
    }
}

/// Whether another inspection is not expected to add anything.
fn is_complete(job: &Job) -> bool {
    let is_decided = !matches!(
        job.devices,
        DeviceAccess::Unknown(Undecided::NotRead | Undecided::NoProgram | Undecided::Gone)
    );
    is_decided && job.facts.number().is_some() && super::inspect::is_labelled(&job.facts)
}

#[cfg(test)]
mod tests;
