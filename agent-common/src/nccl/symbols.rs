//! The probed symbols: what each does, and which argument is what. Positions count from 0 as in
//! the declaration; registers and stack are the programs' business. Names are without the
//! library's prefix (`nccl`).
//!
//! Sources: `nccl.h` of 2.18 to 2.32, `rccl.h` of ROCm 7.
//!
//! What NCCL exports besides says nothing of calls (a test has the list). RCCL has three more,
//! `mscclLoadAlgo`, `mscclRunAlgo` and `mscclUnloadAlgo`: its collectives call the second inside,
//! on programs of their own choice, and nobody else does.

use super::operation::{
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, GATHER, PUT_SIGNAL, RECV, REDUCE,
    REDUCE_SCATTER, SCATTER, SEND, SIGNAL, WAIT_SIGNAL,
};
use super::{ABORTED, DESTROYED, FINALIZED, GROWN, MADE, MADE_LOCALLY, REVOKED, SHRUNK, SPLIT};

/// An argument that a function does not have.
pub const NOWHERE: usize = usize::MAX;

/// One probed function.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Its name without the prefix.
    pub name: &'static str,
    /// The program for its entry.
    pub program: &'static str,
    /// What it does.
    pub does: Does,
    /// Version that has it first, as `NCCL_VERSION_CODE` counts.
    pub since: u32,
    /// It only calls another one of this table: left out where returns are not seen, since it
    /// would count twice.
    pub wraps: bool,
}

/// What a function does.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// An operation on a communicator.
    Call(Call),
    /// Calls from here on are launched together.
    GroupStart,
    /// Launches them.
    GroupEnd,
    /// Makes a communicator.
    Birth(Birth),
    /// Ends the communicator that is the first argument; one of the ends.
    Death(u32),
    /// Asks something; the answer is read at the return.
    Question(Ask),
}

/// Arguments of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which.
    pub operation: u32,
    /// Elements.
    pub count: usize,
    /// `ncclDataType_t`.
    pub datatype: usize,
    /// `ncclComm_t`.
    pub communicator: usize,
    /// The count is one rank's part of the message.
    pub is_part: bool,
}

/// Arguments of a birth.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// How it is made.
    pub origin: u32,
    /// Where the new handle will be: `ncclComm_t *`.
    pub answer: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Rank.
    pub rank: usize,
    /// Color. Shrink: the list of excluded ranks.
    pub color: usize,
    /// Key. Shrink: their number.
    pub key: usize,
    /// The parent: `ncclComm_t`.
    pub parent: usize,
    /// Where the unique id is.
    pub id: IdAt,
    /// `ncclConfig_t *`; null: the parent's, or the defaults.
    pub config: usize,
}

/// Where a unique id is.
#[derive(Clone, Copy, Debug)]
pub enum IdAt {
    /// Nowhere.
    None,
    /// Passed by value: on x86-64 a copy on the stack that takes no register, on arm64 a pointer
    /// in its place.
    Value(usize),
    /// A pointer to it, or to the first of several.
    Pointer(usize),
    /// A pointer, or null, to one of which only the first word tells who the communicator is.
    Base(usize),
}

/// Questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A new unique id.
    UniqueId,
    /// A communicator's asynchronous error.
    AsyncError,
    /// Its size.
    Ranks,
    /// The rank in it.
    Rank,
    /// Its device ordinal.
    Device,
    /// What a result means.
    Words,
}

const fn call(name: &'static str, program: &'static str, does: Call, since: u32) -> Symbol {
    Symbol { name, program, does: Does::Call(does), since, wraps: false }
}

const fn wrapper(symbol: Symbol) -> Symbol {
    Symbol { wraps: true, ..symbol }
}

const fn other(name: &'static str, program: &'static str, does: Does, since: u32) -> Symbol {
    Symbol { name, program, does, since, wraps: false }
}

/// `(sendbuff, recvbuff, count, datatype, …)` with the communicator at a position.
const fn two_buffers(operation: u32, communicator: usize, is_part: bool) -> Call {
    Call { operation, count: 2, datatype: 3, communicator, is_part }
}

/// `(buff, count, datatype, peer or root, comm, …)`.
const fn one_buffer(operation: u32) -> Call {
    Call { operation, count: 1, datatype: 2, communicator: 4, is_part: false }
}

/// No size.
const fn bare(operation: u32, communicator: usize) -> Call {
    Call { operation, count: NOWHERE, datatype: NOWHERE, communicator, is_part: false }
}

const fn birth(origin: u32, answer: usize) -> Birth {
    Birth {
        origin,
        answer,
        ranks: NOWHERE,
        rank: NOWHERE,
        color: NOWHERE,
        key: NOWHERE,
        parent: NOWHERE,
        id: IdAt::None,
        config: NOWHERE,
    }
}

const INIT_RANK: Birth = Birth { ranks: 1, rank: 3, id: IdAt::Value(2), ..birth(MADE, 0) };
const INIT_CONFIG: Birth = Birth { config: 4, ..INIT_RANK };
const INIT_SCALABLE: Birth =
    Birth { ranks: 1, rank: 2, id: IdAt::Pointer(4), config: 5, ..birth(MADE, 0) };
const INIT_ALL: Birth = Birth { ranks: 1, ..birth(MADE_LOCALLY, 0) };
const SPLIT_OFF: Birth = Birth { parent: 0, color: 1, key: 2, config: 4, ..birth(SPLIT, 3) };
const SHRINK: Birth = Birth { parent: 0, color: 1, key: 2, config: 4, ..birth(SHRUNK, 3) };
const GROW: Birth =
    Birth { parent: 0, ranks: 1, rank: 3, id: IdAt::Base(2), config: 5, ..birth(GROWN, 4) };

