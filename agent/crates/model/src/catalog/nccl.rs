//! Metrics of collective communication: the calls of each rank to NCCL or RCCL, counted in the
//! kernel by probes on the library's functions.
//!
//! All of it is the host's side. A call returns when its work is enqueued; the device executes it
//! later, and these metrics do not show its completion. Calls of a CUDA graph are counted when the
//! graph is captured, not when it is replayed. Device-side communication (GIN, LSA) makes no calls.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::MemberId;
use crate::sample::{Agent, Histogram};

dims! {
    /// The operation of a call.
    Operation: attr::NCCL_OPERATION {
        /// Reduces the parts of all ranks; every rank gets the result.
        AllReduce = "all_reduce",
        /// Every rank gets the parts of all ranks.
        AllGather = "all_gather",
        /// Reduces the parts of all ranks; each rank gets a part of the result.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the data of one rank.
        Broadcast = "broadcast",
        /// Reduces the parts of all ranks; one rank gets the result.
        Reduce = "reduce",
        /// One rank gets the parts of all ranks.
        Gather = "gather",
        /// Each rank gets a part of one rank's data.
        Scatter = "scatter",
        /// Each rank gets a part from each rank.
        AllToAll = "all_to_all",
        /// Sends to one rank.
        Send = "send",
        /// Receives from one rank.
        Recv = "recv",
        /// A one-sided write with a signal.
        PutSignal = "put_signal",
        /// A signal alone.
        Signal = "signal",
        /// Waits for signals.
        WaitSignal = "wait_signal",
    }
    /// Size of the message.
    SizeClass: attr::NCCL_SIZE_CLASS {
        /// Below 4 KiB.
        Below4KiB = "lt_4KiB",
        /// Below 64 KiB.
        Below64KiB = "lt_64KiB",
        /// Below 1 MiB.
        Below1MiB = "lt_1MiB",
        /// Below 16 MiB.
        Below16MiB = "lt_16MiB",
        /// Below 256 MiB.
        Below256MiB = "lt_256MiB",
        /// Below 4 GiB.
        Below4GiB = "lt_4GiB",
        /// 4 GiB and more.
        From4GiB = "ge_4GiB",
        /// Not known: no size, an unknown element type, or a rank's part of a communicator of
        /// unknown size.
        Unknown = "unknown",
    }
    /// State of a rank.
    RankState: attr::NCCL_RANK_STATE {
        /// It called the library a short while ago.
        Running = "running",
        /// It has not called for a while, and no rank waits for it.
        Idle = "idle",
        /// A rank of the same communicator on this node is hung, this one is not.
        Waiting = "waiting",
        /// Inside one call that is timed for longer than `nccl.hang_after`, or so long without a
        /// call while other ranks of the node made progress.
        Hung = "hung",
        /// It has not called for that time, and it is not known whether its last call has returned:
        /// the call was not timed, or the probe budget had switched timing off.
        Unknown = "unknown",
    }
    /// What the probe budget allows the probes to observe of an owner's processes.
    ProbeLevel: attr::NCCL_PROBE_LEVEL {
        /// No library is in use, or nothing can be attached.
        Off = "off",
        /// Entries and returns.
        Full = "full",
        /// Entries only: durations and open calls are not observed.
        Entries = "entries",
        /// Nothing for some minutes, because even that exceeded the budget.
        Detached = "detached",
    }
    /// The source of a communicator's identity and rank.
    KnownBy: attr::NCCL_KNOWN_BY {
        /// None.
        Unknown = "unknown",
        /// The probes observed the call that made it.
        Birth = "birth",
        /// The memory of its process, at offsets found in the library's code.
        Memory = "memory",
        /// NCCL's status socket.
        Ras = "ras",
    }
    /// State of a rank according to NCCL.
    RankPresence: attr::NCCL_RANK_PRESENCE {
        /// It answered.
        Present = "present",
        /// Its process did not answer in time.
        Unresponsive = "unresponsive",
        /// Its process has not answered for a minute; NCCL has declared it dead.
        Dead = "dead",
        /// Its process answered and is no member: it has not joined yet, or has left.
        Left = "left",
    }
    /// State of a process according to NCCL.
    PeerState: attr::NCCL_PEER_STATE {
        /// It is part of a job.
        Known = "known",
        /// It did not answer in time.
        Unresponsive = "unresponsive",
        /// NCCL has declared it dead.
        Dead = "dead",
    }
    /// Outcome of a query.
    RasOutcome: attr::NCCL_RAS_OUTCOME {
        /// An answer.
        Answered = "answered",
        /// No connection.
        Unreachable = "unreachable",
        /// No complete answer in time.
        Late = "late",
        /// The answer exceeded the limit.
        TooLong = "too_long",
        /// The answer has no known format, or the library is older than 2.28.7 and is not queried.
        NotUnderstood = "not_understood",
        /// The answering process is none of those that listen and hold a device, so its job is not
        /// known. The answer is ignored.
        UnknownServer = "unknown_server",
        /// No query: the owner has more status sockets than the limit. Counted once a socket.
        NotAsked = "not_asked",
    }
    /// Which probes.
    ProbePart: attr::NCCL_PROBE_PART {
        /// Entries of functions.
        Entry = "entry",
        /// Returns of operations.
        Return = "return",
    }
}

