//! The programs' data about processes: each one's owner, its owner's share of the map entries, and
//! what the probe budget allows.
//!
//! Programs count the entries that each owner takes, user space the entries that are free again,
//! each in its own map. The second number is recomputed from the maps at every reading, so that the
//! two cannot drift apart. For an owner that took an entry during the reading, it stays unchanged
//! until the next one.

use super::controller::Attach;
use crate::probe::maps::Snapshot;
use aya::maps::{HashMap as KernelMap, MapData};
use gpuwho_common::nccl::{
    CONTROL_ERA, CONTROL_PAUSED, CONTROL_TIMED, EVERYBODY, Freed, MAX_OWNERS, MAX_TENANTS, MadeId,
    PLACE_CALL, PLACE_COMMUNICATOR, PLACE_ID, PLACE_THREAD, PLACES, Places, STRANGERS, Tenant,
};
use gpuwho_model::ids::ProcKey;
use std::collections::{HashMap, HashSet};

/// Number of map entries by kind.
pub(super) type ByKind = [u64; PLACES];

/// Entries taken and refused so far, by owner.
pub(in super::super) type EachOwner = HashMap<u32, Places>;

/// A process may end during a reading: its counts are exported at the next one.
const LAST_READINGS: u32 = 2;

/// The maps.
#[derive(Debug)]
pub(in super::super) struct QuotaMaps {
    pub tenants: KernelMap<MapData, u32, Tenant>,
    pub taken: KernelMap<MapData, u32, Places>,
    pub freed: KernelMap<MapData, u32, Freed>,
}

/// Processes and owners.
#[derive(Debug, Default)]
pub(in super::super) struct Quotas {
    maps: Option<QuotaMaps>,
    /// Process and owner by PID.
    processes: HashMap<u32, (ProcKey, u32)>,
    /// Owner of each PID whose process no longer has a device open, and the number of readings for
    /// which it is still needed.
    ended: HashMap<u32, (u32, u32)>,
    /// The current setting of an owner, and how often it changed; other owners have everything.
    levels: HashMap<u32, (Attach, u32)>,
    /// The programs' current data.
    reported: HashMap<u32, Tenant>,
    /// Freed entries by owner; an owner that is missing here has no row in the maps.
    freed: HashMap<u32, ByKind>,
    /// Freed entries of all owners.
    all_freed: ByKind,
}

impl Quotas {
    /// Starts to write the programs' maps.
    pub(in super::super) fn load(&mut self, maps: QuotaMaps) {
        *self = Self {
            maps: Some(maps),
            processes: std::mem::take(&mut self.processes),
            levels: std::mem::take(&mut self.levels),
            ..Self::default()
        };
        self.admit(EVERYBODY);
        self.freed.remove(&EVERYBODY);
        self.write_maps();
    }

    /// Sets the processes with an open device, with their owners. A process keeps its first owner,
    /// because its counts are scaled by that owner's coverage.
    pub(in super::super) fn follow(&mut self, mut holders: Vec<(ProcKey, u32)>) {
        // Older processes keep their rows.
        holders.sort_unstable_by_key(|(process, _)| (process.start_ticks, process.pid));
        let before = std::mem::take(&mut self.processes);
        self.ended.extend(before.iter().map(|(pid, (_, owner))| (*pid, (*owner, LAST_READINGS))));
        let mut by_owner: HashMap<u32, usize> = HashMap::new();
        for (process, owner) in holders {
            let first = before.get(&process.pid).filter(|(same, _)| *same == process);
            let owner = first.map_or(owner, |(_, first)| *first);
            let mine = by_owner.entry(owner).or_default();
            let free = (MAX_TENANTS as usize).saturating_sub(self.processes.len());
            if owner != STRANGERS && *mine < free {
                *mine += 1;
                self.ended.remove(&process.pid);
                self.processes.insert(process.pid, (process, owner));
            }
        }
        self.write_maps();
    }

