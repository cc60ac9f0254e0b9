//! The processes that may have the Inspector in them: those that hold a device. What each one's
//! environment asks for is read once, its open files when that is due.

use super::environment::InspectorEnv;
use super::files::{FileFilter, FoundFile, Opened, SearchResult};
use super::names::Kind;
use crate::attribute::process::{Living, ProcStatus};
use crate::attribute::quota::QuotaKey;
use crate::ids::ProcKey;
use crate::tenant_files::{ProcFile, TenantDirectory, TenantFiles};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Between looks at the open files of a process that does not ask for the Inspector in the
/// environment it was started with (a program may set it later), or whose file is known. A look
/// costs about 1 µs a file.
const RARELY: Duration = Duration::from_mins(1);
/// Python switches it on before it communicates, not at once: so long a process is looked at at
/// every reading.
const YOUNG: Duration = Duration::from_mins(1);
/// How long the Inspector may take to write its first record before that is told.
const FIRST_RECORD_TIMEOUT: Duration = Duration::from_mins(2);

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number in its own PID namespace, and its user.
    pub own: ProcessNames,
    /// What its environment asks for, if it could be read.
    pub asked: Option<InspectorEnv>,
    /// It has written something.
    pub writes: bool,
    /// Its open files can be looked at.
    pub is_open: bool,
    /// Files that were found at the last look and cannot be read, or not as well.
    refused: u64,
    since: Instant,
    due: Instant,
    /// Where it writes, as long as no file of it is known: after its end nothing leads there.
    place: Option<TenantDirectory>,
}

/// How a process names itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessNames {
    pub pid: u32,
    pub uid: u32,
    /// The parent's number in the host's namespace.
    pub parent: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: HashMap<ProcKey, Process>,
    /// Ended since the last reading, or there is no room for them.
    gone: HashSet<ProcKey>,
}

/// More hold a device on no node; each costs some hundred bytes.
const MAX_PROCESSES: usize = 4_096;
/// Of one owner's, where half of the places are taken.
const MAX_OF_OWNER: usize = MAX_PROCESSES / 8;

impl Processes {
    /// Takes the processes that hold a device now. Those that ended stay for one reading.
    pub(super) fn update(
        &mut self,
        files: &TenantFiles,
        holders: &[ProcKey],
        owner_of: &dyn Fn(ProcKey) -> QuotaKey,
        now: Instant,
    ) {
        for process in self.gone.drain() {
            self.known.remove(&process);
        }
        let mut counts: HashMap<QuotaKey, usize> = HashMap::new();
        if holders.len() > MAX_PROCESSES / 2 {
            for known in self.known.keys() {
                *counts.entry(owner_of(*known)).or_default() += 1;
            }
        }
        for process in holders {
            if self.known.contains_key(process) || self.known.len() >= MAX_PROCESSES {
                continue;
            }
            if holders.len() > MAX_PROCESSES / 2 {
                let count = counts.entry(owner_of(*process)).or_default();
                if *count >= MAX_OF_OWNER {
                    continue;
                }
                *count += 1;
            }
            if let Some(new) = Process::read(files, *process, now) {
                self.known.insert(*process, new);
            }
        }
        let holders: HashSet<&ProcKey> = holders.iter().collect();
        self.gone =
            self.known.keys().filter(|process| !holders.contains(process)).copied().collect();
    }

    /// Those that have ended since the last reading.
    pub(super) fn gone(&self) -> &HashSet<ProcKey> {
        &self.gone
    }

    /// A process.
    pub(super) fn get(&self, process: ProcKey) -> Option<&Process> {
        self.known.get(&process)
    }

    /// Those whose files are to be looked for.
    pub(super) fn due(&self, now: Instant) -> Vec<ProcKey> {
        let is_due = |process: &Process| now >= process.due;
        let due =
            self.known.iter().filter(|(key, process)| self.gone.contains(key) || is_due(process));
        due.map(|(key, _)| *key).collect()
    }

    /// Looks for the files of one.
    pub(super) fn look(
        &mut self,
        files: &TenantFiles,
        key: ProcKey,
        now: Instant,
        wanted: &FileFilter,
    ) -> Vec<Opened> {
        let has_ended = self.gone.contains(&key);
        let Some(process) = self.known.get_mut(&key) else { return Vec::new() };
        let found = if has_ended {
            process.last_look(wanted)
        } else {
            process.look((files, key), now, wanted)
        };
        let Some(found) = found else { return Vec::new() };
        process.writes |= !found.files.is_empty();
        process.refused = found.refused;
        found.files
    }

    /// Files of theirs that cannot be read.
    pub(super) fn refused(&self) -> u64 {
        self.known.values().map(|process| process.refused).sum()
    }

