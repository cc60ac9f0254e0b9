//! Measures the whole agent on this machine: what it costs, what it costs others, and how soon it
//! knows an owner. Prints one table with the targets beside the figures.
//!
//! The agent is the release binary, the library is the fake one, the processes and their cgroups
//! are real. What cannot be measured here has a row that says why.

pub mod calls;
pub mod cost;
pub mod crowd;
pub mod encoder;
pub mod latency;
pub mod load;
pub mod opens;
pub mod ranks;
pub mod receiver;
pub mod stages;
pub mod table;

use crate::agent::{Agent, AgentError};
use crate::nvml::NvmlError;
use crate::program::NotBuilt;
use crate::stage::{Stage, StageError};
use crate::worker::WorkerError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use table::Row;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the agent's CPU time is watched at each interval.
    pub watch: Duration,
    /// Rounds of the open-heavy process, each without an agent and with one of each hook.
    pub rounds: usize,
    /// Whether to run the encoder's own benchmark.
    pub encoder: bool,
    /// Only sections with this in their name.
    pub only: Option<String>,
}

/// Why a figure cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The cgroups.
    #[error("needs {0}")]
    Stage(#[from] StageError),
    /// The processes.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The fake driver.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Something that was not built.
    #[error(transparent)]
    NotBuilt(#[from] NotBuilt),
    /// What the agent sent.
    #[error("what the agent sent: {0}")]
    Sent(#[from] prost::DecodeError),
    /// A file or process operation.
    #[error("{what}: {source}")]
    Os {
        /// On what.
        what: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A file that says something else than expected.
    #[error("{what} does not say {expected}")]
    Strange {
        /// What.
        what: String,
        /// The expectation.
        expected: &'static str,
    },
    /// The kernel source does not work here as asked.
    #[error("BPF: {0}")]
    WithoutKernel(String),
}

impl BenchError {
    fn os(what: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Os { what, source }
    }
}

/// Measures everything and prints the table.
pub fn run(options: &Options) -> Result<(), BenchError> {
    println!("{}", table::machine());
    let mut rows = Vec::new();
    let mut section = |name: &str, measure: &dyn Fn() -> Result<Vec<Row>, BenchError>| {
        if options.only.as_deref().is_some_and(|only| !name.contains(only)) {
            return;
        }
        let measured = measure();
        eprintln!("measured: {name}");
        rows.extend(measured.unwrap_or_else(|why| vec![Row::missing(name, why.to_string())]));
    };
    section("time from open to owner", &latency::measure);
    for every in ["1s", "10s"] {
        section(&format!("agent at {every}"), &|| cost::measure(every, options.watch));
    }
    for churn in [false, true] {
        let name = if churn { "a crowd that comes and goes" } else { "a crowd" };
        section(name, &|| stages::measure(churn, options.watch));
    }
    section("calls into the library", &|| calls::measure(options.watch));
    section("ranks that call without a pause", &|| ranks::measure(options.watch));
    section("opening ordinary files", &|| opens::measure(options.rounds));
    if options.encoder {
        section("encoder against the SDK", &encoder::measure);
    }
    println!("{}", table::render(&rows));
    Ok(())
}

/// The stage for one measurement.
fn stage() -> Result<Stage, BenchError> {
    Ok(Stage::new()?)
}

/// Whether the kernel source works as it should; its own reason if not.
fn needs_kernel(agent: &Agent) -> Result<(), BenchError> {
    let who = agent.who()?;
    let sources = who["sources"].as_array().map_or(&[][..], Vec::as_slice);
    match sources.iter().find(|source| source["name"] == "device_users") {
        Some(source) if source["state"] == "ready" => Ok(()),
        Some(source) => {
            Err(BenchError::WithoutKernel(source["reason"].as_str().unwrap_or_default().to_owned()))
        }
        None => Err(BenchError::WithoutKernel("the agent has no such source".to_owned())),
    }
}
