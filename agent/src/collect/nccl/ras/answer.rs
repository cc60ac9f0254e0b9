//! What NCCL says of a job: its communicators with their ranks, of which only those of this node are
//! kept, and the processes that do not answer. It comes as JSON (2.28.7 and later, `json.rs`) or as
//! the older text (`text.rs`).
//!
//! Every word of it is the word of a process of some tenant. A process is a node's address and a
//! number, never a text, so that nothing of an answer reaches an event or a terminal as it came.

use crate::catalog::nccl::Operation;
use crate::communicators::CommunicatorHash;
use crate::ids::ProcKey;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::net::IpAddr;

/// Communicators and ranks that are read of one answer; one with more is refused. A rank takes
/// about 730 bytes of JSON, so the bytes that are read end sooner (`MOST_BYTES` in `ask.rs`).
pub(super) const MAX_ENTRIES: usize = 1 << 16;
/// Ranks on this node that are kept of one answer, about 200 bytes each: eight processes with 128
/// communicators each.
pub(super) const MAX_LOCAL: usize = 1_024;
/// Devices that a process can name: NCCL has them in a mask of 64 bits.
const MAX_DEVICES: u32 = u64::BITS;

/// The names that NCCL gives its operations (`ncclFuncToString`).
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

/// A process of the job: the address of its node, and its number in its own PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Process {
    pub host: IpAddr,
    pub pid: u32,
}

impl Process {
    /// NCCL writes an address (`ncclSocketToHost`), with the interface behind one that needs it;
    /// `unknown` and -1 where it does not know.
    pub(super) fn named(host: &str, pid: i64) -> Option<Self> {
        let host: IpAddr = host.split('%').next()?.parse().ok()?;
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
        Some(Self { host: host.to_canonical(), pid })
    }
}

/// This node's processes by the names that NCCL has for them, as far as the process that answers
/// may speak of them.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalNames {
    /// Those of its own owner.
    pub believed: HashMap<Process, ProcKey>,
    /// Those of others.
    pub others: HashSet<Process>,
}

/// How much of each operation a rank has launched, by the place in [`OPERATIONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaunchCounts([Option<u64>; OPERATIONS.len()]);

impl LaunchCounts {
    /// Takes a count; an operation that is not known here is passed over.
    pub(super) fn put(&mut self, name: &str, count: u64) {
        let place = OPERATIONS.iter().position(|(known, _)| *known == name);
        if let Some(slot) = place.and_then(|place| self.0.get_mut(place)) {
            *slot = Some(count);
        }
    }

    /// All of it; what a job says of itself may be any number.
    pub(super) fn total(&self) -> u64 {
        sum(self.0.iter().flatten().copied())
    }

    /// What is known, by operation.
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
    /// All that it has launched, as far as the answer tells ranks apart by it.
    pub total: u64,
}

/// A rank that did not.
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
    /// Its size, where the answer says it.
    pub size: Option<u32>,
    /// Ranks that answered.
    pub present: u32,
    /// Those of them on this node that are believed.
    pub ranks: Vec<Rank>,
    pub absent: Vec<MissingRank>,
    /// Absent ranks, also those that are not listed.
    pub missing: u32,
    /// Those of them whose processes have answered and are no members.
    pub left: u32,
    /// What the foremost rank has launched, by the same measure as the ranks.
    pub foremost: u64,
}

impl Communicator {
    pub(super) fn new(hash: CommunicatorHash) -> Self {
        let (ranks, absent) = (Vec::new(), Vec::new());
        Self { hash, size: None, present: 0, ranks, absent, missing: 0, left: 0, foremost: 0 }
    }
}

/// A process that NCCL names apart from communicators, with its devices as bits.
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

/// A device's bit; none for a number that is no device's.
pub(super) fn device_bit(device: u32) -> u64 {
    1_u64.checked_shl(device).unwrap_or(0)
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// All ranks of all communicators are in it, so that what is not in it is not there.
    pub is_whole: bool,
    pub nodes: u32,
    pub processes: u32,
    /// Those with ranks that are absent or on this node.
    pub communicators: Vec<Communicator>,
    /// Processes given up, and how many there are.
    pub dead: Vec<LostProcess>,
    pub dead_count: u32,
    /// Processes that did not answer in time, and how many there are.
    pub late: Vec<LostProcess>,
    pub late_count: u32,
    /// What it says of processes on this node of which it may not speak.
    pub claims: u64,
}

impl Answer {
    /// Where the ranks of each process are missing: place of the communicator and rank, the first
    /// of several.
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

/// What NCCL calls so.
pub(super) fn operation(name: &str) -> Option<&'static str> {
    OPERATIONS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// Up to 16 hexadecimal digits.
pub(super) fn hash(digits: &str) -> Option<CommunicatorHash> {
    u64::from_str_radix(digits, 16).ok().map(CommunicatorHash)
}

/// What a job says of itself may be any number.
pub(super) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