metrics! {
    /// A process's membership in a communicator: always 1, with everything known about it. Parent,
    /// origin, name, library and version are on this series only.
    INFO: Gauge<i64> of MemberId = "nccl.communicator.info" ["{info}"]
        from "arguments and answers of ncclCommInit*, Split, Shrink, Grow, Count, UserRank; \
              ncclConfig_t";
    /// Called operations, by operation and message size. Calls inside another call of the library
    /// do not count. While the probe budget pauses the owner's processes, calls are missed: divide
    /// by `nccl.communicator.coverage`.
    CALLS: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.collective.calls" ["{call}"]
        from "uprobes on the entries of the library's operations";
    /// Sum of the message sizes: elements times element size, and for all_gather, reduce_scatter,
    /// gather, scatter and all_to_all times the number of ranks, counted like NCCL and nccl-tests.
    /// Calls of unknown size add nothing.
    BYTES: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.collective.bytes" ["By"]
        from "count and datatype arguments, ranks of the communicator";
    /// Host time from a call's entry to its return: enqueueing, not completion. Calls inside a
    /// group return at once; the group's launch is counted once, in the ncclGroupEnd that ends it,
    /// on the last call of the group. Long times mean a full stream, lazy connecting or a blocked
    /// proxy. On kernels from 6.13 on, for a thread with more than `nccl.timed_rate` (500) calls a
    /// second, one random call in sixteen is timed: use shares and means of this metric, and the
    /// number of calls from `nccl.collective.calls`.
    ENQUEUE: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.collective.enqueue.duration" ["s"]
        from "uprobes on entries and returns of the library's operations";
    /// Time from one call to the next of the same operation and size class on the communicator.
    INTERVAL: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.collective.interval" ["s"]
        from "uprobes on the entries of the library's operations";
    /// Collectives this rank has called on the communicator since it was made: the sequence number
    /// of the last one. The ranks of a communicator call the same ones in the same order, so at any
    /// moment a rank with a lower number is behind; compare by `nccl.communicator.id`. Nodes are
    /// read at different moments, so a rank that makes progress may seem behind those of another
    /// node: across nodes only a rank whose number does not change is behind. A call is not a
    /// completion: a rank may be far ahead of its device. Absent for a communicator that is older
    /// than the agent, and after missed calls.
    SEQUENCE: Gauge<i64> of MemberId = "nccl.rank.sequence" ["{call}"]
        from "uprobes on the entries of the library's collectives";
    /// Number of collectives by which this rank is behind the foremost rank of its communicator on
    /// this node.
    LAG: Gauge<i64> of MemberId = "nccl.rank.lag" ["{call}"]
        from "sequence numbers of the ranks on this node";
    /// Time since the rank called its last operation on the communicator.
    QUIET: Gauge<f64> of MemberId = "nccl.rank.idle.duration" ["s"]
        from "kernel time stamp of the last entry";
    /// State of a rank: 1 for the current state, 0 for the others. Hung: for `nccl.hang_after` (1
    /// minute) in one timed call, or without a call while behind the node's foremost rank of the
    /// communicator. Ranks that all wait for another node, or for their devices after calls that
    /// have returned, are idle; after a call that was not timed, unknown.
    STATE: Gauge<i64> of MemberId, by RankState = "nccl.rank.status" ["{state}"]
        from "open calls, and sequence numbers of the ranks on this node";
    /// Number of times this rank became hung.
    HANGS: Counter<i64> of MemberId = "nccl.rank.hangs" ["{hang}"]
        from "changes of nccl.rank.status to hung";
    /// Age of the oldest call on the communicator that has not returned, including calls that make
    /// or end the communicator. Absent when there is none, and for calls that are not timed (see
    /// `nccl.collective.enqueue.duration`), because their end is not known.
    OPEN_AGE: Gauge<f64> of MemberId = "nccl.rank.open_call.age" ["s"]
        from "uprobes on entries and returns, read out while the call is open";
    /// Time between the first and the last arrival of this node's ranks at a collective, recorded
    /// on the rank that arrived last. Its count is the number of times the rank was last, its sum
    /// the time that others waited for it. For each communicator and reading, at most the last 256
    /// collectives are compared, by the time of the call, which may differ from the start on the
    /// device. Ranks of other nodes are not compared.
    SPREAD: Histogram<Histogram> of MemberId = "nccl.arrival.spread" ["s"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Sum of the times by which the rank arrived later than the first rank of this node, over the
    /// compared collectives.
    LATENESS: Counter<f64> of MemberId = "nccl.arrival.skew" ["s"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Collectives of the rank that were compared with those of the node's other ranks.
    COMPARED: Counter<i64> of MemberId = "nccl.arrival.compared" ["{call}"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Collectives of the rank with another operation or size than the same sequence number of the
    /// node's first rank: a program error that causes hangs or corrupted data.
    MISMATCHES: Counter<i64> of MemberId = "nccl.arrival.mismatches" ["{call}"]
        from "operation and size of the same sequence number on the ranks of this node";
    /// Period of the repeating pattern of collectives, by operation and size: with one communicator
    /// a training step, otherwise the part of it on this communicator. Patterns of more than 85
    /// collectives are not found.
    STEP: Histogram<Histogram> of MemberId = "nccl.step.interval" ["s"]
        from "operation, size and time of the last 256 collectives of each rank";
    /// Calls that returned an error other than in progress. An error of a call that was not timed
    /// is counted when its thread asks for the error's text, as every framework does.
    ERRORS: Counter<i64> of MemberId = "nccl.call.errors" ["{error}"]
        from "results of the library's functions; arguments of ncclGetErrorString";
    /// The communicator's asynchronous error, as `ncclResult_t` numbers it; 0 is none. Absent
    /// until the program has asked for it.
    ASYNC_ERROR: Gauge<i64> of MemberId = "nccl.communicator.async_error" ["{state}"]
        from "answers of ncclCommGetAsyncError to the program";
    /// Operations that the rank has launched on the communicator since it was made, as counted by
    /// NCCL itself (its status socket, 2.28.7 and later; the five classic collectives), including
    /// those before the agent started. Read every `nccl.ras_interval`; unchanged until the next
    /// answer. Absent where NCCL is not asked: by default (`nccl.ras = "auto"`) no version is, because
    /// the question has crashed jobs; `gpuwho doctor` tells the reason.
    LAUNCHED: Gauge<i64> of MemberId, by Operation = "nccl.rank.launched" ["{call}"]
        from "VERBOSE STATUS on NCCL's RAS socket: collective_counts";
    /// Number of operations by which this rank is behind the foremost rank of the communicator on
    /// any node, at NCCL's last answer. Ranks do not answer at the same moment, so a small number
    /// is normal; a number that stays or grows means a straggler. Absent where NCCL is not asked (see
    /// `nccl.rank.launched`).
    BEHIND: Gauge<i64> of MemberId = "nccl.rank.launched.lag" ["{call}"]
        from "VERBOSE STATUS on NCCL's RAS socket: collective_counts";
    /// Ranks of the communicator on all nodes, by state according to NCCL. The same on every rank:
    /// use the largest by `nccl.communicator.id`. Absent where NCCL is not asked (see
    /// `nccl.rank.launched`); `nccl.communicator.ranks.ended` needs no question.
    PRESENCE: Gauge<i64> of MemberId, by RankPresence = "nccl.communicator.ranks" ["{rank}"]
        from "VERBOSE STATUS on NCCL's RAS socket";
    /// Ranks of the communicator whose process on this node has ended without leaving it, while a rank
    /// of the same owner on this node has been in one call for `nccl.hang_after`; at most 16 are
    /// counted. Absent otherwise. The same on every rank here. The event is `nccl.peer.dead`.
    RANKS_ENDED: Gauge<i64> of MemberId = "nccl.communicator.ranks.ended" ["{rank}"]
        from "ends of processes, and calls without a return that the probes see";
    /// Memberships of this node's processes in communicators, by the source of their identity.
    /// Unknown ones have no rank, or share a series.
    COMMUNICATORS: Gauge<i64> of Agent, by KnownBy = "nccl.communicators" ["{communicator}"]
        from "births that the probes saw; memory of the processes; NCCL's RAS socket";
    /// Processes, on all nodes, of the jobs with processes on this node, by state according to
    /// NCCL; `known` includes all of them. A sum of what each job reports about itself. Absent where
    /// NCCL is not asked (see `nccl.rank.launched`).
    PEERS: Gauge<i64> of Agent, by PeerState = "nccl.ras.peers" ["{process}"]
        from "VERBOSE STATUS on NCCL's RAS socket";
    /// Queries to NCCL's status sockets, by outcome. Absent before the first one.
    RAS_QUERIES: Counter<i64> of Agent, by RasOutcome = "nccl.ras.queries" ["{query}"]
        from "the agent's own count";
    /// Statements in answers about processes on this node that belong to another user or owner than
    /// the answering process. They are exported nowhere else, because any process can make them.
    RAS_CLAIMS: Counter<i64> of Agent = "nccl.ras.claims" ["{claim}"]
        from "the agent's own count";
    /// Age of the oldest answer in use.
    RAS_AGE: Gauge<f64> of Agent = "nccl.ras.answer.age" ["s"]
        from "the agent's own clock";
    /// Unique ids that processes of this node have made and that no rank here has used yet: one
    /// that stays belongs to a job whose ranks do not come.
    UNUSED_IDS: Gauge<i64> of Agent = "nccl.unique_ids.unused" ["{id}"]
        from "answers of ncclGetUniqueId, and ids passed to ncclCommInitRank";
    /// Files that hold a collective library and are mapped by a process that holds a device.
    LIBRARIES: Gauge<i64> of Agent = "nccl.libraries" ["{file}"]
        from "executable mappings in /proc/PID/maps, and the files' symbols";
    /// Fraction of the time since the last reading in which the probes were attached to the
    /// communicator's library and the process's owner was not paused. The count in that time
    /// divided by it estimates the number of calls, if the program behaved the same in the rest of
    /// the time. Use `entry` for counts, bytes and intervals, `return` for durations. Readings have
    /// equal distances, so divide by the mean over longer times. At 0 nothing is known of the
    /// calls. Absent where a process has several libraries and the kernel (before 6.6) does not
    /// report which one was called.
    MEMBER_COVERAGE: Gauge<f64> of MemberId, by ProbePart = "nccl.communicator.coverage" ["1"]
        from "the probe budget's own clock, by the library's file and the process's owner";
    /// The same for the host: the mean over all libraries in use, each once for every owner with
    /// processes that use it. `nccl.communicator.coverage` has the value of each communicator's
    /// library, which the agent may refuse or find later than others.
    COVERAGE: Gauge<f64> of Agent, by ProbePart = "nccl.probe.coverage" ["1"]
        from "the probe budget's own clock";
    /// Time in which the probes were attached and counting while a library was in use, summed over
    /// libraries and the owners that use them.
    ATTACHED: Counter<f64> of Agent, by ProbePart = "nccl.probe.attached_time" ["s"]
        from "the probe budget's own clock";
    /// Time in which a library was in use, summed over libraries and owners in the same way.
    WANTED: Counter<f64> of Agent = "nccl.probe.wanted_time" ["s"]
        from "the probe budget's own clock";
    /// Number of probe hits.
    HITS: Counter<i64> of Agent, by ProbePart = "nccl.probe.hits" ["{hit}"]
        from "counters in the programs";
    /// Probe level of the owner that exceeds the budget most: 1 for the current level, 0 for the
    /// others. Each owner has a level of its own, so one owner's calls do not reduce the probes of
    /// others. The event `nccl.probe.level.change` names the owner of each change.
    PROBE_LEVEL: Gauge<i64> of Agent, by ProbeLevel = "nccl.probe.level.status" ["{state}"]
        from "hits a second of each owner's busiest process against nccl.budget";
    /// Allowed hits a second for each process, over all libraries that it has loaded; a hit that
    /// the kernel has to single-step counts as eight.
    BUDGET: Gauge<i64> of Agent = "nccl.probe.budget" ["{hit}/s"]
        from "nccl.budget";
}
