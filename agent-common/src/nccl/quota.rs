//! Which owner a process belongs to, and how many places of the maps each owner may take.
//!
//! An owner takes a place only while it holds fewer than are free. One owner alone may hold half of a
//! map, two a third each, and whoever comes after `n` owners that hold all they may still finds one
//! part in `n + 1` free and may take half of that. No owner fills a map.
#![expect(clippy::inline_always, reason = "a BPF function cannot give more than one word")]

use super::{MAX_CALLS, MAX_COMMUNICATORS, MAX_THREADS, MAX_UNIQUE_IDS};

/// Owners that hold a device at a time: a node has some tens. Processes of later ones are strangers.
pub const MAX_OWNERS: u32 = 1_024;
/// Processes that hold a device at a time, by the same rule: the processes of a node with eight
/// devices are some hundred. Later ones are strangers.
pub const MAX_TENANTS: u32 = 8_192;

/// Owner of the processes that user space does not know: those that hold no device, and those that
/// opened one a moment ago.
pub const STRANGERS: u32 = 0;
/// Stands for all owners together.
pub const EVERYBODY: u32 = u32::MAX;

/// Index into the kinds of places: communicators.
pub const PLACE_COMMUNICATOR: usize = 0;
/// Index into the kinds of places: operations by size.
pub const PLACE_CALL: usize = 1;
/// Index into the kinds of places: threads.
pub const PLACE_THREAD: usize = 2;
/// Index into the kinds of places: unique ids.
pub const PLACE_ID: usize = 3;
/// Kinds of places.
pub const PLACES: usize = 4;

/// Places of each kind.
pub const ROOM: [u64; PLACES] =
    [MAX_COMMUNICATORS as u64, MAX_CALLS as u64, MAX_THREADS as u64, MAX_UNIQUE_IDS as u64];
/// Places of each kind that all strangers may hold together, whatever is free: what a job of eight
/// processes makes before its first reading.
pub const STRANGERS_ROOM: [u64; PLACES] = [64, 512, 128, 16];

abi! {
    /// A process, as user space knows it.
    Tenant {
        /// Number of its owner.
        owner: u32,
        /// What user space wants of its calls at present: the control word.
        control: u32,
    }
}

abi! {
    /// Places that the processes of an owner were given so far. Written by the programs.
    Places {
        /// By kind; it only grows.
        taken: [u64; PLACES],
        /// Times one was refused, by kind.
        refused: [u64; PLACES],
    }
}

abi! {
    /// Places of an owner that are free again: what it holds is the difference. Written by user
    /// space.
    Freed {
        /// By kind. A place may be freed by another owner than took it, where a process has become
        /// another's; so the difference counts, which wraps.
        places: [u64; PLACES],
    }
}

/// Whether an owner that holds so many places of a kind may take another, where all owners together
/// hold `all`.
#[inline(always)]
pub const fn has_room(kind: usize, owner: u32, held: u64, all: u64) -> bool {
    let is_within = owner != STRANGERS || held < STRANGERS_ROOM[kind];
    is_within && held < ROOM[kind].saturating_sub(all)
}
