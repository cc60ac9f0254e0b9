//! The ranks that the Inspector tells of: who they are, joined to what else is known of the
//! process's communicators, and what has completed on each since the agent began to read.

use super::exposition::{Exposition, Whose};
use super::record::{HashText, Record};
use crate::catalog::inspector::{self as metric, LineOutcome};
use crate::catalog::nccl::{Operation, SizeClass};
use crate::communicators::{
    CommunicatorHash, Communicators, Learned, MemberFacts, MemberId, MemberKey,
};
use crate::ids::ProcKey;
use crate::sample::{Batch, Histogram, Recent};
use gpuwho_common::nccl::size_class;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Ranks kept of one process: a program that makes more has some that no longer communicate.
const MAX_OF_PROCESS: usize = 64;
/// Ranks kept in all.
const MAX_RANKS: usize = 1_024;
/// Readings without a record after which a rank makes room for another.
const IDLE: u64 = 60;
/// Marks the number of a membership that the Inspector told of.
const INSPECTED: u64 = 1 << 62;

/// In seconds: from a small message inside a node to a rank that waits for another's checkpoint.
pub(super) const TIME_BOUNDS: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0, 60.0,
];
/// In bytes a second: from TCP to NVLink with reduction in the switch.
pub(super) const SPEED_BOUNDS: &[f64] = &[
    1e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 7.5e10, 1e11, 1.5e11, 2e11, 3e11, 4e11, 5e11, 7.5e11,
    1e12,
];

/// A rank by what the Inspector writes of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RankKey {
    process: ProcKey,
    hash: Option<HashText>,
    rank: Option<u32>,
    /// Where there is no hash.
    name: Option<Arc<str>>,
    ranks: u32,
}

/// What has completed of one operation and size.
#[derive(Debug)]
struct Done {
    duration: Histogram,
    bytes: u64,
    bus_bytes: u64,
    algorithm_bandwidth: Histogram,
    bus_bandwidth: Histogram,
}

impl Default for Done {
    fn default() -> Self {
        Self {
            duration: Histogram::new(TIME_BOUNDS),
            bytes: 0,
            bus_bytes: 0,
            algorithm_bandwidth: Histogram::new(SPEED_BOUNDS),
            bus_bandwidth: Histogram::new(SPEED_BOUNDS),
        }
    }
}

/// Sequence numbers of one operation. Not in order: NCCL's threads complete what they complete.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    first: u64,
    last: u64,
    seen: u64,
    /// The most that were missing at the end of a reading.
    missed: u64,
}

#[derive(Debug)]
struct Rank {
    id: MemberId,
    key: MemberKey,
    facts: MemberFacts,
    done: HashMap<(Operation, SizeClass), Done>,
    sequences: HashMap<Operation, Sequence>,
    /// The reading in which it was last heard of.
    heard: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    known: HashMap<RankKey, Rank>,
    made: u64,
    reading: u64,
    /// Told for the last time at the last reading.
    ended: Vec<MemberId>,
}

impl Ranks {
    /// Begins a reading.
    pub(super) fn begin(&mut self, communicators: &Communicators) {
        self.reading += 1;
        // Only now: the enrich stage needed their names for their last points.
        for id in self.ended.drain(..) {
            communicators.forget(id);
        }
    }

    /// Counts a completed collective of a process.
    pub(super) fn count(
        &mut self,
        process: ProcKey,
        record: &Record<'_>,
        communicators: &Communicators,
    ) -> LineOutcome {
        let key = RankKey {
            process,
            hash: Some(record.hash),
            rank: Some(record.rank),
            name: None,
            ranks: record.ranks,
        };
        let Some(rank) = self.rank(&key, communicators) else { return LineOutcome::NoRoom };
        if rank.facts.name.as_deref() != record.name.as_deref() && record.name.is_some() {
            rank.facts.name = record.name.as_deref().map(Arc::from);
        }
        rank.take(record);
        LineOutcome::Taken
    }

