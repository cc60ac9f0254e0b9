//! The state of each rank: running, idle, waiting or hung. The return of a call does not show that
//! the device has finished. But a rank that stays in one call, or makes no call while its peers on
//! this node advance, is stuck on the host, or the device's queue is full.

use super::Member;
use super::peers::Groups;
use gpuwho_common::nccl::operation;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::catalog::nccl::{Operation, RankState};
use gpuwho_model::ids::MemberId;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::communicators::Group;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{EventSource, Moment, Named, Observation, Place, Severity, StuckRank};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

/// The status of a rank at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RankStatus {
    pub state: RankState,
    /// Collectives behind the foremost rank on this node.
    pub lag: Option<u64>,
}

/// The ranks hung at the last reading, and how often each was.
#[derive(Debug, Default)]
pub(in super::super) struct Hangs {
    hung: HashSet<MemberId>,
    count: HashMap<MemberId, u64>,
}

/// The status of every rank.
pub(in super::super) fn statuses(
    members: &[Member],
    groups: &Groups,
    now_ns: u64,
    hang_after: Duration,
) -> HashMap<MemberId, RankStatus> {
    let limit = u64::try_from(hang_after.as_nanos()).unwrap_or(u64::MAX);
    let group = |member: &Member| groups.get(&member.id);
    let mut foremost: HashMap<&Group, u64> = HashMap::new();
    for member in members.iter().filter(|member| !member.has_ended) {
        if let (Some(group), Some(sequence)) = (group(member), member.sequence) {
            let foremost_sequence = foremost.entry(group).or_insert(sequence);
            *foremost_sequence = sequence.max(*foremost_sequence);
        }
    }
    let mut statuses = HashMap::new();
    let mut stuck: HashSet<&Group> = HashSet::new();
    for member in members.iter().filter(|member| !member.has_ended) {
        let foremost_sequence = group(member).and_then(|group| foremost.get(group));
        let lag = member
            .sequence
            .zip(foremost_sequence)
            .map(|(mine, foremost_sequence)| foremost_sequence - mine);
        let age = |since_ns: u64| now_ns.saturating_sub(since_ns);
        let is_late = |since_ns: u64| age(since_ns) >= limit;
        let is_hung = member.open().is_some_and(|open| is_late(open.since_ns))
            || (lag.is_some_and(|lag| lag > 0) && is_late(member.last_ns));
        let state = if is_hung {
            RankState::Hung
        } else if member.open().is_none() && is_late(member.last_ns) {
            if member.call.is_some() { RankState::Unknown } else { RankState::Idle }
        } else {
            RankState::Running
        };
        if is_hung {
            stuck.extend(group(member));
        }
        statuses.insert(member.id, RankStatus { state, lag });
    }
    for member in members {
        let peers_hang = group(member).is_some_and(|group| stuck.contains(group));
        if let Some(status) = statuses.get_mut(&member.id)
            && peers_hang
            && status.state != RankState::Hung
        {
            status.state = RankState::Waiting;
        }
    }
    statuses
}

impl Hangs {
    /// Records the hung ranks; returns those that are newly hung, and logs those that recovered.
    pub(in super::super) fn note(
        &mut self,
        members: &[Member],
        statuses: &HashMap<MemberId, RankStatus>,
        now_ns: u64,
    ) -> Vec<StuckRank> {
        let mut new = Vec::new();
        for member in members {
            let status = statuses.get(&member.id);
            let is_hung = status.is_some_and(|status| status.state == RankState::Hung);
            if is_hung && self.hung.insert(member.id) {
                *self.count.entry(member.id).or_insert(0) += 1;
                new.push(stuck(member, status.and_then(|status| status.lag), now_ns));
            }
            if !is_hung && self.hung.remove(&member.id) {
                let process = member.facts.process;
                let ended = member.has_ended;
                tracing::info!(%process, rank = member.facts.rank, ended, "rank is no longer hung");
            }
        }
        new
    }

    /// How often a rank was found hung.
    pub(super) fn of(&self, member: MemberId) -> u64 {
        self.count.get(&member).copied().unwrap_or(0)
    }

    /// Removes a rank.
    pub(super) fn remove(&mut self, member: MemberId) {
        self.hung.remove(&member);
        self.count.remove(&member);
    }
}

fn stuck(member: &Member, lag: Option<u64>, now_ns: u64) -> StuckRank {
    let facts = &member.facts;
    let (called, bytes, since_ns) = match member.open() {
        Some(open) => (open.operation, open.bytes, open.since_ns),
        None => (member.last_operation, member.last_bytes, member.last_ns),
    };
    StuckRank {
        process: facts.process,
        communicator: facts.hash,
        name: facts.name.clone(),
        rank: facts.rank,
        ranks: facts.ranks,
        operation: operation_name(called),
        bytes,
        is_open: member.open().is_some(),
        lag,
        seconds: now_ns.saturating_sub(since_ns) / 1_000_000_000,
    }
}

