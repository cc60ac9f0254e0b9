//! The thread that asks: who listens where, whose turn it is, and what is told of an answer.
//!
//! The processes of one user share one port of a network (`SO_REUSEPORT`), and the kernel gives a
//! connection to any of them, also to one that is stopped and never answers. One answer is of one
//! job. So where there is none in time, or local processes that listen are not in it, it is asked
//! again, three times at most.

use super::answer::{Answer, Process};
use super::ask::{AskError, ask};
use super::digest::{digest, local_ranks};
use super::listeners::{Standing, look, network, own_network};
use super::silent::{self, Names, Told};
use super::{Answers, Job, Settings};
use crate::catalog::agent::SourceState;
use crate::catalog::nccl::RasOutcome;
use crate::collect::proc_scan::is_alive;
use crate::communicators::Communicators;
use crate::event::desk::Desk;
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use crate::paths::Paths;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const BEAT: Duration = Duration::from_secs(1);
/// Questions to a job from all its nodes come no closer than this.
const NODES_SHARE: Duration = Duration::from_secs(10);
/// Jobs of one user on a node beyond the first.
const MOST_JOBS: usize = 3;
/// Rounds for which an answer is told that nobody has confirmed: another job has answered.
const ROUNDS_TOLD: u32 = 4;
/// The first look at a process that does not listen comes again after this, then each after twice
/// the time.
const SOON: Duration = Duration::from_secs(1);

/// Processes that share a port of a network.
type Port = (u64, SocketAddr);

/// A job's answer, whole and as told, and the names of this node's processes in it.
type Heard = (Job, HashMap<Process, ProcKey>, Answer);

/// A process that has the library loaded.
#[derive(Debug)]
struct Seen {
    standing: Option<Standing>,
    next_look: Instant,
    wait: Duration,
}

/// A port's turns.
#[derive(Debug)]
struct Turn {
    next: Instant,
    /// Time between two questions.
    apart: Duration,
    failed: u32,
    jobs: Vec<Job>,
    told: Told,
    /// Who was in no answer although it was asked again.
    elsewhere: BTreeSet<ProcKey>,
}

impl Turn {
    /// Takes new answers, and keeps those of jobs that have not been heard this time for a while.
    fn renew(&mut self, new: impl Iterator<Item = Job>, told_for: Duration) {
        let mut jobs: Vec<Job> = new.collect();
        let heard: HashSet<ProcKey> =
            jobs.iter().flat_map(|job| job.ranks.keys().copied()).collect();
        let has_new = !jobs.is_empty();
        let is_kept = |job: &Job| {
            let is_other = !has_new || !job.ranks.is_empty();
            let is_unheard = !job.ranks.keys().any(|process| heard.contains(process));
            is_other && is_unheard && job.at.elapsed() < told_for
        };
        jobs.extend(self.jobs.drain(..).filter(is_kept));
        self.jobs = jobs;
    }
}

/// The state of the thread.
pub(super) struct Rounds {
    settings: Settings,
    paths: Paths,
    answers: Answers,
    desk: Option<Arc<Desk>>,
    own: Option<u64>,
    seen: HashMap<ProcKey, Seen>,
    turns: HashMap<Port, Turn>,
    names: Names,
}

impl Rounds {
    pub(super) fn new(
        settings: Settings,
        paths: Paths,
        (answers, communicators): (Answers, Arc<Communicators>),
        desk: Option<Arc<Desk>>,
    ) -> Self {
        let own = own_network(&paths);
        let (seen, turns, names) =
            (HashMap::new(), HashMap::new(), Names::new(communicators, desk.clone()));
        Self { settings, paths, answers, desk, own, seen, turns, names }
    }

