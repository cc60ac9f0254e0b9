//! Decides by their times which two samples make a value.

/// Minimum distance of two samples: the driver updates its counters every 100 ms (`nvml.h`).
const NEAREST_NS: u64 = 100_000_000;
/// Maximum distance of two samples, unless the previous ones were as far apart because the interval
/// is long. Otherwise the device did not answer for a while, and a mean over that time is not
/// current.
const FARTHEST_NS: u64 = 60_000_000_000;

/// Whether it is too early for another sample. A clock that went back makes it not early.
pub(super) fn is_early(last_ns: u64, now_ns: u64) -> bool {
    now_ns.checked_sub(last_ns).is_some_and(|gap_ns| gap_ns < NEAREST_NS)
}

/// Whether two samples with this gap make a value; `typical_ns` is the previous gap.
pub(super) fn is_near_enough(gap_ns: u64, typical_ns: Option<u64>) -> bool {
    let farthest_ns =
        typical_ns.map_or(FARTHEST_NS, |typical_ns| typical_ns.saturating_mul(2).max(FARTHEST_NS));
    (NEAREST_NS..=farthest_ns).contains(&gap_ns)
}

#[cfg(test)]
mod tests {
    use super::{FARTHEST_NS, NEAREST_NS, is_early, is_near_enough};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn samples_too_close_wait_and_a_clock_that_went_back_makes_no_value() {
        assert!(is_early(SECOND, SECOND) && is_early(SECOND, SECOND + NEAREST_NS - 1));
        assert!(!is_early(SECOND, SECOND + NEAREST_NS));
        assert!(!is_early(SECOND, SECOND - 1), "sampled anew");
        assert!(!is_near_enough(0, Some(SECOND)), "the gap of a clock that went back");
        assert!(!is_near_enough(NEAREST_NS - 1, None) && is_near_enough(NEAREST_NS, None));
    }

    #[test]
    fn samples_too_far_apart_make_no_value_unless_the_interval_is_that_long() {
        assert!(is_near_enough(FARTHEST_NS, None) && !is_near_enough(FARTHEST_NS + 1, None));
        assert!(!is_near_enough(300 * SECOND, Some(10 * SECOND)), "a device that hung");
        assert!(is_near_enough(300 * SECOND, Some(290 * SECOND)), "an interval of five minutes");
        assert!(is_near_enough(10 * SECOND, Some(300 * SECOND)));
    }
}
