//! Events of a device or its processes: an XID, memory errors, a bus error, an OOM kill.
//!
//! A source passes an [`Observation`] to the [`aggregator::EventAggregator`], which finds the
//! affected device and owners while they are still known, merges two reports of one fault, counts
//! it, and limits bursts. The result is an [`Event`]; [`record`] makes log records of it. Costs
//! nothing while no event occurs.

pub mod aggregator;
pub mod recent;
pub mod record;
pub mod xid;

use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::catalog::health::Condition;
use gpuwho_model::catalog::nccl::ProbeLevel;
use gpuwho_model::ids::{GpuId, PciAddress, ProcKey};
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::communicators::CommunicatorHash;
use gpuwho_owners::inventory::GpuInfo;
use std::sync::Arc;
use std::time::SystemTime;

/// How severe an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// No action is needed.
    Info,
    /// A program is affected, or a device may be.
    Warning,
    /// A device does not work until an operator acts.
    Critical,
}

impl Severity {
    /// The severity text of the log record.
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

/// The source that reported an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// The kernel log.
    Kmsg,
    /// The vendor library's events.
    Nvml,
    /// The kernel log and the vendor library.
    Both,
    /// NCCL's status socket.
    Ras,
    /// The probes on the collective library.
    Probes,
    /// The agent's budget of its own probes.
    ProbeBudget,
    /// The rules of device health.
    Health,
}

impl EventSource {
    /// The value in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kmsg => "kmsg",
            Self::Nvml => "nvml",
            Self::Both => "nvml+kmsg",
            Self::Ras => "nccl-ras",
            Self::Probes => "nccl",
            Self::ProbeBudget => "nccl-probe-budget",
            Self::Health => "health",
        }
    }
}

/// Where an event occurred, as precisely as the source reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A device the agent reads.
    Gpu(GpuId),
    /// An address on the PCI bus.
    Pci(PciAddress),
    /// A port of the PCI bus, above one device or several.
    Port(PciAddress),
    /// The device of a node of the class `accel`, by its number.
    Accel(u32),
    /// The host.
    Host,
}

/// A process as a source names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its PID on the host.
    pub pid: u32,
    /// Its command name, if reported.
    pub comm: Option<Box<str>>,
    /// Its real user id, if reported.
    pub uid: Option<u32>,
}

impl Named {
    /// A process of which only the PID is reported.
    pub fn pid(pid: u32) -> Self {
        Self { pid, comm: None, uid: None }
    }
}

/// A process of a job on any node, as NCCL describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peer {
    /// Address of its node, as NCCL names it.
    pub host: Option<Box<str>>,
    /// Its PID there, in its own PID namespace, as NCCL names it.
    pub pid: Option<u32>,
    /// Its devices, comma-separated.
    pub devices: Option<Box<str>>,
    /// A communicator that it belongs to.
    pub communicator: Option<CommunicatorHash>,
    /// Its rank in that communicator.
    pub rank: Option<u32>,
    /// Number of ranks of that communicator.
    pub ranks: Option<u32>,
    /// The process itself, where it is or was on this node.
    pub process: Option<ProcKey>,
    /// The attribution of that process when it was last read.
    pub owner: Option<Arc<ProcessAttribution>>,
    /// Other processes of its job on this node.
    pub beside: Vec<ProcKey>,
}

/// A rank without progress, and its open or latest call.
#[derive(Clone, Debug, PartialEq)]
pub struct StuckRank {
    /// Its process.
    pub process: ProcKey,
    /// The communicator.
    pub communicator: Option<CommunicatorHash>,
    /// The communicator's name, as the program set it.
    pub name: Option<Arc<str>>,
    /// Rank in it.
    pub rank: Option<u32>,
    /// Number of ranks of the communicator.
    pub ranks: Option<u32>,
    /// The operation.
    pub operation: &'static str,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// The call has not returned.
    pub is_open: bool,
    /// Number of collectives by which it is behind the foremost rank on this node.
    pub lag: Option<u64>,
    /// Seconds since the call.
    pub seconds: u64,
}

