//! The settings that all parts share, and the sections that belong to no source and no sink.

mod metrics;
mod places;
mod removed;
mod runtimes;
mod slurm;
#[cfg(test)]
mod tests;

use crate::advisories;
use crate::control;
use gpuwho_bpf::device_users;
use gpuwho_collect::source::Diagnosing;
use gpuwho_devices as device;
use gpuwho_export::otlp::def::otlp_settings;
use gpuwho_export::otlp::settings::{self as otlp, Signal};
use gpuwho_export::spool;
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::config::{ConfigError, Flags, Resolving, Section, Tables, checks, duration};
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute;
use gpuwho_owners::attribute::providers;
use gpuwho_owners::host::resource::{self, ResourceSettings};
use gpuwho_owners::nodes;
use gpuwho_pipeline::cost;
use gpuwho_pipeline::health;
use gpuwho_pipeline::health::settings::HealthSettings;
use gpuwho_pipeline::series::DEFAULT_LIMIT;
pub use removed::REMOVED;
use runtimes::{RawContainers, RawKubernetes};
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Default time between readings: dashboards refresh no faster, and the cost is a tenth of that at
/// a one-second interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// A shorter interval would cost the workload more than the readings are worth.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Nobody reads once a day; a longer one is a typing error.
const MAX_INTERVAL: Duration = Duration::from_hours(24);

/// OpenTelemetry's variable for the time between exports, in milliseconds.
const OTEL_INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";

/// Series of one device without links, its processes, and the agent's own metrics.
const MIN_SERIES: usize = 500;

/// Per cent of a core that `cpu_limit` may be: less is within the error of the kernel's clock ticks.
const CPU_LIMITS: RangeInclusive<f64> = 0.5..=1000.0;

const AGENT_SAMPLE: &str = r#"# Time between readings.
#: interval = "10s"
# Largest number of series at a time; an owner's histogram counts as its buckets and three. Beyond it
# the agent leaves out new ones, those of processes and owners before those of devices, and counts them
# in gpuwho.dropped. docs/metrics/series.md has the number of series that a device can have.
#: series_limit = 50000
# Most CPU time of the agent and its readers, in per cent of a core. Above it an owner whose processes fork,
# end and open devices without a pause is heard less first; then sources are read less often in this order,
# and as configured again once that fits: inference engines and NCCL; the host and cgroups; last the devices,
# at most half as often. 0.5 to 1,000; not limited unless set. What a kernel probe costs the
# processes that it observes is limited by nccl.budget.
#: cpu_limit = 2.0
# `gpuwho` shows all processes to root. Other users see the devices, their own processes, and the number
# of the others. true: every user sees all processes.
#: show_others = false
# What to log on standard error: error, warn, info, debug, trace, or a filter like
# info,gpuwho::export=debug.
#: log = "info"
# Lines of text, or JSON: an object a line.
#: log_format = "text"
"#;
const TELEMETRY_SAMPLE: &str = "# Send the agent's own log records to the OTLP receiver as well.
#: logs = false
";

