//! What an attempt's end means, and how long to wait before the next one.

use super::cause::Cause;
use super::settings::Backoff;
use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::time::Duration;

/// The longest wait a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(10);

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Taken, except for `rejected` points.
    Accepted { rejected: u64, message: String },
    /// Not now: send the same again, not before `after` where the receiver said so.
    Retry { cause: Cause, after: Option<Duration> },
    /// Not ever.
    Refused(Cause),
}

impl Verdict {
    /// A connection that could not be made or broke: the receiver may be back later.
    pub(super) fn lost(cause: Cause) -> Self {
        Self::Retry { cause, after: None }
    }
}

/// The waits of one run of failures.
#[derive(Debug)]
pub(super) struct Waits {
    backoff: Backoff,
    failures: u32,
}

impl Waits {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure; at least what the receiver asked for.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let doubled = self.backoff.first.saturating_mul(1_u32 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let most = doubled.min(self.backoff.most);
        // Agents that lost the same collector must not come back in the same second. The keys of
        // std's hash maps are random enough for that.
        let chance =
            (RandomState::new().hash_one(self.failures) >> 11) as f64 / (1_u64 << 53) as f64;
        let wait = most.div_f64(2.0) + most.div_f64(2.0).mul_f64(chance);
        asked.map_or(wait, |asked| wait.max(asked.min(MAX_RETRY_AFTER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), most: Duration::from_secs(30) };

    #[test]
    fn waits_double_to_the_most_and_start_again_after_a_success() {
        let mut waits = Waits::new(BACKOFF);
        for most in [1, 2, 4, 8, 16, 30, 30] {
            let wait = waits.next(None);
            let most = Duration::from_secs(most);
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
        }
        waits.reset();
        assert!(waits.next(None) <= Duration::from_secs(1));
    }

    #[test]
    fn receiver_can_ask_for_more_but_not_for_ever() {
        let mut waits = Waits::new(BACKOFF);
        assert_eq!(waits.next(Some(Duration::from_secs(90))), Duration::from_secs(90));
        assert_eq!(waits.next(Some(Duration::MAX)), MAX_RETRY_AFTER);
    }
}
