//! What NCCL says of a job: every communicator with its ranks, in JSON (2.28.7 and later), of which
//! only what is known here is kept. The older text is in `text.rs`.

use crate::catalog::nccl::Operation;
use crate::communicators::CommunicatorHash;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

/// Communicators and ranks that are kept of one answer; with more, it is refused.
const MOST_RANKS: usize = 1 << 18;

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
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Process {
    pub host: Arc<str>,
    pub pid: u32,
}

/// A rank that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub number: u32,
    pub process: Option<Process>,
    pub device: Option<u32>,
    pub launched: Vec<(Operation, u64)>,
    /// All that it has launched, as far as the answer tells ranks apart by it.
    pub total: u64,
}

/// A rank that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absent {
    pub rank: u32,
    pub process: Option<Process>,
    pub device: Option<u32>,
    pub is_unresponsive: bool,
    pub is_dead: bool,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Communicator {
    pub hash: CommunicatorHash,
    /// Its size, where the answer says it.
    pub size: Option<u32>,
    pub ranks: Vec<Rank>,
    pub absent: Vec<Absent>,
    /// Absent ranks, also those that are not listed.
    pub missing: u32,
    /// Those of them whose processes have answered and are no members.
    pub left: u32,
    /// What the foremost rank has launched, by the same measure as the ranks.
    pub foremost: u64,
}

/// A process that NCCL names apart from communicators, with its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub process: Process,
    pub devices: Option<Box<str>>,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub version: Box<str>,
    /// All ranks of all communicators are in it, so that what is not in it is not there.
    pub is_whole: bool,
    pub nodes: u32,
    pub processes: u32,
    pub communicators: Vec<Communicator>,
    /// Processes given up, and how many there are.
    pub dead: Vec<Lost>,
    pub dead_count: u32,
    /// Processes that did not answer in time, and how many there are.
    pub late: Vec<Lost>,
    pub late_count: u32,
}

#[derive(Deserialize)]
struct Document {
    nccl_version: String,
    communicators: Vec<RawCommunicator>,
}

#[derive(Deserialize)]
struct RawCommunicator {
    hash: String,
    size: u32,
    #[serde(default)]
    missing_ranks_count: u32,
    ranks: Vec<RawRank>,
    #[serde(default)]
    missing_ranks: Vec<RawAbsent>,
}

#[derive(Deserialize)]
struct RawRank {
    rank: u32,
    host: Arc<str>,
    pid: i64,
    #[serde(default)]
    cuda_dev: Option<i64>,
    #[serde(default)]
    collective_counts: std::collections::BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct RawAbsent {
    rank: u32,
    host: Arc<str>,
    pid: i64,
    #[serde(default)]
    cuda_dev: Option<i64>,
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawStatus {
    unresponsive: bool,
    considered_dead: bool,
}

/// Reads an answer in JSON as it comes.
pub(super) fn from_json(source: impl Read) -> Result<Answer, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_reader(Commas::new(source));
    Document::deserialize(&mut reader)?.try_into()
}

impl TryFrom<Document> for Answer {
    type Error = serde_json::Error;

    fn try_from(document: Document) -> Result<Self, Self::Error> {
        let all: usize =
            document.communicators.iter().map(|c| c.ranks.len() + c.missing_ranks.len()).sum();
        if all > MOST_RANKS {
            return Err(serde::de::Error::custom("more ranks than any job has"));
        }
        let communicators = document.communicators.into_iter().map(communicator);
        let communicators = communicators.collect::<Option<Vec<_>>>();
        let communicators =
            communicators.ok_or_else(|| serde::de::Error::custom("a hash that is none"))?;
        Ok(summed(document.nccl_version.into(), communicators))
    }
}

/// Puts in the comma that 2.28.7 and 2.28.9 leave out after the device of each missing rank: a
/// string begins only after one of `{[,:`, and where it does not, the comma is what is missing.
struct Commas<R> {
    source: R,
    waiting: Option<u8>,
    last: u8,
    in_string: bool,
    escaped: bool,
}

impl<R: Read> Commas<R> {
    fn new(source: R) -> Self {
        Self { source, waiting: None, last: b'{', in_string: false, escaped: false }
    }