    /// There is no room for a file of this one's.
    pub(super) fn refuse(&mut self, process: ProcKey) {
        if let Some(process) = self.known.get_mut(&process) {
            process.refused += 1;
        }
    }

    /// The process that has this number in its own PID namespace and this user: the writer of a
    /// file in a directory. One whose open files can be looked at shows its files itself.
    pub(super) fn writer(&mut self, seen: &FoundFile, now: Instant) -> Option<ProcKey> {
        let gone = &self.gone;
        let mut alike = self.known.iter_mut().filter(|(_, process)| process.own.wrote(seen));
        let (key, process) = alike.next().filter(|_| alike.next().is_none())?;
        if process.is_open && !gone.contains(key) {
            process.due = now;
            return None;
        }
        process.writes = true;
        Some(*key)
    }

    /// Processes that ask for the Inspector and have none of its files, by whether it is asked to
    /// write while the program runs.
    pub(super) fn silent(&self, now: Instant) -> [u64; 2] {
        let mut silent = [0; 2];
        for process in self.known.values().filter(|process| !process.writes) {
            match &process.asked {
                Some(asked) if asked.enabled && !asked.dumps => silent[0] += 1,
                Some(asked)
                    if asked.enabled
                        && now.duration_since(process.since) > FIRST_RECORD_TIMEOUT =>
                {
                    silent[1] += 1;
                }
                _ => {}
            }
        }
        silent
    }
}

impl Process {
    fn read(files: &TenantFiles, key: ProcKey, now: Instant) -> Option<Self> {
        let living = Living::same(files.paths(), key)?;
        let own = own(&living.status()?)?;
        let environment = files.proc_file(key, ProcFile::Environment);
        let asked = environment.ok().and_then(|environment| InspectorEnv::read(environment).ok());
        Some(Self {
            own,
            asked,
            writes: false,
            is_open: true,
            refused: 0,
            since: now,
            due: now,
            place: None,
        })
    }

    fn look(
        &mut self,
        (files, key): (&TenantFiles, ProcKey),
        now: Instant,
        wanted: &FileFilter,
    ) -> Option<SearchResult> {
        let asked = self.asked.as_ref().filter(|asked| asked.enabled);
        let is_awaited = asked.is_some() && !self.writes;
        let is_young = !self.writes && now.duration_since(self.since) < YOUNG;
        self.due = if is_awaited || is_young { now } else { now + RARELY };
        let found = files.open_by(key, self.own.pid, wanted);
        self.is_open = found.is_ok();
        if let Some(asked) = asked.filter(|_| is_awaited && self.place.is_none()) {
            self.place = files.directory(key, &asked.directory).ok();
        }
        if found.as_ref().is_ok_and(|found| !found.files.is_empty()) {
            self.place = None;
        }
        let found = match (found, &self.place) {
            (Ok(found), _) => found,
            (Err(_), Some(place)) => place.search(&self.own_of(wanted)).ok()?,
            (Err(_), None) => return None,
        };
        crate::collect::proc_scan::is_alive(files.paths(), key).then_some(found)
    }

    /// What it has left where it wrote.
    fn last_look(&mut self, wanted: &FileFilter) -> Option<SearchResult> {
        let place = self.place.take().filter(|_| !self.writes)?;
        place.search(&self.own_of(wanted)).ok()
    }

    fn own_of(&self, wanted: &FileFilter) -> FileFilter {
        FileFilter { by: Some(self.own), ..wanted.clone() }
    }
}

impl ProcessNames {
    /// Whether a file's name and user say that this process wrote it.
    pub(super) fn wrote(self, seen: &FoundFile) -> bool {
        seen.kind == Kind::Records { pid: self.pid } && seen.uid == self.uid
    }
}

fn own(status: &ProcStatus) -> Option<ProcessNames> {
    // Files are made for the file system's user.
    let [.., uid] = status.uids()?;
    Some(ProcessNames { pid: status.innermost_pid()?, uid, parent: status.parent()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_a_namespace_has_the_innermost_number_and_the_file_systems_user() {
        let text = "Name:\tx\nPid:\t4711\nPPid:\t12\nUid:\t0\t0\t0\t1000\nNSpid:\t4711\t33\t7\n";
        assert_eq!(
            own(&ProcStatus::new(text.as_bytes())),
            Some(ProcessNames { pid: 7, uid: 1000, parent: 12 })
        );
        let text = "Name:\tx\nPid:\t4711\nPPid:\t12\nUid:\t5\t5\t5\t5\n";
        assert_eq!(
            own(&ProcStatus::new(text.as_bytes())),
            Some(ProcessNames { pid: 4711, uid: 5, parent: 12 })
        );
    }
}
