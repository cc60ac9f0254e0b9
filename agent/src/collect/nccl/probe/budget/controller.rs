//! How much the probes may cost the processes of an owner: from the hits a second of the one that
//! makes most, each as many as it costs, to what is seen of them. First the returns of operations go,
//! then the entries are seen some of the time only, then nothing for some minutes.

use crate::catalog::nccl::GovernorLevel;
use std::time::{Duration, Instant};

/// Time between two looks at the counters: short beside the damage, long beside the look.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most seconds without probes for one with.
const MAX_CYCLE: u32 = 32;
/// Seconds with probes, one a cycle, within the budget before they are always there again. To come
/// back at the first would be to see what is quiet, and, once it is not, to go when it is over: what
/// is counted by turns stands for all only where the load does not choose the turns.
const CALM_TURNS: u32 = 10;
/// The golden ratio's part behind the point, of 2³²: its multiples, modulo one, are spread evenly
/// however many there are.
const SPREAD: u32 = 0x9e37_79b9;

/// How long less is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Nothing is attached for so long when even a second in the longest cycle was too much.
    pub rest: Duration,
    /// Looks below a third of the budget before more is attached again: a short pause is no
    /// change.
    pub calm_looks: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { rest: Duration::from_mins(5), calm_looks: 30 }
    }
}

/// What is counted, or attached, now; the more the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Attach {
    /// Nothing.
    Nothing,
    /// Entries only.
    Entries,
    /// Entries and returns.
    Full,
}

/// The governor of one owner's processes, over all their libraries.
#[derive(Debug)]
pub(in super::super) struct ProbeBudget {
    /// Hits a second and process.
    budget: u64,
    patience: Patience,
    level: GovernorLevel,
    /// Seconds of a cycle, one of them with probes.
    cycle: u32,
    /// When the present phase ends; only where a level has phases.
    until: Option<Instant>,
    is_on: bool,
    calm: u32,
    /// Pauses so far.
    pauses: u32,
}

impl ProbeBudget {
    /// With everything allowed.
    pub(super) fn new(budget: u64, patience: Patience) -> Self {
        let (level, budget) = (GovernorLevel::Full, budget.max(1));
        Self { budget, patience, level, cycle: 1, until: None, is_on: true, calm: 0, pauses: 0 }
    }

    /// Hits a second and process that are allowed.
    pub(in super::super) fn budget(&self) -> u64 {
        self.budget
    }

    /// What is in force.
    pub(in super::super) fn level(&self) -> GovernorLevel {
        self.level
    }

    /// One second with probes in so many; 1 where they are always there.
    pub(in super::super) fn cycle(&self) -> u32 {
        self.cycle
    }

    /// When the present phase ends, where it does.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// What is to be attached now.
    pub(super) fn attach(&self) -> Attach {
        match self.level {
            GovernorLevel::Full => Attach::Full,
            GovernorLevel::Entries => Attach::Entries,
            GovernorLevel::Cycled if self.is_on => Attach::Entries,
            GovernorLevel::Cycled | GovernorLevel::Detached | GovernorLevel::Off => Attach::Nothing,
        }
    }

    /// Takes the hits a second and process since the last look, in which the probes were attached
    /// as [`Governor::attach`] said.
    pub(super) fn look(&mut self, rate: u64, now: Instant) {
        let is_calm = self.is_calm(rate);
        match self.level {
            GovernorLevel::Full if rate > self.budget => self.enter(GovernorLevel::Entries, now),
            GovernorLevel::Entries if rate > self.budget => self.slow_down(rate, now),
            GovernorLevel::Entries if is_calm => self.enter(GovernorLevel::Full, now),
            GovernorLevel::Cycled => self.turn(rate, now),
            GovernorLevel::Detached if self.until.is_some_and(|until| now >= until) => {
                self.enter(GovernorLevel::Entries, now);
            }
            _ => {}
        }
    }

    /// Returns doubled the hits: there must be room for them.
    fn is_calm(&mut self, rate: u64) -> bool {
        self.calm = if rate <= self.budget / 3 { self.calm + 1 } else { 0 };
        self.calm >= self.patience.calm_looks
    }

