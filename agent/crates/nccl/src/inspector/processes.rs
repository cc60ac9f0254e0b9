//! The processes that may have the Inspector loaded: those that hold a device. Each one's
//! environment is read once, its open files when a scan is due.

use super::environment::InspectorEnv;
use crate::known::NcclProcesses;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::process::{Living, ProcStatus};
use gpuwho_owners::tenant_files::search::{
    FileFilter, FoundFile, Opened, ProcessNames, SearchResult,
};
use gpuwho_owners::tenant_files::{ProcFile, TenantDirectory, TenantFiles};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Interval at which to scan the open files of a process that does not enable the Inspector in its
/// initial environment (a program may enable it later), or whose file is known. A scan costs about
/// 1 µs a file.
const RESCAN_INTERVAL: Duration = Duration::from_mins(1);
/// The same for a process that has no NCCL loaded, as far as the probe's source knows: it does not
/// find every library.
const RESCAN_WITHOUT: Duration = Duration::from_mins(5);
/// Python enables it before it communicates, not at start: a process is scanned at every reading for
/// this long after it was first seen or has loaded NCCL.
const YOUNG: Duration = Duration::from_mins(1);
/// How long the Inspector may take to write its first record before the status reports it.
const FIRST_RECORD_TIMEOUT: Duration = Duration::from_mins(2);

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    /// Its names in its own PID namespace.
    pub own: ProcessNames,
    /// The Inspector settings in its environment, if it could be read.
    pub env: Option<InspectorEnv>,
    /// A file of it was found.
    pub writes: bool,
    /// Its open files can be read.
    pub is_open: bool,
    /// Files of the last scan that cannot be read, or that exceed a limit.
    refused: u64,
    /// It has no NCCL loaded.
    is_without: bool,
    since: Instant,
    due: Instant,
    /// The directory where it writes, while no file of it is known: after its end no path leads
    /// there.
    place: Option<TenantDirectory>,
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Lists those that have NCCL loaded; empty where no source finds them.
    loaded: NcclProcesses,
    known: HashMap<ProcKey, Process>,
    /// Processes that ended since the last reading.
    gone: HashSet<ProcKey>,
}

/// No node has more processes that hold a device; each costs some hundred bytes.
const MAX_PROCESSES: usize = 4_096;
/// Limit for one owner, once half of the limit is used.
const MAX_OF_OWNER: usize = MAX_PROCESSES / 8;

impl Processes {
    /// None yet. Those that `loaded` lists, and those that enable the Inspector, are scanned often.
    pub(super) fn new(loaded: &NcclProcesses) -> Self {
        Self { loaded: loaded.clone(), ..Self::default() }
    }

