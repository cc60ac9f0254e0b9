//! `cargo xtask soak`: the soak test of the reader for as long as it takes to show a leak.

use crate::compile::{self, Profile};
use crate::shell;
use anyhow::Result;
use clap::Args;

/// The variable that the test takes its length from.
const LENGTH: &str = "SOAK_SECONDS";
/// Started or loaded by the test.
const PARTS: &[&str] = &["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"];

/// How long.
#[derive(Args)]
pub(crate) struct Request {
    /// Seconds
    #[arg(default_value_t = 600)]
    seconds: u64,
}

/// Runs it and prints its figures.
pub(crate) fn soak(request: &Request) -> Result<()> {
    compile::setup_toolchain()?;
    compile::packages(Profile::Debug, PARTS)?;
    let mut command = shell::cargo(["test", "-p", "gpuwho-tests", "--test", "e2e"]);
    command.args(["device::soak::", "--", "--nocapture"]);
    shell::run(command.env(LENGTH, request.seconds.to_string()))
}
