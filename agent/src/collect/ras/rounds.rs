//! The thread that asks: who listens where, whose turn it is, and what is told of an answer.
//!
//! The processes of one user share one port of a network (`SO_REUSEPORT`), and the kernel gives a
//! connection to any of them, also to one that is stopped and never answers. One answer is of one
//! job. So where there is none in time, or local processes that listen are not in it, it is asked
//! again, three times at most and for [`TURN`] in all.

use super::answer::{Answer, LocalNames, Process};
use super::ask::{AskError, Talk, greet};
use super::digest::{digest, hashes, local_ranks};
use super::listeners::{RasEndpoint, look};
use super::silent::{self, NcclNames};
use super::tenant::{Accounts, Server, Speaker};
use super::turns::{Port, Turns};
use super::{Answers, Job, Settings};
use crate::attribute::process::Living;
use crate::catalog::agent::SourceState;
use crate::catalog::nccl::RasOutcome;
use crate::collect::sockets::{accepted, held, network, own_network};
use crate::communicators::Communicators;
use crate::event::aggregator::EventAggregator;
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::tenant_files::TenantFiles;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const BEAT: Duration = Duration::from_secs(1);
/// Questions to a job from all its nodes come no closer than this.
const NODES_SHARE: Duration = Duration::from_secs(10);
/// A job of more nodes is asked as seldom as one of this many: every half day.
const MAX_NODES: u32 = 4_320;
/// Jobs of one user on a node beyond the first.
const MAX_JOBS: usize = 3;
/// Rounds for which an answer is told that nobody has confirmed: another job has answered.
const ROUNDS_TOLD: u32 = 4;
/// The first look at a process that does not listen comes again after this, then each after twice
/// the time.
const SOON: Duration = Duration::from_secs(1);
/// The longest that a port takes at a time: so long another tenant waits at most for each whose
/// sockets are silent.
const TURN: Duration = Duration::from_secs(20);
/// Processes on one port that are looked at: a node has fewer devices.
const MAX_ON_PORT: usize = 256;

/// A job's answer, whole and as told, and who gave it.
type JobAnswer = (Arc<Job>, Server, Answer);

/// A process that has the library loaded.
#[derive(Debug)]
struct CandidateState {
    tenant: Speaker,
    endpoint: Option<RasEndpoint>,
    next_look: Instant,
    wait: Duration,
}

/// The state of the thread.
pub(super) struct Rounds {
    settings: Settings,
    paths: Paths,
    files: TenantFiles,
    answers: Answers,
    communicators: Arc<Communicators>,
    aggregator: Arc<EventAggregator>,
    own: Option<u64>,
    seen: HashMap<ProcKey, CandidateState>,
    turns: Turns,
    accounts: Accounts,
    names: NcclNames,
}

impl Rounds {
    pub(super) fn new(
        settings: Settings,
        files: TenantFiles,
        (answers, communicators): (Answers, Arc<Communicators>),
        desk: Arc<EventAggregator>,
    ) -> Self {
        let paths = files.paths().clone();
        let own = own_network(&paths);
        let names = NcclNames::new(Arc::clone(&communicators), Arc::clone(&desk), paths.clone());
        let (seen, turns, accounts) = (HashMap::new(), Turns::default(), Accounts::default());
        Self {
            settings,
            paths,
            files,
            answers,
            communicators,
            aggregator: desk,
            own,
            seen,
            turns,
            accounts,
            names,
        }
    }

    /// Runs until nobody keeps the other end of `ended`.
    pub(super) fn run(mut self, candidates: &dyn Fn() -> Vec<ProcKey>, ended: &Receiver<()>) {
        let beat = BEAT.min(self.settings.every);
        loop {
            self.look(candidates(), Instant::now());
            for port in self.turns.due(&self.accounts, Instant::now()) {
                self.turn(port);
                // Somebody may want to end, or to know, while several are asked.
                self.publish();
                if matches!(ended.try_recv(), Err(TryRecvError::Disconnected)) {
                    return;
                }
            }
            self.publish();
            if matches!(ended.recv_timeout(beat), Err(RecvTimeoutError::Disconnected)) {
                return;
            }
        }
    }

