//! Queries NCCL's RAS subsystem (2.28.7 and later) about the jobs on this node: each process's rank
//! in each communicator, on all nodes, its launched operations, and the processes that do not
//! answer.
//!
//! Any process of a job answers for the whole job, after querying all others. So queries are rare,
//! and rarer for jobs with more nodes: all agents together query a job at most once in ten seconds.
//! A separate thread makes the queries and closes the connection after every answer; a reading
//! exports the last answers and costs microseconds.
//!
//! The question has crashed the library that it is put to. So by default (`auto`) only versions are
//! asked that are known to survive it, in a phase in which they do (`cleared.rs`); where there are
//! none, nothing is looked for and no thread runs.
//!
//! Any process that holds a device can be the one that answers. Its answer is trusted only about
//! processes of the same tenant, read within bounds on memory and time, and tenants take turns.

mod answer;
mod ask;
mod cleared;
mod digest;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod json;
mod listeners;
mod rounds;
mod silent;
mod tenant;
mod tokens;
mod turns;

use crate::known::NcclInUse;
use crate::probe::phase::LibraryState;
use ask::AskError;
use cleared::{CLEARED, QUIET};
use digest::{CommunicatorView, Digest, Local};
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::Importance;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::nccl::{self as metric, PeerState, RankPresence, RasOutcome};
use gpuwho_model::ids::MemberId;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_model::status::Report;
use gpuwho_owners::communicators::{Communicators, LocalRanks};
use gpuwho_owners::tenant_files::TenantFiles;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use parking_lot::Mutex;
use rounds::Rounds;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tenant::Speaker;

/// Name of the source; its thread is `nccl:ras`, once a process may use NCCL.
pub const NAME: &str = "nccl-ras";

/// Whom to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Versions that are known to survive the question, while they do.
    Auto,
    /// Nobody.
    Off,
    /// Everybody.
    All,
}

/// Whom and how often to query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whom to query.
    pub mode: Mode,
    /// Time between two queries of a job with up to six nodes.
    pub every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        // As long as NCCL takes to give up a process.
        Self { mode: Mode::Auto, every: Duration::from_mins(1) }
    }
}

/// The last answers, shared between the thread that asks and the collector.
#[derive(Clone, Debug, Default)]
struct Answers(Arc<Mutex<RasState>>);

#[derive(Debug)]
struct RasState {
    state: (SourceState, String, String),
    outcomes: HashMap<RasOutcome, u64>,
    /// Statements in answers about processes of other tenants on this node; they are ignored.
    claims: u64,
    jobs: Vec<Arc<Job>>,
}

/// The last answer of a job.
#[derive(Debug)]
struct Job {
    at: Instant,
    tenant: Speaker,
    /// Processes on this node about which the answer is trusted.
    trusted: HashSet<ProcKey>,
    digest: Digest,
    ranks: LocalRanks,
}

impl Default for RasState {
    fn default() -> Self {
        Self { state: nobody(Mode::All), outcomes: HashMap::new(), claims: 0, jobs: Vec::new() }
    }
}

/// The state while nobody is asked.
fn nobody(mode: Mode) -> (SourceState, String, String) {
    let (reason, remedy) = match mode {
        Mode::Off => ("switched off (nccl.ras)".to_owned(), ""),
        Mode::All => ("no process that holds a device listens for NCCL's clients".to_owned(), ""),
        Mode::Auto if CLEARED.is_empty() => (
            "no version of NCCL is known to survive its status question (nccl.ras = \"auto\")"
                .into(),
            "nothing to do; nccl.ras = \"all\" asks, and may crash the job: see agent/docs/asks.md",
        ),
        Mode::Auto => {
            let what = "a version that is known to survive the question";
            (format!("no process has {what}, and communicators quiet for {QUIET:?}"), "")
        }
    };
    (SourceState::Absent, reason, remedy.into())
}

impl Answers {
    fn with<T>(&self, read: impl FnOnce(&mut RasState) -> T) -> T {
        read(&mut self.0.lock())
    }

    fn count(&self, outcome: RasOutcome, times: u64) {
        self.with(|reported| *reported.outcomes.entry(outcome).or_insert(0) += times);
    }

    fn claim(&self, claims: u64) {
        self.with(|reported| reported.claims = reported.claims.saturating_add(claims));
    }

    fn fail(&self, error: &AskError) {
        let remedy = match error {
            AskError::Namespace(_) => "let the agent have CAP_SYS_ADMIN, or set nccl.ras = \"off\"",
            _ => "set nccl.ras = \"off\" to stop asking",
        };
        let state = (SourceState::Degraded, error.to_string(), remedy.into());
        self.with(|reported| reported.state = state);
    }
}

/// Returns the processes that have the library loaded.
pub type Candidates = Box<dyn Fn() -> Vec<ProcKey> + Send>;
/// Returns versions and phases of their libraries.
pub type States = Box<dyn Fn() -> Vec<LibraryState> + Send>;

/// The collector. Dropping it ends the thread.
pub struct Ras {
    answers: Answers,
    communicators: Arc<Communicators>,
    /// What the thread runs, before its start.
    waiting: Option<(Rounds, Candidates)>,
    /// The thread starts once one of these says that NCCL may be in use.
    in_use: NcclInUse,
    /// Closing it ends the thread.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Ras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ras").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl Ras {
    /// Asks nobody before its start.
    pub fn new(
        settings: Settings,
        files: &TenantFiles,
        communicators: &Arc<Communicators>,
        (candidates, states): (Candidates, States),
        aggregator: Arc<EventAggregator>,
    ) -> Self {
        let (answers, communicators) = (Answers::default(), Arc::clone(communicators));
        answers.with(|known| known.state = nobody(settings.mode));
        let shared = (answers.clone(), Arc::clone(&communicators));
        // Without anybody to ask there is nothing to start.
        let waiting = (!asks_nobody(&settings)).then(|| {
            let mut rounds = Rounds::new(settings, files.clone(), shared.0, shared.1, aggregator);
            rounds.states = states;
            (rounds, candidates)
        });
        Self { answers, communicators, waiting, in_use: <_>::default(), stop: None, thread: None }
    }

