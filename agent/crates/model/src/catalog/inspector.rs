//! Metrics of completed collectives, which NCCL's Inspector plugin writes to its files in the job.
//!
//! The plugin leaves out messages below its smallest size (8 KiB by default), collectives that it
//! could not time on the device, those that its buffer lost between two dumps, and before 2.30 all
//! but the last one of each communicator and dump; `nccl.inspector.missed` counts the missing ones.
//! Replays of CUDA graphs are included where NCCL's profiler interface reports them. The BPF probes
//! count the same collectives under other names (`nccl.collective.*`): never add the two.

use super::attributes as attr;
use super::nccl::{Operation, SizeClass};
use super::{dims, metrics};
use crate::ids::MemberId;
use crate::sample::{Agent, Histogram, Recent};

dims! {
    /// Outcome of a line in an Inspector file.
    LineOutcome: attr::NCCL_INSPECTOR_OUTCOME {
        /// Counted.
        Taken = "taken",
        /// Neither JSON nor valid exposition text.
        Malformed = "malformed",
        /// A required field is missing or invalid.
        Incomplete = "incomplete",
        /// Longer than the limit of a line.
        TooLong = "too_long",
        /// From another process than the file's.
        Foreign = "foreign",
        /// An operation that the agent does not know.
        UnknownOperation = "unknown_operation",
        /// Not timed on the device; the host's time does not show the duration.
        NotTimed = "not_timed",
        /// A communicator or a combination beyond the limits.
        NoRoom = "no_room",
    }
    /// State of an Inspector file.
    FileState: attr::NCCL_INSPECTOR_FILE_STATE {
        /// The agent reads it.
        Read = "read",
        /// It is in a configured directory, but no process that holds a device wrote it.
        Unowned = "unowned",
        /// Several processes write it at once.
        Shared = "shared",
        /// It is not a regular file, leads out of its process's file system, cannot be opened, or
        /// exceeds the limit of files.
        Refused = "refused",
    }
}

metrics! {
    /// A rank of a communicator with completions from NCCL's Inspector: always 1, with the
    /// communicator's name.
    INFO: Gauge<i64> of MemberId = "nccl.inspector.info" ["{info}"]
        from "header of the Inspector's records";
    /// Time a collective took on the device, from its kernel's first to its last moment on the
    /// channel that took longest. It includes the wait for ranks that arrive later.
    DURATION: Histogram<Histogram> of MemberId, by (Operation, SizeClass) =
        "nccl.inspector.duration" ["s"]
        from "coll_exec_time_us and p2p_exec_time_us of the Inspector's records";
    /// Sum of the sizes of timed messages, counted as in `nccl.collective.bytes`. Divided by the
    /// sum of `nccl.inspector.duration` it is the algorithmic bandwidth while communicating.
    BYTES: Counter<i64> of MemberId, by (Operation, SizeClass) = "nccl.inspector.bytes" ["By"]
        from "coll_msg_size_bytes and p2p_msg_size_bytes of the Inspector's records, ranks";
    /// Traffic of the timed messages on each rank's links, counted like nccl-tests: the size
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
    /// Collectives that NCCL ran but that are missing here, found by their sequence numbers: too
    /// small, not timed on the device, lost by the Inspector, or in skipped bytes.
    MISSED: Counter<i64> of MemberId, by Operation = "nccl.inspector.missed" ["{call}"]
        from "gaps in coll_sn of the Inspector's records";
    /// Mean time of the collectives in the Inspector's last interval (30 s or longer). It is the
    /// Inspector's own mean, exported while it is fresh, where the Inspector writes Prometheus text
    /// instead of records.
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
    /// Inspector files, by state.
    FILES: Gauge<i64> of Agent, by FileState = "nccl.inspector.files" ["{file}"]
        from "open files of the processes that hold a device, and the configured directories";
    /// Lines read, by outcome.
    LINES: Counter<i64> of Agent, by LineOutcome = "nccl.inspector.lines" ["{line}"]
        from "the Inspector's files";
    /// Bytes skipped because a file grew faster than the agent may read it.
    SKIPPED: Counter<i64> of Agent = "nccl.inspector.skipped" ["By"]
        from "sizes of the Inspector's files";
}