/// Sections that belong to no source and no sink and come first in the sample.
pub static FIRST: &[Section] = &[
    Section::of::<RawAgent>("agent", AGENT_SAMPLE),
    Section::of::<metrics::RawMetrics>(metrics::NAME, metrics::SAMPLE),
    health::settings::SECTION,
    advisories::SECTION,
    Section::of::<places::RawPaths>("paths", places::SAMPLE),
    resource::SECTION,
    cost::SECTION,
    cost::receipts::SECTION,
];
/// Sections that belong to no source and no sink and come after the sources' in the sample.
pub static LAST: &[Section] = &[
    Section::of::<RawKubernetes>("kubernetes", runtimes::KUBERNETES_SAMPLE),
    Section::of::<RawContainers>("containers", runtimes::CONTAINERS_SAMPLE),
    Section::of::<slurm::RawSlurm>("slurm", slurm::SAMPLE),
    Section::of::<RawTelemetry>("telemetry", TELEMETRY_SAMPLE),
    spool::settings::SECTION,
];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawAgent {
    interval: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    series_limit: Option<u32>,
    cpu_limit: Option<f64>,
    show_others: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTelemetry {
    logs: Option<bool>,
}

/// The resolved settings that all parts share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time between readings.
    pub interval: Duration,
    /// Largest number of series at a time.
    pub series_limit: usize,
    /// What the agent may use of a core; `None`: it is not limited.
    pub cpu_limit: Option<f64>,
    /// Which metrics are exported.
    pub metrics: Selection,
    /// The rules of device health.
    pub health: HealthSettings,
    /// Whether it is said that a driver has a known hole.
    pub advisories: bool,
    /// What to log: `error` to `trace`, or `tracing`'s filter syntax.
    pub log: String,
    /// Whether log lines are JSON.
    pub logs_json: bool,
    /// What all points say of this host.
    pub resource: ResourceSettings,
    /// Where the host's files are.
    pub paths: Paths,
    /// The watched device nodes.
    pub nodes: nodes::Settings,
    /// Access to the control socket.
    pub control: control::Settings,
    /// Settings of attribution.
    pub attribution: attribute::Settings,
    /// Settings of the metadata providers, which name pods and containers.
    pub names: providers::Settings,
    /// Prices, energy, carbon and teams.
    pub cost: Arc<cost::Settings>,
    /// Receipts of what has ended.
    pub receipts: cost::receipts::Settings,
    /// The receiver of the agent's own log records; `None` unless enabled.
    pub telemetry: Option<otlp::Settings>,
}

impl Settings {
    /// Resolves the settings that all parts share.
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
            mode: checks::socket_mode(places.socket_mode(), control::DEFAULT_MODE)?,
            show_others: agent.show_others.unwrap_or(false),
        };
        let paths = places::paths(places)?;
        let nested = kubernetes.nested();
        let names = providers::Settings {
            paths: paths.clone(),
            kubernetes: runtimes::kubernetes(kubernetes, &root, env)?,
            containers: runtimes::containers(tables.read("containers")?, &root),
            vendors: device::nodes(),
        };
        let slurm = slurm::settings(tables.read("slurm")?, &paths)?;
        let interval = interval(flags, agent.interval, env)?;
        let passwd = paths.passwd.clone();
        Ok(Self {
            interval,
            cost: Arc::new(cost::Settings::resolve(tables)?),
            receipts: cost::receipts::Settings::resolve(tables, &paths, interval)?,
            series_limit: series_limit(agent.series_limit)?,
            cpu_limit: cpu_limit(agent.cpu_limit)?,
            metrics: metrics::selection(tables)?,
            health: HealthSettings::resolve(tables)?,
            advisories: advisories::are_enabled(tables)?,
            resource: ResourceSettings::resolve(tables)?,
            log: log(flags.log.clone(), agent.log)?,
            logs_json: logs_json(agent.log_format.as_deref())?,
            nodes: device_users::source::watched(tables, device::nodes())?,
            control,
            attribution: attribute::Settings { slurm, nested },
            paths,
            names,
            telemetry: telemetry_settings(tables, flags, env, &passwd)?,
        })
    }

    /// What the sections of sources and sinks are resolved with.
    pub fn resolving<'a>(
        &'a self,
        tables: &'a Tables,
        flags: &'a Flags,
        env: &'a dyn Fn(&str) -> Option<String>,
    ) -> Resolving<'a> {
        let (paths, metrics) = (&self.paths, &self.metrics);
        Resolving { tables, interval: self.interval, paths, metrics, flags, env }
    }

    /// What sources are diagnosed with.
    pub fn diagnosing(&self) -> Diagnosing<'_> {
        let Self { interval, paths, nodes, attribution, .. } = self;
        Diagnosing { interval: *interval, paths, nodes, attribution }
    }
}

