//! The encoder against the OpenTelemetry SDK on the same points: CPU time and allocations of one
//! export, without compression and network.
//!
//! The SDK's side is its fastest form that needs no experimental instrument: observable gauges
//! whose attributes are kept as shared strings, collected, turned into the generated protobuf
//! types and encoded with prost, as its OTLP exporter does. `cargo bench -p gpuwho --bench encode` prints
//! rows of `agent/docs/benchmarks.md`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

use gpuwho_export::otlp::encode::{Encoder, Limits};
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_model::catalog::attributes::{self, AttrKey, AttrSet};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::{KeyValue, StringValue};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Temporality,
};
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Gauges of one device.
const GAUGES: usize = 12;
/// Attributes of one point.
const ATTRIBUTES: usize = 12;
/// Exports measured; the median is reported.
const RUNS: usize = 51;
/// Times less CPU than the SDK.
const TARGET: f64 = 100.0;

fn main() {
    for devices in [80, 800] {
        let [ours, sdk] = [ours(devices), sdk(devices)];
        let times = sdk.micros / ours.micros;
        println!(
            "| encoding {} points | {:.0} µs, allocations: {}, {} B; the SDK {:.0} µs, allocations: {}, {} B; {times:.0} \
             times as much | ≥ {TARGET:.0} times | {} |",
            devices * GAUGES,
            ours.micros,
            ours.allocations,
            ours.bytes,
            sdk.micros,
            sdk.allocations,
            sdk.bytes,
            if times >= TARGET { "met" } else { "MISSED" },
        );
    }
}

/// Cost of one export.
struct Cost {
    micros: f64,
    allocations: u64,
    bytes: usize,
}

fn measure(mut export: impl FnMut() -> usize) -> Cost {
    let bytes = export();
    let mut micros: Vec<f64> = (0..RUNS)
        .map(|_| {
            let before = thread_micros();
            black_box(export());
            thread_micros() - before
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    let allocated = allocation_counter::measure(|| {
        black_box(export());
    });
    Cost { micros: micros[RUNS / 2], allocations: allocated.count_total, bytes }
}

fn thread_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap()).as_secs_f64()
        * 1e6
}

fn gauges() -> Vec<&'static MetricDef> {
    let all = gpuwho_model::catalog::all().filter(|metric| metric.kind == Kind::Gauge);
    let gauges: Vec<_> = all.take(GAUGES).collect();
    assert_eq!(gauges.len(), GAUGES, "the catalogue has too few gauges");
    gauges
}

/// The attributes of one device's points, alike on both sides.
fn attributes_of(device: usize) -> Vec<(&'static AttrKey, Arc<str>)> {
    let keys = attributes::ALL.iter().take(ATTRIBUTES);
    keys.map(|key| (*key, format!("a value of usual length {device:>6}").into())).collect()
}

fn ours(devices: usize) -> Cost {
    let labels: Vec<_> = (0..devices)
        .map(|device| {
            let mut set = AttrSet::new();
            for (key, value) in attributes_of(device) {
                set.set(key, value);
            }
            Arc::new(Labels::new(set))
        })
        .collect();
    let mut points = Vec::new();
    for metric in gauges() {
        points.extend(labels.iter().zip(0_u32..).map(|(labels, device)| Point {
            metric,
            labels: Arc::clone(labels),
            value: Some(Value::Double(f64::from(device) + 0.5)),
            start_ns: 0,
            time_ns: 1_795_219_200_000_000_000,
        }));
    }
    let batch = EnrichedBatch { points };
    let raw = RawOtlp::default();
    let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None).unwrap();
    let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
    let mut encoder = Encoder::new(&resource, Limits::default());
    measure(|| {
        let mut bytes = 0;
        encoder.encode(&batch, &mut |body, _| bytes += black_box(body).len());
        bytes
    })
}

fn sdk(devices: usize) -> Cost {
    let reader = Shared(Arc::new(ManualReader::builder().build()));
    let provider = SdkMeterProvider::builder().with_reader(reader.clone()).build();
    let meter = provider.meter("gpuwho");
    let labels: Arc<Vec<Vec<KeyValue>>> = Arc::new(
        (0..devices)
            .map(|device| {
                attributes_of(device)
                    .into_iter()
                    .map(|(key, value)| KeyValue::new(key.name, StringValue::from(value)))
                    .collect()
            })
            .collect(),
    );
    for metric in gauges() {
        let labels = Arc::clone(&labels);
        meter
            .f64_observable_gauge(metric.name)
            .with_description(metric.description)
            .with_unit(metric.unit)
            .with_callback(move |gauge| {
                for (labels, device) in labels.iter().zip(0_u32..) {
                    gauge.observe(f64::from(device) + 0.5, labels);
                }
            })
            .build();
    }
    let mut collected = ResourceMetrics::default();
    measure(|| {
        reader.collect(&mut collected).unwrap();
        black_box(ExportMetricsServiceRequest::from(&collected).encode_to_vec()).len()
    })
}

/// A reader that the provider and the benchmark both hold.
#[derive(Clone, Debug)]
struct Shared(Arc<ManualReader>);

impl MetricReader for Shared {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
