//! Sends events as OTLP log records: one `ExportLogsServiceRequest` for the events of a tick, with
//! the same connection code and retries as the points, and a queue of its own.
//!
//! Events are rare, so no encoded form is cached. Memory is bounded by [`QUEUE_BYTES`].

use super::encode::put_attribute;
use super::settings::Settings;
use super::wire::{VARINT, framed_len, put_bytes, put_fixed64, put_frame, put_varint, tag};
use super::{LOGS, LOGS_JSON, json, start};
use crate::delivery::body::Encoding;
use crate::delivery::{self, Delivery, StartError};
use crate::resource::Resource;
use crate::spool::SpoolFolder;
use crate::{Report, Sink};
use gpuwho_model::point::EnrichedBatch;
use gpuwho_pipeline::event::record::Record;
use std::time::{Duration, Instant};

/// `LogRecord.attributes`.
const ATTRIBUTES: u8 = 6;
/// Largest number of bytes of records that wait for the receiver: some thousand records.
const QUEUE_BYTES: usize = 1 << 20;

/// Sends events to one OTLP receiver.
#[derive(Debug)]
pub struct LogsSink {
    /// `ResourceLogs.resource`, encoded.
    resource: Box<[u8]>,
    /// `ScopeLogs.scope`, encoded.
    scope: Box<[u8]>,
    encoding: Encoding,
    queue: Delivery,
}

impl LogsSink {
    /// Starts the sender. `settings` are those of [`super::settings::Signal::Logs`].
    pub fn start(settings: &Settings, resource: &Resource) -> Result<Self, StartError> {
        Self::with_spool("export:otlp-logs", settings, resource, None)
    }

    /// The same with a thread's name, and what has waited on disk.
    pub fn with_spool(
        thread: &str,
        settings: &Settings,
        resource: &Resource,
        spool: Option<SpoolFolder>,
    ) -> Result<Self, StartError> {
        let receiver = delivery::settings::Settings {
            queue_bytes: settings.receiver.queue_bytes.min(QUEUE_BYTES),
            // An event is sent at once.
            spread: Duration::ZERO,
            ..settings.receiver.clone()
        };
        let [resource, scope] = super::encode::sender(resource);
        let encoding = settings.encoding(LOGS, LOGS_JSON);
        let queue = start(thread, settings.protocol, &receiver, spool)?;
        Ok(Self { resource, scope, encoding, queue })
    }

    fn encode(&self, records: &[Record]) -> Vec<u8> {
        let mut inner = self.scope.to_vec();
        for record in records {
            put_bytes(&mut inner, 2, &encoded(record));
        }
        let mut out = Vec::new();
        put_frame(&mut out, 1, self.resource.len() + framed_len(inner.len()));
        out.extend_from_slice(&self.resource);
        put_bytes(&mut out, 2, &inner);
        out
    }
}

impl Sink for LogsSink {
    /// Ignores points: [`super::OtlpSink`] sends them.
    fn export(&mut self, _batch: &EnrichedBatch) {}

    fn export_events(&mut self, records: &[Record]) {
        let mut raw = self.encode(records);
        if self.encoding.format == LOGS_JSON {
            raw = json::logs(&raw);
        }
        self.queue.push(&raw, self.encoding, records.len() as u64);
    }

    fn start_flush(&mut self, deadline: Instant) {
        self.queue.close(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        self.queue.flush(deadline);
    }

    fn report(&self) -> Report {
        self.queue.report(0)
    }
}

/// A `LogRecord`, its fields in ascending order.
fn encoded(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    put_fixed64(&mut out, 1, record.time_ns.to_le_bytes());
    out.push(tag(2, VARINT));
    put_varint(&mut out, u64::from(record.severity));
    put_bytes(&mut out, 3, record.severity_text.as_bytes());
    let mut body = Vec::new();
    put_bytes(&mut body, 1, record.body.as_bytes());
    put_bytes(&mut out, 5, &body);
    for (key, value) in record.attributes.iter() {
        put_attribute(&mut out, ATTRIBUTES, key.name, value);
    }
    put_fixed64(&mut out, 11, record.observed_ns.to_le_bytes());
    put_bytes(&mut out, 12, record.name.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::settings::{RawOtlp, Signal};
    use gpuwho_model::catalog::attributes::{AttrSet, GPU_UUID, GPU_XID_CODE};
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
    use opentelemetry_proto::tonic::logs::v1::LogRecord;
    use prost::Message as _;

    fn text(text: &str) -> AnyValue {
        AnyValue { value: Some(any_value::Value::StringValue(text.into())) }
    }

    #[test]
    fn a_record_follows_the_protocol() {
        let mut attributes = AttrSet::new();
        attributes.set(&GPU_UUID, "GPU-0");
        attributes.set(&GPU_XID_CODE, 79);
        let record = Record {
            name: "an.event",
            severity: 21,
            severity_text: "critical",
            time_ns: 1_795_219_200_000_000_005,
            observed_ns: 1_795_219_200_100_000_000,
            body: "NVRM: Xid ä".into(),
            attributes,
        };
        let flags = RawOtlp { endpoint: Some("http://127.0.0.1:1".into()), ..RawOtlp::default() };
        let settings = Settings::resolve(Signal::Logs, &flags, &RawOtlp::default(), &|_| None);
        let settings = settings.unwrap();
        let resource = Resource::new(&AttrSet::new(), &[]);
        let sink = LogsSink::start(&settings, &resource).unwrap();
        let request = ExportLogsServiceRequest::decode(&*sink.encode(&[record.clone(), record]));
        let request = request.unwrap();
        let [resource] = &request.resource_logs[..] else { panic!("one resource") };
        let about = resource.resource.as_ref().unwrap();
        assert_eq!(about.attributes[0].value, Some(text("gpuwho")));
        let [scope] = &resource.scope_logs[..] else { panic!("one scope") };
        assert_eq!(scope.scope.as_ref().unwrap().name, "gpuwho");
        let number = AnyValue { value: Some(any_value::Value::IntValue(79)) };
        let of = |key: &str, value| KeyValue {
            key: key.into(),
            value: Some(value),
            ..KeyValue::default()
        };
        let expected = LogRecord {
            time_unix_nano: 1_795_219_200_000_000_005,
            observed_time_unix_nano: 1_795_219_200_100_000_000,
            severity_number: 21,
            severity_text: "critical".into(),
            body: Some(text("NVRM: Xid ä")),
            attributes: vec![of("gpu.uuid", text("GPU-0")), of("gpu.xid.code", number)],
            event_name: "an.event".into(),
            ..LogRecord::default()
        };
        assert_eq!(scope.log_records, [expected.clone(), expected]);
    }
}
