//! Entries of what makes and ends communicators, and of questions about them.

use super::name::coming;
use super::returned::failed;
use super::{
    COMMUNICATORS, Entry, HANDLES, THREADS, communicator_of, count, enter, handle_changed,
};
use gpuwho_common::nccl::{
    Ask, BIRTH, Birth, DEATH, Expected, GROWN, HandleKey, Hash, IdAt, LOST_UNREADABLE,
    MADE_LOCALLY, MAX_EXCLUDED, NOWHERE, Open, QUESTION, RESULT_IN_PROGRESS, RESULT_OK, SEEN,
    SHRUNK, Thread, UNIQUE_ID_WORDS, UNKNOWN, operation,
};
use gpuwho_ebpf::registers::{Registers, read_user};

/// A communicator is being made.
#[inline(always)]
pub(crate) fn birth_began(registers: Registers, birth: &Birth) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    let Some(thread) = enter(&entry) else { return false };
    let argument = |position: usize| {
        let is_behind = matches!(birth.id, IdAt::Value(at) if position > at);
        if position == NOWHERE {
            None
        } else if is_behind {
            registers.argument_after_value(position)
        } else {
            registers.argument(position)
        }
    };
    // First: behind the loops below, the verifier of 5.10 would follow each of its paths again.
    coming(argument(birth.config).unwrap_or(0), argument(birth.parent).unwrap_or(0), entry.task);
    let number = |position: usize| argument(position).map_or(UNKNOWN, |value| value as u32);
    let mut expected = Expected {
        hash: 0,
        base: 0,
        parent: 0,
        rank: number(birth.rank),
        ranks: number(birth.ranks),
        color: number(birth.color),
        key: number(birth.key),
        library: entry.library,
        reserved: 0,
    };
    let id = match birth.id {
        IdAt::None => None,
        IdAt::Value(position) => registers.value(position),
        IdAt::Pointer(position) | IdAt::Base(position) => registers.argument(position),
    };
    if let Some(id) = id.filter(|id| *id != 0 || !matches!(birth.id, IdAt::Base(_))) {
        if !matches!(birth.id, IdAt::Base(_)) {
            expected.hash = unique_id_hash(id);
        }
        expected.base = read_user::<u64>(id).unwrap_or(0);
    }
    let mut child = UNKNOWN;
    if birth.parent != NOWHERE {
        let handle = argument(birth.parent).unwrap_or(0);
        let list = argument(birth.color).unwrap_or(0);
        child = from_parent(&mut expected, birth.origin, (handle, list), (thread, &entry));
    }
    // SAFETY: only this thread writes its entry.
    unsafe {
        (*thread).expected = expected;
        (*thread).open = Open {
            since_ns: entry.now,
            stack: entry.stack,
            communicator: expected.parent,
            bytes: u64::from(child),
            answer: argument(birth.answer).unwrap_or(0),
            what: BIRTH,
            operation: operation::INIT,
            class: 0,
            detail: birth.origin,
            era: entry.era(),
            unseen: 0,
        };
    }
    true
}

/// What the parent tells of its child; gives which child it is.
#[inline(always)]
fn from_parent(
    expected: &mut Expected,
    how: u32,
    (handle, list): (u64, u64),
    (thread, entry): (*mut Thread, &Entry),
) -> u32 {
    // New ranks of a growing communicator have none.
    if handle == 0 {
        return UNKNOWN;
    }
    let Some(known) = communicator_of(handle, entry) else { return UNKNOWN };
    expected.parent = known.communicator;
    let Some(parent) = COMMUNICATORS.get_ptr_mut(&known.communicator) else { return UNKNOWN };
    // SAFETY: the entry is not freed while the program runs (RCU); a communicator is split by one
    // thread at a time, as NCCL demands.
    let (child, rank, is_counted) = unsafe {
        let activity = &raw mut (*parent).activity;
        if how != SHRUNK {
            (*activity).children = (*activity).children.wrapping_add(1);
        }
        // Who was there before the probe may have had others.
        let is_counted = (*parent).identity.origin != SEEN && (*activity).failed_children == 0;
        ((*activity).children, (*parent).identity.rank, is_counted)
    };
    if how == SHRUNK {
        // SAFETY: only this thread writes its entry, the whole record after this.
        let scratch = unsafe { &raw mut (*thread).expected.key };
        shrunk(expected, (known.ranks, rank), list, scratch);
        return 0;
    }
    // Who grows keeps its rank, and says -1 where those that are added say theirs.
    if how == GROWN {
        expected.rank = rank;
    }
    if is_counted { child } else { UNKNOWN }
}

