//! The ranks that the Inspector tells of: who they are, joined to what else is known of the
//! process's communicators, and what has completed on each since the agent began to read.

use super::exposition::{Exposition, RowCommunicator};
use super::rank::{Rank, RankKey};
use super::record::Record;
use crate::attribute::quota::QuotaKey;
use crate::catalog::agent::OwnerLimit;
use crate::catalog::inspector::LineOutcome;
use crate::catalog::nccl::Operation;
use crate::communicators::{Communicators, MemberId};
use crate::ids::ProcKey;
use crate::sample::{Batch, Recent};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Ranks kept of one process: a program that makes more has some that no longer communicate.
const MAX_OF_PROCESS: usize = 64;
/// Ranks kept in all; beyond them whoever has most gives one to whoever has fewer.
const MAX_RANKS: usize = 1_024;
/// Means told of one process: eight devices with the most rows that the Inspector writes of one in
/// an interval, some thirty.
const MAX_MEANS: usize = 256;
/// Readings without a record after which a rank makes room for another.
const IDLE: u64 = 60;
/// Marks the number of a membership that the Inspector told of.
const INSPECTED: u64 = 1 << 62;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    known: HashMap<RankKey, Rank>,
    made: u64,
    reading: u64,
    /// Told for the last time at the last reading.
    ended: Vec<MemberId>,
    /// What processes have used up.
    spent: HashMap<ProcKey, LimitUsage>,
    refused: HashMap<(QuotaKey, OwnerLimit), u64>,
}

/// What the ranks of a process use of its limits.
#[derive(Debug, Default)]
struct LimitUsage {
    ranks: usize,
    combinations: usize,
    means: usize,
    /// The last reading in which there was no room for one more rank.
    full: u64,
}

impl Ranks {
    /// Begins a reading.
    pub(super) fn begin(&mut self, communicators: &Communicators) {
        self.reading += 1;
        // Only now: the enrich stage needed their names for their last points.
        for id in self.ended.drain(..) {
            communicators.remove(id);
        }
    }

    /// Counts a completed collective of a process.
    pub(super) fn count(
        &mut self,
        (process, owner): (ProcKey, QuotaKey),
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
        let Some((rank, spent)) = self.rank((&key, owner), communicators) else {
            self.refuse(owner, OwnerLimit::InspectorRanks);
            return LineOutcome::NoRoom;
        };
        let is_named = rank.rename(record.name.as_deref());
        let is_taken = rank.take(record, &mut spent.combinations);
        if !is_named {
            self.refuse(owner, OwnerLimit::RankNames);
        }
        if !is_taken {
            self.refuse(owner, OwnerLimit::InspectorRanks);
            return LineOutcome::NoRoom;
        }
        LineOutcome::Taken
    }

    /// Tells what a file of means says of a process's ranks.
    pub(super) fn levels(
        &mut self,
        (process, owner): (ProcKey, QuotaKey),
        exposition: &Exposition,
        communicators: &Communicators,
    ) -> Vec<(Recent, Operation, super::exposition::Levels)> {
        let mut reported = Vec::new();
        for (row, levels) in exposition {
            let RowCommunicator { hash, rank, name, ranks } = &row.whose;
            let name = name.as_deref().map(Arc::from);
            let key = RankKey { process, hash: *hash, rank: *rank, name, ranks: *ranks };
            let Some(operation) = row.operation() else { continue };
            let Some((rank, spent)) = self.rank((&key, owner), communicators) else {
                self.refuse(owner, OwnerLimit::InspectorRanks);
                continue;
            };
            let (algorithm, protocol) = (row.algorithm, row.protocol);
            let recent = Recent { member: rank.id, algorithm, protocol, size: row.size };
            let is_known = rank.means.contains(&(operation, recent));
            if !is_known && spent.means >= MAX_MEANS {
                self.refuse(owner, OwnerLimit::InspectorRanks);
                continue;
            }
            spent.means += usize::from(rank.means.insert((operation, recent)));
            reported.push((recent, operation, *levels));
        }
        reported
    }

