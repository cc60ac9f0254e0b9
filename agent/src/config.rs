//! What the operator asked for: the configuration file, then the environment (`GPUWHO_…`), then
//! flags, each over the one before.
//!
//! [`Raw`] is only what was typed, key by key; [`Settings`] is complete, checked, and what the
//! parts are given. An unknown key is an error that names the key, its line and the nearest key.

mod checks;
mod collectives;
mod error;
mod overlay;
mod places;
mod readers;
mod runtimes;
mod slurm;

pub use error::ConfigError;

use crate::attribute;
use crate::attribute::suppliers;
use crate::collect::device::{self, DEVICES, Vendor, reader};
use crate::collect::inspector;
use crate::collect::kernel::device_users::{self, OpenHook};
use crate::collect::kernel::nccl;
use crate::collect::ras;
use crate::control;
use crate::export::otlp::settings::{self as otlp, RawOtlp, Signal};
use crate::paths::Paths;
use crate::series::USUAL_LIMIT;
use overlay::OneOf;
use readers::{RawReaders, Section};
use runtimes::{RawContainers, RawKubernetes};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between readings unless set: dashboards refresh no faster, and the cost stays a tenth of
/// a one-second cadence's.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// Below this the agent would cost the workload more than it tells.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// A device without links, its processes and the agent's own have as many.
const LEAST_SERIES: usize = 500;

/// Declares the sections of the file, beside those of the device readers.
macro_rules! sections {
    ($($section:ident: $type:ty,)+) => {
        /// The configuration file, key by key.
        #[derive(Clone, Debug, Default)]
        pub struct Raw {
            $($section: $type,)+
            readers: RawReaders,
        }

        impl Raw {
            /// The names of the sections.
            fn sections() -> Vec<&'static str> {
                let own = [$(stringify!($section)),+].into_iter();
                own.chain(DEVICES.iter().map(|vendor| vendor.name)).collect()
            }

            fn read<'de, A: MapAccess<'de>>(mut sections: A) -> Result<Self, A::Error> {
                let known = Self::sections();
                let mut raw = Self::default();
                while let Some(name) = sections.next_key_seed(OneOf(&known))? {
                    match name {
                        $(stringify!($section) => raw.$section = sections.next_value()?,)+
                        name => {
                            let vendor = device::vendor(name).map(Section);
                            let vendor = vendor.ok_or_else(|| A::Error::custom(name))?;
                            raw.readers.insert(vendor.0.name, sections.next_value_seed(vendor)?);
                        }
                    }
                }
                Ok(raw)
            }
        }
    };
}

