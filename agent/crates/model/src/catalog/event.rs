//! Events of devices and their processes, each a log record, and the metrics that count them.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;
use crate::sample::{Agent, GpuXid};

dims! {
    /// The kind of event: its name.
    EventKind: attr::EVENT_NAME {
        /// The NVIDIA driver reported an XID.
        Xid = "gpu.xid",
        /// The NVSwitch driver reported an SXid.
        Sxid = "gpu.nvswitch.sxid",
        /// A device is gone, without an XID.
        Lost = "gpu.lost",
        /// The driver could not initialise a device.
        InitFailed = "gpu.init_failed",
        /// A device or its firmware did not answer the driver in time.
        DriverTimeout = "gpu.driver.timeout",
        /// The kernel driver was loaded.
        DriverLoaded = "gpu.driver.loaded",
        /// The kernel driver was unloaded.
        DriverUnloaded = "gpu.driver.unloaded",
        /// The driver has a known hole that users of its devices can reach.
        DriverVulnerable = "gpu.driver.vulnerable",
        /// A device is being unbound from its driver.
        DriverUnbind = "gpu.driver.unbind",
        /// A device was bound to its driver.
        DriverBind = "gpu.driver.bind",
        /// A device is being reset.
        Reset = "gpu.reset",
        /// Memory errors.
        Ecc = "gpu.ecc",
        /// A program used an address of a device that it does not have.
        MemoryFault = "gpu.memory.fault",
        /// A device cannot be used.
        Unavailable = "gpu.unavailable",
        /// The action that a device needs to recover has changed.
        RecoveryAction = "gpu.recovery_action",
        /// A device was partitioned again.
        MigChange = "gpu.mig.change",
        /// A device's power source or state has changed.
        PowerChange = "gpu.power.change",
        /// A device's clocks have changed.
        ClockChange = "gpu.clock.change",
        /// A PCIe error at a device or a port above it.
        PcieError = "pcie.aer",
        /// The kernel killed a process on a device because host memory was exhausted.
        OomKill = "gpu.process.oom_kill",
        /// A process on a device has ended: the driver's account of it.
        ProcessEnded = "gpu.process.ended",
        /// A process of a job has ended while its peers wait, or NCCL has declared it dead.
        PeerDead = "nccl.peer.dead",
        /// A rank makes no progress with a collective.
        RankHung = "nccl.rank.hung",
        /// The probes on the collective library were reduced because of their cost, or restored.
        ProbeLevelChange = "nccl.probe.level.change",
        /// A process of a job on this node does not answer NCCL.
        PeerSilent = "nccl.peer.unresponsive",
        /// A device's health condition has started.
        HealthStarted = "gpu.health.started",
        /// A device's health condition has ended.
        HealthEnded = "gpu.health.ended",
    }
    /// Severity of an event.
    EventSeverity: attr::EVENT_SEVERITY {
        /// No action is needed.
        Info = "info",
        /// A program is affected, or a device may be.
        Warning = "warning",
        /// A device does not work until an operator acts.
        Critical = "critical",
    }
}

