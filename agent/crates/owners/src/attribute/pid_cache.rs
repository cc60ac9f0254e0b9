//! Caches PID → process for each driver list until the ownership table changes: in the steady
//! state, a list costs one comparison with the previous one.

use super::ownership::{Ownership, Version};
use gpuwho_model::ids::ProcKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Driver lists and their processes.
#[derive(Debug)]
pub struct PidCache {
    ownership: Ownership,
    known: Mutex<PidLists>,
}

#[derive(Debug, Default)]
struct PidLists {
    version: Version,
    /// One entry for each list.
    lists: Vec<(Vec<u32>, ProcessesByPid)>,
}

/// Processes by PID.
pub type ProcessesByPid = Arc<BTreeMap<u32, ProcKey>>;

/// Maximum number of cached lists: one for each device of a node, and some that change.
const MAX_LISTS: usize = 64;

impl PidCache {
    /// Starts empty.
    pub fn new(ownership: &Ownership) -> Self {
        Self { ownership: ownership.clone(), known: Mutex::default() }
    }

    /// The processes on a list that the driver gave at a time no earlier than that of the previous
    /// list; unknown PIDs are left out.
    pub fn of(&self, pids: &[u32], seen_at_ns: u64) -> ProcessesByPid {
        self.ownership.catch_up(seen_at_ns);
        let mut known = self.known.lock();
        // Read before any lookup: a change meanwhile invalidates the cached lists.
        let version = self.ownership.version();
        if known.version != version || known.lists.len() >= MAX_LISTS {
            *known = PidLists { version, lists: Vec::new() };
        }
        if let Some((_, processes)) = known.lists.iter().find(|(list, _)| list == pids) {
            return Arc::clone(processes);
        }
        let (processes, is_stable) = self.ownership.processes(pids, seen_at_ns);
        let processes = Arc::new(processes);
        if is_stable {
            known.lists.push((pids.to_vec(), Arc::clone(&processes)));
        }
        processes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Evidence;
    use crate::attribute::fake::{FakeHost, opened};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_list_is_looked_up_again_when_a_process_on_it_has_ended() {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 10 * SECOND);
        let [one, other] = [7, 8].map(|pid| ProcKey { pid, start_ticks: 100 });
        for key in [one, other] {
            host.start(key, "python3", "0::/\n");
        }
        let identities = PidCache::new(&ownership);
        let all: BTreeMap<_, _> = [one, other].map(|key| (key.pid, key)).into();
        assert_eq!(*identities.of(&[7, 8], 10 * SECOND), all);
        let before = identities.of(&[7, 8], 10 * SECOND);
        assert!(Arc::ptr_eq(&before, &identities.of(&[7, 8], 11 * SECOND)), "looked up again");

        // Its PID is reused, and the driver's list is unchanged.
        let later = ProcKey { pid: 7, start_ticks: 1_200 };
        ownership.observe(Evidence::Exited { process: one, at_ns: 11 * SECOND });
        host.start(later, "python3", "0::/\n");
        let alone: BTreeMap<_, _> = [(8, other)].into();
        assert_eq!(*identities.of(&[7, 8], 13 * SECOND), alone, "who has it now opened nothing");
        ownership.observe(Evidence::Opened(opened(later, 5, 13 * SECOND)));
        let now: BTreeMap<_, _> = [(7, later), (8, other)].into();
        assert_eq!(*identities.of(&[7, 8], 13 * SECOND), now);
    }

    #[test]
    fn a_list_with_an_ended_or_unknown_process_is_not_cached() {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 10 * SECOND);
        let one = ProcKey { pid: 7, start_ticks: 100 };
        host.start(one, "python3", "0::/\n");
        let identities = PidCache::new(&ownership);
        identities.of(&[7, 9], 10 * SECOND);
        assert_eq!(identities.known.lock().lists.len(), 0);
        ownership.observe(Evidence::Exited { process: one, at_ns: 12 * SECOND });
        let seen: BTreeMap<_, _> = [(7, one)].into();
        assert_eq!(*identities.of(&[7], 11 * SECOND), seen);
        assert_eq!(identities.known.lock().lists.len(), 0);
    }
}
