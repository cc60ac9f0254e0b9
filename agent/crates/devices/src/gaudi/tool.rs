//! A device by `hl-smi`, where the library is not installed.
//!
//! One thread runs the program every half minute, for all devices at once. The program has a deadline
//! and its output a bound; it is killed with its process group when it passes either, and with this
//! process. What it said is used for three runs at most. No line is read by position unless it has as
//! many columns as were asked for.

use super::Identity;
use crate::link::readable;
use crate::sysfs::PERCENT;
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::device::{self as metric, MemoryState, Sensor, Task};
use gpuwho_model::catalog::wear::{self, EccCount, EccError};
use gpuwho_sys::process::end_with_this_thread;
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between two runs.
const EVERY: Duration = Duration::from_secs(30);
/// How long what it said is used.
const MAX_AGE: Duration = Duration::from_secs(90);
/// For one run; it takes one to three seconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of its output; eight devices have 2 kB.
const MAX_OUTPUT: usize = 64 << 10;
/// Lines that are read.
const MAX_LINES: usize = 256;
/// Bytes of a text such as the serial number.
const MAX_TEXT: usize = 128;

/// What is asked for. Older builds refuse the whole query for one word that they do not know, so
/// those of [`SINCE_EVER`] are asked for alone where all are refused.
const ALL: &[&str] = &[
    "bus_id",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "temperature.aip",
    "utilization.aip",
    "power.draw",
    "serial",
    "ecc.errors.uncorrected.aggregate.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.corrected.volatile.total",
];
const SINCE_EVER: usize = 9;

/// Whether a path names the program and not the library.
pub(super) fn is_tool(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "hl-smi")
}

/// Why there is nothing of a run.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error("hl-smi cannot be run: {0}")]
    Run(#[from] io::Error),
    #[error("hl-smi did not end within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("hl-smi wrote more than {MAX_OUTPUT} bytes")]
    TooLong,
    #[error("hl-smi ended with {0}")]
    Status(std::process::ExitStatus),
    #[error("hl-smi wrote no line with {0} columns")]
    Columns(usize),
}

/// The program, and what it said last.
pub(super) struct Tool {
    program: PathBuf,
    timeout: Duration,
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    at: Option<Instant>,
    /// A device's columns by its PCI address.
    rows: BTreeMap<String, Row>,
    problem: String,
}

type Row = BTreeMap<&'static str, String>;

impl Tool {
    /// Runs the program once, and from then on regularly.
    pub(super) fn start(program: &Path) -> Arc<Self> {
        let tool = Arc::new(Self::new(program, TIMEOUT));
        tool.run();
        let weak = Arc::downgrade(&tool);
        let body = move || {
            loop {
                thread::sleep(EVERY);
                let Some(tool) = weak.upgrade() else { return };
                tool.run();
            }
        };
        let started = thread::Builder::new().name("gaudi:hl-smi".to_owned()).spawn(body);
        if let Err(error) = started {
            tool.latest.lock().problem = format!("cannot start a thread for hl-smi: {error}");
        }
        tool
    }

    fn new(program: &Path, timeout: Duration) -> Self {
        Self { program: program.to_owned(), timeout, latest: Mutex::default() }
    }

    fn run(&self) {
        let asked = self.ask(ALL).or_else(|error| match error {
            // Of a build that does not know a word.
            ToolError::Status(_) | ToolError::Columns(_) => {
                self.ask(ALL.get(..SINCE_EVER).unwrap_or(ALL))
            }
            error => Err(error),
        });
        let mut latest = self.latest.lock();
        match asked {
            Ok(rows) => {
                *latest = Latest { at: Some(Instant::now()), rows, problem: String::new() };
            }
            Err(error) => latest.problem = error.to_string(),
        }
    }

