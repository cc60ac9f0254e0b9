//! An answer of NCCL about a job: its communicators with their ranks, of which only those of this
//! node are stored, and the processes that do not answer. It arrives as JSON (2.28.7 and later,
//! `json.rs`).
//!
//! A process of some tenant writes every byte of it. A process is represented by a node's address
//! and a PID, never by text, so that no text of an answer reaches an event or a terminal.

use gpuwho_model::catalog::nccl::Operation;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::communicators::CommunicatorHash;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::net::IpAddr;

/// Limit on the communicators and ranks of one answer; a larger one is rejected. A rank takes about
/// 730 bytes of JSON, so the limit on bytes (`MAX_BYTES` in `ask.rs`) applies first.
pub(super) const MAX_ENTRIES: usize = 1 << 16;
/// Limit on the stored ranks of one answer, about 200 bytes each: eight processes with 128
/// communicators each.
pub(super) const MAX_LOCAL: usize = 1_024;
/// Devices of a process: NCCL has them in a mask of 64 bits.
const MAX_DEVICES: u32 = u64::BITS;

/// NCCL's names of its operations (`ncclFuncToString`).
const OPERATIONS: [(&str, Operation); 13] = [
    ("AllReduce", Operation::AllReduce),
    ("AllGather", Operation::AllGather),
    ("ReduceScatter", Operation::ReduceScatter),
    ("Broadcast", Operation::Broadcast),
    ("Reduce", Operation::Reduce),
    ("Gather", Operation::Gather),
    ("Scatter", Operation::Scatter),
    ("AlltoAll", Operation::AllToAll),
    ("Send", Operation::Send),
    ("Recv", Operation::Recv),
    ("PutSignal", Operation::PutSignal),
    ("Signal", Operation::Signal),
    ("WaitSignal", Operation::WaitSignal),
];

/// A process of the job: its node's address, and its PID in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Process {
    pub host: IpAddr,
    pub pid: u32,
}

impl Process {
    /// Parses NCCL's address (`ncclSocketToHost`), which may be followed by an interface; NCCL
    /// writes `unknown` and -1 for unknown values.
    pub(super) fn named(host: &str, pid: i64) -> Option<Self> {
        let host: IpAddr = host.split('%').next()?.parse().ok()?;
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
        Some(Self { host: host.to_canonical(), pid })
    }
}

/// This node's processes by their NCCL names, with the trust of the answering process.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalNames {
    /// Processes of its own tenant.
    pub trusted: HashMap<Process, ProcKey>,
    /// Processes of other tenants.
    pub others: HashSet<Process>,
}

/// Launch counts of a rank by operation, in the order of [`OPERATIONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaunchCounts([Option<u64>; OPERATIONS.len()]);

impl LaunchCounts {
    /// Stores a count; an unknown operation is ignored.
    pub(super) fn put(&mut self, name: &str, count: u64) {
        let place = OPERATIONS.iter().position(|(known, _)| *known == name);
        if let Some(slot) = place.and_then(|place| self.0.get_mut(place)) {
            *slot = Some(count);
        }
    }

    /// The sum; saturates, because a job can send any number.
    pub(super) fn total(&self) -> u64 {
        sum(self.0.iter().flatten().copied())
    }

    /// The known counts by operation.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Operation, u64)> + '_ {
        let all = OPERATIONS.iter().zip(&self.0);
        all.filter_map(|((_, operation), count)| Some((*operation, (*count)?)))
    }
}

/// A rank that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub number: u32,
    pub process: Process,
    pub device: Option<u32>,
    pub launched: LaunchCounts,
    /// The total of the counts in which the answer distinguishes ranks.
    pub total: u64,
}

/// A rank that did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingRank {
    pub rank: u32,
    pub process: Option<Process>,
    pub is_unresponsive: bool,
    pub is_dead: bool,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Communicator {
    pub hash: CommunicatorHash,
    /// Its size, if the answer contains it.
    pub size: Option<u32>,
    /// Number of ranks that answered.
    pub present: u32,
    /// Those of trusted processes on this node.
    pub ranks: Vec<Rank>,
    pub absent: Vec<MissingRank>,
    /// Number of absent ranks, including unlisted ones.
    pub missing: u32,
    /// Number of absent ranks whose processes answered and are not members.
    pub left: u32,
    /// The highest total of all ranks.
    pub foremost: u64,
}

impl Communicator {
    pub(super) fn new(hash: CommunicatorHash) -> Self {
        let (ranks, absent) = (Vec::new(), Vec::new());
        Self { hash, size: None, present: 0, ranks, absent, missing: 0, left: 0, foremost: 0 }
    }
}

/// A process that does not answer, with its devices as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LostProcess {
    pub process: Process,
    pub devices: u64,
}

impl LostProcess {
    /// Its devices, comma-separated.
    pub(super) fn devices(&self) -> Option<Box<str>> {
        let mut text = String::new();
        for device in (0..MAX_DEVICES).filter(|device| self.devices >> device & 1 == 1) {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{device}");
        }
        (!text.is_empty()).then(|| text.into())
    }
}

/// A device's bit; 0 for an invalid number.
pub(super) fn device_bit(device: u32) -> u64 {
    1_u64.checked_shl(device).unwrap_or(0)
}

/// An answer. It has all ranks of all communicators: an unlisted rank does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub nodes: u32,
    pub processes: u32,
    /// Communicators with ranks that are absent or on this node.
    pub communicators: Vec<Communicator>,
    /// Processes that NCCL gave up, and their number.
    pub dead: Vec<LostProcess>,
    pub dead_count: u32,
    /// Processes that did not answer in time, and their number.
    pub late: Vec<LostProcess>,
    pub late_count: u32,
    /// Statements about processes of other tenants on this node.
    pub claims: u64,
}

impl Answer {
    /// The first missing rank of each process: index of the communicator and rank.
    pub(super) fn missing_from(&self) -> BTreeMap<Process, (usize, u32)> {
        let mut all = BTreeMap::new();
        for (place, communicator) in self.communicators.iter().enumerate() {
            for absent in &communicator.absent {
                let Some(process) = absent.process else { continue };
                all.entry(process).or_insert((place, absent.rank));
            }
        }
        all
    }
}

/// NCCL's operation of this name.
pub(super) fn operation(name: &str) -> Option<&'static str> {
    OPERATIONS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// Parses up to 16 hexadecimal digits.
pub(super) fn hash(digits: &str) -> Option<CommunicatorHash> {
    u64::from_str_radix(digits, 16).ok().map(CommunicatorHash)
}

/// A saturating sum, because a job can send any number.
pub(super) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