    /// Starts the thread with the first reading at which NCCL may be in use.
    pub fn start_when(&mut self, in_use: &NcclInUse) {
        self.in_use = in_use.clone();
    }

    /// Starts the thread, once.
    pub fn start(&mut self) -> io::Result<()> {
        let Some((rounds, candidates)) = self.waiting.take() else { return Ok(()) };
        let (stop, ended) = sync_channel(0);
        let work = move || rounds.run(&candidates, &ended);
        self.thread = Some(thread::Builder::new().name("nccl:ras".into()).spawn(work)?);
        self.stop = Some(stop);
        Ok(())
    }

    fn start_in_use(&mut self) {
        if self.waiting.is_none() || !self.in_use.all().iter().any(|is_so| is_so()) {
            return;
        }
        if let Err(error) = self.start() {
            let reason = format!("no thread to ask NCCL with: {error}");
            let remedy = "raise the limit of threads (TasksMax, pids.max), then restart the agent";
            self.answers.with(|known| known.state = (SourceState::Failed, reason, remedy.into()));
        }
    }

    fn report_job(&self, out: &mut Batch, job: &Job, communicator: &CommunicatorView) {
        for id in self.communicators.members(communicator.hash) {
            let facts = self.communicators.facts(id);
            // A process of another tenant may claim to be in the same communicator.
            let Some(facts) = facts.filter(|facts| job.trusted.contains(&facts.process)) else {
                continue;
            };
            report_presence(out, id, communicator);
            let is_same = |local: &&Local| {
                local.process == facts.process && facts.rank.is_none_or(|rank| rank == local.rank)
            };
            if let Some(local) = communicator.local.iter().find(is_same) {
                for (operation, launched) in local.launched.iter() {
                    out.push(metric::LAUNCHED.sample(id, operation, number(launched)));
                }
                out.push(metric::BEHIND.sample(id, (), number(local.behind)));
            }
        }
    }
}

fn report_presence(out: &mut Batch, id: MemberId, communicator: &CommunicatorView) {
    let counts = [
        (RankPresence::Present, communicator.present),
        (RankPresence::Unresponsive, Some(communicator.unresponsive)),
        (RankPresence::Dead, Some(communicator.dead)),
        (RankPresence::Left, Some(communicator.left)),
    ];
    for (presence, count) in counts {
        if let Some(count) = count {
            out.push(metric::PRESENCE.sample(id, presence, count.into()));
        }
    }
}

impl Collector for Ras {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn importance(&self) -> Importance {
        Importance::Extra
    }

    fn collect(&mut self, out: &mut Batch) {
        self.start_in_use();
        let (jobs, outcomes, claims) = self
            .answers
            .with(|reported| (reported.jobs.clone(), reported.outcomes.clone(), reported.claims));
        for (outcome, count) in outcomes {
            out.push(metric::RAS_QUERIES.sample(Agent, outcome, number(count)));
        }
        if self.thread.is_some() {
            out.push(metric::RAS_CLAIMS.sample(Agent, (), number(claims)));
        }
        let Some(oldest) = jobs.iter().map(|job| job.at).min() else { return };
        out.push(metric::RAS_AGE.sample(Agent, (), oldest.elapsed().as_secs_f64()));
        let sum = |of: fn(&Digest) -> u32| jobs.iter().map(|job| i64::from(of(&job.digest))).sum();
        out.push(metric::PEERS.sample(Agent, PeerState::Known, sum(|job| job.processes)));
        out.push(metric::PEERS.sample(Agent, PeerState::Unresponsive, sum(|job| job.unresponsive)));
        out.push(metric::PEERS.sample(Agent, PeerState::Dead, sum(|job| job.dead)));
        for job in &jobs {
            for communicator in &job.digest.communicators {
                self.report_job(out, job, communicator);
            }
        }
    }

    fn report(&self) -> Report {
        self.answers.with(|reported| {
            let (state, reason, remedy) = reported.state.clone();
            let is_error =
                |is: RasOutcome| !matches!(is, RasOutcome::Answered | RasOutcome::NotAsked);
            let failed = reported.outcomes.iter().filter(|(is, _)| is_error(**is));
            let errors = failed.map(|(_, count)| count).sum();
            Report { errors, ..Report::of(state, reason, remedy) }
        })
    }
}

impl Drop for Ras {
    /// Does not wait for a query in progress: it ends within seconds.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn asks_nobody(settings: &Settings) -> bool {
    settings.mode == Mode::Off || settings.mode == Mode::Auto && CLEARED.is_empty()
}

/// The finding of `gpuwho doctor` without an agent.
pub fn diagnose(settings: &Settings) -> (SourceState, String, String) {
    if asks_nobody(settings) {
        return nobody(settings.mode);
    }
    let (every, remedy) = match settings.mode {
        Mode::All => (settings.every, "nccl.ras = \"auto\" never asks a version that may crash"),
        _ => (settings.every, ""),
    };
    let detail = format!("status sockets of NCCL 2.28.7 and later are asked every {every:?}");
    (SourceState::Ready, detail, remedy.into())
}

#[cfg(test)]
mod live_tests;
