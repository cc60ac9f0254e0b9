//! Metrics of the agent itself: its cost, the state of its sources, its losses.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::OwnerId;
use crate::sample::{Agent, Histogram, Source};

dims! {
    /// State of a source of data.
    SourceState: attr::SOURCE_STATE {
        /// Working.
        Ready = "ready",
        /// Working with a part of its data; `gpuwho doctor` names what is missing.
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
        /// The BPF ring buffer was full.
        RingFull = "ring_full",
        /// A BPF map was full.
        MapFull = "map_full",
        /// The owner of a process had more records of the kernel in a second, or more processes to
        /// follow, than it may have.
        OwnerShare = "owner_share",
        /// The BPF map of communicators was full, or the owner had reached its limit there.
        CommunicatorsFull = "communicators_full",
        /// The same for operations by size.
        OperationsFull = "operations_full",
        /// The same for threads.
        ThreadsFull = "threads_full",
        /// The export queue was full and dropped the oldest batch, or too many receipts waited.
        QueueFull = "queue_full",
        /// The spool on disk was full and dropped the oldest requests.
        SpoolFull = "spool_full",
        /// A request in the spool became older than `spool.max_age`.
        Expired = "expired",
        /// A request in the spool could not be read again.
        Damaged = "damaged",
        /// The receiver refused the points.
        Rejected = "rejected",
        /// Retries ended without an answer.
        Undelivered = "undelivered",
        /// An impossible reading: all ones, 300 °C, 120 %.
        Implausible = "implausible",
        /// Not a finite number; receivers do not accept it.
        NotFinite = "not_finite",
        /// Its series would have exceeded `agent.series_limit`.
        SeriesLimit = "series_limit",
        /// Its series would have exceeded the limit of its family of metrics (`[metrics] limits`).
        MetricLimit = "metric_limit",
        /// The tenant's file systems do not answer or are too slow; the agent does not read the
        /// tenant's files during a back-off.
        TenantHung = "tenant_hung",
        /// Every process that reads tenants' files hung or was busy.
        HelpersExhausted = "helpers_exhausted",
    }
    /// A shared resource of which each owner may use only a part.
    OwnerLimit: attr::OWNER_LIMIT {
        /// Series: points left out.
        Series = "series",
        /// Files of NCCL's Inspector.
        InspectorFiles = "inspector_files",
        /// Ranks and combinations in files of NCCL's Inspector.
        InspectorRanks = "inspector_ranks",
        /// Changed rank names in files of NCCL's Inspector.
        RankNames = "rank_names",
        /// Lines of the agent's log.
        LogLines = "log_lines",
        /// Events that were summed up instead of sent one by one.
        Events = "events",
        /// Entries for communicators in the BPF map.
        Communicators = "communicators",
        /// Entries for operations by size in the BPF map.
        Operations = "operations",
        /// Entries for threads that call NCCL in the BPF map.
        Threads = "threads",
        /// Entries for unique ids in the BPF map.
        UniqueIds = "unique_ids",
        /// Inference engines that are read.
        Engines = "engines",
        /// Openings of device nodes that are told in a second.
        Openings = "openings",
        /// Forks, programs, moves and ends of holders that are told in a second.
        ProcessRecords = "process_records",
        /// Holders that the kernel follows.
        Holders = "holders",
    }
    /// How an export request ended.
    ExportOutcome: attr::EXPORT_OUTCOME {
        /// Accepted.
        Ok = "ok",
        /// Refused permanently.
        Refused = "refused",
        /// Failed after retries.
        Failed = "failed",
    }
    /// One of the agent's processes.
    AgentProcess: attr::AGENT_PROCESS {
        /// The agent itself.
        Agent = "agent",
        /// All device reader children together.
        Reader = "reader",
    }
    /// A stage of the agent's pipeline.
    Stage: attr::STAGE {
        /// Identification of the PIDs that a driver lists.
        Identify = "identify",
        /// Look-ups of owners and devices for the points.
        Owners = "owners",
        /// Refresh of owners, names and allocations once a tick.
        Table = "table",
        /// Shares of devices by owner, with their own look-ups.
        Shares = "shares",
        /// Judging the health of devices.
        Health = "health",
        /// Costs of shares, and receipts.
        Costs = "costs",
        /// Making points of series.
        Series = "series",
        /// Passing points to the sinks, with encoding.
        Sinks = "sinks",
    }
}

dims! {
    /// Outcome of a reload of the configuration.
    ReloadOutcome: attr::RELOAD_OUTCOME {
        /// Applied, also where nothing had changed.
        Applied = "applied",
        /// Not applied: what ran stayed in force.
        Refused = "refused",
    }
}

