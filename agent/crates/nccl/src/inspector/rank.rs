//! One rank in the Inspector's files: its identity and its completed operations.

use super::record::{HashText, Record};
use gpuwho_common::nccl::size_class;
use gpuwho_model::catalog::inspector as metric;
use gpuwho_model::catalog::nccl::{Operation, SizeClass};
use gpuwho_model::ids::MemberId;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::{Batch, Histogram, Recent};
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::communicators::{
    CommunicatorHash, CommunicatorUpdate, Communicators, MemberFacts, MemberKey,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Limit on the operations and sizes of one process, over all its ranks; beyond it an operation is
/// counted without its size.
const MAX_COMBINATIONS: usize = 512;
/// The limit that includes operations without a size.
const MAX_UNSIZED: usize = MAX_COMBINATIONS + 64;
/// Limit on the names of a rank. A program names a communicator once; repeated renaming would
/// create new series at the receiver.
const MAX_NAMES: u8 = 3;
/// Histogram bounds in seconds: from a small message inside a node to a rank that waits for
/// another's checkpoint.
pub(super) const TIME_BOUNDS: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0, 60.0,
];
/// Histogram bounds in bytes a second: from TCP to NVLink with in-switch reduction.
pub(super) const SPEED_BOUNDS: &[f64] = &[
    1e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 7.5e10, 1e11, 1.5e11, 2e11, 3e11, 4e11, 5e11, 7.5e11,
    1e12,
];

/// The identity of a rank in the Inspector's files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RankKey {
    pub process: ProcKey,
    pub hash: Option<HashText>,
    pub rank: Option<u32>,
    /// Set only if there is no hash.
    pub name: Option<Arc<str>>,
    pub ranks: u32,
}

/// Completed operations of one kind and size.
#[derive(Debug)]
struct CompletedWork {
    duration: Histogram,
    bytes: u64,
    bus_bytes: u64,
    algorithm_bandwidth: Histogram,
    bus_bandwidth: Histogram,
}

impl Default for CompletedWork {
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

/// Sequence numbers of one operation. They are not in order: NCCL's threads record completions
/// independently.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    first: u64,
    last: u64,
    seen: u64,
    /// The maximum that were missing at the end of a reading.
    missed: u64,
}

/// A rank.
#[derive(Debug)]
pub(super) struct Rank {
    pub id: MemberId,
    pub owner: QuotaKey,
    /// Means that were exported for it.
    pub means: HashSet<(Operation, Recent)>,
    /// Number of names so far.
    names: u8,
    key: MemberKey,
    facts: MemberFacts,
    done: HashMap<(Operation, SizeClass), CompletedWork>,
    sequences: HashMap<Operation, Sequence>,
    /// The reading with its last record.
    pub last_reading: u64,
}

impl Rank {
    /// Creates a member with this number.
    pub(super) fn new(
        key: &RankKey,
        owner: QuotaKey,
        number: u64,
        communicators: &Communicators,
    ) -> Self {
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
        let (means, names) = (HashSet::new(), 0);
        Self { id, owner, means, names, key: member, facts, done, sequences, last_reading: 0 }
    }

    /// Number of counted combinations of operation and size.
    pub(super) fn combinations(&self) -> usize {
        self.done.len()
    }

    /// Sets the name that a record gives; false if the rank had too many.
    pub(super) fn rename(&mut self, name: Option<&str>) -> bool {
        let Some(name) = name.filter(|name| self.facts.name.as_deref() != Some(name)) else {
            return true;
        };
        let is_allowed = self.names < MAX_NAMES;
        if is_allowed {
            self.names += 1;
            self.facts.name = Some(Arc::from(name));
        }
        is_allowed
    }

    /// The counters of an operation and size, which count towards the process's `combinations`;
    /// `None` beyond the limit.
    fn done(
        &mut self,
        dims: (Operation, SizeClass),
        combinations: &mut usize,
    ) -> Option<&mut CompletedWork> {
        let is_sized = self.done.contains_key(&dims) || *combinations < MAX_COMBINATIONS;
        let dims = if is_sized { dims } else { (dims.0, SizeClass::Unknown) };
        if !self.done.contains_key(&dims) {
            if *combinations >= MAX_UNSIZED {
                return None;
            }
            *combinations += 1;
        }
        Some(self.done.entry(dims).or_default())
    }

    /// Counts a record; false if the process has too many `combinations`.
    pub(super) fn take(&mut self, record: &Record<'_>, combinations: &mut usize) -> bool {
        let class = usize::try_from(size_class(record.bytes)).unwrap_or(usize::MAX);
        let class = SizeClass::ALL.get(class).copied().unwrap_or(SizeClass::Unknown);
        let Some(done) = self.done((record.operation, class), combinations) else { return false };
        done.duration.observe(record.seconds);
        done.bytes = done.bytes.saturating_add(record.bytes);
        done.bus_bytes = done.bus_bytes.saturating_add(record.bus_bytes);
        done.algorithm_bandwidth.observe(record.algorithm_bandwidth);
        done.bus_bandwidth.observe(record.bus_bandwidth);
        if let Some(number) = record.sequence {
            let new = Sequence { first: number, last: number, seen: 0, missed: 0 };
            self.sequences.entry(record.operation).or_insert(new).see(number);
        }
        true
    }

    /// Ends a reading.
    pub(super) fn settle(&mut self) {
        self.sequences.values_mut().for_each(Sequence::settle);
    }

    /// Joins facts that other sources have about the same communicator, and shares its name with
    /// them, and its rank if the process has only one rank in it.
    pub(super) fn join(&mut self, key: &RankKey, is_only: bool, communicators: &Communicators) {
        match (key.hash, self.facts.hash) {
            (Some(text), None) => {
                let hashes = communicators.hashes(key.process);
                let mut matching = hashes.into_iter().filter(|hash| text.is_of(hash.0));
                self.facts.hash = matching.next().filter(|_| matching.next().is_none());
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
            communicators.learn(
                key.process,
                hash,
                CommunicatorUpdate { rank, ranks, name, device: None },
            );
        }
        communicators.put(self.key, self.facts.clone());
    }

    /// Finds the communicator by name and size, if the process has only one with both.
    fn join_by_name(&mut self, key: &RankKey, communicators: &Communicators) {
        let of = communicators.of(key.process);
        let is_matching = |facts: &&Arc<MemberFacts>| {
            facts.hash.is_some() && facts.name == key.name && facts.ranks == Some(key.ranks)
        };
        let matching: Vec<_> = of.iter().filter(is_matching).collect();
        let hashes: HashSet<_> = matching.iter().map(|facts| (facts.hash, facts.rank)).collect();
        let found = matching.first().filter(|_| key.name.is_some() && hashes.len() == 1);
        self.facts.hash = found.and_then(|facts| facts.hash);
        self.facts.rank = found.and_then(|facts| facts.rank);
    }

    /// Exports all completed operations.
    pub(super) fn report(&self, out: &mut Batch) {
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

/// Converts to OTLP's integer.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
