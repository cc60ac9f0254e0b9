//! What the fuzz target calls (`tests/fuzz`): any bytes as a receiver's answer.

use super::{LOGS_JSON, METRICS, grpc, http};
use crate::delivery::connection::Answer;
use crate::delivery::retry::{Verdict, Waits};
use crate::delivery::settings::Backoff;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use std::time::{Duration, SystemTime};

const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30) };

/// The headers that are read of an answer.
const HEADERS: [HeaderName; 5] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
];

/// Reads two bytes as the status, a line for each of [`HEADERS`], and the rest as the body, in every format.
/// Returns the longest text that it makes of them, and the longest wait in seconds.
pub fn answer(bytes: &[u8]) -> (usize, u64) {
    let [high, low, rest @ ..] = bytes else { return (0, 0) };
    let status = u16::from_be_bytes([*high, *low]) % 500 + 100;
    let mut lines = rest.splitn(HEADERS.len() + 1, |byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for (name, line) in HEADERS.iter().zip(&mut lines) {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.insert(name, value);
        }
    }
    let answer = Answer {
        status: StatusCode::from_u16(status).unwrap_or_default(),
        trailers: headers.clone(),
        headers,
        body: Bytes::copy_from_slice(lines.next().unwrap_or_default()),
    };
    let formats =
        [METRICS, LOGS_JSON].map(|format| http::classify(&answer, format, SystemTime::now()));
    let (mut text, mut wait) = (0, 0);
    for verdict in formats.into_iter().chain([grpc::classify(&answer)]) {
        let said = match verdict {
            Verdict::Accepted { message, .. } => message,
            Verdict::Refused(cause) => cause.to_string(),
            Verdict::NotOurs => String::new(),
            Verdict::Retry { cause, after } => {
                wait = wait.max(Waits::new(BACKOFF).next(after).as_secs());
                cause.to_string()
            }
        };
        text = text.max(said.len());
    }
    (text, wait)
}

#[cfg(test)]
mod tests {
    use super::answer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_a_long_text_or_wait(bytes: Vec<u8>, status in 0_u16..500) {
            let all = [&status.to_be_bytes()[..], &bytes].concat();
            let (text, wait) = answer(&all);
            prop_assert!(text <= 2048 && wait <= 600, "{text} {wait}");
        }
    }

    #[test]
    fn a_receiver_s_wait_is_obeyed_up_to_ten_minutes() {
        for (asked, waits) in [("77", 77), ("18446744073709551615", 600)] {
            let status = 429_u16 - 100;
            let headers = format!("text/plain\n{asked}\n\n\n\nbusy");
            let all = [&status.to_be_bytes()[..], headers.as_bytes()].concat();
            assert_eq!(answer(&all).1, waits, "{asked}");
        }
    }
}
