//! What it costs to know whose everything is, on a host with 500 containers and 200 processes on
//! eight devices: the tick in the steady state, the first sight of a container, and the thread
//! that asks the runtime. `cargo bench -p gpuwho --bench attribution` prints rows of `agent/docs/benchmarks.md`.
//!
//! CPU time of the thread that does the work, the median of many ticks. Attribution is
//! what there would not be without owners: the lookups of the enrich stage, and the table's own
//! work once a tick. The accounting and the encoder are listed beside it for scale.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

mod first_sight;
mod runtime;
mod scene;
mod steady;

fn main() {
    // `cargo bench` adds an argument of its own.
    let idle = !std::env::args().any(|argument| argument == "--no-idle");
    steady::measure();
    first_sight::measure(idle);
}
