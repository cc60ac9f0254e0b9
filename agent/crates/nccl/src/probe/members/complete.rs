//! Identifies communicators whose creation the probes did not see, because they are older than the
//! agent or come from one that is: rank, size, device and hash are read from the memory of the
//! process, at the offsets found in the library's code, or taken from NCCL's own status.
//!
//! Reads only handles that the library has accepted as communicators: some bytes, once; implausible
//! values are dropped. If the process has a communicator whose creation was seen, the offsets are
//! verified on that one first, and one wrong number invalidates them for the process.

use super::{Member, Processes, known};
use crate::probe::libraries::fields::Fields;
use crate::probe::maps::Snapshot;
use gpuwho_common::nccl::{Communicator, MADE, UNKNOWN};
use gpuwho_model::catalog::nccl::KnownBy;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::communicators::{CommunicatorHash, LocalRanks};
use gpuwho_owners::tenant_files::TenantFiles;
use std::collections::{HashMap, HashSet};

/// More ranks than any communicator has.
const MAX_RANKS: u32 = 1 << 20;
/// More devices than any process sees.
const MAX_DEVICES: u32 = 1_024;
/// Maximum distance of the fields; they are adjacent in every version.
const MAX_SPAN: u32 = 4_096;
/// Readings at which a communicator that is not ready yet is tried.
const TRIES: u8 = 5;
/// Upper limit of user-space addresses; a hash is below it once in 65,536 times.
const ADDRESSES: u64 = 1 << 48;

/// The facts found about a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Completed {
    pub hash: Option<CommunicatorHash>,
    pub rank: u32,
    pub ranks: u32,
    pub device: Option<u32>,
    pub by: KnownBy,
}

/// Sources of the facts.
pub(in super::super) struct Sources<'a> {
    pub files: &'a TenantFiles,
    pub processes: &'a dyn Processes,
    pub fields: &'a HashMap<ProcKey, Fields>,
}

/// The results so far, by the communicators' numbers.
#[derive(Debug, Default)]
pub(in super::super) struct Completion {
    found: HashMap<u64, Completed>,
    tried: HashMap<u64, u8>,
    /// The verified offsets of each process; `None` if one was wrong.
    checked: HashMap<ProcKey, Option<Fields>>,
}

impl Completion {
    /// Reads the memory of unknown communicators, and puts all results into the snapshot.
    pub(in super::super) fn read(&mut self, snapshot: &mut Snapshot, sources: &Sources<'_>) {
        let there: HashSet<u64> =
            snapshot.communicators.iter().map(|(number, _)| *number).collect();
        self.found.retain(|number, _| there.contains(number));
        self.tried.retain(|number, _| there.contains(number));
        self.checked.retain(|process, _| sources.fields.contains_key(process));
        if !sources.fields.is_empty() {
            self.check(snapshot, sources);
            let unknown = snapshot.communicators.iter().filter(|(_, c)| is_unknown(c));
            for (number, communicator) in unknown {
                self.try_one(*number, communicator, sources);
            }
        }
        snapshot.completed.clone_from(&self.found);
    }

    /// Takes the ranks in NCCL's status for communicators without hash, if the assignment is
    /// unambiguous.
    pub(in super::super) fn take(
        &mut self,
        snapshot: &Snapshot,
        members: &[Member],
        ranks: &LocalRanks,
    ) {
        for (process, reported) in ranks {
            let mine = || members.iter().filter(|member| member.facts.process == *process);
            let named: HashSet<CommunicatorHash> = mine().filter_map(|m| m.facts.hash).collect();
            let nameless: HashSet<u64> = mine()
                .filter(|member| member.facts.hash.is_none())
                .flat_map(|member| member.numbers.iter().copied())
                .collect();
            let was_there = |(number, c): &&(u64, Communicator)| {
                nameless.contains(number) && is_used(c) && c.identity.born_ns < reported.as_of_ns
            };
            let numbers: Vec<u64> = snapshot
                .communicators
                .iter()
                .filter(was_there)
                .map(|(number, _)| *number)
                .collect();
            let open: Vec<Completed> = reported
                .ranks
                .iter()
                .filter(|rank| !named.contains(&rank.hash))
                .map(|rank| Completed {
                    hash: Some(rank.hash),
                    rank: rank.rank,
                    ranks: rank.ranks,
                    device: rank.device,
                    by: KnownBy::Ras,
                })
                .collect();
            for (number, rank) in self.pairs(&numbers, &open) {
                self.found.insert(number, rank);
            }
        }
    }