    fn ask(&self, fields: &[&'static str]) -> Result<BTreeMap<String, Row>, ToolError> {
        let output = self.output(&fields.join(","))?;
        let rows: BTreeMap<_, _> = output
            .lines()
            .take(MAX_LINES)
            .filter_map(|line| {
                let columns: Vec<_> = line.split(',').map(str::trim).collect();
                let is_whole = columns.len() == fields.len();
                let values = fields.iter().copied().zip(columns.iter().map(ToString::to_string));
                let row: Row = values.filter(|(_, text)| text.len() <= MAX_TEXT).collect();
                let address = row.get("bus_id")?.to_ascii_lowercase();
                (is_whole && gpuwho_model::ids::PciAddress::parse(&address).is_some())
                    .then_some((address, row))
            })
            .collect();
        if rows.is_empty() { Err(ToolError::Columns(fields.len())) } else { Ok(rows) }
    }

    /// Runs the program; its output.
    fn output(&self, fields: &str) -> Result<String, ToolError> {
        let mut command = Command::new(&self.program);
        command
            .args(["-Q", fields, "-f", "csv,noheader"])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        end_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        let read = read(&mut child, Instant::now() + self.timeout);
        if read.is_err() {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // Fails only if all of them have ended.
            group.map(|group| kill_process_group(group, Signal::KILL));
        }
        let status = child.wait()?;
        let bytes = read.map_err(|error| match error {
            ToolError::Late(_) => ToolError::Late(self.timeout),
            error => error,
        })?;
        if !status.success() {
            return Err(ToolError::Status(status));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What it says of who a device is.
    pub(super) fn identity(&self, address: &str) -> Identity {
        let latest = self.latest.lock();
        let Some(row) = latest.rows.get(&address.to_ascii_lowercase()) else {
            return Identity::default();
        };
        let text = |field| row.get(field).filter(|text| is_word(text)).cloned();
        Identity {
            uuid: text("uuid"),
            model: text("name"),
            serial: text("serial"),
            driver: text("driver_version"),
        }
    }

    /// Adds the values of a device; what is missing and why, if anything.
    pub(super) fn values(&self, address: &str, out: &mut Vec<WireValue>) -> String {
        let latest = self.latest.lock();
        let is_fresh = latest.at.is_some_and(|at| at.elapsed() <= MAX_AGE);
        let row = latest.rows.get(&address.to_ascii_lowercase()).filter(|_| is_fresh);
        let Some(row) = row else {
            let unlisted = "hl-smi does not list the device".to_owned();
            let problem = latest.problem.clone();
            return if problem.is_empty() { unlisted } else { problem };
        };
        fill(row, out);
        latest.problem.clone()
    }
}

/// Reads the output to its end, and waits for the end of the program.
fn read(child: &mut Child, deadline: Instant) -> Result<Vec<u8>, ToolError> {
    let late = || ToolError::Late(Duration::ZERO);
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    if let Some(output) = &mut child.stdout {
        loop {
            if !readable(output, left())? {
                return Err(late());
            }
            match output.read(&mut buffer)? {
                0 => break,
                length => bytes.extend(buffer.iter().take(length)),
            }
            if bytes.len() > MAX_OUTPUT {
                return Err(ToolError::TooLong);
            }
        }
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    if readable(&ended, left())? { Ok(bytes) } else { Err(late()) }
}

/// Whether a text is a name or a number and not `N/A`.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    !text.is_empty() && text != "N/A" && text.bytes().all(is_plain)
}

/// `672 MiB` in its base unit: a number, and the unit if there is one.
fn number(text: &str, unit: &str) -> Option<f64> {
    let (number, found) = text.split_once(' ').unwrap_or((text, unit));
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite())?;
    (number >= 0.0 && found.trim().eq_ignore_ascii_case(unit)).then_some(number)
}

fn bytes(text: &str) -> Option<i64> {
    const MIB: f64 = 1_048_576.0;
    const MOST: f64 = 1e15;
    let bytes = number(text, "MiB")? * MIB;
    #[expect(clippy::cast_possible_truncation, reason = "whole, and below the bound")]
    (bytes < MOST).then_some(bytes as i64)
}

fn fill(row: &Row, out: &mut Vec<WireValue>) {
    let text = |field: &str| row.get(field).map_or("", String::as_str);
    let busy = number(text("utilization.aip"), "%").filter(|percent| *percent <= PERCENT);
    push(out, &metric::UTILIZATION, Task::General, busy.map(|percent| percent / PERCENT));
    let total = bytes(text("memory.total")).filter(|total| *total > 0);
    push(out, &metric::MEMORY_LIMIT, (), total);
    let used = bytes(text("memory.used"));
    if let Some((total, used)) = total.zip(used).filter(|(total, used)| used <= total) {
        push(out, &metric::MEMORY_USAGE, MemoryState::Used, Some(used));
        push(out, &metric::MEMORY_USAGE, MemoryState::Free, Some(total - used));
    }
    push(out, &metric::POWER, (), number(text("power.draw"), "W"));
    let degrees = number(text("temperature.aip"), "C");
    push(out, &metric::TEMPERATURE, Sensor::Gpu, degrees);
    for (kind, word) in [(EccError::Corrected, "corrected"), (EccError::Uncorrected, "uncorrected")]
    {
        for (count, since) in [(EccCount::Volatile, "volatile"), (EccCount::Aggregate, "aggregate")]
        {
            let field = format!("ecc.errors.{word}.{since}.total");
            let errors = text(&field).parse::<u32>().ok().filter(|errors| *errors != u32::MAX);
            push(out, &wear::ECC_ERRORS, (kind, count), errors.map(i64::from));
        }
    }
}

#[cfg(test)]
mod tests;
