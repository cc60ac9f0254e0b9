//! Looks at the processes that hold a device, for libraries that they load and let go.
//!
//! A process that is new is looked at ten times a second, because Python loads libraries late, and
//! later each tenth of the time that it has been known, at last every thirty seconds: on one grid
//! for all, so that they share a wake. One that becomes another program or opens another device is
//! as good as new. A look is one line, `/proc/PID/statm`, read from a file that is kept open, which
//! saves six sevenths of the time. Only where that shows other mappings `stat` and `status` are
//! read, and the mappings themselves only where the code has grown or shrunk: 200 processes are 200
//! reads each thirty seconds, of about 1.5 µs each. The kernel's own files are read here; they wait
//! for nobody.

use super::{Libraries, ScanOutcome};
use crate::collect::proc_scan::is_alive;
use crate::collect::schedule::after;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::tenant_files::TenantFiles;
use crate::text::read_lossy;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Between looks at a process that is new: a job loads its library when it begins.
const YOUNG_EVERY: Duration = Duration::from_millis(100);
/// And at one that has been known for minutes.
pub(in super::super) const OLD_EVERY: Duration = Duration::from_secs(30);
/// What there is in between; each a multiple of the one before, so that the looks of one are at
/// moments at which those before look too.
const STEPS: [Duration; 6] = [
    YOUNG_EVERY,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    OLD_EVERY,
];
/// The longest step is taken that is not more than such a part of the time a process is known.
const PART_OF_AGE: u32 = 10;
/// Longer than the line of seven numbers.
const LINE_BYTES: usize = 160;
/// Files kept open, a quarter of what a service may open by default; the others are opened each
/// time.
const MAX_KEPT: usize = 256;

/// The processes to look at: those that hold a device.
pub(in super::super) type Candidates = Box<dyn Fn() -> Vec<ProcKey> + Send>;

/// Who was looked at, and which libraries they map.
pub(in super::super) struct ProcessScan {
    pub libraries: Libraries,
    paths: Paths,
    candidates: Candidates,
    seen: HashMap<ProcKey, ScannedProcess>,
    /// Where the grid of looks begins.
    began: Instant,
}

/// A process as it was at the last look.
#[derive(Debug)]
struct ScannedProcess {
    since: Instant,
    due: Instant,
    /// Its `statm`. It stays the process's own: it cannot be read once that has ended, whoever has
    /// the number then.
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

    /// A process that is known does what a new one does: it has become another program, or has
    /// opened a device that it had not. It is looked at anew, and as often as if it were new.
    pub(in super::super) fn request_rescan(&mut self, process: ProcKey, now: Instant) {
        if let Some(seen) = self.seen.get_mut(&process) {
            (seen.since, seen.due) = (now, now);
            (seen.mapped, seen.code_kb) = (None, None);
        }
    }

    /// Those that hold a device.
    pub(in super::super) fn openers(&self) -> HashSet<ProcKey> {
        self.seen.keys().copied().collect()
    }

    /// Looks at those whose time has come; true if somebody maps a library that did not, or the
    /// other way round.
    pub(in super::super) fn look(&mut self, now: Instant) -> bool {
        let candidates: HashSet<ProcKey> = (self.candidates)().into_iter().collect();
        let mut changed = false;
        let libraries = &mut self.libraries;
        self.seen.retain(|process, _| {
            let is_holder = candidates.contains(process);
            if !is_holder {
                changed |= libraries.remove(*process);
            }
            is_holder
        });
        let mut kept = self.seen.values().filter(|seen| seen.statm.is_some()).count();
        for process in candidates {
            let seen = self.seen.entry(process).or_insert_with(|| ScannedProcess::new(now));
            if seen.due <= now {
                seen.due = after(self.began, step(now.saturating_duration_since(seen.since)), now);
                kept -= usize::from(seen.statm.is_some());
                changed |= look_at(process, seen, &mut self.libraries, &self.paths, now);
                seen.statm = seen.statm.take().filter(|_| kept < MAX_KEPT);
                kept += usize::from(seen.statm.is_some());
            }
        }
        changed
    }

    /// When the next look is due.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.seen.values().map(|seen| seen.due).min()
    }
}

impl ScannedProcess {
    fn new(now: Instant) -> Self {
        Self { since: now, due: now, statm: None, mapped: None, code_kb: None }
    }
}

/// How long between looks at a process that has been known for so long.
fn step(age: Duration) -> Duration {
    let part = age / PART_OF_AGE;
    STEPS.into_iter().rev().find(|step| *step <= part).unwrap_or(YOUNG_EVERY)
}

fn look_at(
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
    // A number that was given again shows other mappings; one that ended shows none. Who holds a
    // device no more is told by the candidates.
    if !is_alive(paths, process) {
        seen.code_kb = None;
        return libraries.remove(process);
    }
    let code_kb = code_kb(paths, process);
    if code_kb.is_none() || code_kb == seen.code_kb {
        return false;
    }
    seen.code_kb = code_kb;
    let ScanOutcome { changed, again } = libraries.look(process, now);
    if let Some(later) = again {
        (seen.mapped, seen.code_kb) = (None, None);
        seen.due = now + later;
    }
    changed
}

/// Pages that a process maps less those of its data and stacks (`total_vm - data_vm - stack_vm`,
/// `proc_pid_statm`): code and files, which allocations leave as they are. To load a library ends
/// with making a part of it data, so that a look in the middle of it shows another number.
fn mapped(statm: &File) -> Option<u64> {
    let mut line = [0; LINE_BYTES];
    let length = statm.read_at(&mut line, 0).ok()?;
    let mut numbers = str::from_utf8(line.get(..length)?).ok()?.split_ascii_whitespace();
    let size: u64 = numbers.next()?.parse().ok()?;
    let data: u64 = numbers.nth(4)?.parse().ok()?;
    size.checked_sub(data)
}

/// Size of the code that a process maps from libraries: changes when one is loaded.
fn code_kb(paths: &Paths, process: ProcKey) -> Option<u64> {
    let status = read_lossy(&paths.proc.join(process.pid.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLib:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
