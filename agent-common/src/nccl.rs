//! What the collective library is asked to do: records, maps and the table of probed symbols of
//! the probe `nccl`.

mod config;
mod control;
mod counters;
mod hash;
mod measure;
pub mod operation;
mod quota;
mod symbols;

pub use config::{CONFIG_MAGIC, CONFIG_NAME_AT, NAME_BYTES, Name};
pub use control::{
    CHANGES_IN_KERNEL, CHANGES_OUTSIDE, CONTROL_ERA, CONTROL_PAUSED, CONTROL_TIMED, STRETCH_NS,
    TIMED_ONE_IN,
};
pub use counters::{
    COOKIE_LIBRARY, COOKIE_ROW, COOKIE_STEPPED, COUNTERS, HIT_ENTRY, HIT_RETURN, LOST_CALL,
    LOST_COMMUNICATOR, LOST_THREAD, LOST_UNREADABLE,
};
pub use hash::{Hash, UNIQUE_ID_WORDS};
pub use measure::{
    BUCKETS, CLASS_BOUNDS, FIRST_BUCKET_NS, MAX_ELEMENTS, MAX_RANKS, UNSIZED, bucket,
    element_bytes, message_bytes, signature, size_class,
};
pub use quota::{
    EVERYBODY, Freed, MAX_OWNERS, MAX_TENANTS, PLACE_CALL, PLACE_COMMUNICATOR, PLACE_ID,
    PLACE_THREAD, PLACES, Places, ROOM, STRANGERS, STRANGERS_ROOM, Tenant, has_room,
};
pub use symbols::{Ask, Birth, Call, Does, IdAt, NOWHERE, SYMBOLS, Symbol};

/// Communicators of this node, and those that ended since the last read-out: a node with eight
/// devices has some hundred. Four kilobytes each.
pub const MAX_COMMUNICATORS: u32 = 1_024;
/// Pairs of operation and size over all communicators.
pub const MAX_CALLS: u32 = 8_192;
/// Threads that call the library: a handful a device.
pub const MAX_THREADS: u32 = 4_096;
/// Unique ids that are remembered until a communicator is made from them or their process ends.
pub const MAX_UNIQUE_IDS: u32 = 1_024;
/// Calls of which the moment is kept, a communicator; a power of two.
pub const ARRIVALS: usize = 256;
const _: () = assert!(ARRIVALS.is_power_of_two());
/// Ranks of one process made by one `ncclCommInitAll`: no host has more devices.
pub const MAX_INIT_ALL: u32 = 32;
/// Excluded ranks that are read of one `ncclCommShrink`; with more, the rank stays unknown.
pub const MAX_EXCLUDED: u32 = 64;

/// Results that are no failure: `ncclSuccess` and `ncclInProgress`.
pub const RESULT_OK: u32 = 0;
/// `ncclInProgress`: a non-blocking communicator goes on by itself.
pub const RESULT_IN_PROGRESS: u32 = 7;

/// A rank, size or index that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// [`Identity::origin`]: first seen in a call; it was made before the probe was attached.
pub const SEEN: u32 = 1;
/// [`Identity::origin`]: made from a unique id.
pub const MADE: u32 = 2;
/// [`Identity::origin`]: `ncclCommInitAll`, without a unique id that anyone sees.
pub const MADE_LOCALLY: u32 = 3;
/// [`Identity::origin`]: split from its parent.
pub const SPLIT: u32 = 4;
/// [`Identity::origin`]: its parent without some ranks.
pub const SHRUNK: u32 = 5;
/// [`Identity::origin`]: its parent with more ranks.
pub const GROWN: u32 = 6;

/// [`Activity::end`]: finalised; may be destroyed later.
pub const FINALIZED: u32 = 1;
/// [`Activity::end`]: destroyed.
pub const DESTROYED: u32 = 2;
/// [`Activity::end`]: aborted.
pub const ABORTED: u32 = 3;
/// [`Activity::end`]: revoked: calls on it fail from now on.
pub const REVOKED: u32 = 4;

