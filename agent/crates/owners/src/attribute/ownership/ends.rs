//! Finds exits that are not reported, before their PIDs can be taken for other processes': a report
//! was lost, only the driver listed the process, or without BPF a scan comes seconds later.
//!
//! Costs a pidfd or one small read of `/proc` for each process checked; nothing if every exit is
//! announced.

use super::Ownership;
use crate::attribute::pidfds::PidfdSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state of the checks.
#[derive(Debug, Default)]
pub(super) struct ExitDetector {
    pidfds: PidfdSet,
    /// When every live process was last checked.
    swept_ns: AtomicU64,
    /// When processes without announced exits were last checked.
    checked_ns: AtomicU64,
    /// Whether no exit is announced.
    unannounced: AtomicBool,
}

/// How often every live process is checked, in case the report of its exit was lost.
const SWEEP_NS: u64 = 30_000_000_000;

impl Ownership {
    /// States that exits are not announced from now on: without BPF, scans of `/proc` find them
    /// seconds later.
    pub fn ends_are_unannounced(&self) {
        self.0.ends.unannounced.store(true, Ordering::Relaxed);
    }

    /// Finds unannounced exits before `at_ns`: a process found alive after that had its PID all the
    /// time. One `poll` for a tick's lists, nothing if all exits are announced.
    pub(crate) fn catch_up(&self, at_ns: u64) {
        if self.0.ends.checked_ns.load(Ordering::Relaxed) < at_ns {
            self.check(self.0.clock.now(), false);
        }
    }

    /// Evidence was lost, perhaps of an exit: checks every process in `/proc` now, before the
    /// driver's next list can contain a later process with a reused PID.
    pub fn lost_evidence(&self) {
        self.0.ends.swept_ns.store(0, Ordering::Relaxed);
        self.sweep(self.0.clock.now());
    }

    /// Marks processes that are no longer in `/proc` as ended.
    pub(super) fn sweep(&self, now_ns: u64) {
        let last_ns = self.0.ends.swept_ns.load(Ordering::Relaxed);
        let all = last_ns == 0 || now_ns.saturating_sub(last_ns) >= SWEEP_NS;
        if all {
            self.0.ends.swept_ns.store(now_ns, Ordering::Relaxed);
        }
        self.check(now_ns, all);
    }

    fn check(&self, now_ns: u64, all: bool) {
        // Without announcements `checked_ns` must hold for every process.
        let all = all || self.0.ends.unannounced.load(Ordering::Relaxed);
        let unwatched = self.read().unwatched(all);
        for process in self.0.ends.pidfds.missing(&self.0.host.paths, &unwatched, all) {
            self.write().missing(process, now_ns);
        }
        // A process found alive was alive at `now_ns` or later.
        self.0.ends.checked_ns.fetch_max(now_ns, Ordering::Relaxed);
    }
}
