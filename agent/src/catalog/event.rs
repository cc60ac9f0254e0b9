//! Events: what happened to a device, each a log record, and the counters beside them.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::{Agent, GpuXid};

dims! {
    /// What happened: the event's name.
    EventKind: attr::EVENT_NAME {
        /// The NVIDIA driver reported an XID.
        Xid = "gpu.xid",
        /// The NVSwitch driver reported an SXid.
        Sxid = "gpu.nvswitch.sxid",
        /// A device is gone, without an XID.
        Lost = "gpu.lost",
        /// The driver could not initialise a device.
        InitFailed = "gpu.init_failed",
        /// The driver waited in vain for a device or its firmware.
        DriverTimeout = "gpu.driver.timeout",
        /// The kernel driver was loaded.
        DriverLoaded = "gpu.driver.loaded",
        /// The kernel driver was unloaded.
        DriverUnloaded = "gpu.driver.unloaded",
        /// A device is being taken from its driver.
        DriverUnbind = "gpu.driver.unbind",
        /// A device was given to its driver.
        DriverBind = "gpu.driver.bind",
        /// A device is being reset.
        Reset = "gpu.reset",
        /// Memory errors.
        Ecc = "gpu.ecc",
        /// A device cannot be used.
        Unavailable = "gpu.unavailable",
        /// What a device needs to recover has changed.
        RecoveryAction = "gpu.recovery_action",
        /// A device was cut anew.
        MigChange = "gpu.mig.change",
        /// A device's power source or state has changed.
        PowerChange = "gpu.power.change",
        /// A device's clocks have changed.
        ClockChange = "gpu.clock.change",
        /// A PCIe error at a device or a port above it.
        PcieError = "pcie.aer",
        /// The kernel killed a process on a device for want of host memory.
        OomKill = "gpu.process.oom_kill",
        /// A process on a device has ended: the driver's account of it.
        ProcessEnded = "gpu.process.ended",
        /// NCCL has given up a process of a job.
        PeerDead = "nccl.peer.dead",
        /// A rank does not get on with a collective.
        RankHung = "nccl.rank.hung",
        /// The probes on the collective library were cut back for what they cost, or came back.
        GovernorChange = "nccl.governor.change",
        /// A process of a job on this node does not answer NCCL.
        PeerSilent = "nccl.peer.unresponsive",
    }
    /// How bad an event is.
    EventSeverity: attr::EVENT_SEVERITY {
        /// Good to know.
        Info = "info",
        /// A program suffers, or a device may.
        Warning = "warning",
        /// A device is broken until somebody acts.
        Critical = "critical",
    }
}

impl EventKind {
    /// What it means, where no table knows more.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Xid => "the NVIDIA driver reported an error",
            Self::Sxid => "an NVSwitch reported an error",
            Self::Lost => "the device does not answer on its bus",
            Self::InitFailed => "the driver could not initialise the device",
            Self::DriverTimeout => "the driver waited in vain for the device or its firmware",
            Self::DriverLoaded => "the kernel driver was loaded",
            Self::DriverUnloaded => "the kernel driver was unloaded",
            Self::DriverUnbind => "the device is being taken from its driver",
            Self::DriverBind => "the device was given to its driver",
            Self::Reset => "the device is being reset; what ran on it is lost",
            Self::Ecc => "memory errors",
            Self::Unavailable => "the device cannot be used",
            Self::RecoveryAction => "what the device needs to recover has changed",
            Self::MigChange => "the device's MIG configuration has changed",
            Self::PowerChange => "the device's power source or state has changed",
            Self::ClockChange => "the device's clocks have changed",
            Self::PcieError => "a PCIe error at the device or a port above it",
            Self::OomKill => "the kernel killed the process for want of host memory",
            Self::ProcessEnded => "the process has left the device; this is its account",
            Self::PeerDead => "a process of the job has not answered the others for a minute",
            Self::RankHung => {
                "a rank stays in a call of its collective library, or makes none while others go on"
            }
            Self::GovernorChange => {
                "what is seen of collective calls has changed with what seeing it costs"
            }
            Self::PeerSilent => "a process on this node does not answer the others of its job",
        }
    }

    /// Whether it is about a process and not about a device: who may not see the process does not
    /// see the event.
    pub fn is_about_process(self) -> bool {
        matches!(
            self,
            Self::OomKill
                | Self::ProcessEnded
                | Self::PeerDead
                | Self::PeerSilent
                | Self::RankHung
                | Self::GovernorChange
        )
    }

    /// What to do, where no table knows more; empty for what is no fault.
    pub fn action(self) -> &'static str {
        match self {
            Self::Xid | Self::Sxid => "look the code up at the vendor; it is new to this agent",
            Self::Lost | Self::InitFailed => {
                "drain the node and restart it; check power, seating and PCIe"
            }
            Self::DriverTimeout | Self::Unavailable => "drain the device and reset it",
            Self::RecoveryAction => "do what the message names",
            Self::Ecc => "reset the device if errors are uncorrectable; replace it if they go on",
            Self::PcieError => "check seating, riser and slot if it goes on",
            Self::OomKill => "raise the memory limit or lower the program's use of host memory",
            Self::PeerDead => {
                "look at that process and its node; the job cannot go on without it: restart it"
            }
            Self::RankHung => {
                "look where its process is (py-spy, gdb); the others of its communicator wait for it"
            }
            Self::GovernorChange => {
                "scale counts by nccl.communicator.coverage; raise nccl.budget to see more"
            }
            Self::PeerSilent => {
                "look whether that process is stopped, swapped out or gone; NCCL gives it up after \
                 a minute"
            }
            Self::Reset => "restart the programs that were on the device",
            Self::DriverLoaded
            | Self::DriverUnloaded
            | Self::DriverUnbind
            | Self::DriverBind
            | Self::ProcessEnded
            | Self::MigChange
            | Self::PowerChange
            | Self::ClockChange => "",
        }
    }
}

metrics! {
    /// XIDs of a device by code and severity, each counted once whether the driver's event, the
    /// kernel log or both told it, also those that were folded into a summary. The severity of 144 to
    /// 150 and of 154 is that of their text. A series begins with its first XID, by a point of 0
    /// before it, so that the first is an increase too.
    XID_ERRORS: Counter<i64> of GpuXid, by EventSeverity = "gpu.xid.errors" ["{error}"]
        from "NVRM: Xid lines of /dev/kmsg; nvmlEventSetWait_v2 (nvmlEventTypeXidCriticalError)";
    /// Events by name, each counted once, also those that were folded into a summary.
    EVENTS: Counter<i64> of Agent, by EventKind = "gpuwho.events" ["{event}"]
        from "the log records the agent makes, before folding";
}
