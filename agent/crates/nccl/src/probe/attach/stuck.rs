//! Checks whether a stuck process would block the kernel, and with it the host, while a file's
//! probes are attached or detached.
//!
//! To insert or remove breakpoints in a file, the kernel locks the mappings of every process that
//! maps it, one after the other, and blocks every fork on the host in the meantime
//! (`register_for_each_vma`, `dup_mmap_sem`; it cannot be interrupted). A process that never
//! releases its mappings, because a file server is gone, a device hangs or its own FUSE server does
//! not answer a page fault, would block the host. So before probes change, all threads are checked
//! for those in uninterruptible sleep, or waiting for a FUSE server (which is interruptible): about
//! 10 µs each. If a process with such a thread maps the file and the thread makes no progress, the
//! file's probes are not changed.
//!
//! A process that gets stuck between the check and the change is not detected.

use crate::probe::libraries::Libraries;
use crate::probe::libraries::files::Files;
use crate::probe::libraries::mapped::{Mapped, NotRead, Opener, Stamp};
use crate::probe::libraries::mappings;
use gpuwho_model::paths::Paths;
use gpuwho_owners::proc_scan::living;
use gpuwho_owners::tenant_files::{ProcFile, ReadError};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Limit on user threads: checking more would take too long.
const MAX_THREADS: usize = 131_072;
/// `PF_KTHREAD` (`linux/sched.h`): a kernel thread has no mappings.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// A thread that waited for a disk has made progress after this time.
const PROGRESS_WAIT: Duration = Duration::from_millis(200);
/// How long a check of all threads is valid.
const VALID_FOR: Duration = Duration::from_secs(1);
/// Time limit for checking mappings; unchecked processes count as mapping the file.
const MAPS_LIMIT: Duration = Duration::from_secs(1);
/// Where the parent of a `vfork` waits, uninterruptibly and without a lock.
const VFORK: [&str; 4] = ["wait_for_vfork_done", "kernel_clone", "_do_fork", "do_fork"];
/// Timeout for one process's mappings, which cannot be read while they are locked.
const MAPS_TIMEOUT: Duration = Duration::from_millis(250);
/// First and longest delay before a retry, which checks all threads of the host again.
const MIN_RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Kernel functions in which a thread waits for a FUSE server (`fs/fuse/dev.c`).
const FUSE: [&str; 3] = ["request_wait_answer", "fuse_", "__fuse_"];

/// The last check of all threads.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    last: Option<(Instant, Option<Vec<Waiting>>)>,
}

/// A waiting thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    pid: u32,
    folder: PathBuf,
    /// Its number of voluntary context switches.
    switches: u64,
}

impl Stuck {
    /// When to retry after this many failures in a row.
    pub(super) fn again(now: Instant, times: u32) -> Instant {
        let wait = MIN_RETRY.saturating_mul(1 << times.saturating_sub(1).min(16));
        now + wait.min(MAX_RETRY)
    }

    /// Why the probes of a file must not be changed now, if so.
    pub(super) fn on(&mut self, file: Stamp, libraries: &Libraries) -> Option<String> {
        let now = Instant::now();
        let is_valid = |at: &Instant| now.saturating_duration_since(*at) < VALID_FOR;
        if !self.last.as_ref().is_some_and(|(at, _)| is_valid(at)) {
            self.last = Some((now, waiting(libraries.opener().paths)));
        }
        let (_, found) = self.last.as_ref()?;
        let Some(found) = found else {
            return Some(format!("more than {MAX_THREADS} threads may be stuck in the kernel"));
        };
        let mut answers = HashMap::new();
        let mut suspects = found.clone();
        suspects.retain(Waiting::is_still);
        suspects.retain(|one| {
            *answers.entry(one.pid).or_insert_with(|| may_map(one.pid, file, libraries, now))
        });
        if suspects.is_empty() {
            return None;
        }
        thread::sleep(PROGRESS_WAIT);
        let stuck = suspects.iter().find(|one| one.is_still())?;
        Some(format!("process {} maps it and is stuck in the kernel", stuck.pid))
    }
}

impl Waiting {
    /// Whether it has made no progress.
    fn is_still(&self) -> bool {
        is_waiting(&self.folder) && switches(&self.folder) == Some(self.switches)
    }
}

