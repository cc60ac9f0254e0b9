//! The state file of open receipts, and a file for each finished one.
//!
//! The state file is written anew and renamed, so that an agent that is killed leaves the old file or the
//! new one. A receipt's file is one JSON object; beyond [`Settings::max_files`] the oldest one is removed
//! of the tenant with the most. Files from before the agent's start count as of one tenant.

use super::open::Open;
use super::view::{Receipt, makes_way};
use gpuwho_model::config::{ConfigError, Section, Tables, checks};
use gpuwho_model::paths::Paths;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "receipts";
const STATE_FILE: &str = "receipts.json";
/// The format version of the state file; a file of another version is not read.
const VERSION: u32 = 1;
/// A larger file is not the agent's: 4,096 receipts of some devices are 16 MB.
const MAX_STATE_BYTES: u64 = 32 << 20;
/// A file above this is written less often.
const LARGE: usize = 1 << 20;
const LARGE_FACTOR: u32 = 6;
/// Intervals between two writes, each of which waits for the disk: an agent that is killed loses so
/// much of its open receipts at most.
const PERIODS: u32 = 6;
/// Shortest time between two writes.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// Receipts that wait to be written; a burst of more loses the oldest.
const MAX_QUEUED: usize = 256;
const DEFAULT_MAX_FILES: usize = 10_000;
const MAX_FILES: usize = 1_000_000;
const MAX_NAME_LEN: usize = 128;

/// The section.
pub const SECTION: Section = Section::of::<RawReceipts>(
    NAME,
    r#"# Receipts: when a job, pod or unit that held a device ends, a log record of what it had and what it
# used; `gpuwho receipt JOB` prints it.
#: enabled = true
# Also write each one as a JSON file into this directory, at most max_files; then the oldest one is removed
# of the namespace or user that has the most.
#: directory = "/var/lib/gpuwho/receipts"
#: max_files = 10000
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawReceipts {
    enabled: Option<bool>,
    directory: Option<PathBuf>,
    max_files: Option<usize>,
}

/// The resolved section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether receipts are made.
    pub enabled: bool,
    /// Where files go.
    pub directory: Option<PathBuf>,
    /// Largest number of files.
    pub max_files: usize,
    /// The directory of the state file.
    pub state: Option<PathBuf>,
    /// Time between two writes of the state file.
    pub period: Duration,
}

impl Settings {
    /// From the section.
    pub fn resolve(
        tables: &Tables,
        paths: &Paths,
        interval: Duration,
    ) -> Result<Self, ConfigError> {
        let raw: RawReceipts = tables.read(NAME)?;
        checks::absolute(raw.directory.iter().map(|path| ("receipts.directory", path)))?;
        let max_files = raw.max_files.unwrap_or(DEFAULT_MAX_FILES);
        if !(1..=MAX_FILES).contains(&max_files) {
            return Err(ConfigError::Value {
                key: "receipts.max_files".into(),
                problem: format!("`{max_files}` is not a number of files"),
                remedy: format!("write 1 to {MAX_FILES}; {DEFAULT_MAX_FILES} is the default"),
            });
        }
        Ok(Self {
            enabled: raw.enabled.unwrap_or(true),
            directory: raw.directory,
            max_files,
            state: Some(paths.state.clone()),
            period: (interval * PERIODS).max(MIN_PERIOD),
        })
    }
}

/// What the state file holds.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Stored {
    version: u32,
    pub(super) open: Vec<Open>,
    pub(super) finished: Vec<Receipt>,
}

#[derive(Serialize)]
struct StoredRef<'a> {
    version: u32,
    open: &'a [&'a Open],
    finished: &'a VecDeque<Receipt>,
}

impl Stored {
    /// The text of the state file.
    pub(super) fn text(open: &[&Open], finished: &VecDeque<Receipt>) -> Vec<u8> {
        let stored = StoredRef { version: VERSION, open, finished };
        serde_json::to_vec(&stored).unwrap_or_default()
    }
}

/// A receipt that waits to be written.
#[derive(Debug)]
struct Queued {
    name: String,
    tenant: Arc<str>,
    text: Vec<u8>,
}

/// The files.
#[derive(Debug)]
pub(super) struct Files {
    settings: Settings,
    written: Option<Instant>,
    /// Length and hash of the state file's text.
    last: (usize, u64),
    queue: VecDeque<Queued>,
    /// Names in the directory with their tenants, the oldest first.
    names: Option<VecDeque<(String, Arc<str>)>>,
    /// Why the last writing failed.
    trouble: Option<String>,
    /// Receipts that have no file, because too many waited or it could not be written.
    lost: u64,
}