    /// The owner that a process counts towards.
    pub(in super::super) fn owner_of(&self, pid: u32) -> u32 {
        let ended = || self.ended.get(&pid).map_or(STRANGERS, |(owner, _)| *owner);
        self.processes.get(&pid).map_or_else(ended, |(_, owner)| *owner)
    }

    /// The owner of each PID; all other PIDs are unattributed.
    pub(in super::super) fn owners(&self) -> HashMap<u32, u32> {
        let ended = self.ended.iter().map(|(pid, (owner, _))| (*pid, *owner));
        ended.chain(self.processes.iter().map(|(pid, (_, owner))| (*pid, *owner))).collect()
    }

    /// What an owner's processes are allowed now.
    pub(in super::super) fn allowed(&self, owner: u32) -> Attach {
        self.levels.get(&owner).map_or(Attach::Full, |(attach, _)| *attach)
    }

    /// Changes the settings of owners; returns those that changed.
    pub(in super::super) fn allow(&mut self, all: Vec<(u32, Attach)>) -> Vec<u32> {
        let mut changed = Vec::new();
        for (owner, attach) in all {
            let level = self.levels.entry(owner).or_insert((Attach::Full, 0));
            if level.0 != attach {
                *level = (attach, level.1.wrapping_add(1));
                changed.push(owner);
            }
        }
        if !changed.is_empty() {
            self.write_maps();
        }
        changed
    }

    fn tenant(&self, owner: u32) -> Tenant {
        let (attach, era) = self.levels.get(&owner).copied().unwrap_or((Attach::Full, 0));
        let word = match attach {
            Attach::Full => CONTROL_TIMED,
            Attach::Entries => 0,
            Attach::Nothing => CONTROL_PAUSED,
        };
        Tenant { owner, control: word | era.wrapping_mul(CONTROL_ERA) }
    }

    /// Creates an owner's rows in the maps; false if no rows are left.
    fn admit(&mut self, owner: u32) -> bool {
        let Some(maps) = &mut self.maps else { return false };
        let is_known = self.freed.contains_key(&owner);
        if is_known || self.freed.len() > MAX_OWNERS as usize {
            return is_known;
        }
        let nothing = Places { taken: [0; PLACES], refused: [0; PLACES] };
        let is_there = maps.freed.insert(owner, Freed { places: [0; PLACES] }, 0).is_ok()
            && maps.taken.insert(owner, nothing, 0).is_ok();
        if is_there {
            self.freed.insert(owner, [0; PLACES]);
        }
        is_there
    }

    /// Writes the changes to the programs' maps. A process whose row is refused counts as
    /// unattributed.
    fn write_maps(&mut self) {
        let processes = self.processes.iter().map(|(pid, (_, owner))| (*pid, *owner));
        let all: Vec<(u32, u32)> = processes.chain([(STRANGERS, STRANGERS)]).collect();
        let mut wanted = HashMap::new();
        for (pid, owner) in all {
            if self.admit(owner) {
                wanted.insert(pid, self.tenant(owner));
            }
        }
        let Some(maps) = &mut self.maps else { return };
        self.reported.retain(|pid, _| {
            let stays = wanted.contains_key(pid);
            if !stays {
                // It may be gone already.
                let _ = maps.tenants.remove(pid);
            }
            stays
        });
        for (pid, tenant) in wanted {
            if self.reported.get(&pid) != Some(&tenant)
                && maps.tenants.insert(pid, tenant, 0).is_ok()
            {
                self.reported.insert(pid, tenant);
            }
        }
    }

    /// Entries taken and refused so far, by owner.
    pub(in super::super) fn taken(&self) -> EachOwner {
        let Some(maps) = &self.maps else { return EachOwner::new() };
        let taken = |owner: &u32| Some((*owner, maps.taken.get(owner, 0).ok()?));
        self.freed.keys().chain([&EVERYBODY]).filter_map(taken).collect()
    }

