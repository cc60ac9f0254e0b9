//! The query thread: finds listening ports, schedules queries, and reports the answers.
//!
//! The processes of one user share one port of a network (`SO_REUSEPORT`), and the kernel gives a
//! connection to any of them, also to a stopped one that never answers. One answer covers one job.
//! So if an answer does not arrive in time, or lacks local processes that listen, the query is
//! repeated, at most three times and for at most [`TURN`].

use super::answer::{Answer, LocalNames, Process};
use super::ask::{AskError, Talk, greet};
use super::cleared::{CLEARED, askable};
use super::digest::{digest, hashes, local_ranks};
use super::listeners::look;
use super::silent::{self, NcclNames};
use super::tenant::{Accounts, Server, Speaker};
use super::turns::{CandidateState, Port, Turns, port_of};
use super::{Answers, Job, Mode, Settings, States, nobody};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::nccl::RasOutcome;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::process::Living;
use gpuwho_owners::sockets::{Allowance, accepted, held, network, own_network};
use gpuwho_owners::tenant_files::TenantFiles;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Interval of the thread's loop while processes have the library loaded.
const TICK: Duration = Duration::from_secs(1);
/// Interval otherwise: no more than a fraction of the time between queries.
const IDLE_TICK: Duration = Duration::from_secs(10);
/// Minimum time between queries of a job by all its nodes.
const MIN_JOB_GAP: Duration = Duration::from_secs(10);
/// Limit on the nodes in the query interval: a job with this many or more is queried every half
/// day.
const MAX_NODES: u32 = 4_320;
/// Further jobs of one user on a port beyond the first.
const MAX_JOBS: usize = 3;
/// Rounds for which an answer is exported without confirmation, because another job answered.
const ROUNDS_EXPORTED: u32 = 4;
/// Delay before the second look at a process that does not listen; it doubles after each.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Time limit of a port's turn: how long another tenant waits at most for each silent port.
const TURN: Duration = Duration::from_secs(20);
/// Limit on the processes of one port; a node has fewer devices.
const MAX_ON_PORT: usize = 256;

/// A job's answer: reduced, its sender, and whole.
type JobAnswer = (Arc<Job>, Server, Answer);

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
    /// Versions and phases, where not everybody is asked.
    pub(super) states: States,
}

impl Rounds {
    pub(super) fn new(
        settings: Settings,
        files: TenantFiles,
        answers: Answers,
        communicators: Arc<Communicators>,
        aggregator: Arc<EventAggregator>,
    ) -> Self {
        let paths = files.paths().clone();
        let own = own_network(&paths);
        let names =
            NcclNames::new(Arc::clone(&communicators), Arc::clone(&aggregator), paths.clone());
        let (seen, turns, accounts) = (HashMap::new(), Turns::default(), Accounts::default());
        Self {
            settings,
            paths,
            files,
            answers,
            communicators,
            aggregator,
            own,
            seen,
            turns,
            accounts,
            names,
            states: Box::new(Vec::new),
        }
    }

    /// Those among these processes that may be asked now.
    fn askable(&self, loaded: Vec<ProcKey>) -> Vec<ProcKey> {
        if self.settings.mode == Mode::All {
            return loaded;
        }
        let user = |process| Speaker::of(process, &self.aggregator).uid();
        askable(loaded, &(self.states)(), CLEARED, user)
    }

    /// Runs until the other end of `ended` is closed.
    pub(super) fn run(mut self, candidates: &dyn Fn() -> Vec<ProcKey>, ended: &Receiver<()>) {
        loop {
            self.look(self.askable(candidates()), Instant::now());
            for port in self.turns.due(&self.accounts, Instant::now()) {
                self.turn(port);
                // Publishes between ports, and checks whether to end.
                self.publish();
                if matches!(ended.try_recv(), Err(TryRecvError::Disconnected)) {
                    return;
                }
            }
            self.publish();
            let is_idle = self.seen.is_empty();
            let tick = if is_idle { IDLE_TICK.min(self.settings.every / 6) } else { TICK };
            let tick = tick.min(self.settings.every);
            if matches!(ended.recv_timeout(tick), Err(RecvTimeoutError::Disconnected)) {
                return;
            }
        }
    }