/// A change of the level of the probes on collective libraries, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetDecision {
    /// The level before.
    pub before: ProbeLevel,
    /// The level from now on.
    pub level: ProbeLevel,
    /// Measured hits a second and process.
    pub rate: u64,
    /// Allowed hits a second and process.
    pub budget: u64,
    /// Files of the libraries in use, comma-separated.
    pub libraries: Box<str>,
    /// Versions of these libraries, comma-separated.
    pub versions: Box<str>,
}

/// What a source reports, before owners are attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The kind of event.
    pub kind: EventKind,
    /// Where it occurred.
    pub place: Place,
    /// The vendor's code.
    pub code: Option<u32>,
    /// The severity, where kind and code do not determine it.
    pub severity: Severity,
    /// The affected process, if the source names it.
    pub process: Option<Named>,
    /// The process that the event is about, where it may be on another node.
    pub peer: Option<Box<Peer>>,
    /// The rank that the event is about.
    pub stuck: Option<Box<StuckRank>>,
    /// The change of the agent's own probes.
    pub decision: Option<Box<BudgetDecision>>,
    /// The MIG GPU instance in which it occurred.
    pub gpu_instance: Option<u32>,
    /// The cgroup of that process in the hierarchy of the memory controller.
    pub cgroup: Option<Box<str>>,
    /// The usage of that process, where the event is its end.
    pub usage: Option<Box<Usage>>,
    /// The health condition that has started or ended.
    pub condition: Option<&'static Advised>,
    /// The source's own text.
    pub message: Box<str>,
}

impl Observation {
    /// An observation without the optional fields.
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
            condition: None,
            message: message.into(),
        }
    }
}

/// A health condition, with what it means and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Advised {
    /// The condition.
    pub condition: Condition,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub advice: &'static str,
}

/// What a process has used of a device in its lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds during which it was on the device.
    pub seconds: f64,
    /// Largest amount of device memory in bytes.
    pub memory_peak: Option<i64>,
    /// Fraction of the time in which its kernels ran on the device.
    pub busy: Option<f64>,
    /// Fraction of the time in which it read or wrote device memory.
    pub memory_busy: Option<f64>,
}

/// A point in time on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall-clock time, for the log record.
    pub time: SystemTime,
    /// Nanoseconds of `CLOCK_BOOTTIME`, for the ownership table.
    pub boot_ns: u64,
}

/// The processes of one owner that were on the device, as they were at that time.
#[derive(Clone, Debug, PartialEq)]
pub struct AffectedOwner {
    /// The attribution of one of them.
    pub owner: Arc<ProcessAttribution>,
    /// Number of processes.
    pub processes: u64,
    /// Why the owner is affected, where the event is about a device.
    pub affected: Option<Affected>,
}

/// Why an owner counts as affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affected {
    /// The source names a process of the owner, and that process held the device.
    Named,
    /// The whole device is affected, and the owner's processes were on it.
    Device,
    /// One process is affected, the source does not name it, and the owner's processes were on the
    /// device.
    Candidate,
}

impl Affected {
    /// The value in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Device => "device",
            Self::Candidate => "candidate",
        }
    }
}

/// An event that is exported.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What the source reported.
    pub what: Observation,
    /// When it occurred.
    pub at: Moment,
    /// When the agent received it.
    pub seen: SystemTime,
    /// The source that reported it.
    pub source: EventSource,
    /// The device as it was known at that time.
    pub gpu: Option<Arc<GpuInfo>>,
    /// The affected owners; at most [`aggregator::MAX_AFFECTED`].
    pub affected_owners: Vec<AffectedOwner>,
    /// Number of affected owners.
    pub owners: u64,
    /// Number of events that this one represents; more than one only for a summary.
    pub count: u64,
    /// Unique among the events of this agent.
    pub id: u64,
}