/// Rank and size without the excluded ranks. Those before this one are counted in a map's value,
/// of which the verifier knows nothing: that of 5.10 would follow each number of them apart.
#[inline(always)]
fn shrunk(expected: &mut Expected, (ranks, rank): (u32, u32), list: u64, before: *mut u32) {
    let excluded = expected.key;
    expected.color = 0;
    expected.key = 0;
    if ranks == UNKNOWN || excluded > ranks {
        return;
    }
    expected.ranks = ranks - excluded;
    if rank == UNKNOWN || excluded > MAX_EXCLUDED {
        return;
    }
    // SAFETY: a word in a map's value that the verifier has seen not to be null, and the caller
    // alone uses; volatile, so that it is counted there.
    unsafe { core::ptr::write_volatile(before, 0) };
    for index in 0..MAX_EXCLUDED {
        if index >= excluded {
            break;
        }
        let Some(other) = read_user::<u32>(list + 4 * u64::from(index)) else {
            return count(LOST_UNREADABLE);
        };
        if other < rank {
            // SAFETY: as above.
            unsafe {
                core::ptr::write_volatile(before, core::ptr::read_volatile(before).wrapping_add(1))
            };
        }
    }
    // SAFETY: as above.
    expected.rank = rank.wrapping_sub(unsafe { core::ptr::read_volatile(before) });
}

/// The hash of the unique id at an address; 0 if it cannot be read.
#[inline(always)]
pub(crate) fn unique_id_hash(address: u64) -> u64 {
    let mut hash = Hash::START.item(8 * UNIQUE_ID_WORDS as u64);
    for index in 0..UNIQUE_ID_WORDS as u64 {
        let Some(word) = read_user::<u64>(address + 8 * index) else {
            count(LOST_UNREADABLE);
            return 0;
        };
        hash = hash.word(word);
    }
    hash.digest()
}

/// A communicator is being ended: from here on its handle stands for nothing.
#[inline(always)]
pub(crate) fn death_began(registers: Registers, end: u32, frees: bool) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    let Some(thread) = enter(&entry) else { return false };
    let handle = registers.argument(0).unwrap_or(0);
    let key = HandleKey { handle, pid: entry.pid(), reserved: 0 };
    // SAFETY: entries are not freed while the program runs (RCU).
    let Some(known) = (unsafe { HANDLES.get(&key) }).copied() else { return false };
    if let Some(communicator) = COMMUNICATORS.get_ptr_mut(&known.communicator) {
        // SAFETY: as above; each field is one machine word.
        unsafe {
            (*communicator).activity.end = end;
            if frees {
                (*communicator).activity.ended_ns = entry.now;
            }
        }
    }
    if frees {
        let _ = HANDLES.remove(&key);
        handle_changed();
    }
    // SAFETY: only this thread writes its entry.
    unsafe {
        (*thread).open = Open {
            since_ns: entry.now,
            stack: entry.stack,
            communicator: known.communicator,
            bytes: 0,
            answer: 0,
            what: DEATH,
            operation: operation::END,
            class: 0,
            detail: end,
            era: entry.era(),
            unseen: 0,
        };
    }
    true
}

/// Whether it is `ncclCommInitAll` that asks for a unique id. Where it will be is kept in the
/// place of the parent, which what is made so does not have.
#[inline(always)]
fn asked_inside(registers: Registers, entry: &Entry) -> bool {
    let Some(thread) = THREADS.get_ptr_mut(&entry.task) else { return false };
    // SAFETY: only this thread writes its entry.
    unsafe {
        let open = &raw const (*thread).open;
        let is_inside = (*open).what == BIRTH
            && (*open).detail == MADE_LOCALLY
            && (*open).since_ns != 0
            && entry.stack < (*open).stack;
        if is_inside {
            (*thread).expected.parent = registers.argument(0).unwrap_or(0);
        }
        is_inside
    }
}

/// Something is asked; the answer is read at the return.
#[inline(always)]
pub(crate) fn asked(registers: Registers, ask: Ask) -> bool {
    let Some(entry) = Entry::begin(registers) else { return false };
    if matches!(ask, Ask::UniqueId) && asked_inside(registers, &entry) {
        return true;
    }
    if matches!(ask, Ask::Words) {
        failed_unseen(registers, &entry);
        return false;
    }
    let Some(thread) = enter(&entry) else { return false };
    let (communicator, answer) = if matches!(ask, Ask::UniqueId) {
        (0, registers.argument(0))
    } else {
        let handle = registers.argument(0).unwrap_or(0);
        let Some(known) = communicator_of(handle, &entry) else { return false };
        (known.communicator, registers.argument(1))
    };
    // SAFETY: only this thread writes its entry.
    unsafe {
        (*thread).open = Open {
            since_ns: entry.now,
            stack: entry.stack,
            communicator,
            bytes: 0,
            answer: answer.unwrap_or(0),
            what: QUESTION,
            operation: operation::INIT,
            class: 0,
            detail: ask as u32,
            era: entry.era(),
            unseen: 0,
        };
    }
    true
}

/// The program wants to know what a result means: that of its last call, if that failed and its
/// return was not seen.
#[inline(always)]
fn failed_unseen(registers: Registers, entry: &Entry) {
    let result = registers.argument(0).unwrap_or(0) as u32;
    let Some(thread) = THREADS.get_ptr_mut(&entry.task) else { return };
    if result == RESULT_OK || result == RESULT_IN_PROGRESS {
        return;
    }
    // SAFETY: only this thread writes its entry.
    unsafe {
        let open = &raw mut (*thread).open;
        if (*open).since_ns != 0 && (*open).unseen != 0 {
            (*open).since_ns = 0;
            failed((*open).communicator, result, false);
        }
    }
}