    /// Finds out where new processes listen, and forgets those that are gone.
    fn look(&mut self, candidates: Vec<ProcKey>, now: Instant) {
        let candidates: HashSet<ProcKey> = candidates.into_iter().collect();
        let names = &mut self.names;
        self.seen.retain(|process, seen| {
            let is_there = candidates.contains(process);
            if !is_there {
                // What is known of it will be forgotten soon.
                names.note(*process, seen.endpoint.as_ref());
            }
            is_there
        });
        let apart = self.turns.of.values().map(|turn| turn.apart).max().unwrap_or_default();
        names.remove(now, apart, |process| candidates.contains(process));
        for process in candidates {
            let tenant = Speaker::of(process, &self.aggregator);
            let new = CandidateState { tenant, endpoint: None, next_look: now, wait: SOON };
            let seen = self.seen.entry(process).or_insert(new);
            seen.tenant = tenant;
            let has_socket = seen.endpoint.as_ref().is_some_and(|one| one.client.is_some());
            if has_socket || seen.next_look > now || !self.accounts.is_free(tenant, Instant::now())
            {
                continue;
            }
            let begun = Instant::now();
            seen.endpoint = look(&self.files, process);
            self.names.note(process, seen.endpoint.as_ref());
            seen.next_look = now + seen.wait;
            seen.wait = (seen.wait * 2).min(self.settings.every);
            self.accounts.charge(tenant, Instant::now(), begun.elapsed());
        }
        let mut ports: BTreeMap<Port, Speaker> = BTreeMap::new();
        for (port, tenant) in
            self.seen.values().filter_map(|seen| Some((port_of(seen)?, seen.tenant)))
        {
            let known = ports.entry(port).or_insert(tenant);
            *known = tenant.min(*known);
        }
        // Not all at the same moment on nodes that start a job together.
        let next = || now + part_of(self.settings.every / 10);
        let left_out = self.turns.take(ports, next);
        self.answers.count(RasOutcome::NotAsked, left_out);
        let there: HashSet<Speaker> = self.seen.values().map(|seen| seen.tenant).collect();
        self.accounts.retain(now, |tenant| there.contains(&tenant));
    }

    /// Asks at a port, and decides when to ask again.
    fn turn(&mut self, port: Port) {
        let (begun, on_port) = (Instant::now(), self.on(port));
        let until = begun + TURN;
        // What was read a round ago may have changed: whoever is asked must listen now.
        for process in on_port.into_iter().take_while(|_| Instant::now() < until) {
            let standing = look(&self.files, process);
            self.names.note(process, standing.as_ref());
            if let Some(seen) = self.seen.get_mut(&process) {
                seen.endpoint = standing;
            }
        }
        let listening: BTreeSet<ProcKey> = self.on(port).into_iter().collect();
        let Some(tenant) = self.turns.of.get(&port).map(|turn| turn.tenant) else { return };
        self.accounts.serve(tenant, begun);
        if listening.is_empty() {
            self.turns.of.remove(&port);
            self.accounts.charge(tenant, Instant::now(), begun.elapsed());
            return;
        }
        let (answers, error) = self.ask_all(port, &listening, until);
        self.accounts.charge(tenant, Instant::now(), begun.elapsed());
        let every = self.settings.every;
        let Some(turn) = self.turns.of.get_mut(&port) else { return };
        if let Some(error) = error {
            turn.failed += 1;
            tracing::debug!(%error, at = %port.1, "NCCL's status socket gives no answer");
            self.answers.fail(&error);
        }
        if !answers.is_empty() {
            turn.failed = 0;
        }
        // Of several tenants on a port none decides how often the others are asked.
        let tenants: HashSet<Speaker> =
            listening.iter().filter_map(|one| Some(self.seen.get(one)?.tenant)).collect();
        let nodes = answers.iter().map(|(.., answer)| answer.nodes).fold(0, u32::saturating_add);
        let is_large = nodes > 1 && tenants.len() == 1;
        let wait = NODES_SHARE.saturating_mul(nodes.min(MAX_NODES));
        let wait = if is_large { every.max(wait) } else { every };
        turn.renew(answers.iter().map(|(job, ..)| Arc::clone(job)), wait * ROUNDS_TOLD);
        let wait = wait.saturating_mul(1 << turn.failed.min(4));
        turn.apart = wait;
        turn.next = Instant::now() + wait.saturating_sub(part_of(wait / 10));
        self.report_silent(port, &answers);
    }