    fn enter(&mut self, level: GovernorLevel, now: Instant) {
        self.level = level;
        self.calm = 0;
        self.cycle = 1;
        self.is_on = level != GovernorLevel::Detached;
        self.until = (level == GovernorLevel::Detached).then(|| now + self.patience.rest);
    }

    /// As many seconds without probes as bring the mean down to the budget.
    fn slow_down(&mut self, rate: u64, now: Instant) {
        let cycle = u32::try_from(rate.div_ceil(self.budget)).unwrap_or(u32::MAX);
        if cycle > MAX_CYCLE {
            return self.enter(GovernorLevel::Detached, now);
        }
        self.enter(GovernorLevel::Cycled, now);
        self.cycle = cycle.max(2);
        self.rest(now);
    }

    fn rest(&mut self, now: Instant) {
        self.is_on = false;
        self.until = Some(now + self.pause());
    }

    /// The seconds of a cycle without probes, half as many to half as many more: were all alike, a
    /// job whose steps take as long as a cycle would be seen in the same part of each.
    fn pause(&mut self) -> Duration {
        let place = (1 << 31_u32) ^ self.pauses.wrapping_mul(SPREAD);
        self.pauses = self.pauses.wrapping_add(1);
        let part = f64::from(place) / f64::from(u32::MAX);
        (LOOK_EVERY * (self.cycle - 1)).mul_f64(0.5 + part)
    }

    /// Of a cycle, the second with probes has been measured, or the rest is over.
    fn turn(&mut self, rate: u64, now: Instant) {
        if self.is_on {
            if rate > self.budget {
                return self.slow_down(rate, now);
            }
            self.calm += 1;
            if self.calm >= self.patience.calm_looks.min(CALM_TURNS) {
                return self.enter(GovernorLevel::Entries, now);
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
        let mut governor = ProbeBudget::new(1_000, Patience::default());
        governor.look(900, start);
        assert_eq!((governor.level(), governor.attach()), (GovernorLevel::Full, Attach::Full));
        governor.look(1_100, after(start, 1));
        assert_eq!(governor.attach(), Attach::Entries);
        governor.look(4_000, after(start, 2));
        assert_eq!((governor.level(), governor.cycle()), (GovernorLevel::Cycled, 4));
        assert_eq!(governor.attach(), Attach::Nothing);
        governor.look(0, after(start, 4));
        assert_eq!(governor.attach(), Attach::Nothing);
        governor.look(0, after(start, 6));
        assert_eq!(governor.attach(), Attach::Entries);
        governor.look(1_000_000, after(start, 7));
        assert_eq!(
            (governor.level(), governor.attach()),
            (GovernorLevel::Detached, Attach::Nothing)
        );
    }

    #[test]
    fn what_was_given_up_comes_back_when_it_is_calm() {
        let start = Instant::now();
        let mut governor = ProbeBudget::new(1_000, Patience::default());
        governor.look(40_000, start);
        governor.look(40_000, after(start, 1));
        assert_eq!(governor.level(), GovernorLevel::Detached);
        governor.look(0, after(start, 300));
        assert_eq!(governor.level(), GovernorLevel::Detached);
        governor.look(0, after(start, 301));
        assert_eq!(governor.level(), GovernorLevel::Entries);
        for second in 0..30 {
            assert_eq!(governor.level(), GovernorLevel::Entries);
            governor.look(300, after(start, 302 + second));
        }
        assert_eq!(governor.attach(), Attach::Full);
    }

    #[test]
    fn pauses_differ_and_are_a_cycles_on_the_whole() {
        let mut governor = ProbeBudget::new(1_000, Patience::default());
        governor.cycle = 5;
        let pauses: Vec<Duration> = (0..1_000).map(|_| governor.pause()).collect();
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
    fn a_busy_second_in_between_starts_the_calm_anew() {
        let start = Instant::now();
        let mut governor = ProbeBudget::new(1_000, Patience::default());
        governor.look(2_000, start);
        for second in 0..100 {
            governor.look(if second % 10 == 0 { 600 } else { 100 }, after(start, second));
        }
        assert_eq!(governor.level(), GovernorLevel::Entries);
    }
}
