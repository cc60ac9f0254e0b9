//! Measurements: the micro-benchmarks of the library, then the whole agent on a scenario.

use crate::compile::{self, Profile};
use crate::{peers, place, shell};
use anyhow::Result;
use std::ffi::OsString;

/// `cargo xtask bench`; arguments go to the whole-agent measurement, `--peers` with the list of what is installed.
pub(crate) fn bench(args: &[OsString]) -> Result<()> {
    compile::setup_toolchain()?;
    // What ranks load in the benchmark of the collective calls.
    compile::packages(Profile::Release, &["gpuwho-fake-nccl"])?;
    // Budgets are about the whole agent.
    let has_peers = args.iter().any(|arg| arg == "--peers");
    let is_whole = has_peers || args.iter().any(|arg| arg == "--check" || arg == "--only");
    if !is_whole && place::root().join("agent/benches").is_dir() {
        let benches = ["bench", "--package", "gpuwho", "--bench", "*"];
        shell::run(&mut shell::cargo(benches))?;
    }
    compile::packages(Profile::Release, &["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"])?;
    let whole = ["run", "--release", "--package", "gpuwho-tests", "--features", "bench"];
    let mut bench = shell::cargo(whole);
    bench.args(["--bin", "bench", "--"]).args(args.iter().filter(|arg| *arg != "--peers"));
    if has_peers {
        bench.arg("--peers").arg(peers::install()?);
    }
    shell::run(&mut bench)
}
