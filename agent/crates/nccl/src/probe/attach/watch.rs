//! The thread that finds libraries, attaches the probes and keeps them within their budgets. It
//! sleeps until the next check of a process is due (`scan`) and, while a library is in use, at most
//! a second (`budgets`).

use super::Attaching;
use crate::probe::budget::ProbeBudgets;
use crate::probe::budget::denials::name;
use crate::probe::libraries::library::VersionAndPath;
use crate::probe::libraries::rescan::{PendingRescans, RescanHandle};
use crate::probe::libraries::scan::{Candidates, OLD_EVERY, ProcessScan};
use crate::probe::shared::Shared;
use crate::probe::state;
use crate::probe::{Dependencies, Settings};
use gpuwho_common::nccl::STRANGERS;
use gpuwho_model::catalog::nccl::ProbeLevel;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_sys::memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Name of the thread, and of its CPU time in the agent's own metrics.
const THREAD: &str = "nccl:watch";

/// The running thread. Dropping this ends it.
#[derive(Debug)]
pub(in super::super) struct Running {
    /// Closing it ends the thread.
    wake: Option<Arc<OwnedFd>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Starts the thread.
pub(in super::super) fn start(
    settings: &Settings,
    with: Dependencies<'_>,
    candidates: Candidates,
    shared: Shared,
) -> io::Result<(Running, RescanHandle)> {
    let now = Instant::now();
    let paths = with.files.paths();
    let mut scan = ProcessScan::new(with.files.clone(), paths, candidates, now);
    scan.libraries.trusted.clone_from(&settings.trusted_mounts);
    let watch = Watch {
        paths: paths.clone(),
        shared,
        scan,
        attaching: Attaching::new(settings.timed_rate),
        budgets: ProbeBudgets::new(settings, now),
        ownership: with.ownership.clone(),
        known: (Version::default(), HashSet::new()),
        numbers: HashMap::new(),
        aggregator: with.aggregator.cloned(),
        pending: PendingRescans::default(),
    };
    let (pending, board) = (Arc::clone(&watch.pending), with.board.clone());
    let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let thread =
        thread::Builder::new().name(THREAD.into()).spawn(move || watch.run(&woken, &board))?;
    let wake = Arc::new(wake);
    let waker = RescanHandle { wake: Arc::downgrade(&wake), pending };
    Ok((Running { wake: Some(wake), thread: Some(thread) }, waker))
}

/// The state of the thread.
struct Watch {
    paths: Paths,
    shared: Shared,
    scan: ProcessScan,
    attaching: Attaching,
    budgets: ProbeBudgets,
    ownership: Ownership,
    /// The ownership version and the processes with an open device at the last update of the
    /// programs.
    known: (Version, HashSet<ProcKey>),
    numbers: HashMap<QuotaKey, u32>,
    aggregator: Option<Arc<EventAggregator>>,
    pending: PendingRescans,
}

impl Watch {
    /// Runs until the other end of the pipe is closed.
    fn run(mut self, woken: &OwnedFd, board: &StatusRegistry) {
        // Prepared at start, because a job uses a library soon after loading it.
        self.attaching.prepare(&self.paths);
        memory::give_back();
        board.clock(THREAD);
        loop {
            let now = Instant::now();
            let turn = board.turn(THREAD, OLD_EVERY);
            let pending = std::mem::take(&mut *self.pending.lock());
            for process in pending {
                self.scan.request_rescan(process, now);
            }
            let is_due = self.attaching.due().is_some_and(|due| due <= now);
            let has_changed = self.scan.check(now);
            self.update_owners();
            if has_changed || is_due {
                self.follow_libraries(now);
            }
            self.apply_budgets(now);
            self.attaching.detach_some(&self.scan.libraries, Instant::now());
            self.publish();
            drop(turn);
            if wait(woken.as_fd(), self.pause(now)) {
                return;
            }
        }
    }

    /// Time until the next work is due.
    fn pause(&self, now: Instant) -> Duration {
        let latest = now + OLD_EVERY;
        let scan = self.scan.due().into_iter().chain(self.attaching.detaching_due());
        let due = scan.chain(self.budgets.due()).chain(self.attaching.due());
        due.fold(latest, Instant::min).saturating_duration_since(Instant::now())
    }

    /// Updates the programs' owners of processes after a change.
    fn update_owners(&mut self) {
        let now = (self.ownership.version(), self.scan.openers());
        if self.known == now {
            return;
        }
        let key = |process: &ProcKey| (*process, self.ownership.quota_key(*process));
        let keys: Vec<(ProcKey, QuotaKey)> = now.1.iter().map(key).collect();
        let present: HashSet<QuotaKey> = keys.iter().map(|(_, key)| *key).collect();
        // A tenant has one number, that of its first owner.
        self.numbers.retain(|key, _| present.contains(key));
        let numbers = &mut self.numbers;
        let mut number = |key: QuotaKey| match (numbers.get(&key), key.owner().number()) {
            (Some(known), _) => *known,
            // Not attributed yet; a later process of the tenant, or this one later, may be.
            (None, STRANGERS) => STRANGERS,
            (None, first) => *numbers.entry(key).or_insert(first),
        };
        let holders = keys.into_iter().map(|(process, key)| (process, number(key))).collect();
        self.shared.with(|known| known.quotas.follow(holders));
        self.known = now;
    }