/// The flag, else `GPUWHO_AGENT_INTERVAL`, else OpenTelemetry's variable, else the file.
fn interval(
    flags: &Flags,
    file: Option<String>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Duration, ConfigError> {
    let is_ours_set = flags.interval.is_some() || env("GPUWHO_AGENT_INTERVAL").is_some();
    let theirs = env(OTEL_INTERVAL).filter(|text| !is_ours_set && !text.trim().is_empty());
    let (key, interval) = if let Some(text) = &theirs {
        (OTEL_INTERVAL, milliseconds(text)?)
    } else {
        let key = "agent.interval";
        (key, duration(key, flags.interval.clone().or(file), DEFAULT_INTERVAL)?)
    };
    let wrong = |problem| {
        let remedy = "use 1s or longer; 10s is the default".into();
        Err(ConfigError::Value { key: key.into(), problem, remedy })
    };
    let shown = humantime::format_duration(interval);
    if interval < MIN_INTERVAL {
        return wrong(format!("{shown} is shorter than {MIN_INTERVAL:?}"));
    }
    if interval > MAX_INTERVAL {
        return wrong(format!("{shown} is longer than a day"));
    }
    Ok(interval)
}

fn milliseconds(text: &str) -> Result<Duration, ConfigError> {
    let number = text.trim().parse().map(Duration::from_millis);
    number.map_err(|_| ConfigError::Value {
        key: OTEL_INTERVAL.into(),
        problem: format!("`{text}` is not a number of milliseconds"),
        remedy: "write something like 10000".into(),
    })
}

fn log(flag: Option<String>, file: Option<String>) -> Result<String, ConfigError> {
    let key = if flag.is_some() { "--log" } else { "agent.log" };
    let text = flag.or(file).unwrap_or_else(|| "info".into());
    checks::log(key, &text)?;
    Ok(text)
}

fn logs_json(format: Option<&str>) -> Result<bool, ConfigError> {
    match format {
        None | Some("text") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => {
            let problem = format!("there is no format `{other}`");
            Err(checks::wrong("agent.log_format", problem, "write text or json"))
        }
    }
}

fn series_limit(raw: Option<u32>) -> Result<usize, ConfigError> {
    match raw.map(usize::try_from) {
        None => Ok(DEFAULT_LIMIT),
        Some(Ok(limit)) if limit >= MIN_SERIES => Ok(limit),
        Some(_) => Err(ConfigError::Value {
            key: "agent.series_limit".into(),
            problem: format!("fewer than {MIN_SERIES} series are not enough for one device"),
            remedy: format!("use a few thousand for each device; {DEFAULT_LIMIT} is the default"),
        }),
    }
}

/// The fraction of a core that a percentage is.
fn cpu_limit(raw: Option<f64>) -> Result<Option<f64>, ConfigError> {
    let Some(percent) = raw else { return Ok(None) };
    if !CPU_LIMITS.contains(&percent) {
        return Err(ConfigError::Value {
            key: "agent.cpu_limit".into(),
            problem: format!("{percent} is not between 0.5 and 1000"),
            remedy: "write per cent of a core: 2.0 is a fiftieth of one".into(),
        });
    }
    Ok(Some(percent / 100.0))
}

fn telemetry_settings(
    tables: &Tables,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
    passwd: &Path,
) -> Result<Option<otlp::Settings>, ConfigError> {
    let raw: RawTelemetry = tables.read("telemetry")?;
    if raw.logs != Some(true) {
        return Ok(None);
    }
    let settings = otlp_settings(Signal::Logs, tables, flags, env, passwd)?;
    let no_receiver = || ConfigError::Value {
        key: "telemetry.logs".into(),
        problem: "there is no receiver to send the log to".into(),
        remedy: "set [otlp] endpoint as well".into(),
    };
    settings.ok_or_else(no_receiver).map(Some)
}
