//! Processes that do not answer the others of their job, joined to this node's: an event says whose
//! such a process is or was, or where NCCL has it if that is elsewhere.
//!
//! NCCL gives a process up a minute after its last word, and a large job is asked more seldom than
//! that, so names, ranks and owners are kept beyond a process's end. A name is an address
//! and a number in some PID namespace: of several that share one, and of a process in another
//! network, only one that is known to have had the very rank is taken.

use super::answer::{Answer, Lost, Process};
use super::listeners::Standing;
use crate::attribute::Owner;
use crate::attribute::party::PartyId;
use crate::catalog::event::EventKind;
use crate::communicators::{CommunicatorHash, Communicators};
use crate::event::desk::Desk;
use crate::event::{Happening, Moment, Peer, Place, Severity, Witness};
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// At least as long as NCCL takes to give a process up, and the usual time between two questions.
const KEPT: Duration = Duration::from_mins(5);
/// Processes that are remembered as told, and names that are kept.
const MOST: usize = 4_096;

/// A rank that a process is known to have: communicator, rank and ranks.
type Known = (CommunicatorHash, Option<u32>, Option<u32>);

/// The processes of this node by the names that NCCL has for them, some minutes longer than they
/// live.
#[derive(Debug)]
pub(super) struct Names {
    communicators: Arc<Communicators>,
    desk: Option<Arc<Desk>>,
    of: HashMap<ProcKey, Named>,
}

#[derive(Debug)]
struct Named {
    network: u64,
    names: BTreeSet<Process>,
    ranks: Vec<Known>,
    owner: Option<Arc<Owner>>,
    seen: Instant,
}

/// Who has been told of, so that each is told once.
#[derive(Debug, Default)]
pub(super) struct Told {
    dead: HashSet<Process>,
    silent: HashSet<Process>,
}

/// An answer, and who is on this node.
pub(super) struct Heard<'a> {
    pub network: u64,
    pub answer: &'a Answer,
    /// The living by their names.
    pub here: &'a HashMap<Process, ProcKey>,
    /// Those who listen where the answer came from.
    pub listening: &'a [ProcKey],
}

impl Names {
    pub(super) fn new(communicators: Arc<Communicators>, desk: Option<Arc<Desk>>) -> Self {
        Self { communicators, desk, of: HashMap::new() }
    }

    /// Notes where a process is and which ranks it has. A standing that says no address is kept
    /// from before: sockets are closed before a process has ended.
    pub(super) fn note(&mut self, process: ProcKey, standing: Option<&Standing>) {
        let known = standing.filter(|one| !one.hosts.is_empty());
        if !self.of.contains_key(&process) && (known.is_none() || self.of.len() >= MOST) {
            return;
        }
        let facts = self.communicators.of(process);
        let rank = |facts: &Arc<_>| known_rank(facts);
        let ranks: Vec<Known> = facts.iter().filter_map(rank).collect();
        let seen = Instant::now();
        let new =
            || Named { network: 0, names: BTreeSet::new(), ranks: Vec::new(), owner: None, seen };
        let named = self.of.entry(process).or_insert_with(new);
        named.seen = seen;
        // A communicator that is destroyed is a rank no more, but one that vanishes with its
        // process was.
        if !ranks.is_empty() {
            named.ranks = ranks;
        }
        let owner = self.desk.as_ref().and_then(|desk| desk.owner(process));
        named.owner = owner.or(named.owner.take());
        if let Some(standing) = known {
            let name = |host: &std::net::IpAddr| Process {
                host: host.to_string().into(),
                pid: standing.inside,
            };
            (named.network, named.names) =
                (standing.network, standing.hosts.iter().map(name).collect());
        }
    }

    /// Forgets who has been gone for as long as two questions are apart, some minutes at least.
    pub(super) fn forget(
        &mut self,
        now: Instant,
        apart: Duration,
        is_there: impl Fn(&ProcKey) -> bool,
    ) {
        let kept = KEPT.max(apart.saturating_mul(2));
        self.of.retain(|process, named| {
            is_there(process) || now.saturating_duration_since(named.seen) < kept
        });
    }

    /// The one process on this node that this can be, and the rank it is missing from.
    fn find(&self, heard: &Heard<'_>, lost: &Process) -> (Option<ProcKey>, Option<Known>) {
        let told = rank_in(heard.answer, lost);
        let had = |named: &Named| {
            let (hash, rank, _) = told?;
            named.ranks.iter().find(|(one, is, _)| *one == hash && *is == rank).copied()
        };
        let same = self.of.iter().filter(|(_, named)| named.names.contains(lost));
        let (sure, others): (Vec<_>, Vec<_>) = same.partition(|(_, named)| had(named).is_some());
        if let [(process, named)] = sure.as_slice() {
            return (Some(**process), had(named));
        }
        let near: Vec<_> =
            others.iter().filter(|(_, named)| named.network == heard.network).collect();
        match near.as_slice() {
            // What is known of its ranks must not say that it is another one.
            [(process, named)] if sure.is_empty() && agrees(named, told) => {
                let only = named.ranks.as_slice();
                let own = if let [only] = only { Some(*only) } else { None };
                (Some(**process), told.or(own))
            }
            _ => (None, told),
        }
    }

