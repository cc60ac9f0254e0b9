//! The sinks of JSON lines as rows, and their section `[sinks]`: standard output and a file.

use super::Sink;
use super::def::{OpenError, Receiver, SinkContext, SinkDef, SinkFlag};
use super::stdout::JsonLines;
use crate::config::{ConfigError, Resolving, Section, checks};
use serde::Deserialize;
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;

/// The row of standard output.
pub const STDOUT: SinkDef = SinkDef {
    name: "sink:stdout",
    section: Some(SECTION),
    flag: Some(SinkFlag::Plain),
    configure: |with| {
        let is_wanted = with.flags.sink("stdout").is_some() || read(with)?.stdout == Some(true);
        Ok(Box::new(Stdout { is_wanted }))
    },
};

/// The row of a file.
pub const FILE: SinkDef = SinkDef {
    name: "sink:file",
    section: Some(SECTION),
    flag: Some(SinkFlag::With("PATH")),
    configure: |with| {
        let raw = read(with)?;
        let path = with.flags.sink("file").map(PathBuf::from).or(raw.file);
        Ok(Box::new(File { path }))
    },
};

const SINKS: &str = "sinks";
const SECTION: Section = Section::of::<RawSinks>(
    SINKS,
    r#"# One JSON object a line for every point and every event. The file's folder must exist; the unit file
# makes /var/log/gpuwho.
#: stdout = false
#: file = "/var/log/gpuwho/points.jsonl"
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSinks {
    stdout: Option<bool>,
    file: Option<PathBuf>,
}

fn read(with: &Resolving<'_>) -> Result<RawSinks, ConfigError> {
    let raw: RawSinks = with.tables.read(SINKS)?;
    checks::absolute(raw.file.as_deref().map(|file| ("sinks.file", file)))?;
    Ok(raw)
}

#[derive(Debug)]
struct Stdout {
    is_wanted: bool,
}

impl Receiver for Stdout {
    fn open(&self, _: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        Ok(self.is_wanted.then(|| Box::new(JsonLines::new(io::stdout())) as Box<dyn Sink>))
    }
}

#[derive(Debug)]
struct File {
    path: Option<PathBuf>,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the sink's file {path}: {source}")]
struct FileError {
    path: PathBuf,
    source: io::Error,
}

/// It has no folder. The agent makes none: a misspelt path would be made as well.
#[derive(Debug, thiserror::Error)]
#[error("`sinks.file`: there is no folder {path}; make it, or name a file in another one")]
struct FolderError {
    path: PathBuf,
}

impl Receiver for File {
    fn check(&self) -> Result<(), OpenError> {
        let Some(path) = &self.path else { return Ok(()) };
        match path.parent().filter(|folder| !folder.is_dir()) {
            Some(path) => Err(FolderError { path: path.to_owned() }.into()),
            None => Ok(()),
        }
    }

    fn open(&self, _: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let Some(path) = &self.path else { return Ok(None) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|source| FileError { path: path.clone(), source })?;
        Ok(Some(Box::new(JsonLines::new(file))))
    }
}
