//! What each rank is found to be among its peers: late, out of step, hung.

use super::arrivals::{Arrived, Comparison, Steps};
use super::roll::{Member, Reading};
use super::standing::Hangs;
use crate::communicators::MemberId;
use gpuwho_common::nccl::Communicator;
use std::collections::{HashMap, HashSet};

/// Kept as long as the rank is there.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub comparison: Comparison,
    pub steps: HashMap<MemberId, Steps>,
    pub hangs: Hangs,
}

impl Peers {
    /// Compares the ranks of each communicator, and times each rank's steps.
    pub(super) fn compare(&mut self, members: &[Member], communicators: &[(u64, Communicator)]) {
        let mut ranks: HashMap<_, Vec<Arrived<'_>>> = HashMap::new();
        for member in members {
            let (Some(sequence), [number]) = (member.sequence, member.numbers.as_slice()) else {
                continue;
            };
            let found = communicators.iter().find(|(one, _)| one == number);
            let Some((_, communicator)) = found else { continue };
            let arrivals = &communicator.arrivals;
            let arrived = Arrived { member: member.id, sequence, arrivals };
            self.steps.entry(member.id).or_default().take(&arrived);
            if let Some(hash) = member.facts.hash {
                ranks.entry(hash).or_default().push(arrived);
            }
        }
        for (hash, ranks) in ranks {
            self.comparison.compare(hash, &ranks);
        }
    }

    /// Forgets who has been told for the last time.
    pub(super) fn forget(&mut self, reading: &Reading) {
        for member in reading.members.iter().filter(|member| member.has_ended) {
            self.comparison.forget(member.id);
            self.steps.remove(&member.id);
            self.hangs.forget(member.id);
        }
        let there: HashSet<_> =
            reading.members.iter().filter_map(|member| member.facts.hash).collect();
        self.comparison.retain(|hash| there.contains(&hash));
        for member in &reading.vanished {
            self.steps.remove(member);
            self.hangs.forget(*member);
        }
    }
}