    /// Runs until nobody keeps the other end of `ended`.
    pub(super) fn run(mut self, candidates: &dyn Fn() -> Vec<ProcKey>, ended: &Receiver<()>) {
        let beat = BEAT.min(self.settings.every);
        loop {
            self.look(candidates(), Instant::now());
            let now = Instant::now();
            let due = self.turns.iter().filter(|(_, turn)| turn.next <= now);
            let mut due: Vec<Port> = due.map(|(port, _)| *port).collect();
            due.sort_unstable();
            for port in due {
                self.turn(port);
                // Somebody may want to end while several are asked.
                if matches!(ended.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected)) {
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
                names.note(*process, seen.standing.as_ref());
            }
            is_there
        });
        let apart = self.turns.values().map(|turn| turn.apart).max().unwrap_or_default();
        names.forget(now, apart, |process| candidates.contains(process));
        for process in candidates {
            let new = Seen { standing: None, next_look: now, wait: SOON };
            let seen = self.seen.entry(process).or_insert(new);
            let has_socket = seen.standing.as_ref().is_some_and(|one| one.client.is_some());
            if has_socket || seen.next_look > now {
                continue;
            }
            seen.standing = look(&self.paths, process);
            self.names.note(process, seen.standing.as_ref());
            seen.next_look = now + seen.wait;
            seen.wait = (seen.wait * 2).min(self.settings.every);
        }
        let ports: HashSet<Port> = self.seen.values().filter_map(port_of).collect();
        self.turns.retain(|port, _| ports.contains(port));
        for port in ports {
            // Not all at the same moment on nodes that start a job together.
            let next = now + part_of(self.settings.every / 10);
            self.turns.entry(port).or_insert_with(|| Turn {
                next,
                apart: Duration::ZERO,
                failed: 0,
                jobs: Vec::new(),
                told: Told::default(),
                elsewhere: BTreeSet::new(),
            });
        }
    }

    /// Asks at a port, and decides when to ask again.
    fn turn(&mut self, port: Port) {
        // What was read a round ago may have changed: whoever is asked must listen now.
        let on_port: Vec<ProcKey> = self.on(port);
        for process in &on_port {
            let standing = look(&self.paths, *process);
            self.names.note(*process, standing.as_ref());
            if let Some(seen) = self.seen.get_mut(process) {
                seen.standing = standing;
            }
        }
        let listening: BTreeSet<ProcKey> = self.on(port).into_iter().collect();
        let Some(first) = listening.first().copied() else {
            self.turns.remove(&port);
            return;
        };
        let (answers, error) = self.ask_all(port, first, &listening);
        let every = self.settings.every;
        let Some(turn) = self.turns.get_mut(&port) else { return };
        if let Some(error) = error {
            turn.failed += 1;
            tracing::debug!(%error, at = %port.1, "NCCL's status socket gives no answer");
            self.fail(&error);
        }
        let Some(turn) = self.turns.get_mut(&port) else { return };
        let nodes = answers.iter().map(|(.., answer)| answer.nodes).fold(0, u32::saturating_add);
        if !answers.is_empty() {
            turn.failed = 0;
        }
        let wait = if nodes > 1 { every.max(NODES_SHARE.saturating_mul(nodes)) } else { every };
        turn.renew(answers.iter().map(|(job, ..)| job.clone()), wait * ROUNDS_TOLD);
        let wait = wait.saturating_mul(1 << turn.failed.min(4));
        turn.apart = wait;
        turn.next = Instant::now() + wait.saturating_sub(part_of(wait / 10));
        self.tell_silent(port, &answers);
    }

    /// One answer a job, and why there is none.
    fn ask_all(
        &mut self,
        port: Port,
        first: ProcKey,
        listening: &BTreeSet<ProcKey>,
    ) -> (Vec<Heard>, Option<AskError>) {
        let here = self.here(port.0);
        let mut answers: Vec<Heard> = Vec::new();
        let (mut missing, mut silent) = (listening.clone(), None);
        let passed_over = self.turns.get(&port).map(|turn| turn.elsewhere.clone());
        for _ in 0..=MOST_JOBS {
            let as_of_ns = boot_time_ns();
            let namespace = match self.own {
                Some(own) if own == port.0 => None,
                _ => network(&self.paths, first),
            };
            if namespace.is_none() && self.own != Some(port.0) {
                break;
            }
            let answer = match ask(port.1, namespace.as_ref()) {
                Ok(answer) => answer,
                Err(late @ AskError::Late) if listening.len() > 1 => {
                    self.count(late.outcome());
                    silent = Some(late);
                    continue;
                }
                Err(error) => {
                    self.count(error.outcome());
                    return (answers, Some(error));
                }
            };
            self.count(RasOutcome::Answered);
            silent = None;
            let ranks = local_ranks(&answer, &here, as_of_ns);
            let is_new = answers.is_empty() || ranks.keys().any(|one| missing.contains(one));
            missing.retain(|process| !ranks.contains_key(process));
            let is_whole = answer.is_whole;
            if is_new {
                let digest = Arc::new(digest(&answer, &here));
                answers.push((Job { at: Instant::now(), digest, ranks }, here.clone(), answer));
            }
            if missing.is_empty() || !is_whole || passed_over.as_ref() == Some(&missing) {
                break;
            }
        }
        if let Some(turn) = self.turns.get_mut(&port) {
            turn.elsewhere = missing;
        }
        let error = silent.filter(|_| answers.is_empty());
        (answers, error)
    }

    /// The processes of a network by the names that NCCL has for them, without those that share
    /// one.
    fn here(&self, network: u64) -> HashMap<Process, ProcKey> {
        let mut here: HashMap<Process, Option<ProcKey>> = HashMap::new();
        for (process, seen) in &self.seen {
            let Some(standing) = seen.standing.as_ref().filter(|one| one.network == network) else {
                continue;
            };
            let hosts: BTreeSet<IpAddr> = standing.hosts.iter().copied().collect();
            for host in hosts {
                let name = Process { host: host.to_string().into(), pid: standing.inside };
                here.entry(name).and_modify(|one| *one = None).or_insert(Some(*process));
            }
        }
        here.into_iter().filter_map(|(name, process)| Some((name, process?))).collect()
    }

    fn on(&self, port: Port) -> Vec<ProcKey> {
        let on = self.seen.iter().filter(|(_, seen)| port_of(seen) == Some(port));
        on.map(|(process, _)| *process).filter(|process| is_alive(&self.paths, *process)).collect()
    }

    /// Tells of those who do not answer.
    fn tell_silent(&mut self, port: Port, answers: &[Heard]) {
        let Some(desk) = self.desk.clone() else { return };
        let listening = self.on(port);
        let Some(turn) = self.turns.get_mut(&port) else { return };
        for (_, here, answer) in answers {
            let heard = silent::Heard { network: port.0, answer, here, listening: &listening };
            turn.told.tell(&heard, &self.names, &desk);
        }
        if !answers.is_empty() {
            turn.told.settle(&answers.iter().map(|(.., answer)| answer).collect::<Vec<_>>());
        }
    }

    fn count(&self, outcome: RasOutcome) {
        self.answers.with(|told| *told.outcomes.entry(outcome).or_insert(0) += 1);
    }

    fn fail(&self, error: &AskError) {
        let remedy = match error {
            AskError::Namespace(_) => "let the agent have CAP_SYS_ADMIN, or set nccl.ras = false",
            _ => "set nccl.ras = false to stop asking",
        };
        let state = (SourceState::Degraded, error.to_string(), remedy.into());
        self.answers.with(|told| told.state = state);
    }

    fn publish(&self) {
        let jobs = self.turns.values().flat_map(|turn| turn.jobs.iter().cloned()).collect();
        let is_failing = self.turns.values().any(|turn| turn.failed > 0);
        self.answers.with(|told| {
            told.jobs = jobs;
            if self.turns.is_empty() {
                told.state = super::Told::default().state;
            } else if !is_failing {
                told.state = (SourceState::Ready, String::new(), String::new());
            }
        });
    }
}

fn port_of(seen: &Seen) -> Option<Port> {
    let standing = seen.standing.as_ref()?;
    Some((standing.network, standing.client?))
}

/// A part of a time, by chance.
fn part_of(time: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0_u8) % 1_000;
    time.mul_f64(chance as f64 / 1_000.0)
}