    /// One answer a job, and why there is none.
    fn ask_all(
        &mut self,
        port: Port,
        listening: &BTreeSet<ProcKey>,
        until: Instant,
    ) -> (Vec<JobAnswer>, Option<AskError>) {
        let mut answers: Vec<JobAnswer> = Vec::new();
        let (mut missing, mut silent) = (listening.clone(), None);
        let passed_over = self.turns.of.get(&port).map(|turn| turn.elsewhere.clone());
        for turn in 0..=MAX_JOBS {
            if turn > 0 && Instant::now() >= until {
                break;
            }
            let as_of_ns = boot_time_ns();
            let Some(asked) = self.ask(port, listening, until) else { break };
            let (server, answer) = match asked {
                Ok(answered) => answered,
                Err(other @ (AskError::Late | AskError::UnknownServer)) if listening.len() > 1 => {
                    self.answers.count(other.outcome(), 1);
                    silent = Some(other);
                    continue;
                }
                Err(error) => {
                    self.answers.count(error.outcome(), 1);
                    return (answers, Some(error));
                }
            };
            self.answers.count(RasOutcome::Answered, 1);
            self.answers.claim(answer.claims);
            silent = None;
            let ranks = local_ranks(&answer, &server, as_of_ns);
            let is_new = answers.is_empty() || ranks.keys().any(|one| missing.contains(one));
            missing.retain(|process| !ranks.contains_key(process));
            let is_whole = answer.is_whole;
            if is_new {
                let digest = digest(&answer, &server, &hashes(&server, &self.communicators));
                let (tenant, trusted) = (server.tenant, server.trusted.clone());
                let job = Job { at: Instant::now(), tenant, trusted, digest, ranks };
                answers.push((Arc::new(job), server, answer));
            }
            if missing.is_empty() || !is_whole || passed_over.as_ref() == Some(&missing) {
                break;
            }
        }
        if let Some(turn) = self.turns.of.get_mut(&port) {
            turn.elsewhere = missing;
        }
        let error = silent.filter(|_| answers.is_empty());
        (answers, error)
    }

    /// Asks once; `None` if nobody is left in that network.
    fn ask(
        &self,
        port: Port,
        listening: &BTreeSet<ProcKey>,
        until: Instant,
    ) -> Option<Result<(Server, Answer), AskError>> {
        let first = *listening.first()?;
        let namespace = match self.own {
            Some(own) if own == port.0 => None,
            _ => Some(network(&self.paths, first, port.0)?),
        };
        let ask = || {
            let talk = greet(port.1, namespace.as_ref(), until)?;
            let server = self.server(port.0, listening, &talk).ok_or(AskError::UnknownServer)?;
            let answer = talk.status(until, &server.here)?;
            Ok((server, answer))
        };
        Some(ask())
    }

