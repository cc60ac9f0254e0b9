//! Writes one JSON object a line, for terminals, pipes and files: time, metric, kind, unit, value
//! and attributes of each point; time, event, severity, body and attributes of each event. Writes a
//! batch in one system call, on a thread of its own.

use super::file::FileState;
use super::held::Held;
use super::writer::WriterThread;
use super::{Report, Sink};
use gpuwho_model::catalog::Kind;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet, AttrValue};
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use gpuwho_pipeline::event::record::Record;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use std::io::{self, Write};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Writes lines to standard output or a file.
#[derive(Debug)]
pub struct JsonLines {
    out: WriterThread,
    file: FileState,
    line: Vec<u8>,
    taken: u64,
    not_finite: u64,
}

/// One point.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    time: String,
    metric: &'a str,
    kind: &'a str,
    unit: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    value: Option<Number<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended: bool,
    #[serde(serialize_with = "of_labels")]
    attributes: &'a Labels,
}

/// One event.
#[derive(Serialize)]
pub(super) struct EventLine<'a> {
    time: String,
    observed: String,
    event: &'a str,
    severity: &'a str,
    body: &'a str,
    #[serde(serialize_with = "of_set")]
    attributes: &'a AttrSet,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Number<'a> {
    Int(i64),
    Double(f64),
    Histogram { count: u64, sum: f64, bounds: &'a [f64], counts: &'a [u64] },
}

impl JsonLines {
    /// A sink that writes to `out` on a thread of this name.
    pub fn start(thread: &str, out: impl Write + Send + 'static) -> io::Result<Self> {
        let out = WriterThread::start(thread, out)?;
        Ok(Self { out, file: FileState::default(), line: Vec::new(), taken: 0, not_finite: 0 })
    }

    /// The same into a file of this state.
    pub(super) fn with_state(self, file: FileState) -> Self {
        Self { file, ..self }
    }

    fn push(&mut self, line: &impl Serialize) -> u64 {
        // Writing to a Vec does not fail, and every key is a string.
        if serde_json::to_writer(&mut self.line, line).is_err() {
            return 0;
        }
        self.line.push(b'\n');
        1
    }
}

impl Sink for JsonLines {
    fn export(&mut self, batch: &EnrichedBatch) {
        let mut lines = 0;
        for point in &batch.points {
            match Line::of(point) {
                Some(line) => lines += self.push(&line),
                None => self.not_finite += 1,
            }
        }
        self.taken += batch.points.len() as u64;
        self.out.push(&mut self.line, lines);
    }

    fn export_events(&mut self, records: &[Record]) {
        let lines = records.iter().map(|record| self.push(&EventLine::of(record))).sum();
        self.taken += lines;
        self.out.push(&mut self.line, lines);
    }

    fn flush(&mut self, deadline: Instant) {
        self.out.flush(deadline);
    }

    fn report(&self) -> Report {
        let held = self.file.refusal().map(Held::File);
        Report { taken: self.taken, not_finite: self.not_finite, held, ..self.out.report() }
    }
}

impl<'a> Line<'a> {
    /// `None` for a number that JSON cannot represent.
    pub(super) fn of(point: &'a Point) -> Option<Self> {
        let value = match &point.value {
            None => None,
            Some(Value::Int(number)) => Some(Number::Int(*number)),
            Some(Value::Double(number)) if number.is_finite() => Some(Number::Double(*number)),
            Some(Value::Double(_)) => return None,
            Some(Value::Histogram(histogram)) => Some(Number::Histogram {
                count: histogram.count(),
                sum: histogram.sum,
                bounds: &histogram.bounds,
                counts: &histogram.counts,
            }),
        };
        let cumulative = matches!(point.metric.kind, Kind::Counter | Kind::Histogram);
        Some(Self {
            time: rfc3339(point.time_ns),
            metric: point.metric.name,
            kind: point.metric.kind.as_str(),
            unit: point.metric.unit,
            start: cumulative.then(|| rfc3339(point.start_ns)),
            ended: value.is_none(),
            value,
            attributes: &point.labels,
        })
    }
}

impl<'a> EventLine<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        Self {
            time: rfc3339(record.time_ns),
            observed: rfc3339(record.observed_ns),
            event: record.name,
            severity: record.severity_text,
            body: &record.body,
            attributes: &record.attributes,
        }
    }
}

