//! How each source is doing: what `gpuwho doctor` prints and the self-metrics count.
//!
//! A thread that hangs cannot say so. Each tells when a turn of its work begins and ends
//! ([`StatusRegistry::turn`]); whoever looks at them (the pipeline's tick, the control socket) finds a
//! turn that lasts too long, and the source is `hung` until the turn ends.

use crate::catalog::agent::{DropReason, SourceState};
use crate::sample::Histogram;
use gpuwho_sys::clock::ThreadClock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bounds of `gpuwho.source.duration`, in seconds: from a read of cached driver values to a
/// driver that hangs.
const DURATION_BOUNDS: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

/// Readings of a source that one turn may take, and at least so long, before it counts as hung: a
/// slow disk, a loaded host or a dozen slow sockets take less.
const TURN_INTERVALS: u32 = 3;
const MAX_TURN: Duration = Duration::from_secs(30);

/// The reason of a source whose first reading has begun and not ended.
const NOTHING_YET: &str = "nothing was read yet";

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
pub struct SourceStatus {
    /// The latest report.
    pub report: Report,
    /// CPU time of its thread in seconds; `None` for a source without a thread of its own.
    pub cpu_seconds: Option<f64>,
    /// How long its readings took.
    pub durations: Histogram,
    /// Times it became `hung`, since the start: a turn lasted too long, or it said so.
    pub hangs: u64,
    /// Tells [`Self::cpu_seconds`] of a thread that serves several sources or keeps no cadence.
    clock: Option<ThreadClock>,
    /// CPU time of the threads before it, which have ended.
    spent_before: f64,
    /// What its thread does now.
    turn: Option<ActiveTurn>,
}

/// A turn that has not ended.
#[derive(Clone, Copy, Debug)]
struct ActiveTurn {
    at: Instant,
    allowed: Duration,
    /// It was found to last too long.
    is_hung: bool,
}

/// A turn of a source's work; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    statuses: StatusRegistry,
    source: &'static str,
}

/// The standing of every source.
#[derive(Clone, Debug, Default)]
pub struct StatusRegistry(Arc<Mutex<BTreeMap<&'static str, SourceStatus>>>);

impl StatusRegistry {
    /// Takes a source's report; logs a change of state, once.
    pub fn put(&self, source: &'static str, report: &Report) {
        let mut is_new = false;
        let change = {
            let mut statuses = self.0.lock();
            let status = statuses.entry(source).or_insert_with(|| {
                is_new = true;
                SourceStatus::new(report.clone())
            });
            let before = std::mem::replace(&mut status.report, report.clone());
            is_new |= before.reason == NOTHING_YET;
            let before = before.state;
            let has_changed = is_new || before != report.state;
            status.hangs += u64::from(has_changed && report.state == SourceState::Hung);
            has_changed.then_some((!is_new).then_some(before))
        };
        if let Some(before) = change {
            log_change(source, before, report);
        }
    }

    /// A source that says nothing any more is ready, if it has a status.
    pub fn recovered(&self, source: &'static str) {
        let is_ready = |status: &SourceStatus| status.report.state == SourceState::Ready;
        let is_there = self.0.lock().get(source).is_some_and(|status| !is_ready(status));
        if is_there {
            self.put(source, &Report::ready());
        }
    }

    /// A turn of a source's work begins, of one that is read at this interval. A source that has
    /// reported nothing yet has a status from now on.
    pub fn turn(&self, source: &'static str, every: Duration) -> Turn {
        let allowed = every.saturating_mul(TURN_INTERVALS).max(MAX_TURN);
        let begun = ActiveTurn { at: Instant::now(), allowed, is_hung: false };
        let first = || SourceStatus::new(Report::of(SourceState::Absent, NOTHING_YET, ""));
        self.0.lock().entry(source).or_insert_with(first).turn = Some(begun);
        Turn { statuses: self.clone(), source }
    }

    /// Adds one reading's duration, and the thread's CPU time so far.
    pub fn measured(&self, source: &'static str, took: Duration, cpu_seconds: f64) {
        if let Some(status) = self.0.lock().get_mut(source) {
            status.durations.observe(took.as_secs_f64());
            status.cpu_seconds = Some(cpu_seconds);
        }
    }

    /// From now on tells what the calling thread has used, under a name of its own.
    pub fn clock(&self, thread: &'static str) {
        let mut statuses = self.0.lock();
        let status = statuses.entry(thread).or_insert_with(|| SourceStatus::new(Report::ready()));
        status.clock = ThreadClock::here();
        status.spent_before = status.cpu_seconds.unwrap_or_default();
    }

    /// The calling thread ends, and another one may follow under its name.
    pub fn clock_ends(&self, thread: &'static str) {
        if let Some(status) = self.0.lock().get_mut(thread) {
            status.read_clock();
            status.clock = None;
        }
    }

    /// Every source's standing. One whose turn lasts too long is hung, whatever it said last.
    pub fn all(&self) -> BTreeMap<&'static str, SourceStatus> {
        self.all_at(Instant::now())
    }

    fn all_at(&self, now: Instant) -> BTreeMap<&'static str, SourceStatus> {
        let mut found = Vec::new();
        let all = {
            let mut statuses = self.0.lock();
            for (source, status) in statuses.iter_mut() {
                status.read_clock();
                if status.finds_hang(now) {
                    found.push((*source, status.report.state));
                }
            }
            let now_is =
                |(source, status): (&&'static str, &SourceStatus)| (*source, status.seen(now));
            statuses.iter().map(now_is).collect::<BTreeMap<_, _>>()
        };
        for (source, before) in found {
            if let Some(status) = all.get(source) {
                log_change(source, Some(before), &status.report);
            }
        }
        all
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut statuses = self.statuses.0.lock();
        let Some(status) = statuses.get_mut(self.source) else { return };
        let hung = status.turn.take().filter(|turn| turn.is_hung);
        if std::thread::panicking() {
            let reason = "a bug made this source's thread panic; it has ended";
            let remedy = "restart the agent, and report it with the log lines before it";
            status.report = Report::of(SourceState::Failed, reason, remedy);
        }
        let report = hung.map(|_| status.report.clone());
        drop(statuses);
        if let Some(report) = report {
            log_change(self.source, Some(SourceState::Hung), &report);
        }
    }
}

