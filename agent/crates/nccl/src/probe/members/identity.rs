//! Identifies communicators: the hash comes from the unique id or from the parent; rank, size and
//! name come from the arguments of the creating call, from the colors and keys of all ranks if all
//! ranks of the parent are on this node, or from another source.

use super::complete::Completed;
use super::{Processes, known};
use crate::probe::maps::Snapshot;
use gpuwho_common::nccl::{
    Communicator, GROWN, Hash, Identity, MADE, MADE_LOCALLY, Name, SHRUNK, SPLIT, Thread, UNKNOWN,
};
use gpuwho_model::catalog::nccl::KnownBy;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::communicators::{CommunicatorHash, MemberFacts, MemberKey, Origin, name_of};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A communicator of the maps, with its identity.
#[derive(Debug)]
pub(super) struct IdentifiedCommunicator {
    pub number: u64,
    pub communicator: Communicator,
    pub key: MemberKey,
    pub facts: MemberFacts,
    /// Its size, if the programs do not have it yet.
    pub newly_sized: Option<u32>,
}

/// The facts from a communicator's creation, besides rank and size.
#[derive(Debug, Default)]
struct BirthRecord {
    hash: Option<CommunicatorHash>,
    /// The base of the hashes of its grown children.
    base: Option<u64>,
    /// The name set by the program.
    name: Option<Arc<str>>,
}

/// Marks the number of a member that stands for all communicators without a hash that have one rank
/// and size.
const RANKED: u64 = 1 << 62;

/// Facts about a communicator from elsewhere.
struct Place {
    /// The hash of its parent.
    parent: Option<CommunicatorHash>,
    /// Rank and size, from the colors and keys of all ranks.
    divided: Option<(u32, u32)>,
    /// Facts from the process's memory or from NCCL's status.
    reported: Option<Completed>,
}

/// The creation records so far, by number.
#[derive(Debug, Default)]
pub(super) struct Lineage(HashMap<u64, BirthRecord>);

impl Lineage {
    /// Identifies all communicators of a snapshot, parents first. Also returns the numbers of those
    /// whose process is unknown.
    pub(super) fn identify(
        &mut self,
        snapshot: &Snapshot,
        processes: &dyn Processes,
    ) -> (Vec<IdentifiedCommunicator>, Vec<u64>) {
        let born = snapshot.communicators.iter().filter(|(_, c)| c.identity.born_ns != 0);
        let mut born: Vec<&(u64, Communicator)> = born.collect();
        born.sort_by_key(|(number, c)| (c.identity.born_ns, *number));
        // A child's number is valid only if no earlier child can have been missed.
        let followed: HashSet<u64> = born
            .iter()
            .filter(|(_, parent)| is_followed(&parent.identity, processes))
            .map(|(number, _)| *number)
            .collect();
        for (number, communicator) in &born {
            let identity = &communicator.identity;
            let is_counted = identity.origin == SHRUNK || followed.contains(&identity.parent);
            let child = known(identity.child).filter(|_| is_counted);
            let (hash, base) = self.hash(*number, identity, child, &snapshot.completed);
            let known = self.0.entry(*number).or_default();
            known.hash = known.hash.or(hash);
            known.base = known.base.or(base);
            if known.name.is_none() {
                known.name = snapshot.names.get(number).and_then(name);
            }
        }
        let divided = divided(&born, &self.0);
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        let reported = |number: &u64| snapshot.completed.get(number).copied();
        for (number, communicator) in born {
            let place = Place {
                parent: self.known(communicator.identity.parent, &snapshot.completed),
                divided: divided.get(number).copied(),
                reported: reported(number),
            };
            match self.identified(*number, communicator, &place, processes) {
                Some(one) => found.push(one),
                None => lost.push(*number),
            }
        }
        (found, lost)
    }

