//! Entries of operations and of groups.

use super::{
    COMMUNICATORS, Entry, add_alone, calls_of, communicator_of_last, count, enter, is_fast,
};
use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use gpuwho_common::nccl::{
    ARRIVALS, Arrival, CALL, CONTROL_TIMED, Call, CallKey, Communicator, GROUP_END, GROUPED_CALL,
    LOST_CALL, NOWHERE, Open, TIMED_ONE_IN, Thread, UNKNOWN, UNSIZED, bucket, message_bytes,
    operation, signature, size_class,
};
use gpuwho_ebpf::registers::Registers;

/// The same start of a group seen twice: two names of one file fire within one trap.
const SAME_START_NS: u64 = 1_000;

/// The arguments of an operation.
struct Asked {
    handle: u64,
    count: u64,
    operation: u32,
    datatype: u32,
    is_part: bool,
    has_size: bool,
    wraps: bool,
    returns: Returns,
}

/// Which returns of operations are to be seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    /// None.
    None,
    /// Of a thread that calls fast, some.
    Some,
    /// All: leaving one out would save nothing.
    All,
}

impl Returns {
    /// By what user space wants, and whether a return can be left out.
    #[inline(always)]
    fn wanted(control: u32, can_skip: bool) -> Self {
        if control & CONTROL_TIMED == 0 {
            Self::None
        } else if can_skip {
            Self::Some
        } else {
            Self::All
        }
    }

    /// Whether that of the thread's present call is.
    #[inline(always)]
    fn has(self, thread: *mut Thread, entry: &Entry) -> bool {
        match self {
            Self::None => false,
            // SAFETY: the helper has no arguments and no preconditions.
            Self::Some => {
                !is_fast(thread, entry) || unsafe { bpf_get_prandom_u32() } % TIMED_ONE_IN == 0
            }
            Self::All => true,
        }
    }
}

/// An operation begins; gives whether its return is to be seen.
#[inline(always)]
pub(crate) fn called(registers: Registers, call: &Call, wraps: bool, can_skip: bool) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    let returns = Returns::wanted(entry.control, can_skip);
    // Without returns the call inside it could not be told from another one.
    if wraps && returns == Returns::None {
        return false;
    }
    let has_size = call.count != NOWHERE;
    let (elements, datatype) = if has_size {
        (registers.argument(call.count), registers.argument(call.datatype))
    } else {
        (Some(0), Some(0))
    };
    let asked = Asked {
        handle: registers.argument(call.communicator).unwrap_or(0),
        count: elements.unwrap_or(u64::MAX),
        operation: call.operation,
        datatype: datatype.unwrap_or(u64::MAX) as u32,
        is_part: call.is_part,
        has_size,
        wraps,
        returns,
    };
    record(&asked, &entry) != 0
}

/// Apart from the entry, so that each of the programs has it once. Not 0: the return is wanted.
#[inline(never)]
fn record(asked: &Asked, entry: &Entry) -> u64 {
    let Some(thread) = enter(entry) else { return 0 };
    let Some(handle) = communicator_of_last(asked.handle, thread, entry) else { return 0 };
    let bytes = sized(asked, handle.ranks);
    let open = Open {
        since_ns: entry.now,
        stack: entry.stack,
        communicator: handle.communicator,
        bytes: bytes.unwrap_or(0),
        answer: 0,
        what: CALL,
        operation: asked.operation,
        class: bytes.map_or(UNSIZED, size_class),
        detail: 0,
        era: entry.era(),
        unseen: 0,
    };
    if let Some(communicator) = COMMUNICATORS.get_ptr_mut(&open.communicator) {
        note(communicator, &open);
    }
    counted(&open, entry.pid());
    u64::from(begun(thread, &open, asked, entry))
}

#[inline(always)]
fn sized(asked: &Asked, ranks: u32) -> Option<u64> {
    if !asked.has_size {
        return None;
    }
    if !asked.is_part {
        return message_bytes(asked.count, asked.datatype, 1);
    }
    if ranks == UNKNOWN { None } else { message_bytes(asked.count, asked.datatype, ranks) }
}

