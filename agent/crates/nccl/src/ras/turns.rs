//! Schedules the ports to query: a limited number for each tenant, and the least recently served
//! tenant first.

use super::Job;
use super::listeners::RasEndpoint;
use super::silent::ReportedProcesses;
use super::tenant::{Accounts, Speaker};
use gpuwho_model::ids::ProcKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A port of a network, shared by its processes.
pub(super) type Port = (u64, SocketAddr);

/// A process that has the library loaded.
#[derive(Debug)]
pub(super) struct CandidateState {
    pub tenant: Speaker,
    pub endpoint: Option<RasEndpoint>,
    pub next_look: Instant,
    pub wait: Duration,
}

/// Where a process is asked.
pub(super) fn port_of(seen: &CandidateState) -> Option<Port> {
    let endpoint = seen.endpoint.as_ref()?;
    Some((endpoint.network, endpoint.client?))
}

/// Limit on the ports of a tenant: its processes share one in each network.
const MAX_PORTS_PER_TENANT: usize = 8;
/// Limit on all ports: more than a node has tenants with devices. The answers of all of them take
/// at most 50 MB.
const MAX_PORTS: usize = 64;
/// Limit on the stored answers of a port; processes on one port rarely belong to more jobs.
const MAX_ANSWERS: usize = 4;

/// The schedule and the answers of a port.
#[derive(Debug)]
pub(super) struct Turn {
    /// The tenant that is charged.
    pub tenant: Speaker,
    pub next: Instant,
    /// Time between two queries.
    pub apart: Duration,
    pub failed: u32,
    pub jobs: Vec<Arc<Job>>,
    pub reported: HashMap<Speaker, ReportedProcesses>,
    /// Processes that were in no answer of the last turn.
    pub elsewhere: BTreeSet<ProcKey>,
}

impl Turn {
    pub(super) fn new(tenant: Speaker, next: Instant) -> Self {
        Self {
            tenant,
            next,
            apart: Duration::ZERO,
            failed: 0,
            jobs: Vec::new(),
            reported: HashMap::new(),
            elsewhere: BTreeSet::new(),
        }
    }

    /// Stores new answers; answers of jobs that did not answer this time stay for a while.
    pub(super) fn renew(&mut self, new: impl Iterator<Item = Arc<Job>>, reported_for: Duration) {
        let mut jobs: Vec<Arc<Job>> = new.collect();
        let received: HashSet<ProcKey> =
            jobs.iter().flat_map(|job| job.ranks.keys().copied()).collect();
        let tenants: HashSet<Speaker> = jobs.iter().map(|job| job.tenant).collect();
        let stays = |job: &Arc<Job>| {
            let is_other = !tenants.contains(&job.tenant) || !job.ranks.is_empty();
            let is_unanswered = !job.ranks.keys().any(|process| received.contains(process));
            is_other && is_unanswered && job.at.elapsed() < reported_for
        };
        jobs.extend(self.jobs.drain(..).filter(stays));
        jobs.truncate(MAX_ANSWERS);
        self.jobs = jobs;
    }
}

/// All ports.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub of: HashMap<Port, Turn>,
    left_out: HashSet<Port>,
}

impl Turns {
    /// Sets the current ports with their tenants; `next` gives the first query time of a new one.
    /// Returns the number of new ports beyond the limits.
    pub(super) fn take(
        &mut self,
        ports: BTreeMap<Port, Speaker>,
        next: impl Fn() -> Instant,
    ) -> u64 {
        self.of.retain(|port, _| ports.contains_key(port));
        // A tenant's first port comes before any tenant's second.
        let mut places: HashMap<Speaker, usize> = HashMap::new();
        let mut order: Vec<(usize, Speaker, Port)> = Vec::new();
        for (port, tenant) in ports {
            let place = places.entry(tenant).or_insert(0);
            order.push((*place, tenant, port));
            *place += 1;
        }
        order.sort_unstable();
        let mut left_out = HashSet::new();
        let mut asked = 0;
        for (place, tenant, port) in order {
            if place >= MAX_PORTS_PER_TENANT || asked >= MAX_PORTS {
                self.of.remove(&port);
                left_out.insert(port);
                continue;
            }
            asked += 1;
            self.of.entry(port).or_insert_with(|| Turn::new(tenant, next())).tenant = tenant;
        }
        let new = left_out.difference(&self.left_out).count();
        self.left_out = left_out;
        new as u64
    }

    /// One due port of each tenant, the least recently served tenant first.
    pub(super) fn due(&self, accounts: &Accounts, now: Instant) -> Vec<Port> {
        let is_due =
            |(_, turn): &(&Port, &Turn)| turn.next <= now && accounts.is_free(turn.tenant, now);
        let mut first: BTreeMap<Speaker, (Instant, Port)> = BTreeMap::new();
        for (port, turn) in self.of.iter().filter(is_due) {
            let mine = (turn.next, *port);
            let known = first.entry(turn.tenant).or_insert(mine);
            *known = mine.min(*known);
        }
        let mut due: Vec<(Option<Instant>, Port)> = first
            .into_iter()
            .map(|(tenant, (_, port))| (accounts.served_at(tenant), port))
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(_, port)| port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: u32) -> Speaker {
        Speaker::Process(ProcKey { pid: number, start_ticks: 1 })
    }

    fn port(number: u16) -> Port {
        (1, SocketAddr::from(([127, 0, 0, 1], number)))
    }

    #[test]
    fn a_tenant_with_many_ports_displaces_no_other() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let many: BTreeMap<Port, Speaker> = (0..200).map(|at| (port(at), tenant(1))).collect();
        let mut all = many.clone();
        all.insert(port(60_000), tenant(2));
        assert_eq!(turns.take(all.clone(), || now), 200 - MAX_PORTS_PER_TENANT as u64);
        assert_eq!(turns.take(all, || now), 0, "counted once");
        assert_eq!(turns.of.len(), MAX_PORTS_PER_TENANT + 1);
        assert!(turns.of.contains_key(&port(60_000)));
        // Each tenant has its first port before any has its second, whatever their number.
        let mut all = many;
        all.extend((2..100).map(|at| (port(50_000 + at), tenant(at.into()))));
        turns.take(all, || now);
        let tenants: HashSet<Speaker> = turns.of.values().map(|turn| turn.tenant).collect();
        assert_eq!((turns.of.len(), tenants.len()), (MAX_PORTS, MAX_PORTS));
    }

    #[test]
    fn the_least_recently_served_tenant_is_first_and_one_in_debt_is_skipped() {
        let (mut turns, mut accounts) = (Turns::default(), Accounts::default());
        let now = Instant::now();
        let all = [(port(1), tenant(1)), (port(2), tenant(1)), (port(3), tenant(2))];
        turns.take(all.into_iter().collect(), || now);
        accounts.serve(tenant(1), now);
        assert_eq!(turns.due(&accounts, now), [port(3), port(1)]);
        accounts.charge(tenant(1), now, Duration::from_secs(20));
        assert_eq!(turns.due(&accounts, now), [port(3)]);
    }
}
