//! The subjects of a source's series, by number.

use super::identity::SubjectLookup;
use crate::identity::Identity;
use gpuwho_model::sample::{Subject, make_room};
use std::collections::HashMap;

/// A subject of a source; a number is used again when its last series is forgotten.
pub(super) type Number = u32;

/// The subjects that have series.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    numbers: HashMap<Subject, Number, foldhash::quality::RandomState>,
    known: Vec<KnownSubject>,
    unused: Vec<Number>,
}

/// A subject's identity as of the last lookup.
#[derive(Debug, Default)]
struct KnownSubject {
    identity: Identity,
    /// Counts changes of it.
    version: u32,
    /// When it was looked up.
    epoch: u64,
}

impl Subjects {
    /// The number of a subject that has series.
    pub(super) fn number(&self, subject: Subject) -> Option<Number> {
        self.numbers.get(&subject).copied()
    }

    /// The same with the version of its identity, which is looked up if it may have changed.
    pub(super) fn look_up(
        &mut self,
        subject: Subject,
        epoch: u64,
        lookup: &mut SubjectLookup<'_>,
    ) -> Option<(Number, u32)> {
        let number = self.number(subject)?;
        let known = self.known.get_mut(number as usize)?;
        // A communicator's members change without a change of an owner or a device.
        if known.epoch != epoch || subject.changes_by_itself() {
            known.epoch = epoch;
            let identity = lookup.identity(subject);
            if !known.identity.same(identity) {
                known.identity = identity.clone();
                known.version = known.version.wrapping_add(1);
            }
        }
        Some((number, known.version))
    }

    /// Adds a subject.
    pub(super) fn add(
        &mut self,
        subject: Subject,
        epoch: u64,
        identity: Identity,
    ) -> (Number, u32) {
        let number = self.unused.pop().unwrap_or_else(|| {
            make_room(&mut self.known);
            self.known.push(KnownSubject::default());
            Number::try_from(self.known.len() - 1).unwrap_or(Number::MAX)
        });
        self.numbers.insert(subject, number);
        let Some(known) = self.known.get_mut(number as usize) else { return (number, 0) };
        *known = KnownSubject { identity, epoch, version: known.version };
        (number, known.version)
    }

    /// Forgets the subjects that have none of these series.
    pub(super) fn retain(&mut self, of_series: impl Iterator<Item = Number>) {
        let mut is_used = vec![false; self.known.len()];
        for number in of_series {
            if let Some(place) = is_used.get_mut(number as usize) {
                *place = true;
            }
        }
        let Self { numbers, known, unused } = self;
        numbers.retain(|_, number| {
            let stays = is_used.get(*number as usize).is_some_and(|used| *used);
            if !stays {
                unused.push(*number);
                if let Some(known) = known.get_mut(*number as usize) {
                    known.identity = Identity::default();
                }
            }
            stays
        });
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}
