//! The simulated nodes: each has the agent's own sink, its own name in the resource, and its own labels.

use crate::bench::BenchError;
use gpuwho_export::otlp::OtlpSink;
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_export::{Report, Sink as _};
use gpuwho_model::catalog::attributes::{self, AttrSet, HOST_NAME, SERVICE_INSTANCE_ID};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Devices of a node.
const DEVICES: usize = 8;
/// Metrics of a device: with the default level it has 159 at most, and an owner's process on it 51 more.
const METRICS: usize = 160;
/// Attributes of a point, as in the encoder's benchmark.
const ATTRIBUTES: usize = 12;
/// For the queues of all nodes together at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(30);
/// The fractional part of the golden ratio, of 2^32: its multiples are spread without order.
const GOLDEN: u32 = 2_654_435_769;

/// All nodes, by when in the interval they send.
#[derive(Debug)]
pub struct Fleet {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    sink: OtlpSink,
    batch: EnrichedBatch,
    /// When in the interval, of 2^32.
    phase: u32,
}

impl Fleet {
    /// Makes the nodes; each connects with its first request.
    pub fn start(nodes: usize, endpoint: &str) -> Result<Self, BenchError> {
        let needs = |error: &dyn std::fmt::Display| BenchError::Needs(error.to_string());
        let raw = RawOtlp { endpoint: Some(endpoint.to_owned()), ..RawOtlp::default() };
        let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None)
            .map_err(|error| needs(&error))?;
        let start_ns = now();
        let make = |(node, phase): (usize, u32)| {
            let name = format!("node-{node:05}");
            let sink = OtlpSink::start(&settings, &resource(&name, &settings))
                .map_err(|error| needs(&error))?;
            Ok(Node { sink, batch: batch(&name, start_ns), phase: phase.wrapping_mul(GOLDEN) })
        };
        let mut nodes = (0..nodes).zip(0..).map(make).collect::<Result<Vec<_>, BenchError>>()?;
        nodes.sort_by_key(|node| node.phase);
        Ok(Self { nodes })
    }

    /// Series of all nodes.
    pub fn series(&self) -> u64 {
        self.nodes.iter().map(|node| node.batch.points.len() as u64).sum()
    }

    /// Lets every node send so often, each at its own moment of the interval.
    pub fn run(&mut self, every: Duration, ticks: u32) {
        let began = Instant::now();
        for tick in 0..ticks {
            for node in &mut self.nodes {
                let phase = every.mul_f64(f64::from(node.phase) / f64::from(u32::MAX));
                let due = began + every * tick + phase;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                touch(&mut node.batch);
                node.sink.export(&node.batch);
            }
        }
        thread::sleep((began + every * ticks).saturating_duration_since(Instant::now()));
    }

    /// Points by outcome so far.
    pub fn report(&self) -> Report {
        self.nodes.iter().fold(Report::default(), |sum, node| {
            let one = node.sink.report();
            Report {
                taken: sum.taken + one.taken,
                accepted: sum.accepted + one.accepted,
                refused: sum.refused + one.refused,
                undelivered: sum.undelivered + one.undelivered,
                queue_full: sum.queue_full + one.queue_full,
                ..sum
            }
        })
    }

    /// Sends what waits, within a limit for all together.
    pub fn flush(&mut self) -> Report {
        let deadline = Instant::now() + FLUSH_WITHIN;
        for node in &mut self.nodes {
            node.sink.start_flush(deadline);
        }
        for node in &mut self.nodes {
            node.sink.flush(deadline);
        }
        self.report()
    }
}

fn resource(name: &str, settings: &Settings) -> Resource {
    let mut detected = AttrSet::new();
    let name: Arc<str> = name.into();
    detected.set(&HOST_NAME, Arc::clone(&name));
    detected.set(&SERVICE_INSTANCE_ID, name);
    Resource::new(&detected, &settings.resource_attributes)
}

/// The points of the devices, grouped by metric.
fn batch(node: &str, start_ns: u64) -> EnrichedBatch {
    let labels = |device| Arc::new(Labels::new(set(node, device)));
    let labels: Vec<_> = (0..DEVICES).map(labels).collect();
    let numbers = gpuwho_model::catalog::all().filter(|metric| metric.kind != Kind::Histogram);
    let point = |metric: &'static MetricDef| {
        let start_ns = if metric.kind == Kind::Counter { start_ns } else { 0 };
        let of = |labels| Point { metric, labels, value: None, start_ns, time_ns: 0 };
        labels.clone().into_iter().map(of).collect::<Vec<_>>()
    };
    EnrichedBatch { points: numbers.take(METRICS).flat_map(point).collect() }
}

fn set(node: &str, device: usize) -> AttrSet {
    let mut set = AttrSet::new();
    let is_resource = |key: &str| key.starts_with("service.") || key.starts_with("host.");
    let keys = attributes::ALL.iter().filter(|key| !is_resource(key.name)).take(ATTRIBUTES);
    for key in keys {
        set.set(key, Arc::<str>::from(format!("{node}, of usual length {device:>6}")));
    }
    set
}

/// The present time, and values that a counter may have and that do not compress too well.
fn touch(batch: &mut EnrichedBatch) {
    let time_ns = now();
    for (point, number) in batch.points.iter_mut().zip(1_u32..) {
        point.time_ns = time_ns;
        let step = f64::from(number.wrapping_mul(GOLDEN) % 100_000) / 100.0;
        let before = match point.value {
            Some(Value::Double(before)) => before,
            _ => 0.0,
        };
        point.value = Some(Value::Double(before + step));
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_series_is_there_once_and_counters_only_grow() {
        let mut batch = batch("node-00001", 7);
        touch(&mut batch);
        let before = batch.clone();
        touch(&mut batch);
        assert_eq!(batch.points.len(), DEVICES * METRICS);
        let key = |point: &Point| (point.metric.name, Arc::as_ptr(&point.labels));
        assert_eq!(batch.points.iter().map(key).collect::<HashSet<_>>().len(), batch.points.len());
        let value = |point: &Point| match point.value {
            Some(Value::Double(value)) => value,
            _ => f64::NAN,
        };
        assert!(before.points.iter().zip(&batch.points).all(|(a, b)| value(a) <= value(b)));
        let counters = batch.points.iter().filter(|point| point.metric.kind == Kind::Counter);
        assert!(
            counters.clone().count() > 0 && counters.into_iter().all(|point| point.start_ns == 7)
        );
    }
}
