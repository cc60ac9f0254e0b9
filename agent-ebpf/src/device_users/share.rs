//! The processes that are followed, what each owner may take of that and of the rings, and what was
//! lost: `agent-common/src/device_users/share.rs` has the rule.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray};
use aya_log_ebpf::warn;
use gpuwho_common::device_users::{
    Allowance, HOLDERS as PLACES, Head, Holder, LEVELS, LOSSES, LOST_ALLOWED,
    LOST_ALLOWED_OPENINGS, LOST_MAP, LOST_PLACES, LOST_UNREADABLE, LeftOutKey, MAX_HOLDERS,
    MAX_LEFT_OUT, OF_OWNER, OPENINGS as OPENS, Process, ProcessEvent, SHARES, Share, TICK_NS,
    shares, slot,
};
use gpuwho_ebpf::add;

/// Processes followed. User space sets its size.
#[map]
pub(crate) static HOLDERS: HashMap<u32, Holder> = HashMap::with_max_entries(MAX_HOLDERS, 0);
/// One entry: what an owner may take.
#[map]
static ALLOWANCE: Array<Allowance> = Array::with_max_entries(1, 0);
/// What was counted, by slot.
#[map]
static COUNTED: Array<Share> = Array::with_max_entries(SLOTS, 0);
/// Processes that user space follows less those that it no longer does, by slot; wraps. Whoever adds
/// to a number in a map has it alone, so user space has its own.
#[map]
static BALANCE: Array<u64> = Array::with_max_entries(SLOTS, 0);
/// The first record that an owner was refused since user space looked.
#[map]
static LEFT_OUT: HashMap<LeftOutKey, ProcessEvent> = HashMap::with_max_entries(MAX_LEFT_OUT, 0);
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSSES, 0);

const SLOTS: u32 = slot(LEVELS, 0);
/// About a second, as a shift of nanoseconds.
const SECOND_SHIFT: u32 = 30;

/// Follows a process from here on, where its owner has a place left; true if it is followed.
#[inline(always)]
pub(crate) fn follow(event: &ProcessEvent, slots: [u16; LEVELS], is_reported: bool) -> bool {
    let (pid, start_ticks) = (event.process.pid, event.process.start_ns / TICK_NS);
    // SAFETY: entries are not freed while the program runs (RCU).
    let before = unsafe { HOLDERS.get(&pid) }.map(|found| found.start_ticks);
    match before {
        Some(before) if before == start_ticks => return true,
        Some(_) => drop(forget(pid)),
        None => {}
    }
    if !has_place(slots) {
        lost(LOST_PLACES);
        leave_out::<PLACES>(slots, event);
        return false;
    }
    let entry = Holder { start_ticks, slots, reported: u16::from(is_reported) };
    if HOLDERS.insert(&pid, &entry, u64::from(BPF_NOEXIST)).is_err() {
        lost(LOST_MAP);
        return false;
    }
    hold(slots, 1);
    true
}

/// Follows a process no longer; true for the one caller that removes it.
#[inline(always)]
pub(crate) fn forget(pid: u32) -> bool {
    // SAFETY: entries are not freed while the program runs (RCU).
    let Some(slots) = unsafe { HOLDERS.get(&pid) }.map(|found| found.slots) else { return false };
    if HOLDERS.remove(&pid).is_err() {
        return false;
    }
    hold(slots, u64::MAX);
    true
}

/// Adds to the processes followed of these slots; of [`SHARES`], to none.
#[inline(always)]
fn hold(slots: [u16; LEVELS], by: u64) {
    for level in 0..LEVELS {
        if slots[level] < SHARES
            && let Some(share) = COUNTED.get_ptr_mut(slot(level, slots[level]))
        {
            // SAFETY: the pointer is into the map's value, checked by the verifier.
            add(unsafe { &raw mut (*share).held }, by);
        }
    }
}

#[inline(always)]
pub(crate) fn mark_reported(pid: u32, reported: u16) {
    if let Some(found) = HOLDERS.get_ptr_mut(&pid) {
        // SAFETY: entries are not freed while the program runs (RCU); the field is one word.
        unsafe { (*found).reported = reported };
    }
}