impl EventKind {
    /// The meaning, unless a table of codes has a better one.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Xid => "the NVIDIA driver reported an error",
            Self::Sxid => "an NVSwitch reported an error",
            Self::Lost => "the device does not answer on its bus",
            Self::InitFailed => "the driver could not initialise the device",
            Self::DriverTimeout => "the device or its firmware did not answer the driver in time",
            Self::DriverLoaded => "the kernel driver was loaded",
            Self::DriverUnloaded => "the kernel driver was unloaded",
            Self::DriverVulnerable => {
                "the driver has a known hole that users of its devices can reach"
            }
            Self::DriverUnbind => "the device is being unbound from its driver",
            Self::DriverBind => "the device was bound to its driver",
            Self::Reset => "the device is being reset; work on it is lost",
            Self::Ecc => "memory errors",
            Self::MemoryFault => "a program used an address that it does not have",
            Self::Unavailable => "the device cannot be used",
            Self::RecoveryAction => "the action that the device needs to recover has changed",
            Self::MigChange => "the device's MIG configuration has changed",
            Self::PowerChange => "the device's power source or state has changed",
            Self::ClockChange => "the device's clocks have changed",
            Self::PcieError => "a PCIe error at the device or a port above it",
            Self::OomKill => "the kernel killed the process because host memory was exhausted",
            Self::ProcessEnded => "the process has ended; this is the driver's account of it",
            Self::PeerDead => {
                "a process of the job has ended while others wait for it in a call, or has not \
                 answered NCCL for a minute"
            }
            Self::RankHung => {
                "a rank stays in a call of its collective library, or makes no call while others \
                 continue"
            }
            Self::ProbeLevelChange => {
                "the probes on collective calls were reduced or restored to stay within their budget"
            }
            Self::PeerSilent => "a process on this node does not answer the others of its job",
            Self::HealthStarted => "a health condition of the device has started",
            Self::HealthEnded => "a health condition of the device has ended",
        }
    }

    /// Whether the event is about a process, not about a device: a user who may not see the process
    /// does not see the event.
    pub fn is_about_process(self) -> bool {
        matches!(
            self,
            Self::OomKill
                | Self::ProcessEnded
                | Self::PeerDead
                | Self::PeerSilent
                | Self::RankHung
                | Self::ProbeLevelChange
        )
    }

    /// The action, unless a table of codes has a better one; empty for an event that is not a fault.
    pub fn action(self) -> &'static str {
        match self {
            Self::Xid | Self::Sxid => "look the code up at the vendor; it is new to this agent",
            Self::Lost | Self::InitFailed => {
                "drain the node and restart it; check power, seating and PCIe"
            }
            Self::DriverTimeout | Self::Unavailable => "drain the device and reset it",
            Self::DriverVulnerable => {
                "install the fixed version; advisories.enabled = false hides this"
            }
            Self::MemoryFault => "check the program for accesses beyond its memory",
            Self::RecoveryAction => "take the action in the message",
            Self::Ecc => {
                "reset the device if errors are uncorrectable; replace it if they continue"
            }
            Self::PcieError => "check seating, riser and slot if it continues",
            Self::OomKill => "raise the memory limit or lower the program's use of host memory",
            Self::PeerDead => {
                "check that process and its node; the job cannot continue without it: restart it"
            }
            Self::RankHung => {
                "find where its process is (py-spy, gdb); the others of its communicator wait for it"
            }
            Self::ProbeLevelChange => {
                "scale counts by nccl.communicator.coverage; raise nccl.budget to see more"
            }
            Self::PeerSilent => {
                "check whether that process is stopped, swapped out or gone; NCCL declares it dead \
                 after a minute"
            }
            Self::Reset => "restart the programs that were on the device",
            Self::HealthStarted => "see `gpuwho health` for the condition",
            Self::DriverLoaded
            | Self::DriverUnloaded
            | Self::DriverUnbind
            | Self::DriverBind
            | Self::ProcessEnded
            | Self::MigChange
            | Self::PowerChange
            | Self::ClockChange
            | Self::HealthEnded => "",
        }
    }
}

metrics! {
    /// XIDs of a device by code and severity. Each is counted once, whether the driver's event, the
    /// kernel log or both report it, and also if it was folded into a summary. The severity of 144
    /// to 150 and of 154 is that of their text. A series starts with a point of 0 before its first
    /// XID, so that the first one is an increase too.
    XID_ERRORS: Counter<i64> of GpuXid, by EventSeverity = "gpu.xid.errors" ["{error}"]
        from "NVRM: Xid lines of /dev/kmsg; nvmlEventSetWait_v2 (nvmlEventTypeXidCriticalError)";
    /// The code of a device's last XID since the agent's start, for rules that are made for
    /// dcgm-exporter; it says neither when nor how often.
    XID_LAST: Gauge<i64> of GpuId = "gpu.xid.last" ["{code}"]
        from "as gpu.xid.errors";
    /// Events by name, each counted once, including those that were folded into a summary.
    EVENTS: Counter<i64> of Agent, by EventKind = "gpuwho.events" ["{event}"]
        from "the log records the agent makes, before folding";
}
