//! Places in the maps that owners were refused, by owner: counted by the programs, told in
//! `gpuwho.owner.refused` and in words.

use super::quota::{ByKind, EachOwner};
use crate::attribute::owner::OwnerId;
use crate::attribute::ownership::Ownership;
use crate::attribute::quota::QuotaKey;
use crate::catalog::agent::OwnerLimit;
use gpuwho_common::nccl::{EVERYBODY, PLACES, STRANGERS};
use std::collections::{HashMap, HashSet};

/// What each kind of place is for.
const KINDS: [OwnerLimit; PLACES] =
    [OwnerLimit::Communicators, OwnerLimit::Operations, OwnerLimit::Threads, OwnerLimit::UniqueIds];

/// Refusals so far.
#[derive(Debug, Default)]
pub(in super::super) struct Denials {
    /// As the programs had counted them at the last reading.
    before: HashMap<u32, ByKind>,
    /// Owners of whom it was said in the log.
    said: HashSet<u32>,
    /// Of the owner that was refused most since the last reading.
    now: Option<String>,
}

impl Denials {
    /// Takes the counts of a reading. An owner is named once in the log, and while it is refused more.
    pub(in super::super) fn note(&mut self, counted: &EachOwner, ownership: &Ownership) {
        let mut most = (0, None);
        for (owner, places) in counted.iter().filter(|(owner, _)| **owner != EVERYBODY) {
            let before = self.before.get(owner).copied().unwrap_or_default();
            // A row that was given again begins at nothing.
            let new: ByKind = std::array::from_fn(|kind| {
                let of = |all: &ByKind| all.get(kind).copied().unwrap_or(0);
                of(&places.refused).checked_sub(of(&before)).unwrap_or(of(&places.refused))
            });
            let sum: u64 = new.iter().sum();
            for (kind, count) in KINDS.into_iter().zip(new).filter(|(_, count)| *count > 0) {
                ownership.refuse(key(ownership, *owner), kind, count);
            }
            if sum > most.0 {
                most = (sum, Some((*owner, new)));
            }
            if sum > 0 && self.said.insert(*owner) {
                let (owner, refused) = (name(ownership, *owner), describe(new));
                tracing::warn!(owner, refused, "an owner holds all places of the maps that it may");
            }
        }
        self.said.retain(|owner| counted.contains_key(owner));
        self.before = counted.iter().map(|(owner, places)| (*owner, places.refused)).collect();
        self.now = most.1.map(|(owner, new)| {
            format!(
                "{} holds all places that it may: refused {}",
                name(ownership, owner),
                describe(new)
            )
        });
    }

    /// Of whom, if of anybody, something was refused since the last reading but one.
    pub(in super::super) fn now(&self) -> Option<&str> {
        self.now.as_deref()
    }
}

fn key(ownership: &Ownership, owner: u32) -> QuotaKey {
    let id = OwnerId::numbered(owner);
    let key = ownership.owner(id).and_then(|facts| QuotaKey::of_owner(id, &facts.owner));
    key.unwrap_or(QuotaKey::UNKNOWN)
}

fn describe(refused: ByKind) -> String {
    let kinds = refused.iter().zip(KINDS).filter(|(count, _)| **count > 0);
    kinds.map(|(count, kind)| format!("{count} {}", kind.as_str())).collect::<Vec<_>>().join(", ")
}

/// An owner in words, for a person.
pub(in super::super) fn name(ownership: &Ownership, owner: u32) -> String {
    if owner == STRANGERS {
        return "processes that hold no device".to_owned();
    }
    let facts = ownership.owner(OwnerId::numbered(owner));
    let Some(facts) = facts else { return format!("owner {owner}") };
    let words = facts.attributes.iter().map(|(_, value)| value.to_string());
    words.collect::<Vec<_>>().join(" ").escape_debug().to_string()
}