    /// Tells what a file of means says of a process's ranks.
    pub(super) fn levels(
        &mut self,
        process: ProcKey,
        exposition: &Exposition,
        communicators: &Communicators,
    ) -> Vec<(Recent, Operation, super::exposition::Levels)> {
        let mut told = Vec::new();
        for (row, levels) in exposition {
            let Whose { hash, rank, name, ranks } = &row.whose;
            let name = name.as_deref().map(Arc::from);
            let key = RankKey { process, hash: *hash, rank: *rank, name, ranks: *ranks };
            let Some(operation) = row.operation() else { continue };
            let Some(rank) = self.rank(&key, communicators) else { continue };
            let (algorithm, protocol) = (row.algorithm, row.protocol);
            let recent = Recent { member: rank.id, algorithm, protocol, size: row.size };
            told.push((recent, operation, *levels));
        }
        told
    }

    /// Ends a reading: what is known elsewhere is joined, ranks of processes that ended are told
    /// for the last time.
    pub(super) fn end(&mut self, gone: &HashSet<ProcKey>, communicators: &Communicators) {
        let mut alike: HashMap<_, u32> = HashMap::new();
        for key in self.known.keys() {
            *alike.entry((key.process, key.hash)).or_insert(0) += 1;
        }
        for (key, rank) in &mut self.known {
            rank.sequences.values_mut().for_each(Sequence::settle);
            if !gone.contains(&key.process) {
                let is_only = alike.get(&(key.process, key.hash)) == Some(&1);
                rank.join(key, is_only, communicators);
            }
        }
    }

    /// Everything.
    pub(super) fn tell(&self, out: &mut Batch) {
        for rank in self.known.values() {
            rank.tell(out);
        }
    }

    /// Forgets the ranks of processes that have ended, after they were told.
    pub(super) fn forget(&mut self, gone: &HashSet<ProcKey>) {
        let ended = &mut self.ended;
        self.known.retain(|key, rank| {
            let stays = !gone.contains(&key.process);
            if !stays {
                ended.push(rank.id);
            }
            stays
        });
    }

    fn rank(&mut self, key: &RankKey, communicators: &Communicators) -> Option<&mut Rank> {
        let reading = self.reading;
        if !self.known.contains_key(key) {
            if !self.make_room(key.process) {
                return None;
            }
            self.made += 1;
            let number = INSPECTED | self.made;
            let rank = Rank::new(key, number, communicators);
            self.known.insert(key.clone(), rank);
        }
        let rank = self.known.get_mut(key)?;
        rank.heard = reading;
        Some(rank)
    }

    /// Whether there is room for one more rank of a process, or one that is idle makes it.
    fn make_room(&mut self, process: ProcKey) -> bool {
        let of_process = self.known.keys().filter(|key| key.process == process).count();
        if of_process < MAX_OF_PROCESS && self.known.len() < MAX_RANKS {
            return true;
        }
        let mine = self.known.iter().filter(|(key, _)| key.process == process);
        let oldest = mine.min_by_key(|(_, rank)| rank.heard);
        let oldest = oldest.filter(|(_, rank)| rank.heard + IDLE < self.reading);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return false };
        self.ended.extend(self.known.remove(&key).map(|rank| rank.id));
        true
    }
}

impl Rank {
    fn new(key: &RankKey, number: u64, communicators: &Communicators) -> Self {
        let facts = MemberFacts {
            rank: key.rank,
            ranks: Some(key.ranks),
            name: key.name.clone(),
            prefix: match key.hash {
                Some(HashText::Start(start)) => Some(start),
                _ => None,
            },
            hash: match key.hash {
                Some(HashText::Whole(hash)) => Some(CommunicatorHash(hash)),
                _ => None,
            },
            ..MemberFacts::new(key.process)
        };
        let member = MemberKey { process: key.process, number };
        let id = communicators.put(member, facts.clone());
        let (done, sequences) = (HashMap::new(), HashMap::new());
        Self { id, key: member, facts, done, sequences, heard: 0 }
    }

