//! The ranks in the Inspector's files, joined to the process's communicators known from other
//! sources, and their completed operations since the agent started to read.

use super::exposition::{Exposition, RowCommunicator};
use super::rank::{Rank, RankKey};
use super::record::Record;
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::inspector::LineOutcome;
use gpuwho_model::catalog::nccl::Operation;
use gpuwho_model::ids::MemberId;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::{Batch, Recent};
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::communicators::Communicators;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Limit on the ranks of one process: beyond it, some no longer communicate.
const MAX_OF_PROCESS: usize = 64;
/// Limit on all ranks; beyond it, the owner with the most ranks gives one up for an owner with
/// fewer.
const MAX_RANKS: usize = 1_024;
/// Limit on the means of one process: eight devices with the maximum of about thirty rows that the
/// Inspector writes for a device in an interval.
const MAX_MEANS: usize = 256;
/// Readings without a record after which a rank may be replaced.
const IDLE: u64 = 60;
/// Marks the member numbers of ranks from the Inspector's files.
const INSPECTED: u64 = 1 << 62;

/// All ranks.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    known: HashMap<RankKey, Rank>,
    made: u64,
    reading: u64,
    /// Ranks whose last points were exported at the last reading.
    ended: Vec<MemberId>,
    /// Usage of each process.
    spent: HashMap<ProcKey, LimitUsage>,
    refused: HashMap<(QuotaKey, OwnerLimit), u64>,
}

/// How much of its limits a process uses.
#[derive(Debug, Default)]
struct LimitUsage {
    ranks: usize,
    combinations: usize,
    means: usize,
    /// The last reading in which there was no room for another rank.
    full: u64,
}

impl Ranks {
    /// Begins a reading.
    pub(super) fn begin(&mut self, communicators: &Communicators) {
        self.reading += 1;
        // Removed only now: the enrich stage needed their names for the last points.
        for id in self.ended.drain(..) {
            communicators.remove(id);
        }
    }

    /// Counts a completed collective of a process.
    pub(super) fn count(
        &mut self,
        process: ProcKey,
        owner: QuotaKey,
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
        let Some((rank, spent)) = self.rank(&key, owner, communicators) else {
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

    /// Returns the values of a metrics file by rank of a process.
    pub(super) fn levels(
        &mut self,
        process: ProcKey,
        owner: QuotaKey,
        exposition: &Exposition,
        communicators: &Communicators,
    ) -> Vec<(Recent, Operation, super::exposition::Levels)> {
        let mut reported = Vec::new();
        for (row, levels) in exposition {
            let RowCommunicator { hash, rank, name, ranks } = &row.communicator;
            let name = name.as_deref().map(Arc::from);
            let key = RankKey { process, hash: *hash, rank: *rank, name, ranks: *ranks };
            let Some(operation) = row.operation() else { continue };
            let Some((rank, spent)) = self.rank(&key, owner, communicators) else {
                self.refuse(owner, OwnerLimit::InspectorRanks);
                continue;
            };
            let recent = Recent { member: rank.id, method: row.method, size: row.size };
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

    /// Ends a reading: joins facts from other sources. Ranks of ended processes are exported once
    /// more.
    pub(super) fn end(&mut self, gone: &HashSet<ProcKey>, communicators: &Communicators) {
        let mut same: HashMap<_, u32> = HashMap::new();
        for key in self.known.keys() {
            *same.entry((key.process, key.hash)).or_insert(0) += 1;
        }
        for (key, rank) in &mut self.known {
            rank.settle();
            if !gone.contains(&key.process) {
                let is_only = same.get(&(key.process, key.hash)) == Some(&1);
                rank.join(key, is_only, communicators);
            }
        }
    }

    /// Exports all ranks.
    pub(super) fn report(&self, out: &mut Batch) {
        for rank in self.known.values() {
            rank.report(out);
        }
    }

    /// Removes the ranks of ended processes, after their last export.
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

    /// Takes the refusals by owner and limit since the last call.
    pub(super) fn take_refused(&mut self) -> HashMap<(QuotaKey, OwnerLimit), u64> {
        std::mem::take(&mut self.refused)
    }

    fn refuse(&mut self, owner: QuotaKey, limit: OwnerLimit) {
        *self.refused.entry((owner, limit)).or_default() += 1;
    }

    /// A rank, created if new, and its process's usage; `None` if there is no room.
    fn rank(
        &mut self,
        key: &RankKey,
        owner: QuotaKey,
        communicators: &Communicators,
    ) -> Option<(&mut Rank, &mut LimitUsage)> {
        if !self.known.contains_key(key) {
            if !self.make_room(key.process, owner) {
                return None;
            }
            self.made += 1;
            let number = INSPECTED | self.made;
            let rank = Rank::new(key, owner, number, communicators);
            self.known.insert(key.clone(), rank);
            self.spent.entry(key.process).or_default().ranks += 1;
        }
        let rank = self.known.get_mut(key)?;
        rank.last_reading = self.reading;
        Some((rank, self.spent.entry(key.process).or_default()))
    }

    /// Whether there is room for one more rank of a process: a free slot, an idle rank of its own,
    /// or a rank of the owner with the most. A refused process is retried at the next reading.
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
        let oldest = mine.min_by_key(|(_, rank)| rank.last_reading);
        let idle = oldest.filter(|(_, rank)| rank.last_reading + IDLE < self.reading);
        let idle = idle.map(|(key, _)| key.clone());
        let of_others = || if is_full { None } else { self.of_largest_owner(owner) };
        let Some(key) = idle.or_else(of_others) else {
            self.spent.entry(process).or_default().full = self.reading;
            return false;
        };
        self.remove(&key);
        true
    }

    /// The least recently updated rank of the owner with the most ranks, if that owner has more
    /// than this one would have.
    fn of_largest_owner(&self, owner: QuotaKey) -> Option<RankKey> {
        let mut counts: HashMap<QuotaKey, usize> = HashMap::new();
        for rank in self.known.values() {
            *counts.entry(rank.owner).or_default() += 1;
        }
        let own = counts.get(&owner).copied().unwrap_or(0);
        let (largest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let of_largest = self.known.iter().filter(|(_, rank)| rank.owner == largest);
        let count = of_largest.clone().count();
        let oldest =
            of_largest.min_by_key(|(_, rank)| rank.last_reading).filter(|_| count > own + 1);
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
