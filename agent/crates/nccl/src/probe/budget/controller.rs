//! Limits the cost of the probes to an owner's processes, by the hits a second of the most
//! expensive process, weighted by their cost. Over the budget, first the returns of operations are
//! detached, then the entries are attached part of the time only, then everything is detached for
//! some minutes.

use gpuwho_model::catalog::nccl::ProbeLevel;
use std::time::{Duration, Instant};

/// Interval of reading the counters: short enough to limit the cost, long enough to make the
/// reading cheap.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest cycle, in seconds; one of them is with probes.
const MAX_CYCLE: u32 = 32;
/// Seconds with probes, one per cycle, within the budget before they stay attached. Ending the
/// cycle at the first calm second would correlate the sampling with the load; sampled counts
/// represent all calls only if the load does not choose the samples.
const CALM_TURNS: u32 = 10;
/// Fractional part of the golden ratio times 2³²: its multiples modulo one are evenly distributed,
/// whatever their number.
const SPREAD: u32 = 0x9e37_79b9;

/// How long less is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryTiming {
    /// Pause with nothing attached, after even one second in the longest cycle exceeded the budget.
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
    /// Seconds of a cycle, one of them with probes.
    cycle: u32,
    /// End of the current phase, for levels that have phases.
    until: Option<Instant>,
    is_on: bool,
    calm: u32,
    /// Number of pauses so far.
    pauses: u32,
}

impl ProbeBudget {
    /// Starts with everything attached.
    pub(super) fn new(budget: u64, recovery: RecoveryTiming) -> Self {
        let (level, budget) = (ProbeLevel::Full, budget.max(1));
        Self { budget, recovery, level, cycle: 1, until: None, is_on: true, calm: 0, pauses: 0 }
    }

    /// The limit in hits a second and process.
    pub(in super::super) fn budget(&self) -> u64 {
        self.budget
    }

    /// The current level.
    pub(in super::super) fn level(&self) -> ProbeLevel {
        self.level
    }

    /// The cycle in seconds, one of them with probes; 1 without cycling.
    pub(in super::super) fn cycle(&self) -> u32 {
        self.cycle
    }

    /// End of the current phase, if it has one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// What to attach now.
    pub(super) fn attach(&self) -> Attach {
        match self.level {
            ProbeLevel::Full => Attach::Full,
            ProbeLevel::Entries => Attach::Entries,
            ProbeLevel::Cycled if self.is_on => Attach::Entries,
            ProbeLevel::Cycled | ProbeLevel::Detached | ProbeLevel::Off => Attach::Nothing,
        }
    }

    /// Takes the rate in hits a second and process since the last reading, during which the probes
    /// were attached according to [`ProbeBudget::attach`].
    pub(super) fn update(&mut self, rate: u64, now: Instant) {
        let is_calm = self.is_calm(rate);
        match self.level {
            ProbeLevel::Full if rate > self.budget => self.enter(ProbeLevel::Entries, now),
            ProbeLevel::Entries if rate > self.budget => self.slow_down(rate, now),
            ProbeLevel::Entries if is_calm => self.enter(ProbeLevel::Full, now),
            ProbeLevel::Cycled => self.turn(rate, now),
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
        self.cycle = 1;
        self.is_on = level != ProbeLevel::Detached;
        self.until = (level == ProbeLevel::Detached).then(|| now + self.recovery.rest);
    }

    /// Starts cycles with as many seconds without probes as bring the mean down to the budget.
    fn slow_down(&mut self, rate: u64, now: Instant) {
        let cycle = u32::try_from(rate.div_ceil(self.budget)).unwrap_or(u32::MAX);
        if cycle > MAX_CYCLE {
            return self.enter(ProbeLevel::Detached, now);
        }
        self.enter(ProbeLevel::Cycled, now);
        self.cycle = cycle.max(2);
        self.rest(now);
    }

    fn rest(&mut self, now: Instant) {
        self.is_on = false;
        self.until = Some(now + self.pause());
    }

    /// The seconds of a cycle without probes, varied by half: with a constant pause, a job whose
    /// steps are as long as a cycle would be sampled at the same part of each step.
    fn pause(&mut self) -> Duration {
        let place = (1 << 31_u32) ^ self.pauses.wrapping_mul(SPREAD);
        self.pauses = self.pauses.wrapping_add(1);
        let part = f64::from(place) / f64::from(u32::MAX);
        (LOOK_EVERY * (self.cycle - 1)).mul_f64(0.5 + part)
    }

    /// Ends a second with probes, after its measurement, or a pause.
    fn turn(&mut self, rate: u64, now: Instant) {
        if self.is_on {
            if rate > self.budget {
                return self.slow_down(rate, now);
            }
            self.calm += 1;
            if self.calm >= self.recovery.calm_looks.min(CALM_TURNS) {
                return self.enter(ProbeLevel::Entries, now);
            }
            return self.rest(now);
        }
        if self.until.is_some_and(|until| now >= until) {
            self.is_on = true;
            self.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn returns_go_first_then_time_then_everything() {
        let start = Instant::now();
        let mut budget = ProbeBudget::new(1_000, RecoveryTiming::default());
        budget.update(900, start);
        assert_eq!((budget.level(), budget.attach()), (ProbeLevel::Full, Attach::Full));
        budget.update(1_100, after(start, 1));
        assert_eq!(budget.attach(), Attach::Entries);
        budget.update(4_000, after(start, 2));
        assert_eq!((budget.level(), budget.cycle()), (ProbeLevel::Cycled, 4));
        assert_eq!(budget.attach(), Attach::Nothing);
        budget.update(0, after(start, 4));
        assert_eq!(budget.attach(), Attach::Nothing);
        budget.update(0, after(start, 6));
        assert_eq!(budget.attach(), Attach::Entries);
        budget.update(1_000_000, after(start, 7));
        assert_eq!((budget.level(), budget.attach()), (ProbeLevel::Detached, Attach::Nothing));
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
    fn pauses_vary_around_the_length_of_a_cycle() {
        let mut budget = ProbeBudget::new(1_000, RecoveryTiming::default());
        budget.cycle = 5;
        let pauses: Vec<Duration> = (0..1_000).map(|_| budget.pause()).collect();
        let is_within = |pause: &Duration| (2.0..=6.0).contains(&pause.as_secs_f64());
        assert!(pauses.iter().all(is_within));
        let mean = pauses.iter().sum::<Duration>() / 1_000;
        assert!((mean.as_secs_f64() - 4.0).abs() < 0.01, "{mean:?}");
        let longest = pauses.iter().max().unwrap();
        let shortest = pauses.iter().min().unwrap();
        let range = longest.saturating_sub(*shortest);
        assert!(range > Duration::from_millis(3_900), "{shortest:?} {longest:?}");
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
