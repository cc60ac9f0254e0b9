//! Finds the mapped files that are collective libraries, and their users.
//!
//! A file is identified by the descriptor through which it was opened (`mapped`): names, links,
//! containers and copies do not matter, nor does what the process maps later. Device and inode in
//! the list of mappings only avoid opening the file again. If they are the descriptor's, they
//! identify one file for all processes; on overlays and Btrfs they differ, and then each process
//! has its own entry.
//!
//! Overlay mounts show one lower file as several files, while the kernel's probes are on the lower
//! file. Such duplicates have the same size, times and build id, and the memory of a process that
//! maps the second contains the probes of the first.
//!
//! Tenants control all of this: the entries of a process, a tenant and the host are limited, and so
//! is the time for scanning (`pace`).

pub(super) mod elf;
pub(super) mod fields;
pub(super) mod files;
pub(super) mod library;
pub(super) mod log_limit;
pub(super) mod mapped;
pub(super) mod mappings;
pub(super) mod mounts;
mod pace;
pub(super) mod rescan;
mod room;
pub(super) mod scan;

use fields::Fields;
use files::{Files, Found, MapsKey, New};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::tenant_files::{FileOwner, ProcFile, ReadError, TenantFiles};
use library::{Library, User};
use mapped::{Mapped, NotRead, Opener};
use pace::{Meter, ScanBudget};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit on mapped files with code per process: Python programs have some hundreds.
const MAX_FILES: usize = 2_048;
/// First and longest delay before a file that could not be read is tried again.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(5);
/// Scans in a row at which a mapping was gone before it could be opened; afterwards the next scan
/// waits until the size of the code changes.
const GONE_TRIES: u32 = 5;
/// Limit on the users of a library whose memory is read.
const MAX_MEMORY_READERS: usize = 3;

/// A file by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileKey {
    pub device: (u32, u32),
    pub inode: u64,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanOutcome {
    /// Whether a library gained or lost a user.
    pub changed: bool,
    /// The scan was incomplete and must be repeated after this time, even if the mappings do not
    /// change.
    pub again: Option<Duration>,
}

/// All scanned files.
#[derive(Debug)]
pub(super) struct Libraries {
    files: TenantFiles,
    paths: Paths,
    /// Directories below which FUSE mounts are trusted.
    pub trusted: Vec<PathBuf>,
    known: HashMap<FileKey, Library>,
    /// Files that are not libraries, by a key valid for all processes, with the number of users.
    others: HashMap<FileKey, usize>,
    processes: HashMap<ProcKey, Files>,
    /// Number of refused or ignored files.
    pub refused: u64,
    pace: ScanBudget,
}

impl Libraries {
    pub(super) fn new(files: TenantFiles, paths: &Paths) -> Self {
        Self {
            files,
            paths: paths.clone(),
            trusted: Vec::new(),
            known: HashMap::new(),
            others: HashMap::new(),
            processes: HashMap::new(),
            refused: 0,
            pace: ScanBudget::default(),
        }
    }

    /// Scans a process's mappings.
    pub(super) fn scan(&mut self, process: ProcKey, now: Instant) -> ScanOutcome {
        let Ok(tenant) = self.files.tenant(process) else {
            return ScanOutcome { changed: self.remove(process), again: None };
        };
        self.pace.belongs(process, &tenant, now);
        let allowed = self.pace.allowed(process, now);
        if allowed.is_zero() {
            return ScanOutcome { changed: false, again: Some(MIN_RETRY) };
        }
        let meter = Meter::start(allowed);
        let outcome = self.scan_within(&meter, process, &tenant);
        self.pace.spend(process, meter.spent(), now);
        outcome
    }

    fn scan_within(&mut self, meter: &Meter, process: ProcKey, tenant: &FileOwner) -> ScanOutcome {
        let maps = match self.files.proc_file(process, ProcFile::Maps) {
            Ok(maps) => maps,
            Err(ReadError::Failed(_)) => {
                return ScanOutcome { changed: self.remove(process), again: None };
            }
            Err(refused) => return self.retry_later(process, refused.to_string()),
        };
        let of = self.processes.entry(process).or_default();
        let (mut mapped, mut new, mut is_full) = (HashSet::new(), Vec::new(), false);
        let read = mappings::read(maps, |mapping| {
            if !mapping.is_code {
                return;
            }
            let key = of.key_of(&mapping);
            is_full |= mapped.len() >= MAX_FILES && !mapped.contains(&key);
            of.is_named |= names_library(mapping.path);
            if !is_full && mapped.insert(key) && !of.found.contains_key(&key) {
                new.push(New::of(&mapping));
            }
        });
        let cut = match read {
            Ok(cut) => cut.map(mappings::Cut::as_str),
            Err(error) => return self.retry_later(process, error.to_string()),
        };
        let cut = cut.or(is_full.then_some("it maps code of more than 2048 files"));
        self.refused += u64::from(cut.is_some() && of.cut != cut);
        of.cut = cut;
        let mut outcome = self.identify_all(meter, process, tenant, &new);
        // Done last, so that a library under a new path is not dropped in between.
        mapped.extend(new.iter().map(|file| MapsKey::exact(file.key)));
        outcome.changed |= self.leave(process, &mapped);
        outcome
    }

