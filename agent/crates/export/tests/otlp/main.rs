//! The OTLP sink against receivers in this process that behave well and badly.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod allocations;
mod delivery;
mod grpc;
mod http;
mod log;
mod receiver;
mod telemetry;
mod tls;
mod webhook;

use gpuwho_export::delivery::settings::Backoff;
use gpuwho_export::otlp::OtlpSink;
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_export::{Report, Sink as _};
use gpuwho_model::catalog::attributes::{AttrSet, GPU_UUID};
use gpuwho_model::catalog::device;
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ends a test that waits for what never comes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Settings for a receiver, with waits a test can sit out.
fn settings(raw: &RawOtlp) -> Settings {
    let none = RawOtlp::default();
    let mut settings = Settings::resolve(Signal::Metrics, raw, &none, &|_| None).unwrap();
    settings.receiver.backoff =
        Backoff { first: Duration::from_millis(5), max: Duration::from_millis(20) };
    settings
}

fn raw(endpoint: &str) -> RawOtlp {
    RawOtlp { endpoint: Some(endpoint.to_owned()), ..RawOtlp::default() }
}

fn sink(raw: &RawOtlp) -> OtlpSink {
    log::capture();
    let settings = settings(raw);
    OtlpSink::start(&settings, &Resource::new(&AttrSet::new(), &settings.resource_attributes))
        .unwrap()
}

/// One point read at `time_ns`.
fn batch(time_ns: u64) -> EnrichedBatch {
    points(time_ns, 1)
}

/// Points of as many devices, all read at `time_ns`.
fn points(time_ns: u64, devices: usize) -> EnrichedBatch {
    let point = |n: usize| {
        let mut set = AttrSet::new();
        set.set(&GPU_UUID, format!("GPU-{n}").as_str());
        Point {
            metric: device::POWER.def(),
            labels: Arc::new(Labels::new(set)),
            value: Some(Value::Double(100.0)),
            start_ns: 0,
            time_ns,
        }
    };
    EnrichedBatch { points: (0..devices).map(point).collect() }
}

/// Waits until everything is sent, and ends the sink.
fn finish(sink: &mut OtlpSink) -> Report {
    sink.flush(Instant::now() + TIMEOUT);
    sink.report()
}
