//! The last minute of a number or of buckets, in a few snapshots: what rates and quantiles are
//! computed over. A fixed number of snapshots a series, reused; none is taken more often than every
//! sixth of the window.

use std::collections::VecDeque;

/// How far back an increase is counted, in nanoseconds; where the interval is longer, over one
/// interval.
pub(super) const WINDOW_NS: u64 = 60 * 1_000_000_000;

/// Snapshots: one at the window's beginning, and one for each sixth.
const SNAPSHOTS: usize = 7;

/// The snapshots, the oldest first.
#[derive(Debug)]
pub(super) struct Window<T> {
    snapshots: VecDeque<(u64, T)>,
    start_ns: u64,
    /// When the last value came.
    last_ns: u64,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { snapshots: VecDeque::new(), start_ns: 0, last_ns: 0 }
    }
}

impl<T> Window<T> {
    /// Forgets what was before a restart of the series or a change of the clock; returns the window's
    /// beginning and its age.
    fn base(&mut self, start_ns: u64, time_ns: u64) -> Option<(&T, u64)> {
        if start_ns != self.start_ns || time_ns < self.last_ns {
            self.snapshots.clear();
            self.start_ns = start_ns;
        }
        self.last_ns = time_ns;
        let age = |snapshot: Option<&(u64, T)>| snapshot.map(|(at, _)| time_ns.saturating_sub(*at));
        while age(self.snapshots.get(1)).is_some_and(|age| age >= WINDOW_NS) {
            self.snapshots.pop_front();
        }
        let (at, value) = self.snapshots.front()?;
        Some((value, time_ns - at)).filter(|(_, age)| *age > 0)
    }

    /// Whether a snapshot is due; makes room for it.
    fn is_due(&self, time_ns: u64) -> bool {
        let newest = self.snapshots.back();
        newest.is_none_or(|(at, _)| time_ns.saturating_sub(*at) >= WINDOW_NS / 6)
    }

    /// The oldest snapshot's value, for reuse, where there are enough.
    fn take_oldest(&mut self) -> Option<T> {
        let is_full = self.snapshots.len() >= SNAPSHOTS;
        is_full.then(|| self.snapshots.pop_front()).flatten().map(|(_, value)| value)
    }
}

impl Window<f64> {
    /// Adds a value; returns the increase and its nanoseconds, once there is one. A value that may
    /// not decrease and does begins a new window.
    pub(super) fn add(
        &mut self,
        start_ns: u64,
        time_ns: u64,
        value: f64,
        may_decrease: bool,
    ) -> Option<(f64, u64)> {
        let fell = |newest: Option<&(u64, f64)>| newest.is_some_and(|(_, last)| value < *last);
        if !may_decrease && fell(self.snapshots.back()) {
            self.snapshots.clear();
        }
        let increase = self.base(start_ns, time_ns).map(|(base, age)| (value - base, age));
        if self.is_due(time_ns) {
            self.take_oldest();
            self.snapshots.push_back((time_ns, value));
        }
        increase
    }
}

impl Window<Vec<u64>> {
    /// Adds the increase of each bucket to `sums`, once there is one.
    pub(super) fn add(&mut self, start_ns: u64, time_ns: u64, counts: &[u64], sums: &mut Vec<u64>) {
        let is_new = |newest: &(u64, Vec<u64>)| {
            newest.1.len() != counts.len()
                || newest.1.iter().zip(counts).any(|(old, new)| new < old)
        };
        if self.snapshots.back().is_some_and(is_new) {
            self.snapshots.clear();
        }
        if let Some((base, _)) = self.base(start_ns, time_ns) {
            sums.resize(counts.len(), 0);
            for ((sum, new), old) in sums.iter_mut().zip(counts).zip(base) {
                *sum += new.saturating_sub(*old);
            }
        }
        if self.is_due(time_ns) {
            let mut kept = self.take_oldest().unwrap_or_default();
            kept.clear();
            kept.extend_from_slice(counts);
            self.snapshots.push_back((time_ns, kept));
        }
    }
}

/// The quantile of a distribution as Prometheus' `histogram_quantile` has it: linear in a bucket, the
/// greatest bound in the last one. `None` without observations.
pub(super) fn quantile(quantile: f64, bounds: &[f64], counts: &[u64]) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let greatest = *bounds.last()?;
    if total == 0 {
        return None;
    }
    let rank = quantile * total as f64;
    let mut below = 0_u64;
    let mut from = 0.0;
    for (at, (count, to)) in counts.iter().zip(bounds).enumerate() {
        let up_to = below + count;
        if *count > 0 && up_to as f64 >= rank {
            // A first bucket that ends at or below 0 has no lower bound.
            let from = if at == 0 && *to <= 0.0 { *to } else { from };
            return Some(from + (to - from) * ((rank - below as f64) / *count as f64));
        }
        below = up_to;
        from = *to;
    }
    Some(greatest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_increase_is_of_the_last_minute() {
        let mut window = Window::<f64>::default();
        assert_eq!(window.add(1, 10 * SECOND, 100.0, false), None);
        assert_eq!(window.add(1, 20 * SECOND, 110.0, false), Some((10.0, 10 * SECOND)));
        for at in 3..=20 {
            window.add(1, at * 10 * SECOND, 90.0 + at as f64 * 10.0, false);
        }
        let (increase, age) = window.add(1, 210 * SECOND, 300.0, false).unwrap();
        assert_eq!((increase, age), (60.0, 60 * SECOND));
    }

    #[test]
    fn a_restart_a_decrease_and_a_clock_set_back_begin_again() {
        let mut window = Window::<f64>::default();
        window.add(1, 10 * SECOND, 100.0, false);
        assert_eq!(window.add(15, 20 * SECOND, 200.0, false), None, "another start");
        assert_eq!(window.add(15, 30 * SECOND, 5.0, false), None, "it fell");
        assert_eq!(window.add(15, 5 * SECOND, 6.0, false), None, "the clock");
        assert_eq!(window.add(15, 15 * SECOND, 4.0, true), Some((-2.0, 10 * SECOND)), "a level");
    }

    #[test]
    fn the_snapshots_are_few_however_often_a_value_comes() {
        let mut window = Window::<Vec<u64>>::default();
        let mut sums = Vec::new();
        for at in 0..10_000 {
            sums.clear();
            window.add(1, at * SECOND / 10, &[at, 2 * at], &mut sums);
        }
        assert!(window.snapshots.len() <= SNAPSHOTS, "{}", window.snapshots.len());
        assert!((600..=700).contains(&sums[0]) && sums[1] == 2 * sums[0], "{sums:?}");
    }

    #[test]
    fn an_interval_longer_than_the_window_has_the_increase_of_one() {
        let mut window = Window::<f64>::default();
        window.add(1, 0, 0.0, false);
        window.add(1, 300 * SECOND, 10.0, false);
        assert_eq!(window.add(1, 600 * SECOND, 30.0, false), Some((20.0, 300 * SECOND)));
    }

    #[test]
    fn a_quantile_is_what_prometheus_computes() {
        let bounds = [0.1, 0.5, 1.0];
        assert_eq!(quantile(0.5, &bounds, &[0, 0, 0, 0]), None);
        assert_eq!(quantile(0.5, &bounds, &[10, 0, 0, 0]), Some(0.05));
        assert_eq!(quantile(0.5, &[1.0, 2.0], &[0, 10, 0]), Some(1.5));
        assert_eq!(quantile(0.99, &bounds, &[0, 0, 0, 5]), Some(1.0), "above the last bound");
        assert_eq!(quantile(0.5, &[], &[4]), None, "no bounds");
    }
}
