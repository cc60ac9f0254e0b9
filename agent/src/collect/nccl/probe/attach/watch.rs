//! The thread that finds libraries, attaches the probes to them and keeps them within their
//! budget. It sleeps until the next look at a process is due (`looks`) and, while a library is in
//! use, a second at the longest (`governing`).

use super::Attaching;
use crate::attribute::ownership::{Ownership, Version};
use crate::attribute::quota::QuotaKey;
use crate::catalog::nccl::GovernorLevel;
use crate::collect::nccl::probe::budget::ProbeBudgets;
use crate::collect::nccl::probe::budget::denials::name;
use crate::collect::nccl::probe::libraries::library::VersionAndPath;
use crate::collect::nccl::probe::libraries::rescan::{PendingRescans, RescanHandle, locked};
use crate::collect::nccl::probe::libraries::scan::{Candidates, OLD_EVERY, ProcessScan};
use crate::collect::nccl::probe::shared::Shared;
use crate::collect::nccl::probe::state;
use crate::collect::nccl::probe::{Dependencies, Settings};
use crate::collect::status::StatusRegistry;
use crate::event::aggregator::EventAggregator;
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::sys::memory;
use gpuwho_common::nccl::STRANGERS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The thread's name, also that of its CPU time among the agent's own figures.
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
            // A panic of the thread has been reported by the panic hook.
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
    let mut looks = ProcessScan::new(with.files.clone(), paths, candidates, now);
    looks.libraries.trusted.clone_from(&settings.trusted_mounts);
    let watch = Watch {
        paths: paths.clone(),
        shared,
        looks,
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
    looks: ProcessScan,
    attaching: Attaching,
    budgets: ProbeBudgets,
    ownership: Ownership,
    /// Who held a device when the programs were told of it last.
    known: (Version, HashSet<ProcKey>),
    numbers: HashMap<QuotaKey, u32>,
    aggregator: Option<Arc<EventAggregator>>,
    pending: PendingRescans,
}

impl Watch {
    /// Runs until nobody can wake it any more.
    fn run(mut self, woken: &OwnedFd, board: &StatusRegistry) {
        // Now, because a job that loads a library uses it within a moment.
        self.attaching.prepare(&self.paths);
        memory::give_back();
        board.clock(THREAD);
        loop {
            let now = Instant::now();
            let turn = board.turn(THREAD, OLD_EVERY);
            let stirred = std::mem::take(&mut *locked(&self.pending));
            for process in stirred {
                self.looks.request_rescan(process, now);
            }
            let is_due = self.attaching.due().is_some_and(|due| due <= now);
            let has_news = self.looks.look(now);
            self.introduce();
            if has_news || is_due {
                self.follow_libraries(now);
            }
            self.govern(now);
            self.attaching.detach_some(&self.looks.libraries, Instant::now());
            self.publish();
            drop(turn);
            if wait(woken.as_fd(), self.pause(now)) {
                return;
            }
        }
    }

    /// How long nothing is due.
    fn pause(&self, now: Instant) -> Duration {
        let longest = now + OLD_EVERY;
        let looks = self.looks.due().into_iter().chain(self.attaching.detaching_due());
        let due = looks.chain(self.budgets.due()).chain(self.attaching.due());
        due.fold(longest, Instant::min).saturating_duration_since(Instant::now())
    }

    /// Tells the programs whose processes hold a device, where that has changed.
    fn introduce(&mut self) {
        let now = (self.ownership.version(), self.looks.openers());
        if self.known == now {
            return;
        }
        let key = |process: &ProcKey| (*process, self.ownership.quota_key(*process));
        let keys: Vec<(ProcKey, QuotaKey)> = now.1.iter().map(key).collect();
        let present: HashSet<QuotaKey> = keys.iter().map(|(_, key)| *key).collect();
        // A tenant has one number, that of the first of its owners.
        self.numbers.retain(|key, _| present.contains(key));
        let numbers = &mut self.numbers;
        let mut number = |key: QuotaKey| match (numbers.get(&key), key.owner().number()) {
            (Some(known), _) => *known,
            // Not attributed yet: the tenant's next process, or this one a moment later, may be.
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

    /// From now on is seen what is attached and allowed now.
    fn note(&self) {
        self.shared.with(|known| {
            let present = self.attaching.present(&self.looks.libraries, &known.quotas);
            known.covers.note(Instant::now(), boot_time_ns(), &present);
        });
    }

    /// Lets the governors judge, and does what they say.
    fn govern(&mut self, now: Instant) {
        let libraries = &self.looks.libraries;
        for change in self.budgets.look(now, &self.attaching, libraries, &self.shared) {
            change.log(self.aggregator.as_deref());
        }
        self.enforce(now, false);
    }

    /// Makes what is counted and attached what the governors allow. Less is counted before less is
    /// attached, and more when more is there: what is said to be covered is so from the first call to
    /// the last.
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
        let libraries = &mut self.looks.libraries;
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

    /// Each process's files by number, and the number of each process that maps one only.
    fn numbered(&self) -> (HashMap<(ProcKey, u32), VersionAndPath>, HashMap<ProcKey, u32>) {
        let (mut files, mut of): (HashMap<_, _>, HashMap<_, _>) = Default::default();
        for (key, library) in self.looks.libraries.in_use() {
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
        let found = &self.looks.libraries;
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
        let level = least.map_or(GovernorLevel::Full, |(_, governor)| governor.level());
        let is_off = level == GovernorLevel::Full && self.attaching.is_idle();
        let level = if is_off { GovernorLevel::Off } else { level };
        let decision = least.map(|(owner, governor)| (governor, name(&self.ownership, owner)));
        let state = state::of(self.attaching.refused(), found.trouble(), files, decision);
        let detaching = self.attaching.detaching();
        let budget = if self.attaching.is_loaded() { self.budgets.budget() } else { 0 };
        self.shared.with(|known| {
            known.detaching = detaching;
            known.budget = budget;
            known.state = state;
            known.level = level;
            known.files = files;
            known.looked += 1;
            known.refused = found.refused;
            known.libraries = libraries;
            known.files_by_number = files_by_number;
            known.only = only;
            known.fields = fields;
        });
    }
}

/// Sleeps until somebody wakes the thread or the time is over; true if nobody can wake it any more.
fn wait(woken: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(woken, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Interrupted by a signal: nothing is ready, and the caller looks and waits again.
    let _ = poll(&mut fds, Some(&timeout));
    let said = fds.first().map_or(PollFlags::empty(), PollFd::revents);
    if said.contains(PollFlags::IN) {
        // Only that somebody has woken it counts.
        let _ = rustix::io::read(woken, &mut [0; 64]);
    }
    said.contains(PollFlags::HUP)
}
