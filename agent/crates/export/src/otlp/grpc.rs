//! OTLP/gRPC: one unary call. The body is compressed once for all attempts, and framed for each; tonic
//! parses the status in the trailers.

use super::http::partial_success;
use super::wire::{Field, Reader};
use super::{CREDENTIALS, LOGS, METRICS, NOT_OTLP, OTLP, TOO_LARGE};
use crate::delivery::body::{Compression, Encoding};
use crate::delivery::cause::{Cause, message};
use crate::delivery::connection::Answer;
use crate::delivery::retry::Verdict;
use crate::delivery::{Headers, Sentences, Transport};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use std::time::{Duration, SystemTime};
use tonic::{Code, Status};

/// Bytes before a gRPC message: a compression flag and the length.
pub(super) const PREFIX: usize = 5;

/// The header of a status' details, and how tonic reads it: with padding or without.
const DETAILS: &str = "grpc-status-details-bin";
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Sends over OTLP/gRPC.
#[derive(Debug)]
pub(super) struct Grpc {
    headers: Headers,
}

impl Grpc {
    pub(super) fn new(timeout: Duration) -> Self {
        let mut headers = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
            (TE, HeaderValue::from_static("trailers")),
        ];
        // The unit leaves eight digits, more than a day.
        let limit = format!("{}m", timeout.as_millis().min(99_999_999));
        if let Ok(limit) = HeaderValue::try_from(limit) {
            headers.push((HeaderName::from_static("grpc-timeout"), limit));
        }
        Self { headers }
    }
}

impl Transport for Grpc {
    fn sentences(&self) -> &'static Sentences {
        &OTLP
    }

    fn request(
        &mut self,
        Encoding { format, compression }: Encoding,
        body: Bytes,
        _now: SystemTime,
    ) -> Result<Option<(Bytes, Headers)>, Cause> {
        if ![METRICS, LOGS].contains(&format) {
            return Ok(None);
        }
        let mut headers = self.headers.clone();
        if let Some(name) = compression.name() {
            let key = HeaderName::from_static("grpc-encoding");
            headers.push((key, HeaderValue::from_static(name)));
        }
        Ok(Some((framed(&body, compression), headers)))
    }

    fn verdict(&mut self, encoding: Encoding, answer: &Answer, _now: SystemTime) -> Verdict {
        match classify(answer) {
            // UNIMPLEMENTED is also the answer to an unknown compression.
            Verdict::Refused(Cause::Answered { hint: NOT_OTLP, .. })
                if encoding.compression == Compression::Zstd =>
            {
                Verdict::lost(Cause::NoZstd)
            }
            verdict => verdict,
        }
    }
}

/// The message behind its flag and length.
fn framed(body: &[u8], compression: Compression) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX + body.len());
    out.push(u8::from(compression != Compression::None));
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(body);
    out.into()
}

pub(super) fn classify(answer: &Answer) -> Verdict {
    let status = status_in(&answer.trailers)
        .or_else(|| status_in(&answer.headers))
        .unwrap_or_else(|| of_http(answer.status));
    if status.code() == Code::Ok {
        // The answer is not compressed: we offer no encoding for it.
        let (rejected, message) = partial_success(answer.body.get(PREFIX..).unwrap_or_default());
        return Verdict::Accepted { rejected, message };
    }
    let after = retry_info(status.details());
    let (is_again, hint) = match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => (true, ""),
        Code::ResourceExhausted if after.is_some() => (true, ""),
        Code::ResourceExhausted => (false, TOO_LARGE),
        Code::Unauthenticated | Code::PermissionDenied => (false, CREDENTIALS),
        Code::Unimplemented => (false, NOT_OTLP),
        _ => (false, ""),
    };
    let message = message(status.message());
    let cause = Cause::Answered { status: format!("{:?}", status.code()), hint, message };
    if is_again { Verdict::Retry { cause, after } } else { Verdict::Refused(cause) }
}