    /// Sets the processes that hold a device now. Ended ones stay for one reading.
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
        let lists = self.loaded.all();
        if !lists.is_empty() {
            let loaded: HashSet<ProcKey> = lists.iter().flat_map(|list| list()).collect();
            self.mark(&loaded, now);
        }
        let holders: HashSet<&ProcKey> = holders.iter().collect();
        self.gone =
            self.known.keys().filter(|process| !holders.contains(process)).copied().collect();
    }

    /// Sets which processes have NCCL loaded; one that has just loaded it counts as new.
    fn mark(&mut self, loaded: &HashSet<ProcKey>, now: Instant) {
        for (key, process) in &mut self.known {
            let was_without = process.is_without;
            process.is_without = !loaded.contains(key);
            if was_without && !process.is_without {
                (process.since, process.due) = (now, now);
            }
        }
    }

    /// The processes that ended since the last reading.
    pub(super) fn gone(&self) -> &HashSet<ProcKey> {
        &self.gone
    }

    /// A process.
    pub(super) fn get(&self, process: ProcKey) -> Option<&Process> {
        self.known.get(&process)
    }

    /// The processes that are due for a scan.
    pub(super) fn due(&self, now: Instant) -> Vec<ProcKey> {
        let is_due = |process: &Process| now >= process.due;
        let due =
            self.known.iter().filter(|(key, process)| self.gone.contains(key) || is_due(process));
        due.map(|(key, _)| *key).collect()
    }

    /// Searches for the files of one process.
    pub(super) fn scan(
        &mut self,
        files: &TenantFiles,
        key: ProcKey,
        now: Instant,
        wanted: &FileFilter,
    ) -> Vec<Opened> {
        let has_ended = self.gone.contains(&key);
        let Some(process) = self.known.get_mut(&key) else { return Vec::new() };
        let found = if has_ended {
            process.search_last(wanted)
        } else {
            process.scan(files, key, now, wanted)
        };
        let Some(found) = found else { return Vec::new() };
        process.writes |= !found.files.is_empty();
        process.refused = found.refused;
        found.files
    }

    /// Number of their files that cannot be read.
    pub(super) fn refused(&self) -> u64 {
        self.known.values().map(|process| process.refused).sum()
    }

    /// Counts a file of this process that exceeds the limit.
    pub(super) fn refuse(&mut self, process: ProcKey) {
        if let Some(process) = self.known.get_mut(&process) {
            process.refused += 1;
        }
    }

    /// The process with this PID in its own namespace and this user: the writer of a file in a
    /// directory. A process with readable open files is scanned instead.
    pub(super) fn writer(&mut self, seen: &FoundFile, now: Instant) -> Option<ProcKey> {
        let gone = &self.gone;
        let mut matching = self.known.iter_mut().filter(|(_, process)| process.own.wrote(seen));
        let (key, process) = matching.next().filter(|_| matching.next().is_none())?;
        if process.is_open && !gone.contains(key) {
            process.due = now;
            return None;
        }
        process.writes = true;
        Some(*key)
    }

    /// Numbers of processes that enable the Inspector and have no file: [without an interval, with
    /// one].
    pub(super) fn silent(&self, now: Instant) -> [u64; 2] {
        let mut silent = [0; 2];
        for process in self.known.values().filter(|process| !process.writes) {
            match &process.env {
                Some(env) if env.enabled && !env.dumps => silent[0] += 1,
                Some(env)
                    if env.enabled && now.duration_since(process.since) > FIRST_RECORD_TIMEOUT =>
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
        let env = environment.ok().and_then(|environment| InspectorEnv::read(environment).ok());
        Some(Self::new(own, env, now))
    }

    fn new(own: ProcessNames, env: Option<InspectorEnv>, now: Instant) -> Self {
        Self {
            own,
            env,
            writes: false,
            is_open: true,
            refused: 0,
            is_without: false,
            since: now,
            due: now,
            place: None,
        }
    }

    fn scan(
        &mut self,
        files: &TenantFiles,
        key: ProcKey,
        now: Instant,
        wanted: &FileFilter,
    ) -> Option<SearchResult> {
        let env = self.env.as_ref().filter(|env| env.enabled);
        let is_awaited = env.is_some() && !self.writes;
        self.due = now + self.pause(is_awaited, now);
        let found = files.open_by(key, self.own.pid, wanted);
        self.is_open = found.is_ok();
        if let Some(env) = env.filter(|_| is_awaited && self.place.is_none()) {
            self.place = files.directory(key, &env.directory).ok();
        }
        if found.as_ref().is_ok_and(|found| !found.files.is_empty()) {
            self.place = None;
        }
        let found = match (found, &self.place) {
            (Ok(found), _) => found,
            (Err(_), Some(place)) => place.search(&self.own_of(wanted)).ok()?,
            (Err(_), None) => return None,
        };
        gpuwho_owners::proc_scan::is_alive(files.paths(), key).then_some(found)
    }

    /// Time until the next scan.
    fn pause(&self, is_awaited: bool, now: Instant) -> Duration {
        let is_young = now.duration_since(self.since) < YOUNG && !self.is_without;
        match self.writes {
            false if is_awaited || is_young => Duration::ZERO,
            false if self.is_without => RESCAN_WITHOUT,
            _ => RESCAN_INTERVAL,
        }
    }

    /// Its remaining files in the directory where it wrote.
    fn search_last(&mut self, wanted: &FileFilter) -> Option<SearchResult> {
        let place = self.place.take().filter(|_| !self.writes)?;
        place.search(&self.own_of(wanted)).ok()
    }

    fn own_of(&self, wanted: &FileFilter) -> FileFilter {
        FileFilter { by: Some(self.own), ..wanted.clone() }
    }
}

fn own(status: &ProcStatus) -> Option<ProcessNames> {
    // Files are created with the file-system user id.
    let [.., uid] = status.uids()?;
    Some(ProcessNames { pid: status.innermost_pid()?, uid, parent: status.parent()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_nccl_is_scanned_seldom_until_it_has_loaded_it() {
        let (key, now) = (ProcKey { pid: 7, start_ticks: 1 }, Instant::now());
        let process = Process::new(ProcessNames { pid: 7, uid: 0, parent: 1 }, None, now);
        let known = HashMap::from([(key, process)]);
        let mut all = Processes { known, ..Processes::default() };
        let pause = |all: &Processes, at| all.known[&key].pause(false, at);
        assert_eq!(pause(&all, now), Duration::ZERO, "no source finds libraries");
        all.mark(&HashSet::new(), now);
        assert_eq!(pause(&all, now), RESCAN_WITHOUT);
        assert_eq!(all.known[&key].pause(true, now), Duration::ZERO, "its environment enables it");
        let later = now + Duration::from_mins(4);
        all.mark(&HashSet::from([key]), later);
        assert_eq!((all.due(later), pause(&all, later)), (vec![key], Duration::ZERO));
        assert_eq!(pause(&all, later + YOUNG), RESCAN_INTERVAL);
    }

    #[test]
    fn a_process_in_a_namespace_has_the_innermost_pid_and_the_fsuid() {
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
