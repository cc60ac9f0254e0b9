//! What happens to a device: an XID, memory errors, a bus error, a process killed beside it.
//!
//! A source gives a [`Happening`]; the [`desk::Desk`] finds out whose device and whose processes it
//! struck while they are still known, takes what two sources told for one, counts it, and folds a
//! storm. What it tells is an [`Event`], and [`record`] makes log records of it. Costs nothing while
//! nothing happens.

pub mod aggregator;
pub mod recent;
pub mod record;
pub mod xid;

use crate::attribute::ProcessAttribution;
use crate::catalog::event::EventKind;
use crate::catalog::nccl::GovernorLevel;
use crate::communicators::CommunicatorHash;
use crate::ids::{GpuId, PciAddress, PciPort, ProcKey};
use crate::inventory::GpuInfo;
use std::sync::Arc;
use std::time::SystemTime;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Info,
    /// A program suffers, or a device may.
    Warning,
    /// A device is broken until somebody acts.
    Critical,
}

impl Severity {
    /// The word in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// OpenTelemetry's `SeverityNumber`: `INFO`, `WARN`, `FATAL`.
    pub fn number(self) -> u8 {
        match self {
            Self::Info => 9,
            Self::Warning => 13,
            Self::Critical => 21,
        }
    }
}

/// Who told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// The kernel log.
    Kmsg,
    /// The vendor library's events.
    Nvml,
    /// Both.
    Both,
    /// NCCL's status socket.
    Ras,
    /// The probes on the collective library.
    Probes,
    /// The agent, of its own probes.
    Governor,
}

impl EventSource {
    /// The word in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kmsg => "kmsg",
            Self::Nvml => "nvml",
            Self::Both => "nvml+kmsg",
            Self::Ras => "nccl-ras",
            Self::Probes => "nccl",
            Self::Governor => "nccl-governor",
        }
    }
}

/// Where it happened, as far as the source knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A device the agent reads.
    Gpu(GpuId),
    /// An address on the bus.
    Pci(PciAddress),
    /// A port of the bus, above one device or many.
    Port(PciPort),
    /// The host.
    Host,
}

/// A process as a source names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its number on the host.
    pub pid: u32,
    /// Its command name, if told.
    pub comm: Option<Box<str>>,
    /// Its real user id, if told.
    pub uid: Option<u32>,
}

impl Named {
    /// One of which only its number is told.
    pub fn pid(pid: u32) -> Self {
        Self { pid, comm: None, uid: None }
    }
}

/// A process of a job, on any node, as NCCL names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peer {
    /// Address of its node.
    pub host: Box<str>,
    /// Its number there, in its own PID namespace.
    pub pid: u32,
    /// Its devices, comma-separated.
    pub devices: Option<Box<str>>,
    /// A communicator it is a rank of.
    pub communicator: Option<CommunicatorHash>,
    /// Its rank in that.
    pub rank: Option<u32>,
    /// Ranks of that.
    pub ranks: Option<u32>,
    /// The very process, where it is or was on this node.
    pub process: Option<ProcKey>,
    /// Whose that was when it was last seen.
    pub owner: Option<Arc<ProcessAttribution>>,
    /// Other processes of its job on this node.
    pub beside: Vec<ProcKey>,
}

/// A rank that does not get on, and the call that it stays in or has made last.
#[derive(Clone, Debug, PartialEq)]
pub struct StuckRank {
    /// Its process.
    pub process: ProcKey,
    /// The communicator.
    pub communicator: Option<CommunicatorHash>,
    /// The name the program gave it.
    pub name: Option<Arc<str>>,
    /// Rank in it.
    pub rank: Option<u32>,
    /// Its ranks.
    pub ranks: Option<u32>,
    /// The operation.
    pub operation: &'static str,
    /// Size of the message.
    pub bytes: u64,
    /// The call has not returned.
    pub is_open: bool,
    /// Collectives behind the foremost rank on this node.
    pub lag: Option<u64>,
    /// Seconds since the call.
    pub seconds: u64,
}

