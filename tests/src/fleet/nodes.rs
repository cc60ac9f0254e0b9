//! The simulated nodes: each has the agent's own sink, and its own name in the resource.

use crate::bench::BenchError;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpuwho::catalog::attributes::{self, AttrSet, HOST_NAME, SERVICE_INSTANCE_ID};
use gpuwho::catalog::{Kind, MetricDef};
use gpuwho::export::otlp::encode::{Encoder, Limits};
use gpuwho::export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho::export::otlp::{OtlpSink, Resource};
use gpuwho::export::{EnrichedBatch, Labels, Point, Report, Sink as _};
use gpuwho::sample::Value;
use std::io::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Devices of a node.
const DEVICES: usize = 8;
/// Gauges of a device, as many as the catalogue has at most.
const GAUGES: usize = 120;
/// Attributes of a point, as in the encoder's benchmark.
const ATTRIBUTES: usize = 12;
/// For the queues of all nodes together at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(30);

/// All nodes.
#[derive(Debug)]
pub struct Fleet {
    sinks: Vec<OtlpSink>,
    /// The same for every node: what differs is the resource.
    batch: EnrichedBatch,
    body_bytes: u64,
}

impl Fleet {
    /// Makes the nodes; each connects with its first request.
    pub fn start(nodes: usize, endpoint: &str) -> Result<Self, BenchError> {
        let batch = batch();
        let raw = RawOtlp { endpoint: Some(endpoint.to_owned()), ..RawOtlp::default() };
        let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None)
            .map_err(|error| BenchError::Needs(error.to_string()))?;
        let mut sinks = Vec::with_capacity(nodes);
        for node in 0..nodes {
            let sink = OtlpSink::start(&settings, &resource(node, &settings));
            sinks.push(sink.map_err(|error| BenchError::Needs(error.to_string()))?);
        }
        let body_bytes = body(&batch, &resource(0, &settings)).map_err(BenchError::os("gzip"))?;
        Ok(Self { sinks, batch, body_bytes })
    }

    /// Lets every node send so often. The nodes are spread over the interval.
    pub fn run(&mut self, every: Duration, ticks: u32) {
        let count = u32::try_from(self.sinks.len()).unwrap_or(u32::MAX).max(1);
        let (began, step) = (Instant::now(), every / count);
        for tick in 0..ticks {
            for (sink, node) in self.sinks.iter_mut().zip(0..count) {
                let due = began + every * tick + step * node;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                touch(&mut self.batch, tick);
                sink.export(&self.batch);
            }
        }
        thread::sleep((began + every * ticks).saturating_duration_since(Instant::now()));
    }

    /// Points by outcome so far.
    pub fn report(&self) -> Report {
        sum(self.sinks.iter().map(OtlpSink::report))
    }

    /// Bytes of one compressed request.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Points of one request.
    pub fn points(&self) -> usize {
        self.batch.points.len()
    }

    /// Sends what waits, within a limit for all together.
    pub fn end(mut self) -> Report {
        let deadline = Instant::now() + FLUSH_WITHIN;
        for sink in &mut self.sinks {
            sink.start_flush(deadline);
        }
        for sink in &mut self.sinks {
            sink.flush(deadline);
        }
        self.report()
    }
}

fn sum(reports: impl Iterator<Item = Report>) -> Report {
    reports.fold(Report::default(), |sum, one| Report {
        taken: sum.taken + one.taken,
        accepted: sum.accepted + one.accepted,
        refused: sum.refused + one.refused,
        undelivered: sum.undelivered + one.undelivered,
        queue_full: sum.queue_full + one.queue_full,
        ..sum
    })
}

fn resource(node: usize, settings: &Settings) -> Resource {
    let mut detected = AttrSet::new();
    let name: Arc<str> = format!("node-{node:05}").into();
    detected.set(&HOST_NAME, Arc::clone(&name));
    detected.set(&SERVICE_INSTANCE_ID, name);
    Resource::new(&detected, settings)
}

/// The points of eight devices, grouped by metric.
fn batch() -> EnrichedBatch {
    let labels: Vec<_> = (0..DEVICES).map(|device| Arc::new(Labels::new(set(device)))).collect();
    let gauges: Vec<&'static MetricDef> =
        gpuwho::catalog::all().filter(|metric| metric.kind == Kind::Gauge).take(GAUGES).collect();
    let mut points = Vec::new();
    for metric in gauges {
        points.extend(labels.iter().map(|labels| Point {
            metric,
            labels: Arc::clone(labels),
            value: None,
            start_ns: 0,
            time_ns: 0,
        }));
    }
    let mut batch = EnrichedBatch { points };
    touch(&mut batch, 0);
    batch
}

fn set(device: usize) -> AttrSet {
    let mut set = AttrSet::new();
    let is_resource = |key: &str| key.starts_with("service.") || key.starts_with("host.");
    let keys = attributes::ALL.iter().filter(|key| !is_resource(key.name)).take(ATTRIBUTES);
    for key in keys {
        set.set(key, Arc::<str>::from(format!("a value of usual length {device:>6}")));
    }
    set
}

/// Another time, and values that differ from those before, so that nothing compresses too well.
fn touch(batch: &mut EnrichedBatch, tick: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ns = u64::try_from(now.as_nanos()).unwrap_or_default();
    for (point, number) in batch.points.iter_mut().zip(0_u32..) {
        point.time_ns = time_ns;
        let mixed =
            (number + 1).wrapping_mul(2_654_435_761).wrapping_add(tick.wrapping_mul(40_503));
        point.value = Some(Value::Double(f64::from(mixed % 100_000) / 100.0));
    }
}

/// The size of a request at the level that the agent uses.
fn body(batch: &EnrichedBatch, resource: &Resource) -> std::io::Result<u64> {
    let (mut bytes, mut result) = (0, Ok(()));
    let mut encoder = Encoder::new(resource, Limits::default());
    encoder.encode(batch, &mut |raw, _| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        match packed.write_all(raw).and_then(|()| packed.finish()) {
            Ok(packed) => bytes += packed.len() as u64,
            Err(error) => result = Err(error),
        }
    });
    result.map(|()| bytes)
}
