//! What a value was: a few points of the past, as many as a window needs.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Points in a window.
const SLOTS: f64 = 16.0;
/// Points that are kept: a window's, and one before it.
pub(super) const MAX_POINTS: usize = 18;

/// Points of the past, each with its time in seconds, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History(VecDeque<(f64, f64)>);

impl History {
    /// Adds the value of now, where the last point is a slot of the window old, and drops what is
    /// older than the window; of that, one point stays.
    pub(super) fn push(&mut self, window: f64, now: f64, value: f64) {
        if self.0.back().is_none_or(|(at, _)| now - at >= window / SLOTS) {
            self.0.push_back((now, value));
        }
        while self.0.get(1).is_some_and(|(at, _)| *at <= now - window) || self.0.len() > MAX_POINTS
        {
            self.0.pop_front();
        }
    }

    /// The value when the window began, or the oldest that there is.
    pub(super) fn oldest(&self) -> Option<f64> {
        self.0.front().map(|(_, value)| *value)
    }

    /// The last point at this time or before.
    pub(super) fn at(&self, time: f64) -> Option<(f64, f64)> {
        self.0.iter().rev().find(|(at, _)| *at <= time).copied()
    }

    /// The same points on a clock that differs by so many seconds; points that are no numbers or too
    /// many, as in a file that somebody changed, are dropped.
    pub(super) fn shifted(&self, by: f64) -> Self {
        let sound = self.0.iter().filter(|(at, value)| at.is_finite() && value.is_finite());
        Self(sound.take(MAX_POINTS).map(|(at, value)| (at + by, *value)).collect())
    }
}

/// Counters that add up, each since it was first read. A counter that falls was started again: what
/// it shows then is new.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counter {
    /// The last reading of each.
    last: Vec<Option<f64>>,
    /// The increases of each.
    totals: Vec<f64>,
}

impl Counter {
    /// Takes readings; `None` where one is missing. Returns whether there was any.
    pub(super) fn take(&mut self, readings: impl Iterator<Item = Option<f64>>) -> bool {
        let mut has_any = false;
        for (at, reading) in readings.enumerate() {
            if self.last.len() <= at {
                self.last.push(None);
                self.totals.push(0.0);
            }
            let (Some(reading), Some(last)) = (reading, self.last.get_mut(at)) else { continue };
            has_any = true;
            if let (Some(last), Some(total)) = (*last, self.totals.get_mut(at)) {
                *total += if reading >= last { reading - last } else { reading };
            }
            *last = Some(reading);
        }
        has_any
    }

    /// The sum of all increases.
    pub(super) fn sum(&self) -> f64 {
        self.totals.iter().sum()
    }

    /// The increases of the counter that has increased most.
    pub(super) fn most(&self) -> f64 {
        self.totals.iter().copied().fold(0.0, f64::max)
    }

    /// Whether a reading is below the last one: the counter was started again.
    pub(super) fn has_restarted(&self, reading: f64) -> bool {
        self.last.first().copied().flatten().is_some_and(|last| reading < last)
    }

    /// Whether a stored counter can be one.
    pub(super) fn is_sound(&self) -> bool {
        let is_same = self.last.len() == self.totals.len();
        is_same
            && self.last.len() <= MAX_POINTS
            && self.totals.iter().all(|total| total.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_needs_few_points_however_often_it_is_fed() {
        let mut history = History::default();
        for second in 0..100_000_u32 {
            history.push(3600.0, second.into(), f64::from(second) * 2.0);
        }
        assert!(history.0.len() <= MAX_POINTS, "{}", history.0.len());
        let ago = (f64::from(99_999) * 2.0 - history.oldest().unwrap()) / 2.0;
        assert!((3600.0..=3600.0 * 17.0 / 16.0).contains(&ago), "{ago}");
    }

    #[test]
    fn an_increase_survives_a_counter_that_starts_again() {
        let mut counter = Counter::default();
        for reading in [Some(100.0), None, Some(103.0), Some(2.0), Some(5.0)] {
            counter.take([reading].into_iter());
        }
        assert!((counter.sum() - 8.0).abs() < 1e-9, "3, then 2 after the restart, then 3");
    }

    #[test]
    fn a_counter_that_comes_later_is_no_increase() {
        let mut counter = Counter::default();
        counter.take([Some(1.0), None].into_iter());
        counter.take([Some(1.0), Some(500.0)].into_iter());
        assert!(counter.sum().abs() < 1e-9 && counter.most().abs() < 1e-9);
    }
}
