//! The section `[spool]`.

use super::{Found, Limits, SpoolFolder};
use gpuwho_model::config::{self, ConfigError, Section, Tables, checks};
use gpuwho_model::finding::Finding;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

const SPOOL: &str = "spool";

/// The section.
pub const SECTION: Section = Section::of::<RawSpool>(
    SPOOL,
    r#"# A folder in which requests wait on disk until the receiver has them, also while the agent is stopped.
# Each OTLP receiver and webhook has its own folder in it, with mode 0700. Without it requests wait in memory.
#: folder = "/var/lib/gpuwho/spool"
# Events always wait there. true: metrics as well. Late metrics are useful only to a receiver that
# accepts points as old as that.
#: metrics = false
# Bytes on disk for each receiver and signal; the oldest give way beyond it.
#: max_bytes = 268435456
# Older requests are dropped.
#: max_age = "7d"
# Bytes a second, as compressed, at which a backlog is sent.
#: drain_bytes = 262144
"#,
);

const MAX_BYTES: u64 = 256 << 20;
/// A few requests of the largest size.
const MIN_BYTES: u64 = 1 << 20;
const MAX_AGE: Duration = Duration::from_hours(7 * 24);
const MIN_AGE: Duration = Duration::from_mins(1);
/// A hundred times what an eight-GPU node sends.
const DRAIN_BYTES: u64 = 256 << 10;
const MIN_DRAIN: u64 = 1 << 10;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSpool {
    folder: Option<PathBuf>,
    metrics: Option<bool>,
    max_bytes: Option<u64>,
    max_age: Option<String>,
    drain_bytes: Option<u64>,
}

/// The spool of every sink.
#[derive(Clone, Debug, Default)]
pub struct Settings(Option<On>);

#[derive(Clone, Debug)]
struct On {
    folder: PathBuf,
    metrics: bool,
    limits: Limits,
    drain: u64,
}

impl Settings {
    /// Reads the section.
    pub fn resolve(tables: &Tables) -> Result<Self, ConfigError> {
        let raw: RawSpool = tables.read(SPOOL)?;
        let bytes = raw.max_bytes.unwrap_or(MAX_BYTES);
        if bytes < MIN_BYTES {
            let problem = format!("{bytes} bytes hold hardly one request");
            return Err(checks::wrong("spool.max_bytes", problem, "write 1048576 or more"));
        }
        let text = raw.max_age.clone().unwrap_or_default();
        let age = config::duration("spool.max_age", raw.max_age, MAX_AGE)?;
        if age < MIN_AGE {
            let problem = format!("`{text}` is no time to wait for a receiver");
            return Err(checks::wrong("spool.max_age", problem, "write 1m or more"));
        }
        let drain = raw.drain_bytes.unwrap_or(DRAIN_BYTES);
        if drain < MIN_DRAIN {
            let problem = format!("{drain} bytes a second are less than a node sends");
            return Err(checks::wrong("spool.drain_bytes", problem, "write 1024 or more"));
        }
        let metrics = raw.metrics.unwrap_or(false);
        let Some(folder) = raw.folder.filter(|folder| !folder.as_os_str().is_empty()) else {
            if metrics {
                let problem = "there is no spool".to_owned();
                return Err(checks::wrong("spool.metrics", problem, "set spool.folder as well"));
            }
            return Ok(Self(None));
        };
        checks::absolute([("spool.folder", &folder)])?;
        Ok(Self(Some(On { folder, metrics, limits: Limits { bytes, age }, drain })))
    }

    /// The spool of a sink of metrics.
    pub fn of_metrics(&self, sink: &str) -> Option<SpoolFolder> {
        self.0.as_ref().filter(|on| on.metrics).map(|on| on.of(sink))
    }

    /// The spool of a sink of events.
    pub fn of_events(&self, sink: &str) -> Option<SpoolFolder> {
        self.0.as_ref().map(|on| on.of(sink))
    }

    /// Whether a sink of events, or one of metrics, has a spool.
    pub fn is_used(&self, has_events: bool) -> bool {
        self.0.as_ref().is_some_and(|on| has_events || on.metrics)
    }

    /// What waits in the spool of a sink of events, or of one of metrics only.
    pub fn diagnose(&self, sink: &str, has_events: bool) -> Option<Finding> {
        let folder = self.0.as_ref().filter(|on| has_events || on.metrics)?.path(sink);
        let subject = format!("spool {}", word(sink));
        let shown = folder.display();
        let finding = match Found::read(&folder) {
            Err(error) => Finding::new(
                subject,
                "failed",
                format!("{shown}: {error}"),
                "run doctor as root, or set spool.folder",
            ),
            Ok(found) => {
                let Found { requests, points, bytes, unusable, totals, .. } = found;
                let lost = totals.full + totals.expired + totals.damaged;
                let mut facts =
                    format!("{requests} requests ({points} items, {bytes} bytes) wait in {shown}");
                if lost > 0 {
                    facts = format!("{facts}; {lost} items were dropped since it was made");
                }
                if unusable > 0 {
                    facts = format!("{facts}; {unusable} files are not readable by this version");
                }
                Finding::new(subject, "ok", facts, "")
            }
        };
        Some(finding)
    }
}

impl On {
    fn of(&self, sink: &str) -> SpoolFolder {
        SpoolFolder::new(self.path(sink), self.limits, self.drain)
    }

    fn path(&self, sink: &str) -> PathBuf {
        self.folder.join(word(sink))
    }
}

/// The sink's name without `sink:`; a colon is no part of a folder's name.
fn word(sink: &str) -> String {
    sink.trim_start_matches("sink:").replace(':', ".")
}
