//! What each owner may take of the probe's rings, of the places for processes that are followed and of the
//! agent's looks at descriptors: the user space side of [`gpuwho_common::device_users::Allowance`].

use super::load::{LoadError, Loaded};
use aya::maps::{Array, MapData, MapError};
use gpuwho_common::device_users::{
    Allowance, DEVICES, FREEZER, HOLDERS, Holder, KINDS, LEVELS, MAX_HOLDERS, MEMORY, SHARES, V2,
    shares, slot,
};
use gpuwho_model::ids::Hierarchy;
use gpuwho_owners::attribute::Opened;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Records a second of what becomes of one owner's processes: a job of hundreds of processes begins
/// within it, and reading them all costs two hundredths of a core.
pub(super) const OWNER_RECORDS: u32 = 256;
/// Openings a second of one owner: 32 processes that open 16 nodes each.
pub(super) const OWNER_OPENINGS: u32 = 512;
/// How often one owner's records a cgroup and a user may have: pods share user ids, and users a cgroup.
/// With it one user's openings of a second still fit into the ring.
const OWNERS_OF_ONE: u32 = 4;
/// Parts of the places of followed processes: one is an owner's, two are a cgroup's and a user's.
const HOLDER_PARTS: u32 = 4;

/// Descriptors and threads that are looked at in a second for openings: some 0.1 s. An opening beyond that
/// counts as confirmed.
const LOOKS_A_SECOND: usize = 65_536;
/// Parts of [`LOOKS_A_SECOND`] as of the places.
const LOOK_PARTS: usize = 4;

/// `BPF_NOEXIST` and `BPF_EXIST` (`linux/bpf.h`).
const NEW: u64 = 1;
const THERE: u64 = 2;

/// The allowance in force.
pub(super) struct Allowances {
    map: Mutex<Array<MapData, Allowance>>,
    whole: Allowance,
    divisor: AtomicU32,
}

impl Allowances {
    /// Puts the whole allowance into force, of so many places.
    pub(super) fn new(map: Array<MapData, Allowance>, places: u32) -> Result<Self, LoadError> {
        let whole = Allowance {
            seed: RandomState::new().hash_one(places),
            most: most(1, places),
            reserved: 0,
        };
        let mut map = map;
        map.set(0, whole, 0).map_err(|source| LoadError::Map { name: "ALLOWANCE", source })?;
        Ok(Self { map: Mutex::new(map), whole, divisor: AtomicU32::new(1) })
    }

    /// Allows each owner one record of so many that it may have at most.
    pub(super) fn divide(&self, by: u32) -> Result<(), MapError> {
        if self.divisor.swap(by, Ordering::Relaxed) == by {
            return Ok(());
        }
        let mut now = self.whole;
        for of_kind in now.most.iter_mut().take(HOLDERS) {
            *of_kind = of_kind.map(|most| (most / by).max(1));
        }
        self.map.lock().set(0, now, 0)
    }

    fn now(&self) -> Allowance {
        let map = self.map.lock();
        map.get(&0, 0).unwrap_or(self.whole)
    }

    /// Gives each kind other limits.
    #[cfg(test)]
    pub(super) fn allow(&self, most: fn(usize) -> [u32; LEVELS]) {
        let now = Allowance { most: std::array::from_fn(most), ..self.whole };
        self.map.lock().set(0, now, 0).unwrap();
    }

    pub(super) fn slots(&self, opened: &Opened) -> [u16; LEVELS] {
        let mut cgroups = [0; 4];
        let hierarchies = [
            (V2, Hierarchy::V2),
            (DEVICES, Hierarchy::Devices),
            (MEMORY, Hierarchy::Memory),
            (FREEZER, Hierarchy::Freezer),
        ];
        for (position, hierarchy) in hierarchies {
            if let (Some(id), Some(of)) = (cgroups.get_mut(position), opened.cgroups.get(hierarchy))
            {
                *id = of;
            }
        }
        shares(self.whole.seed, opened.uid, &cgroups)
    }
}

/// What each level may take, by kind.
const fn most(divisor: u32, places: u32) -> [[u32; LEVELS]; KINDS] {
    const fn records(most: u32) -> [u32; LEVELS] {
        [most, most * OWNERS_OF_ONE, most * OWNERS_OF_ONE]
    }
    let part = places / HOLDER_PARTS;
    [
        records(OWNER_RECORDS / divisor),
        records(OWNER_OPENINGS / divisor),
        [part, part * 2, part * 2],
    ]
}

/// The looks at descriptors and threads of this second: an owner's are a part.
#[derive(Debug, Default)]
pub(super) struct LookBudget {
    since: Option<Instant>,
    used: usize,
    by_slot: HashMap<u32, usize>,
}