impl SourceStatus {
    fn new(report: Report) -> Self {
        let durations = Histogram::new(DURATION_BOUNDS);
        Self {
            report,
            cpu_seconds: None,
            durations,
            hangs: 0,
            clock: None,
            spent_before: 0.0,
            turn: None,
        }
    }

    /// A thread that has ended leaves what it had used.
    fn read_clock(&mut self) {
        if let Some(spent) = self.clock.and_then(ThreadClock::spent) {
            self.cpu_seconds = Some(self.spent_before + spent.as_secs_f64());
        }
    }

    /// Whether its turn lasts too long, which was not known before.
    fn finds_hang(&mut self, now: Instant) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        if turn.is_hung || now.saturating_duration_since(turn.at) < turn.allowed {
            return false;
        }
        turn.is_hung = true;
        self.hangs += 1;
        true
    }

    /// As others see it.
    fn seen(&self, now: Instant) -> Self {
        let mut seen = self.clone();
        if let Some(turn) = self.turn.filter(|turn| turn.is_hung) {
            let seconds = now.saturating_duration_since(turn.at).as_secs();
            seen.report.state = SourceState::Hung;
            seen.report.reason =
                format!("its thread has not come back from a read for {seconds} s");
            "see /proc/PID/task/*/stack of the agent for what it waits for"
                .clone_into(&mut seen.report.remedy);
        }
        seen
    }
}

/// Behind this aya quotes the kernel's verifier, whole.
const VERIFIER: &str = "Verifier output";

/// Without the verifier's own words.
pub fn brief(facts: &str) -> &str {
    let end = facts.find(VERIFIER).unwrap_or(facts.len());
    facts.get(..end).unwrap_or(facts).trim_end_matches([' ', '.', ':', ';'])
}