/// Every probed function.
pub const SYMBOLS: &[Symbol] = &[
    call("AllReduce", "all_reduce", two_buffers(ALL_REDUCE, 5, false), 20_000),
    call("AllReduceConfig", "all_reduce_config", two_buffers(ALL_REDUCE, 5, false), 23_200),
    call("AllReduceWithBias", "all_reduce_bias", two_buffers(ALL_REDUCE, 5, false), 22_200),
    call("AllGather", "all_gather", two_buffers(ALL_GATHER, 4, true), 20_000),
    call("AllGatherConfig", "all_gather_config", two_buffers(ALL_GATHER, 4, true), 23_200),
    call("ReduceScatter", "reduce_scatter", two_buffers(REDUCE_SCATTER, 5, true), 20_000),
    call(
        "ReduceScatterConfig",
        "reduce_scatter_config",
        two_buffers(REDUCE_SCATTER, 5, true),
        23_200,
    ),
    call("Broadcast", "broadcast", two_buffers(BROADCAST, 5, false), 22_000),
    call("BroadcastConfig", "broadcast_config", two_buffers(BROADCAST, 5, false), 23_200),
    wrapper(call("Bcast", "bcast", one_buffer(BROADCAST), 20_000)),
    call("Reduce", "reduce", two_buffers(REDUCE, 6, false), 20_000),
    call("ReduceConfig", "reduce_config", two_buffers(REDUCE, 6, false), 23_200),
    call("Gather", "gather", two_buffers(GATHER, 5, true), 22_800),
    call("GatherConfig", "gather_config", two_buffers(GATHER, 5, true), 23_200),
    call("Scatter", "scatter", two_buffers(SCATTER, 5, true), 22_800),
    call("ScatterConfig", "scatter_config", two_buffers(SCATTER, 5, true), 23_200),
    call("AlltoAll", "all_to_all", two_buffers(ALL_TO_ALL, 4, true), 22_800),
    call("AlltoAllConfig", "all_to_all_config", two_buffers(ALL_TO_ALL, 4, true), 23_200),
    // RCCL's own spelling; older ones send and receive inside, which is seen as nested.
    wrapper(call("AllToAll", "all_to_all_rccl", two_buffers(ALL_TO_ALL, 4, true), 20_700)),
    wrapper(call("AllToAllv", "all_to_all_v", bare(ALL_TO_ALL, 7), 20_700)),
    // Its later spelling, beside the one before.
    wrapper(call("AlltoAllv", "all_to_all_v_later", bare(ALL_TO_ALL, 7), 22_700)),
    call("Send", "send", one_buffer(SEND), 20_700),
    call("Recv", "recv", one_buffer(RECV), 20_700),
    call(
        "PutSignal",
        "put_signal",
        Call { operation: PUT_SIGNAL, count: 1, datatype: 2, communicator: 9, is_part: false },
        22_900,
    ),
    call("Signal", "signal", bare(SIGNAL, 4), 22_900),
    call("WaitSignal", "wait_signal", bare(WAIT_SIGNAL, 2), 22_900),
    other("GroupStart", "group_start", Does::GroupStart, 20_000),
    other("GroupEnd", "group_end", Does::GroupEnd, 20_000),
    // Ends the group, whose calls were counted, and launches none of them.
    other("GroupSimulateEnd", "group_simulate_end", Does::GroupEnd, 22_300),
    other("CommInitRank", "init_rank", Does::Birth(INIT_RANK), 20_000),
    other("CommInitRankConfig", "init_rank_config", Does::Birth(INIT_CONFIG), 21_400),
    other("CommInitRankScalable", "init_rank_scalable", Does::Birth(INIT_SCALABLE), 22_300),
    other("CommInitAll", "init_all", Does::Birth(INIT_ALL), 20_000),
    other("CommSplit", "split", Does::Birth(SPLIT_OFF), 21_800),
    other("CommShrink", "shrink", Does::Birth(SHRINK), 22_700),
    other("CommGrow", "grow", Does::Birth(GROW), 22_900),
    other("CommFinalize", "finalize", Does::Death(FINALIZED), 21_400),
    other("CommDestroy", "destroy", Does::Death(DESTROYED), 20_000),
    other("CommAbort", "abort", Does::Death(ABORTED), 20_400),
    other("CommRevoke", "revoke", Does::Death(REVOKED), 22_800),
    other("CommGetAsyncError", "async_error", Does::Question(Ask::AsyncError), 20_400),
    other("CommCount", "comm_count", Does::Question(Ask::Ranks), 20_000),
    other("CommUserRank", "comm_user_rank", Does::Question(Ask::Rank), 20_000),
    other("CommCuDevice", "comm_device", Does::Question(Ask::Device), 20_000),
    other("GetErrorString", "error_string", Does::Question(Ask::Words), 20_000),
    other("GetUniqueId", "unique_id", Does::Question(Ask::UniqueId), 20_000),
];

impl Symbol {
    /// Position in [`SYMBOLS`] of the symbol with this program.
    ///
    /// # Panics
    ///
    /// There is none; the BPF programs ask while they are compiled.
    #[expect(clippy::panic, reason = "an error of the compilation")]
    pub const fn of_program(program: &str) -> usize {
        let mut at = 0;
        while at < SYMBOLS.len() {
            if same(SYMBOLS[at].program.as_bytes(), program.as_bytes()) {
                return at;
            }
            at += 1;
        }
        panic!("a program without a row in the table of symbols")
    }
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
