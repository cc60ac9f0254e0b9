//! A sink as a row of the table `SINKS`: its name, its section of the configuration, its flag, and
//! how it is made.

use super::Sink;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::config::{ConfigError, Resolving, Section};
use gpuwho_model::finding::Finding;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::paths::Paths;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A row: one sink.
#[derive(Clone, Copy, Debug)]
pub struct SinkDef {
    /// `sink:` and its name, as in the agent's own metrics.
    pub name: &'static str,
    /// Its section of the configuration; several sinks may share one.
    pub section: Option<Section>,
    /// How `--sink` requests it.
    pub flag: Option<SinkFlag>,
    /// Makes the component from its section and flag.
    pub configure: fn(&Resolving<'_>) -> Result<Box<dyn Receiver>, ConfigError>,
}

/// How `--sink` requests a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkFlag {
    /// By its name alone.
    Plain,
    /// By its name, a colon and a value; holds the value's name in the help.
    With(&'static str),
}

/// What a sink is opened with.
#[derive(Clone, Copy, Debug)]
pub struct SinkContext<'a> {
    /// Where the host's files are.
    pub paths: &'a Paths,
    /// The name of this node in Kubernetes.
    pub node: Option<&'a str>,
    /// The attributes of this host.
    pub host: &'a AttrSet,
    /// Whether the pipeline ticks.
    pub heartbeat: &'a Arc<Heartbeat>,
}

/// An open sink and its name.
pub type NamedSink = (&'static str, Box<dyn Sink>);

/// The names of sinks that the configuration names. They live as long as the agent: its metrics and
/// its status have them.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The name of a further sink of a row.
pub fn sink_name(row: &str, name: &str) -> &'static str {
    let full = format!("{row}:{name}");
    let mut names = NAMES.lock();
    // Each once, so that reading the configuration again takes no memory.
    if let Some(known) = names.get(full.as_str()) {
        return known;
    }
    let leaked: &'static str = full.leak();
    names.insert(leaked);
    leaked
}

/// Why a sink does not open.
pub type OpenError = Box<dyn Error + Send + Sync>;

/// A sink as configured.
pub trait Receiver: fmt::Debug + Send {
    /// Opens it; `None` where the configuration does not request it.
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError>;

    /// Opens the further sinks of this row, each with its own name.
    fn open_more(&self, _context: &SinkContext<'_>) -> Result<Vec<NamedSink>, OpenError> {
        Ok(Vec::new())
    }

    /// Whether two cannot be open at a time: it listens on an address, or writes a file.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Checks the files and folders that it names, without making anything.
    fn check(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// Findings for `gpuwho doctor`.
    fn diagnose(&self) -> Vec<Finding> {
        Vec::new()
    }
}

impl SinkDef {
    /// The name for `--sink`.
    pub fn word(&self) -> &'static str {
        self.name.trim_start_matches("sink:")
    }

    /// The form in which `--sink` requests it.
    pub fn form(&self) -> Option<String> {
        Some(match self.flag? {
            SinkFlag::Plain => self.word().to_owned(),
            SinkFlag::With(value) => format!("{}:{value}", self.word()),
        })
    }

    /// Whether a `--sink` value requests this sink in its form.
    pub fn is_asked_by(&self, flag: &str) -> bool {
        match (self.flag, flag.split_once(':')) {
            (Some(SinkFlag::Plain), None) => flag == self.word(),
            (Some(SinkFlag::With(_)), Some((name, value))) => {
                name == self.word() && !value.is_empty()
            }
            _ => false,
        }
    }
}
