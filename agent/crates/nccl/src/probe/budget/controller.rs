//! Limits the cost of the probes to an owner's processes, by the hits a second of the most
//! expensive process, weighted by their cost. Over the budget, first the returns of operations are
//! detached, then everything is, for some minutes; then the entries are tried for a second.

use gpuwho_model::catalog::nccl::ProbeLevel;
use std::time::{Duration, Instant};

/// Interval of reading the counters: short enough to limit the cost, long enough to make the
/// reading cheap.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long less is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryTiming {
    /// Pause with nothing attached, after even the entries alone exceeded the budget. One second in
    /// so many is what a storm pays for being tried again.
    pub rest: Duration,
    /// Readings in a row below a third of the budget before more is attached again.
    pub calm_looks: u32,
}

impl Default for RecoveryTiming {
    fn default() -> Self {
        Self { rest: Duration::from_mins(5), calm_looks: 30 }
    }
}

/// What is attached; ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Attach {
    /// Nothing.
    Nothing,
    /// Entries only.
    Entries,
    /// Entries and returns.
    Full,
}

/// The probe budget of one owner's processes, over all their libraries.
#[derive(Debug)]
pub(in super::super) struct ProbeBudget {
    /// Hits a second and process.
    budget: u64,
    recovery: RecoveryTiming,
    level: ProbeLevel,
    /// End of the pause.
    until: Option<Instant>,
    calm: u32,
}

impl ProbeBudget {
    /// Starts with everything attached.
    pub(super) fn new(budget: u64, recovery: RecoveryTiming) -> Self {
        let (level, budget) = (ProbeLevel::Full, budget.max(1));
        Self { budget, recovery, level, until: None, calm: 0 }
    }

    /// The limit in hits a second and process.
    pub(in super::super) fn budget(&self) -> u64 {
        self.budget
    }

    /// The current level.
    pub(in super::super) fn level(&self) -> ProbeLevel {
        self.level
    }

    /// End of the pause, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// What to attach now.
    pub(super) fn attach(&self) -> Attach {
        match self.level {
            ProbeLevel::Full => Attach::Full,
            ProbeLevel::Entries => Attach::Entries,
            ProbeLevel::Detached | ProbeLevel::Off => Attach::Nothing,
        }
    }

    /// Takes the rate in hits a second and process since the last reading, during which the probes
    /// were attached according to [`ProbeBudget::attach`].
    pub(super) fn update(&mut self, rate: u64, now: Instant) {
        let is_calm = self.is_calm(rate);
        match self.level {
            ProbeLevel::Full if rate > self.budget => self.enter(ProbeLevel::Entries, now),
            ProbeLevel::Entries if rate > self.budget => self.enter(ProbeLevel::Detached, now),
            ProbeLevel::Entries if is_calm => self.enter(ProbeLevel::Full, now),
            ProbeLevel::Detached if self.until.is_some_and(|until| now >= until) => {
                self.enter(ProbeLevel::Entries, now);
            }
            _ => {}
        }
    }

    /// Returns double the hits, so there must be room for them.
    fn is_calm(&mut self, rate: u64) -> bool {
        self.calm = if rate <= self.budget / 3 { self.calm + 1 } else { 0 };
        self.calm >= self.recovery.calm_looks
    }

    fn enter(&mut self, level: ProbeLevel, now: Instant) {
        self.level = level;
        self.calm = 0;
        self.until = (level == ProbeLevel::Detached).then(|| now + self.recovery.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn returns_go_first_then_everything() {
        let start = Instant::now();
        let mut budget = ProbeBudget::new(1_000, RecoveryTiming::default());
        budget.update(900, start);
        assert_eq!((budget.level(), budget.attach()), (ProbeLevel::Full, Attach::Full));
        budget.update(1_100, after(start, 1));
        assert_eq!((budget.level(), budget.attach()), (ProbeLevel::Entries, Attach::Entries));
        budget.update(1_100, after(start, 2));
        assert_eq!((budget.level(), budget.attach()), (ProbeLevel::Detached, Attach::Nothing));
        assert_eq!(budget.due(), Some(after(start, 302)));
    }

    #[test]
    fn detached_probes_return_after_calm_readings() {
        let start = Instant::now();
        let mut budget = ProbeBudget::new(1_000, RecoveryTiming::default());
        budget.update(40_000, start);
        budget.update(40_000, after(start, 1));
        assert_eq!(budget.level(), ProbeLevel::Detached);
        budget.update(0, after(start, 300));
        assert_eq!(budget.level(), ProbeLevel::Detached);
        budget.update(0, after(start, 301));
        assert_eq!(budget.level(), ProbeLevel::Entries);
        for second in 0..30 {
            assert_eq!(budget.level(), ProbeLevel::Entries);
            budget.update(300, after(start, 302 + second));
        }
        assert_eq!(budget.attach(), Attach::Full);
    }

    #[test]
    fn a_busy_second_restarts_the_calm_period() {
        let start = Instant::now();
        let mut budget = ProbeBudget::new(1_000, RecoveryTiming::default());
        budget.update(2_000, start);
        for second in 0..100 {
            budget.update(if second % 10 == 0 { 600 } else { 100 }, after(start, second));
        }
        assert_eq!(budget.level(), ProbeLevel::Entries);
    }
}
