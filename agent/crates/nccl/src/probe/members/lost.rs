//! Ranks whose process has ended without leaving its communicator, while ranks of the same
//! communicator and owner on this node stay in a call: a dead peer that nobody needs to ask for.
//!
//! A rank of which no other one here is left, or whose peers make no call, is not told. Returns must
//! be probed, so that a call is known to be open.

use super::peers::Groups;
use super::{Member, Processes, Reading};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::MemberId;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::communicators::Group;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{EventSource, Moment, Observation, Peer, Place, Severity};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Limit on the ended ranks that are remembered of a communicator: a node has rarely more devices.
const MAX_LOST: usize = 16;

/// The ended ranks that are missed.
#[derive(Debug, Default)]
pub(in super::super) struct LostRanks {
    of: HashMap<Group, Lost>,
    /// The living ranks of the last reading.
    last: HashMap<MemberId, Rank>,
}

/// The ended ranks of a communicator, and who waits in a call for them.
#[derive(Debug, Default)]
struct Lost {
    ranks: Vec<(Rank, Option<Arc<ProcessAttribution>>)>,
    /// How many of them were reported.
    reported: usize,
    waiting: Vec<ProcKey>,
}

/// A rank of a communicator of a known owner.
#[derive(Clone, Copy, Debug)]
struct Rank {
    group: Group,
    process: ProcKey,
    number: Option<u32>,
    ranks: Option<u32>,
}

impl Rank {
    /// Processes of unknown owners may be anybody's: they miss nobody.
    fn of(member: &Member, groups: &Groups) -> Option<Self> {
        let group = groups.get(&member.id).copied().filter(|group| group.owner.is_some())?;
        let facts = &member.facts;
        Some(Self { group, process: facts.process, number: facts.rank, ranks: facts.ranks })
    }
}

impl LostRanks {
    /// Takes a reading. Peers wait if they are in a call since `until_ns` or longer.
    pub(in super::super) fn note(
        &mut self,
        reading: &Reading,
        groups: &Groups,
        (processes, ownership): (&dyn Processes, &Ownership),
        until_ns: u64,
    ) {
        let is_lost = |member: &&Member| {
            member.has_ended && !member.has_left && !processes.is_alive(member.facts.process)
        };
        // A process that has ended may have no owner any more: the last reading had it.
        let ended = reading.members.iter().filter(is_lost).filter_map(|member| {
            self.last.get(&member.id).copied().or_else(|| Rank::of(member, groups))
        });
        let vanished = reading.vanished.iter().filter_map(|id| self.last.get(id).copied());
        let vanished = vanished.filter(|rank| !processes.is_alive(rank.process));
        for rank in ended.chain(vanished) {
            let lost = &mut self.of.entry(rank.group).or_default().ranks;
            if lost.len() < MAX_LOST && lost.iter().all(|(one, _)| one.process != rank.process) {
                lost.push((rank, ownership.attribution(rank.process)));
            }
        }
        self.last.clear();
        self.of.values_mut().for_each(|lost| lost.waiting.clear());
        for member in reading.members.iter().filter(|member| !member.has_ended) {
            let Some(rank) = Rank::of(member, groups) else { continue };
            self.last.insert(member.id, rank);
            if member.open().is_some_and(|open| open.since_ns <= until_ns)
                && let Some(lost) = self.of.get_mut(&rank.group)
            {
                lost.waiting.push(rank.process);
            }
        }
        if !self.of.is_empty() {
            let left: HashSet<Group> = self.last.values().map(|rank| rank.group).collect();
            self.of.retain(|group, _| left.contains(group));
        }
    }

    /// Reports each ended rank once, when a peer waits for it.
    pub(in super::super) fn report(&mut self, aggregator: &EventAggregator) {
        for lost in self.of.values_mut().filter(|lost| !lost.waiting.is_empty()) {
            let new = lost.ranks.iter().skip(lost.reported);
            for (rank, owner) in new {
                let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
                let what = observation(*rank, owner.clone(), &lost.waiting);
                aggregator.take(what, at, EventSource::Probes, Instant::now());
            }
            lost.reported = lost.ranks.len();
        }
    }

    /// The number of ended ranks of a living rank's communicator, while one here waits for them.
    pub(super) fn missed_by(&self, member: MemberId) -> Option<i64> {
        let lost = self.of.get(&self.last.get(&member)?.group)?;
        let is_missed = !lost.waiting.is_empty();
        i64::try_from(lost.ranks.len()).ok().filter(|_| is_missed)
    }
}

fn observation(
    rank: Rank,
    owner: Option<Arc<ProcessAttribution>>,
    waiting: &[ProcKey],
) -> Observation {
    let Rank { group, process, number, ranks } = rank;
    let which = number.map_or_else(|| "a rank".to_owned(), |number| format!("rank {number}"));
    let message = format!(
        "process {} of {which} has ended, and {} of its communicator on this node stay in a call",
        process.pid,
        waiting.len()
    );
    let peer = Peer {
        communicator: Some(group.hash),
        rank: number,
        ranks,
        process: Some(process),
        owner,
        beside: waiting.to_vec(),
        ..Peer::default()
    };
    let what = Observation::new(EventKind::PeerDead, Place::Host, Severity::Warning, message);
    Observation { peer: Some(Box::new(peer)), ..what }
}

#[cfg(test)]
mod tests;