    /// Pairs of which each side fits only the other.
    fn pairs(&self, numbers: &[u64], open: &[Completed]) -> Vec<(u64, Completed)> {
        let fits = |number: &u64, rank: &Completed| {
            self.found.get(number).is_none_or(|read| {
                let same_device = read.device.zip(rank.device).is_none_or(|(one, two)| one == two);
                (read.rank, read.ranks) == (rank.rank, rank.ranks) && same_device
            })
        };
        let mut pairs = Vec::new();
        for number in numbers {
            let mut fitting = open.iter().filter(|rank| fits(number, rank));
            let (Some(rank), None) = (fitting.next(), fitting.next()) else { continue };
            if numbers.iter().filter(|other| fits(other, rank)).count() == 1 {
                pairs.push((*number, *rank));
            }
        }
        pairs
    }

    /// Verifies the offsets on a known communicator, once per process.
    fn check(&mut self, snapshot: &Snapshot, sources: &Sources<'_>) {
        for (number, communicator) in snapshot.communicators.iter().filter(|(_, c)| is_known(c)) {
            let identity = &communicator.identity;
            if self.tried.get(number).is_some_and(|tried| *tried >= TRIES) {
                continue;
            }
            let process = sources.processes.find(identity.pid, identity.start_ns);
            let Some(process) = process.filter(|process| !self.checked.contains_key(process))
            else {
                continue;
            };
            let Some(fields) = sources.fields.get(&process) else { continue };
            *self.tried.entry(*number).or_insert(0) += 1;
            let Some(read) = read(sources.files, process, identity.handle, fields) else {
                continue;
            };
            let mut holds = Some(*fields);
            if (read.rank, read.ranks) != (identity.rank, identity.ranks) {
                tracing::warn!(%process, "the ranks are not at the offsets found in the library's code");
                holds = None;
            } else if read.hash.is_some_and(|hash| hash.0 != identity.hash) {
                tracing::debug!(%process, "the field next to the rank is not the hash");
                holds = Some(Fields { hash: None, ..*fields });
            }
            self.checked.insert(process, holds);
        }
    }

    fn try_one(&mut self, number: u64, communicator: &Communicator, sources: &Sources<'_>) {
        let identity = &communicator.identity;
        let tried = self.tried.entry(number).or_insert(0);
        if *tried >= TRIES || self.found.contains_key(&number) {
            return;
        }
        let Some(process) = sources.processes.find(identity.pid, identity.start_ns) else { return };
        let default = || sources.fields.get(&process).copied();
        let checked = self.checked.get(&process).copied();
        let Some(fields) = checked.unwrap_or_else(default) else { return };
        *tried += 1;
        if let Some(read) = read(sources.files, process, identity.handle, &fields) {
            self.found.insert(number, read);
        }
    }
}

/// In use, with unknown facts.
fn is_unknown(communicator: &Communicator) -> bool {
    let identity = &communicator.identity;
    let is_whole = identity.rank != UNKNOWN && identity.ranks != UNKNOWN;
    is_used(communicator) && (identity.hash == 0 || !is_whole)
}

/// In use, with all facts known from its creation.
fn is_known(communicator: &Communicator) -> bool {
    let identity = &communicator.identity;
    is_used(communicator)
        && identity.origin == MADE
        && identity.hash != 0
        && known(identity.rank).is_some()
        && known(identity.ranks).is_some()
}

/// Created, not ended, and accepted by the library at least once.
fn is_used(communicator: &Communicator) -> bool {
    let activity = &communicator.activity;
    communicator.identity.born_ns != 0 && activity.ended_ns == 0 && activity.calls > activity.errors
}

fn read(files: &TenantFiles, process: ProcKey, handle: u64, fields: &Fields) -> Option<Completed> {
    let places = [Some(fields.rank), Some(fields.ranks), fields.device, fields.hash];
    let places = || places.iter().flatten().copied();
    let (first, last) = (places().min()?, places().max()?);
    let length = last.checked_sub(first).filter(|span| *span <= MAX_SPAN)? + 8;
    let address = handle.checked_add(first.into())?;
    let bytes = files.memory(process, address, usize::try_from(length).ok()?).ok()?;
    let at = |place: u32| bytes.get(usize::try_from(place - first).ok()?..);
    let number = |place: u32| Some(u32::from_le_bytes(*at(place)?.first_chunk()?));
    let (rank, ranks) = (number(fields.rank)?, number(fields.ranks)?);
    let device = fields.device.and_then(number);
    let is_sound =
        rank < ranks && ranks <= MAX_RANKS && device.is_none_or(|device| device < MAX_DEVICES);
    let hash = fields.hash.and_then(|place| Some(u64::from_le_bytes(*at(place)?.first_chunk()?)));
    let hash = hash.filter(|hash| *hash >= ADDRESSES).map(CommunicatorHash);
    is_sound.then_some(Completed { hash, rank, ranks, device, by: KnownBy::Memory })
}

#[cfg(test)]
mod tests;
