//! Metrics of collectives that have completed, as NCCL's Inspector plugin writes them to its files
//! in the job.
//!
//! What the plugin saw and wrote, and that was read. It leaves out messages below its smallest
//! size (8 KiB unless set otherwise), collectives it could not time on the device, those that its
//! buffer lost between two of its dumps, and before 2.30 all but the last one of each communicator
//! and dump; `nccl.inspector.missed` counts what is not there. Replays of CUDA graphs are in it
//! where NCCL's profiler interface tells of them. The same collective is also counted by the
//! kernel's probes under other names (`nccl.collective.*`): the two are never added.

use super::attributes as attr;
use super::nccl::{Operation, SizeClass};
use super::{dims, metrics};
use crate::communicators::MemberId;
use crate::sample::{Agent, Histogram, Recent};

dims! {
    /// What became of a line of the Inspector's.
    LineOutcome: attr::NCCL_INSPECTOR_OUTCOME {
        /// Counted.
        Taken = "taken",
        /// Not JSON, or not of the exposition's form.
        Malformed = "malformed",
        /// A field that is needed is missing or is not what it should be.
        Incomplete = "incomplete",
        /// Longer than any line of the Inspector's.
        TooLong = "too_long",
        /// Of another process than the file's.
        Foreign = "foreign",
        /// An operation that the agent does not know.
        UnknownOperation = "unknown_operation",
        /// Not timed on the device: the host's time tells little of it.
        NotTimed = "not_timed",
        /// Of a communicator, or of a combination, beyond the limits.
        NoRoom = "no_room",
    }
    /// How a file of the Inspector's stands.
    FileState: attr::NCCL_INSPECTOR_FILE_STATE {
        /// It is read.
        Read = "read",
        /// It is in a directory that is looked in, and no process that holds a device wrote it.
        Unowned = "unowned",
        /// Several processes write it at once.
        Shared = "shared",
        /// It is no plain file, leads out of its process's file system, cannot be opened, or is one too
        /// many.
        Refused = "refused",
    }
}

metrics! {
    /// A rank of a communicator whose completions NCCL's Inspector writes: always 1, with the
    /// communicator's name.
    INFO: Gauge<i64> of MemberId = "nccl.inspector.info" ["1"]
        from "header of the Inspector's records";
    /// Time a collective took on the device, from its kernel's first to its last moment on the
    /// channel that took longest. It contains waiting for other ranks that come later.
    DURATION: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.inspector.duration" ["s"]
        from "coll_exec_time_us and p2p_exec_time_us of the Inspector's records";
    /// Sizes of the messages that were timed, added up as in `nccl.collective.bytes`. Divided by
    /// the sum of `nccl.inspector.duration` it is the algorithmic bandwidth while communicating.
    BYTES: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.inspector.bytes" ["By"]
        from "coll_msg_size_bytes and p2p_msg_size_bytes of the Inspector's records, ranks";
    /// What the messages that were timed put on each rank's links, as nccl-tests count: the size
    /// times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, 1 for
    /// others. Divided by the sum of `nccl.inspector.duration` it is the bus bandwidth while
    /// communicating.
    BUS_BYTES: Counter<i64> of MemberId, by (Operation, SizeClass) =
        "nccl.inspector.bus_traffic" ["By"]
        from "message size, operation and ranks of the Inspector's records";
    /// Algorithmic bandwidth of each collective: size by time.
    ALGORITHM_BANDWIDTH: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.inspector.algorithm_bandwidth" ["By/s"]
        from "coll_algobw_gbs and p2p_algobw_gbs of the Inspector's records";
    /// Bus bandwidth of each collective: comparable with the links' speed, whatever the operation
    /// and the number of ranks.
    BUS_BANDWIDTH: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.inspector.bus_bandwidth" ["By/s"]
        from "coll_busbw_gbs and p2p_busbw_gbs of the Inspector's records";
    /// Collectives that NCCL ran and that were not counted here, by their sequence numbers: too
    /// small, not timed on the device, lost by the Inspector, or in bytes that were skipped.
    MISSED: Counter<i64> of MemberId, by Operation = "nccl.inspector.missed" ["{call}"]
        from "gaps in coll_sn of the Inspector's records";
    /// Mean time of the collectives in the Inspector's last interval (30 s or longer): its own
    /// mean, told as long as it is fresh, where it writes Prometheus text instead of records.
    RECENT_DURATION: Gauge<f64> of Recent, by Operation = "nccl.inspector.recent.duration" ["s"]
        from "nccl_collective_exec_time_microseconds and nccl_p2p_exec_time_microseconds";
    /// Geometric mean of the algorithmic bandwidth in the Inspector's last interval; 2.29 only.
    RECENT_ALGORITHM_BANDWIDTH: Gauge<f64> of Recent, by Operation =
        "nccl.inspector.recent.algorithm_bandwidth" ["By/s"]
        from "nccl_algorithm_bandwidth_gbs";
    /// Geometric mean of the bus bandwidth in the Inspector's last interval.
    RECENT_BUS_BANDWIDTH: Gauge<f64> of Recent, by Operation =
        "nccl.inspector.recent.bus_bandwidth" ["By/s"]
        from "nccl_bus_bandwidth_gbs and nccl_p2p_bus_bandwidth_gbs";
    /// Files of the Inspector's, by how they stand.
    FILES: Gauge<i64> of Agent, by FileState = "nccl.inspector.files" ["{file}"]
        from "open files of the processes that hold a device, and the directories to look in";
    /// Lines read, by what became of them.
    LINES: Counter<i64> of Agent, by LineOutcome = "nccl.inspector.lines" ["{line}"]
        from "the Inspector's files";
    /// Bytes that were passed over because a file grew faster than it may be read.
    SKIPPED: Counter<i64> of Agent = "nccl.inspector.skipped" ["By"]
        from "sizes of the Inspector's files";
}
