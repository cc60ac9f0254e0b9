//! Metrics of collective communication: what each rank asks of NCCL or RCCL, counted in the
//! kernel at the library's functions.
//!
//! All of it is the host's side. A call returns when its work is enqueued; the device does it
//! later, and whether it was done cannot be seen here. A CUDA graph's calls are seen when the
//! graph is captured, not when it is replayed. Device-side communication (GIN, LSA) makes no
//! calls.

use super::attributes as attr;
use super::{dims, metrics};
use crate::communicators::MemberId;
use crate::sample::{Agent, Histogram};

dims! {
    /// What the library was asked to do.
    Operation: attr::NCCL_OPERATION {
        /// Every rank's part reduced, to all.
        AllReduce = "all_reduce",
        /// Every rank's part, to all.
        AllGather = "all_gather",
        /// Reduced, a part to each.
        ReduceScatter = "reduce_scatter",
        /// One rank's, to all.
        Broadcast = "broadcast",
        /// Reduced, to one.
        Reduce = "reduce",
        /// Every rank's part, to one.
        Gather = "gather",
        /// A part of one rank's to each.
        Scatter = "scatter",
        /// A part from each to each.
        AllToAll = "all_to_all",
        /// To one rank.
        Send = "send",
        /// From one rank.
        Recv = "recv",
        /// One-sided write with a signal.
        PutSignal = "put_signal",
        /// A signal alone.
        Signal = "signal",
        /// Waiting for signals.
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
    /// How a rank stands.
    RankState: attr::NCCL_RANK_STATE {
        /// It called the library a short while ago.
        Running = "running",
        /// It has not called for a while, and nobody waits for it.
        Idle = "idle",
        /// A rank of the same communicator on this node is hung, this one is not.
        Waiting = "waiting",
        /// Inside one call that is timed for longer than `nccl.hang_after`, or so long without a
        /// call while other ranks of the node have gone on.
        Hung = "hung",
        /// It has not called for as long, and whether its last call has returned was not seen: that
        /// one was not timed, or the governor had given up times.
        Unknown = "unknown",
    }
    /// What the governor lets the probes see of an owner's processes.
    GovernorLevel: attr::NCCL_GOVERNOR_LEVEL {
        /// No library is in use, or nothing can be attached.
        Off = "off",
        /// Entries and returns.
        Full = "full",
        /// Entries only: durations and open calls are not seen.
        Entries = "entries",
        /// Entries, some of the time.
        Cycled = "cycled",
        /// Nothing for some minutes: even that was too much.
        Detached = "detached",
    }
    /// What tells which communicator it is, and which rank.
    KnownBy: attr::NCCL_KNOWN_BY {
        /// Nothing does.
        Unknown = "unknown",
        /// The call that made it was seen.
        Birth = "birth",
        /// Its process's memory, at the places that the library's code tells.
        Memory = "memory",
        /// NCCL's status socket.
        Ras = "ras",
    }
    /// How a rank is in NCCL's own account.
    RankPresence: attr::NCCL_RANK_PRESENCE {
        /// It answered.
        Present = "present",
        /// Its process did not answer in time.
        Unresponsive = "unresponsive",
        /// Its process has not answered for a minute; NCCL has given it up for good.
        Dead = "dead",
        /// Its process answered and is no member: it has not joined yet, or has left.
        Left = "left",
    }
    /// How a process is in NCCL's own account.
    PeerState: attr::NCCL_PEER_STATE {
        /// It is part of a job.
        Known = "known",
        /// It did not answer in time.
        Unresponsive = "unresponsive",
        /// NCCL has given it up for good.
        Dead = "dead",
    }
    /// What came of a question.
    RasOutcome: attr::NCCL_RAS_OUTCOME {
        /// An answer.
        Answered = "answered",
        /// No connection.
        Unreachable = "unreachable",
        /// No whole answer in time.
        Late = "late",
        /// More than is read of an answer.
        TooLong = "too_long",
        /// Something that is no answer of any version known.
        NotUnderstood = "not_understood",
        /// An answer of a process that is none of those that listen and hold a device, so that
        /// nobody knows of whom it may speak. It is not read.
        UnknownServer = "unknown_server",
        /// No question: the owner has more status sockets than are asked. Counted once a socket.
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
    INFO: Gauge<i64> of MemberId = "nccl.communicator.info" ["1"]
        from "arguments and answers of ncclCommInit*, Split, Shrink, Grow, Count, UserRank; \
              ncclConfig_t";
    /// Operations called, by operation and message size. Calls inside another call of the library
    /// do not count. While the governor has the owner's processes paused, calls are missed: divide by
    /// `nccl.communicator.coverage`.
    CALLS: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.collective.calls" ["{call}"]
        from "uprobes on the entries of the library's operations";
    /// Sizes of the messages, added up: elements times element size, and for all_gather,
    /// reduce_scatter, gather, scatter and all_to_all times the number of ranks, as NCCL and
    /// nccl-tests count. Calls of unknown size add nothing.
    BYTES: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.collective.bytes" ["By"]
        from "count and datatype arguments, ranks of the communicator";
    /// Host time from a call's entry to its return: enqueueing, not completion. Calls inside a
    /// group return at once; the group's launch is counted once, in the ncclGroupEnd that ends it,
    /// on the last call of the group. Long times mean a full stream, lazy connecting or a blocked
    /// proxy. Of a thread that makes more than `nccl.timed_rate` (500) calls a second one call in
    /// sixteen is timed, by chance, on kernels from 6.13 on: take shares and means of it, and the number
    /// of calls from `nccl.collective.calls`.
    ENQUEUE: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.collective.enqueue.duration" ["s"]
        from "uprobes on entries and returns of the library's operations";
    /// Time from one call to the next of the same operation and size class on the communicator.
    INTERVAL: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.collective.interval" ["s"]
        from "uprobes on the entries of the library's operations";
    /// Collectives this rank has called on the communicator since it was made: the sequence number
    /// of the last one. The ranks of a communicator call the same ones in the same order, so at
    /// any moment a rank with a lower number is behind; compare by `nccl.communicator.id`. Nodes
    /// are read at different moments, so a rank that goes on may seem behind those of another node:
    /// across nodes only one that stands still is. Calling is not completing: a rank may be far
    /// ahead of its device. Absent for a communicator that was there before the agent, and after
    /// calls were missed.
    SEQUENCE: Gauge<i64> of MemberId = "nccl.rank.sequence" ["{call}"]
        from "uprobes on the entries of the library's collectives";
    /// How many collectives this rank is behind the foremost rank of its communicator on this
    /// node.
    LAG: Gauge<i64> of MemberId = "nccl.rank.lag" ["{call}"]
        from "sequence numbers of the ranks on this node";
    /// Time since the rank called its last operation on the communicator.
    QUIET: Gauge<f64> of MemberId = "nccl.rank.quiet_time" ["s"]
        from "kernel time stamp of the last entry";
    /// How a rank stands: 1 on the state it is in, 0 on the others. Hung: in one call that is timed,
    /// or behind the node's foremost rank of the communicator without a call, for as long as
    /// `nccl.hang_after` (1 minute). Ranks that all wait for another node, or for their devices behind
    /// calls that have returned, are idle; behind one that was not timed, unknown.
    STATE: Gauge<i64> of MemberId, by RankState = "nccl.rank.status" ["1"]
        from "open calls, and sequence numbers of the ranks on this node";
    /// Times this rank was found hung.
    HANGS: Counter<i64> of MemberId = "nccl.rank.hangs" ["{hang}"]
        from "changes of nccl.rank.status to hung";
    /// Age of the oldest call on the communicator that has not returned, also of one that makes or
    /// ends it. Absent when there is none, and for calls that are not timed (see
    /// `nccl.collective.enqueue.duration`), of which nobody knows whether they are over.
    OPEN_AGE: Gauge<f64> of MemberId = "nccl.rank.open_call.age" ["s"]
        from "uprobes on entries and returns, read out while the call is open";
    /// How far apart the ranks of this node came to a collective: last arrival minus first, on the
    /// rank that came last. Its count is how often the rank was the last, its sum the time that
    /// others waited for it. Of each communicator and reading the last 256 collectives at most are
    /// compared, by when they were called, which need not be when they began on the device; ranks
    /// of other nodes are not.
    SPREAD: Histogram<Histogram> of MemberId = "nccl.arrival.spread" ["s"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Time by which the rank came later than the first rank of this node, added up over the
    /// collectives compared.
    LATENESS: Counter<f64> of MemberId = "nccl.arrival.lateness" ["s"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Collectives of the rank that were compared with those of the node's other ranks.
    COMPARED: Counter<i64> of MemberId = "nccl.arrival.compared" ["{call}"]
        from "kernel time stamps of the same sequence number on the ranks of this node";
    /// Collectives of the rank that were another operation or size than the same sequence number
    /// of the node's first rank: a program error that hangs or corrupts.
    MISMATCHES: Counter<i64> of MemberId = "nccl.arrival.mismatches" ["{call}"]
        from "operation and size of the same sequence number on the ranks of this node";
    /// Period of the pattern of collectives, as operation and size repeat: with one communicator a
    /// training step, else the part of it that this communicator sees. Patterns of more than 85
    /// collectives are not found.
    STEP: Histogram<Histogram> of MemberId = "nccl.step.interval" ["s"]
        from "operation, size and time of the last 256 collectives of each rank";
    /// Calls that returned an error, other than in progress. Of a call that was not timed its thread
    /// tells by asking what the result means, as every framework does.
    ERRORS: Counter<i64> of MemberId = "nccl.call.errors" ["{error}"]
        from "results of the library's functions; arguments of ncclGetErrorString";
    /// The communicator's asynchronous error, as `ncclResult_t` numbers it; 0 is none. Absent
    /// until the program has asked for it.
    ASYNC_ERROR: Gauge<i64> of MemberId = "nccl.communicator.async_error" ["1"]
        from "answers of ncclCommGetAsyncError to the program";
    /// Operations that the rank has launched on the communicator since it was made, as NCCL itself
    /// counts them (its status socket, 2.28.7 and later; the five classic collectives): also those
    /// before the agent. Read every `nccl.ras_interval`; until the next answer the same. From 2.26
    /// to 2.28.3 of ranks and operations only in which the ranks differ.
    LAUNCHED: Gauge<i64> of MemberId, by Operation = "nccl.rank.launched" ["{call}"]
        from "VERBOSE STATUS on NCCL's RAS socket: collective_counts, or the text's operation counts";
    /// How many operations this rank has launched less than the foremost rank of the communicator
    /// on any node, at NCCL's last answer. Ranks answer within moments of each other, not at one,
    /// so a small number is nothing; one that stays or grows is a straggler. With text answers
    /// (2.24 to 2.28.3) of ranks only that NCCL lists since they differ from most.
    BEHIND: Gauge<i64> of MemberId = "nccl.rank.behind" ["{call}"]
        from "VERBOSE STATUS on NCCL's RAS socket: collective_counts, or the text's operation counts";
    /// Ranks of the communicator, on all nodes, by how they are in NCCL's own account. The same on
    /// every rank: take the largest by `nccl.communicator.id`. With text answers (NCCL 2.24 to
    /// 2.28.3) only on communicators that lack a rank or whose ranks differ.
    PRESENCE: Gauge<i64> of MemberId, by RankPresence = "nccl.communicator.ranks" ["{rank}"]
        from "VERBOSE STATUS on NCCL's RAS socket";
    /// Communicators that processes of this node are in, a rank each, by what tells which they are.
    /// Those that are not known have no rank, or share a series with their like.
    COMMUNICATORS: Gauge<i64> of Agent, by KnownBy = "nccl.communicators" ["{communicator}"]
        from "births that the probes saw; memory of the processes; NCCL's RAS socket";
    /// Processes of the jobs that processes of this node belong to, on all nodes, by how they are
    /// in NCCL's own account; `known` are all of them. A sum of what each job says of itself.
    PEERS: Gauge<i64> of Agent, by PeerState = "nccl.ras.peers" ["{process}"]
        from "VERBOSE STATUS on NCCL's RAS socket";
    /// Questions to NCCL's status sockets, by what came of them.
    RAS_QUERIES: Counter<i64> of Agent, by RasOutcome = "nccl.ras.queries" ["{query}"]
        from "the agent's own count";
    /// What answers say of processes on this node that are not of the user and the owner of the
    /// process that answers. It is exported nowhere else: anybody can say it.
    RAS_CLAIMS: Counter<i64> of Agent = "nccl.ras.claims" ["{claim}"]
        from "the agent's own count";
    /// Age of the oldest answer that is told.
    RAS_AGE: Gauge<f64> of Agent = "nccl.ras.answer.age" ["s"]
        from "the agent's own clock";
    /// Unique ids that processes of this node have made and that no rank here has used yet: one
    /// that stays belongs to a job whose ranks do not come.
    UNUSED_IDS: Gauge<i64> of Agent = "nccl.unique_ids.unused" ["{id}"]
        from "answers of ncclGetUniqueId, and ids passed to ncclCommInitRank";
    /// Files that hold a collective library and are mapped by a process that holds a device.
    LIBRARIES: Gauge<i64> of Agent = "nccl.libraries" ["{file}"]
        from "executable mappings in /proc/PID/maps, and the files' symbols";
    /// Part of the time since the last reading in which the probes were on the library of the
    /// communicator and the process's owner was not paused, to the moment of the reading: what was counted in that time divided by it is
    /// what was called, if the program did then as it does otherwise. Counts, bytes and intervals go
    /// by `entry`, durations by `return`. Readings are as far apart as each other, so over longer
    /// divide by its mean. Where it is 0 nothing is known of the calls. Absent where a process has
    /// several libraries and the kernel (before 6.6) does not tell which was called.
    MEMBER_COVERAGE: Gauge<f64> of MemberId, by ProbePart = "nccl.communicator.coverage" ["1"]
        from "the governor's own clock, by the library's file and the process's owner";
    /// The same of the host: the mean of all libraries in use, of each once for every owner whose
    /// processes use it. Of a communicator's own, which may be refused or found later than another,
    /// `nccl.communicator.coverage` tells.
    COVERAGE: Gauge<f64> of Agent, by ProbePart = "nccl.probe.coverage" ["1"]
        from "the governor's own clock";
    /// Time in which the probes were attached and counting while a library was in use; of several
    /// libraries, and of several owners that use one, added up.
    ATTACHED: Counter<f64> of Agent, by ProbePart = "nccl.probe.attached_time" ["s"]
        from "the governor's own clock";
    /// Time in which a library was in use; of several libraries and owners added up, as above.
    WANTED: Counter<f64> of Agent = "nccl.probe.wanted_time" ["s"]
        from "the governor's own clock";
    /// Times a probe was hit.
    HITS: Counter<i64> of Agent, by ProbePart = "nccl.probe.hits" ["{hit}"]
        from "counters in the programs";
    /// What the governor lets the probes see of the owner whose processes are over the budget by most:
    /// 1 on the level in force, 0 on the others. Each owner has a level of its own: nobody's storm
    /// takes anything from others. Of each change the event `nccl.governor.change` tells whose it is.
    GOVERNOR: Gauge<i64> of Agent, by GovernorLevel = "nccl.governor.level" ["1"]
        from "hits a second of each owner's busiest process against nccl.budget";
    /// Hits a second that each process is allowed, over all libraries that it has loaded; one that the
    /// kernel has to step through counts as eight.
    BUDGET: Gauge<i64> of Agent = "nccl.governor.budget" ["{hit}/s"]
        from "nccl.budget";
}
