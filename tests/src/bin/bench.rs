//! `cargo xtask bench`: the agent's figures on this machine beside their targets.

use clap::Parser;
use gpuwho_tests::bench::{self, BenchError, Options, opens};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures the agent on simulated GPUs with real processes.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    /// How long the agent's CPU time is watched at each interval.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    watch: u64,
    /// Pairs of runs with and without the agent.
    #[arg(long, value_name = "COUNT", default_value_t = 9)]
    rounds: usize,
    /// Only what has this in its name, as the marks of agent/docs/benchmarks.md have it: "agent at 10s", "a crowd", and so on.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Compare CPU, memory, threads and the rest with agent/docs/budgets.json; fails where one is above.
    #[arg(long)]
    check: bool,
    /// Put each table into this page, between its two marks; more than one page may be named.
    #[arg(long, value_name = "FILE")]
    page: Vec<PathBuf>,
    /// Measure the agent beside the exporters that this file lists, and nothing else.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Only open a file again and again: the process that is measured.
    #[arg(long, value_name = "FILE", hide = true)]
    open_loop: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), BenchError> {
    if let Some(file) = &arguments.open_loop {
        println!("{}", opens::open_loop(file)?);
        return Ok(());
    }
    bench::run(&Options {
        watch: Duration::from_secs(arguments.watch),
        rounds: arguments.rounds,
        only: arguments.only.clone(),
        check: arguments.check,
        pages: arguments.page.clone(),
        peers: arguments.peers.clone(),
    })
}