    /// Frees entries that owners no longer use: `before` is what they had taken when the reading of
    /// `held` started.
    pub(in super::super) fn apply(&mut self, before: &EachOwner, held: &HashMap<u32, ByKind>) {
        self.ended.retain(|_, (_, readings)| {
            *readings -= 1;
            *readings > 0
        });
        let now = self.taken();
        let owners: Vec<u32> = self.freed.keys().copied().collect();
        for owner in owners {
            let (Some(then), Some(now)) = (before.get(&owner), now.get(&owner)) else { continue };
            if then.taken != now.taken {
                continue;
            }
            let held = held.get(&owner).copied().unwrap_or_default();
            self.free(owner, less(now.taken, held));
            let is_used = self.processes.values().any(|(_, of)| *of == owner);
            if owner != STRANGERS && !is_used && held == [0; PLACES] {
                self.remove_owner(owner);
            }
        }
        // Owners come and go; if no owner took an entry, the total can be recomputed.
        if let (Some(then), Some(now)) = (before.get(&EVERYBODY), now.get(&EVERYBODY))
            && then.taken == now.taken
        {
            self.all_freed = held.values().fold(now.taken, |left, held| less(left, *held));
        }
        if let Some(maps) = &mut self.maps {
            // Fails only if the map is gone.
            let _ = maps.freed.insert(EVERYBODY, Freed { places: self.all_freed }, 0);
        }
    }

    fn free(&mut self, owner: u32, places: ByKind) {
        let before = self.freed.insert(owner, places).unwrap_or_default();
        for (all, (now, before)) in self.all_freed.iter_mut().zip(places.iter().zip(before)) {
            *all = all.wrapping_add(now.wrapping_sub(before));
        }
        if let Some(maps) = &mut self.maps
            && before != places
        {
            // As above.
            let _ = maps.freed.insert(owner, Freed { places }, 0);
        }
    }

    /// Removes the rows of an owner without entries and processes.
    fn remove_owner(&mut self, owner: u32) {
        self.freed.remove(&owner);
        self.levels.remove(&owner);
        if let Some(maps) = &mut self.maps {
            // They may be gone already.
            let _ = maps.taken.remove(&owner);
            let _ = maps.freed.remove(&owner);
        }
    }

    /// The entries that each owner uses after a reading.
    pub(in super::super) fn held(
        &self,
        snapshot: &Snapshot,
        ids: &[(u64, MadeId)],
        gone: &HashSet<u64>,
        gone_threads: &HashSet<u64>,
    ) -> HashMap<u32, ByKind> {
        let mut held: HashMap<u32, ByKind> = HashMap::new();
        let mut hold = |pid: u32, kind: usize| {
            let places = held.entry(self.owner_of(pid)).or_default();
            places.iter_mut().skip(kind).take(1).for_each(|place| *place += 1);
        };
        let mut makers = HashMap::new();
        for (number, communicator) in &snapshot.communicators {
            if !gone.contains(number) {
                hold(communicator.identity.pid, PLACE_COMMUNICATOR);
                makers.insert(*number, communicator.identity.pid);
            }
        }
        for (key, _) in snapshot.calls.iter().filter(|(key, _)| !gone.contains(&key.communicator)) {
            hold(makers.get(&key.communicator).copied().unwrap_or(STRANGERS), PLACE_CALL);
        }
        for (task, _) in snapshot.threads.iter().filter(|(task, _)| !gone_threads.contains(task)) {
            hold(u32::try_from(task >> 32).unwrap_or(STRANGERS), PLACE_THREAD);
        }
        for (_, made) in ids {
            hold(made.pid, PLACE_ID);
        }
        held
    }
}

/// Subtracts entries by kind.
fn less(places: ByKind, by: ByKind) -> ByKind {
    let mut left = places;
    left.iter_mut().zip(by).for_each(|(left, by)| *left = left.wrapping_sub(by));
    left
}
