//! `cargo xtask fleet`: what many agents cost a Collector and Prometheus, measured with both.

use crate::{collector, compile, place, shell, unpacked};
use anyhow::Result;
use std::ffi::OsString;

/// Whose Prometheus is run, with remote write; it has no OTLP.
const SUITE: &str = "bookworm";

/// `cargo xtask fleet`; arguments go to the measurement.
pub(crate) fn fleet(args: &[OsString]) -> Result<()> {
    compile::setup_toolchain()?;
    // With remote write, and ten minutes to build the first time.
    let collector = collector::full()?;
    let prometheus = unpacked::program("prometheus", SUITE, "usr/bin/prometheus")?;
    // Without the release's whole-program optimisation, whose build takes longer than the run.
    let run = ["run", "--profile", "measure", "--package", "gpuwho-tests", "--features", "bench"];
    let mut command = shell::cargo(run);
    command.args(["--bin", "fleet", "--"]).args(args).current_dir(place::root());
    command.env(collector::VARIABLE, collector).env("GPUWHO_PROMETHEUS", prometheus);
    shell::run(&mut command)
}
