//! `cargo xtask run` on a machine without a GPU: the real agent on simulated GPUs with real
//! processes on them.

use clap::Parser;
use gpuwho_tests::demo::{Options, run};
use gpuwho_tests::nvml::scenarios;
use std::process::ExitCode;

/// Shows gpuwho at work on a machine without a GPU.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "demo", help = scenarios_help())]
    scenario: String,
    /// OTLP receiver, like http://localhost:4318, or a file for JSON lines.
    #[arg(long, value_name = "URL|FILE")]
    otlp: Option<String>,
    /// Print the table once, when everybody is in it, and end.
    #[arg(long)]
    once: bool,
}

fn scenarios_help() -> String {
    format!("What the fake driver plays, one of: {}", scenarios().join(", "))
}

fn main() -> ExitCode {
    let Arguments { scenario, otlp, once } = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(&Options { scenario, otlp, once })),
        Err(error) => {
            eprintln!("demo: {error}");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}
