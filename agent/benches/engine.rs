//! The reader of engines' pages: CPU time and allocations of one recorded page. Each series becomes a
//! metric's, and buckets a histogram. `cargo bench -p gpuwho --bench engine` prints rows of
//! `agent/docs/benchmarks.md`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

use gpuwho_engines::page::PageReader;
use gpuwho_model::sample::Batch;
use gpuwho_owners::engines::{EngineFacts, Engines};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::{Duration, UNIX_EPOCH};

/// Pages read; the median is reported.
const RUNS: usize = 201;
/// The recorded pages, by their names in tests/fixtures/engines.
const PAGES: [&str; 4] = [
    "vllm-0.32.0-busy",
    "sglang-0.5.23-busy",
    "triton-2.51.0-busy",
    "tgi-3.3.x-reconstructed-load",
];

fn main() {
    for name in PAGES {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/engines");
        let page = std::fs::read_to_string(format!("{folder}/{name}.prom")).unwrap();
        let engine = Engines::default().add(EngineFacts::default());
        let mut reader = PageReader::new();
        let mut out = Batch::new("engine", UNIX_EPOCH);
        let cost = measure(|| {
            out.samples.clear();
            reader.read(page.as_bytes(), engine, &mut out).unwrap().samples
        });
        println!(
            "| {name}, {} kB | {:.0} µs, {:.0} MB/s, allocations: {} |",
            page.len() / 1000,
            cost.micros,
            page.len() as f64 / cost.micros,
            cost.allocations,
        );
    }
}

/// Cost of one page.
struct Cost {
    micros: f64,
    allocations: u64,
}

fn measure(mut read: impl FnMut() -> usize) -> Cost {
    black_box(read());
    let mut micros: Vec<f64> = (0..RUNS)
        .map(|_| {
            let before = thread_micros();
            black_box(read());
            thread_micros() - before
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    let allocated = allocation_counter::measure(|| {
        black_box(read());
    });
    Cost { micros: micros[RUNS / 2], allocations: allocated.count_total }
}

fn thread_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap()).as_secs_f64()
        * 1e6
}
