//! OTLP/HTTP: a POST of the encoded request, the answer's status and protobuf body.

use super::cause::{Cause, message};
use super::connection::{Answer, Connection};
use super::retry::Verdict;
use super::settings::{Compression, Settings};
use super::wire::{Field, Reader};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use std::time::{Duration, SystemTime};

/// Sends over OTLP/HTTP.
#[derive(Debug)]
pub(super) struct Http {
    connection: Connection,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"))];
        if settings.compression == Compression::Gzip {
            headers.push((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
        }
        Self { connection: Connection::new(settings.clone()), headers }
    }

    pub(super) async fn send(&mut self, body: Bytes) -> Verdict {
        match self.connection.post(body, &self.headers).await {
            Ok(answer) => classify(&answer),
            Err(cause) => Verdict::lost(cause),
        }
    }
}

fn classify(answer: &Answer) -> Verdict {
    let status = answer.status.to_string();
    if answer.status.is_success() {
        let (rejected, message) = partial_success(&answer.body);
        return Verdict::Accepted { rejected, message };
    }
    let message = reason(answer);
    match answer.status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Retry {
            cause: Cause::Answered { status, message },
            after: retry_after(&answer.headers, SystemTime::now()),
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Verdict::Refused(Cause::Credentials { status, message })
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Verdict::Refused(Cause::NotOtlp { status, message })
        }
        StatusCode::PAYLOAD_TOO_LARGE => Verdict::Refused(Cause::TooLarge { status, message }),
        _ => Verdict::Refused(Cause::Answered { status, message }),
    }
}

/// `ExportMetricsServiceResponse.partial_success`: rejected points and why.
pub(super) fn partial_success(body: &[u8]) -> (u64, String) {
    let mut rejected = 0;
    let mut reason = String::new();
    for (field, value) in Reader(body) {
        let (1, Field::Bytes(partial)) = (field, value) else { continue };
        for (field, value) in Reader(partial) {
            match (field, value) {
                (1, Field::Varint(count)) => rejected = count,
                (2, Field::Bytes(text)) => reason = message(&String::from_utf8_lossy(text)),
                _ => {}
            }
        }
    }
    (rejected, reason)
}

/// The receiver's reason for a refusal: a `google.rpc.Status` message, or text.
fn reason(answer: &Answer) -> String {
    let protobuf = answer
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-protobuf"));
    let text = if protobuf {
        Reader(&answer.body)
            .find_map(|(field, value)| match (field, value) {
                (2, Field::Bytes(text)) => Some(text),
                _ => None,
            })
            .unwrap_or_default()
    } else {
        &answer.body
    };
    message(&String::from_utf8_lossy(text))
}

/// `Retry-After` in either of its forms.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(value).ok()?.duration_since(now).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn only_the_specification_s_statuses_are_tried_again() {
        for code in 100..600 {
            let answer = Answer {
                status: StatusCode::from_u16(code).unwrap(),
                headers: HeaderMap::new(),
                body: Bytes::new(),
                trailers: HeaderMap::new(),
            };
            let again = matches!(classify(&answer), Verdict::Retry { .. });
            assert_eq!(again, [429, 502, 503, 504].contains(&code), "{code}");
        }
    }
}
