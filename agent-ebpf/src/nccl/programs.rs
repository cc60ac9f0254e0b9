//! What the programs of the probe `nccl` share: their maps, and how a call is told from the next
//! one and from one inside it.

pub(crate) mod birth;
pub(crate) mod call;
pub(crate) mod name;
mod quota;
pub(crate) mod returned;

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray};
use gpuwho_common::nccl::{
    ARRIVALS, Activity, Arrival, BUCKETS, CHANGES_IN_KERNEL, CHANGES_OUTSIDE, CONTROL_ERA,
    CONTROL_PAUSED, COOKIE_LIBRARY, COOKIE_STEPPED, COUNTERS, CallKey, Calls, Communicator,
    Expected, GROUPED_CALL, Group, Handle, HandleKey, IDLE, Identity, LOST_COMMUNICATOR,
    LOST_THREAD, MAX_CALLS, MAX_COMMUNICATORS, MAX_THREADS, MAX_UNIQUE_IDS, MadeId, Name, Open,
    PLACE_CALL, PLACE_COMMUNICATOR, PLACE_THREAD, Pace, SEEN, STRETCH_NS, TaskLayout, Thread,
    UNKNOWN, Used,
};
use gpuwho_ebpf::{Kernel, add, registers::Registers};
pub(crate) use quota::take;
use quota::tenant;

/// Filled by user space before the programs are loaded; read-only after that.
#[unsafe(no_mangle)]
static TASK_LAYOUT: TaskLayout = TaskLayout::UNKNOWN;
/// A thread whose calls come at less than this from each other, on the mean of a stretch, calls fast;
/// 0: none does. At most a second.
#[unsafe(no_mangle)]
static FAST_NS: u64 = 0;

/// What each handle stands for.
#[map]
pub(crate) static HANDLES: HashMap<HandleKey, Handle> =
    HashMap::with_max_entries(MAX_COMMUNICATORS, 0);
/// Every communicator by its number.
#[map]
pub(crate) static COMMUNICATORS: HashMap<u64, Communicator> =
    HashMap::with_max_entries(MAX_COMMUNICATORS, 0);
/// Operations by size.
#[map]
pub(crate) static CALLS: HashMap<CallKey, Calls> = HashMap::with_max_entries(MAX_CALLS, 0);
/// Threads by `bpf_get_current_pid_tgid`.
#[map]
pub(crate) static THREADS: HashMap<u64, Thread> = HashMap::with_max_entries(MAX_THREADS, 0);
/// Unique ids made here, by their hash.
#[map]
pub(crate) static UNIQUE_IDS: HashMap<u64, MadeId> = HashMap::with_max_entries(MAX_UNIQUE_IDS, 0);
/// What each communicator is called, by its number, where it has a name.
#[map]
pub(crate) static NAMES: HashMap<u64, Name> = HashMap::with_max_entries(MAX_COMMUNICATORS, 0);
/// What those that are being made will be called, by thread: at most one of each that has a place.
/// What is left of one whose return was not seen goes with that thread's next birth or its end.
#[map]
pub(crate) static COMING: HashMap<u64, Name> = HashMap::with_max_entries(MAX_THREADS, 0);
/// Hits and losses.
#[map]
pub(crate) static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);
/// How often a handle has come, gone or learned its size: by programs, and by user space.
#[map]
pub(crate) static CHANGES: Array<u64> = Array::with_max_entries(2, 0);
/// A communicator without anything, larger than a program's stack. Never written.
#[map]
static NO_COMMUNICATOR: Array<Communicator> = Array::with_max_entries(1, 0);
/// No calls. Never written.
#[map]
static NO_CALLS: Array<Calls> = Array::with_max_entries(1, 0);

/// The same call seen twice: two names of one file fire within one trap, one after the other. Longer
/// than the program takes, shorter than a trap and the program.
const SAME_MOMENT_NS: u64 = 500;

/// A call as its entry found it.
pub(crate) struct Entry {
    /// When.
    pub(crate) now: u64,
    /// Thread group and thread.
    pub(crate) task: u64,
    /// Stack pointer.
    pub(crate) stack: u64,
    /// What user space wants at present of the process's calls.
    pub(crate) control: u32,
    /// Number of the library's file; 0 where it is not known.
    pub(crate) library: u32,
    /// 1: at an instruction that the kernel steps through, as far as the cookie says it.
    stepped: u64,
}

impl Entry {
    /// Of the running thread; `None` while its process is paused.
    #[inline(always)]
    pub(crate) fn begin(registers: Registers) -> Option<Self> {
        let entry = Self::again(registers);
        let control = tenant(entry.pid())?.control;
        if control & CONTROL_PAUSED != 0 { None } else { Some(Self { control, ..entry }) }
    }

    /// Of the running thread, at the return of what it has entered: paused or not, that is over.
    #[inline(always)]
    pub(crate) fn again(registers: Registers) -> Self {
        let (task, stack, cookie) =
            (bpf_get_current_pid_tgid(), registers.stack(), registers.cookie());
        let stepped = u64::from(cookie & COOKIE_STEPPED != 0);
        let library = (cookie >> COOKIE_LIBRARY) as u32;
        Self { now: now(), task, stack, control: 0, library, stepped }
    }

