//! Whose a process is, and the places of the maps that its owner may take.

use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use gpuwho_common::nccl::{
    EVERYBODY, Freed, MAX_OWNERS, MAX_TENANTS, Places, STRANGERS, Tenant, has_room,
};
use gpuwho_ebpf::add;

/// The processes that user space knows, by their number; at [`STRANGERS`] all others. Written by
/// user space.
#[map]
static TENANTS: HashMap<u32, Tenant> = HashMap::with_max_entries(MAX_TENANTS + 1, 0);
/// What each owner's processes have taken, and at [`EVERYBODY`] all together.
#[map]
static TAKEN: HashMap<u32, Places> = HashMap::with_max_entries(MAX_OWNERS + 2, 0);
/// What of it is free again. Written by user space.
#[map]
static FREED: HashMap<u32, Freed> = HashMap::with_max_entries(MAX_OWNERS + 2, 0);
/// A process as user space knows it.
#[inline(always)]
pub(super) fn tenant(pid: u32) -> Option<Tenant> {
    // SAFETY: entries are not freed while the program runs (RCU).
    unsafe { TENANTS.get(&pid).or_else(|| TENANTS.get(&STRANGERS)) }.copied()
}

/// Takes a place of a kind for a process; 0 where its owner may have no more. Apart from the callers,
/// so that each of the programs has it once a kind. A place that is then not used is free again at
/// user space's next reading.
#[inline(never)]
pub(crate) fn take<const KIND: usize>(pid: u32) -> u64 {
    let Some(Tenant { owner, .. }) = tenant(pid) else { return 0 };
    let (Some(mine), Some(all)) = (TAKEN.get_ptr_mut(&owner), TAKEN.get_ptr_mut(&EVERYBODY)) else {
        return 0;
    };
    let (Some(freed), Some(all_freed)) = (FREED.get_ptr(&owner), FREED.get_ptr(&EVERYBODY)) else {
        return 0;
    };
    // SAFETY: the entries are not freed while the program runs (RCU), and the kind is below the
    // arrays' length.
    unsafe {
        let held = (*mine).taken[KIND].wrapping_sub((*freed).places[KIND]);
        let all_held = (*all).taken[KIND].wrapping_sub((*all_freed).places[KIND]);
        if !has_room(KIND, owner, held, all_held) {
            add(&raw mut (*mine).refused[KIND], 1);
            return 0;
        }
        add(&raw mut (*mine).taken[KIND], 1);
        add(&raw mut (*all).taken[KIND], 1);
    }
    1
}
