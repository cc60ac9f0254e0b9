//! Attaches probes to library files and detaches them.
//!
//! Links are closed when the thread has nothing else to do, because the kernel takes time for each.

pub(super) mod many;
pub(super) mod probes;
mod refusals;
mod stuck;
pub(super) mod target;
mod wanted;
pub(super) mod watch;

use super::budget::controller::Attach;
use super::budget::tally::Tally;
use super::libraries::library::Library;
use super::libraries::log_limit::ProcessLogLimit;
use super::libraries::mapped::Stamp;
use super::libraries::{FileKey, Libraries};
use super::shared::Shared;
use gpuwho_common::nccl::{COUNTERS, TaskLayout};
use gpuwho_model::paths::Paths;
use many::Way;
use probes::{Attached, Hold, Probes, task_layout};
use refusals::Refusals;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};
use stuck::Stuck;
use target::Target;

/// Time limit for closing links before other work.
const DETACH_AT_ONCE: Duration = Duration::from_millis(100);
/// The programs and the files they are attached to.
pub(super) struct Attaching {
    layout: TaskLayout,
    /// Calls a second above which only some calls of a thread are timed.
    timed_rate: u32,
    probes: Option<Probes>,
    attached: HashMap<FileKey, (Stamp, Attached)>,
    /// Files to which the programs for timing are attached too.
    timed: HashSet<FileKey>,
    /// Files from which everything was detached while they were in use.
    given_up: HashMap<FileKey, Stamp>,
    /// Duplicates of a file whose probes also cover them.
    duplicates: HashMap<FileKey, FileKey>,
    /// Numbers by which the programs identify files, from 1; none is reused.
    numbers: HashMap<FileKey, u32>,
    last_number: u32,
    refusals: Refusals,
    /// Links to close, with their files.
    detaching: Vec<(Stamp, Hold)>,
    /// Nothing is closed until then, because a process is stuck; `held_up` counts such attempts in
    /// a row.
    detach_after: Option<Instant>,
    held_up: u32,
    stuck: Stuck,
    log_limit: ProcessLogLimit,
}

impl Attaching {
    /// `timed_rate`: above this many calls a second only some calls of a thread are timed; 0 times
    /// all.
    pub(super) fn new(timed_rate: u32) -> Self {
        Self {
            layout: TaskLayout::UNKNOWN,
            timed_rate,
            probes: None,
            attached: HashMap::new(),
            timed: HashSet::new(),
            given_up: HashMap::new(),
            duplicates: HashMap::new(),
            numbers: HashMap::new(),
            last_number: 0,
            refusals: Refusals::default(),
            detaching: Vec::new(),
            detach_after: None,
            held_up: 0,
            stuck: Stuck::default(),
            log_limit: ProcessLogLimit::default(),
        }
    }

    /// Reads the kernel's field offsets for the programs.
    pub(super) fn prepare(&mut self, paths: &Paths) {
        self.layout = task_layout(paths);
    }

    /// Attaches to files that are wanted and new, or whose refusal is due for a retry. Detaches
    /// from files that are not wanted or no longer mapped.
    pub(super) fn follow(
        &mut self,
        libraries: &mut Libraries,
        wanted: &HashMap<FileKey, Attach>,
        shared: &Shared,
        now: Instant,
    ) {
        let in_use: HashSet<FileKey> = libraries.in_use().map(|(key, _)| *key).collect();
        let gone: Vec<FileKey> =
            self.attached.keys().filter(|key| !in_use.contains(*key)).copied().collect();
        // Files that shared the probes of a removed file are attached again, one of them by itself.
        self.duplicates.retain(|key, of| in_use.contains(key) && !gone.contains(of));
        for key in
            wanted.iter().filter(|(_, attach)| **attach == Attach::Nothing).map(|(key, _)| key)
        {
            self.given_up.extend(self.attached.get(key).map(|(file, _)| (*key, *file)));
            self.detach(key);
            // No retry until it is wanted again.
            self.refusals.clear(Some(key));
        }
        for key in &gone {
            self.detach(key);
        }
        self.given_up.retain(|key, _| in_use.contains(key));
        self.refusals.retain(&in_use);
        self.number(&in_use);
        let is_any = wanted.values().any(|attach| *attach != Attach::Nothing);
        if !is_any || in_use.is_empty() || !self.load(shared, now) {
            return;
        }
        self.time(libraries, wanted);
        for key in self.attach_new(libraries, wanted, now) {
            libraries.log_version(&key, now);
            let library = libraries.in_use().find(|(known, _)| **known == key);
            let (Some((_, attached)), Some((_, library))) = (self.attached.get(&key), library)
            else {
                continue;
            };
            if !self.log_limit.allows(library.finder, now) {
                continue;
            }
            let (functions, returns) = (attached.functions(), attached.returns());
            let (path, version) = (library.path(), &library.exports.version);
            let stepped = library.exports.stepped.len();
            let process = library.finder;
            tracing::info!(%process, %path, %version, functions, returns, stepped, "counting collective calls");
        }
    }

