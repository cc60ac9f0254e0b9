//! What happens to a device: an XID, memory errors, a bus error, a process killed beside it.
//!
//! A source gives a [`Happening`]; the [`desk::Desk`] finds out whose device and whose processes it
//! struck while they are still known, takes what two sources told for one, counts it, and folds a
//! storm. What it tells is an [`Event`], and [`record`] makes log records of it. Costs nothing while
//! nothing happens.

pub mod desk;
pub mod record;
pub mod xid;

use crate::attribute::Owner;
use crate::catalog::event::EventKind;
use crate::communicators::CommunicatorHash;
use crate::ids::{GpuId, PciAddress, ProcKey};
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
pub enum Witness {
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
}

impl Witness {
    /// The word in the log record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kmsg => "kmsg",
            Self::Nvml => "nvml",
            Self::Both => "nvml+kmsg",
            Self::Ras => "nccl-ras",
            Self::Probes => "nccl",
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
    pub owner: Option<Arc<Owner>>,
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

/// What a source saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
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
    /// The MIG GPU instance it was in.
    pub gpu_instance: Option<u32>,
    /// The source's own words.
    pub message: Box<str>,
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
pub struct Victim {
    /// One of them.
    pub owner: Arc<Owner>,
    /// How many there were.
    pub processes: u64,
}

/// What is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What the source saw.
    pub what: Happening,
    /// When it happened.
    pub at: Moment,
    /// When the agent saw it.
    pub seen: SystemTime,
    /// Who told.
    pub witness: Witness,
    /// The device as it was known then.
    pub gpu: Option<Arc<GpuInfo>>,
    /// Whom it struck; at most [`desk::MOST_VICTIMS`].
    pub victims: Vec<Victim>,
    /// Owners it struck.
    pub owners: u64,
    /// How many like it this one stands for; more than one on a summary only.
    pub count: u64,
    /// Tells it from every other event of this agent.
    pub id: u64,
}
