//! OTLP/HTTP: a POST of the encoded request, the answer's status and protobuf body.

use super::wire::{Field, Reader};
use super::{CREDENTIALS, LOGS, LOGS_JSON, METRICS, METRICS_JSON, NOT_OTLP, OTLP, TOO_LARGE, json};
use crate::delivery::body::{Compression, Encoding, Format};
use crate::delivery::cause::{Cause, message};
use crate::delivery::connection::Answer;
use crate::delivery::retry::{Verdict, retry_after};
use crate::delivery::{Headers, Sentences, Transport};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use std::time::SystemTime;

/// Sends over OTLP/HTTP.
#[derive(Debug)]
pub(super) struct Http;

impl Transport for Http {
    fn sentences(&self) -> &'static Sentences {
        &OTLP
    }

    fn request(
        &mut self,
        Encoding { format, compression }: Encoding,
        body: Bytes,
        _now: SystemTime,
    ) -> Result<Option<(Bytes, Headers)>, Cause> {
        let kind = match format {
            METRICS | LOGS => "application/x-protobuf",
            METRICS_JSON | LOGS_JSON => "application/json",
            _ => return Ok(None),
        };
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static(kind))];
        if let Some(name) = compression.name() {
            headers.push((CONTENT_ENCODING, HeaderValue::from_static(name)));
        }
        Ok(Some((body, headers)))
    }

    fn verdict(&mut self, encoding: Encoding, answer: &Answer, now: SystemTime) -> Verdict {
        let Encoding { format, compression } = encoding;
        if answer.status == StatusCode::UNSUPPORTED_MEDIA_TYPE && compression == Compression::Zstd {
            // Not every receiver has zstd; OTLP requires gzip of all.
            return Verdict::lost(Cause::NoZstd);
        }
        classify(answer, format, now)
    }
}

pub(super) fn classify(answer: &Answer, format: Format, now: SystemTime) -> Verdict {
    let status = answer.status.to_string();
    if answer.status.is_success() {
        let (rejected, message) = match format {
            METRICS_JSON | LOGS_JSON => json::partial_success(&answer.body),
            _ => partial_success(&answer.body),
        };
        return Verdict::Accepted { rejected, message };
    }
    let message = reason(answer);
    let (is_again, hint) = match answer.status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => (true, ""),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (false, CREDENTIALS),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => (false, NOT_OTLP),
        StatusCode::PAYLOAD_TOO_LARGE => (false, TOO_LARGE),
        _ => (false, ""),
    };
    let cause = Cause::Answered { status, hint, message };
    if is_again {
        Verdict::Retry { cause, after: retry_after(&answer.headers, now) }
    } else {
        Verdict::Refused(cause)
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

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderMap;

    #[test]
    fn only_the_specification_s_statuses_are_tried_again() {
        for code in 100..600 {
            let answer = Answer {
                status: StatusCode::from_u16(code).unwrap(),
                headers: HeaderMap::new(),
                body: Bytes::new(),
                trailers: HeaderMap::new(),
            };
            let again =
                matches!(classify(&answer, METRICS, SystemTime::now()), Verdict::Retry { .. });
            assert_eq!(again, [429, 502, 503, 504].contains(&code), "{code}");
        }
    }
}
