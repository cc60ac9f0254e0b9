//! What becomes of encoded requests before they are sent: CPU time per 10,000 points of compression, of
//! storing in the spool and of taking from it. `cargo bench -p gpuwho --bench delivery`.
//!
//! A point has twelve attributes and a value of its own. The spool is in the folder for temporary files;
//! the time that its disk takes is not CPU time of this thread and is printed beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

use gpuwho::catalog::attributes::{self, AttrSet};
use gpuwho::catalog::{self, Kind};
use gpuwho::export::otlp::Resource;
use gpuwho::export::otlp::encode::{Encoder, Limits};
use gpuwho::export::otlp::settings::{Compression, RawOtlp, Settings, Signal};
use gpuwho::export::spool::{self, Spool};
use gpuwho::export::{EnrichedBatch, Labels, Point};
use gpuwho::sample::Value;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const DEVICES: u32 = 800;
const GAUGES: usize = 12;
const ATTRIBUTES: usize = 12;
/// Runs; the median is printed.
const RUNS: usize = 31;

fn main() {
    let requests = requests();
    let points: u64 = requests.iter().map(|(_, points)| points).sum();
    println!("per 10,000 points           CPU ms  elapsed ms      bytes");
    let print = |name: &str, [cpu, elapsed]: [f64; 2], bytes: usize| {
        let scale = 10_000.0 / points as f64;
        let bytes = bytes as f64 * scale;
        println!("{name:<24} {:>9.3}  {:>10.3}  {bytes:>9.0}", cpu * scale, elapsed * scale);
    };
    let mut packed = Vec::new();
    for (name, compression) in [("gzip", Compression::Gzip), ("zstd", Compression::Zstd)] {
        let compress = || -> Vec<Vec<u8>> {
            requests.iter().map(|(raw, _)| compression.compress(raw).unwrap()).collect()
        };
        packed = compress();
        let took = median(|| drop(black_box(compress())));
        print(name, took, packed.iter().map(Vec::len).sum());
    }
    let folder = tempfile::tempdir().unwrap();
    let limits = spool::Limits { bytes: 1 << 30, age: Duration::from_hours(1) };
    let (mut spool, _) = Spool::open(folder.path(), limits).unwrap();
    let bytes = packed.iter().map(Vec::len).sum();
    let took = median(|| {
        for (body, (_, points)) in packed.iter().zip(&requests) {
            assert!(spool.store(SystemTime::now(), 1, *points, body).unwrap());
        }
    });
    print("spool, store (zstd)", took, bytes);
    let took = median(|| {
        for _ in &packed {
            let taken = spool.take(SystemTime::now()).unwrap().unwrap();
            spool.done(black_box(taken).points, 0);
        }
    });
    print("spool, take and done", took, bytes);
}

/// CPU and elapsed milliseconds of the median run.
fn median(mut run: impl FnMut()) -> [f64; 2] {
    let mut all: Vec<[f64; 2]> = (0..RUNS)
        .map(|_| {
            let (cpu, began) = (thread_millis(), Instant::now());
            run();
            [thread_millis() - cpu, began.elapsed().as_secs_f64() * 1e3]
        })
        .collect();
    all.sort_by(|one, other| one[0].total_cmp(&other[0]));
    all[RUNS / 2]
}

fn thread_millis() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = time.tv_sec.unsigned_abs();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap()).as_secs_f64() * 1e3
}

/// Encoded requests with their points.
fn requests() -> Vec<(Vec<u8>, u64)> {
    let labels: Vec<_> = (0..DEVICES)
        .map(|device| {
            let mut set = AttrSet::new();
            for key in attributes::ALL.iter().take(ATTRIBUTES) {
                set.set(key, format!("a value of usual length {device:>6}").as_str());
            }
            Arc::new(Labels::new(set))
        })
        .collect();
    let gauges = catalog::all().filter(|metric| metric.kind == Kind::Gauge).take(GAUGES);
    let mut points = Vec::new();
    for (metric, nth) in gauges.zip(1_u32..) {
        points.extend(labels.iter().zip(0_u32..).map(|(labels, device)| Point {
            metric,
            labels: Arc::clone(labels),
            // No two alike, as of real gauges.
            value: Some(Value::Double(f64::from(device * nth).sqrt())),
            start_ns: 0,
            time_ns: 1_795_219_200_000_000_000,
        }));
    }
    let raw = RawOtlp::default();
    let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None).unwrap();
    let mut encoder = Encoder::new(&Resource::new(&AttrSet::new(), &settings), Limits::default());
    let mut requests = Vec::new();
    let mut keep = |body: &[u8], points: usize| requests.push((body.to_vec(), points as u64));
    encoder.encode(&EnrichedBatch { points }, &mut keep);
    requests
}
