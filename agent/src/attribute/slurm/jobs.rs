//! The jobs on this node, also those that no process has touched a GPU for: announced by the
//! kernel when their cgroup is made and removed, found by one walk at start, and looked for by one
//! short listing in [`LOOK_NS`] in case an announcement was lost (or there is no BPF).
//!
//! Pure bookkeeping; costs a look at an integer a tick while nothing changes.

use super::devices::{Granted, Undecided};
use super::facts::Facts;
use crate::ids::{CgroupId, SlurmJobId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The path of its cgroup, which no other job of this node has at the same time.
    pub path: Arc<str>,
    /// The cgroup's name of it: a number, or a SLUID from Slurm 26.05 on.
    pub name: SlurmJobId,
    /// When the agent first saw it, in nanoseconds of `CLOCK_BOOTTIME`.
    pub first_seen_ns: u64,
    /// When its cgroup was removed.
    pub removed_ns: Option<u64>,
    /// What is known of it.
    pub facts: Arc<Facts>,
    /// The devices granted to it on this node.
    pub granted: Granted,
}

/// Every job, by its cgroup's path.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    entries: HashMap<Arc<str>, Entry>,
    by_id: HashMap<CgroupId, Arc<str>>,
    /// Jobs of which something was learnt since somebody asked.
    changed: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    job: Arc<Job>,
    /// Its cgroup in each hierarchy that has one.
    ids: Vec<CgroupId>,
    /// How often it was looked into since something about it changed.
    looks: u32,
    /// When to look again; `None` once everything is known that will be.
    next_ns: Option<u64>,
}

/// Jobs kept; a node runs at most some hundreds at once.
pub(super) const MAX_JOBS: usize = 4096;
/// How long an ended job is kept: as long as the processes that were in it.
const KEEP_REMOVED_NS: u64 = 300_000_000_000;
/// Looks at a job of which something is missing: after 0, 1, 2, 4, 8 and 16 seconds.
const MAX_LOOKS: u32 = 6;
const FIRST_WAIT_NS: u64 = 1_000_000_000;

impl Jobs {
    /// A job's cgroup is there. Gives `true` where that was news: to be looked into.
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
            granted: Granted::Untold(Undecided::NotRead),
        };
        for id in ids {
            self.by_id.insert(*id, Arc::clone(&path));
        }
        let entry =
            Entry { job: Arc::new(job), ids: ids.to_vec(), looks: 0, next_ns: Some(now_ns) };
        self.entries.insert(path, entry);
        true
    }

    /// One of a job's cgroups was removed; the job ended with its last.
    pub(super) fn removed(&mut self, id: CgroupId, now_ns: u64) {
        let Some(path) = self.by_id.remove(&id) else { return };
        let Some(entry) = self.entries.get_mut(&path) else { return };
        entry.ids.retain(|known| *known != id);
        if entry.ids.is_empty() {
            entry.end(now_ns);
        }
    }

    /// A job's directories are gone though nobody announced it.
    pub(super) fn missing(&mut self, path: &str, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        for id in entry.ids.drain(..) {
            self.by_id.remove(&id);
        }
        entry.end(now_ns);
    }

    /// Something of a job changed: a step began.
    pub(super) fn touched(&mut self, path: &str, now_ns: u64) {
        if let Some(entry) = self.entries.get_mut(path).filter(|entry| entry.is_live())
            && entry.next_ns.is_none()
            && !is_complete(&entry.job)
        {
            entry.looks = 0;
            entry.next_ns = Some(now_ns);
        }
    }

    /// Takes what a look at a job has found.
    pub(super) fn learnt(&mut self, path: &str, facts: &Facts, granted: Granted, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        let was_reported = matches!(entry.job.granted, Granted::Devices { .. });
        let is_reported = matches!(granted, Granted::Devices { .. });
        // What was read of a job stays known when its cgroup is gone.
        let granted =
            if was_reported && !is_reported { entry.job.granted.clone() } else { granted };
        if entry.take(facts) {
            self.changed.insert(Arc::clone(&entry.job.path));
        }
        if entry.job.granted != granted {
            Arc::make_mut(&mut entry.job).granted = granted;
        }
        entry.looks = entry.looks.saturating_add(1);
        let is_done = is_complete(&entry.job)
            || entry.looks >= MAX_LOOKS
            || !entry.is_live()
            || entry.job.granted == Granted::Untold(Undecided::Gone);
        let wait_ns = FIRST_WAIT_NS << (entry.looks.min(MAX_LOOKS) - 1);
        entry.next_ns = (!is_done).then(|| now_ns.saturating_add(wait_ns));
    }

    /// Takes what one of a job's processes has said, without having looked any further.
    pub(super) fn heard(&mut self, path: &str, facts: &Facts) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        if entry.take(facts) {
            self.changed.insert(Arc::clone(&entry.job.path));
        }
    }

    /// Jobs of which something was learnt since this was last asked.
    pub(super) fn take_changed(&mut self) -> Vec<Arc<Job>> {
        let changed = std::mem::take(&mut self.changed);
        changed.iter().filter_map(|path| self.get(path).map(Arc::clone)).collect()
    }

    /// One job.
    pub(super) fn get(&self, path: &str) -> Option<&Arc<Job>> {
        self.entries.get(path).map(|entry| &entry.job)
    }

    /// Whether a job is to be looked into now.
    pub(super) fn is_due(&self, path: &str, now_ns: u64) -> bool {
        let next_ns = self.entries.get(path).and_then(|entry| entry.next_ns);
        next_ns.is_some_and(|next_ns| next_ns <= now_ns)
    }

    /// Every job, ended ones of the last minutes included.
    pub(super) fn all(&self) -> Vec<Arc<Job>> {
        self.entries.values().map(|entry| Arc::clone(&entry.job)).collect()
    }

    /// Paths of the jobs that have not ended.
    pub(super) fn live(&self) -> Vec<Arc<str>> {
        let live = self.entries.values().filter(|entry| entry.is_live());
        live.map(|entry| Arc::clone(&entry.job.path)).collect()
    }

    /// Jobs to look into now.
    pub(super) fn due(&self, now_ns: u64) -> Vec<Arc<str>> {
        let is_due = |entry: &&Entry| entry.next_ns.is_some_and(|next_ns| next_ns <= now_ns);
        let due = self.entries.values().filter(is_due);
        due.map(|entry| Arc::clone(&entry.job.path)).collect()
    }

    /// Forgets what ended long ago.
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

    /// The job that ended first goes.
    fn make_room(&mut self) -> bool {
        let ended = self.entries.values().filter(|entry| !entry.is_live());
        let oldest = ended.min_by_key(|entry| entry.job.removed_ns);
        let Some(path) = oldest.map(|entry| Arc::clone(&entry.job.path)) else { return false };
        self.remove(&path);
        true
    }
}

impl Entry {
    /// Merged, not replaced: another process may have been heard meanwhile.
    /// Whether that changed anything.
    fn take(&mut self, facts: &Facts) -> bool {
        let mut merged = (*self.job.facts).clone();
        merged.merge(facts);
        let is_news = merged != *self.job.facts;
        if is_news {
            Arc::make_mut(&mut self.job).facts = Arc::new(merged);
        }
        is_news
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

/// Whether another look could tell nothing more that is wanted.
fn is_complete(job: &Job) -> bool {
    let is_reported = !matches!(
        job.granted,
        Granted::Untold(Undecided::NotRead | Undecided::NoProgram | Undecided::Gone)
    );
    is_reported && job.facts.number().is_some() && super::inspect::is_labelled(&job.facts)
}

#[cfg(test)]
mod tests;
