//! What the programs could not tell: found soon after it happened, looked for in `/proc`, and said.
//!
//! Costs nothing while nothing comes: the counters are read while there are records, and for a second
//! after the last one.

use super::load::losses;
use aya::maps::{MapData, PerCpuArray};
use gpuwho_common::device_users::{
    FOLLOWING, LOSSES, LOST_ALLOWED, LOST_ALLOWED_OPENINGS, LOST_MAP, LOST_OPENINGS, LOST_PLACES,
    LOST_RING, LOST_UNREADABLE, OPENINGS,
};
use gpuwho_model::catalog::agent::{OwnerLimit, SourceState};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::status::Report;
use gpuwho_sys::clock::ThreadClock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at the counters.
const LOOK: Duration = Duration::from_millis(500);
/// After the last record the counters are looked at for this long: an allowance is of a second.
const ACTIVE: Duration = Duration::from_millis(1_100);
/// Without a loss for so long the source is whole again, and the next loss is looked for at once.
const QUIET: Duration = Duration::from_secs(30);
/// Between two scans while losses go on, at first and, unless scans are long, at most: an opening that no
/// record told is found by then, whoever floods whatever.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Such scans take this part of a core at most, and so do checks of all processes.
pub(super) const SCAN_PART: u32 = 20;
/// Owners and kinds that wait to be counted.
const MAX_REFUSED: usize = 1_024;

/// Each counter in words.
const WORDS: [(u32, &str); LOSSES as usize] = [
    (LOST_ALLOWED_OPENINGS, "openings beyond an owner's share"),
    (LOST_ALLOWED, "forks, programs, moves and ends beyond an owner's share"),
    (LOST_PLACES, "processes to follow beyond an owner's share"),
    (LOST_OPENINGS, "openings beyond the ring"),
    (LOST_RING, "forks, programs, moves, ends and cgroups beyond the ring"),
    (LOST_MAP, "processes to follow beyond the map"),
    (LOST_UNREADABLE, "processes that could not be read"),
];

/// What an owner was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// One of its processes.
    pub process: ProcKey,
    /// Its user.
    pub uid: u32,
    /// Of what.
    pub limit: OwnerLimit,
    /// How often.
    pub count: u64,
}

/// What the thread tells the handle.
#[derive(Clone, Debug, Default)]
pub(super) struct LossStatus(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// When something was lost last, and what.
    lost: Option<(Instant, String)>,
    refused: Vec<Refused>,
    /// Processes of which a scan has not looked at all descriptors and threads.
    incomplete: u64,
    clock: Option<ThreadClock>,
}

impl LossStatus {
    /// The calling thread is the source's.
    pub(super) fn clock(&self) {
        self.0.lock().clock = ThreadClock::here();
    }

    /// CPU time of the source's thread.
    pub(super) fn spent(&self) -> Duration {
        self.0.lock().clock.and_then(ThreadClock::spent).unwrap_or_default()
    }

    /// Adds what an owner was refused of a kind; more than the bound are left out.
    pub(super) fn refuse(&self, process: ProcKey, uid: u32, (kind, count): (usize, u32)) {
        let limit = match kind {
            OPENINGS => OwnerLimit::Openings,
            FOLLOWING => OwnerLimit::ProcessRecords,
            _ => OwnerLimit::Holders,
        };
        let mut state = self.0.lock();
        if state.refused.len() < MAX_REFUSED {
            state.refused.push(Refused { process, uid, limit, count: count.into() });
        }
    }

    /// Takes what owners were refused since the last call.
    pub(super) fn take_refused(&self) -> Vec<Refused> {
        std::mem::take(&mut self.0.lock().refused)
    }

    /// Says in a report what was lost of late.
    pub(super) fn notify(&self, report: &mut Report, now: Instant) {
        let state = self.0.lock();
        report.errors += state.incomplete;
        let lost = state.lost.as_ref().filter(|(at, _)| now.saturating_duration_since(*at) < QUIET);
        if let Some((_, what)) = lost {
            let reason =
                format!("the kernel reported more than is read: {what}; /proc is searched");
            let remedy =
                "gpuwho.owner.refused (openings, process_records, holders) has whose they are";
            let errors = report.errors;
            *report = Report { errors, ..Report::of(SourceState::Degraded, reason, remedy) };
        }
    }

    /// Adds processes of which a scan has not looked at everything.
    pub(super) fn count_incomplete(&self, processes: u64) {
        self.0.lock().incomplete += processes;
    }

    fn lose(&self, now: Instant, what: String) {
        self.0.lock().lost = Some((now, what));
    }
}