/// What was decided of the probes on collective libraries, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetDecision {
    /// What they were let do before.
    pub before: GovernorLevel,
    /// And from now on.
    pub level: GovernorLevel,
    /// One second with probes in so many.
    pub cycle: u32,
    /// Hits a second and process, measured.
    pub rate: u64,
    /// Hits a second and process, allowed.
    pub budget: u64,
    /// Files of the libraries in use, comma-separated.
    pub libraries: Box<str>,
    /// Their versions, the same.
    pub versions: Box<str>,
}

/// What a source saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// What.
    pub kind: EventKind,
    /// Where.
    pub place: Place,
    /// The vendor's code.
    pub code: Option<u32>,
    /// How bad, where the kind and the code do not say.
    pub severity: Severity,
    /// The process it struck, if the source knows.
    pub process: Option<Named>,
    /// The process it is about, where that may be on another node.
    pub peer: Option<Box<Peer>>,
    /// The rank it is about.
    pub stuck: Option<Box<StuckRank>>,
    /// What was decided of the agent's own probes.
    pub decision: Option<Box<BudgetDecision>>,
    /// The MIG GPU instance it was in.
    pub gpu_instance: Option<u32>,
    /// The cgroup of that process, as the memory controller's hierarchy has it.
    pub cgroup: Option<Box<str>>,
    /// What that process has used, where it is about its end.
    pub usage: Option<Box<Usage>>,
    /// The source's own words.
    pub message: Box<str>,
}

impl Observation {
    /// One of which nothing else is told.
    pub fn new(
        kind: EventKind,
        place: Place,
        severity: Severity,
        message: impl Into<Box<str>>,
    ) -> Self {
        Self {
            kind,
            place,
            code: None,
            severity,
            process: None,
            peer: None,
            stuck: None,
            decision: None,
            gpu_instance: None,
            cgroup: None,
            usage: None,
            message: message.into(),
        }
    }
}

/// What a process has used of a device in all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds for which it was on the device.
    pub seconds: f64,
    /// Bytes of device memory it had at most.
    pub memory_peak: Option<i64>,
    /// Fraction of the time in which it had a kernel on the device.
    pub busy: Option<f64>,
    /// Fraction of the time in which it had device memory read or written.
    pub memory_busy: Option<f64>,
}

/// When something happened, on the two clocks that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// For the record.
    pub time: SystemTime,
    /// Nanoseconds of `CLOCK_BOOTTIME`, for the ownership table.
    pub boot_ns: u64,
}

/// The processes of one owner that were on the device, as they were then.
#[derive(Clone, Debug, PartialEq)]
pub struct AffectedOwner {
    /// One of them.
    pub owner: Arc<ProcessAttribution>,
    /// How many there were.
    pub processes: u64,
    /// Why it is told, where it is about a device.
    pub affected: Option<Affected>,
}

/// Why an owner is told as affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affected {
    /// The source names its process, and that process held the device.
    Named,
    /// All of the device is affected, and its processes were on it.
    Device,
    /// One process is affected, the source does not say which, and its processes were on the device.
    Candidate,
}

impl Affected {
    /// The word in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Device => "device",
            Self::Candidate => "candidate",
        }
    }
}

/// What is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What the source saw.
    pub what: Observation,
    /// When it happened.
    pub at: Moment,
    /// When the agent saw it.
    pub seen: SystemTime,
    /// Who told.
    pub source: EventSource,
    /// The device as it was known then.
    pub gpu: Option<Arc<GpuInfo>>,
    /// Whom it struck; at most [`desk::MOST_VICTIMS`].
    pub affected_owners: Vec<AffectedOwner>,
    /// Owners it struck.
    pub owners: u64,
    /// How many like it this one stands for; more than one on a summary only.
    pub count: u64,
    /// Tells it from every other event of this agent.
    pub id: u64,
}
