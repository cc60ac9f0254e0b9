//! Whether somebody would keep the kernel waiting when a file's probes come or go, and with it the
//! host.
//!
//! To put breakpoints into a file, or take them out, the kernel locks the mappings of every process
//! that maps it, one after the other, and lets none of the host fork meanwhile
//! (`register_for_each_vma`, `dup_mmap_sem`; it cannot be interrupted). A process that never unlocks
//! its own, because a file server is gone, a device hangs or its own FUSE server does not answer a
//! page fault, would hold up the host. So before probes come or go all threads are looked at for
//! those that wait in the kernel and cannot be interrupted, or wait for a FUSE server (which can
//! be): about 10 µs each. Where a process with such a thread maps the file and the thread does not
//! go on, nothing is done to the file.
//!
//! Who gets stuck between the look and the deed is not seen.

use crate::collect::nccl::probe::libraries::Libraries;
use crate::collect::nccl::probe::libraries::files::Files;
use crate::collect::nccl::probe::libraries::mapped::{Mapped, NotRead, Opener, Stamp};
use crate::collect::nccl::probe::libraries::mappings;
use crate::collect::proc_scan::living;
use crate::paths::Paths;
use crate::tenant_files::{ProcFile, ReadError};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that are not the kernel's: with more, nobody can be sure in a reasonable time.
const MAX_THREADS: usize = 131_072;
/// `PF_KTHREAD` (`linux/sched.h`): it has no mappings.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// After so long who waited for a disk has gone on.
const A_MOMENT: Duration = Duration::from_millis(200);
/// For so long a look at all threads holds.
const HOLDS: Duration = Duration::from_secs(1);
/// For so long mappings are looked through; who is not known by then counts as one that maps the file.
const LOOKS_FOR: Duration = Duration::from_secs(1);
/// Where the parent of a `vfork` waits, uninterrupted and with nothing locked.
const VFORK: [&str; 4] = ["wait_for_vfork_done", "kernel_clone", "_do_fork", "do_fork"];
/// How long a process's mappings are waited for: one whose mappings are locked does not give them.
const MAPS_TIMEOUT: Duration = Duration::from_millis(250);
/// Before it is tried again, at first and at last: a try is a look at all threads of the host.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AT_LAST: Duration = Duration::from_mins(1);
/// Functions of the kernel in which a thread waits for a FUSE server (`fs/fuse/dev.c`).
const FUSE: [&str; 3] = ["request_wait_answer", "fuse_", "__fuse_"];

/// The last look at all threads.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    looked: Option<(Instant, Option<Vec<Waiting>>)>,
}

/// A thread that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    pid: u32,
    folder: PathBuf,
    /// How often it has left the processor so far.
    switches: u64,
}

impl Stuck {
    /// When what was held up so many times in a row is to be tried again.
    pub(super) fn again(now: Instant, times: u32) -> Instant {
        let wait = AGAIN_AFTER.saturating_mul(1 << times.saturating_sub(1).min(16));
        now + wait.min(AGAIN_AT_LAST)
    }

    /// Why the probes of a file are left as they are, if they are.
    pub(super) fn on(&mut self, file: Stamp, libraries: &Libraries) -> Option<String> {
        let now = Instant::now();
        let holds = |at: &Instant| now.saturating_duration_since(*at) < HOLDS;
        if !self.looked.as_ref().is_some_and(|(at, _)| holds(at)) {
            self.looked = Some((now, waiting(libraries.opener().paths)));
        }
        let (_, found) = self.looked.as_ref()?;
        let Some(found) = found else {
            return Some(format!("more than {MAX_THREADS} threads may be stuck in the kernel"));
        };
        let mut asked = HashMap::new();
        let mut suspects = found.clone();
        suspects.retain(Waiting::is_still);
        suspects.retain(|one| {
            *asked.entry(one.pid).or_insert_with(|| may_map(one.pid, file, libraries, now))
        });
        if suspects.is_empty() {
            return None;
        }
        thread::sleep(A_MOMENT);
        let stuck = suspects.iter().find(|one| one.is_still())?;
        Some(format!("process {} maps it and is stuck in the kernel", stuck.pid))
    }
}

impl Waiting {
    /// Whether it has not gone on.
    fn is_still(&self) -> bool {
        is_waiting(&self.folder) && switches(&self.folder) == Some(self.switches)
    }
}

/// Whether a process maps a file, under whatever name; true where it cannot be told in time.
fn may_map(pid: u32, file: Stamp, libraries: &Libraries, began: Instant) -> bool {
    let opener = libraries.opener();
    let Some(process) = living(opener.paths, pid) else { return false };
    // Whether its tenant's file systems answer says nothing of its mappings.
    let files = opener.files.within(MAPS_TIMEOUT).of_mappings();
    let opener = Opener { files: &files, ..opener };
    let is_over = || began.elapsed() > LOOKS_FOR;
    if is_over() {
        return true;
    }
    let maps = match files.proc_file(process, ProcFile::Maps) {
        Ok(maps) => maps,
        Err(ReadError::Failed(_)) => return false,
        Err(_) => return true,
    };
    // Two files of an overlay may show one device and inode.
    let (mut ranges, of) = (HashMap::new(), Files::default());
    let read = mappings::read(maps, |mapping| {
        ranges.entry(of.key_of(&mapping)).or_insert(mapping.range);
    });
    let is_it = |range: &(u64, u64)| {
        is_over()
            || match Mapped::open(opener, process, *range) {
                Ok(mapped) => mapped.stamp == file,
                Err(NotRead::Refused(_)) => true,
                Err(_) => false,
            }
    };
    !matches!(read, Ok(None)) || ranges.values().any(is_it)
}

/// Those that wait; `None` where there are too many to look at.
fn waiting(paths: &Paths) -> Option<Vec<Waiting>> {
    let (mut looked_at, mut found) = (0, Vec::new());
    for process in fs::read_dir(&paths.proc).ok()?.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if is_of_kernel(&process.path()) {
            continue;
        }
        // One that has ended meanwhile has none.
        let threads = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        for folder in threads.map(|thread| thread.path()) {
            looked_at += 1;
            if looked_at > MAX_THREADS {
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

/// By `stat`: the name in brackets, the state, and six numbers further the flags.
fn state(folder: &Path) -> Option<(char, u64)> {
    let stat = fs::read(folder.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(5)?.parse().ok()?))
}

fn switches(folder: &Path) -> Option<u64> {
    let status = crate::text::read_lossy(&folder.join("status")).ok()?;
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
    fn who_cannot_be_interrupted_or_waits_for_a_fuse_server_is_found_but_no_kernel_thread() {
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
    fn who_has_gone_on_meanwhile_or_has_ended_is_not_stuck() {
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
