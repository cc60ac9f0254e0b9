//! What becomes of a tick's points: CPU time per 10,000 of them of encoding and compressing for OTLP, of the
//! pages for Prometheus beside those of the `prometheus-client` crate, of storing in the spool and taking
//! from it, and the memory of 100,000 series. `cargo bench -p gpuwho --bench delivery` prints rows of
//! `agent/docs/benchmarks.md`.
//!
//! A point has twelve attributes and a value of its own, which changes with each run. gRPC's body is that of
//! HTTP behind five bytes. The spool is in the folder for temporary files; the time that its disk takes is
//! not CPU time of this thread and is printed beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

use gpuwho_export::delivery::body::Compression;
use gpuwho_export::otlp::encode::{Encoder, Limits};
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::prometheus::Pages;
use gpuwho_export::resource::Resource;
use gpuwho_export::spool::{self, Spool};
use gpuwho_model::catalog::attributes::{self, AttrSet};
use gpuwho_model::catalog::{self, Kind, MetricDef};
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

const DEVICES: u32 = 800;
const MANY_DEVICES: u32 = 8_334;
const GAUGES: usize = 12;
const ATTRIBUTES: usize = 12;
/// Runs; the median is printed.
const RUNS: usize = 31;
/// Times less CPU than the crate.
const TARGET: f64 = 5.0;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some([_, name]) = arguments.iter().position(|a| a == ALONE).map(|at| &arguments[at..]) {
        let work = MEMORY.iter().find(|(known, _)| known == name).unwrap().1;
        return work();
    }
    let points = push();
    pull(points);
    for (name, _) in MEMORY {
        // In a process of its own: memory that is free again stays resident.
        let own = std::env::current_exe().unwrap();
        let output = std::process::Command::new(own).args([ALONE, name]).output().unwrap();
        let resident = String::from_utf8_lossy(&output.stdout);
        println!("| {} series, {name} | {} MB RSS |", MANY_DEVICES * 12, resident.trim());
    }
}

/// The flag of a process that measures memory.
const ALONE: &str = "--memory-of";

/// Prints what is resident more than before while the work's result is alive.
type Work = fn();
const MEMORY: &[(&str, Work)] = &[
    ("gpuwho, points and labels", || print_resident(|| Ours::new(MANY_DEVICES))),
    ("gpuwho, with a page of text", || print_resident(|| Ours::new(MANY_DEVICES).with_page())),
    ("prometheus-client", || print_resident(|| Client::new(MANY_DEVICES).updated())),
    ("prometheus-client, with a page", || print_resident(|| Client::new(MANY_DEVICES).with_page())),
];

fn print(name: &str, [cpu, elapsed]: [f64; 2], points: u64, bytes: usize) {
    let scale = 10_000.0 / points as f64;
    let bytes = match bytes {
        0 => String::new(),
        bytes => format!(", {:.0} B", bytes as f64 * scale),
    };
    println!("| {name} | {:.2} ms ({:.2} ms elapsed){bytes} |", cpu * scale, elapsed * scale);
}

/// OTLP and the spool; returns the number of points.
fn push() -> u64 {
    let labels = labels(DEVICES);
    let raw = RawOtlp::default();
    let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None).unwrap();
    let mut encoder = Encoder::new(
        &Resource::new(&AttrSet::new(), &settings.resource_attributes),
        Limits::default(),
    );
    let mut requests: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut run = 0;
    let mut encode = |requests: &mut Vec<(Vec<u8>, u64)>, compression: Compression| {
        run += 1;
        let batch = batch(&labels, run);
        requests.clear();
        let mut keep = |body: &[u8], points: usize| {
            requests.push((compression.compress(body).unwrap(), points as u64));
        };
        timed(|| encoder.encode(&batch, &mut keep))
    };
    for (name, compression) in [
        ("OTLP, not compressed", Compression::None),
        ("OTLP, gzip", Compression::Gzip),
        ("OTLP, zstd", Compression::Zstd),
    ] {
        let took = median(|| encode(&mut requests, compression));
        let points = requests.iter().map(|(_, points)| points).sum();
        print(name, took, points, requests.iter().map(|(body, _)| body.len()).sum());
    }
    let points = requests.iter().map(|(_, points)| points).sum();
    let bytes = requests.iter().map(|(body, _)| body.len()).sum();
    let folder = tempfile::tempdir().unwrap();
    let limits = spool::Limits { bytes: 1 << 30, age: Duration::from_hours(1) };
    let (mut spool, _) = Spool::open(folder.path(), limits).unwrap();
    let took = median(|| {
        timed(|| {
            for (body, points) in &requests {
                assert!(spool.store(SystemTime::now(), 1, *points, body).unwrap());
            }
        })
    });
    print("spool, store (zstd)", took, points, bytes);
    let took = median(|| {
        timed(|| {
            for _ in &requests {
                let taken = spool.take(SystemTime::now()).unwrap().unwrap();
                spool.done(black_box(taken).points, 0);
            }
        })
    });
    print("spool, take and done", took, points, bytes);
    points
}