/// The status in headers. Details that are no base64 are left out: tonic 0.14 panics at them.
fn status_in(headers: &HeaderMap) -> Option<Status> {
    let details = headers.get(DETAILS);
    if details.is_none_or(|details| BASE64.decode(details).is_ok()) {
        return Status::from_header_map(headers);
    }
    let mut readable = headers.clone();
    readable.remove(DETAILS);
    Status::from_header_map(&readable)
}

/// The gRPC code for an HTTP status without one, according to gRPC's own table.
fn of_http(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("HTTP {status} without a gRPC status"))
}

/// `RetryInfo.retry_delay` among the details of a `google.rpc.Status`.
fn retry_info(status: &[u8]) -> Option<Duration> {
    let delay = Reader(status).filter(|(field, _)| *field == 3).find_map(|(_, detail)| {
        let Field::Bytes(detail) = detail else { return None };
        let name = bytes_field(detail, 1)?;
        name.ends_with(b"google.rpc.RetryInfo").then(|| bytes_field(detail, 2)).flatten()
    })?;
    let mut wait = Duration::ZERO;
    for (field, value) in Reader(bytes_field(delay, 1)?) {
        match (field, value) {
            (1, Field::Varint(seconds)) => wait += Duration::from_secs(seconds.min(1 << 32)),
            (2, Field::Varint(nanos)) => wait += Duration::from_nanos(nanos.min(999_999_999)),
            _ => {}
        }
    }
    Some(wait)
}

fn bytes_field(message: &[u8], wanted: u64) -> Option<&[u8]> {
    Reader(message).find_map(|(field, value)| match value {
        Field::Bytes(content) if field == wanted => Some(content),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::wire::{put_bytes, put_varint, tag};
    use super::*;

    fn status(seconds: Option<u64>) -> Vec<u8> {
        let mut out = vec![tag(1, 0), 8];
        if let Some(seconds) = seconds {
            let mut duration = vec![tag(1, 0)];
            put_varint(&mut duration, seconds);
            let (mut info, mut any) = (Vec::new(), Vec::new());
            put_bytes(&mut info, 1, &duration);
            put_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
            put_bytes(&mut any, 2, &info);
            put_bytes(&mut out, 3, &any);
        }
        out
    }

    fn answer(code: Code, details: &[u8]) -> Answer {
        let status = Status::with_details(code, "why", Bytes::copy_from_slice(details));
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers).unwrap();
        Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::new(), trailers }
    }

    #[test]
    fn a_body_is_flag_length_and_message() {
        let framed = framed(b"some bytes", Compression::Gzip);
        assert_eq!(&framed[..], b"\x01\0\0\0\x0asome bytes");
    }

    #[test]
    fn only_the_codes_of_the_specification_are_retried() {
        let again = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unavailable,
            Code::DataLoss,
        ];
        for code in (0..17).map(Code::from) {
            let verdict = classify(&answer(code, &[]));
            assert_eq!(matches!(verdict, Verdict::Retry { .. }), again.contains(&code), "{code:?}");
        }
    }

    #[test]
    fn details_that_are_no_base64_are_left_out() {
        let mut exhausted = answer(Code::ResourceExhausted, &status(Some(7)));
        let without_padding = exhausted.trailers[DETAILS].to_str().unwrap().replace('=', "");
        let details = [(&*without_padding, true), ("CA No6", false)];
        for (details, is_read) in details {
            exhausted.trailers.insert(DETAILS, HeaderValue::from_str(details).unwrap());
            let verdict = classify(&exhausted);
            assert_eq!(matches!(verdict, Verdict::Retry { .. }), is_read, "{details} {verdict:?}");
        }
    }

    #[test]
    fn an_exhausted_receiver_is_retried_only_if_it_names_a_delay() {
        let verdict = classify(&answer(Code::ResourceExhausted, &status(Some(7))));
        assert!(
            matches!(verdict, Verdict::Retry { after: Some(after), .. } if after.as_secs() == 7),
            "{verdict:?}"
        );
        let verdict = classify(&answer(Code::ResourceExhausted, &status(None)));
        assert!(
            matches!(verdict, Verdict::Refused(Cause::Answered { hint: TOO_LARGE, .. })),
            "{verdict:?}"
        );
    }
}
