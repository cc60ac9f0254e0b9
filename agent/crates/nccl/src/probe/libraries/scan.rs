//! Scans the processes that hold a device for libraries that they load or unload.
//!
//! A new process is checked eight times a second, because Python loads libraries late; the interval
//! then doubles as often as it is at most a quarter of the process's age, up to thirty seconds, on one
//! grid for all processes, so that they share wakes. A process that executes another program or opens another
//! device counts as new. A check reads one line, `/proc/PID/statm`, from a file that stays open,
//! which saves six sevenths of the time. Only if that shows other mappings, `stat` and `status` are
//! read, and the mappings themselves only if the size of the code changed: 200 processes cost 200
//! reads each thirty seconds, about 1.5 µs each. These files are the kernel's own and never block.

use super::{Libraries, ScanOutcome};
use gpuwho_collect::schedule::after;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::text::read_lossy;
use gpuwho_owners::proc_scan::is_alive;
use gpuwho_owners::tenant_files::TenantFiles;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Interval of checks of a process that has been known for minutes.
pub(in super::super) const OLD_EVERY: Duration = Duration::from_secs(30);
/// How often it is halved for a new process: a job loads its library when it starts.
const HALVINGS: u32 = 8;
/// Interval of checks of a new process.
const YOUNG_EVERY: Duration = Duration::from_nanos(30_000_000_000 >> HALVINGS);
/// The longest interval not above this fraction of the process's age is used.
const PART_OF_AGE: u32 = 4;
/// Longer than the line of seven numbers.
const LINE_BYTES: usize = 160;
/// Limit on files that stay open, a quarter of the default limit of a service; others are opened
/// for each check.
const MAX_OPEN: usize = 256;

/// Returns the processes to scan: those that hold a device.
pub(in super::super) type Candidates = Box<dyn Fn() -> Vec<ProcKey> + Send>;

/// The scanned processes and their libraries.
pub(in super::super) struct ProcessScan {
    pub libraries: Libraries,
    paths: Paths,
    candidates: Candidates,
    seen: HashMap<ProcKey, ScannedProcess>,
    /// Origin of the grid.
    began: Instant,
}

/// A process as of the last check.
#[derive(Debug)]
struct ScannedProcess {
    since: Instant,
    due: Instant,
    /// Its `statm`. The open file belongs to the process: reading fails once the process has ended,
    /// even if its PID was reused.
    statm: Option<File>,
    /// Pages of code and files.
    mapped: Option<u64>,
    code_kb: Option<u64>,
}

impl ProcessScan {
    pub(in super::super) fn new(
        files: TenantFiles,
        paths: &Paths,
        candidates: Candidates,
        began: Instant,
    ) -> Self {
        let libraries = Libraries::new(files, paths);
        Self { libraries, paths: paths.clone(), candidates, seen: HashMap::new(), began }
    }

    /// Treats a known process as new, after it executed another program or opened another device.
    pub(in super::super) fn request_rescan(&mut self, process: ProcKey, now: Instant) {
        if let Some(seen) = self.seen.get_mut(&process) {
            (seen.since, seen.due) = (now, now);
            (seen.mapped, seen.code_kb) = (None, None);
        }
    }

    /// The processes that hold a device.
    pub(in super::super) fn openers(&self) -> HashSet<ProcKey> {
        self.seen.keys().copied().collect()
    }

    /// Checks the due processes; true if a library gained or lost a user.
    pub(in super::super) fn check(&mut self, now: Instant) -> bool {
        let candidates: HashSet<ProcKey> = (self.candidates)().into_iter().collect();
        let mut changed = false;
        let libraries = &mut self.libraries;
        self.seen.retain(|process, _| {
            let is_candidate = candidates.contains(process);
            if !is_candidate {
                changed |= libraries.remove(*process);
            }
            is_candidate
        });
        let mut open = self.seen.values().filter(|seen| seen.statm.is_some()).count();
        for process in candidates {
            let seen = self.seen.entry(process).or_insert_with(|| ScannedProcess::new(now));
            if seen.due <= now {
                seen.due = after(self.began, step(now.saturating_duration_since(seen.since)), now);
                open -= usize::from(seen.statm.is_some());
                changed |= check_process(process, seen, &mut self.libraries, &self.paths, now);
                seen.statm = seen.statm.take().filter(|_| open < MAX_OPEN);
                open += usize::from(seen.statm.is_some());
            }
        }
        changed
    }

    /// When the next check is due.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.seen.values().map(|seen| seen.due).min()
    }
}

impl ScannedProcess {
    fn new(now: Instant) -> Self {
        Self { since: now, due: now, statm: None, mapped: None, code_kb: None }
    }
}

/// The interval for a process of this age.
fn step(age: Duration) -> Duration {
    let intervals = (0..HALVINGS).map(|halvings| OLD_EVERY / (1 << halvings));
    let longest = intervals.into_iter().find(|interval| *interval <= age / PART_OF_AGE);
    longest.unwrap_or(YOUNG_EVERY)
}

fn check_process(
    process: ProcKey,
    seen: &mut ScannedProcess,
    libraries: &mut Libraries,
    paths: &Paths,
    now: Instant,
) -> bool {
    if seen.statm.is_none() {
        seen.statm = File::open(paths.proc.join(process.pid.to_string()).join("statm")).ok();
    }
    let mapped = seen.statm.as_ref().and_then(mapped);
    if mapped.is_some() && mapped == seen.mapped {
        return false;
    }
    seen.mapped = mapped;
    // A reused PID shows other mappings; an ended process shows none. The candidates show whether a
    // process still holds a device.
    if !is_alive(paths, process) {
        seen.code_kb = None;
        return libraries.remove(process);
    }
    let code_kb = code_kb(paths, process);
    if code_kb.is_none() || code_kb == seen.code_kb {
        return false;
    }
    seen.code_kb = code_kb;
    let ScanOutcome { changed, again } = libraries.scan(process, now);
    if let Some(later) = again {
        (seen.mapped, seen.code_kb) = (None, None);
        seen.due = now + later;
    }
    changed
}

/// Pages that a process maps without those of its data and stacks (`total_vm - data_vm - stack_vm`,
/// `proc_pid_statm`): code and files, which allocations do not change. Loading a library ends with
/// turning a part of it into data, so that a check in between sees another number.
fn mapped(statm: &File) -> Option<u64> {
    let mut line = [0; LINE_BYTES];
    let length = statm.read_at(&mut line, 0).ok()?;
    let mut numbers = str::from_utf8(line.get(..length)?).ok()?.split_ascii_whitespace();
    let size: u64 = numbers.next()?.parse().ok()?;
    let data: u64 = numbers.nth(4)?.parse().ok()?;
    size.checked_sub(data)
}

/// Size of the library code that a process maps: changes when a library is loaded.
fn code_kb(paths: &Paths, process: ProcKey) -> Option<u64> {
    let status = read_lossy(&paths.proc.join(process.pid.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLib:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
