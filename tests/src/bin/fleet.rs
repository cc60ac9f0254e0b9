//! `cargo xtask fleet`: what a fleet of agents costs the Collector and Prometheus.

use clap::Parser;
use gpuwho_tests::bench::{BenchError, table};
use gpuwho_tests::fleet::{self, Options, report};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Lets simulated nodes send to the real Collector and Prometheus on this machine.
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Arguments {
    /// Nodes; may be repeated, and each size is measured by itself.
    #[arg(long, value_name = "COUNT", default_values_t = [50, 100, 200],
        value_parser = clap::value_parser!(u32).range(1..=2000))]
    nodes: Vec<u32>,
    /// Seconds between two requests of a node.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    every: u64,
    /// Requests of each node that are watched.
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=60))]
    ticks: u32,
    /// Put the table into this page, between its two marks.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), BenchError> {
    let sizes = arguments.nodes.iter().map(|nodes| *nodes as usize).collect();
    let every = Duration::from_secs(arguments.every);
    let options = Options { sizes, every, ticks: arguments.ticks };
    // The load before is said beside the figures.
    let source = table::source();
    let text = report::render(&fleet::measure(&options)?, &options, &source);
    println!("{text}");
    let Some(page) = &arguments.page else { return Ok(()) };
    report::write(page, &text).map_err(|source| BenchError::Os { what: page.clone(), source })
}
