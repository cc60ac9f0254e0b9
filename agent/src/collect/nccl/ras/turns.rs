//! The ports that are asked, and when: of each tenant only so many, and of all tenants those first
//! that were asked longest ago.

use super::Job;
use super::silent::ReportedProcesses;
use super::tenant::{Accounts, Speaker};
use crate::ids::ProcKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Processes that share a port of a network.
pub(super) type Port = (u64, SocketAddr);

/// Ports of a tenant that are asked: its processes share one in each network.
const MAX_PORTS_PER_TENANT: usize = 8;
/// Ports that are asked: more than a node has tenants with devices. With all answers of all of them
/// as large as they can be 50 MB.
const MAX_PORTS: usize = 64;
/// Answers of a port that are kept; processes that listen on one are seldom of more jobs.
const MAX_ANSWERS: usize = 4;

/// A port's turns.
#[derive(Debug)]
pub(super) struct Turn {
    /// On whose account.
    pub tenant: Speaker,
    pub next: Instant,
    /// Time between two questions.
    pub apart: Duration,
    pub failed: u32,
    pub jobs: Vec<Arc<Job>>,
    pub reported: HashMap<Speaker, ReportedProcesses>,
    /// Who was in no answer although it was asked again.
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

    /// Takes new answers, and keeps those of jobs that have not been heard this time for a while.
    pub(super) fn renew(&mut self, new: impl Iterator<Item = Arc<Job>>, reported_for: Duration) {
        let mut jobs: Vec<Arc<Job>> = new.collect();
        let received: HashSet<ProcKey> =
            jobs.iter().flat_map(|job| job.ranks.keys().copied()).collect();
        let tenants: HashSet<Speaker> = jobs.iter().map(|job| job.tenant).collect();
        let is_kept = |job: &Arc<Job>| {
            let is_other = !tenants.contains(&job.tenant) || !job.ranks.is_empty();
            let is_unanswered = !job.ranks.keys().any(|process| received.contains(process));
            is_other && is_unanswered && job.at.elapsed() < reported_for
        };
        jobs.extend(self.jobs.drain(..).filter(is_kept));
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
    /// Takes the ports that there are now, each with whose it is; `next` says when a new one is
    /// asked. Gives how many new ones are not asked.
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

    /// One port of each tenant whose turn it is, who waits longest first.
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
    fn a_tenant_with_many_ports_takes_no_others_place() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let many: BTreeMap<Port, Speaker> = (0..200).map(|at| (port(at), tenant(1))).collect();
        let mut all = many.clone();
        all.insert(port(60_000), tenant(2));
        assert_eq!(turns.take(all.clone(), || now), 200 - MAX_PORTS_PER_TENANT as u64);
        assert_eq!(turns.take(all, || now), 0, "counted once");
        assert_eq!(turns.of.len(), MAX_PORTS_PER_TENANT + 1);
        assert!(turns.of.contains_key(&port(60_000)));
        // However many tenants there are, each has its first before one has its second.
        let mut all = many;
        all.extend((2..100).map(|at| (port(50_000 + at), tenant(at.into()))));
        turns.take(all, || now);
        let tenants: HashSet<Speaker> = turns.of.values().map(|turn| turn.tenant).collect();
        assert_eq!((turns.of.len(), tenants.len()), (MAX_PORTS, MAX_PORTS));
    }

    #[test]
    fn who_waits_longest_is_asked_first_and_who_owes_time_not_at_all() {
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
