//! What the operator asked for: the configuration file, then the environment (`GPUWHO_…`), then
//! flags, each over the one before.
//!
//! [`Raw`] is only what was typed, key by key; [`Settings`] is complete, checked, and what the
//! parts are given. An unknown key is an error that names the key, its line and the nearest key.

mod error;
mod overlay;

pub use error::ConfigError;

use crate::collect::device::nvidia;
use crate::collect::kernel::{self, OpenHook};
use crate::export::otlp;
use crate::paths::Paths;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between readings unless set: dashboards refresh no faster, and the cost stays a tenth of
/// a one-second cadence's.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// Below this the agent would cost the workload more than it tells.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration file, key by key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    agent: RawAgent,
    paths: RawPaths,
    devices: RawDevices,
    nvidia: RawNvidia,
    otlp: otlp::RawOtlp,
    sinks: RawSinks,
    telemetry: RawTelemetry,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawAgent {
    interval: Option<String>,
    log: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPaths {
    root: Option<PathBuf>,
    proc: Option<PathBuf>,
    sys: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    dev: Option<PathBuf>,
    pod_logs: Option<PathBuf>,
    passwd: Option<PathBuf>,
    run: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDevices {
    nodes: Option<Vec<String>>,
    drivers: Option<Vec<String>>,
    open_hook: Option<OpenHook>,
    bpf: Option<bool>,
    scan_interval: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawNvidia {
    enabled: Option<bool>,
    library: Option<PathBuf>,
    deadline: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSinks {
    stdout: Option<bool>,
    file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTelemetry {
    logs: Option<bool>,
}

/// Everything resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time between readings.
    pub interval: Duration,
    /// What to log: `error` to `trace`, or `tracing`'s filter syntax.
    pub log: String,
    /// Where the host's files are.
    pub paths: Paths,
    /// Who opens the device nodes.
    pub kernel: kernel::Settings,
    /// The NVIDIA reader; `None` when switched off.
    pub nvidia: Option<nvidia::Settings>,
    /// The OTLP sink; `None` without an endpoint.
    pub otlp: Option<otlp::Settings>,
    /// Write every point to standard output.
    pub stdout: bool,
    /// Write every point to a file.
    pub file: Option<PathBuf>,
    /// Send the agent's own log records to the OTLP endpoint as well.
    pub telemetry_logs: bool,
}

/// What flags set over the file and the environment.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--interval`.
    pub interval: Option<String>,
    /// `--otlp`.
    pub otlp_endpoint: Option<String>,
    /// `--log`.
    pub log: Option<String>,
    /// `--nvidia-library`.
    pub nvidia_library: Option<PathBuf>,
}

impl Settings {
    /// Reads the file (if one is named), the environment and the flags.
    pub fn load(
        file: Option<&Path>,
        env: &[(String, String)],
        flags: &Flags,
    ) -> Result<Self, ConfigError> {
        let table = match file {
            Some(path) => overlay::read_file(path)?,
            None => toml::Table::new(),
        };
        let raw = overlay::with_environment(table, env)?;
        let find = |name: &str| {
            env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        Self::resolve(raw, flags, &find)
    }

    /// Checks a file alone, as `gpuwho config check` does.
    pub fn check(file: &Path) -> Result<Self, ConfigError> {
        Self::load(Some(file), &[], &Flags::default())
    }

    fn resolve(
        raw: Raw,
        flags: &Flags,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let interval = flags.interval.clone().or(raw.agent.interval);
        let interval = duration("agent.interval", interval, DEFAULT_INTERVAL)?;
        if interval < SHORTEST_INTERVAL {
            return Err(ConfigError::Value {
                key: "agent.interval".into(),
                problem: format!("{interval:?} is shorter than {SHORTEST_INTERVAL:?}"),
                remedy: "use 1s or longer; 10s is the default".into(),
            });
        }
        let mut otlp = raw.otlp;
        if flags.otlp_endpoint.is_some() {
            otlp.endpoint.clone_from(&flags.otlp_endpoint);
        }
        let paths = paths(raw.paths);
        Ok(Self {
            interval,
            log: flags.log.clone().or(raw.agent.log).unwrap_or_else(|| "info".into()),
            kernel: kernel_settings(raw.devices)?,
            nvidia: nvidia_settings(raw.nvidia, flags)?,
            paths,
            otlp: otlp::Settings::resolve(&otlp, env)?,
            stdout: raw.sinks.stdout.unwrap_or(false),
            file: raw.sinks.file,
            telemetry_logs: raw.telemetry.logs.unwrap_or(false),
        })
    }
}

fn paths(raw: RawPaths) -> Paths {
    let usual = Paths::under(raw.root.as_deref().unwrap_or(Path::new("/")));
    Paths {
        proc: raw.proc.unwrap_or(usual.proc),
        cgroup: match (raw.cgroup, &raw.sys) {
            (Some(cgroup), _) => cgroup,
            (None, Some(sys)) => sys.join("fs/cgroup"),
            (None, None) => usual.cgroup,
        },
        sys: raw.sys.unwrap_or(usual.sys),
        dev: raw.dev.unwrap_or(usual.dev),
        pod_logs: raw.pod_logs.unwrap_or(usual.pod_logs),
        passwd: raw.passwd.unwrap_or(usual.passwd),
        run: raw.run.unwrap_or(usual.run),
    }
}

fn kernel_settings(raw: RawDevices) -> Result<kernel::Settings, ConfigError> {
    let usual = kernel::Settings::default();
    Ok(kernel::Settings {
        nodes: raw.nodes.unwrap_or(usual.nodes),
        drivers: raw.drivers.unwrap_or(usual.drivers),
        open_hook: raw.open_hook.unwrap_or(usual.open_hook),
        bpf: raw.bpf.unwrap_or(usual.bpf),
        scan_interval: duration("devices.scan_interval", raw.scan_interval, usual.scan_interval)?,
    })
}

fn nvidia_settings(
    raw: RawNvidia,
    flags: &Flags,
) -> Result<Option<nvidia::Settings>, ConfigError> {
    if raw.enabled == Some(false) {
        return Ok(None);
    }
    let usual = nvidia::Settings::default();
    let library = flags.nvidia_library.clone().or(raw.library).unwrap_or(usual.library);
    let deadline = duration("nvidia.deadline", raw.deadline, usual.deadline)?;
    Ok(Some(nvidia::Settings { library, deadline, ..nvidia::Settings::default() }))
}

fn duration(
    key: &str,
    text: Option<String>,
    usual: Duration,
) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(usual) };
    humantime::parse_duration(&text).map_err(|error| ConfigError::Value {
        key: key.into(),
        problem: format!("`{text}` is not a duration: {error}"),
        remedy: "write a number and a unit, like 500ms, 10s or 2m".into(),
    })
}