    /// Removes one; its children keep their hashes.
    pub(super) fn remove(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// The hash from creation.
    fn born(&self, number: u64) -> Option<CommunicatorHash> {
        self.0.get(&number)?.hash
    }

    /// The hash from creation, or from elsewhere.
    fn known(&self, number: u64, reported: &HashMap<u64, Completed>) -> Option<CommunicatorHash> {
        self.born(number).or_else(|| reported.get(&number)?.hash)
    }

    /// The hash, and the base for grown children, for the `child`-th child of its parent.
    fn hash(
        &self,
        number: u64,
        identity: &Identity,
        child: Option<u32>,
        reported: &HashMap<u64, Completed>,
    ) -> (Option<CommunicatorHash>, Option<u64>) {
        // A reported hash of this communicator makes a reported hash of its parent unnecessary.
        let is_reported = reported.get(&number).is_some_and(|reported| reported.hash.is_some());
        let made_from = identity.parent;
        let parent =
            || if is_reported { self.born(made_from) } else { self.known(made_from, reported) };
        let seen = |word: u64| (word != 0).then_some(word);
        let (hash, base) = match identity.origin {
            MADE => (seen(identity.hash), seen(identity.base)),
            // Created internally from a unique id, which is visible if returns are probed.
            MADE_LOCALLY if identity.hash != 0 => (seen(identity.hash), seen(identity.base)),
            // Not visible: no other process has the hash either, so any unique one will do.
            MADE_LOCALLY => {
                let process = Hash::START.item(8).word(identity.start_ns ^ u64::from(identity.pid));
                (seen(process.item(8).word(identity.born_ns).digest()), None)
            }
            SPLIT | SHRUNK => {
                let hash = child
                    .zip(parent())
                    .map(|(child, parent)| Hash::of_child(parent.0, child, identity.color));
                (hash, hash)
            }
            GROWN => {
                let parents = || self.0.get(&made_from)?.base;
                let counted = || Some(Hash::combine(parents()?, child?.into()));
                let base = seen(identity.base).or_else(counted);
                (base.and_then(|base| grown(base, identity.ranks)), base)
            }
            _ => (None, None),
        };
        (hash.map(CommunicatorHash), base)
    }

    fn identified(
        &self,
        number: u64,
        communicator: &Communicator,
        place: &Place,
        processes: &dyn Processes,
    ) -> Option<IdentifiedCommunicator> {
        let identity = &communicator.identity;
        let process = processes.find(identity.pid, identity.start_ns)?;
        let known_at_birth = self.0.get(&number);
        let born = known_at_birth.and_then(|born| born.hash);
        let hash = born.or(place.reported.and_then(|reported| reported.hash));
        let nameless = nameless(process, identity.library, processes);
        let mut facts = MemberFacts { hash, ..nameless };
        if hash.is_some() {
            facts.name = known_at_birth.and_then(|born| born.name.clone());
        }
        let mut newly_sized = None;
        // Members without hash and rank are merged, so their other facts are meaningless.
        if hash.is_some() || place.reported.is_some() {
            let (rank, ranks) = place.divided.unzip();
            facts.rank =
                known(identity.rank).or(rank).or(place.reported.map(|reported| reported.rank));
            facts.ranks =
                known(identity.ranks).or(ranks).or(place.reported.map(|reported| reported.ranks));
            facts.device =
                known(identity.device).or(place.reported.and_then(|reported| reported.device));
            facts.parent = place.parent;
            facts.origin = origin(identity.origin);
            facts.known_by = match place.reported {
                Some(reported) if born.is_none() => reported.by,
                _ => KnownBy::Birth,
            };
            newly_sized = facts.ranks.filter(|_| identity.ranks == UNKNOWN);
        }
        let number_of = match (hash, facts.rank.zip(facts.ranks)) {
            (Some(_), _) => number,
            // Those with the same rank and size cannot be distinguished.
            (None, Some((rank, ranks))) => {
                RANKED | u64::from(rank % (1 << 30)) << 32 | u64::from(ranks)
            }
            (None, None) => 0,
        };
        let key = MemberKey { process, number: number_of };
        Some(IdentifiedCommunicator {
            number,
            communicator: *communicator,
            key,
            facts,
            newly_sized,
        })
    }
}

/// Rank and size of the children of a split, by number, if all ranks of the parent are on this node
/// and have called split.
fn divided(
    born: &[&(u64, Communicator)],
    known_at_birth: &HashMap<u64, BirthRecord>,
) -> HashMap<u64, (u32, u32)> {
    let hash = |number: &u64| known_at_birth.get(number)?.hash;
    let mut families: HashMap<CommunicatorHash, Vec<&(u64, Communicator)>> = HashMap::new();
    for one in born {
        if let Some(hash) = hash(&one.0) {
            families.entry(hash).or_default().push(one);
        }
    }
    let mut places = HashMap::new();
    for siblings in families.values() {
        let Some((_, first)) = siblings.first().filter(|(_, c)| c.identity.origin == SPLIT) else {
            continue;
        };
        let Some(parents) = hash(&first.identity.parent).and_then(|hash| families.get(&hash))
        else {
            continue;
        };
        let Some(ranks) = known(parents.first().map_or(UNKNOWN, |(_, c)| c.identity.ranks)) else {
            continue;
        };
        let is_split =
            |(_, parent): &&&(u64, Communicator)| parent.activity.children >= first.identity.child;
        let splitting = parents.iter().filter(is_split).map(|(_, c)| c.identity.rank);
        if splitting.collect::<HashSet<u32>>().len() as u64 != u64::from(ranks) {
            continue;
        }
        places.extend(ordered(siblings, parents));
    }
    places
}

/// Orders by key, then by rank in the parent, as `ncclCommSplit` specifies.
fn ordered(
    siblings: &[&(u64, Communicator)],
    parents: &[&(u64, Communicator)],
) -> Vec<(u64, (u32, u32))> {
    let ranks: HashMap<u64, u32> =
        parents.iter().map(|(number, parent)| (*number, parent.identity.rank)).collect();
    let mut order: Vec<(i32, u32, u64)> = siblings
        .iter()
        .map(|(number, c)| {
            let before = ranks.get(&c.identity.parent).copied().unwrap_or(UNKNOWN);
            (c.identity.key.cast_signed(), before, *number)
        })
        .collect();
    order.sort_unstable();
    let size = u32::try_from(order.len()).unwrap_or(UNKNOWN);
    (0_u32..).zip(order).map(|(rank, (_, _, number))| (number, (rank, size))).collect()
}

/// Created after the last time at which creations in its library may have been missed.
fn is_followed(identity: &Identity, processes: &dyn Processes) -> bool {
    let process = processes.find(identity.pid, identity.start_ns);
    process.is_some_and(|process| identity.born_ns > processes.gap_ns(process, identity.library))
}

/// A member with only its process and library.
fn nameless(process: ProcKey, file: u32, processes: &dyn Processes) -> MemberFacts {
    let (version, library) = processes.library(process, file).unzip();
    MemberFacts { version, library, ..MemberFacts::new(process) }
}

/// The facts in the arguments of a creating call that has not returned.
pub(super) fn expected(process: ProcKey, thread: &Thread, called: Option<&Name>) -> MemberFacts {
    let expected = &thread.expected;
    let grown = grown(expected.base, expected.ranks)
        .filter(|_| thread.open.detail == GROWN && expected.base != 0);
    let hash = if expected.hash == 0 { grown } else { Some(expected.hash) };
    MemberFacts {
        hash: hash.map(CommunicatorHash),
        name: called.and_then(name),
        rank: known(expected.rank),
        ranks: known(expected.ranks),
        origin: origin(thread.open.detail),
        ..MemberFacts::new(process)
    }
}

/// The hash of a communicator that was grown.
fn grown(base: u64, ranks: u32) -> Option<u64> {
    known(ranks).map(|ranks| Hash::combine(base, ranks.into()))
}

/// The text before the NUL byte.
fn name(name: &Name) -> Option<Arc<str>> {
    name_of(name.text.split(|byte| *byte == 0).next()?)
}

fn origin(code: u32) -> Origin {
    match code {
        MADE => Origin::UniqueId,
        MADE_LOCALLY => Origin::InitAll,
        SPLIT => Origin::Split,
        SHRUNK => Origin::Shrink,
        GROWN => Origin::Grow,
        _ => Origin::Unknown,
    }
}

#[cfg(test)]
mod tests;
