//! Proves gpuwho against the driver of this machine and prints one table.

use clap::Parser;
use gpu_check::checks::{Options, run};
use gpu_check::report::{Row, Verdict, page, summary};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Proves gpuwho against the driver of this machine, beside which the built programs lie.
#[derive(Debug, Parser)]
#[command(name = "gpu-check")]
struct Arguments {
    /// NVIDIA's management library, instead of libnvidia-ml.so.1.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Seconds that each load is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    window: u64,
    /// Readings of every device that are timed.
    #[arg(long, default_value_t = 200)]
    readings: u32,
    /// Write the rows as JSON to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write them as a page in Markdown to this file, too.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { library, window, readings, json, page: on_page } = Arguments::parse();
    if library.is_none() && !Path::new("/dev/nvidiactl").exists() {
        println!("No GPU here: there is no /dev/nvidiactl. Nothing was checked.");
        return ExitCode::SUCCESS;
    }
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("gpu-check: {error}");
            return ExitCode::FAILURE;
        }
    };
    let options = Options { library, window: Duration::from_secs(window), readings };
    let rows = run(&options, folder.path(), |row| println!("{row}"));
    println!("{}", summary(&rows));
    let json = json.map(|file| (file, serde_json::to_string_pretty(&rows).unwrap_or_default()));
    for (file, text) in json.into_iter().chain(on_page.map(|file| (file, page(&rows)))) {
        if let Err(error) = fs::write(&file, text) {
            eprintln!("gpu-check: {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    let failed = |row: &Row| row.verdict == Verdict::Fail;
    if rows.iter().any(failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
