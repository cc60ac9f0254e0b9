//! Joins processes that do not answer their job to processes of this node: the event names the
//! owner of a local process, or the host and PID that NCCL reports for a remote one.
//!
//! NCCL gives up a process a minute after its last message, and a large job is queried less often
//! than that, so names, ranks and owners are stored beyond a process's end. A name is an address
//! and a PID in some PID namespace. If several processes share a name, or the process is in another
//! network, only one that is known to have had the missing rank matches. An answer is trusted about
//! processes of its own tenant and about those on other nodes; its statements about other processes
//! on this node are counted and not reported.

use super::answer::{Answer, LostProcess, Process};
use super::listeners::RasEndpoint;
use super::tenant::{Accounts, Server, Speaker};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::communicators::{CommunicatorHash, Communicators};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::process::Living;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{EventSource, Moment, Observation, Peer, Place, Severity};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// At least as long as NCCL takes to give up a process, and as the default time between two
/// queries.
const RETENTION: Duration = Duration::from_mins(5);
/// Limit on the reported processes of a tenant, and on the stored names of all tenants.
const MAX_PER_HOST: usize = 4_096;
/// Limit on the stored names of one tenant: more than a node has processes on devices.
const MAX_PER_TENANT: usize = 512;
/// Limit on the given-up processes that are processed of one answer; a node loses some hundred at
/// once.
const MAX_LOST: usize = 1_024;

/// A known rank of a process: communicator, rank and number of ranks.
type KnownRank = (CommunicatorHash, Option<u32>, Option<u32>);

/// The processes of this node by their NCCL names, stored some minutes beyond their end.
#[derive(Debug)]
pub(super) struct NcclNames {
    communicators: Arc<Communicators>,
    aggregator: Arc<EventAggregator>,
    paths: Paths,
    of: HashMap<ProcKey, Named>,
}

#[derive(Debug)]
struct Named {
    network: u64,
    names: BTreeSet<Process>,
    ranks: Vec<KnownRank>,
    tenant: Speaker,
    owner: Option<Arc<ProcessAttribution>>,
    seen: Instant,
}

/// The processes that were already reported for a tenant.
#[derive(Debug, Default)]
pub(super) struct ReportedProcesses {
    dead: HashSet<Process>,
    silent: HashSet<Process>,
}

/// An answer and its sender.
pub(super) struct ReceivedAnswer<'a> {
    pub network: u64,
    pub answer: &'a Answer,
    pub server: &'a Server,
}

/// The location of a process that does not answer.
enum ProcessLocation {
    /// On this node.
    Itself(ProcKey),
    /// On another node, or unknown.
    Elsewhere,
    /// On this node, but of another tenant.
    OtherTenant,
}

/// Indexes for locating the processes that do not answer.
struct Search<'a> {
    names: &'a NcclNames,
    received: &'a ReceivedAnswer<'a>,
    by_name: HashMap<Process, Vec<ProcKey>>,
    /// Addresses of this node in the network namespace.
    hosts: HashSet<IpAddr>,
    missing: BTreeMap<Process, (usize, u32)>,
}

impl NcclNames {
    pub(super) fn new(
        communicators: Arc<Communicators>,
        aggregator: Arc<EventAggregator>,
        paths: Paths,
    ) -> Self {
        Self { communicators, aggregator, paths, of: HashMap::new() }
    }

    /// Stores the names and the ranks of a process. If the endpoint has no address, the previous
    /// ones stay: a process closes its sockets before it ends.
    pub(super) fn note(&mut self, process: ProcKey, endpoint: Option<&RasEndpoint>) {
        let known = endpoint.filter(|one| !one.hosts.is_empty());
        let tenant = Speaker::of(process, &self.aggregator);
        if !self.of.contains_key(&process) && (known.is_none() || !self.has_room(tenant)) {
            return;
        }
        let facts = self.communicators.of(process);
        let rank = |facts: &Arc<_>| known_rank(facts);
        let ranks: Vec<KnownRank> = facts.iter().filter_map(rank).collect();
        let seen = Instant::now();
        let (names, owner) = (BTreeSet::new(), None);
        let new = || Named { network: 0, names, ranks: Vec::new(), tenant, owner, seen };
        let named = self.of.entry(process).or_insert_with(new);
        named.seen = seen;
        // The ranks of a running process are replaced, but an empty list is not stored: the
        // communicators of an ended process disappear before this entry does.
        if !ranks.is_empty() {
            named.ranks = ranks;
        }
        if let Some(owner) = self.aggregator.owner(process) {
            (named.owner, named.tenant) = (Some(owner), tenant);
        }
        if let Some(endpoint) = known {
            let name = |host: &IpAddr| Process { host: *host, pid: endpoint.inside };
            (named.network, named.names) =
                (endpoint.network, endpoint.hosts.iter().map(name).collect());
        }
    }