impl Files {
    /// Reads the state file.
    pub(super) fn open(settings: &Settings) -> (Self, Stored) {
        let path = settings.state.as_ref().map(|folder| folder.join(STATE_FILE));
        let stored = path.filter(|_| settings.enabled).map(|path| match read(&path) {
            Ok(stored) => stored,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot read open receipts; they begin anew");
                Stored::default()
            }
        });
        let files = Self {
            settings: settings.clone(),
            written: None,
            last: (0, 0),
            queue: VecDeque::new(),
            names: None,
            trouble: None,
            lost: 0,
        };
        (files, stored.unwrap_or_default())
    }

    /// Whether the state file should be written.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let factor = if self.last.0 > LARGE { LARGE_FACTOR } else { 1 };
        let period = self.settings.period * factor;
        self.written.is_none_or(|written| now.duration_since(written) >= period)
    }

    /// Writes the state file, unless it has this text.
    pub(super) fn store(&mut self, text: &[u8], now: Instant) {
        self.written = Some(now);
        let Some(folder) = self.settings.state.clone() else { return };
        let mut hasher = DefaultHasher::new();
        hasher.write(text);
        let print = (text.len(), hasher.finish());
        if print == self.last {
            return;
        }
        let written = fs::create_dir_all(&folder).and_then(|()| replace(&folder, STATE_FILE, text));
        match written {
            Ok(()) => {
                self.last = print;
                self.trouble = None;
            }
            Err(error) => self.fail(&folder, &error),
        }
    }

    /// Queues a finished receipt.
    pub(super) fn queue(&mut self, receipt: &Receipt) {
        if self.settings.directory.is_none() {
            return;
        }
        let Ok(mut text) = serde_json::to_vec_pretty(receipt) else { return };
        text.push(b'\n');
        let (name, tenant) = (file_name(receipt), receipt.tenant());
        self.queue.push_back(Queued { name, tenant, text });
        if self.queue.len() > MAX_QUEUED {
            let tenants = self.queue.iter().map(|queued| &*queued.tenant);
            self.queue.remove(makes_way(tenants).unwrap_or(0));
            self.lost += 1;
        }
    }

    /// Writes the queued receipts.
    pub(super) fn write_receipts(&mut self) {
        let Some(folder) = self.settings.directory.clone() else { return };
        while let Some(queued) = self.queue.pop_front() {
            if let Err(error) = self.write_one(&folder, &queued) {
                self.fail(&folder, &error);
                // Tried again with the next one.
                self.queue.push_front(queued);
                return;
            }
        }
    }

    /// Receipts without a file, although they should have one.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Why the last writing failed.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    fn write_one(&mut self, folder: &Path, queued: &Queued) -> io::Result<()> {
        let mut names = if let Some(names) = self.names.take() {
            names
        } else {
            fs::create_dir_all(folder)?;
            listed(folder)?.into_iter().map(|name| (name, "".into())).collect()
        };
        let name = free_name(folder, &queued.name);
        replace(folder, &name, &queued.text)?;
        self.trouble = None;
        names.push_back((name, Arc::clone(&queued.tenant)));
        while names.len() > self.settings.max_files {
            let place = makes_way(names.iter().map(|(_, tenant)| &**tenant));
            let Some((oldest, _)) = place.and_then(|place| names.remove(place)) else { break };
            match fs::remove_file(folder.join(oldest)) {
                // The receipt is written.
                Err(error) if error.kind() != io::ErrorKind::NotFound => self.fail(folder, &error),
                _ => {}
            }
        }
        self.names = Some(names);
        Ok(())
    }

    fn fail(&mut self, folder: &Path, error: &io::Error) {
        self.trouble = Some(format!("cannot write receipts in {}: {error}", folder.display()));
    }
}

/// The receipts' files of a directory, the oldest first: a name begins with its time.
fn listed(folder: &Path) -> io::Result<Vec<String>> {
    let names =
        fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_ours(name)).collect();
    names.sort_unstable();
    Ok(names)
}

fn is_ours(name: &str) -> bool {
    let time = name.get(..20).unwrap_or_default();
    Path::new(name).extension().is_some_and(|is| is == "json")
        && humantime::parse_rfc3339(time).is_ok()
}

/// A name that sorts by time.
fn file_name(receipt: &Receipt) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let name: String = receipt.receipt.chars().map(plain).take(MAX_NAME_LEN).collect();
    format!("{}-{name}.json", receipt.until)
}

/// The name, or with a number if a file has it: owners of different names may have the same plain one.
fn free_name(folder: &Path, name: &str) -> String {
    let plain = name.strip_suffix(".json").unwrap_or(name);
    let numbered = (2..=MAX_FILES).map(|number| format!("{plain}-{number}.json"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !folder.join(name).exists()).unwrap_or_else(|| name.to_owned())
}

/// Writes a new file and renames it.
fn replace(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let draft = folder.join(format!(".{name}.new"));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&draft)?;
    file.write_all(text)?;
    fs::rename(&draft, folder.join(name))
}

fn read(path: &Path) -> io::Result<Stored> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::default()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_STATE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_STATE_BYTES {
        return Err(io::Error::other(format!("it is larger than {MAX_STATE_BYTES} bytes")));
    }
    let stored: Stored = serde_json::from_slice(&text)?;
    if stored.version != VERSION {
        let version = stored.version;
        return Err(io::Error::other(format!("its format version is {version}, not {VERSION}")));
    }
    Ok(stored)
}
