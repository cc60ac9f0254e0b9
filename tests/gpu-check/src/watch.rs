//! The built agent at work, as an operator starts it, and the points that it writes.

use gpuwho_model::catalog::attributes as attr;
use gpuwho_tests::agent::{Agent, AgentError, Config};
use gpuwho_tests::until::until;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A point as the file sink writes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Point {
    #[serde(deserialize_with = "time")]
    /// When it was read.
    pub time: SystemTime,
    /// The metric.
    pub metric: String,
    /// Its value; none of a distribution.
    pub value: Option<f64>,
    /// Its attributes.
    #[serde(default)]
    pub attributes: BTreeMap<String, serde_json::Value>,
}

/// Why there are no points.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The agent does not run.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A running agent and what it wrote.
#[derive(Debug)]
pub struct Watched {
    /// The agent.
    pub agent: Agent,
    file: PathBuf,
}

impl Watched {
    /// Starts the agent with its files in `folder`, reading every second.
    pub fn start(folder: &Path, library: Option<&Path>) -> Result<Self, WatchError> {
        let file = folder.join("points.jsonl");
        let library =
            library.map(|path| format!("[nvidia]\nlibrary = {:?}\n", path.display().to_string()));
        let config = Config {
            file: Some(file.clone()),
            nodes: Some(vec!["/dev/nvidia*".to_owned(), "/dev/nvidia-caps/*".to_owned()]),
            more: library.unwrap_or_default(),
            ..Config::default()
        };
        Ok(Self { agent: Agent::start(folder, &config, None)?, file })
    }

    /// Every point and event read at or after a moment.
    pub fn since(&self, moment: SystemTime) -> Result<Vec<Point>, WatchError> {
        let text = fs::read_to_string(&self.file)
            .map_err(|source| WatchError::File { path: self.file.clone(), source })?;
        // Events have another shape, and the last line may be half written.
        let points = text.lines().filter_map(|line| serde_json::from_str::<Point>(line).ok());
        Ok(points.filter(|point| point.time >= moment).collect())
    }

    /// The lines of events.
    pub fn events(&self) -> Result<Vec<serde_json::Value>, WatchError> {
        let text = fs::read_to_string(&self.file)
            .map_err(|source| WatchError::File { path: self.file.clone(), source })?;
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(lines.filter(|line: &serde_json::Value| line.get("metric").is_none()).collect())
    }

    /// Looks at the points since a moment until there is what is looked for.
    pub fn wait_for<T>(
        &self,
        since: SystemTime,
        within: Duration,
        mut look: impl FnMut(&[Point]) -> Option<T>,
    ) -> Option<T> {
        until(within, || look(&self.since(since).ok()?))
    }

    /// The PIDs of the agent and of all that any of its threads started.
    pub fn family(&self) -> Vec<u32> {
        let agent = self.agent.pid();
        let threads = fs::read_dir(format!("/proc/{agent}/task")).into_iter().flatten().flatten();
        let children: Vec<String> = threads
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
            .collect();
        let children = children.iter().flat_map(|text| text.split_whitespace());
        std::iter::once(agent).chain(children.filter_map(|pid| pid.parse().ok())).collect()
    }
}

impl Point {
    /// An attribute as text.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name)?.as_str()
    }

    /// The process it is about.
    pub fn pid(&self) -> Option<u32> {
        match self.attributes.get(attr::PROCESS_PID.name)? {
            serde_json::Value::String(text) => text.parse().ok(),
            number => u32::try_from(number.as_u64()?).ok(),
        }
    }

    /// Whether it is of this metric and has all of these attributes.
    pub fn is(&self, metric: &str, attributes: &[(&str, &str)]) -> bool {
        self.metric == metric
            && attributes.iter().all(|(name, value)| self.attribute(name) == Some(value))
    }
}

/// The values of a series among points, in their order.
pub fn values(points: &[Point], metric: &str, attributes: &[(&str, &str)]) -> Vec<f64> {
    let of = points.iter().filter(|point| point.is(metric, attributes));
    of.filter_map(|point| point.value).collect()
}

/// Their mean, if there are any.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)
}