/// Whether a process maps a file, under any name; true if this cannot be determined in time.
fn may_map(pid: u32, file: Stamp, libraries: &Libraries, began: Instant) -> bool {
    let opener = libraries.opener();
    let Some(process) = living(opener.paths, pid) else { return false };
    // Independent of whether the tenant's file systems answer.
    let files = opener.files.within(MAPS_TIMEOUT).of_mappings();
    let opener = Opener { files: &files, ..opener };
    let is_over = || began.elapsed() > MAPS_LIMIT;
    if is_over() {
        return true;
    }
    let maps = match files.proc_file(process, ProcFile::Maps) {
        Ok(maps) => maps,
        Err(ReadError::Failed(_)) => return false,
        Err(_) => return true,
    };
    // Two files of an overlay may show the same device and inode.
    let (mut ranges, of) = (HashMap::new(), Files::default());
    let read = mappings::read(maps, |mapping| {
        ranges.entry(of.key_of(&mapping)).or_insert(mapping.range);
    });
    let matches = |range: &(u64, u64)| {
        is_over()
            || match Mapped::open(opener, process, *range) {
                Ok(mapped) => mapped.stamp == file,
                Err(NotRead::Refused(_)) => true,
                Err(_) => false,
            }
    };
    !matches!(read, Ok(None)) || ranges.values().any(matches)
}

/// The waiting threads; `None` if there are too many threads.
fn waiting(paths: &Paths) -> Option<Vec<Waiting>> {
    let (mut checked, mut found) = (0, Vec::new());
    for process in fs::read_dir(&paths.proc).ok()?.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if is_of_kernel(&process.path()) {
            continue;
        }
        // A process that has ended has no threads.
        let threads = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        for folder in threads.map(|thread| thread.path()) {
            checked += 1;
            if checked > MAX_THREADS {
                return None;
            }
            if is_waiting(&folder)
                && let Some(switches) = switches(&folder)
            {
                found.push(Waiting { pid, folder, switches });
            }
        }
    }
    Some(found)
}

fn is_waiting(folder: &Path) -> bool {
    let begins = |all: &[&str]| {
        let place = fs::read_to_string(folder.join("wchan")).unwrap_or_default();
        all.iter().any(|begin| place.starts_with(begin))
    };
    match state(folder) {
        Some(('D', flags)) if flags & KERNEL_THREAD == 0 => !begins(&VFORK),
        Some(('S', flags)) if flags & KERNEL_THREAD == 0 => begins(&FUSE),
        _ => false,
    }
}

fn is_of_kernel(folder: &Path) -> bool {
    state(folder).is_some_and(|(_, flags)| flags & KERNEL_THREAD != 0)
}

/// Parses `stat`: after the name in brackets come the state and, six fields later, the flags.
fn state(folder: &Path) -> Option<(char, u64)> {
    let stat = fs::read(folder.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(5)?.parse().ok()?))
}

fn switches(folder: &Path) -> Option<u64> {
    let status = gpuwho_model::text::read_lossy(&folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, state: &str, flags: u64, switches: u64) {
        fs::create_dir_all(folder).unwrap();
        let stat = format!("7 (a ) D) {state} 1 7 7 0 -1 {flags} 100 0 0 0 5 5 0 0 20 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
        let status = format!("Name:\ta\nvoluntary_ctxt_switches:\t{switches}\n");
        fs::write(folder.join("status"), status).unwrap();
    }

    #[test]
    fn uninterruptible_and_fuse_waiters_are_found_and_kernel_threads_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        assert_eq!(waiting(&paths), None, "nothing can be read");
        let thread = |path: &str| paths.proc.join(path);
        write(&thread("10/task/10"), "S", 0x40_0000, 5);
        fs::write(thread("10/task/10/wchan"), "do_poll").unwrap();
        write(&thread("11/task/11"), "R", 0x40_0000, 5);
        write(&thread("2/task/2"), "D", KERNEL_THREAD | 0x40, 5);
        write(&thread("irq/task/9"), "D", 0, 5);
        assert_eq!(waiting(&paths), Some(vec![]));
        write(&thread("11/task/12"), "D", 0x40_0040, 8);
        let found = Waiting { pid: 11, folder: thread("11/task/12"), switches: 8 };
        assert_eq!(waiting(&paths), Some(vec![found]));
        fs::write(thread("11/task/12/wchan"), "kernel_clone").unwrap();
        assert_eq!(waiting(&paths), Some(vec![]), "a vfork locks nothing");
        write(&thread("11/task/12"), "S", 0x40_0040, 8);
        fs::write(thread("10/task/10/wchan"), "request_wait_answer").unwrap();
        let found = Waiting { pid: 10, folder: thread("10/task/10"), switches: 5 };
        assert_eq!(waiting(&paths), Some(vec![found]));
    }

    #[test]
    fn a_thread_that_progressed_or_ended_is_not_stuck() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let one = paths.proc.join("10/task/10");
        write(&one, "D", 0x40_0000, 5);
        let found = waiting(&paths).unwrap();
        let is_still = || found.iter().map(Waiting::is_still).collect::<Vec<_>>();
        assert_eq!(is_still(), [true]);
        write(&one, "S", 0x40_0000, 5);
        assert_eq!(is_still(), [false]);
        // And waits for something else.
        write(&one, "D", 0x40_0000, 6);
        assert_eq!(is_still(), [false]);
        fs::remove_dir_all(&one).unwrap();
        assert_eq!(is_still(), [false]);
    }
}