    fn has_room(&self, tenant: Speaker) -> bool {
        let mine = || self.of.values().filter(|named| named.tenant == tenant).count();
        self.of.len() < MAX_PER_HOST && mine() < MAX_PER_TENANT
    }

    /// Removes processes that have been gone for twice the time between two queries, and at least
    /// some minutes.
    pub(super) fn remove(
        &mut self,
        now: Instant,
        apart: Duration,
        is_there: impl Fn(&ProcKey) -> bool,
    ) {
        let retention = RETENTION.max(apart.saturating_mul(2));
        self.of.retain(|process, named| {
            is_there(process) || now.saturating_duration_since(named.seen) < retention
        });
    }

    fn search<'a>(&'a self, received: &'a ReceivedAnswer<'a>) -> Search<'a> {
        let mut by_name: HashMap<Process, Vec<ProcKey>> = HashMap::new();
        let mut hosts = HashSet::new();
        for (process, named) in &self.of {
            for name in &named.names {
                by_name.entry(*name).or_default().push(*process);
                if named.network == received.network {
                    hosts.insert(name.host);
                }
            }
        }
        let missing = received.answer.missing_from();
        Search { names: self, received, by_name, hosts, missing }
    }
}

impl Search<'_> {
    /// The first rank of a process that an answer lists as missing.
    fn rank_in(&self, lost: &Process) -> Option<KnownRank> {
        let (place, rank) = self.missing.get(lost)?;
        let communicator = self.received.answer.communicators.get(*place)?;
        Some((communicator.hash, Some(*rank), communicator.size))
    }

    /// The only process on this node that this can be, and the rank it is missing from.
    fn find(&self, lost: &Process) -> (ProcessLocation, Option<KnownRank>) {
        let reported = self.rank_in(lost);
        let had = |named: &Named| {
            let (hash, rank, _) = reported?;
            named.ranks.iter().find(|(one, is, _)| *one == hash && *is == rank).copied()
        };
        let (network, tenant) = (self.received.network, self.received.server.tenant);
        let same = self.by_name.get(lost).into_iter().flatten();
        let same = same.filter_map(|process| Some((process, self.names.of.get(process)?)));
        let (mine, others): (Vec<_>, Vec<_>) = same.partition(|(_, named)| named.tenant == tenant);
        let is_other_tenant = || {
            others.iter().any(|(_, named)| named.network == network)
                || self.is_of_another_user(lost)
        };
        if mine.is_empty() && is_other_tenant() {
            return (ProcessLocation::OtherTenant, None);
        }
        let (sure, unsure): (Vec<_>, Vec<_>) =
            mine.into_iter().partition(|(_, named)| had(named).is_some());
        if let [(process, named)] = sure.as_slice() {
            return (ProcessLocation::Itself(**process), had(named));
        }
        let near: Vec<_> = unsure.iter().filter(|(_, named)| named.network == network).collect();
        match near.as_slice() {
            // Its known ranks must not contradict the missing one.
            [(process, named)] if sure.is_empty() && agrees(named, reported) => {
                let only = named.ranks.as_slice();
                let own = if let [only] = only { Some(*only) } else { None };
                (ProcessLocation::Itself(**process), reported.or(own))
            }
            _ => (ProcessLocation::Elsewhere, reported),
        }
    }

    /// Whether the PID is that of a running process of another user on this host.
    fn is_of_another_user(&self, lost: &Process) -> bool {
        let server = self.received.server;
        let is_here = lost.host.is_loopback() || self.hosts.contains(&lost.host);
        let uid = || Living::find(&self.names.paths, lost.pid).and_then(|living| living.uid());
        server.sees_host_pids
            && is_here
            && uid().is_some_and(|uid| server.tenant.uid() != Some(uid))
    }

    /// The tenant's processes in the communicators that miss the process; else those in any
    /// communicator of the answer; else those that answered.
    fn tenant_peers(&self, lost: &Process) -> Vec<ProcKey> {
        let server = self.received.server;
        let is_missed = |one: &&super::answer::Communicator| {
            one.absent.iter().any(|absent| absent.process.as_ref() == Some(lost))
        };
        let all = &self.received.answer.communicators;
        let mut in_which: Vec<_> = all.iter().filter(is_missed).collect();
        if in_which.is_empty() {
            in_which = all.iter().take(MAX_LOST).collect();
        }
        let mut beside = BTreeSet::new();
        let communicators = &self.names.communicators;
        for communicator in in_which {
            let named = communicator.ranks.iter();
            beside.extend(named.filter_map(|rank| server.here.trusted.get(&rank.process)));
            let members = communicators.members(communicator.hash);
            let facts = members.into_iter().filter_map(|id| communicators.facts(id));
            let processes = facts.map(|facts| facts.process);
            beside.extend(processes.filter(|process| server.trusted.contains(process)));
        }
        if beside.is_empty() {
            beside.extend(&server.answering);
        }
        beside.into_iter().collect()
    }

    fn observation(
        &self,
        kind: EventKind,
        lost: &LostProcess,
        process: Option<ProcKey>,
        rank: Option<KnownRank>,
    ) -> Observation {
        let Process { host, pid } = lost.process;
        let mut beside = self.tenant_peers(&lost.process);
        beside.retain(|one| Some(*one) != process);
        let peer = Peer {
            host: Some(host.to_string().into()),
            pid: Some(pid),
            devices: lost.devices(),
            communicator: rank.map(|(hash, ..)| hash),
            rank: rank.and_then(|(_, rank, _)| rank),
            ranks: rank.and_then(|(.., ranks)| ranks),
            process,
            owner: process.and_then(|process| self.names.of.get(&process)?.owner.clone()),
            beside,
        };
        let what = match kind {
            EventKind::PeerSilent => "gets no answer from",
            _ => "has given up",
        };
        let place = if process.is_some() { ", which is this one" } else { "" };
        let message = format!("NCCL {what} process {pid} on node {host}{place}");
        let reported = Observation::new(kind, Place::Host, Severity::Warning, message);
        Observation { peer: Some(Box::new(peer)), ..reported }
    }
}