impl LookBudget {
    /// Does what takes looks off those that the owner has left.
    pub(super) fn take<T>(
        &mut self,
        slots: [u16; LEVELS],
        now: Instant,
        look: impl FnOnce(&mut usize) -> T,
    ) -> T {
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            (self.since, self.used) = (Some(now), 0);
            self.by_slot.clear();
        }
        let part = LOOKS_A_SECOND / LOOK_PARTS;
        let counted = slots.into_iter().zip([part, part * 2, part * 2]).enumerate();
        let counted = counted.filter(|(_, (share, _))| *share < SHARES);
        let counted = counted.map(|(level, (share, most))| (slot(level, share), most));
        let left = counted.clone().map(|(at, most)| {
            most.saturating_sub(self.by_slot.get(&at).copied().unwrap_or_default())
        });
        let before = left.min().unwrap_or(0).min(LOOKS_A_SECOND - self.used);
        let mut left = before;
        let result = look(&mut left);
        let taken = before - left.min(before);
        self.used += taken;
        counted.for_each(|(at, _)| *self.by_slot.entry(at).or_default() += taken);
        result
    }
}

/// So many processes at most that the programs follow and that no record told of, the oldest first: who
/// adds new ones without end keeps none from its turn.
pub(super) fn unreported(bpf: &Loaded, most: usize) -> Vec<(u32, Holder)> {
    // An entry that is removed meanwhile begins the list anew.
    let all = bpf.holders.iter().take(MAX_HOLDERS as usize).flatten();
    let mut found: Vec<_> = all.filter(|(_, entry)| entry.reported == 0).collect();
    found.sort_unstable_by_key(|(pid, entry)| (entry.start_ticks, *pid));
    found.dedup_by_key(|(pid, _)| *pid);
    found.truncate(most);
    found
}

/// Makes the programs follow a process, and tell what becomes of it. False where its owner has no place
/// left, or none is free.
pub(super) fn follow(bpf: &mut Loaded, opened: &Opened) -> bool {
    let process = opened.process;
    let before = bpf.holders.get(&process.pid, 0).ok();
    if let Some(entry) = before.filter(|entry| entry.start_ticks == process.start_ticks) {
        let reported = Holder { reported: 1, ..entry };
        return entry.reported != 0 || bpf.holders.insert(process.pid, reported, THERE).is_ok();
    }
    // An earlier process of this number.
    forget(bpf, process.pid);
    let slots = bpf.allowance.slots(opened);
    if !has_place(bpf, slots) {
        return false;
    }
    let entry = Holder { start_ticks: process.start_ticks, slots, reported: 1 };
    let is_followed = bpf.holders.insert(process.pid, entry, NEW).is_ok();
    if is_followed {
        hold(bpf, slots, 1);
    }
    is_followed
}

/// Follows a process no longer; false where it was not, or a program was faster.
pub(super) fn forget(bpf: &mut Loaded, pid: u32) -> bool {
    let Ok(entry) = bpf.holders.get(&pid, 0) else { return false };
    let is_gone = bpf.holders.remove(&pid).is_ok();
    if is_gone {
        hold(bpf, entry.slots, u64::MAX);
    }
    is_gone
}

fn has_place(bpf: &Loaded, slots: [u16; LEVELS]) -> bool {
    let most = bpf.allowance.now().most.get(HOLDERS).copied().unwrap_or_default();
    slots.iter().zip(most).enumerate().all(|(level, (share, most))| {
        let at = slot(level, *share);
        let held = bpf.counted.get(&at, 0).map_or(0, |share| share.held);
        let held = held.wrapping_add(bpf.balance.get(&at, 0).unwrap_or(0)).cast_signed();
        held < i64::from(most)
    })
}

/// Adds to the agent's own numbers; the programs' are theirs.
fn hold(bpf: &mut Loaded, slots: [u16; LEVELS], by: u64) {
    for (level, share) in slots.into_iter().enumerate().filter(|(_, share)| *share < SHARES) {
        let at = slot(level, share);
        let before = bpf.balance.get(&at, 0).unwrap_or(0);
        // Each slot exists.
        let _ = bpf.balance.set(at, before.wrapping_add(by), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [u16; LEVELS] = [1, 1, 1];
    const OTHER: [u16; LEVELS] = [2, 2, 2];

    /// How many looks are given to who wants all.
    fn all(looks: &mut LookBudget, slots: [u16; LEVELS], now: Instant) -> usize {
        looks.take(slots, now, std::mem::take)
    }

    #[test]
    fn an_owner_that_uses_up_its_looks_leaves_those_of_others() {
        let (mut looks, now) = (LookBudget::default(), Instant::now());
        let part = LOOKS_A_SECOND / LOOK_PARTS;
        assert_eq!(all(&mut looks, ONE, now), part);
        assert_eq!(all(&mut looks, ONE, now), 0, "its part is used up");
        assert_eq!(looks.take(OTHER, now, |left| *left), part, "a look that takes none");
        assert_eq!(all(&mut looks, OTHER, now), part);
        // Other users of the same cgroup.
        assert_eq!(all(&mut looks, [3, 1, 3], now), part);
        assert_eq!(all(&mut looks, [4, 1, 4], now), 0);
        assert_eq!(all(&mut looks, [5, 5, 5], now), part);
        assert_eq!(all(&mut looks, [6, 6, 6], now), 0, "of all owners");
        assert_eq!(all(&mut looks, ONE, now + Duration::from_secs(1)), part);
    }
}
