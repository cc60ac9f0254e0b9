//! Compares each rank with its peers: arrival skew, mismatches, hangs.

use super::arrivals::{Comparison, LatestCalls, Steps};
use super::lost::LostRanks;
use super::rank_status::Hangs;
use super::{Member, Reading};
use gpuwho_common::nccl::Communicator;
use gpuwho_model::ids::MemberId;
use gpuwho_owners::communicators::{Communicators, Group};
use std::collections::{HashMap, HashSet};

/// The group of ranks that each member is compared with.
pub(in super::super) type Groups = HashMap<MemberId, Group>;

/// The groups of these members, if their communicators are known.
pub(in super::super) fn groups(members: &[Member], communicators: &Communicators) -> Groups {
    let group = |member: &Member| Some((member.id, communicators.group(&member.facts)?));
    members.iter().filter_map(group).collect()
}

/// State of the comparisons, kept while the rank exists.
#[derive(Debug, Default)]
pub(in super::super) struct Peers {
    pub comparison: Comparison,
    pub steps: HashMap<MemberId, Steps>,
    pub hangs: Hangs,
    pub lost: LostRanks,
}

impl Peers {
    /// Compares the ranks of each group, and times each rank's steps.
    pub(in super::super) fn compare(
        &mut self,
        members: &[Member],
        communicators: &[(u64, Communicator)],
        groups: &Groups,
    ) {
        let mut ranks: HashMap<_, Vec<LatestCalls<'_>>> = HashMap::new();
        for member in members {
            let (Some(sequence), [number]) = (member.sequence, member.numbers.as_slice()) else {
                continue;
            };
            let found = communicators.iter().find(|(one, _)| one == number);
            let Some((_, communicator)) = found else { continue };
            let arrivals = &communicator.arrivals;
            let arrived = LatestCalls { member: member.id, sequence, arrivals };
            self.steps.entry(member.id).or_default().take(&arrived);
            if let Some(group) = groups.get(&member.id) {
                ranks.entry(*group).or_default().push(arrived);
            }
        }
        for (group, ranks) in ranks {
            self.comparison.compare(group, &ranks);
        }
    }

    /// Removes members that were exported for the last time.
    pub(in super::super) fn forget(&mut self, reading: &Reading, groups: &Groups) {
        for member in reading.members.iter().filter(|member| member.has_ended) {
            self.comparison.remove(member.id);
            self.steps.remove(&member.id);
            self.hangs.remove(member.id);
        }
        let there: HashSet<_> = groups.values().collect();
        self.comparison.retain(|group| there.contains(&group));
        for member in &reading.vanished {
            self.steps.remove(member);
            self.hangs.remove(*member);
        }
    }
}
