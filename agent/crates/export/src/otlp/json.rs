//! OTLP/JSON for receivers that take nothing else: the protobuf message as OpenTelemetry's own types
//! write it. Costs some fifty times the protobuf, so it is no default.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use serde::Serialize;
use serde_json::Value;

/// `ExportMetricsServiceRequest` in JSON.
pub(super) fn metrics(protobuf: &[u8]) -> Vec<u8> {
    of::<ExportMetricsServiceRequest>(protobuf)
}

/// `ExportLogsServiceRequest` in JSON.
pub(super) fn logs(protobuf: &[u8]) -> Vec<u8> {
    of::<ExportLogsServiceRequest>(protobuf)
}

fn of<M: Message + Default + Serialize>(protobuf: &[u8]) -> Vec<u8> {
    // The encoder's messages decode, which its tests show, and every key is a string.
    let decoded = M::decode(protobuf).ok();
    decoded.and_then(|message| serde_json::to_vec(&message).ok()).unwrap_or_default()
}

/// `partialSuccess` of an answer: rejected points and why. Numbers of 64 bits are texts in OTLP/JSON,
/// but not of every receiver.
pub(super) fn partial_success(answer: &[u8]) -> (u64, String) {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let keys = ["rejectedDataPoints", "rejectedLogRecords"];
    let rejected = keys.into_iter().map(|key| &partial[key]).find(|value| !value.is_null());
    let rejected = rejected.and_then(|value| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    });
    let message = partial["errorMessage"].as_str().unwrap_or_default();
    (rejected.unwrap_or(0), crate::delivery::cause::message(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_json_has_its_number_as_text_or_as_number() {
        for number in ["\"7\"", "7"] {
            let answer = format!(
                r#"{{"partialSuccess":{{"rejectedDataPoints":{number},"errorMessage":"old"}}}}"#
            );
            assert_eq!(partial_success(answer.as_bytes()), (7, "old".to_owned()));
        }
        let logs = br#"{"partialSuccess":{"rejectedLogRecords":"2"}}"#;
        assert_eq!(partial_success(logs).0, 2);
        for answer in [
            &b"{}"[..],
            b"",
            b"not json",
            b"[1]",
            br#"{"partialSuccess":{"rejectedDataPoints":-1}}"#,
        ] {
            assert_eq!(partial_success(answer).0, 0);
        }
    }
}
