//! OTLP/HTTP: a POST of the encoded request, the answer's status and protobuf body.

use super::body::{Encoding, Format};
use super::cause::{Cause, message};
use super::connection::{Answer, Connection};
use super::json;
use super::queue::Request;
use super::retry::Verdict;
use super::settings::{Compression, Settings};
use super::wire::{Field, Reader};
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// Sends over OTLP/HTTP.
#[derive(Debug)]
pub(crate) struct Http {
    connection: Connection,
    /// The receiver does not know zstd.
    no_zstd: bool,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { connection: Connection::new(settings.clone()), no_zstd: false }
    }

    pub(super) async fn send(&mut self, request: &Request) -> Verdict {
        if request.encoding.format == Format::Webhook {
            return Verdict::NotOurs;
        }
        let Some(Request { body, encoding, .. }) = request.without_zstd(self.no_zstd) else {
            return Verdict::NotOurs;
        };
        let Encoding { format, compression } = encoding;
        let kind = HeaderValue::from_static(format.content_type());
        let mut headers = vec![(CONTENT_TYPE, kind)];
        if let Some(name) = compression.name() {
            headers.push((CONTENT_ENCODING, HeaderValue::from_static(name)));
        }
        match self.connection.post(body, &headers).await {
            Ok(answer)
                if answer.status == StatusCode::UNSUPPORTED_MEDIA_TYPE
                    && compression == Compression::Zstd =>
            {
                // Not every receiver has zstd; OTLP requires gzip of all.
                self.no_zstd = true;
                Verdict::lost(Cause::NoZstd)
            }
            Ok(answer) => classify(&answer, format),
            Err(cause) => Verdict::lost(cause),
        }
    }
}

pub(super) fn classify(answer: &Answer, format: Format) -> Verdict {
    let status = answer.status.to_string();
    if answer.status.is_success() {
        let (rejected, message) = match format {
            Format::MetricsJson | Format::LogsJson => json::partial_success(&answer.body),
            _ => partial_success(&answer.body),
        };
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
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(value).ok()?.duration_since(now).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

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
            let again = matches!(classify(&answer, Format::Metrics), Verdict::Retry { .. });
            assert_eq!(again, [429, 502, 503, 504].contains(&code), "{code}");
        }
    }
}
