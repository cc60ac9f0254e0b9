//! `cargo xtask fleet`: what many agents cost a Collector and Prometheus, measured with both.

use crate::{collector, place, setup, shell, unpacked};
use anyhow::Result;
use setup::Want;
use std::ffi::OsString;

/// The oldest release of Debian whose Prometheus takes OTLP.
const SUITE: &str = "trixie";

/// `cargo xtask fleet`; arguments go to the measurement.
pub(crate) fn fleet(args: &[OsString]) -> Result<()> {
    setup::ensure(&["build"], Want::Must)?;
    let collector = collector::for_tests()?;
    let prometheus = unpacked::program("prometheus", SUITE, "usr/bin/prometheus")?;
    // Without the release's whole-program optimisation, whose build takes longer than the run.
    let run = ["run", "--profile", "measure", "--package", "gpuwho-tests", "--features", "bench"];
    let mut command = shell::cargo(run);
    command.args(["--bin", "fleet", "--"]).args(args).current_dir(place::root());
    command.env(collector::VARIABLE, collector).env("GPUWHO_PROMETHEUS", prometheus);
    shell::run(&mut command)
}
