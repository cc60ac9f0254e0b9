//! Refused map entries by owner: counted by the programs, exported as `gpuwho.owner.refused` and
//! described in the status.

use super::quota::{ByKind, EachOwner};
use gpuwho_common::nccl::{EVERYBODY, PLACES, STRANGERS};
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::ids::OwnerId;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::{HashMap, HashSet};

/// The limit behind each kind of entry.
const KINDS: [OwnerLimit; PLACES] =
    [OwnerLimit::Communicators, OwnerLimit::Operations, OwnerLimit::Threads, OwnerLimit::UniqueIds];

/// The refusals so far.
#[derive(Debug, Default)]
pub(in super::super) struct Denials {
    /// The programs' counts at the last reading.
    before: HashMap<u32, ByKind>,
    /// Owners that were already logged.
    logged: HashSet<u32>,
    /// Describes the owner with the most refusals since the last reading.
    now: Option<String>,
}

impl Denials {
    /// Takes the counts of a reading. An owner is logged once, until it disappears from the counts.
    pub(in super::super) fn note(&mut self, counted: &EachOwner, ownership: &Ownership) {
        let mut worst = (0, None);
        for (owner, places) in counted.iter().filter(|(owner, _)| **owner != EVERYBODY) {
            let before = self.before.get(owner).copied().unwrap_or_default();
            // A reused row starts at zero.
            let new: ByKind = std::array::from_fn(|kind| {
                let of = |all: &ByKind| all.get(kind).copied().unwrap_or(0);
                of(&places.refused).checked_sub(of(&before)).unwrap_or(of(&places.refused))
            });
            let sum: u64 = new.iter().sum();
            for (kind, count) in KINDS.into_iter().zip(new).filter(|(_, count)| *count > 0) {
                ownership.refuse(key(ownership, *owner), kind, count);
            }
            if sum > worst.0 {
                worst = (sum, Some((*owner, new)));
            }
            if sum > 0 && self.logged.insert(*owner) {
                let (owner, refused) = (name(ownership, *owner), describe(new));
                tracing::warn!(owner, refused, "an owner uses all map entries that it may");
            }
        }
        self.logged.retain(|owner| counted.contains_key(owner));
        self.before = counted.iter().map(|(owner, places)| (*owner, places.refused)).collect();
        self.now = worst.1.map(|(owner, new)| {
            format!(
                "{} uses all map entries that it may: refused {}",
                name(ownership, owner),
                describe(new)
            )
        });
    }

    /// Describes the owner that was refused most at the last reading, if any was.
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

/// Describes an owner as text.
pub(in super::super) fn name(ownership: &Ownership, owner: u32) -> String {
    if owner == STRANGERS {
        return "processes that hold no device".to_owned();
    }
    let facts = ownership.owner(OwnerId::numbered(owner));
    let Some(facts) = facts else { return format!("owner {owner}") };
    let texts = facts.attributes.iter().map(|(_, value)| value.to_string());
    texts.collect::<Vec<_>>().join(" ").escape_debug().to_string()
}