    /// Assigns numbers to new files.
    fn number(&mut self, in_use: &HashSet<FileKey>) {
        self.numbers.retain(|key, _| in_use.contains(key));
        for key in in_use {
            self.numbers.entry(*key).or_insert_with(|| {
                self.last_number = self.last_number.wrapping_add(1).max(1);
                self.last_number
            });
        }
    }

    /// The number of a file; a duplicate has the number of its original.
    pub(super) fn number_of(&self, key: &FileKey) -> Option<u32> {
        self.numbers.get(self.base(key)).copied()
    }

    /// Loads the programs once; false while the kernel refuses them.
    fn load(&mut self, shared: &Shared, now: Instant) -> bool {
        if self.probes.is_some() {
            return true;
        }
        if self.refusals.is_early(None, now) {
            return false;
        }
        match Probes::load(self.layout, Way::Session, self.timed_rate) {
            Ok((probes, maps, quotas)) => {
                self.refusals.clear(None);
                self.probes = Some(probes);
                shared.with(|known| {
                    known.quotas.load(quotas);
                    known.maps = Some(maps);
                });
                true
            }
            Err(error) => {
                if self.refusals.note(None, error.to_string(), now) {
                    tracing::warn!(%error, "collective calls cannot be counted");
                }
                false
            }
        }
    }

    /// Attaches to new files and returns them. A refused file does not affect the others.
    fn attach_new(
        &mut self,
        libraries: &Libraries,
        wanted: &HashMap<FileKey, Attach>,
        now: Instant,
    ) -> Vec<FileKey> {
        let mut new = Vec::new();
        for (key, library) in libraries.in_use() {
            let wanted = wanted.get(key).copied().unwrap_or(Attach::Full);
            let is_there = self.attached.contains_key(key) || self.duplicates.contains_key(key);
            if is_there || wanted == Attach::Nothing || self.is_detaching(key) {
                continue;
            }
            let timed = wanted == Attach::Full;
            let mut probed =
                libraries.in_use().filter(|(other, _)| self.attached.contains_key(*other));
            if let Some((original, _)) =
                probed.find(|(_, other)| libraries.are_duplicates(library, other))
            {
                self.refusals.clear(Some(key));
                self.duplicates.insert(*key, *original);
                continue;
            }
            let Some(probes) = &mut self.probes else { continue };
            if self.refusals.is_early(Some(key), now) {
                continue;
            }
            let (place, path, process) = (library.place(), library.path(), library.finder);
            let attached = if let Some(stuck) = self.stuck.on(library.stamp(), libraries) {
                Err(stuck)
            } else {
                let target = target(library, &place, self.numbers.get(key));
                probes.attach(&target, timed).map_err(|error| error.to_string())
            };
            match attached {
                Ok(attached) => {
                    let refused = attached.refused.first();
                    if let Some((name, why)) =
                        refused.filter(|_| self.log_limit.allows(library.finder, now))
                    {
                        let functions = attached.refused.len();
                        tracing::warn!(%process, %path, functions, name, why, "functions cannot be probed");
                    }
                    self.refusals.clear(Some(key));
                    self.attached.insert(*key, (library.stamp(), attached));
                    if timed {
                        self.timed.insert(*key);
                    }
                    new.push(*key);
                }
                Err(error) => {
                    let is_new = self.refusals.note(Some(*key), format!("{path}: {error}"), now);
                    if is_new && self.log_limit.allows(library.finder, now) {
                        tracing::warn!(%process, %path, error, "a library's calls cannot be counted");
                    }
                }
            }
        }
        new
    }