#[inline(always)]
pub(crate) fn slots_of(process: &Process) -> [u16; LEVELS] {
    let seed = ALLOWANCE.get(0).map_or(0, |allowance| allowance.seed);
    shares(seed, process.uid, &process.cgroups)
}

/// Whether each level has fewer processes followed than it may.
#[inline(always)]
fn has_place(slots: [u16; LEVELS]) -> bool {
    let Some(allowance) = ALLOWANCE.get(0) else { return false };
    for level in 0..LEVELS {
        let at = slot(level, slots[level]);
        let (Some(share), Some(balance)) = (COUNTED.get(at), BALANCE.get(at)) else { return false };
        // Below zero for a moment, where a number was taken before the other was given.
        let held = share.held.wrapping_add(*balance) as i64;
        if held >= i64::from(allowance.most[PLACES][level]) {
            return false;
        }
    }
    true
}

/// Counts a record; false, and counted as left out, where a level has had as many in this second as it
/// may. Two processors may count one record less.
#[inline(always)]
pub(crate) fn admit<const KIND: usize>(slots: [u16; LEVELS], event: &ProcessEvent) -> bool {
    let is_admitted = take::<KIND>(slots, event.head.at_ns >> SECOND_SHIFT);
    if !is_admitted {
        refuse::<KIND>(slots, event);
    }
    is_admitted
}

#[inline(always)]
fn take<const KIND: usize>(slots: [u16; LEVELS], second: u64) -> bool {
    let Some(allowance) = ALLOWANCE.get(0) else { return false };
    for level in 0..LEVELS {
        let Some(share) = COUNTED.get_ptr_mut(slot(level, slots[level])) else { return false };
        // SAFETY: the pointer is into the map's value, checked by the verifier; a record that another
        // processor counts meanwhile may be lost.
        unsafe {
            if (*share).second != second {
                (*share).second = second;
                (*share).records = [0; 2];
            }
            if (*share).records[KIND] >= allowance.most[KIND][level] {
                return false;
            }
        }
    }
    for level in 0..LEVELS {
        if let Some(share) = COUNTED.get_ptr_mut(slot(level, slots[level])) {
            // SAFETY: as above.
            unsafe { (*share).records[KIND] += 1 };
        }
    }
    true
}

/// Counts a record that is not told.
#[inline(always)]
pub(crate) fn refuse<const KIND: usize>(slots: [u16; LEVELS], event: &ProcessEvent) {
    lost(if KIND == OPENS { LOST_ALLOWED_OPENINGS } else { LOST_ALLOWED });
    leave_out::<KIND>(slots, event);
}

/// Counts by owner, with the first one as an example of whose they are.
#[inline(always)]
fn leave_out<const KIND: usize>(slots: [u16; LEVELS], event: &ProcessEvent) {
    let key = LeftOutKey { slot: slots[OF_OWNER].into(), kind: KIND as u32 };
    if LEFT_OUT.get_ptr(&key).is_none() {
        // Full, or another processor was faster: then the one below counts.
        let _ = LEFT_OUT.insert(&key, event, u64::from(BPF_NOEXIST));
    }
    if let Some(first) = LEFT_OUT.get_ptr_mut(&key) {
        // SAFETY: entries are not freed while the program runs (RCU); the field is one word.
        unsafe { (*first).left_out += 1 };
    }
}

#[inline(always)]
pub(crate) fn lost(reason: u32) {
    if let Some(count) = LOST.get_ptr_mut(reason) {
        // SAFETY: the slot is this CPU's own and the verifier has seen that it is not null.
        unsafe { *count += 1 };
    }
}

/// The offsets are wrong for this kernel, or the task was half gone: counted, and said once a CPU.
#[inline(always)]
pub(crate) fn unreadable<C: EbpfContext>(ctx: &C) {
    if let Some(count) = LOST.get_ptr_mut(LOST_UNREADABLE) {
        // SAFETY: the slot is this CPU's own and the verifier has seen that it is not null.
        let first = unsafe {
            *count += 1;
            *count == 1
        };
        if first {
            warn!(ctx, "a process that opened a device could not be read through its offsets");
        }
    }
}

#[inline(always)]
pub(crate) fn head(kind: u32) -> Head {
    // SAFETY: the helper has no arguments and no preconditions.
    Head { at_ns: unsafe { bpf_ktime_get_boot_ns() }, kind, reserved: 0 }
}
