//! Measurements: the whole agent on scenarios, and the library's own benchmarks.

use crate::compile::{self, Profile};
use crate::{peers, shell};
use anyhow::Result;
use std::ffi::OsString;

/// `cargo xtask bench`; arguments go to the whole-agent measurement, `--peers` with the list of what is installed.
pub(crate) fn bench(args: &[OsString]) -> Result<()> {
    compile::setup_toolchain()?;
    // What ranks load in the benchmark of the collective calls.
    compile::packages(Profile::Shipped, &["gpuwho-fake-nccl"])?;
    compile::packages(Profile::Shipped, &["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"])?;
    let whole = ["run", "--profile", "shipped", "--package", "gpuwho-tests", "--features", "bench"];
    let mut bench = shell::cargo(whole);
    bench.args(["--bin", "bench", "--"]).args(args.iter().filter(|arg| *arg != "--peers"));
    if args.iter().any(|arg| arg == "--peers") {
        bench.arg("--peers").arg(peers::install()?);
    }
    shell::run(&mut bench)
}
