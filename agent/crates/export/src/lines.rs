//! The sinks of JSON lines as rows, and their section `[sinks]`: standard output and a file.

use super::Sink;
use super::def::{OpenError, Receiver, SinkContext, SinkDef, SinkFlag};
use super::file::{self, GuardedFile, Rotation};
use super::filter::{Filter, RawFilter};
use super::naming::{Naming, RawNaming};
use super::stdout::JsonLines;
use gpuwho_model::config::{self, ConfigError, Resolving, Section, checks};
use gpuwho_model::finding::Finding;
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The row of standard output.
pub const STDOUT: SinkDef = SinkDef {
    name: "sink:stdout",
    section: Some(SECTION),
    flag: Some(SinkFlag::Plain),
    configure: |with| {
        let raw = read(with)?;
        let is_wanted = with.flags.sink("stdout").is_some() || raw.stdout == Some(true);
        let filter = Filter::resolve("sinks.stdout_filter", raw.stdout_filter.as_ref())?;
        let (naming, interval) = (naming(with)?, with.interval);
        Ok(Box::new(Stdout { is_wanted, filter, naming, interval }))
    },
};

/// The row of a file.
pub const FILE: SinkDef = SinkDef {
    name: "sink:file",
    section: Some(SECTION),
    flag: Some(SinkFlag::With("PATH")),
    configure: |with| {
        let raw = read(with)?;
        let path = with.flags.sink("file").map(PathBuf::from).or_else(|| raw.file.clone());
        let filter = Filter::resolve("sinks.file_filter", raw.file_filter.as_ref())?;
        let (naming, interval) = (naming(with)?, with.interval);
        Ok(Box::new(File { path, rotation: rotation(&raw)?, filter, naming, interval }))
    },
};

const SINKS: &str = "sinks";
const SECTION: Section = Section::of::<RawSinks>(
    SINKS,
    r#"# One JSON object a line for every point and every event. The file's folder must exist; the unit file
# makes /var/log/gpuwho. Nothing is written where another user has the file or can replace it.
#: stdout = false
#: file = "/var/log/gpuwho/points.jsonl"
# The file is renamed to FILE.1 when it would be larger or is older, FILE.1 to FILE.2, and so on; the
# oldest is deleted. file_max_age has no limit by default.
#: file_max_bytes = 104857600
#: file_max_age = "24h"
#: file_keep = 4
# What is written; the keys are those of otlp.filter.
#: stdout_filter = { metrics = [] }
#: file_filter = { metrics = ["gpu.*"], exclude = ["gpu.pcie.*"] }
# As in [otlp], for both.
#: names = ["native"]
#: owner_on_devices = false
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSinks {
    stdout: Option<bool>,
    file: Option<PathBuf>,
    file_max_bytes: Option<u64>,
    file_max_age: Option<String>,
    file_keep: Option<u32>,
    stdout_filter: Option<RawFilter>,
    file_filter: Option<RawFilter>,
    names: Option<Vec<String>>,
    owner_on_devices: Option<bool>,
}

/// Smallest size at which a file rotates: a batch of 1,000 points has 300 KiB.
const MIN_BYTES: u64 = 1 << 20;
/// Shortest age at which a file rotates.
const MIN_AGE: Duration = Duration::from_mins(1);
/// Most older files: each is renamed at a rotation.
const MAX_KEEP: u32 = 1000;

fn rotation(raw: &RawSinks) -> Result<Rotation, ConfigError> {
    let default = Rotation::default();
    let max_bytes = raw.file_max_bytes.unwrap_or(default.max_bytes);
    if max_bytes < MIN_BYTES {
        let problem = format!("{max_bytes} bytes are less than a batch may need");
        return Err(checks::wrong("sinks.file_max_bytes", problem, "write 1048576 or more"));
    }
    let keep = raw.file_keep.unwrap_or(default.keep);
    if keep > MAX_KEEP {
        let problem = format!("{keep} files are too many");
        return Err(checks::wrong("sinks.file_keep", problem, "write 1000 or less"));
    }
    let max_age = match &raw.file_max_age {
        None => None,
        Some(text) => {
            let age = config::duration("sinks.file_max_age", Some(text.clone()), MIN_AGE)?;
            if age < MIN_AGE {
                let problem = format!("`{text}` rotates at nearly every batch");
                return Err(checks::wrong("sinks.file_max_age", problem, "write 1m or more"));
            }
            Some(age)
        }
    };
    Ok(Rotation { max_bytes, max_age, keep })
}

fn read(with: &Resolving<'_>) -> Result<RawSinks, ConfigError> {
    let raw: RawSinks = with.tables.read(SINKS)?;
    checks::absolute(raw.file.as_deref().map(|file| ("sinks.file", file)))?;
    Ok(raw)
}

fn naming(with: &Resolving<'_>) -> Result<Naming, ConfigError> {
    let RawSinks { names, owner_on_devices, .. } = read(with)?;
    Naming::resolve(SINKS, RawNaming { names, owner_on_devices }, with)
}

#[derive(Debug)]
struct Stdout {
    is_wanted: bool,
    filter: Filter,
    naming: Naming,
    interval: Duration,
}

impl Receiver for Stdout {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        if !self.is_wanted {
            return Ok(None);
        }
        let sink = JsonLines::start("export:stdout", io::stdout()).map_err(ThreadError)?;
        let sink = self.naming.wrap(Box::new(sink), context.host);
        Ok(Some(self.filter.clone().before(sink, self.interval)))
    }
}

#[derive(Debug)]
struct File {
    path: Option<PathBuf>,
    rotation: Rotation,
    filter: Filter,
    naming: Naming,
    interval: Duration,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the sink's file {path}: {source}")]
struct FileError {
    path: PathBuf,
    source: io::Error,
}

/// Its thread does not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the thread that writes lines: {0}; look at the limit of processes (RLIMIT_NPROC, pids.max)"
)]
struct ThreadError(#[source] io::Error);

/// It has no folder. The agent makes none: a misspelt path would be made as well.
#[derive(Debug, thiserror::Error)]
#[error("`sinks.file`: there is no folder {path}; make it, or name a file in another one")]
struct FolderError {
    path: PathBuf,
}

impl Receiver for File {
    fn is_exclusive(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), OpenError> {
        let Some(path) = &self.path else { return Ok(()) };
        match path.parent().filter(|folder| !folder.is_dir()) {
            Some(path) => Err(FolderError { path: path.to_owned() }.into()),
            None => Ok(()),
        }
    }

    fn diagnose(&self) -> Vec<Finding> {
        let refusal = self.path.as_ref().and_then(|path| file::check(path).err());
        let finding = |refusal: file::UnsafeFile| {
            Finding::new("sinks.file", "degraded", refusal.to_string(), file::UnsafeFile::REMEDY)
        };
        refusal.map(finding).into_iter().collect()
    }

    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let Some(path) = &self.path else { return Ok(None) };
        let file = GuardedFile::open(path, self.rotation)
            .map_err(|source| FileError { path: path.clone(), source })?;
        let state = file.state.clone();
        let sink = JsonLines::start("export:file", file).map_err(ThreadError)?.with_state(state);
        let sink = self.naming.wrap(Box::new(sink), context.host);
        Ok(Some(self.filter.clone().before(sink, self.interval)))
    }
}
