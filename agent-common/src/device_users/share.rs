//! What each owner may take of what all owners share: records a second, and places among the
//! processes followed.
//!
//! The kernel does not know owners. It counts at three levels: a user in a cgroup, all of a cgroup,
//! all of a user. Who has one user id in many cgroups is stopped by the last, who has many user ids
//! in one cgroup by the second; and what the first level stops is not counted at the others, so that
//! one pod's flood leaves most of what a user id may have to the pods that have the same one. The
//! counters are arrays whose slots are chosen by a secret hash: two owners share a slot by chance
//! only, and nobody can make a counter be forgotten. User 0 is no owner: every container's root has that
//! number, so it is counted by cgroup alone.
#![expect(clippy::inline_always, reason = "a BPF function cannot give more than one word")]

/// Levels at which is counted.
pub const LEVELS: usize = 3;
/// The level of a user in a cgroup.
pub const OF_OWNER: usize = 0;
/// The level of a cgroup.
pub const GROUP: usize = 1;
/// The level of a user.
pub const USER: usize = 2;

/// Slots of each level.
pub const SHARES: u16 = 4_096;

/// What is counted: records of forks, programs, moves and ends, a second.
pub const FOLLOWING: usize = 0;
/// What is counted: records of openings, a second.
pub const OPENINGS: usize = 1;
/// What is counted: processes followed.
pub const HOLDERS: usize = 2;
/// Kinds that are counted anew each second.
pub const RATES: usize = 2;
/// Kinds.
pub const KINDS: usize = 3;

/// Owners and kinds of which an example of what was left out waits for user space.
pub const MAX_LEFT_OUT: u32 = 512;

abi! {
    /// What an owner may take. Written by user space.
    Allowance {
        /// Chooses the slots; secret.
        seed: u64,
        /// By kind and level.
        most: [[u32; LEVELS]; KINDS],
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// What was counted in a slot. Written by the programs.
    Share {
        /// Processes followed.
        held: u64,
        /// The second that the others are of.
        second: u64,
        /// Records.
        records: [u32; RATES],
    }
}

abi! {
    /// Who was left out of what.
    LeftOutKey {
        /// The slot at [`OF_OWNER`].
        slot: u32,
        /// The kind.
        kind: u32,
    }
}

/// The slots on which a process counts, by level.
#[inline(always)]
pub fn shares(seed: u64, uid: u32, cgroups: &[u64; 4]) -> [u16; LEVELS] {
    let [unified, devices, memory, freezer] = *cgroups;
    let group = mixed(mixed(mixed(mixed(seed, unified), devices), memory), freezer);
    let user = mixed(if uid == 0 { group } else { seed }, u64::from(uid) + 1);
    [within(mixed(group, user)), within(group), within(user)]
}

/// The position of a slot in the array of all.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "there are three levels")]
pub const fn slot(level: usize, share: u16) -> u32 {
    level as u32 * SHARES as u32 + share as u32
}

/// One step of a hash (splitmix64's).
#[inline(always)]
fn mixed(hash: u64, with: u64) -> u64 {
    let mut next = (hash ^ with).wrapping_add(0x9e37_79b9_7f4a_7c15);
    next = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    next = (next ^ (next >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    next ^ (next >> 31)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below a number of 16 bits")]
fn within(hash: u64) -> u16 {
    (hash % u64::from(SHARES)) as u16
}
