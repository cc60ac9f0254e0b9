//! The commands that read: agent, collect, and the agent's own children.

use super::{AgentArgs, CollectArgs, FileReaderArgs, ReaderArgs, SelfTestArgs, Usage, print};
use crate::collect::device::{self, child};
use crate::collect::kernel::device_users::OpenHook;
use crate::collect::kernel::{nccl, self_test};
use crate::config::Settings;
use crate::export::otlp::Resource;
use crate::host;
use crate::log_limit::LogLimit;
use crate::paths::Paths;
use crate::pipeline::{self, RunError};
use crate::privilege;
use crate::sys::confine;
use crate::telemetry::{self, Telemetry};
use crate::tenant_files;
use anyhow::{Context as _, bail};
use rustix::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How long the agent's own last log records may take to go out.
const LAST_RECORDS: Duration = Duration::from_secs(2);

pub(super) fn agent(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let settings = args.common.settings(Some(&args.output))?;
    let telemetry = start_log(&settings)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), interval = ?settings.interval, "starting");
    for need in privilege::missing() {
        tracing::warn!(capability = need.name, without = need.without, "a capability is missing");
    }
    let ran = pipeline::run(&settings).map_err(usage);
    if let Some(Err(error)) = telemetry.map(|telemetry| telemetry.shutdown(LAST_RECORDS)) {
        tracing::warn!(%error, "the agent's own log");
    }
    ran.map(|()| ExitCode::SUCCESS)
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
        RunError::UnknownSource { .. } => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

pub(super) fn device_reader(args: &ReaderArgs) -> anyhow::Result<ExitCode> {
    // First of all: nothing is open yet, there is one thread, and the vendor's library is not loaded.
    confine::close_inherited();
    let vendor = device::vendor(&args.vendor)
        .ok_or_else(|| Usage(format!("no reader for the vendor `{}`", args.vendor)))?;
    if !args.unconfined {
        confine::keep_capabilities(vendor.keeps).context("cannot give up the capabilities")?;
        confine::refuse_calls().context("cannot give up the system calls")?;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket on stdin")?;
    let settings = child::Settings {
        vendor,
        library: args.library.clone().unwrap_or_default(),
        stall: args.stall_ms.map_or(child::STALL, Duration::from_millis),
        events: args.events,
        paths: Paths { proc: args.proc.clone(), sys: args.sys.clone(), ..Paths::default() },
        off: args.without.clone(),
    };
    child::serve(&settings, socket)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn file_reader(args: FileReaderArgs) -> anyhow::Result<ExitCode> {
    // Nothing is open yet.
    confine::close_inherited();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket on stdin")?;
    tenant_files::serve(args.proc, &socket)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn self_test(args: &SelfTestArgs) -> anyhow::Result<ExitCode> {
    if args.what == "nccl" {
        print(&nccl::self_test(&Paths::default())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.what != "bpf" {
        bail!(Usage(format!("no self-test `{}`; there are: bpf, nccl", args.what)));
    }
    let hook = match args.hook.as_deref() {
        None | Some("auto") => None,
        Some("fexit") => Some(OpenHook::Fexit),
        Some("cgroup") => Some(OpenHook::Cgroup),
        Some("syscall") => Some(OpenHook::Syscall),
        Some(other) => {
            bail!(Usage(format!("no hook `{other}`; there are: fexit, cgroup, syscall")))
        }
    };
    print(&self_test::self_test(hook)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Logs go to standard error; a person's terminal gets colours, a file does not.
fn start_log(settings: &Settings) -> anyhow::Result<Option<Telemetry>> {
    use std::io::IsTerminal as _;
    let filter = EnvFilter::try_new(&settings.log).map_err(|error| {
        Usage(format!("`{}` is not a log level or filter: {error}; try info", settings.log))
    })?;
    let colours = std::io::stderr().is_terminal();
    let (records, telemetry) = match &settings.telemetry {
        Some(otlp) => {
            let node = settings.names.kubernetes.node_name.as_deref();
            let resource = Resource::new(&host::attributes(&settings.paths, node), otlp);
            let (telemetry, layer) = telemetry::logs(otlp, &resource)?;
            (Some(layer), Some(telemetry))
        }
        None => (None, None),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false);
    let log = tracing_subscriber::registry().with(records).with(filter).with(lines).with(LogLimit);
    log.try_init().context("cannot start the log")?;
    Ok(telemetry)
}