    fn take(&mut self, record: &Record<'_>) {
        let class = usize::try_from(size_class(record.bytes)).unwrap_or(usize::MAX);
        let class = SizeClass::ALL.get(class).copied().unwrap_or(SizeClass::Unknown);
        let done = self.done.entry((record.operation, class)).or_default();
        done.duration.observe(record.seconds);
        done.bytes = done.bytes.saturating_add(record.bytes);
        done.bus_bytes = done.bus_bytes.saturating_add(record.bus_bytes);
        done.algorithm_bandwidth.observe(record.algorithm_bandwidth);
        done.bus_bandwidth.observe(record.bus_bandwidth);
        if let Some(number) = record.sequence {
            let new = Sequence { first: number, last: number, seen: 0, missed: 0 };
            self.sequences.entry(record.operation).or_insert(new).see(number);
        }
    }

    /// Finds what other sources know of the same communicator, and tells them its name and, where
    /// the process has only one in it, the rank.
    fn join(&mut self, key: &RankKey, is_only: bool, communicators: &Communicators) {
        match (key.hash, self.facts.hash) {
            (Some(text), None) => {
                let hashes = communicators.hashes(key.process);
                let mut alike = hashes.into_iter().filter(|hash| text.is_of(hash.0));
                self.facts.hash = alike.next().filter(|_| alike.next().is_none());
            }
            (None, _) => self.join_by_name(key, communicators),
            _ => {}
        }
        if communicators.facts(self.id).is_some_and(|known| *known == self.facts) {
            return;
        }
        if let Some(hash) = self.facts.hash {
            let (rank, ranks) = (self.facts.rank.filter(|_| is_only), self.facts.ranks);
            let name = self.facts.name.clone();
            communicators.learn(key.process, hash, Learned { rank, ranks, name, device: None });
        }
        communicators.put(self.key, self.facts.clone());
    }

    /// A name and a size are a communicator's only where one of the process has both.
    fn join_by_name(&mut self, key: &RankKey, communicators: &Communicators) {
        let of = communicators.of(key.process);
        let is_alike = |facts: &&Arc<MemberFacts>| {
            facts.hash.is_some() && facts.name == key.name && facts.ranks == Some(key.ranks)
        };
        let alike: Vec<_> = of.iter().filter(is_alike).collect();
        let hashes: HashSet<_> = alike.iter().map(|facts| (facts.hash, facts.rank)).collect();
        let found = alike.first().filter(|_| key.name.is_some() && hashes.len() == 1);
        self.facts.hash = found.and_then(|facts| facts.hash);
        self.facts.rank = found.and_then(|facts| facts.rank);
    }

    fn tell(&self, out: &mut Batch) {
        out.push(metric::INFO.sample(self.id, (), 1));
        for (dims, done) in &self.done {
            let (id, dims) = (self.id, *dims);
            out.push(metric::DURATION.sample(id, dims, done.duration.clone()));
            out.push(metric::BYTES.sample(id, dims, number(done.bytes)));
            out.push(metric::BUS_BYTES.sample(id, dims, number(done.bus_bytes)));
            let (algorithm, bus) = (&done.algorithm_bandwidth, &done.bus_bandwidth);
            out.push(metric::ALGORITHM_BANDWIDTH.sample(id, dims, algorithm.clone()));
            out.push(metric::BUS_BANDWIDTH.sample(id, dims, bus.clone()));
        }
        for (operation, sequence) in &self.sequences {
            out.push(metric::MISSED.sample(self.id, *operation, number(sequence.missed)));
        }
    }
}

impl Sequence {
    fn see(&mut self, number: u64) {
        self.first = self.first.min(number);
        self.last = self.last.max(number);
        self.seen += 1;
    }

    fn settle(&mut self) {
        let span = (self.last - self.first).saturating_add(1);
        self.missed = self.missed.max(span.saturating_sub(self.seen));
    }
}

/// As OTLP has it.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "ranks_tests.rs"]
mod tests;