    /// Who of this node is in the communicators in which it is missing, or in the answer at all.
    fn beside(&self, heard: &Heard<'_>, lost: &Process, desk: &Desk) -> Vec<ProcKey> {
        let is_missed = |one: &&super::answer::Communicator| {
            one.absent.iter().any(|absent| absent.process.as_ref() == Some(lost))
        };
        let all = &heard.answer.communicators;
        let mut in_which: Vec<_> = all.iter().filter(is_missed).collect();
        if in_which.is_empty() {
            in_which = all.iter().collect();
        }
        let mut beside = BTreeSet::new();
        for communicator in in_which {
            let named = communicator.ranks.iter().filter_map(|rank| rank.process.as_ref());
            beside.extend(named.filter_map(|process| heard.here.get(process)));
            let members = self.communicators.members(communicator.hash);
            let facts = members.into_iter().filter_map(|id| self.communicators.facts(id));
            beside.extend(facts.map(|facts| facts.process));
        }
        if beside.is_empty() && is_one_party(heard.listening, desk) {
            beside.extend(heard.listening);
        }
        beside.into_iter().collect()
    }
}

impl Told {
    /// Says once of each process that NCCL has given it up, and of each of this node, once until it
    /// answers again, that it does not answer.
    pub(super) fn tell(&mut self, heard: &Heard<'_>, names: &Names, desk: &Desk) {
        let answer = heard.answer;
        for lost in &answer.dead {
            if self.dead.len() < MOST && self.dead.insert(lost.process.clone()) {
                take(desk, happening(EventKind::PeerDead, lost, heard, (names, desk)));
            }
        }
        for lost in &answer.late {
            // Each node tells of its own, or a thousand nodes would tell of each.
            if names.find(heard, &lost.process).0.is_some()
                && self.silent.len() < MOST
                && self.silent.insert(lost.process.clone())
            {
                take(desk, happening(EventKind::PeerSilent, lost, heard, (names, desk)));
            }
        }
    }

    /// Who is silent in none of these answers may be told of again.
    pub(super) fn settle(&mut self, answers: &[&Answer]) {
        let is_late = |process: &Process| {
            answers.iter().any(|answer| answer.late.iter().any(|lost| lost.process == *process))
        };
        self.silent.retain(is_late);
    }
}

fn take(desk: &Desk, what: Happening) {
    let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
    desk.take(what, at, Witness::Ras, Instant::now());
}

/// Whether all of these processes are known to be of one owner: those who share a port need not
/// be of one job.
fn is_one_party(processes: &[ProcKey], desk: &Desk) -> bool {
    let party = |process: &ProcKey| desk.owner(*process).map(|owner| owner.party);
    let mut parties = processes.iter().map(party);
    let first = parties.next().flatten();
    first.is_some_and(|first| first != PartyId::UNATTRIBUTED) && parties.all(|party| party == first)
}

fn known_rank(facts: &crate::communicators::MemberFacts) -> Option<Known> {
    Some((facts.hash?, facts.rank, facts.ranks))
}

/// Where an answer says that the ranks of a process are missing, the first of several.
fn rank_in(answer: &Answer, lost: &Process) -> Option<Known> {
    answer.communicators.iter().find_map(|communicator| {
        let is_it = |absent: &&super::answer::Absent| absent.process.as_ref() == Some(lost);
        let absent = communicator.absent.iter().find(is_it)?;
        Some((communicator.hash, Some(absent.rank), communicator.size))
    })
}

/// Whether a process may have had a rank, as far as its ranks are known.
fn agrees(named: &Named, told: Option<Known>) -> bool {
    let Some((hash, rank, _)) = told else { return true };
    let mut same = named.ranks.iter().filter(|(one, ..)| *one == hash);
    same.all(|(_, is, _)| is.is_none() || *is == rank)
}

fn happening(
    kind: EventKind,
    lost: &Lost,
    heard: &Heard<'_>,
    (names, desk): (&Names, &Desk),
) -> Happening {
    let (process, rank) = names.find(heard, &lost.process);
    let Process { host, pid } = &lost.process;
    let mut beside = names.beside(heard, &lost.process, desk);
    beside.retain(|one| Some(*one) != process);
    let peer = Peer {
        host: (&**host).into(),
        pid: *pid,
        devices: lost.devices.clone(),
        communicator: rank.map(|(hash, ..)| hash),
        rank: rank.and_then(|(_, rank, _)| rank),
        ranks: rank.and_then(|(.., ranks)| ranks),
        process,
        owner: process.and_then(|process| names.of.get(&process)?.owner.clone()),
        beside,
    };
    let what = match kind {
        EventKind::PeerSilent => "gets no answer from",
        _ => "has given up",
    };
    let place = if process.is_some() { ", which is this one" } else { "" };
    let message = format!("NCCL {what} process {pid} on node {host}{place}");
    let told = Happening::new(kind, Place::Host, Severity::Warning, message);
    Happening { peer: Some(Box::new(peer)), ..told }
}

#[cfg(test)]
#[path = "silent_tests.rs"]
mod tests;