/// The endpoint's pages: what a tick adds, and what a scrape costs; then the crate's.
fn pull(points: u64) {
    let labels = labels(DEVICES);
    let mut pages = Pages::new(&AttrSet::new());
    let mut run = 0;
    let mut update = |pages: &mut Pages| {
        run += 1;
        let batch = batch(&labels, run);
        timed(|| pages.update(&batch))
    };
    let tick = median(|| update(&mut pages));
    print("Prometheus, points of a tick", tick, points, 0);
    for (name, open_metrics, is_gzip) in [
        ("Prometheus, text", false, false),
        ("Prometheus, OpenMetrics", true, false),
        ("Prometheus, text, gzip", false, true),
    ] {
        let mut bytes = 0;
        let took = median(|| {
            update(&mut pages);
            timed(|| bytes = black_box(pages.page(open_metrics, is_gzip)).unwrap().len())
        });
        print(name, took, points, bytes);
        if !is_gzip && !open_metrics {
            let mut client = Client::new(DEVICES);
            let mut bytes = 0;
            let set = median(|| timed(|| client.update()));
            print("prometheus-client, values", set, points, 0);
            let page = median(|| timed(|| bytes = client.page().len()));
            print("prometheus-client, page", page, points, bytes);
            let ratio = (set[0] + page[0]) / (tick[0] + took[0]);
            let verdict = if ratio >= TARGET { "met" } else { "MISSED" };
            println!(
                "| prometheus-client, values and page | {ratio:.1} times as much as gpuwho, points and text \
                 | ≥ {TARGET} times | {verdict} |"
            );
        }
    }
}

type Set = Vec<(&'static str, String)>;

/// The same series in the crate's registry, as its users write it: a family of gauges by labels.
struct Client {
    registry: Registry,
    families: Vec<Family<Set, Gauge<f64, AtomicU64>>>,
    labels: Vec<Set>,
    run: u32,
}

impl Client {
    fn new(devices: u32) -> Self {
        let mut registry = Registry::default();
        let families = gauges()
            .map(|metric| {
                let family = Family::<Set, Gauge<f64, AtomicU64>>::default();
                registry.register(metric.name.replace('.', "_"), metric.name, family.clone());
                family
            })
            .collect();
        let names = attributes::ALL.iter().take(ATTRIBUTES).map(|key| key.name);
        let labels = (0..devices).map(|device| names.clone().map(|n| (n, text(device))).collect());
        Self { labels: labels.collect(), registry, families, run: 0 }
    }

    fn update(&mut self) {
        self.run += 1;
        for (family, nth) in self.families.iter().zip(1_u32..) {
            for (labels, device) in self.labels.iter().zip(0_u32..) {
                family.get_or_create(labels).set(value(device, nth, self.run));
            }
        }
    }

    fn updated(mut self) -> Self {
        self.update();
        self
    }

    fn with_page(self) -> (Self, String) {
        let client = self.updated();
        let page = client.page();
        (client, page)
    }

    fn page(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }
}

/// What the agent holds of so many devices' series.
struct Ours {
    _labels: Vec<Vec<Arc<Labels>>>,
    pages: Pages,
}

impl Ours {
    fn new(devices: u32) -> Self {
        let labels = labels(devices);
        let mut pages = Pages::new(&AttrSet::new());
        pages.update(&batch(&labels, 1));
        Self { _labels: labels, pages }
    }

    fn with_page(mut self) -> Self {
        black_box(self.pages.page(false, false).unwrap());
        self
    }
}

fn print_resident<T>(work: impl FnOnce() -> T) {
    let before = statm_mb();
    let alive = work();
    println!("{:.1}", statm_mb() - before);
    drop(black_box(alive));
}

fn statm_mb() -> f64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0 / 1e6
}

/// CPU and elapsed milliseconds of work.
fn timed(work: impl FnOnce()) -> [f64; 2] {
    let (cpu, began) = (thread_millis(), Instant::now());
    work();
    [thread_millis() - cpu, began.elapsed().as_secs_f64() * 1e3]
}

/// The median run by CPU time.
fn median(mut run: impl FnMut() -> [f64; 2]) -> [f64; 2] {
    let mut all: Vec<[f64; 2]> = (0..RUNS).map(|_| run()).collect();
    all.sort_by(|one, other| one[0].total_cmp(&other[0]));
    all[RUNS / 2]
}

fn thread_millis() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = time.tv_sec.unsigned_abs();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap()).as_secs_f64() * 1e3
}

fn text(device: u32) -> String {
    format!("a value of usual length {device:>6}")
}

/// No two alike, as of real gauges.
fn value(device: u32, nth: u32, run: u32) -> f64 {
    f64::from(device * nth + run).sqrt()
}

fn gauges() -> impl Iterator<Item = &'static MetricDef> {
    catalog::all().filter(|metric| metric.kind == Kind::Gauge).take(GAUGES)
}

fn labels(devices: u32) -> Vec<Vec<Arc<Labels>>> {
    let of = |device| {
        let mut set = AttrSet::new();
        for key in attributes::ALL.iter().take(ATTRIBUTES) {
            set.set(key, text(device).as_str());
        }
        Arc::new(Labels::new(set))
    };
    // Each series has its own labels, as in the agent.
    (0..GAUGES).map(|_| (0..devices).map(of).collect()).collect()
}

fn batch(labels: &[Vec<Arc<Labels>>], run: u32) -> EnrichedBatch {
    let mut points = Vec::new();
    for ((metric, labels), nth) in gauges().zip(labels).zip(1_u32..) {
        points.extend(labels.iter().zip(0_u32..).map(|(labels, device)| Point {
            metric,
            labels: Arc::clone(labels),
            value: Some(Value::Double(value(device, nth, run))),
            start_ns: 0,
            time_ns: 1_795_219_200_000_000_000,
        }));
    }
    EnrichedBatch { points }
}
