//! Finds out whether processes are still alive: one `poll` for all processes with a pidfd, one
//! small read in `/proc` for each of the others.
//!
//! A pidfd stays with its process when the PID is reused. It is opened only if `/proc` is of the
//! agent's own PID namespace, because the kernel interprets PIDs in that one.

use crate::process::Living;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

/// Maximum number of pidfds: half of the files that systemd lets a service open by default.
const MAX_HANDLES: usize = 512;

/// The open pidfds.
#[derive(Debug, Default)]
pub(super) struct PidfdSet(Mutex<HashMap<ProcKey, OwnedFd>>);

impl PidfdSet {
    /// The processes in `live` that have ended. If `all`, `live` is complete, and pidfds of other
    /// processes are closed.
    pub(super) fn missing(&self, paths: &Paths, live: &[ProcKey], all: bool) -> Vec<ProcKey> {
        if live.is_empty() && !all {
            return Vec::new();
        }
        let mut handles = std::mem::take(&mut *self.0.lock());
        let ended = ended(&handles);
        if all {
            let live: HashSet<&ProcKey> = live.iter().collect();
            handles.retain(|process, _| live.contains(process));
        }
        handles.retain(|process, _| !ended.contains(process));
        let can_open = is_own_namespace(paths);
        let mut missing = Vec::new();
        for process in live {
            if ended.contains(process) {
                missing.push(*process);
                continue;
            }
            if handles.contains_key(process) {
                continue;
            }
            // Opened before the read: if the process remains, the PID was its own all the time.
            let handle = (can_open && handles.len() < MAX_HANDLES).then(|| open(*process));
            if !Living::is_alive(paths, *process) {
                missing.push(*process);
            } else if let Some(Some(handle)) = handle {
                handles.insert(*process, handle);
            }
        }
        *self.0.lock() = handles;
        missing
    }
}

/// The processes with pidfds that report the exit of the last thread.
fn ended(handles: &HashMap<ProcKey, OwnedFd>) -> HashSet<ProcKey> {
    let mut polled: Vec<_> =
        handles.values().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
    // After an error, no process counts as ended until the next call.
    if poll(&mut polled, Some(&Timespec::default())).is_err() {
        return HashSet::new();
    }
    let ready = handles.keys().zip(&polled).filter(|(_, one)| !one.revents().is_empty());
    ready.map(|(process, _)| *process).collect()
}

/// Whether `/proc` is of the agent's own PID namespace.
fn is_own_namespace(paths: &Paths) -> bool {
    let own = std::fs::read_link(paths.proc.join("self")).ok();
    let own = own.and_then(|link| link.to_str()?.parse().ok());
    own == Some(getpid().as_raw_nonzero().get())
}

/// Opens a pidfd; `None` if the kernel has or gives none.
fn open(process: ProcKey) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::boot_time_ns;
    use std::process::Command;

    fn child() -> (std::process::Child, ProcKey) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let living = Living::find(&Paths::default(), child.id()).unwrap();
        assert!(living.key.start_ticks * 10_000_000 <= boot_time_ns());
        (child, living.key)
    }

    #[test]
    fn an_exit_is_reported_once_and_by_a_handle() {
        let (paths, lives) = (Paths::default(), PidfdSet::default());
        let (mut one, first) = child();
        let (mut other, second) = child();
        assert_eq!(lives.missing(&paths, &[first, second], true), []);
        assert_eq!(lives.0.lock().len(), 2);
        one.kill().unwrap();
        one.wait().unwrap();
        assert_eq!(lives.missing(&paths, &[first, second], true), [first]);
        assert_eq!(lives.missing(&paths, &[second], true), []);
        assert_eq!(lives.0.lock().keys().copied().collect::<Vec<_>>(), [second]);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_of_another_start_gets_no_handle() {
        let (paths, lives) = (Paths::default(), PidfdSet::default());
        let (mut child, key) = child();
        let earlier = ProcKey { start_ticks: key.start_ticks - 1, ..key };
        assert_eq!(lives.missing(&paths, &[earlier], true), [earlier]);
        assert_eq!(lives.0.lock().len(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn handles_of_processes_no_longer_checked_are_closed() {
        let (paths, lives) = (Paths::default(), PidfdSet::default());
        let (mut child, key) = child();
        assert_eq!(lives.missing(&paths, &[key], true), []);
        assert_eq!(lives.missing(&paths, &[], false), []);
        assert_eq!(lives.0.lock().len(), 1);
        assert_eq!(lives.missing(&paths, &[], true), []);
        assert_eq!(lives.0.lock().len(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
