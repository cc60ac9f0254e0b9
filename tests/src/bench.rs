//! Measures the whole agent on this machine: what it costs, what it costs others, and how soon it
//! knows an owner. Prints one table with the targets beside the figures.
//!
//! The agent is the release binary, the library is the fake one, the processes and their cgroups
//! are real. What cannot be measured here has a row that says why.

pub mod amd;
pub mod calls;
pub mod cost;
pub mod crowd;
pub mod engines;
pub mod latency;
pub mod load;
pub mod opens;
pub mod peers;
pub mod programs;
pub mod ranks;
pub mod receiver;
pub mod scale;
pub mod stages;
pub mod table;

use crate::agent::{Agent, AgentError};
use crate::budget::{self, Figures};
use crate::nvml::NvmlError;
use crate::program::NotBuilt;
use crate::stage::{Stage, StageError};
use crate::worker::WorkerError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::Row;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the agent's CPU time is watched at each interval.
    pub watch: Duration,
    /// Rounds of the open-heavy process, each without an agent and with one of each hook.
    pub rounds: usize,
    /// Only sections with this in their name.
    pub only: Option<String>,
    /// Compare with the budgets instead of printing the whole table.
    pub check: bool,
    /// The pages whose table is replaced by this one.
    pub pages: Vec<PathBuf>,
    /// Only the agent beside the exporters that this file lists.
    pub peers: Option<PathBuf>,
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
    /// What is not on this machine.
    #[error("needs {0}")]
    Needs(String),
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
    /// Figures above their budget.
    #[error("above the budgets of agent/docs/budgets.json:\n  {}", .0.join("\n  "))]
    Broken(Vec<String>),
    /// The page has no place for the table.
    #[error("{} has no line `{}` with a line `{TABLE_ENDS}` behind it", .0.display(), .1)]
    NoPlace(PathBuf, String),
    /// The kernel source does not work here as asked.
    #[error("BPF: {0}")]
    WithoutKernel(String),
}

/// Parts whose sections are one table: their names begin so.
const PARTS: [&str; 2] = ["agent at", "a crowd"];
/// What surrounds the tables in the page: the first line says what measures it.
const TABLE_ENDS: &str = "<!-- end -->";

/// The benchmarks of `agent/benches` that have a table: its name, the program, and its arguments.
const PROGRAMS: [(&str, &str, &[&str]); 6] = [
    ("encoder against the SDK", "encode", &[]),
    ("attribution of a tick", "attribution", &["--no-idle"]),
    ("delivery of a tick", "delivery", &[]),
    ("page of an engine", "engine", &[]),
    ("collective call that is counted", "nccl", &["calls"]),
    ("calls faster than the probe budget", "nccl", &["budget"]),
];

/// The line before the table of a part of the measurements.
fn mark(part: &str) -> String {
    format!("<!-- measured by cargo xtask bench --only \"{part}\" -->")
}

impl BenchError {
    pub(crate) fn os(what: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Os { what, source }
    }
}

/// Measures everything and prints the table.
pub fn run(options: &Options) -> Result<(), BenchError> {
    println!("{}", table::machine());
    if options.check {
        let mut figures = Figures::new();
        for every in ["1s", "10s"] {
            figures.extend(cost::measure(every, options.watch)?.1);
        }
        for (name, figure) in &figures {
            println!("{name:<24}{figure:>10.3}");
        }
        let broken = budget::broken("bench", &figures);
        return if broken.is_empty() { Ok(()) } else { Err(BenchError::Broken(broken)) };
    }
    if let Some(list) = &options.peers {
        let text = peers::measure(list, options.watch)?;
        println!("{text}");
        let mark = "<!-- measured by cargo xtask bench --peers -->";
        return options.pages.iter().try_for_each(|page| write(page, mark, &text));
    }
    let mut all = Measured { options, parts: Vec::new() };
    let mut section = |name: &str, measure: &dyn Fn() -> Result<Vec<Row>, BenchError>| {
        all.section(name, measure);
    };
    section("time from open to owner", &latency::measure);
    for every in ["1s", "10s"] {
        section(&format!("agent at {every}"), &|| Ok(cost::measure(every, options.watch)?.0));
    }
    for churn in [false, true] {
        let name = if churn { "a crowd that comes and goes" } else { "a crowd" };
        section(name, &|| stages::measure(churn, options.watch));
    }
    section("a node each second", &|| scale::each_second(options.watch));
    section("more series", &|| scale::measure(options.watch));
    section("engines", &|| engines::measure(options.watch));
    section("partitions of AMD's", &|| amd::measure(options.watch));
    section("calls into the library", &|| calls::measure(options.watch));
    section("ranks that call without a pause", &|| ranks::measure(options.watch));
    section("opening ordinary files", &|| opens::measure(options.rounds));
    for (name, program, arguments) in PROGRAMS {
        section(name, &|| programs::measure(program, arguments));
    }
    all.show()
}

/// What was measured, by part: each is a table of the page.
struct Measured<'a> {
    options: &'a Options,
    parts: Vec<Part>,
}

struct Part {
    name: String,
    /// Of before it was measured.
    source: String,
    rows: Vec<Row>,
}

impl Measured<'_> {
    /// Measures a section, if it is wanted.
    fn section(&mut self, name: &str, measure: &dyn Fn() -> Result<Vec<Row>, BenchError>) {
        if self.options.only.as_deref().is_some_and(|only| !name.contains(only)) {
            return;
        }
        let source = table::source();
        let measured = measure();
        eprintln!("measured: {name}");
        let rows = measured.unwrap_or_else(|why| vec![Row::missing(name, why.to_string())]);
        let name = PARTS.into_iter().find(|part| name.starts_with(part)).unwrap_or(name);
        match self.parts.iter_mut().find(|part| part.name == name) {
            Some(part) => part.rows.extend(rows),
            None => self.parts.push(Part { name: name.to_owned(), source, rows }),
        }
    }

    /// Prints everything, and puts what has a place in the pages there.
    fn show(&self) -> Result<(), BenchError> {
        let all: Vec<Row> = self.parts.iter().flat_map(|part| &part.rows).cloned().collect();
        println!("{}", table::render(&all));
        let places = |page| self.parts.iter().map(move |part| (page, part));
        for (page, part) in self.options.pages.iter().flat_map(places) {
            match write(page, &mark(&part.name), &part.text()) {
                Err(error @ BenchError::NoPlace(..)) => eprintln!("bench: {error}"),
                written => written?,
            }
        }
        Ok(())
    }
}

impl Part {
    /// The table of a page, with where it comes from.
    fn text(&self) -> String {
        let rows: Vec<Row> = self.rows.iter().filter(|row| !row.is_detail()).cloned().collect();
        format!("{}\n\n{}", self.source, table::render(&rows))
    }
}

/// Puts a text between the marks of a page.
fn write(page: &Path, mark: &str, measured: &str) -> Result<(), BenchError> {
    let text = fs::read_to_string(page).map_err(BenchError::os(page))?;
    let no_place = || BenchError::NoPlace(page.to_owned(), mark.to_owned());
    let (before, rest) = text.split_once(mark).ok_or_else(no_place)?;
    let (_, after) = rest.split_once(TABLE_ENDS).ok_or_else(no_place)?;
    let text = format!("{before}{mark}\n{measured}{TABLE_ENDS}{after}");
    fs::write(page, text).map_err(BenchError::os(page))
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
