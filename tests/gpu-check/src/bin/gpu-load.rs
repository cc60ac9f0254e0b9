//! Keeps a GPU busy in a known way until standard input ends. Says on standard output, a line of
//! JSON each, when it begins and what it did.

use clap::Parser;
use gpu_check::work::{Kind, Load, Share};
use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Keeps a GPU busy in a known way.
#[derive(Debug, Parser)]
#[command(name = "gpu-load")]
struct Arguments {
    /// What to do.
    kind: Kind,
    /// Number of the device in CUDA's order.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// MiB of device memory to hold.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: usize,
    /// Percent of the multiprocessors to use.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    multiprocessors: u32,
    /// Blocks of 1,024 threads on each.
    #[arg(long, default_value_t = 2)]
    blocks: u32,
    /// Percent of the time to be busy.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    duty: u32,
}

fn main() -> ExitCode {
    match work(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { kind, device, memory, multiprocessors, blocks, duty } = *arguments;
    let share = Share { multiprocessors, blocks, duty };
    let load = Load::prepare(device, kind, share, memory << 20)?;
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(&load.ready())?)?;
    let stop = Arc::new(AtomicBool::new(false));
    let reported = Arc::clone(&stop);
    thread::spawn(move || {
        let mut rest = Vec::new();
        // Its end, however it comes, is the sign.
        let _ = io::stdin().read_to_end(&mut rest);
        reported.store(true, Ordering::Relaxed);
    });
    let done = load.run(&stop)?;
    writeln!(out, "{}", serde_json::to_string(&done)?)?;
    Ok(())
}