    fn follow_libraries(&mut self, now: Instant) {
        self.enforce(now, true);
        self.note();
    }

    /// Records what is attached and allowed from now on.
    fn note(&self) {
        self.shared.with(|known| {
            let present = self.attaching.present(&self.scan.libraries, &known.quotas);
            known.uptime.note(Instant::now(), boot_time_ns(), &present);
        });
    }

    /// Updates the budgets, and applies their decisions.
    fn apply_budgets(&mut self, now: Instant) {
        let libraries = &self.scan.libraries;
        for change in self.budgets.update(now, &self.attaching, libraries, &self.shared) {
            change.log(self.aggregator.as_deref());
        }
        self.enforce(now, false);
    }

    /// Applies the budgets to what is counted and attached. Less is counted before less is
    /// attached, and more once more is attached, so that the recorded coverage holds from the first
    /// call to the last.
    fn enforce(&mut self, now: Instant, must_follow: bool) {
        let all = self.budgets.all();
        let lowered = self.shared.with(|known| {
            let less = all.iter().filter(|(owner, attach)| *attach < known.quotas.allowed(*owner));
            let less: Vec<_> = less.copied().collect();
            known.quotas.allow(less)
        });
        if !lowered.is_empty() {
            self.note();
        }
        let owners = self.shared.with(|known| known.quotas.owners());
        let owner_of = |process: ProcKey| owners.get(&process.pid).copied().unwrap_or(STRANGERS);
        let libraries = &mut self.scan.libraries;
        let wanted = self.attaching.wanted(libraries, |user| self.budgets.attach(owner_of(user)));
        let must_follow = must_follow || self.attaching.differs(&wanted);
        if must_follow {
            self.attaching.follow(libraries, &wanted, &self.shared, now);
        }
        let waits = |owner| self.attaching.must_wait(libraries, |user| owner_of(user) == owner);
        let ready: Vec<_> = all.into_iter().filter(|(owner, _)| !waits(*owner)).collect();
        let raised = self.shared.with(|known| known.quotas.allow(ready));
        self.budgets.enforced(&raised, &owners);
        if must_follow || !raised.is_empty() {
            self.note();
        }
    }

    /// Each process's files by number, and the file number of each process that maps only one.
    fn numbered(&self) -> (HashMap<(ProcKey, u32), VersionAndPath>, HashMap<ProcKey, u32>) {
        let (mut files, mut of): (HashMap<_, _>, HashMap<_, _>) = Default::default();
        for (key, library) in self.scan.libraries.in_use() {
            let Some(number) = self.attaching.number_of(key) else { continue };
            for process in library.users.keys() {
                files.insert((*process, number), library.version_and_path(*process));
                let only = of.entry(*process).or_insert(Some(number));
                *only = only.filter(|other| *other == number);
            }
        }
        (files, of.into_iter().filter_map(|(process, only)| Some((process, only?))).collect())
    }

    fn publish(&self) {
        let found = &self.scan.libraries;
        let (mut libraries, mut fields) = (HashMap::new(), HashMap::new());
        for process in found.users() {
            if let Some(library) = found.of(process) {
                libraries.insert(process, library.version_and_path(process));
                fields.extend(found.fields_of(process).map(|fields| (process, fields)));
            }
        }
        let (files_by_number, only) = self.numbered();
        let files = self.attaching.files(found);
        let least = self.budgets.least();
        let level = least.map_or(ProbeLevel::Full, |(_, budget)| budget.level());
        let is_off = level == ProbeLevel::Full && self.attaching.is_idle();
        let level = if is_off { ProbeLevel::Off } else { level };
        let decision = least.map(|(owner, budget)| (budget, name(&self.ownership, owner)));
        let problem = found.problem();
        let is_suspected = problem.is_some() || found.is_named();
        let state = state::of(self.attaching.refused(), problem, files, decision);
        let detaching = self.attaching.detaching();
        let budget = if self.attaching.is_loaded() { self.budgets.budget() } else { 0 };
        self.shared.with(|known| {
            known.detaching = detaching;
            known.budget = budget;
            known.state = state;
            known.level = level;
            known.files = files;
            known.rounds += 1;
            known.refused = found.refused;
            known.is_suspected = is_suspected;
            known.libraries = libraries;
            known.files_by_number = files_by_number;
            known.only = only;
            known.fields = fields;
        });
    }
}

/// Sleeps until the thread is woken or the timeout expires; true if the other end of the pipe is
/// closed.
fn wait(woken: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(woken, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // After a signal nothing is ready, and the caller checks and waits again.
    let _ = poll(&mut fds, Some(&timeout));
    let events = fds.first().map_or(PollFlags::empty(), PollFd::revents);
    if events.contains(PollFlags::IN) {
        // Only the wake itself matters.
        let _ = rustix::io::read(woken, &mut [0; 64]);
    }
    events.contains(PollFlags::HUP)
}