    /// Identifies the new files of a process, within its time.
    fn identify_all(
        &mut self,
        meter: &Meter,
        process: ProcKey,
        tenant: &FileOwner,
        new: &[New],
    ) -> ScanOutcome {
        let (mut outcome, mut is_any_gone) = (ScanOutcome::default(), false);
        for file in new {
            if meter.is_over() {
                return ScanOutcome { again: Some(MIN_RETRY), ..outcome };
            }
            let found = &self.processes.entry(process).or_default().found;
            if found.contains_key(&MapsKey::exact(file.key)) {
                continue;
            }
            match self.identify(process, tenant, file) {
                Ok((found, is_exact)) => {
                    outcome.changed |= matches!(found, Found::Library(_));
                    let of = self.processes.entry(process).or_default();
                    of.found.insert(file.maps_key(is_exact), found);
                }
                Err(NotRead::Gone) => is_any_gone = true,
                Err(why) => {
                    let later = self.retry_later(process, format!("{}: {why}", file.path));
                    outcome.again = outcome.again.or(later.again);
                }
            }
        }
        let of = self.processes.entry(process).or_default();
        of.gone = if is_any_gone { of.gone.saturating_add(1) } else { 0 };
        if outcome.again.is_none() {
            (of.refused, of.retry_reason) = (0, None);
            // The mappings are changing right now, which may not change their size.
            outcome.again = (1..=GONE_TRIES).contains(&of.gone).then_some(MIN_RETRY);
        }
        outcome
    }

    /// Identifies a new file of a process; also returns whether the list of mappings shows its own
    /// key.
    fn identify(
        &mut self,
        process: ProcKey,
        tenant: &FileOwner,
        file: &New,
    ) -> Result<(Found, bool), NotRead> {
        if let Some(mappers) = self.others.get_mut(&file.key) {
            *mappers += 1;
            return Ok((Found::Other { for_all: true }, true));
        }
        let user = || User {
            path: Arc::clone(&file.path),
            base: file.range.0.wrapping_sub(file.offset),
            tenant: tenant.clone(),
        };
        let known = self.known.get_mut(&file.key).filter(|library| library.is_exact);
        if let Some(library) = known {
            library.users.insert(process, user());
            return Ok((Found::Library(file.key), true));
        }
        let mapped = Mapped::open(self.opener(), process, file.range);
        let mapped = match mapped {
            Err(NotRead::UserSpace(kind)) => {
                let why = NotRead::UserSpace(kind);
                self.leave_out(process, format!("{}: {why}", file.path));
                return Ok((Found::Other { for_all: false }, false));
            }
            Err(NotRead::NoFile) => return Ok((Found::Other { for_all: false }, false)),
            other => other?,
        };
        let key = mapped.key;
        let is_exact = key == file.key;
        if let Some(library) = self.known.get_mut(&key) {
            library.users.insert(process, user());
            return Ok((Found::Library(key), is_exact));
        }
        let Some(mut library) = Library::read(mapped, process, is_exact)? else {
            if is_exact {
                self.others.insert(key, 1);
            }
            return Ok((Found::Other { for_all: is_exact }, is_exact));
        };
        if let Err(why) = self.make_room(process, tenant) {
            self.leave_out(process, why);
            return Ok((Found::Other { for_all: false }, is_exact));
        }
        library.users.insert(process, user());
        self.known.insert(key, library);
        Ok((Found::Library(key), is_exact))
    }

    /// Makes room for one more library, or returns why there is none.
    fn make_room(&mut self, process: ProcKey, tenant: &FileOwner) -> Result<(), String> {
        let Some(affected) = room::one_more(&self.known, process, tenant)? else { return Ok(()) };
        let library = self.known.remove(&affected);
        for process in library.into_iter().flat_map(|library| library.users.into_keys()) {
            let why = "one of its collective libraries was dropped in favour of another tenant's";
            self.leave_out(process, why.to_owned());
        }
        Ok(())
    }

    /// Schedules another scan of a process, with an increasing delay.
    fn retry_later(&mut self, process: ProcKey, why: String) -> ScanOutcome {
        let of = self.processes.entry(process).or_default();
        let wait = MIN_RETRY.saturating_mul(1 << of.refused.min(16)).min(MAX_RETRY);
        of.refused = of.refused.saturating_add(1);
        tracing::debug!(%process, why, ?wait, "a process's mappings will be scanned again later");
        of.retry_reason = Some(why);
        self.refused += 1;
        ScanOutcome { changed: false, again: Some(wait) }
    }

    /// Ignores a file of a process permanently.
    fn leave_out(&mut self, process: ProcKey, why: String) {
        tracing::debug!(%process, why, "a mapped file is ignored");
        self.refused += 1;
        self.processes.entry(process).or_default().left_out = Some(why);
    }

