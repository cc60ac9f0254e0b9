//! The commands that read: agent, collect, and the agent's own children.

use super::{
    AgentArgs, CollectArgs, FileReaderArgs, ReaderArgs, SelfTestArgs, Usage, print, screen,
};
use crate::agent::probes::PROBES;
use crate::agent::{self, RunError};
use crate::log_filter;
use crate::log_limit::LogLimit;
use crate::privilege;
use crate::settings::Settings;
use anyhow::{Context as _, bail};
use gpuwho_bpf::probe::SelfTest;
use gpuwho_devices::{self as device, child};
use gpuwho_export::resource::Resource;
use gpuwho_export::telemetry::{self, Telemetry};
use gpuwho_model::paths::Paths;
use gpuwho_owners::tenant_files;
use gpuwho_sys::confine;
use rustix::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

/// How long the agent's own last log records may take to go out.
const LAST_RECORDS: Duration = Duration::from_secs(2);

pub(super) fn run(args: &AgentArgs, json: bool) -> anyhow::Result<ExitCode> {
    let mut configuration = args.common.load(Some(&args.output))?;
    configuration.settings.logs_json |= json;
    let settings = &configuration.settings;
    let telemetry = start_log(settings)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), interval = ?settings.interval, "starting");
    for warning in configuration.warnings() {
        tracing::warn!("{warning}");
    }
    for need in privilege::missing() {
        tracing::warn!(capability = need.name, without = need.without, "a capability is missing");
    }
    let reload = args.reload();
    let ran = agent::run(configuration, reload).map_err(usage);
    if let Some(Err(error)) = telemetry.map(|telemetry| telemetry.shutdown(LAST_RECORDS)) {
        tracing::warn!(%error, "the agent's own log");
    }
    ran.map(|()| ExitCode::SUCCESS)
}

pub(super) fn collect(args: &mut CollectArgs) -> anyhow::Result<ExitCode> {
    if args.output.sink.is_empty() && args.output.otlp.is_none() {
        args.output.sink.push("stdout".into());
    }
    let configuration = args.common.load(Some(&args.output))?;
    start_log(&configuration.settings)?;
    agent::collect(&configuration, &args.names, args.once).map_err(usage)?;
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
    let vendor = device::readable(&args.vendor)
        .ok_or_else(|| Usage(format!("no reader for the vendor `{}`", args.vendor)))?;
    if !args.unconfined {
        confine::keep_capabilities(vendor.keeps).context("cannot give up the capabilities")?;
        // A library that starts programs is none; a vendor's own program is started.
        let program = args.library.as_deref().zip(vendor.library.as_ref());
        let may_run = program.is_some_and(|(path, known)| known.is_program(path));
        confine::refuse_calls(may_run).context("cannot give up the system calls")?;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket on stdin")?;
    let settings = child::Settings {
        vendor,
        library: args.library.clone().unwrap_or_default(),
        stall: args.stall_ms.map_or(child::MAX_STALL, Duration::from_millis),
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
    if args.list {
        print(&self_tests())?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = args.what.as_deref().unwrap_or_default();
    let hook = args.hook.as_deref().filter(|hook| *hook != "auto");
    let is_one = |test: &SelfTest| test.name == what;
    let Some(probe) = PROBES.iter().find(|probe| probe.self_tests.iter().any(is_one)) else {
        bail!(Usage(format!("no self-test `{what}`; there are:\n{}", self_tests())));
    };
    let hooks: Vec<_> = probe.self_tests.iter().filter_map(|test| test.hook).collect();
    if let Some(other) = hook.filter(|hook| !hooks.contains(hook)) {
        bail!(Usage(format!("no hook `{other}`; there are: {}", hooks.join(", "))));
    }
    print(&(probe.self_test)(hook).map_err(anyhow::Error::from_boxed)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A line each: its words behind `gpuwho self-test`, or `test` and the name of a unit test.
fn self_tests() -> String {
    let mut list = String::new();
    for probe in PROBES {
        for SelfTest { name, hook } in probe.self_tests {
            let hook = hook.map_or_else(Vec::new, |hook| vec![" --hook ", hook]);
            list.extend([*name].into_iter().chain(hook).chain(["\n"]));
        }
        list.extend(probe.vm_tests.iter().flat_map(|test| ["test ", test, "\n"]));
    }
    list
}

/// Logs go to standard error; a person's terminal gets colours, a file does not.
fn start_log(settings: &Settings) -> anyhow::Result<Option<Telemetry>> {
    let filter = EnvFilter::try_new(log_filter::of_crates(&settings.log)).map_err(|error| {
        Usage(format!("`{}` is not a log level or filter: {error}; try info", settings.log))
    })?;
    let colours = screen::colours(&std::io::stderr());
    let (records, telemetry) = match &settings.telemetry {
        Some(otlp) => {
            let node = settings.names.kubernetes.node_name.as_deref();
            let resource = Resource::new(
                &settings.resource.attributes(&settings.paths, node),
                &otlp.resource_attributes,
            );
            let (telemetry, layer) = telemetry::logs(otlp, &resource)?;
            (Some(layer), Some(telemetry))
        }
        None => (None, None),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false);
    let lines: Box<dyn Layer<_> + Send + Sync> = if settings.logs_json {
        Box::new(lines.json().flatten_event(true))
    } else {
        Box::new(lines)
    };
    let log = tracing_subscriber::registry().with(records).with(filter).with(lines).with(LogLimit);
    log.try_init().context("cannot start the log")?;
    Ok(telemetry)
}
