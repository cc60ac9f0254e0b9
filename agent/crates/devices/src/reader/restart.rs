//! Decides when the next child may start.

use std::time::{Duration, Instant};

/// Children that may end in a row before there is a pause: one within its tick, one at the next. So
/// an occasional crash costs no reading, and two in a row cost one.
const AT_ONCE: u32 = 2;

/// History of the previous children.
#[derive(Debug)]
pub(super) struct Restarts {
    next: Instant,
    /// Children that ended since the last successful tick.
    streak: u32,
    longest: Duration,
    any_before: bool,
}

impl Restarts {
    pub(super) fn new(longest: Duration) -> Self {
        Self { next: Instant::now(), streak: 0, longest, any_before: false }
    }

    /// Whether a child may start now.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Records the start of a child; true if it is not the first.
    pub(super) fn begin(&mut self) -> bool {
        std::mem::replace(&mut self.any_before, true)
    }

    /// Records a successful tick.
    pub(super) fn succeeded(&mut self) {
        self.streak = 0;
    }

    /// Forbids a start for `length`.
    pub(super) fn wait(&mut self, length: Duration) {
        self.next = Instant::now() + length;
    }

    /// Allows a start at once, after the operator resumes the devices.
    pub(super) fn at_once(&mut self) {
        self.next = Instant::now();
    }

    /// Records a crash.
    pub(super) fn back_off(&mut self) {
        self.streak = self.streak.saturating_add(1);
        self.wait(pause(self.streak).min(self.longest));
    }
}

/// The pause after a streak of crashes: 0, 0, 1, 2, 4, … seconds.
fn pause(streak: u32) -> Duration {
    match streak.checked_sub(AT_ONCE + 1) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_secs(1 << doublings.min(30)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Restarts, pause};

    #[test]
    fn two_restarts_are_immediate_and_then_the_pause_doubles() {
        let pauses = [1, 2, 3, 4, 5, 6].map(|streak| pause(streak).as_secs());
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8]);
    }

    #[test]
    fn a_successful_tick_resets_the_pause() {
        let mut restarts = Restarts::new(Duration::from_mins(1));
        (0..3).for_each(|_| restarts.back_off());
        assert!(!restarts.is_due());
        restarts.succeeded();
        restarts.back_off();
        assert!(restarts.is_due());
    }
}