/// A communicator is used by one thread at a time, as NCCL demands; where a program breaks that
/// rule a sequence number may be given twice.
#[inline(always)]
fn note(communicator: *mut Communicator, open: &Open) {
    // SAFETY: the entry is not freed while the program runs (RCU), each field is one machine word,
    // and the index is below the array's length.
    unsafe {
        let activity = &raw mut (*communicator).activity;
        add_alone(&raw mut (*activity).calls, 1);
        (*activity).last_ns = open.since_ns;
        (*activity).last_bytes = open.bytes;
        (*activity).last_operation = open.operation;
        if open.operation >= operation::SEND {
            return;
        }
        let sequence = (*activity).sequence.wrapping_add(1);
        (*activity).sequence = sequence;
        let what = (sequence << 32) | u64::from(signature(open.operation, open.bytes));
        let at = (&raw mut (*communicator).arrivals).cast::<Arrival>();
        let at = at.add((sequence & (ARRIVALS as u64 - 1)) as usize);
        // The moment first: a reader takes an entry by its number.
        core::ptr::write_volatile(&raw mut (*at).at_ns, open.since_ns);
        core::ptr::write_volatile(&raw mut (*at).what, what);
    }
}

#[inline(always)]
fn counted(open: &Open, pid: u32) {
    let key =
        CallKey { communicator: open.communicator, operation: open.operation, class: open.class };
    let Some(calls) = calls_of(&key, pid) else { return count(LOST_CALL) };
    // SAFETY: the entry is not freed while the program runs (RCU); the bucket is below the
    // array's length.
    unsafe {
        add_alone(&raw mut (*calls).count, 1);
        add_alone(&raw mut (*calls).bytes, open.bytes);
        let last_ns = (*calls).last_ns;
        (*calls).last_ns = open.since_ns;
        if last_ns != 0 {
            let interval = open.since_ns.saturating_sub(last_ns);
            add_alone(&raw mut (*calls).interval_ns, interval);
            let buckets = (&raw mut (*calls).interval).cast::<u64>();
            add_alone(buckets.add(bucket(interval)), 1);
        }
    }
}

/// In a group, the call returns at once, and the group's end launches it and tells its errors: it
/// is of interest only where it has calls of its own inside.
#[inline(always)]
fn begun(thread: *mut Thread, open: &Open, asked: &Asked, entry: &Entry) -> bool {
    // SAFETY: only this thread writes its entry.
    unsafe {
        let group = &raw mut (*thread).group;
        // The end of a group that began before a change may not have been seen.
        let is_grouped = (*group).depth > 0 && (*group).era == open.era;
        if is_grouped {
            (*group).communicator = open.communicator;
            (*group).bytes = open.bytes;
            (*group).operation = open.operation;
            (*group).class = open.class;
            (*group).calls = (*group).calls.wrapping_add(1);
            if !asked.wraps {
                (*thread).open.since_ns = 0;
                return false;
            }
        }
        let is_seen = asked.wraps || asked.returns.has(thread, entry);
        let what = if is_grouped { GROUPED_CALL } else { CALL };
        (*thread).open = Open { what, unseen: u32::from(!is_seen), ..*open };
        is_seen
    }
}

/// A group begins; its return says nothing.
#[inline(always)]
pub(crate) fn group_started(registers: Registers) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    let Some(thread) = enter(&entry) else { return false };
    // SAFETY: only this thread writes its entry.
    unsafe {
        let group = &raw mut (*thread).group;
        let is_again = (*group).stack == entry.stack
            && entry.now.saturating_sub((*group).began_ns) < SAME_START_NS;
        if is_again {
            return false;
        }
        (*group).began_ns = entry.now;
        (*group).stack = entry.stack;
        if (*group).era != entry.era() {
            (*group).era = entry.era();
            (*group).depth = 0;
            (*group).calls = 0;
        }
        (*group).depth = (*group).depth.wrapping_add(1);
    }
    false
}

/// A group ends; the outermost end launches it, and its return is to be seen.
#[inline(always)]
pub(crate) fn group_ended(registers: Registers, can_skip: bool) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    let Some(thread) = enter(&entry) else { return false };
    // SAFETY: only this thread writes its entry.
    unsafe {
        let group = (*thread).group;
        if group.depth == 0 || group.era != entry.era() {
            return false;
        }
        (*thread).group.depth = group.depth - 1;
        // The same end seen again must find that this one has happened.
        (*thread).group.began_ns = 0;
        if group.depth != 1 || group.calls == 0 {
            return false;
        }
        (*thread).group.calls = 0;
        let is_seen = Returns::wanted(entry.control, can_skip).has(thread, &entry);
        (*thread).open = Open {
            since_ns: entry.now,
            stack: entry.stack,
            communicator: group.communicator,
            bytes: group.bytes,
            answer: 0,
            what: GROUP_END,
            operation: group.operation,
            class: group.class,
            detail: group.calls,
            era: entry.era(),
            unseen: u32::from(!is_seen),
        };
        is_seen
    }
}
