//! Reads and clears the maps of the probe `nccl`, in batches.

use super::members::complete::Completed;
use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData};
use gpuwho_common::nccl::{
    CHANGES_OUTSIDE, CallKey, Calls, Communicator, Handle, HandleKey, MadeId, Name, Thread,
};
use gpuwho_sys as sys;
use std::collections::{HashMap as Found, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The maps with the counts.
#[derive(Debug)]
pub(super) struct Maps {
    pub handles: Map,
    pub communicators: Map,
    pub calls: Map,
    pub threads: Map,
    pub unique_ids: Map,
    pub names: Map,
    pub coming: Map,
    pub changes: Map,
}

/// The content of the maps.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub communicators: Vec<(u64, Communicator)>,
    pub calls: Vec<(CallKey, Calls)>,
    pub threads: Vec<(u64, Thread)>,
    /// Names of communicators, by number.
    pub names: Found<u64, Name>,
    /// Names of communicators that are being created, by thread.
    pub coming: Found<u64, Name>,
    /// Facts from other sources, by number.
    pub completed: Found<u64, Completed>,
}

impl Maps {
    /// Reads all maps. Calls are read after communicators: a call counted in between belongs to a
    /// known communicator, or to one in the next snapshot. Names are read before communicators, so
    /// that a name without communicator belongs to one that is gone.
    pub(super) fn read(&self) -> io::Result<Snapshot> {
        let (names, coming) = (entries(&self.names)?, entries(&self.coming)?);
        Ok(Snapshot {
            names: names.into_iter().collect(),
            coming: coming.into_iter().collect(),
            communicators: entries(&self.communicators)?,
            calls: entries(&self.calls)?,
            threads: entries(&self.threads)?,
            completed: Found::new(),
        })
    }

    /// Unique ids created on this node, by hash.
    pub(super) fn unique_ids(&self) -> io::Result<Vec<(u64, MadeId)>> {
        entries(&self.unique_ids)
    }

    /// Removes a unique id.
    pub(super) fn forget_id(&mut self, hash: u64) {
        if let Ok(mut ids) = typed::<u64, MadeId>(&mut self.unique_ids) {
            let _ = ids.remove(&hash);
        }
    }

    /// Removes the names of communicators that are gone.
    pub(super) fn forget_names(&mut self, snapshot: &Snapshot) {
        if snapshot.names.is_empty() {
            return;
        }
        let there: HashSet<u64> =
            snapshot.communicators.iter().map(|(number, _)| *number).collect();
        if let Ok(mut names) = typed::<u64, Name>(&mut self.names) {
            for number in snapshot.names.keys().filter(|number| !there.contains(number)) {
                // It may be gone already.
                let _ = names.remove(number);
            }
        }
    }

    /// Removes a communicator, its name, its counts and its handle.
    pub(super) fn remove(&mut self, number: u64, gone: Option<&Communicator>, calls: &[CallKey]) {
        // Entries may be gone already; the handle may belong to a later communicator.
        if let Some(identity) = gone.map(|gone| &gone.identity)
            && let Ok(mut handles) = typed::<HandleKey, Handle>(&mut self.handles)
        {
            let key = HandleKey { handle: identity.handle, pid: identity.pid, reserved: 0 };
            if handles.get(&key, 0).is_ok_and(|handle| handle.communicator == number) {
                let _ = handles.remove(&key);
                self.handle_changed();
            }
        }
        if let Ok(mut names) = typed::<u64, Name>(&mut self.names) {
            let _ = names.remove(&number);
        }
        if let Ok(mut counted) = typed::<CallKey, Calls>(&mut self.calls) {
            for key in calls {
                let _ = counted.remove(key);
            }
        }
        if let Ok(mut communicators) = typed::<u64, Communicator>(&mut self.communicators) {
            let _ = communicators.remove(&number);
        }
    }

    /// Sets the number of ranks of a communicator for the programs.
    pub(super) fn size(&mut self, handle: u64, pid: u32, ranks: u32) {
        let key = HandleKey { handle, pid, reserved: 0 };
        if let Ok(mut handles) = typed::<HandleKey, Handle>(&mut self.handles)
            && let Ok(known) = handles.get(&key, 0)
        {
            // On failure the size stays unknown.
            let _ = handles.insert(key, Handle { ranks, ..known }, 0);
            self.handle_changed();
        }
    }

    /// Invalidates the handles that threads have cached.
    fn handle_changed(&mut self) {
        if let Ok(mut all) = Array::<&mut MapData, u64>::try_from(&mut self.changes)
            && let Ok(changes) = all.get(&CHANGES_OUTSIDE, 0)
        {
            // Fails only if the map is gone.
            let _ = all.set(CHANGES_OUTSIDE, changes.wrapping_add(1), 0);
        }
    }

    /// Removes a thread and the name of the communicator that it was creating.
    pub(super) fn forget_thread(&mut self, task: u64) {
        if let Ok(mut coming) = typed::<u64, Name>(&mut self.coming) {
            let _ = coming.remove(&task);
        }
        if let Ok(mut threads) = typed::<u64, Thread>(&mut self.threads) {
            let _ = threads.remove(&task);
        }
    }
}

fn typed<K: Pod, V: Pod>(
    map: &mut Map,
) -> Result<HashMap<&mut MapData, K, V>, aya::maps::MapError> {
    HashMap::try_from(map)
}

fn entries<K: Pod, V: Pod>(map: &Map) -> io::Result<Vec<(K, V)>> {
    sys::bpf::entries(fd(map)?)
}

/// A second descriptor of a map.
pub(super) fn second_fd(map: &Map) -> Option<OwnedFd> {
    fd(map).ok()?.try_clone_to_owned().ok()
}

fn fd(map: &Map) -> io::Result<BorrowedFd<'_>> {
    match map {
        Map::HashMap(data) | Map::LruHashMap(data) => Ok(data.fd().as_fd()),
        _ => Err(io::Error::other("not a hash map")),
    }
}
