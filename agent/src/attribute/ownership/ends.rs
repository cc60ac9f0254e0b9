//! Ends of processes that nobody reports, found before a number can be taken for another's: a report
//! was lost, only the driver named the process, or there is no BPF and a scan comes seconds later.
//!
//! A handle or one small read of `/proc` for each process that is asked about; nothing where every
//! end is announced.

use super::Ownership;
use crate::attribute::pidfds::PidfdSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What was looked for, and when.
#[derive(Debug, Default)]
pub(super) struct ExitDetector {
    lives: PidfdSet,
    /// When every live row was last looked for in `/proc`.
    swept_ns: AtomicU64,
    /// When those whose end nobody announces were last looked for.
    looked_ns: AtomicU64,
    /// Nobody announces the end of any process.
    unannounced: AtomicBool,
}

/// How often every live row is looked for, in case the report of its end was lost.
const SWEEP_NS: u64 = 30_000_000_000;

impl Ownership {
    /// From now on nobody announces that a process has ended: without BPF, scans of `/proc` find it
    /// out seconds later.
    pub fn ends_are_unannounced(&self) {
        self.0.ends.unannounced.store(true, Ordering::Relaxed);
    }

    /// Finds the ends that nobody announces and that came before `at_ns`: who is known to live after
    /// it had its number all the time. One `poll` for a tick's lists, nothing where all ends are
    /// announced.
    pub(crate) fn catch_up(&self, at_ns: u64) {
        if self.0.ends.looked_ns.load(Ordering::Relaxed) < at_ns {
            self.look(self.0.clock.now(), self.0.ends.unannounced.load(Ordering::Relaxed));
        }
    }

    /// Evidence was lost, perhaps the end of a process: every holder is looked for in `/proc` now,
    /// before the driver's next list can name a later process of the same number.
    pub fn lost_evidence(&self) {
        self.0.ends.swept_ns.store(0, Ordering::Relaxed);
        self.sweep(self.0.clock.now());
    }

    /// Marks what is no longer in `/proc` as ended.
    pub(super) fn sweep(&self, now_ns: u64) {
        let last_ns = self.0.ends.swept_ns.load(Ordering::Relaxed);
        let all = last_ns == 0 || now_ns.saturating_sub(last_ns) >= SWEEP_NS;
        if all {
            self.0.ends.swept_ns.store(now_ns, Ordering::Relaxed);
        }
        self.look(now_ns, all);
    }

    fn look(&self, now_ns: u64, all: bool) {
        let unwatched = self.read().unwatched(all);
        for process in self.0.ends.lives.missing(&self.0.host.paths, &unwatched, all) {
            self.write().missing(process, now_ns);
        }
        // Whom this has found alive was so at `now_ns` or later.
        self.0.ends.looked_ns.fetch_max(now_ns, Ordering::Relaxed);
    }
}