sections! {
    agent: RawAgent,
    paths: places::RawPaths,
    devices: RawDevices,
    slurm: slurm::RawSlurm,
    kubernetes: RawKubernetes,
    containers: RawContainers,
    nccl: collectives::RawNccl,
    otlp: RawOtlp,
    sinks: RawSinks,
    telemetry: RawTelemetry,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        struct File;

        impl<'de> Visitor<'de> for File {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sections")
            }

            fn visit_map<A: MapAccess<'de>>(self, sections: A) -> Result<Raw, A::Error> {
                Raw::read(sections)
            }
        }

        file.deserialize_map(File)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawAgent {
    interval: Option<String>,
    log: Option<String>,
    series_limit: Option<u32>,
    show_others: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDevices {
    nodes: Option<Vec<String>>,
    drivers: Option<Vec<String>>,
    open_hook: Option<OpenHook>,
    bpf: Option<bool>,
    scan_interval: Option<String>,
    rescan_interval: Option<String>,
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
    /// Most series there may be.
    pub series_limit: usize,
    /// What to log: `error` to `trace`, or `tracing`'s filter syntax.
    pub log: String,
    /// Where the host's files are.
    pub paths: Paths,
    /// Who opens the device nodes.
    pub kernel: device_users::Settings,
    /// The device readers that are not switched off.
    pub devices: Vec<(&'static Vendor, reader::Settings)>,
    /// Who may ask the agent what.
    pub control: control::Settings,
    /// How whose a process is is found out.
    pub attribution: attribute::Settings,
    /// Who names the node's pods and containers.
    pub names: suppliers::Settings,
    /// What is counted of collective communication.
    pub nccl: nccl::Settings,
    /// What is read of NCCL's Inspector.
    pub inspector: inspector::Settings,
    /// Whether and how often NCCL's own status is read.
    pub ras: ras::Settings,
    /// The OTLP sink; `None` without an endpoint.
    pub otlp: Option<otlp::Settings>,
    /// Where events go as log records; `None` without an endpoint.
    pub events: Option<otlp::Settings>,
    /// Write every point to standard output.
    pub stdout: bool,
    /// Write every point to a file.
    pub file: Option<PathBuf>,
    /// Where the agent's own log records go as well; `None` unless asked for.
    pub telemetry: Option<otlp::Settings>,
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
    /// Libraries by vendor: `--nvidia-library`.
    pub libraries: BTreeMap<&'static str, PathBuf>,
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
        let root = raw.paths.root().unwrap_or_else(|| PathBuf::from("/"));
        let control = control::Settings {
            mode: checks::socket_mode(raw.paths.socket_mode())?,
            show_others: raw.agent.show_others.unwrap_or(false),
        };
        let paths = places::paths(raw.paths)?;
        checks::absolute(raw.sinks.file.as_deref().map(|file| ("sinks.file", file)))?;
        let nested = raw.kubernetes.nested();
        let names = suppliers::Settings {
            paths: paths.clone(),
            kubernetes: runtimes::kubernetes(raw.kubernetes, &root, env)?,
            containers: runtimes::containers(raw.containers, &root),
        };
        Ok(Self {
            interval,
            series_limit: series_limit(raw.agent.series_limit)?,
            log: flags.log.clone().or(raw.agent.log).unwrap_or_else(|| "info".into()),
            kernel: kernel_settings(raw.devices)?,
            devices: readers::settings(&raw.readers, &flags.libraries, interval, &paths)?,
            control,
            attribution: attribute::Settings { slurm: slurm::settings(raw.slurm, &paths)?, nested },
            inspector: collectives::inspector(&raw.nccl)?,
            ras: collectives::ras(&raw.nccl)?,
            nccl: collectives::probes(raw.nccl)?,
            paths,
            names,
            otlp: otlp_settings(Signal::Metrics, &raw.otlp, flags, env)?,
            events: otlp_settings(Signal::Logs, &raw.otlp, flags, env)?,
            telemetry: telemetry_settings(&raw.telemetry, &raw.otlp, flags, env)?,
            stdout: raw.sinks.stdout.unwrap_or(false),
            file: raw.sinks.file,
        })
    }
}

fn series_limit(raw: Option<u32>) -> Result<usize, ConfigError> {
    match raw.map(usize::try_from) {
        None => Ok(USUAL_LIMIT),
        Some(Ok(limit)) if limit >= LEAST_SERIES => Ok(limit),
        Some(_) => Err(ConfigError::Value {
            key: "agent.series_limit".into(),
            problem: format!("fewer than {LEAST_SERIES} series are not enough for one device"),
            remedy: format!("use a few thousand for each device; {USUAL_LIMIT} is the default"),
        }),
    }
}

/// OTLP is on when somebody named an endpoint; the variables' own default, a receiver on this host,
/// would make every agent without one complain.
fn otlp_settings(
    signal: Signal,
    file: &RawOtlp,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<otlp::Settings>, ConfigError> {
    let flags = RawOtlp { endpoint: flags.otlp_endpoint.clone(), ..RawOtlp::default() };
    let own = match signal {
        Signal::Metrics => "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        Signal::Logs => "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    };
    let variables = ["OTEL_EXPORTER_OTLP_ENDPOINT", own];
    let in_environment = variables.iter().any(|name| env(name).is_some_and(|url| !url.is_empty()));
    if flags.endpoint.is_none() && file.endpoint.is_none() && !in_environment {
        // A wrong value is wrong before there is a receiver, too.
        otlp::Settings::resolve(signal, &flags, file, &|_| None)?;
        return Ok(None);
    }
    Ok(Some(otlp::Settings::resolve(signal, &flags, file, env)?))
}

fn telemetry_settings(
    raw: &RawTelemetry,
    file: &RawOtlp,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<otlp::Settings>, ConfigError> {
    if raw.logs != Some(true) {
        return Ok(None);
    }
    let settings = otlp_settings(Signal::Logs, file, flags, env)?;
    let nowhere = || ConfigError::Value {
        key: "telemetry.logs".into(),
        problem: "there is no receiver to send the log to".into(),
        remedy: "set [otlp] endpoint as well".into(),
    };
    settings.ok_or_else(nowhere).map(Some)
}

fn kernel_settings(raw: RawDevices) -> Result<device_users::Settings, ConfigError> {
    let usual = device_users::Settings::default();
    checks::nodes(raw.nodes.as_deref().unwrap_or_default())?;
    Ok(device_users::Settings {
        nodes: raw.nodes.unwrap_or(usual.nodes),
        drivers: raw.drivers.unwrap_or(usual.drivers),
        open_hook: raw.open_hook.unwrap_or(usual.open_hook),
        bpf: raw.bpf.unwrap_or(usual.bpf),
        scan_interval_s: seconds(
            "devices.scan_interval",
            raw.scan_interval,
            usual.scan_interval_s,
        )?,
        rescan_interval_s: seconds(
            "devices.rescan_interval",
            raw.rescan_interval,
            usual.rescan_interval_s,
        )?,
    })
}

fn seconds(key: &str, text: Option<String>, usual: u64) -> Result<u64, ConfigError> {
    Ok(duration(key, text, Duration::from_secs(usual))?.as_secs().max(1))
}

fn duration(key: &str, text: Option<String>, usual: Duration) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(usual) };
    humantime::parse_duration(&text).map_err(|error| ConfigError::Value {
        key: key.into(),
        problem: format!("`{text}` is not a duration: {error}"),
        remedy: "write a number and a unit, like 500ms, 10s or 2m".into(),
    })
}
