//! Processes that wait in the kernel, cannot be interrupted and do not go on, perhaps with their
//! mappings locked: a file server that is gone, a device that has hung.
//!
//! To put a breakpoint into one process, or take it out, the kernel locks the mappings of every
//! process with the same file, one after the other, and lets none fork meanwhile
//! (`register_for_each_vma`, `dup_mmap_sem`). One that never unlocks its own would hold up the host.
//! So all processes are looked at before, and of those that hold a device, which may hang with it,
//! all threads: 9 µs each. Who waits for a disk is looked at again a moment later.

use crate::ids::ProcKey;
use crate::paths::Paths;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// With more than so many, nobody can be sure in a reasonable time.
const MOST_LOOKED_AT: usize = 16_384;
/// `PF_KTHREAD` (`linux/sched.h`): it has no mappings.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A thread that waits and cannot be interrupted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    folder: PathBuf,
    /// How often it has left the processor so far.
    switches: u64,
}

impl Waiting {
    /// Whether it has not gone on.
    pub(super) fn is_still(&self) -> bool {
        is_waiting(&self.folder) && switches(&self.folder) == Some(self.switches)
    }
}

/// Those that wait; `None` where there are too many to look at.
pub(super) fn waiting(paths: &Paths, holders: &HashSet<ProcKey>) -> Option<Vec<Waiting>> {
    let holders: HashSet<u32> = holders.iter().map(|process| process.pid).collect();
    let (mut looked_at, mut found) = (0, Vec::new());
    for process in fs::read_dir(&paths.proc).ok()?.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        let threads = if holders.contains(&pid) {
            // One that has ended meanwhile has none.
            let tasks = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
            tasks.map(|task| task.path()).collect()
        } else {
            vec![process.path()]
        };
        looked_at += threads.len();
        if looked_at > MOST_LOOKED_AT {
            return None;
        }
        found.extend(threads.into_iter().filter(|folder| is_waiting(folder)).filter_map(
            |folder| {
                let switches = switches(&folder)?;
                Some(Waiting { folder, switches })
            },
        ));
    }
    Some(found)
}

/// By `stat`: the name in brackets, the state, and six numbers further the flags.
fn is_waiting(folder: &Path) -> bool {
    let waiting = || {
        let stat = fs::read(folder.join("stat")).ok()?;
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        Some(state == "D" && flags & KERNEL_THREAD == 0)
    };
    waiting().unwrap_or(false)
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
    fn who_cannot_be_interrupted_is_found_and_of_holders_each_thread_but_no_kernel_thread() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let (nobody, holder) =
            (HashSet::new(), HashSet::from([ProcKey { pid: 11, start_ticks: 7 }]));
        assert_eq!(waiting(&paths, &nobody), None, "nothing can be read");
        write(&paths.proc.join("10"), "S", 0x40_0000, 5);
        write(&paths.proc.join("11"), "R", 0x40_0000, 5);
        write(&paths.proc.join("11/task/11"), "R", 0x40_0000, 5);
        write(&paths.proc.join("2"), "D", KERNEL_THREAD | 0x40, 5);
        write(&paths.proc.join("irq"), "D", 0, 5);
        let found = |holders| waiting(&paths, holders).unwrap();
        assert_eq!([found(&nobody), found(&holder)], [vec![], vec![]]);
        write(&paths.proc.join("11/task/12"), "D", 0x40_0040, 8);
        let thread = Waiting { folder: paths.proc.join("11/task/12"), switches: 8 };
        assert_eq!([found(&nobody), found(&holder)], [vec![], vec![thread]]);
    }

    #[test]
    fn who_has_gone_on_meanwhile_or_has_ended_is_not_stuck() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let one = paths.proc.join("10");
        write(&one, "D", 0x40_0000, 5);
        let found = waiting(&paths, &HashSet::new()).unwrap();
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