/// Reports a hung rank in the agent's log, with its owner, and as an event.
pub(in super::super) fn report_stuck(
    stuck: StuckRank,
    ownership: &Ownership,
    aggregator: Option<&EventAggregator>,
) {
    let owner = ownership.attribution(stuck.process);
    let workload = owner.as_ref().map(|owner| &owner.workload);
    let pod = workload.and_then(|workload| workload.pod.as_ref()?.name.clone());
    let job = workload.and_then(|workload| Some(workload.slurm.as_ref()?.job.to_string()));
    let StuckRank { process, rank, ranks, operation, bytes, is_open, lag, seconds, .. } = stuck;
    tracing::warn!(
        %process,
        pod = pod.as_deref(),
        job = job.as_deref(),
        communicator = stuck.communicator.map(tracing::field::display),
        name = stuck.name.as_deref(),
        rank,
        ranks,
        operation,
        bytes,
        in_call = is_open,
        lag,
        seconds,
        "rank is hung in a collective"
    );
    let Some(aggregator) = aggregator else { return };
    let place = if is_open { "inside" } else { "since" };
    let message = format!("rank is hung: {seconds} s {place} a call of {operation}, {bytes} bytes");
    let reported = Observation::new(EventKind::RankHung, Place::Host, Severity::Warning, message);
    let process = Some(Named::pid(process.pid));
    let what = Observation { process, stuck: Some(Box::new(stuck)), ..reported };
    let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
    aggregator.take(what, at, EventSource::Probes, Instant::now());
}

/// The name of an operation of the programs.
pub(super) fn operation_name(code: u32) -> &'static str {
    match code {
        operation::INIT => "init",
        operation::END => "end",
        code => operation_of(code).map_or("unknown", Operation::as_str),
    }
}

/// The catalogue's operation; the programs number them in its order.
pub(super) fn operation_of(code: u32) -> Option<Operation> {
    Operation::ALL.get(usize::try_from(code).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::members::OpenCall;
    use crate::probe::members::peers::groups;
    use RankState::{Hung, Idle, Running, Unknown, Waiting};
    use gpuwho_model::ids::OwnerId;
    use gpuwho_model::ids::ProcKey;
    use gpuwho_owners::communicators::{CommunicatorHash, Communicators, MemberFacts, MemberKey};

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_000 * SECOND;

    /// Seconds since the last call, number of collectives, and whether that call is certainly open;
    /// `None` if its return was seen.
    type Last = (u64, u64, Option<bool>);

    /// The states of the ranks of one communicator after a minute, by their last calls.
    fn states(ranks: &[Last]) -> Vec<RankState> {
        states_among(ranks, 0)
    }

    /// The same if the first `others` belong to another user.
    fn states_among(ranks: &[Last], others: usize) -> Vec<RankState> {
        let communicators = Communicators::default();
        let members: Vec<Member> = (0_u32..)
            .zip(ranks)
            .map(|(rank, (quiet, sequence, call))| {
                let process = ProcKey { pid: rank + 1, start_ticks: 1 };
                let hash = Some(CommunicatorHash(7));
                let facts = MemberFacts { hash, ..MemberFacts::new(process) };
                let key = MemberKey { process, number: 7 };
                let since_ns = NOW - quiet * SECOND;
                let call = call.map(|is_certain| OpenCall {
                    since_ns,
                    operation: 0,
                    bytes: 8,
                    is_certain,
                });
                let id = communicators.put(key, facts.clone());
                let silent = Member::silent(id, facts);
                Member { sequence: Some(*sequence), last_ns: since_ns, call, ..silent }
            })
            .collect();
        let mut groups = groups(&members, &communicators);
        for member in members.iter().take(others) {
            groups.get_mut(&member.id).unwrap().owner = Some((65_534, OwnerId::OTHER));
        }
        let found = statuses(&members, &groups, NOW, Duration::from_mins(1));
        members.iter().map(|member| found[&member.id].state).collect()
    }

    #[test]
    fn a_quiet_rank_is_idle_if_its_last_return_was_seen() {
        assert_eq!(states(&[(1, 5, None), (1, 5, Some(false)), (1, 5, Some(true))]), [Running; 3]);
        assert_eq!(states(&[(60, 5, None), (60, 5, Some(false))]), [Idle, Unknown]);
    }

    #[test]
    fn a_rank_long_in_a_call_or_behind_is_hung_and_the_others_wait() {
        assert_eq!(states(&[(60, 5, Some(true)), (60, 5, Some(false))]), [Hung, Waiting]);
        assert_eq!(states(&[(60, 4, Some(false)), (1, 5, None)]), [Hung, Waiting]);
        assert_eq!(states(&[(60, 4, None), (60, 5, None)]), [Hung, Waiting]);
    }

    #[test]
    fn a_foreign_members_claim_changes_no_state() {
        let ahead = [(1, 900, None), (60, 5, None)];
        assert_eq!((states(&ahead)[1], states_among(&ahead, 1)[1]), (Hung, Idle));
        let stuck = [(60, 4, Some(true)), (1, 5, None)];
        assert_eq!((states(&stuck)[1], states_among(&stuck, 1)[1]), (Waiting, Running));
    }
}