    /// Why one of the processes is not completely observed.
    pub(super) fn problem(&self) -> Option<String> {
        let problems = self.processes.iter();
        let first = problems
            .filter_map(|(process, of)| Some((process, of.problem()?)))
            .min_by_key(|(process, _)| **process);
        first.map(|(process, why)| format!("process {}: {why}", process.pid))
    }

    /// Whether code of a process has a name that speaks of NCCL: a plugin, say.
    pub(super) fn is_named(&self) -> bool {
        self.processes.values().any(|of| of.is_named)
    }

    /// Reads a library's version, which takes longer than attaching to it.
    pub(super) fn log_version(&mut self, key: &FileKey, now: Instant) {
        let Some(library) = self.known.get_mut(key) else { return };
        let meter = Meter::start(Duration::MAX);
        library.read_version();
        self.pace.spend(library.finder, meter.spent(), now);
    }

    /// Removes an ended process; true if it mapped a library.
    pub(super) fn remove(&mut self, process: ProcKey) -> bool {
        let found = self.processes.remove(&process).unwrap_or_default().found;
        self.pace.remove(process, Instant::now());
        self.let_go(process, found)
    }

    /// All processes that map a library.
    pub(super) fn users(&self) -> HashSet<ProcKey> {
        self.in_use().flat_map(|(_, library)| library.users.keys().copied()).collect()
    }

    /// The libraries in use.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (&FileKey, &Library)> {
        self.known.iter()
    }

    /// The library of a process; of several, the newest.
    pub(super) fn of(&self, process: ProcKey) -> Option<&Library> {
        let mine = self.in_use().filter(|(_, library)| library.users.contains_key(&process));
        mine.map(|(_, library)| library)
            .max_by(|one, other| one.exports.version.cmp(&other.exports.version))
    }

    /// The field offsets of a process's communicators; `None` if it maps libraries that differ.
    pub(super) fn fields_of(&self, process: ProcKey) -> Option<Fields> {
        let mut mine = self.in_use().filter(|(_, library)| library.users.contains_key(&process));
        let first = mine.next()?.1.fields;
        first.filter(|_| mine.all(|(_, library)| library.fields == first))
    }

    /// Whether `one` is a duplicate of a file that is already probed.
    pub(super) fn are_duplicates(&self, one: &Library, probed: &Library) -> bool {
        one.stamp() == probed.stamp()
            && one.exports.build_id == probed.exports.build_id
            && one.exports.entries == probed.exports.entries
            && self.is_probed(one)
    }

    /// Whether the code in a user's memory differs from the code in the file.
    fn is_probed(&self, library: &Library) -> bool {
        let Some((_, offset)) = library.exports.entries.first() else { return false };
        let in_memory =
            library.users.iter().take(MAX_MEMORY_READERS).find_map(|(process, user)| {
                let address = user.base.wrapping_add(*offset);
                self.files.memory(*process, address, library.begins.len()).ok()
            });
        in_memory.is_some_and(|found| found != library.begins)
    }

    /// The opener for files; checks for stuck processes open files in the same way.
    pub(super) fn opener(&self) -> Opener<'_> {
        Opener { files: &self.files, paths: &self.paths, trusted: &self.trusted }
    }

    /// Drops the files that a process no longer maps.
    fn leave(&mut self, process: ProcKey, mapped: &HashSet<MapsKey>) -> bool {
        let Some(of) = self.processes.get_mut(&process) else { return false };
        let gone: Vec<_> = of.found.extract_if(|key, _| !mapped.contains(key)).collect();
        let still = |found: &Found| of.found.values().any(|other| other.is_library(found));
        let gone: Vec<_> = gone.into_iter().filter(|(_, found)| !still(found)).collect();
        self.let_go(process, gone)
    }

    /// Drops files of a process; a library without users is closed at once.
    fn let_go(
        &mut self,
        process: ProcKey,
        files: impl IntoIterator<Item = (MapsKey, Found)>,
    ) -> bool {
        let mut changed = false;
        for (MapsKey { key, .. }, found) in files {
            match found {
                Found::Library(key) => {
                    let Some(library) = self.known.get_mut(&key) else { continue };
                    changed |= library.users.remove(&process).is_some();
                    if library.users.is_empty() {
                        self.known.remove(&key);
                    }
                }
                Found::Other { for_all: true } => {
                    let left = self.others.get_mut(&key).map_or(0, |mappers| {
                        *mappers = mappers.saturating_sub(1);
                        *mappers
                    });
                    if left == 0 {
                        self.others.remove(&key);
                    }
                }
                Found::Other { for_all: false } => {}
            }
        }
        changed
    }
}

/// Whether a file's name speaks of NCCL or RCCL.
fn names_library(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.windows(4).any(|part| part == b"nccl" || part == b"rccl")
}

#[cfg(test)]
mod tests;