impl ReportedProcesses {
    /// Reports each process that NCCL gave up, once, and each local process that does not answer,
    /// once until it answers again. Returns the number of statements about other tenants'
    /// processes.
    pub(super) fn report(
        &mut self,
        received: &ReceivedAnswer<'_>,
        names: &NcclNames,
        aggregator: &EventAggregator,
        accounts: &mut Accounts,
    ) -> u64 {
        let (search, tenant) = (names.search(received), received.server.tenant);
        let mut claims = 0;
        let mut may_report = |reported: &mut HashSet<Process>, lost: &LostProcess| {
            reported.len() < MAX_PER_HOST
                && accounts.allows_event(tenant, Instant::now())
                && reported.insert(lost.process)
        };
        let is_new = |lost: &&LostProcess| !self.dead.contains(&lost.process);
        let new: Vec<&LostProcess> =
            received.answer.dead.iter().filter(is_new).take(MAX_LOST).collect();
        for lost in new {
            let (process, rank) = match search.find(&lost.process) {
                (ProcessLocation::Itself(process), rank) => (Some(process), rank),
                (ProcessLocation::Elsewhere, rank) => (None, rank),
                (ProcessLocation::OtherTenant, _) => {
                    claims += 1;
                    continue;
                }
            };
            if may_report(&mut self.dead, lost) {
                take(aggregator, search.observation(EventKind::PeerDead, lost, process, rank));
            }
        }
        for lost in &received.answer.late {
            if self.silent.contains(&lost.process) || !search.by_name.contains_key(&lost.process) {
                continue;
            }
            match search.find(&lost.process) {
                // Each node reports only its own processes; otherwise a thousand nodes would report
                // each of them.
                (ProcessLocation::Itself(process), rank) if may_report(&mut self.silent, lost) => {
                    let process = Some(process);
                    take(
                        aggregator,
                        search.observation(EventKind::PeerSilent, lost, process, rank),
                    );
                }
                (ProcessLocation::OtherTenant, _) => claims += 1,
                _ => {}
            }
        }
        claims
    }

    /// Allows a new report of processes that are silent in none of these answers.
    pub(super) fn settle(&mut self, answers: &[&Answer]) {
        let is_late = |process: &Process| {
            answers.iter().any(|answer| answer.late.iter().any(|lost| lost.process == *process))
        };
        self.silent.retain(is_late);
    }
}

fn take(aggregator: &EventAggregator, what: Observation) {
    let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
    aggregator.take(what, at, EventSource::Ras, Instant::now());
}

fn known_rank(facts: &gpuwho_owners::communicators::MemberFacts) -> Option<KnownRank> {
    Some((facts.hash?, facts.rank, facts.ranks))
}

/// Whether a process may have had a rank, according to its known ranks.
fn agrees(named: &Named, reported: Option<KnownRank>) -> bool {
    let Some((hash, rank, _)) = reported else { return true };
    let mut same = named.ranks.iter().filter(|(one, ..)| *one == hash);
    same.all(|(_, is, _)| is.is_none() || *is == rank)
}

#[cfg(test)]
mod tests;
