//! What the operator asked for: the configuration file, then the environment (`GPUWHO_…`), then
//! flags, each over the one before.
//!
//! A section is only what was typed, key by key; what it is resolved to is complete, checked, and
//! what the parts are given. [`Settings`] is what all parts share; each source and each sink
//! resolves its own section. An unknown key is an error that names the key, its line and the
//! nearest key.

pub(crate) mod checks;
mod error;
mod places;
mod runtimes;
mod slurm;
mod tables;

pub use error::ConfigError;
pub(crate) use tables::OneOf;
pub use tables::{Section, Tables};

use crate::attribute;
use crate::attribute::providers;
use crate::collect::kernel::device_users;
use crate::control;
use crate::export::otlp::def::otlp_settings;
use crate::export::otlp::settings::{self as otlp, Signal};
use crate::paths::Paths;
use crate::series::DEFAULT_LIMIT;
use runtimes::{RawContainers, RawKubernetes};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Time between readings unless set: dashboards refresh no faster, and the cost stays a tenth of
/// a one-second cadence's.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// Below this the agent would cost the workload more than it tells.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// A device without links, its processes and the agent's own have as many.
const LEAST_SERIES: usize = 500;

const AGENT_SAMPLE: &str = r#"# Time between readings.
#: interval = "10s"
# Most series at a time. Beyond it new ones are left out, those of processes and owners before those of
# devices, and counted in gpuwho.dropped; how many a device can have is in METRICS.md.
#: series_limit = 50000
# Whose every process is, gpuwho tells root. Others are told of the devices and of their own processes,
# and how many others there are. true: everybody is told everything.
#: show_others = false
# What to log on standard error: error, warn, info, debug, trace, or a tracing filter.
#: log = "info"
"#;
const TELEMETRY_SAMPLE: &str = "# Send the agent's own log records to the OTLP receiver as well.
#: logs = false
";

/// The sections that belong to no source and no sink, before and after theirs in the sample.
pub static FIRST: &[Section] = &[
    Section::of::<RawAgent>("agent", AGENT_SAMPLE),
    Section::of::<places::RawPaths>("paths", places::SAMPLE),
];
/// See [`FIRST`].
pub static LAST: &[Section] = &[
    Section::of::<RawKubernetes>("kubernetes", runtimes::KUBERNETES_SAMPLE),
    Section::of::<RawContainers>("containers", runtimes::CONTAINERS_SAMPLE),
    Section::of::<slurm::RawSlurm>("slurm", slurm::SAMPLE),
    Section::of::<RawTelemetry>("telemetry", TELEMETRY_SAMPLE),
];

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
struct RawTelemetry {
    logs: Option<bool>,
}

/// What all parts share, resolved.
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
    /// Which device nodes are watched, and how.
    pub nodes: device_users::Settings,
    /// Who may ask the agent what.
    pub control: control::Settings,
    /// How whose a process is is found out.
    pub attribution: attribute::Settings,
    /// Who names the node's pods and containers.
    pub names: providers::Settings,
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
    /// Each `--sink`: a name, or a name, a colon and what the sink takes.
    pub sinks: Vec<String>,
}

impl Flags {
    /// What the last `--sink` of this name gives the sink; empty where it gives nothing.
    pub fn sink(&self, name: &str) -> Option<&str> {
        let named = |flag: &str| flag.split_once(':').unwrap_or((flag, "")).0 == name;
        let flag = self.sinks.iter().rev().find(|flag| named(flag))?;
        Some(flag.split_once(':').map_or("", |(_, rest)| rest))
    }
}

/// What a section is resolved with.
pub struct Resolving<'a> {
    /// The sections.
    pub tables: &'a Tables,
    /// What all parts share.
    pub settings: &'a Settings,
    /// The command line.
    pub flags: &'a Flags,
    /// A variable of the environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
}

impl Settings {
    /// Resolves what all parts share.
    pub fn resolve(
        tables: &Tables,
        flags: &Flags,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let agent: RawAgent = tables.read("agent")?;
        let places: places::RawPaths = tables.read("paths")?;
        let kubernetes: RawKubernetes = tables.read("kubernetes")?;
        let root = places.root().unwrap_or_else(|| PathBuf::from("/"));
        let control = control::Settings {
            mode: checks::socket_mode(places.socket_mode())?,
            show_others: agent.show_others.unwrap_or(false),
        };
        let paths = places::paths(places)?;
        let nested = kubernetes.nested();
        let names = providers::Settings {
            paths: paths.clone(),
            kubernetes: runtimes::kubernetes(kubernetes, &root, env)?,
            containers: runtimes::containers(tables.read("containers")?, &root),
        };
        let slurm = slurm::settings(tables.read("slurm")?, &paths)?;
        Ok(Self {
            interval: interval(flags.interval.clone().or(agent.interval))?,
            series_limit: series_limit(agent.series_limit)?,
            log: flags.log.clone().or(agent.log).unwrap_or_else(|| "info".into()),
            nodes: device_users::source::settings(tables)?,
            control,
            attribution: attribute::Settings { slurm, nested },
            paths,
            names,
            telemetry: telemetry_settings(tables, flags, env)?,
        })
    }
}

fn interval(text: Option<String>) -> Result<Duration, ConfigError> {
    let interval = duration("agent.interval", text, DEFAULT_INTERVAL)?;
    if interval < SHORTEST_INTERVAL {
        return Err(ConfigError::Value {
            key: "agent.interval".into(),
            problem: format!("{interval:?} is shorter than {SHORTEST_INTERVAL:?}"),
            remedy: "use 1s or longer; 10s is the default".into(),
        });
    }
    Ok(interval)
}

fn series_limit(raw: Option<u32>) -> Result<usize, ConfigError> {
    match raw.map(usize::try_from) {
        None => Ok(DEFAULT_LIMIT),
        Some(Ok(limit)) if limit >= LEAST_SERIES => Ok(limit),
        Some(_) => Err(ConfigError::Value {
            key: "agent.series_limit".into(),
            problem: format!("fewer than {LEAST_SERIES} series are not enough for one device"),
            remedy: format!("use a few thousand for each device; {DEFAULT_LIMIT} is the default"),
        }),
    }
}

fn telemetry_settings(
    tables: &Tables,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<otlp::Settings>, ConfigError> {
    let raw: RawTelemetry = tables.read("telemetry")?;
    if raw.logs != Some(true) {
        return Ok(None);
    }
    let settings = otlp_settings(Signal::Logs, tables, flags, env)?;
    let nowhere = || ConfigError::Value {
        key: "telemetry.logs".into(),
        problem: "there is no receiver to send the log to".into(),
        remedy: "set [otlp] endpoint as well".into(),
    };
    settings.ok_or_else(nowhere).map(Some)
}

/// A duration with its unit, or the usual one.
pub(crate) fn duration(
    key: &str,
    text: Option<String>,
    default: Duration,
) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    humantime::parse_duration(&text).map_err(|error| ConfigError::Value {
        key: key.into(),
        problem: format!("`{text}` is not a duration: {error}"),
        remedy: "write a number and a unit, like 500ms, 10s or 2m".into(),
    })
}