/// The counters, and when to look at them and to scan.
pub(super) struct Losses {
    counters: Arc<PerCpuArray<MapData, u64>>,
    before: [u64; LOSSES as usize],
    loss_status: LossStatus,
    active_at: Option<Instant>,
    look_at: Option<Instant>,
    backoff: Backoff,
}

impl Losses {
    /// From what the counters say now.
    pub(super) fn new(counters: Arc<PerCpuArray<MapData, u64>>, loss_status: LossStatus) -> Self {
        let before = WORDS.map(|(counter, _)| losses(&counters, counter));
        let (active_at, look_at, backoff) = (None, None, Backoff::default());
        Self { counters, before, loss_status, active_at, look_at, backoff }
    }

    /// There were records.
    pub(super) fn active(&mut self, now: Instant) {
        self.active_at = Some(now);
        self.look_at.get_or_insert(now + LOOK);
    }

    /// When there is something to do next.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.look_at, self.backoff.due].into_iter().flatten().min()
    }

    /// Looks at the counters where that is due; true if one has grown.
    pub(super) fn have_grown(&mut self, now: Instant) -> bool {
        if self.look_at.is_none_or(|at| now < at) {
            return false;
        }
        let is_active = self.active_at.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE);
        self.look_at = is_active.then_some(now + LOOK);
        let counts = WORDS.map(|(counter, _)| losses(&self.counters, counter));
        let all = WORDS.iter().zip(counts.iter().zip(self.before));
        let grown = all.filter(|(_, (now, before))| **now > *before).map(|((_, words), _)| *words);
        let what = grown.collect::<Vec<_>>().join(", ");
        self.before = counts;
        if what.is_empty() {
            return false;
        }
        self.loss_status.lose(now, what);
        self.backoff.grow(now);
        // Whoever goes on is looked at again, also where nothing of it comes through.
        self.look_at = Some(now + LOOK);
        true
    }

    /// Whether a scan for what was lost is due.
    pub(super) fn needs_scan(&self, now: Instant) -> bool {
        self.backoff.due.is_some_and(|at| at <= now)
    }

    /// A scan has taken so long.
    pub(super) fn scanned(&mut self, now: Instant, took: Duration) {
        self.backoff.scanned(now, took);
    }
}

/// When to scan: at once after the first loss, then ever later while losses go on.
#[derive(Debug, Default)]
struct Backoff {
    wait: Duration,
    grown_at: Option<Instant>,
    not_before: Option<Instant>,
    due: Option<Instant>,
}

impl Backoff {
    fn grow(&mut self, now: Instant) {
        if self.grown_at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET) {
            (self.wait, self.not_before) = (FIRST_WAIT, None);
        }
        self.grown_at = Some(now);
        let at = self.not_before.map_or(now, |at| at.max(now));
        self.due.get_or_insert(at);
    }

    fn scanned(&mut self, now: Instant, took: Duration) {
        self.due = None;
        self.not_before = Some(now + self.wait.max(took * SCAN_PART));
        self.wait = (self.wait * 2).min(MAX_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_looked_for_at_once_then_ever_later_and_at_once_again_after_quiet() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        let mut scans = Vec::new();
        for tenth in 0..1_200_u32 {
            let now = start + Duration::from_millis(100) * tenth;
            backoff.grow(now);
            if backoff.due.is_some_and(|at| at <= now) {
                backoff.scanned(now, Duration::from_millis(10));
                scans.push(tenth / 10);
            }
        }
        assert_eq!(scans, [0, 1, 3, 7, 15, 31, 61, 91]);
        backoff.scanned(start + Duration::from_secs(121), Duration::ZERO);
        let later = start + Duration::from_secs(150);
        backoff.grow(later);
        assert_eq!(backoff.due, Some(later));
    }

    #[test]
    fn scans_that_take_long_wait_longer() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        backoff.grow(start);
        backoff.scanned(start, Duration::from_secs(3));
        backoff.grow(start);
        assert_eq!(backoff.due, Some(start + Duration::from_mins(1)));
    }

    #[test]
    fn the_source_says_what_was_lost_until_nothing_was_for_a_while() {
        let (loss_status, now) = (LossStatus::default(), Instant::now());
        loss_status.lose(now, "openings beyond the ring".to_owned());
        let reported = |now| {
            let mut report = Report::ready();
            loss_status.notify(&mut report, now);
            (report.state, report.reason)
        };
        let (state, reason) = reported(now + QUIET / 2);
        assert_eq!(state, SourceState::Degraded);
        assert!(reason.contains("openings beyond the ring"), "{reason}");
        assert_eq!(reported(now + QUIET).0, SourceState::Ready);
    }
}
