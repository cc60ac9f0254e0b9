//! What is proved, in the order of the table. Each check says what it saw, and fails only on what a
//! user would call wrong.

mod agreement;
mod binding;
mod copies;
mod cost;
mod counters;
mod events;
mod latency;
mod load;
mod mps;
mod nccl;
mod ownership;
mod products;
mod release;
mod split;
mod start;

use crate::load::{LoadError, Running};
use crate::report::Row;
use crate::watch::{Point, WatchError, Watched, values};
use gpuwho_model::catalog::device as metric;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What is checked, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// NVML, where it is not found by itself.
    pub library: Option<PathBuf>,
    /// How long each load runs while it is measured.
    pub window: Duration,
    /// Calls of each NVML function that are timed.
    pub readings: u32,
}

/// What a check works with.
pub struct Bench<'a> {
    watched: &'a Watched,
    options: &'a Options,
    /// UUIDs of the GPUs that the agent reads, in its order.
    gpus: Vec<String>,
}

/// Why a check could not be tried or came to nothing.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Watch(#[from] WatchError),
    #[error("no reading of {0}")]
    NoReading(&'static str),
}

type Checked = Result<Vec<Row>, CheckError>;
type Check = fn(&Bench<'_>) -> Checked;

/// The checks that need a running agent, with the names of their rows where they come to nothing.
const CHECKS: &[(&str, Check)] = &[
    ("agreement", agreement::check),
    ("agrees with NVIDIA's binding", binding::check),
    ("load", load::check),
    ("performance counters", counters::check),
    ("copies over PCIe", copies::check),
    ("matrix products", products::check),
    ("split", split::check),
    ("clients of MPS", mps::check),
    ("ownership", ownership::check),
    ("release", release::check),
    ("events", events::check),
    ("nccl", nccl::check),
    ("cost", cost::check),
];

/// Runs every check in a folder for the agent's files; tells each row as it comes.
pub fn run(options: &Options, folder: &Path, mut report: impl FnMut(&Row)) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |new: Vec<Row>| {
        new.iter().for_each(&mut report);
        rows.extend(new);
    };
    add(latency::check(options));
    let watched = match Watched::start(folder, options.library.as_deref()) {
        Ok(watched) => watched,
        Err(error) => {
            add(vec![Row::fail("agent", error)]);
            return rows;
        }
    };
    let (gpus, started) = start::check(&watched);
    add(started);
    let bench = Bench { watched: &watched, options, gpus };
    if bench.gpus.is_empty() {
        return rows;
    }
    for (name, check) in CHECKS {
        let done = check(&bench).unwrap_or_else(|error| match error {
            CheckError::Load(error) => vec![Row::skip(name, error)],
            error => vec![Row::fail(name, error)],
        });
        add(done);
    }
    rows
}

impl Bench<'_> {
    /// Runs a load and gives what the agent read of its device from a moment after its begin on.
    fn under(&self, arguments: &[&str]) -> Result<(Running, SystemTime, Vec<Point>), CheckError> {
        let running = Running::start(arguments)?;
        // The driver's own averages look back up to a second.
        std::thread::sleep(Duration::from_secs(2));
        let begun = SystemTime::now();
        std::thread::sleep(self.options.window);
        let points = self.of(&running.ready.uuid, begun)?;
        Ok((running, begun, points))
    }

    /// The points about a device since a moment.
    fn of(&self, uuid: &str, since: SystemTime) -> Result<Vec<Point>, CheckError> {
        let mut points = self.watched.since(since)?;
        points.retain(|point| {
            point.attribute(gpuwho_model::catalog::attributes::GPU_UUID.name) == Some(uuid)
        });
        Ok(points)
    }

    /// Waits until a device answers again.
    fn answers(&self, uuid: &str, since: SystemTime, within: Duration) -> bool {
        let answered = self.watched.wait_for(since, within, |points| {
            let on = [(gpuwho_model::catalog::attributes::GPU_UUID.name, uuid)];
            values(points, metric::MEMORY_LIMIT.def().name, &on).first().copied()
        });
        answered.is_some()
    }
}
