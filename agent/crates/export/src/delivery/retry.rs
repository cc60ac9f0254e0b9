//! The outcome of an attempt, and the wait before the next one.

use super::cause::Cause;
use super::settings::Backoff;
use hyper::header::{HeaderMap, RETRY_AFTER};
use std::fmt;
use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::time::{Duration, SystemTime};

/// The longest wait a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(10);

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Taken, except for `rejected` points.
    Accepted { rejected: u64, message: String },
    /// Retry later; not before `after` where the receiver set it.
    Retry { cause: Cause, after: Option<Duration> },
    /// The request is of another kind than this transport sends.
    NotOurs,
    /// Refused permanently.
    Refused(Cause),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { rejected: 0, .. } => f.write_str("accepted"),
            Self::Accepted { rejected, .. } => write!(f, "accepted, {rejected} points rejected"),
            Self::Retry { cause, .. } => write!(f, "not now: {cause}"),
            Self::NotOurs => f.write_str("of another sink, not sent"),
            Self::Refused(cause) => write!(f, "refused: {cause}"),
        }
    }
}

impl Verdict {
    /// The connection could not be made or broke: the receiver may return.
    pub(crate) fn lost(cause: Cause) -> Self {
        Self::Retry { cause, after: None }
    }
}

/// The waits of one run of failures.
#[derive(Debug)]
pub(crate) struct Waits {
    backoff: Backoff,
    failures: u32,
}

impl Waits {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure; at least what the receiver asked for.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let doubled = self.backoff.first.saturating_mul(1_u32 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let max = doubled.min(self.backoff.max);
        // Agents that lost the same collector must not reconnect in the same second.
        let wait = max.div_f64(2.0) + max.div_f64(2.0).mul_f64(chance());
        asked.map_or(wait, |asked| wait.max(asked.min(MAX_RETRY_AFTER)))
    }
}

/// `Retry-After` in either of its forms.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(value).ok()?.duration_since(now).ok()
}

/// A number from 0 to 1. The keys of std's hash maps are random enough for what it is used for.
pub(super) fn chance() -> f64 {
    (RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_said_in_a_few_words() {
        let accepted = |rejected| Verdict::Accepted { rejected, message: String::new() };
        let refused = Verdict::lost(Cause::Refused).to_string();
        assert_eq!(accepted(0).to_string(), "accepted");
        assert_eq!(accepted(3).to_string(), "accepted, 3 points rejected");
        assert!(refused.starts_with("not now: connection refused"), "{refused}");
    }
    use hyper::header::HeaderValue;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30) };

    #[test]
    fn waits_double_up_to_the_maximum_and_start_again_after_a_success() {
        let mut waits = Waits::new(BACKOFF);
        for max in [1, 2, 4, 8, 16, 30, 30] {
            let wait = waits.next(None);
            let max = Duration::from_secs(max);
            assert!(wait >= max / 2 && wait <= max, "{wait:?} of {max:?}");
        }
        waits.reset();
        assert!(waits.next(None) <= Duration::from_secs(1));
    }

    #[test]
    fn a_receiver_can_ask_for_a_longer_wait_within_a_bound() {
        let mut waits = Waits::new(BACKOFF);
        assert_eq!(waits.next(Some(Duration::from_secs(90))), Duration::from_secs(90));
        assert_eq!(waits.next(Some(Duration::MAX)), MAX_RETRY_AFTER);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            retry_after(&headers, now)
        };
        assert_eq!(read("120"), Some(Duration::from_mins(2)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:57 GMT"), Some(Duration::from_secs(20)));
        assert_eq!(read("soon"), None);
    }
}
