//! How each source is doing: what `gpuwho doctor` prints and the self-metrics count.

use crate::catalog::agent::{DropReason, SourceState};
use crate::sample::Histogram;
use crate::sys::clock::ThreadClock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bounds of `gpuwho.source.duration`, in seconds: from a read of cached driver values to a
/// driver that hangs.
const DURATION_BOUNDS: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

/// A source's own account of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it is doing.
    pub state: SourceState,
    /// Why, in one sentence a person can act on; empty when ready.
    pub reason: String,
    /// What the operator can do about it; empty when nothing.
    pub remedy: String,
    /// Readings that failed and will be tried again, since the start.
    pub errors: u64,
    /// Times its child process was started again.
    pub restarts: u64,
    /// What it lost, by reason, since the start.
    pub dropped: Vec<(DropReason, u64)>,
}

impl Report {
    /// Working as it should.
    pub fn ready() -> Self {
        Self::of(SourceState::Ready, "", "")
    }

    /// In a state, with the reason and the remedy.
    pub fn of(state: SourceState, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state,
            reason: reason.into(),
            remedy: remedy.into(),
            errors: 0,
            restarts: 0,
            dropped: Vec::new(),
        }
    }

    /// Counts what failed in a reading, and values that cannot be true and were left out.
    pub fn count(&mut self, failed: u32, implausible: u32) {
        self.errors += u64::from(failed);
        let reason = DropReason::Implausible;
        match self.dropped.iter_mut().find(|(dropped, _)| *dropped == reason) {
            Some((_, count)) => *count += u64::from(implausible),
            None => self.dropped.push((reason, u64::from(implausible))),
        }
    }
}

/// A source's latest report and what it has cost so far.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The latest report.
    pub report: Report,
    /// CPU time of its thread in seconds; `None` for a source without a thread of its own.
    pub cpu_seconds: Option<f64>,
    /// How long its readings took.
    pub durations: Histogram,
    /// Tells [`Self::cpu_seconds`] of a thread that serves several sources or keeps no cadence.
    clock: Option<ThreadClock>,
}

/// The standing of every source.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<BTreeMap<&'static str, Standing>>>);

impl Board {
    /// Takes a source's report; logs a change of state, once.
    pub fn put(&self, source: &'static str, report: &Report) {
        let change = {
            let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(standing) = board.get_mut(source) {
                let before = std::mem::replace(&mut standing.report, report.clone()).state;
                (before != report.state).then_some(Some(before))
            } else {
                board.insert(source, Standing::new(report.clone()));
                Some(None)
            }
        };
        if let Some(before) = change {
            log_change(source, before, report);
        }
    }

    /// Adds one reading's duration, and the thread's CPU time so far.
    pub fn measured(&self, source: &'static str, took: Duration, cpu_seconds: f64) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(standing) = board.get_mut(source) {
            standing.durations.observe(took.as_secs_f64());
            standing.cpu_seconds = Some(cpu_seconds);
        }
    }

    /// From now on tells what the calling thread has used, under a name of its own.
    pub fn clock(&self, thread: &'static str) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = board.entry(thread).or_insert_with(|| Standing::new(Report::ready()));
        standing.clock = ThreadClock::here();
    }

    /// Every source's standing.
    pub fn all(&self) -> BTreeMap<&'static str, Standing> {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for standing in board.values_mut() {
            // A thread that has ended leaves what it had used.
            if let Some(spent) = standing.clock.and_then(ThreadClock::spent) {
                standing.cpu_seconds = Some(spent.as_secs_f64());
            }
        }
        board.clone()
    }
}

impl Standing {
    fn new(report: Report) -> Self {
        let durations = Histogram::new(DURATION_BOUNDS);
        Self { report, cpu_seconds: None, durations, clock: None }
    }
}

fn log_change(source: &str, before: Option<SourceState>, report: &Report) {
    let state = report.state.as_str();
    let (reason, remedy) = (report.reason.as_str(), report.remedy.as_str());
    match (report.state, before) {
        (SourceState::Ready | SourceState::Absent, None) => {
            tracing::info!(source, state, reason, "source started");
        }
        (SourceState::Ready | SourceState::Absent, Some(before)) => {
            tracing::info!(source, state, before = before.as_str(), reason, "source changed");
        }
        (_, before) => {
            let before = before.map_or("none", SourceState::as_str);
            tracing::warn!(source, state, before, reason, remedy, "source changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_report_keeps_what_was_measured() {
        let board = Board::default();
        board.put("nvidia", &Report::ready());
        board.measured("nvidia", Duration::from_millis(2), 0.5);
        board.put("nvidia", &Report::of(SourceState::Hung, "late", ""));
        let standing = board.all().remove("nvidia").unwrap();
        assert_eq!(standing.report.state, SourceState::Hung);
        assert_eq!((standing.cpu_seconds, standing.durations.count()), (Some(0.5), 1));
    }

    #[test]
    fn what_a_thread_uses_is_read_when_it_is_asked_for() {
        let board = Board::default();
        board.put("names", &Report::ready());
        board.clock("names");
        let used = || board.all().remove("names").and_then(|standing| standing.cpu_seconds);
        let before = used().unwrap();
        while used().unwrap() < before + 0.002 {}
        assert_eq!(board.all().len(), 1);
    }
}