metrics! {
    /// Reloads of the configuration (SIGHUP) by outcome; the source `configuration` has the reason of a
    /// refused one.
    RELOADS: Counter<i64> of Agent, by ReloadOutcome = "gpuwho.config.reloads" ["{reload}"]
        from "SIGHUP to the agent";
    /// State of each source: 1 for its current state, 0 for the others.
    SOURCE_STATE: Gauge<i64> of Source, by SourceState = "gpuwho.source.status" ["{state}"]
        from "the source's own report";
    /// CPU time each source's thread has used.
    SOURCE_CPU: Counter<f64> of Source = "gpuwho.source.cpu.time" ["s"]
        from "CLOCK_THREAD_CPUTIME_ID of the source's thread";
    /// CPU time of each pipeline stage between the sources and the sinks. The first three stages
    /// are the cost of attribution per tick; attribution between ticks is on the sources `names`
    /// and `device_users`.
    STAGE_CPU: Counter<f64> of Agent, by Stage = "gpuwho.stage.cpu.time" ["s"]
        from "CLOCK_THREAD_CPUTIME_ID around the stage";
    /// Time from the start of a reading to its end.
    SOURCE_DURATION: Histogram<Histogram> of Source = "gpuwho.source.duration" ["s"]
        from "CLOCK_MONOTONIC around each reading";
    /// Readings that failed and are retried. Impossible values are not counted here but in
    /// `gpuwho.dropped`, as `implausible`.
    SOURCE_ERRORS: Counter<i64> of Source = "gpuwho.source.errors" ["{error}"]
        from "the source's own report";
    /// Number of times a source's child process was restarted.
    SOURCE_RESTARTS: Counter<i64> of Source = "gpuwho.source.restarts" ["{restart}"]
        from "the reader's supervisor";
    /// Number of times a source became `hung`: its thread did not return from a reading for three
    /// intervals and at least 30 s, or the driver or tenant's file that it reads does not answer.
    SOURCE_HANGS: Counter<i64> of Source = "gpuwho.source.hangs" ["{hang}"]
        from "the age of each thread's current reading, and the sources' own reports";
    /// Lost data, by reason.
    DROPPED: Counter<i64> of Source, by DropReason = "gpuwho.dropped" ["{item}"]
        from "the component that dropped it";
    /// Items refused to an owner because it had reached its limit of a shared resource. Only owners
    /// with refused items have a series; owners beyond the first 32 are summed up as `other`.
    OWNER_REFUSED: Counter<i64> of OwnerId, by OwnerLimit = "gpuwho.owner.refused" ["{item}"]
        from "the component that refused it";
    /// Points sent, by outcome.
    EXPORT_POINTS: Counter<i64> of Source, by ExportOutcome = "gpuwho.export.points" ["{point}"]
        from "the sink's answers";
    /// Points and events handed to a sink, and those that it found in its spool when it started. What
    /// is neither accepted, refused, failed nor dropped of them waits.
    EXPORT_TAKEN: Counter<i64> of Source = "gpuwho.export.taken" ["{point}"]
        from "the sink's own count";
    /// Points and events that wait for the receiver, in memory and in the spool.
    EXPORT_WAITING: UpDownCounter<i64> of Source = "gpuwho.export.waiting" ["{point}"]
        from "the sink's queue and its spool";
    /// Size of a sink's spool on disk. Only sinks with a spool have it.
    SPOOL_USAGE: UpDownCounter<i64> of Source = "gpuwho.spool.usage" ["By"]
        from "the files of the spool";
    /// Number of live series; an owner's histogram counts as its buckets and three.
    SERIES: Gauge<i64> of Agent = "gpuwho.series" ["{series}"]
        from "the series registry";
    /// Number of known processes that hold a device.
    HOLDERS: Gauge<i64> of Agent = "gpuwho.openers" ["{process}"]
        from "the ownership table";
    /// Time from the moment a process opens a device until its owner is resolved.
    OWNERSHIP_LATENCY: Histogram<Histogram> of Agent = "gpuwho.ownership.latency" ["s"]
        from "kernel time stamp of the open against CLOCK_BOOTTIME when the owner was resolved";
    /// CPU time of the agent's processes.
    CPU: Counter<f64> of Agent, by AgentProcess = "gpuwho.cpu.time" ["s"]
        from "/proc/PID/stat utime and stime";
    /// What the agent may use of a core (`agent.cpu_limit`). Absent without a limit.
    CPU_LIMIT: Gauge<f64> of Agent = "gpuwho.cpu.limit" ["{cpu}"]
        from "the configuration";
    /// How far sources are read less often to stay within `gpuwho.cpu.limit`: 0 for not at all, 1 to 3
    /// for inference engines and NCCL, from 2 the host and cgroups, at 4 the devices as well.
    CPU_LIMIT_STEP: Gauge<i64> of Agent = "gpuwho.cpu.limit.step" ["{step}"]
        from "gpuwho.cpu.time in windows of 30 s";
    /// Resident memory of the agent's processes.
    MEMORY: UpDownCounter<i64> of Agent, by AgentProcess = "gpuwho.memory.usage" ["By"]
        from "/proc/PID/statm";
}