/// An attribute as JSON.
pub(super) fn attribute(value: &AttrValue) -> serde_json::Value {
    match value {
        AttrValue::Str(text) => (&**text).into(),
        AttrValue::Int(number) => (*number).into(),
        AttrValue::Double(number) => number.get().into(),
    }
}

fn of_labels<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
    put_attributes(&mut labels.iter(), serializer)
}

fn of_set<S: Serializer>(set: &AttrSet, serializer: S) -> Result<S::Ok, S::Error> {
    put_attributes(&mut set.iter(), serializer)
}

fn put_attributes<S: Serializer>(
    attributes: &mut dyn Iterator<Item = (&'static AttrKey, &AttrValue)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (key, value) in attributes {
        match value {
            AttrValue::Str(text) => map.serialize_entry(key.name, &**text)?,
            AttrValue::Int(number) => map.serialize_entry(key.name, number)?,
            AttrValue::Double(number) => map.serialize_entry(key.name, &number.get())?,
        }
    }
    map.end()
}

/// Nanoseconds since the epoch as RFC 3339 in UTC.
fn rfc3339(ns: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes::{GPU_INDEX, GPU_UUID, SOURCE};
    use gpuwho_model::catalog::{agent, device};
    use gpuwho_model::point::Labels;
    use gpuwho_model::sample::Histogram;
    use std::sync::{Arc, Mutex};

    const NOW: u64 = 1_795_219_200_000_000_005;

    fn gpu(metric: &'static gpuwho_model::catalog::MetricDef, value: Option<Value>) -> Point {
        let mut set = AttrSet::new();
        set.set(&GPU_UUID, "GPU-\"1\"");
        set.set(&GPU_INDEX, 3);
        let start_ns = if metric.kind == Kind::Counter { NOW - 5 } else { 0 };
        Point { metric, labels: Arc::new(Labels::new(set)), value, start_ns, time_ns: NOW }
    }

    /// What was written, for a test to look at.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(lines)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(points: Vec<Point>) -> (String, Report) {
        let out = Shared::default();
        let mut sink = JsonLines::start("test", out.clone()).unwrap();
        sink.export(&EnrichedBatch { points });
        sink.flush(Instant::now() + Duration::from_mins(1));
        let text = out.0.lock().unwrap().clone();
        (String::from_utf8(text).unwrap(), sink.report())
    }

    #[test]
    fn gauge_is_one_line_with_its_attributes() {
        let (text, _) = written(vec![gpu(device::POWER.def(), Some(Value::Double(61.5)))]);
        assert_eq!(
            text,
            "{\"time\":\"2026-11-21T00:00:00.000000005Z\",\"metric\":\"gpu.power\",\
             \"kind\":\"gauge\",\"unit\":\"W\",\"value\":61.5,\
             \"attributes\":{\"gpu.uuid\":\"GPU-\\\"1\\\"\",\"gpu.index\":3}}\n"
        );
    }

    #[test]
    fn a_counter_has_its_start_and_an_ended_series_is_marked() {
        let (text, _) = written(vec![gpu(device::ENERGY.def(), None)]);
        assert!(
            text.contains(
                "\"start\":\"2026-11-21T00:00:00.000000000Z\",\"value\":null,\"ended\":true"
            ),
            "{text}"
        );
    }

    #[test]
    fn histogram_value_is_an_object() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        histogram.observe(0.5);
        let mut set = AttrSet::new();
        set.set(&SOURCE, "nvidia");
        let point = Point {
            metric: agent::SOURCE_DURATION.def(),
            labels: Arc::new(Labels::new(set)),
            value: Some(Value::Histogram(Box::new(histogram))),
            start_ns: NOW,
            time_ns: NOW,
        };
        let (text, _) = written(vec![point]);
        assert!(
            text.contains(
                "\"value\":{\"count\":1,\"sum\":0.5,\"bounds\":[0.1,1.0],\"counts\":[0,1,0]}"
            ),
            "{text}"
        );
    }

    #[test]
    fn infinite_value_is_left_out_and_counted() {
        let (text, report) =
            written(vec![gpu(device::POWER.def(), Some(Value::Double(f64::INFINITY)))]);
        assert_eq!((text.as_str(), report.not_finite, report.accepted), ("", 1, 0));
    }

    #[test]
    fn dates_are_civil_in_leap_years_and_centuries() {
        let at = |seconds: u64| rfc3339(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000000Z");
    }
}