    /// How often user space has changed what it wants.
    #[inline(always)]
    pub(crate) fn era(&self) -> u32 {
        self.control / CONTROL_ERA
    }

    /// Thread group.
    #[inline(always)]
    pub(crate) fn pid(&self) -> u32 {
        (self.task >> 32) as u32
    }
}

/// Nanoseconds of `CLOCK_BOOTTIME`; kernel 5.8.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper has no arguments and no preconditions.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Counts. Atomic, because a program can be preempted by another one on the same CPU.
#[inline(always)]
pub(crate) fn count(counter: u32) {
    if let Some(slot) = COUNTS.get_ptr_mut(counter) {
        add(slot, 1);
    }
}

/// Adds to a number that one thread at a time writes, as NCCL demands of the callers of a
/// communicator: a program that breaks that rule may lose a count. Half the price of the other.
#[inline(always)]
pub(crate) fn add_alone(slot: *mut u64, by: u64) {
    // SAFETY: a pointer into a map's value, 8-byte aligned and checked by the verifier; entries
    // are not freed while the program runs (RCU).
    unsafe { *slot = (*slot).wrapping_add(by) };
}

/// The running thread, if this call is one to be counted: not inside another one, and not the
/// same one seen through a second name of the same file. Stacks grow downwards.
#[inline(always)]
pub(crate) fn enter(entry: &Entry) -> Option<*mut Thread> {
    let thread = match THREADS.get_ptr_mut(&entry.task) {
        Some(thread) => thread,
        None => {
            if take::<PLACE_THREAD>(entry.pid()) == 0
                || THREADS.insert(&entry.task, &NO_THREAD, u64::from(BPF_NOEXIST)).is_err()
            {
                count(LOST_THREAD);
                return None;
            }
            THREADS.get_ptr_mut(&entry.task)?
        }
    };
    // SAFETY: the entry is this thread's own and only this thread writes it; the verifier has
    // seen that the pointer is not null.
    let open = unsafe {
        add_alone(&raw mut (*thread).hits, 1);
        add_alone(&raw mut (*thread).stepped, entry.stepped);
        &(*thread).open
    };
    // The return of a call from before a change may not have been seen: it proves nothing.
    if open.since_ns == 0 || open.era != entry.era() {
        return Some(thread);
    }
    let is_same = if open.unseen == 0 {
        entry.stack <= open.stack
    } else {
        entry.stack == open.stack && entry.now.saturating_sub(open.since_ns) < SAME_MOMENT_NS
    };
    if is_same { None } else { Some(thread) }
}

/// Whether a thread calls fast, this call included.
#[inline(always)]
pub(crate) fn is_fast(thread: *mut Thread, entry: &Entry) -> bool {
    // SAFETY: the static is initialised; user space replaced its bytes before loading.
    let fast_ns = unsafe { core::ptr::read_volatile(&raw const FAST_NS) };
    // SAFETY: only this thread writes its entry.
    let pace = unsafe { &mut (*thread).pace };
    let length = entry.now.saturating_sub(pace.since_ns);
    if length >= STRETCH_NS {
        pace.is_fast = u32::from(u64::from(pace.calls).wrapping_mul(fast_ns) > length);
        pace.calls = 0;
        pace.since_ns = entry.now;
    }
    pace.calls = pace.calls.wrapping_add(1);
    pace.is_fast != 0
}

/// The communicator of a handle. One that was made before the probe was there begins here.
#[inline(always)]
pub(crate) fn communicator_of(handle: u64, entry: &Entry) -> Option<Handle> {
    let key = HandleKey { handle, pid: entry.pid(), reserved: 0 };
    // SAFETY: entries are not freed while the program runs (RCU).
    if let Some(found) = unsafe { HANDLES.get(&key) } {
        return Some(*found);
    }
    let (pid, library) = (entry.pid(), entry.library);
    let identity = Identity { handle, pid, origin: SEEN, library, ..NOBODY };
    make(identity, entry)
}

/// The same, without a look where the thread used that handle the last time.
#[inline(always)]
pub(crate) fn communicator_of_last(
    handle: u64,
    thread: *mut Thread,
    entry: &Entry,
) -> Option<Handle> {
    // Before the look: what changes during it is seen the next time.
    let changes = changes();
    // SAFETY: only this thread writes its entry.
    unsafe {
        let used = &raw mut (*thread).used;
        if (*used).handle == handle && (*used).changes == changes && (*used).communicator != 0 {
            let (communicator, ranks) = ((*used).communicator, (*used).ranks);
            return Some(Handle { communicator, ranks, reserved: 0 });
        }
        let found = communicator_of(handle, entry)?;
        (*used).handle = handle;
        (*used).communicator = found.communicator;
        (*used).ranks = found.ranks;
        (*used).changes = changes;
        Some(found)
    }
}

