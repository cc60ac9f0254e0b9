//! The agent's own figures: what it costs, what works, what was lost.

use super::attributes as attr;
use super::{dims, metrics};
use crate::attribute::owner::OwnerId;
use crate::sample::{Agent, Histogram, Source};

dims! {
    /// State of a source of data.
    SourceState: attr::SOURCE_STATE {
        /// Working.
        Ready = "ready",
        /// Working with less than it could have; `gpuwho doctor` says what is missing.
        Degraded = "degraded",
        /// Nothing to read on this host (no driver, no kubelet): not an error.
        Absent = "absent",
        /// Does not answer within its deadline.
        Hung = "hung",
        /// Failed; retried with back-off.
        Failed = "failed",
    }
    /// Why data was dropped.
    DropReason: attr::DROP_REASON {
        /// The kernel's ring had no room.
        RingFull = "ring_full",
        /// A kernel map had no room.
        MapFull = "map_full",
        /// A communicator found no room in the kernel's map, or its owner holds all places it may.
        CommunicatorsFull = "communicators_full",
        /// The same of an operation by size.
        OperationsFull = "operations_full",
        /// The same of a thread.
        ThreadsFull = "threads_full",
        /// The queue to the exporter was full; the oldest batch went.
        QueueFull = "queue_full",
        /// The receiver refused the points.
        Rejected = "rejected",
        /// Retries ended without an answer.
        Undelivered = "undelivered",
        /// A reading that cannot be true: all ones, 300 °C, 120 %.
        Implausible = "implausible",
        /// Not a finite number: no receiver takes it.
        NotFinite = "not_finite",
        /// Its series would have been one more than `agent.series_limit` allows.
        SeriesLimit = "series_limit",
        /// Its tenant's file systems do not answer, or too slowly: nothing of the tenant's is read
        /// for a while.
        TenantHung = "tenant_hung",
        /// Every process that reads tenants' files hung or was busy.
        HelpersExhausted = "helpers_exhausted",
    }
    /// What all tenants of a host share, each only up to a part of it.
    OwnerLimit: attr::OWNER_LIMIT {
        /// Series: points that were left out.
        Series = "series",
        /// Files of NCCL's Inspector.
        InspectorFiles = "inspector_files",
        /// Ranks and combinations in files of NCCL's Inspector.
        InspectorRanks = "inspector_ranks",
        /// New names that a rank gave itself in files of NCCL's Inspector.
        RankNames = "rank_names",
        /// Lines of the agent's log.
        LogLines = "log_lines",
        /// Events that were summed up instead of sent one by one.
        Events = "events",
        /// Places for communicators in the kernel's map.
        Communicators = "communicators",
        /// Places for operations by size in the kernel's map.
        Operations = "operations",
        /// Places for threads that call NCCL in the kernel's map.
        Threads = "threads",
        /// Places for unique ids in the kernel's map.
        UniqueIds = "unique_ids",
        /// Inference engines that are read.
        Engines = "engines",
    }
    /// How an export request ended.
    ExportOutcome: attr::EXPORT_OUTCOME {
        /// Accepted.
        Ok = "ok",
        /// Refused for good.
        Refused = "refused",
        /// Given up after retries.
        Failed = "failed",
    }
    /// One of the agent's processes.
    AgentProcess: attr::AGENT_PROCESS {
        /// The agent itself.
        Agent = "agent",
        /// The children that read devices, all together.
        Reader = "reader",
    }
    /// A stage of the agent's pipeline.
    Stage: attr::STAGE {
        /// Whose the numbers are that a driver lists.
        Identify = "identify",
        /// The look-ups of owners and devices for the points.
        Owners = "owners",
        /// The upkeep of owners, names and grants once a tick.
        Table = "table",
        /// The shares of devices by owner, their own look-ups included.
        Shares = "shares",
        /// Points of series.
        Series = "series",
        /// Handing over to the sinks, with encoding.
        Sinks = "sinks",
    }
}

metrics! {
    /// State of each source: 1 on the state it is in, 0 on the others.
    SOURCE_STATE: Gauge<i64> of Source, by SourceState = "gpuwho.source.status" ["1"]
        from "the source's own report";
    /// CPU time each source's thread has used.
    SOURCE_CPU: Counter<f64> of Source = "gpuwho.source.cpu.time" ["s"]
        from "CLOCK_THREAD_CPUTIME_ID of the source's thread";
    /// CPU time each stage between the sources and the receivers has used. What knowing whose it is
    /// costs a tick is the first three; what is found out between ticks is on the sources `names`
    /// and `device_users`.
    STAGE_CPU: Counter<f64> of Agent, by Stage = "gpuwho.stage.cpu.time" ["s"]
        from "CLOCK_THREAD_CPUTIME_ID around the stage";
    /// Time from the start of a reading to its end.
    SOURCE_DURATION: Histogram<Histogram> of Source = "gpuwho.source.duration" ["s"]
        from "CLOCK_MONOTONIC around each reading";
    /// Readings that failed and will be tried again. A value that cannot be true is none of them: it
    /// is in `gpuwho.dropped`, as `implausible`.
    SOURCE_ERRORS: Counter<i64> of Source = "gpuwho.source.errors" ["{error}"]
        from "the source's own report";
    /// Times a source's child process was started again.
    SOURCE_RESTARTS: Counter<i64> of Source = "gpuwho.source.restarts" ["{restart}"]
        from "the reader's supervisor";
    /// Times a source became `hung`: its thread did not come back from a reading for three intervals
    /// and at least 30 s, or what it reads from, a driver or a tenant's file, does not answer.
    SOURCE_HANGS: Counter<i64> of Source = "gpuwho.source.hangs" ["{hang}"]
        from "the age of the reading that each thread is at, and the sources' own reports";
    /// Data lost, by reason.
    DROPPED: Counter<i64> of Source, by DropReason = "gpuwho.dropped" ["{item}"]
        from "the place that dropped it";
    /// What was refused to an owner because its part of what all owners share was used up. Only
    /// owners that were refused something; beyond 32 of them the others are one, `other`.
    OWNER_REFUSED: Counter<i64> of OwnerId, by OwnerLimit = "gpuwho.owner.refused" ["{item}"]
        from "the place that refused it";
    /// Points sent, by outcome.
    EXPORT_POINTS: Counter<i64> of Source, by ExportOutcome = "gpuwho.export.points" ["{point}"]
        from "the sink's answers";
    /// Series that are alive.
    SERIES: Gauge<i64> of Agent = "gpuwho.series" ["{series}"]
        from "the series registry";
    /// Processes known to hold a device.
    HOLDERS: Gauge<i64> of Agent = "gpuwho.holders" ["{process}"]
        from "the ownership table";
    /// Time from a process's opening of a device to its owner being known.
    OWNERSHIP_LATENCY: Histogram<Histogram> of Agent = "gpuwho.ownership.latency" ["s"]
        from "kernel time stamp of the open against CLOCK_BOOTTIME when the owner was resolved";
    /// CPU time of the agent's processes.
    CPU: Counter<f64> of Agent, by AgentProcess = "gpuwho.cpu.time" ["s"]
        from "/proc/PID/stat utime and stime";
    /// Resident memory of the agent's processes.
    MEMORY: UpDownCounter<i64> of Agent, by AgentProcess = "gpuwho.memory.usage" ["By"]
        from "/proc/PID/statm";
}
