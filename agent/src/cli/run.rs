//! The commands that read: agent, collect, and the agent's own children.

use super::{AgentArgs, CollectArgs, ReaderArgs, SelfTestArgs, Usage, print};
use crate::collect::device::child;
use crate::collect::kernel::{self, OpenHook};
use crate::config::Settings;
use crate::pipeline::{self, RunError};
use anyhow::{Context as _, bail};
use rustix::fd::AsFd as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

pub(super) fn agent(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let settings = args.common.settings(Some(&args.output))?;
    start_log(&settings)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), interval = ?settings.interval, "starting");
    pipeline::run(&settings).map_err(usage)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn collect(args: &CollectArgs) -> anyhow::Result<ExitCode> {
    let mut settings = args.common.settings(Some(&args.output))?;
    if args.output.sink.is_empty() && args.output.otlp.is_none() {
        settings.stdout = true;
    }
    start_log(&settings)?;
    pipeline::collect(&settings, &args.names, args.once).map_err(usage)?;
    Ok(ExitCode::SUCCESS)
}

/// Some of the pipeline's errors are the caller's.
fn usage(error: RunError) -> anyhow::Error {
    match error {
        RunError::UnknownSource { .. } | RunError::NoSink => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

pub(super) fn device_reader(args: &ReaderArgs) -> anyhow::Result<ExitCode> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket on stdin")?;
    let settings = child::Settings::new(&args.vendor, &args.library);
    child::serve(&settings, socket)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn self_test(args: &SelfTestArgs) -> anyhow::Result<ExitCode> {
    if args.what != "bpf" {
        bail!(Usage(format!("no self-test `{}`; there is: bpf", args.what)));
    }
    let hook = args.hook.as_deref().map(str::parse::<OpenHook>).transpose();
    let report = kernel::self_test(hook.map_err(|error| Usage(error.to_string()))?)?;
    print(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// Logs go to standard error; a person's terminal gets colours, a file does not.
fn start_log(settings: &Settings) -> anyhow::Result<()> {
    use std::io::IsTerminal as _;
    let filter = EnvFilter::try_new(&settings.log).map_err(|error| {
        Usage(format!("`{}` is not a log level or filter: {error}; try info", settings.log))
    })?;
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false);
    log.try_init().map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