    /// Finds the endpoints of new processes, and removes those that are gone.
    fn look(&mut self, candidates: Vec<ProcKey>, now: Instant) {
        let candidates: HashSet<ProcKey> = candidates.into_iter().collect();
        let names = &mut self.names;
        self.seen.retain(|process, seen| {
            let is_there = candidates.contains(process);
            if !is_there {
                // Its names are removed some minutes later.
                names.note(*process, seen.endpoint.as_ref());
            }
            is_there
        });
        let apart = self.turns.of.values().map(|turn| turn.apart).max().unwrap_or_default();
        names.remove(now, apart, |process| candidates.contains(process));
        for process in candidates {
            let tenant = Speaker::of(process, &self.aggregator);
            let new = CandidateState { tenant, endpoint: None, next_look: now, wait: FIRST_RETRY };
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
        // Random, so that nodes that start a job together do not query at the same moment.
        let next = || now + part_of(self.settings.every / 10);
        let left_out = self.turns.take(ports, next);
        self.answers.count(RasOutcome::NotAsked, left_out);
        let there: HashSet<Speaker> = self.seen.values().map(|seen| seen.tenant).collect();
        self.accounts.retain(now, |tenant| there.contains(&tenant));
    }

    /// Queries a port, and schedules its next query.
    fn turn(&mut self, port: Port) {
        let (begun, on_port) = (Instant::now(), self.on(port));
        let until = begun + TURN;
        // The endpoints of the last round may have changed: only processes that listen now are
        // queried.
        for process in on_port.into_iter().take_while(|_| Instant::now() < until) {
            let endpoint = look(&self.files, process);
            self.names.note(process, endpoint.as_ref());
            if let Some(seen) = self.seen.get_mut(&process) {
                seen.endpoint = endpoint;
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
        // If several tenants share a port, none of them decides how often the others are queried.
        let tenants: HashSet<Speaker> =
            listening.iter().filter_map(|one| Some(self.seen.get(one)?.tenant)).collect();
        let nodes = answers.iter().map(|(.., answer)| answer.nodes).fold(0, u32::saturating_add);
        let is_large = nodes > 1 && tenants.len() == 1;
        let wait = MIN_JOB_GAP.saturating_mul(nodes.min(MAX_NODES));
        let wait = if is_large { every.max(wait) } else { every };
        turn.renew(answers.iter().map(|(job, ..)| Arc::clone(job)), wait * ROUNDS_EXPORTED);
        let wait = wait.saturating_mul(1 << turn.failed.min(4));
        turn.apart = wait;
        turn.next = Instant::now() + wait.saturating_sub(part_of(wait / 10));
        self.report_silent(port, &answers);
    }

    /// Collects one answer for each job, or the error.
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
            if is_new {
                let digest = digest(&answer, &server, &hashes(&server, &self.communicators));
                let (tenant, trusted) = (server.tenant, server.trusted.clone());
                let job = Job { at: Instant::now(), tenant, trusted, digest, ranks };
                answers.push((Arc::new(job), server, answer));
            }
            if missing.is_empty() || passed_over.as_ref() == Some(&missing) {
                break;
            }
        }
        if let Some(turn) = self.turns.of.get_mut(&port) {
            turn.elsewhere = missing;
        }
        let error = silent.filter(|_| answers.is_empty());
        (answers, error)
    }

    /// Makes one query; `None` if no process is left in that network.
    fn ask(
        &self,
        port: Port,
        listening: &BTreeSet<ProcKey>,
        until: Instant,
    ) -> Option<Result<(Server, Answer), AskError>> {
        let first = *listening.first()?;
        // They may make communicators since the last look.
        if self.askable(listening.iter().copied().collect()).len() < listening.len() {
            return None;
        }
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

    /// Identifies the sender: the listening processes of one tenant that have the connection open.
    /// Any process of the same user may share the port, also one unknown to the agent.
    fn server(&self, network: u64, listening: &BTreeSet<ProcKey>, talk: &Talk) -> Option<Server> {
        let looks = Allowance::default();
        let of = |process: &ProcKey| Living::same(&self.paths, *process);
        let inode = accepted(&of(listening.first()?)?, talk.ends()?, &looks)?;
        let holds = |process: &&ProcKey| {
            of(process).is_some_and(|living| held(&living, &looks).any(|one| one == inode))
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

    /// The processes of a network by their NCCL names: those of a tenant without ambiguous names,
    /// and those of others.
    fn here(&self, network: u64, tenant: Speaker) -> LocalNames {
        let mut mine: HashMap<Process, Option<ProcKey>> = HashMap::new();
        let mut others = HashSet::new();
        for (process, seen) in &self.seen {
            let Some(endpoint) = seen.endpoint.as_ref().filter(|one| one.network == network) else {
                continue;
            };
            for host in &endpoint.hosts {
                let name = Process { host: *host, pid: endpoint.inside };
                if seen.tenant == tenant {
                    mine.entry(name).and_modify(|one| *one = None).or_insert(Some(*process));
                } else {
                    others.insert(name);
                }
            }
        }
        others.retain(|name| !mine.contains_key(name));
        let trusted =
            mine.into_iter().filter_map(|(name, process)| Some((name, process?))).collect();
        LocalNames { trusted, others }
    }

    /// The processes that listen on a port.
    fn on(&self, port: Port) -> Vec<ProcKey> {
        let listed = self.seen.iter().filter(|(_, seen)| port_of(seen) == Some(port));
        let mut on: Vec<ProcKey> = listed.map(|(process, _)| *process).collect();
        on.sort_unstable();
        on.retain(|process| Living::is_alive(&self.paths, *process));
        on.truncate(MAX_ON_PORT);
        on
    }

    /// Reports the processes that do not answer.
    fn report_silent(&mut self, port: Port, answers: &[JobAnswer]) {
        let Some(turn) = self.turns.of.get_mut(&port) else { return };
        turn.reported.retain(|tenant, _| self.seen.values().any(|seen| seen.tenant == *tenant));
        for (_, server, answer) in answers {
            let received = silent::ReceivedAnswer { network: port.0, answer, server };
            let reported = turn.reported.entry(server.tenant).or_default();
            let claims =
                reported.report(&received, &self.names, &self.aggregator, &mut self.accounts);
            self.answers.claim(claims);
        }
        for (tenant, reported) in &mut turn.reported {
            let of = answers.iter().filter(|(_, server, _)| server.tenant == *tenant);
            let of: Vec<&Answer> = of.map(|(.., answer)| answer).collect();
            if !of.is_empty() {
                reported.settle(&of);
            }
        }
    }

    fn publish(&self) {
        let turns = || self.turns.of.values();
        let jobs = turns().flat_map(|turn| turn.jobs.iter().cloned()).collect();
        let ranks = turns().flat_map(|turn| &turn.jobs).flat_map(|job| &job.ranks);
        self.communicators.set_reported(ranks.map(|(of, all)| (*of, all.clone())).collect());
        let is_failing = turns().any(|turn| turn.failed > 0);
        self.answers.with(|state| {
            state.jobs = jobs;
            if self.turns.of.is_empty() {
                state.state = nobody(self.settings.mode);
            } else if !is_failing {
                state.state = (SourceState::Ready, String::new(), String::new());
            }
        });
    }
}

/// A random fraction of a time.
fn part_of(time: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0_u8) % 1_000;
    time.mul_f64(chance as f64 / 1_000.0)
}
