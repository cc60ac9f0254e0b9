//! The operator's configuration: the file, then the environment (`GPUWHO_…`), then flags. Each
//! overrides the one before.
//!
//! A raw section holds only the keys that were set. Resolving it gives complete, checked settings. Each
//! component brings its own section; the agent puts them together. An unknown key is an error that
//! names the key, its line and the nearest key.

pub mod checks;
mod error;
mod tables;
mod wording;

pub use error::ConfigError;
pub use tables::{OneOf, RemovedKey, Section, Tables};

use crate::catalog::selection::Selection;
use crate::paths::Paths;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Command-line flags, which override the file and the environment.
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
    /// `--prometheus`.
    pub prometheus: Option<String>,
    /// Each `--sink`: a name, or a name, a colon and a value.
    pub sinks: Vec<String>,
}

impl Flags {
    /// The value of the last `--sink` of this name; empty where it has none.
    pub fn sink(&self, name: &str) -> Option<&str> {
        let named = |flag: &str| flag.split_once(':').unwrap_or((flag, "")).0 == name;
        let flag = self.sinks.iter().rev().find(|flag| named(flag))?;
        Some(flag.split_once(':').map_or("", |(_, rest)| rest))
    }
}

/// The inputs from which a section is resolved.
pub struct Resolving<'a> {
    /// The sections.
    pub tables: &'a Tables,
    /// Time between readings.
    pub interval: Duration,
    /// Where the host's files are.
    pub paths: &'a Paths,
    /// Which metrics are exported.
    pub metrics: &'a Selection,
    /// The command line.
    pub flags: &'a Flags,
    /// Looks up an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
}

/// The longest time by which requests of different agents are spread.
const MAX_SPREAD: Duration = Duration::from_secs(5);

/// The time over which the agents of a fleet spread their requests.
pub fn spread(interval: Duration) -> Duration {
    (interval / 2).min(MAX_SPREAD)
}

/// Parses a duration with its unit; the default where there is no text.
pub fn duration(
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