    /// Ends a reading: what is known elsewhere is joined, ranks of processes that ended are told
    /// for the last time.
    pub(super) fn end(&mut self, gone: &HashSet<ProcKey>, communicators: &Communicators) {
        let mut alike: HashMap<_, u32> = HashMap::new();
        for key in self.known.keys() {
            *alike.entry((key.process, key.hash)).or_insert(0) += 1;
        }
        for (key, rank) in &mut self.known {
            rank.settle();
            if !gone.contains(&key.process) {
                let is_only = alike.get(&(key.process, key.hash)) == Some(&1);
                rank.join(key, is_only, communicators);
            }
        }
    }

    /// Everything.
    pub(super) fn report(&self, out: &mut Batch) {
        for rank in self.known.values() {
            rank.report(out);
        }
    }

    /// Forgets the ranks of processes that have ended, after they were told.
    pub(super) fn remove_processes(&mut self, gone: &HashSet<ProcKey>) {
        let ended = &mut self.ended;
        self.known.retain(|key, rank| {
            let stays = !gone.contains(&key.process);
            if !stays {
                ended.push(rank.id);
            }
            stays
        });
        self.spent.retain(|process, _| !gone.contains(process));
    }

    /// What owners were refused since this was last asked.
    pub(super) fn take_refused(&mut self) -> HashMap<(QuotaKey, OwnerLimit), u64> {
        std::mem::take(&mut self.refused)
    }

    fn refuse(&mut self, owner: QuotaKey, limit: OwnerLimit) {
        *self.refused.entry((owner, limit)).or_default() += 1;
    }

    /// A rank, made if it is new, and what its process has used up; `None` where there is no room.
    fn rank(
        &mut self,
        (key, owner): (&RankKey, QuotaKey),
        communicators: &Communicators,
    ) -> Option<(&mut Rank, &mut LimitUsage)> {
        if !self.known.contains_key(key) {
            if !self.make_room(key.process, owner) {
                return None;
            }
            self.made += 1;
            let number = INSPECTED | self.made;
            let rank = Rank::new((key, owner), number, communicators);
            self.known.insert(key.clone(), rank);
            self.spent.entry(key.process).or_default().ranks += 1;
        }
        let rank = self.known.get_mut(key)?;
        rank.heard = self.reading;
        Some((rank, self.spent.entry(key.process).or_default()))
    }

    /// Whether there is room for one more rank of a process: free, that of an idle one of its own,
    /// or of the owner with the most. One without is asked again at the next reading.
    fn make_room(&mut self, process: ProcKey, owner: QuotaKey) -> bool {
        let spent = self.spent.entry(process).or_default();
        if spent.full == self.reading {
            return false;
        }
        let is_full = spent.ranks >= MAX_OF_PROCESS;
        if !is_full && self.known.len() < MAX_RANKS {
            return true;
        }
        let mine = self.known.iter().filter(|(key, _)| key.process == process);
        let oldest = mine.min_by_key(|(_, rank)| rank.heard);
        let idle = oldest.filter(|(_, rank)| rank.heard + IDLE < self.reading);
        let idle = idle.map(|(key, _)| key.clone());
        let of_others = || if is_full { None } else { self.of_most(owner) };
        let Some(key) = idle.or_else(of_others) else {
            self.spent.entry(process).or_default().full = self.reading;
            return false;
        };
        self.remove(&key);
        true
    }

    /// The rank that was not heard of for longest, of the owner with the most, if that has more than
    /// this one would.
    fn of_most(&self, owner: QuotaKey) -> Option<RankKey> {
        let mut counts: HashMap<QuotaKey, usize> = HashMap::new();
        for rank in self.known.values() {
            *counts.entry(rank.owner).or_default() += 1;
        }
        let own = counts.get(&owner).copied().unwrap_or(0);
        let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let of_most = self.known.iter().filter(|(_, rank)| rank.owner == most);
        let count = of_most.clone().count();
        let oldest = of_most.min_by_key(|(_, rank)| rank.heard).filter(|_| count > own + 1);
        oldest.map(|(key, _)| key.clone())
    }

    fn remove(&mut self, key: &RankKey) {
        let Some(rank) = self.known.remove(key) else { return };
        self.ended.push(rank.id);
        if let Some(spent) = self.spent.get_mut(&key.process) {
            spent.ranks = spent.ranks.saturating_sub(1);
            spent.combinations = spent.combinations.saturating_sub(rank.combinations());
            spent.means = spent.means.saturating_sub(rank.means.len());
        }
    }
}

#[cfg(test)]
mod tests;