    /// Who has answered: of those that listen the processes of one tenant that hold the
    /// connection. Anybody of the same user may share the port, whether it is known here or not.
    fn server(&self, network: u64, listening: &BTreeSet<ProcKey>, talk: &Talk) -> Option<Server> {
        let (server, client) = talk.ends()?;
        let of = |process: &ProcKey| Living::same(&self.paths, *process);
        let inode = accepted(&of(listening.first()?)?, server, client)?;
        let holds = |process: &&ProcKey| {
            of(process).is_some_and(|living| held(&living).any(|one| one == inode))
        };
        let answering: Vec<ProcKey> = listening.iter().filter(holds).copied().collect();
        let tenants: HashSet<Speaker> =
            answering.iter().filter_map(|one| Some(self.seen.get(one)?.tenant)).collect();
        let mut tenants = tenants.into_iter();
        let (Some(tenant), None) = (tenants.next(), tenants.next()) else { return None };
        let mine = self.seen.iter().filter(|(_, seen)| seen.tenant == tenant);
        let trusted = mine.map(|(process, _)| *process).collect();
        let inside = |process: &ProcKey| Some(self.seen.get(process)?.endpoint.as_ref()?.inside);
        let sees_host_pids = answering.iter().all(|one| inside(one) == Some(one.pid));
        let here = self.here(network, tenant);
        Some(Server { tenant, answering, trusted, here, sees_host_pids })
    }

    /// The processes of a network by the names that NCCL has for them: those of a tenant, without
    /// those that share one, and those of others.
    fn here(&self, network: u64, tenant: Speaker) -> LocalNames {
        let mut mine: HashMap<Process, Option<ProcKey>> = HashMap::new();
        let mut others = HashSet::new();
        for (process, seen) in &self.seen {
            let Some(standing) = seen.endpoint.as_ref().filter(|one| one.network == network) else {
                continue;
            };
            for host in &standing.hosts {
                let name = Process { host: *host, pid: standing.inside };
                if seen.tenant == tenant {
                    mine.entry(name).and_modify(|one| *one = None).or_insert(Some(*process));
                } else {
                    others.insert(name);
                }
            }
        }
        others.retain(|name| !mine.contains_key(name));
        let believed =
            mine.into_iter().filter_map(|(name, process)| Some((name, process?))).collect();
        LocalNames { believed, others }
    }

    /// Who listens on a port.
    fn on(&self, port: Port) -> Vec<ProcKey> {
        let on = self.seen.iter().filter(|(_, seen)| port_of(seen) == Some(port));
        let mut on: Vec<ProcKey> = on.map(|(process, _)| *process).collect();
        on.sort_unstable();
        on.retain(|process| Living::remains(&self.paths, *process));
        on.truncate(MAX_ON_PORT);
        on
    }

    /// Tells of those who do not answer.
    fn report_silent(&mut self, port: Port, answers: &[JobAnswer]) {
        let Some(turn) = self.turns.of.get_mut(&port) else { return };
        turn.reported.retain(|tenant, _| self.seen.values().any(|seen| seen.tenant == *tenant));
        for (_, server, answer) in answers {
            let received = silent::ReceivedAnswer { network: port.0, answer, server };
            let told = turn.reported.entry(server.tenant).or_default();
            let claims =
                told.report(&received, &self.names, (&self.aggregator, &mut self.accounts));
            self.answers.claim(claims);
        }
        for (tenant, told) in &mut turn.reported {
            let of = answers.iter().filter(|(_, server, _)| server.tenant == *tenant);
            let of: Vec<&Answer> = of.map(|(.., answer)| answer).collect();
            if !of.is_empty() {
                told.settle(&of);
            }
        }
    }

    fn publish(&self) {
        let turns = || self.turns.of.values();
        let jobs = turns().flat_map(|turn| turn.jobs.iter().cloned()).collect();
        let is_failing = turns().any(|turn| turn.failed > 0);
        self.answers.with(|told| {
            told.jobs = jobs;
            if self.turns.of.is_empty() {
                told.state = super::RasState::default().state;
            } else if !is_failing {
                told.state = (SourceState::Ready, String::new(), String::new());
            }
        });
    }
}

fn port_of(seen: &CandidateState) -> Option<Port> {
    let standing = seen.endpoint.as_ref()?;
    Some((standing.network, standing.client?))
}

/// A part of a time, by chance.
fn part_of(time: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0_u8) % 1_000;
    time.mul_f64(chance as f64 / 1_000.0)
}
