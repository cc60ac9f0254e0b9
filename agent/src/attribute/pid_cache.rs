//! Who the PIDs are that a driver lists, remembered while nobody in the ownership table changes: in
//! the steady state a list costs one comparison with the list before.

use super::ownership::{Ownership, Version};
use crate::ids::ProcKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A driver's lists and who was on them.
#[derive(Debug)]
pub struct PidCache {
    ownership: Ownership,
    known: Mutex<PidLists>,
}

#[derive(Debug, Default)]
struct PidLists {
    version: Version,
    /// One for each device.
    lists: Vec<(Vec<u32>, ProcessesByPid)>,
}

/// The processes by PID.
pub type ProcessesByPid = Arc<BTreeMap<u32, ProcKey>>;

/// Lists remembered: devices of a node, and some that change.
const MAX_LISTS: usize = 64;

impl PidCache {
    /// Nobody yet.
    pub fn new(ownership: &Ownership) -> Self {
        Self { ownership: ownership.clone(), known: Mutex::default() }
    }

    /// Who is on a list that the driver gave at a moment, no earlier than the list before; those
    /// nobody knows are left out.
    pub fn of(&self, pids: &[u32], seen_at_ns: u64) -> ProcessesByPid {
        self.ownership.catch_up(seen_at_ns);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Before any look: what changes meanwhile makes the next list be looked at again.
        let version = self.ownership.version();
        if known.version != version || known.lists.len() >= MAX_LISTS {
            *known = PidLists { version, lists: Vec::new() };
        }
        if let Some((_, who)) = known.lists.iter().find(|(list, _)| list == pids) {
            return Arc::clone(who);
        }
        let (who, stays) = self.ownership.processes(pids, seen_at_ns);
        let who = Arc::new(who);
        if stays {
            known.lists.push((pids.to_vec(), Arc::clone(&who)));
        }
        who
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Evidence;
    use crate::attribute::fake::FakeHost;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_list_is_looked_at_again_when_somebody_on_it_has_ended() {
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
        assert!(Arc::ptr_eq(&before, &identities.of(&[7, 8], 11 * SECOND)), "looked at again");

        // Its number goes to another, and the driver's list is the same.
        let later = ProcKey { pid: 7, start_ticks: 1_200 };
        ownership.observe(Evidence::Exited { process: one, at_ns: 11 * SECOND });
        host.start(later, "python3", "0::/\n");
        let now: BTreeMap<_, _> = [(7, later), (8, other)].into();
        assert_eq!(*identities.of(&[7, 8], 13 * SECOND), now);
    }

    #[test]
    fn a_list_with_somebody_who_has_ended_or_nobody_knows_is_not_remembered() {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 10 * SECOND);
        let one = ProcKey { pid: 7, start_ticks: 100 };
        host.start(one, "python3", "0::/\n");
        let identities = PidCache::new(&ownership);
        identities.of(&[7, 9], 10 * SECOND);
        assert_eq!(identities.known.lock().unwrap().lists.len(), 0);
        ownership.observe(Evidence::Exited { process: one, at_ns: 12 * SECOND });
        let seen: BTreeMap<_, _> = [(7, one)].into();
        assert_eq!(*identities.of(&[7], 11 * SECOND), seen);
        assert_eq!(identities.known.lock().unwrap().lists.len(), 0);
    }
}