    /// When the next refused attachment is due for a retry.
    pub(super) fn due(&self) -> Option<Instant> {
        self.refusals.due()
    }

    /// Attaches or detaches the programs that only timing needs, as wanted.
    fn time(&mut self, libraries: &Libraries, wanted: &HashMap<FileKey, Attach>) {
        let Some(probes) = &mut self.probes else { return };
        for (key, library) in libraries.in_use() {
            let Some((file, attached)) = self.attached.get_mut(key) else { continue };
            let is_wanted = wanted.get(key) != Some(&Attach::Entries);
            if is_wanted && !self.timed.contains(key) && self.stuck.on(*file, libraries).is_none() {
                let place = library.place();
                probes.time_calls(&target(library, &place, self.numbers.get(key)), attached);
                self.timed.insert(*key);
            } else if !is_wanted && self.timed.remove(key) {
                self.detaching.extend(attached.untime().into_iter().map(|hold| (*file, hold)));
            }
        }
    }

    /// Closes a few links: a new library is attached first. Skips files whose mappings a process
    /// keeps locked.
    pub(super) fn detach_some(&mut self, libraries: &Libraries, now: Instant) {
        let begun = Instant::now();
        if self.detach_after.is_some_and(|after| now < after) {
            return;
        }
        self.detach_after = None;
        let end = begun + DETACH_AT_ONCE;
        while Instant::now() < end
            && let Some((file, link)) = self.detaching.pop()
        {
            if let Some(why) = self.stuck.on(file, libraries) {
                tracing::debug!(why, "probes stay attached for now");
                // Links of other files come first the next time.
                self.detaching.insert(0, (file, link));
                self.held_up = self.held_up.saturating_add(1);
                self.detach_after = Some(Stuck::again(now, self.held_up));
                return;
            }
            self.held_up = 0;
            drop(link);
        }
    }

    /// When links are due to be closed, if any are.
    pub(super) fn detaching_due(&self) -> Option<Instant> {
        let due = self.detach_after.unwrap_or_else(Instant::now);
        (!self.detaching.is_empty()).then_some(due)
    }

    fn detach(&mut self, key: &FileKey) {
        self.timed.remove(key);
        if let Some((file, attached)) = self.attached.remove(key) {
            self.detaching.extend(attached.into_holds().into_iter().map(|hold| (file, hold)));
        }
    }

    /// The hits of each thread so far.
    pub(super) fn hits(&self) -> Vec<(u64, Tally)> {
        self.probes.as_ref().map(Probes::hits).unwrap_or_default()
    }

    /// The programs' own counters so far.
    pub(super) fn counts(&self) -> [u64; COUNTERS as usize] {
        let mut counts = [0; COUNTERS as usize];
        if let Some(probes) = &self.probes {
            for (counter, slot) in (0_u32..).zip(&mut counts) {
                let read = probes.counts.get(&counter, 0);
                *slot = read.map_or(0, |values| values.iter().sum());
            }
        }
        counts
    }

    /// Whether nothing is attached.
    pub(super) fn is_idle(&self) -> bool {
        self.attached.is_empty()
    }

    /// Whether the programs are loaded.
    pub(super) fn is_loaded(&self) -> bool {
        self.probes.is_some()
    }

    /// Number of links still to be closed.
    pub(super) fn detaching(&self) -> usize {
        self.detaching.len()
    }

    /// Why the kernel refuses the programs, or a file's probes.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refusals.why()
    }

    /// Number of files in use; duplicates count once.
    pub(super) fn files(&self, libraries: &Libraries) -> u64 {
        libraries.in_use().filter(|(key, _)| !self.duplicates.contains_key(*key)).count() as u64
    }
}

fn target<'a>(library: &'a Library, place: &'a Path, number: Option<&u32>) -> Target<'a> {
    Target { file: place, exports: &library.exports, number: number.copied().unwrap_or(0) }
}
