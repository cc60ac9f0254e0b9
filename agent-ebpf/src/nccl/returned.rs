//! The return of every probed function.

use super::birth::unique_id_hash;
use super::name::came;
use super::{
    CALLS, COMMUNICATORS, Entry, HANDLES, NOBODY, THREADS, UNIQUE_IDS, add_alone, count,
    handle_changed, make, take,
};
use aya_ebpf::bindings::BPF_NOEXIST;
use gpuwho_common::nccl::{
    Ask, BIRTH, CALL, CallKey, Communicator, DEATH, GROUP_END, GROUPED_CALL, HIT_RETURN, HandleKey,
    Identity, LOST_UNREADABLE, MADE_LOCALLY, MAX_INIT_ALL, MadeId, Open, PLACE_ID, QUESTION,
    RESULT_IN_PROGRESS, RESULT_OK, SHRUNK, Thread, bucket,
};
use gpuwho_ebpf::registers::{Registers, read_user};

/// A probed function returns.
#[inline(always)]
pub(crate) fn returned(registers: Registers) {
    count(HIT_RETURN);
    let entry = Entry::again(registers);
    let Some(thread) = THREADS.get_ptr_mut(&entry.task) else { return };
    // SAFETY: only this thread writes its entry.
    let open = unsafe {
        add_alone(&raw mut (*thread).returns, 1);
        (*thread).open
    };
    // The return of a function inside the open one has a lower stack.
    if open.since_ns == 0 {
        return;
    }
    if registers.stack_at_entry() < open.stack {
        return answered_inside(thread, &open);
    }
    // SAFETY: only this thread writes its entry.
    unsafe { (*thread).open.since_ns = 0 };
    // Not this one's, since this one's is not seen; but it is over.
    if open.unseen != 0 {
        return;
    }
    let result = registers.result();
    let is_good = result == RESULT_OK || result == RESULT_IN_PROGRESS;
    match open.what {
        CALL | GROUP_END => timed(&open, entry.now),
        BIRTH if is_good => return born(&open, thread, &entry),
        QUESTION if result == RESULT_OK => return answered(&open, &entry),
        BIRTH | DEATH | GROUPED_CALL => {}
        _ => return,
    }
    if !is_good {
        failed(open.communicator, result, open.what == BIRTH && open.detail != SHRUNK);
    }
}

#[inline(always)]
fn timed(open: &Open, now: u64) {
    let key =
        CallKey { communicator: open.communicator, operation: open.operation, class: open.class };
    let Some(calls) = CALLS.get_ptr_mut(&key) else { return };
    let took = now.saturating_sub(open.since_ns);
    // SAFETY: the entry is not freed while the program runs (RCU); the bucket is below the
    // array's length.
    unsafe {
        add_alone(&raw mut (*calls).enqueue_ns, took);
        let buckets = (&raw mut (*calls).enqueue).cast::<u64>();
        add_alone(buckets.add(bucket(took)), 1);
    }
}

/// A call has failed; `is_child` if it was to make a communicator from this one.
#[inline(always)]
pub(crate) fn failed(communicator: u64, result: u32, is_child: bool) {
    let Some(communicator) = COMMUNICATORS.get_ptr_mut(&communicator) else { return };
    // SAFETY: the entry is not freed while the program runs (RCU).
    unsafe {
        add_alone(&raw mut (*communicator).activity.errors, 1);
        (*communicator).activity.last_error = result;
        if is_child {
            let activity = &raw mut (*communicator).activity;
            (*activity).failed_children = (*activity).failed_children.wrapping_add(1);
        }
    }
}

/// The new handle is where the caller wanted it.
#[inline(always)]
fn born(open: &Open, thread: *mut Thread, entry: &Entry) {
    // SAFETY: only this thread writes its entry.
    let expected = unsafe { (*thread).expected };
    let identity = Identity {
        hash: expected.hash,
        base: expected.base,
        parent: expected.parent,
        pid: entry.pid(),
        rank: expected.rank,
        ranks: expected.ranks,
        origin: open.detail,
        color: expected.color,
        key: expected.key,
        child: open.bytes as u32,
        library: expected.library,
        ..NOBODY
    };
    if open.detail == MADE_LOCALLY {
        return born_together(open, &Identity { parent: 0, ..identity }, entry);
    }
    let Some(handle) = read_user::<u64>(open.answer) else { return count(LOST_UNREADABLE) };
    // A split without color makes none.
    if handle != 0
        && let Some(made) = make(Identity { handle, ..identity }, entry)
    {
        came(made.communicator, entry.task);
    }
}

/// All ranks of a process, one a device. The moment of the call's return, which all of them have,
/// tells them from those of another call.
#[inline(always)]
fn born_together(open: &Open, identity: &Identity, entry: &Entry) {
    for rank in 0..MAX_INIT_ALL {
        if rank >= identity.ranks {
            break;
        }
        let Some(handle) = read_user::<u64>(open.answer + 8 * u64::from(rank)) else {
            return count(LOST_UNREADABLE);
        };
        if handle != 0 {
            make(Identity { handle, rank, ..*identity }, entry);
        }
    }
}

/// The unique id from which `ncclCommInitAll` makes its communicators has been written.
#[inline(always)]
fn answered_inside(thread: *mut Thread, open: &Open) {
    // SAFETY: only this thread writes its entry.
    let expected = unsafe { &raw mut (*thread).expected };
    if open.what == BIRTH && open.detail == MADE_LOCALLY {
        // SAFETY: as above.
        let asked_at = unsafe { (*expected).parent };
        if asked_at == 0 {
            return;
        }
        let hash = unique_id_hash(asked_at);
        // SAFETY: as above.
        unsafe {
            (*expected).hash = hash;
            (*expected).base = read_user::<u64>(asked_at).unwrap_or(0);
            (*expected).parent = 0;
        }
    }
}

#[inline(always)]
fn answered(open: &Open, entry: &Entry) {
    if open.detail == Ask::UniqueId as u32 {
        let hash = unique_id_hash(open.answer);
        if hash != 0 && take::<PLACE_ID>(entry.pid()) != 0 {
            let made = MadeId { at_ns: entry.now, pid: entry.pid(), reserved: 0 };
            // There already: made twice.
            let _ = UNIQUE_IDS.insert(&hash, &made, u64::from(BPF_NOEXIST));
        }
        return;
    }
    let Some(value) = read_user::<u32>(open.answer) else { return count(LOST_UNREADABLE) };
    if let Some(communicator) = COMMUNICATORS.get_ptr_mut(&open.communicator) {
        learned(communicator, open.detail, value);
    }
}

#[inline(always)]
fn learned(communicator: *mut Communicator, ask: u32, value: u32) {
    // SAFETY: the entry is not freed while the program runs (RCU); each field is one word.
    unsafe {
        let identity = &raw mut (*communicator).identity;
        if ask == Ask::AsyncError as u32 {
            if value != RESULT_IN_PROGRESS {
                (*communicator).activity.async_error = value;
            }
        } else if ask == Ask::Rank as u32 {
            (*identity).rank = value;
        } else if ask == Ask::Device as u32 {
            (*identity).device = value;
        } else {
            (*identity).ranks = value;
            let key = HandleKey { handle: (*identity).handle, pid: (*identity).pid, reserved: 0 };
            if let Some(handle) = HANDLES.get_ptr_mut(&key) {
                (*handle).ranks = value;
                handle_changed();
            }
        }
    }
}