    fn next(&mut self) -> io::Result<Option<u8>> {
        let waiting = self.waiting.take();
        let Some(byte) = (if waiting.is_some() { waiting } else { self.read_one()? }) else {
            return Ok(None);
        };
        let begins = !self.in_string && byte == b'"';
        if begins && !matches!(self.last, b'{' | b'[' | b',' | b':') {
            (self.waiting, self.last) = (Some(byte), b',');
            return Ok(Some(b','));
        }
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            self.in_string = byte == b'"';
        }
        if !byte.is_ascii_whitespace() {
            self.last = byte;
        }
        Ok(Some(byte))
    }

    fn read_one(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let read = self.source.read(&mut byte)?;
        Ok((read != 0).then_some(byte[0]))
    }
}

impl<R: Read> Read for Commas<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        for slot in buffer {
            let Some(byte) = self.next()? else { break };
            *slot = byte;
            filled += 1;
        }
        Ok(filled)
    }
}

/// The answer's own counts are of communicators only; those of processes come from their ranks.
fn summed(version: Box<str>, communicators: Vec<Communicator>) -> Answer {
    let mut processes = BTreeSet::new();
    let (mut dead, mut late) = (BTreeSet::new(), BTreeSet::new());
    for communicator in &communicators {
        processes.extend(communicator.ranks.iter().filter_map(|rank| rank.process.clone()));
        for absent in &communicator.absent {
            let Some(process) = &absent.process else { continue };
            processes.insert(process.clone());
            if absent.is_dead {
                dead.insert((process.clone(), absent.device));
            } else if absent.is_unresponsive {
                late.insert((process.clone(), absent.device));
            }
        }
    }
    let hosts: BTreeSet<&Arc<str>> = processes.iter().map(|process| &process.host).collect();
    let nodes = count(hosts.len());
    let (dead, late) = (lost(&dead), lost(&late));
    Answer {
        version,
        is_whole: true,
        nodes,
        processes: count(processes.len()),
        communicators,
        dead_count: count(dead.len()),
        dead,
        late_count: count(late.len()),
        late,
    }
}

/// Each process once, with all its devices.
fn lost(ranks: &BTreeSet<(Process, Option<u32>)>) -> Vec<Lost> {
    let mut all: Vec<(Process, Vec<String>)> = Vec::new();
    for (process, device) in ranks {
        let device = device.map(|device| device.to_string());
        match all.last_mut().filter(|(known, _)| known == process) {
            Some((_, devices)) => devices.extend(device),
            None => all.push((process.clone(), device.into_iter().collect())),
        }
    }
    let devices = |list: Vec<String>| (!list.is_empty()).then(|| list.join(",").into());
    all.into_iter().map(|(process, list)| Lost { process, devices: devices(list) }).collect()
}

fn communicator(raw: RawCommunicator) -> Option<Communicator> {
    let absent: Vec<Absent> = raw.missing_ranks.into_iter().map(absent).collect();
    let ranks: Vec<Rank> = raw.ranks.into_iter().map(rank).collect();
    let listed = count(absent.len());
    let has_left = |one: &&Absent| !one.is_dead && !one.is_unresponsive;
    Some(Communicator {
        hash: hash(raw.hash.strip_prefix("0x")?)?,
        size: Some(raw.size),
        missing: raw.missing_ranks_count.max(listed),
        left: count(absent.iter().filter(has_left).count()),
        foremost: ranks.iter().map(|rank| rank.total).max().unwrap_or(0),
        absent,
        ranks,
    })
}

fn rank(raw: RawRank) -> Rank {
    let counts = raw.collective_counts.iter();
    let launched = counts.filter_map(|(name, count)| Some((operation(name)?, *count)));
    let launched: Vec<(Operation, u64)> = launched.collect();
    Rank {
        number: raw.rank,
        process: process(raw.host, raw.pid),
        device: raw.cuda_dev.and_then(|device| u32::try_from(device).ok()),
        total: sum(launched.iter().map(|(_, count)| *count)),
        launched,
    }
}

/// What NCCL calls so.
pub(super) fn operation(name: &str) -> Option<Operation> {
    OPERATIONS.iter().find(|(known, _)| *known == name).map(|(_, operation)| *operation)
}

fn absent(raw: RawAbsent) -> Absent {
    Absent {
        rank: raw.rank,
        process: process(raw.host, raw.pid),
        device: raw.cuda_dev.and_then(|device| u32::try_from(device).ok()),
        is_unresponsive: raw.status.unresponsive,
        is_dead: raw.status.considered_dead,
    }
}

/// `unknown` and -1 where NCCL does not know.
fn process(host: Arc<str>, pid: i64) -> Option<Process> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
    (&*host != "unknown").then_some(Process { host, pid })
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

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