/// [`Open::what`]: nothing.
pub const IDLE: u32 = 0;
/// [`Open::what`]: an operation on a communicator.
pub const CALL: u32 = 1;
/// [`Open::what`]: an operation inside a group, which the end of the group launches.
pub const GROUPED_CALL: u32 = 2;
/// [`Open::what`]: the outermost end of a group.
pub const GROUP_END: u32 = 3;
/// [`Open::what`]: a communicator is being made.
pub const BIRTH: u32 = 4;
/// [`Open::what`]: a communicator is being ended.
pub const DEATH: u32 = 5;
/// [`Open::what`]: a question whose answer is read at the return.
pub const QUESTION: u32 = 6;

abi! {
    /// A communicator by the caller's own handle on it.
    HandleKey {
        /// `ncclComm_t`.
        handle: u64,
        /// Thread group.
        pid: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// What a handle stands for at present.
    Handle {
        /// Number of the communicator, unique on this node while the probe is loaded.
        communicator: u64,
        /// How many ranks it has, or [`UNKNOWN`].
        ranks: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// Who a communicator is. Written once, at its birth.
    Identity {
        /// When it was made or first seen, `CLOCK_BOOTTIME`; 0 while this is being written.
        born_ns: u64,
        /// `start_boottime` of the process.
        start_ns: u64,
        /// The library's own hash of the unique id, the same on all ranks and nodes; 0 if unknown.
        hash: u64,
        /// What the library makes the hash of grown children from (`ncclComm.magic`): the first
        /// word of the unique id; 0 if unknown.
        base: u64,
        /// Number of the communicator it was made from; 0 if none.
        parent: u64,
        /// The caller's handle.
        handle: u64,
        /// Thread group.
        pid: u32,
        /// Rank in it, or [`UNKNOWN`].
        rank: u32,
        /// Its ranks, or [`UNKNOWN`].
        ranks: u32,
        /// One of the origins above.
        origin: u32,
        /// Split: the color.
        color: u32,
        /// Split: the key. Shrink: excluded ranks before this one.
        key: u32,
        /// Which child of its parent, from 1; [`UNKNOWN`] if the parent was not seen being made.
        child: u32,
        /// Device ordinal in the process, or [`UNKNOWN`].
        device: u32,
        /// Number of the library's file in which it was made or first seen; 0 where the kernel does
        /// not tell.
        library: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// What a communicator has done.
    Activity {
        /// Collectives so far: the sequence number of the last one.
        sequence: u64,
        /// When the last operation began.
        last_ns: u64,
        /// Its size.
        last_bytes: u64,
        /// When it was ended; 0 while it lives.
        ended_ns: u64,
        /// Calls that returned an error.
        errors: u64,
        /// All operations so far.
        calls: u64,
        /// Its operation.
        last_operation: u32,
        /// One of the ends above.
        end: u32,
        /// Result of the last call that failed.
        last_error: u32,
        /// The asynchronous error, 0 if none.
        async_error: u32,
        /// Communicators made from it so far.
        children: u32,
        /// Attempts to make one that failed: the library counts some of them, and which is not
        /// known.
        failed_children: u32,
    }
}

abi! {
    /// When one collective was called.
    Arrival {
        /// `CLOCK_BOOTTIME`.
        at_ns: u64,
        /// Lower half of the sequence number, then 32 bits that tell operation and size apart.
        what: u64,
    }
}

abi! {
    /// A communicator of one rank.
    Communicator {
        /// Who.
        identity: Identity,
        /// What it did.
        activity: Activity,
        /// The last collectives; number `n` is at `n % ARRIVALS`.
        arrivals: [Arrival; ARRIVALS],
    }
}

abi! {
    /// What is counted apart.
    CallKey {
        /// Number of the communicator.
        communicator: u64,
        /// One of [`operation`].
        operation: u32,
        /// Size class, or [`UNSIZED`].
        class: u32,
    }
}

abi! {
    /// Calls of one operation and size.
    Calls {
        /// How many.
        count: u64,
        /// Message sizes added up.
        bytes: u64,
        /// When the last one began.
        last_ns: u64,
        /// Durations added up.
        enqueue_ns: u64,
        /// Times between calls added up.
        interval_ns: u64,
        /// Durations by bucket.
        enqueue: [u64; BUCKETS],
        /// Times between calls by bucket.
        interval: [u64; BUCKETS],
    }
}

abi! {
    /// A call that has not returned.
    Open {
        /// When it began; 0 if there is none.
        since_ns: u64,
        /// Stack pointer at its beginning: tells a call inside this one from the next one.
        stack: u64,
        /// Number of the communicator; 0 where there is none yet.
        communicator: u64,
        /// Size of the message.
        bytes: u64,
        /// Where the answer will be, in the caller's memory.
        answer: u64,
        /// One of [`IDLE`] and following.
        what: u32,
        /// One of [`operation`].
        operation: u32,
        /// Size class.
        class: u32,
        /// What the symbol's row says more.
        detail: u32,
        /// The control word's count of changes when it began.
        era: u32,
        /// 1: its return is not seen, so it may have been over for long.
        unseen: u32,
    }
}

abi! {
    /// What the arguments of a birth say.
    Expected {
        /// Hash of the unique id, or 0.
        hash: u64,
        /// First word of the unique id, or 0.
        base: u64,
        /// Number of the parent, or 0.
        parent: u64,
        /// Rank, or [`UNKNOWN`].
        rank: u32,
        /// Ranks, or [`UNKNOWN`].
        ranks: u32,
        /// Color.
        color: u32,
        /// Key.
        key: u32,
        /// Number of the library's file, or 0.
        library: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// A group of calls that has begun and not ended.
    Group {
        /// When the last group began, and where: the same moment and place twice is one call
        /// seen twice.
        began_ns: u64,
        /// Stack pointer then.
        stack: u64,
        /// The last call in it.
        communicator: u64,
        /// Its size.
        bytes: u64,
        /// Its operation.
        operation: u32,
        /// Its class.
        class: u32,
        /// Groups inside groups.
        depth: u32,
        /// Calls in it.
        calls: u32,
        /// The control word's count of changes when the last group began.
        era: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// What the handle that a thread used last stands for, so that it is not looked up again.
    Used {
        /// `ncclComm_t`.
        handle: u64,
        /// Number of the communicator; 0 if none was used.
        communicator: u64,
        /// How often handles had come and gone when it was looked up: it is good until the next.
        changes: u64,
        /// How many ranks it has, or [`UNKNOWN`].
        ranks: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// How fast a thread calls.
    Pace {
        /// When the present stretch began; a stretch is at least [`STRETCH_NS`] long.
        since_ns: u64,
        /// Calls in it.
        calls: u32,
        /// 1: there were so many in the one before that not each of these is timed.
        is_fast: u32,
    }
}

abi! {
    /// A thread that calls the library. Written by that thread only.
    Thread {
        /// The call it is in.
        open: Open,
        /// The handle it used last.
        used: Used,
        /// How fast it calls.
        pace: Pace,
        /// Entries of functions so far.
        hits: u64,
        /// Those of them at an instruction that the kernel steps through, as far as the cookie says it.
        stepped: u64,
        /// Returns so far.
        returns: u64,
        /// The group it has begun.
        group: Group,
        /// The communicator it is making. Last, since a call does not look at it.
        expected: Expected,
    }
}

abi! {
    /// A unique id that was made on this node.
    MadeId {
        /// When.
        at_ns: u64,
        /// By whom.
        pid: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// Where this kernel keeps what the programs read: byte offsets from its BTF.
    TaskLayout {
        /// `task_struct.group_leader`.
        leader: u32,
        /// `task_struct.start_boottime`.
        start: u32,
    }
}

impl TaskLayout {
    /// Before user space has filled it in, and where the kernel does not tell: starts are then 0.
    pub const UNKNOWN: Self = Self { leader: 0, start: 0 };
}