/// Logs our own sentence; the kernel's or a library's text is for debugging. What is there and what
/// is not at the start is summed up once, by the agent.
fn log_change(source: &str, before: Option<SourceState>, report: &Report) {
    let state = report.state.as_str();
    // An empty field is left out.
    let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
    let (reason, remedy) = (some(brief(&report.reason)), some(report.remedy.as_str()));
    if report.reason.contains(VERIFIER) {
        tracing::debug!(source, whole = report.reason, "the kernel's own words");
    }
    match (report.state, before) {
        (SourceState::Ready | SourceState::Absent, None) => {
            tracing::debug!(reason, "{source} is {state}");
        }
        (SourceState::Ready | SourceState::Absent, Some(before)) => {
            tracing::info!(before = before.as_str(), reason, "{source} is {state}");
        }
        (_, before) => {
            let before = before.map(SourceState::as_str);
            tracing::warn!(
                before,
                remedy,
                "{source} is {state}: {}",
                reason.unwrap_or("no reason")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_report_keeps_what_was_measured() {
        let statuses = StatusRegistry::default();
        statuses.put("nvidia", &Report::ready());
        statuses.measured("nvidia", Duration::from_millis(2), 0.5);
        statuses.put("nvidia", &Report::of(SourceState::Hung, "late", ""));
        let status = statuses.all().remove("nvidia").unwrap();
        assert_eq!(status.report.state, SourceState::Hung);
        assert_eq!((status.cpu_seconds, status.durations.count()), (Some(0.5), 1));
    }

    #[test]
    fn the_verifiers_words_are_cut_off() {
        let refused = "no fexit: refused (os error 1). Verifier output: : 0: R1=ctx()";
        assert_eq!(brief(refused), "no fexit: refused (os error 1)");
        assert_eq!(brief("ready."), "ready");
    }

    #[test]
    fn each_time_that_a_source_says_it_is_hung_counts_once() {
        let statuses = StatusRegistry::default();
        let hung = Report::of(SourceState::Hung, "late", "");
        let states = [&hung, &hung, &Report::ready(), &hung];
        let hangs = states.map(|report| {
            statuses.put("tenant_files", report);
            statuses.all()["tenant_files"].hangs
        });
        assert_eq!(hangs, [1, 1, 1, 2]);
    }

    #[test]
    fn a_turn_that_lasts_too_long_is_hung_until_it_ends_and_counts_once() {
        let statuses = StatusRegistry::default();
        statuses.put("nccl:watch", &Report::ready());
        let turn = statuses.turn("nccl:watch", Duration::from_secs(20));
        let after = |seconds: u64| {
            let now = Instant::now() + Duration::from_secs(seconds);
            let status = statuses.all_at(now).remove("nccl:watch").unwrap();
            (status.report.state, status.hangs, status.report.reason)
        };
        assert_eq!(after(59).0, SourceState::Ready, "three intervals");
        let reason = "its thread has not come back from a read for 61 s".to_owned();
        assert_eq!(after(61), (SourceState::Hung, 1, reason));
        assert_eq!(after(500).1, 1);
        statuses.put("nccl:watch", &Report::ready());
        assert_eq!(after(62).0, SourceState::Hung, "whatever another thread says for it");
        drop(turn);
        assert_eq!(after(100), (SourceState::Ready, 1, String::new()));
    }

    #[test]
    fn a_source_that_hangs_in_its_first_reading_is_on_the_board() {
        let statuses = StatusRegistry::default();
        let _turn = statuses.turn("ras", Duration::from_secs(1));
        let state = |statuses: &StatusRegistry, after| {
            statuses.all_at(Instant::now() + after).remove("ras").unwrap().report.state
        };
        assert_eq!(state(&statuses, Duration::ZERO), SourceState::Absent);
        assert_eq!(state(&statuses, MAX_TURN + Duration::from_secs(1)), SourceState::Hung);
    }

    #[test]
    fn a_thread_that_panicked_is_not_what_it_said_last() {
        let statuses = StatusRegistry::default();
        statuses.put("names", &Report::ready());
        let theirs = statuses.clone();
        let thread = std::thread::spawn(move || {
            let _turn = theirs.turn("names", Duration::ZERO);
            panic!("as a bug would");
        });
        assert!(thread.join().is_err());
        assert_eq!(statuses.all()["names"].report.state, SourceState::Failed);
    }

    #[test]
    fn what_a_thread_uses_is_read_when_it_is_asked_for() {
        let statuses = StatusRegistry::default();
        statuses.put("names", &Report::ready());
        statuses.clock("names");
        let used = || statuses.all().remove("names").and_then(|status| status.cpu_seconds);
        let before = used().unwrap();
        while used().unwrap() < before + 0.002 {}
        assert_eq!(statuses.all().len(), 1);
    }
}