#[inline(always)]
fn changes() -> u64 {
    let of = |index| CHANGES.get(index).copied().unwrap_or(0);
    of(CHANGES_IN_KERNEL).wrapping_add(of(CHANGES_OUTSIDE))
}

/// A handle stands for something else from now on.
#[inline(always)]
pub(crate) fn handle_changed() {
    if let Some(slot) = CHANGES.get_ptr_mut(CHANGES_IN_KERNEL) {
        add(slot, 1);
    }
}

/// Adds a communicator, and lets its handle stand for it.
#[inline(always)]
pub(crate) fn make(identity: Identity, entry: &Entry) -> Option<Handle> {
    let number = new_number(identity.handle);
    let Some(nothing) = NO_COMMUNICATOR.get(0) else { return None };
    if take::<PLACE_COMMUNICATOR>(identity.pid) == 0
        || COMMUNICATORS.insert(&number, nothing, u64::from(BPF_NOEXIST)).is_err()
    {
        count(LOST_COMMUNICATOR);
        return None;
    }
    let handle = Handle { communicator: number, ranks: identity.ranks, reserved: 0 };
    let key = HandleKey { handle: identity.handle, pid: identity.pid, reserved: 0 };
    if HANDLES.insert(&key, &handle, u64::from(BPF_ANY)).is_err() {
        let _ = COMMUNICATORS.remove(&number);
        count(LOST_COMMUNICATOR);
        return None;
    }
    handle_changed();
    let made = COMMUNICATORS.get_ptr_mut(&number)?;
    // SAFETY: nobody else has this number; user space takes the entry only once `born_ns` is set,
    // which is written last.
    unsafe {
        (*made).identity = Identity { born_ns: 0, start_ns: process_start(), ..identity };
        core::ptr::write_volatile(&raw mut (*made).identity.born_ns, entry.now);
    }
    Some(handle)
}

/// The entry of an operation and size of a process.
#[inline(always)]
pub(crate) fn calls_of(key: &CallKey, pid: u32) -> Option<*mut Calls> {
    if let Some(found) = CALLS.get_ptr_mut(key) {
        return Some(found);
    }
    if take::<PLACE_CALL>(pid) == 0 {
        return None;
    }
    let nothing = NO_CALLS.get(0)?;
    // Another thread may have been faster: then the entry is there.
    let _ = CALLS.insert(key, nothing, u64::from(BPF_NOEXIST));
    CALLS.get_ptr_mut(key)
}

/// A number that no other communicator has: the moment, and the handle, since two processors can
/// have the same moment but not the same free memory.
#[inline(always)]
fn new_number(handle: u64) -> u64 {
    let moment = now();
    let mixed = (handle ^ (bpf_get_current_pid_tgid() << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (moment << 10) | (mixed >> 54)
}

#[inline(always)]
fn process_start() -> u64 {
    // SAFETY: the static is initialised; user space replaced its bytes before loading.
    let layout = unsafe { core::ptr::read_volatile(&raw const TASK_LAYOUT) };
    if layout.start == 0 {
        return 0;
    }
    Kernel::current_task()
        .follow(layout.leader)
        .and_then(|leader| leader.field(layout.start).read())
        .unwrap_or(0)
}

/// Nothing open.
const NOT_OPEN: Open = Open {
    since_ns: 0,
    stack: 0,
    communicator: 0,
    bytes: 0,
    answer: 0,
    what: IDLE,
    operation: 0,
    class: 0,
    detail: 0,
    era: 0,
    unseen: 0,
};

const NO_THREAD: Thread = Thread {
    open: NOT_OPEN,
    expected: Expected {
        hash: 0,
        base: 0,
        parent: 0,
        rank: 0,
        ranks: 0,
        color: 0,
        key: 0,
        library: 0,
        reserved: 0,
    },
    group: Group {
        began_ns: 0,
        stack: 0,
        communicator: 0,
        bytes: 0,
        operation: 0,
        class: 0,
        depth: 0,
        calls: 0,
        era: 0,
        reserved: 0,
    },
    used: Used { handle: 0, communicator: 0, changes: 0, ranks: 0, reserved: 0 },
    pace: Pace { since_ns: 0, calls: 0, is_fast: 0 },
    hits: 0,
    stepped: 0,
    returns: 0,
};

/// Of whom nothing is known.
pub(crate) const NOBODY: Identity = Identity {
    born_ns: 0,
    start_ns: 0,
    hash: 0,
    base: 0,
    parent: 0,
    handle: 0,
    pid: 0,
    rank: UNKNOWN,
    ranks: UNKNOWN,
    origin: SEEN,
    color: 0,
    key: 0,
    child: UNKNOWN,
    device: UNKNOWN,
    library: 0,
    reserved: 0,
};

// What the maps above are made of, so that a change of the records is seen here.
const _: () = assert!(size_of::<Activity>() == 72 && size_of::<Arrival>() == 16);
const _: () = assert!(size_of::<Calls>() == 40 + 16 * BUCKETS && ARRIVALS == 256);
const _: () = assert!(GROUPED_CALL != IDLE);
