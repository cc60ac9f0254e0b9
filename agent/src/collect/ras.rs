//! What NCCL itself says of the jobs on this node (its RAS subsystem, 2.24 and later): which rank of
//! which communicator each process is, on all nodes, what it has launched, and who does not answer.
//!
//! Any process of a job answers for the whole job, after asking all the others. So it is asked
//! seldom, and the more nodes a job has, the more seldom: all agents together ask a job no more
//! often than once in ten seconds. A thread of its own asks, and lets go of the connection with
//! every answer; a reading tells the last answer and costs microseconds.
//!
//! Anybody who holds a device can be the one that answers: what it says is believed of its own
//! processes alone, read within a bound of memory and time, and asked for in turn with others.

mod answer;
mod ask;
mod digest;
#[doc(hidden)]
pub mod fuzz;
mod json;
mod listeners;
mod rounds;
mod silent;
mod tenant;
mod text;
mod tokens;
mod turns;
mod unequal;

use crate::catalog::agent::SourceState;
use crate::catalog::nccl::{self as metric, PeerState, RankPresence, RasOutcome};
use crate::collect::Collector;
use crate::collect::status::Report;
use crate::communicators::{CommunicatorHash, Communicators, MemberId};
use crate::event::aggregator::EventAggregator;
use crate::ids::ProcKey;
use crate::sample::{Agent, Batch};
use crate::tenant_files::TenantFiles;
use ask::AskError;
use digest::{CommunicatorView, Digest, Local};
use rounds::Rounds;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tenant::Speaker;

/// The source's name: its threads are `collect:nccl-ras` and `nccl:ras`.
pub const NAME: &str = "nccl-ras";

/// Whether and how often to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether to ask at all.
    pub enabled: bool,
    /// Time between two questions to a job of up to six nodes.
    pub every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        // Half as often as NCCL's own keep-alive gives a process up.
        Self { enabled: true, every: Duration::from_mins(1) }
    }
}

/// A rank of a process of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The communicator.
    pub hash: CommunicatorHash,
    /// Rank in it.
    pub rank: u32,
    /// Its ranks.
    pub ranks: u32,
    /// CUDA device ordinal in the process.
    pub device: Option<u32>,
}

/// All ranks that a process had when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRanks {
    /// Nanoseconds of `CLOCK_BOOTTIME` before the question.
    pub as_of_ns: u64,
    /// The ranks.
    pub ranks: Vec<LocalRank>,
}

/// Ranks by process.
pub type LocalRanks = HashMap<ProcKey, ReportedRanks>;

/// What the last answers say, for all who want to know.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Mutex<RasState>>);

#[derive(Debug)]
struct RasState {
    state: (SourceState, String, String),
    outcomes: HashMap<RasOutcome, u64>,
    /// What answers say of processes on this node of which they may not speak.
    claims: u64,
    jobs: Vec<Arc<Job>>,
}

/// The last answer of a job.
#[derive(Debug)]
struct Job {
    at: Instant,
    tenant: Speaker,
    /// Processes on this node of which it may speak.
    trusted: HashSet<ProcKey>,
    digest: Digest,
    ranks: LocalRanks,
}

impl Default for RasState {
    fn default() -> Self {
        let reason = "no process that holds a device listens for NCCL's clients";
        let state = (SourceState::Absent, reason.into(), String::new());
        Self { state, outcomes: HashMap::new(), claims: 0, jobs: Vec::new() }
    }
}

impl Answers {
    fn with<T>(&self, look: impl FnOnce(&mut RasState) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, outcome: RasOutcome, times: u64) {
        self.with(|reported| *reported.outcomes.entry(outcome).or_insert(0) += times);
    }

    fn claim(&self, claims: u64) {
        self.with(|reported| reported.claims = reported.claims.saturating_add(claims));
    }

    fn fail(&self, error: &AskError) {
        let remedy = match error {
            AskError::Namespace(_) => "let the agent have CAP_SYS_ADMIN, or set nccl.ras = false",
            _ => "set nccl.ras = false to stop asking",
        };
        let state = (SourceState::Degraded, error.to_string(), remedy.into());
        self.with(|reported| reported.state = state);
    }

    /// The ranks of this node's processes.
    pub fn local_ranks(&self) -> LocalRanks {
        self.with(|reported| {
            let all = reported.jobs.iter().flat_map(|job| &job.ranks);
            all.map(|(process, ranks)| (*process, ranks.clone())).collect()
        })
    }
}

/// The processes that have the library loaded.
pub type Candidates = Box<dyn Fn() -> Vec<ProcKey> + Send>;

/// The collector. Dropping it ends the thread.
#[derive(Debug)]
pub struct Ras {
    answers: Answers,
    communicators: Arc<Communicators>,
    /// Closing it ends the thread.
    going: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts asking.
pub fn start(
    settings: Settings,
    files: &TenantFiles,
    (answers, communicators): (&Answers, &Arc<Communicators>),
    candidates: Candidates,
    desk: Arc<EventAggregator>,
) -> io::Result<Ras> {
    let known = (answers.clone(), Arc::clone(communicators));
    let rounds = Rounds::new(settings, files.clone(), known, desk);
    let (going, ended) = sync_channel(0);
    let thread = thread::Builder::new()
        .name("nccl:ras".into())
        .spawn(move || rounds.run(&candidates, &ended))?;
    let (answers, communicators) = (answers.clone(), Arc::clone(communicators));
    Ok(Ras { answers, communicators, going: Some(going), thread: Some(thread) })
}

impl Ras {
    fn report_job(&self, out: &mut Batch, job: &Job, communicator: &CommunicatorView) {
        for id in self.communicators.members(communicator.hash) {
            let facts = self.communicators.facts(id);
            // Another tenant's process may say that it is in the same.
            let Some(facts) = facts.filter(|facts| job.trusted.contains(&facts.process)) else {
                continue;
            };
            report_presence(out, id, communicator);
            let is_it = |local: &&Local| {
                local.process == facts.process && facts.rank.is_none_or(|rank| rank == local.rank)
            };
            if let Some(local) = communicator.local.iter().find(is_it) {
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

    fn collect(&mut self, out: &mut Batch) {
        let (jobs, outcomes, claims) = self
            .answers
            .with(|reported| (reported.jobs.clone(), reported.outcomes.clone(), reported.claims));
        for (outcome, count) in outcomes {
            out.push(metric::RAS_QUERIES.sample(Agent, outcome, number(count)));
        }
        out.push(metric::RAS_CLAIMS.sample(Agent, (), number(claims)));
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
    /// Does not wait for a question that is on its way: it ends by itself within seconds.
    fn drop(&mut self) {
        drop(self.going.take());
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What `gpuwho doctor` says, without an agent.
pub fn diagnose(settings: &Settings) -> (SourceState, String) {
    if !settings.enabled {
        return (SourceState::Absent, "switched off (nccl.ras)".into());
    }
    let every = settings.every;
    let detail = format!("status sockets of NCCL 2.24 and later are asked every {every:?}");
    (SourceState::Ready, detail)
}

#[cfg(test)]
mod live_tests;
