//! What is attached to which library, and how it comes and goes.
//!
//! Links are closed when there is nothing better to do, since the kernel takes its time for each.

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
use crate::paths::Paths;
use gpuwho_common::nccl::{COUNTERS, TaskLayout};
use many::Way;
use probes::{Attached, Hold, Probes, task_layout};
use refusals::Refusals;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};
use stuck::Stuck;
use target::Target;

/// How long links are closed before something else has its turn.
const DETACH_AT_ONCE: Duration = Duration::from_millis(100);
/// The programs and where they are attached.
pub(super) struct Attaching {
    layout: TaskLayout,
    /// Calls a second of a thread, above which some are timed.
    timed_rate: u32,
    probes: Option<Probes>,
    attached: HashMap<FileKey, (Stamp, Attached)>,
    /// Files of which what only timing needs is attached as well.
    timed: HashSet<FileKey>,
    /// Files from which everything was detached while somebody used them.
    given_up: HashMap<FileKey, Stamp>,
    /// Files that another one's probes are on, since both are the same.
    twins: HashMap<FileKey, FileKey>,
    /// By which the programs tell files apart, from 1; no number is given twice.
    numbers: HashMap<FileKey, u32>,
    last_number: u32,
    refusals: Refusals,
    /// Links to close, when there is nothing better to do, and of which file.
    detaching: Vec<(Stamp, Hold)>,
    /// Nothing is closed until then, since somebody is stuck, at so many tries in a row.
    detach_after: Option<Instant>,
    held_up: u32,
    stuck: Stuck,
    words: ProcessLogLimit,
}

impl Attaching {
    /// Of a thread that calls faster than this a second some calls are timed; 0: all of every
    /// thread.
    pub(super) fn new(timed_rate: u32) -> Self {
        Self {
            layout: TaskLayout::UNKNOWN,
            timed_rate,
            probes: None,
            attached: HashMap::new(),
            timed: HashSet::new(),
            given_up: HashMap::new(),
            twins: HashMap::new(),
            numbers: HashMap::new(),
            last_number: 0,
            refusals: Refusals::default(),
            detaching: Vec::new(),
            detach_after: None,
            held_up: 0,
            stuck: Stuck::default(),
            words: ProcessLogLimit::default(),
        }
    }

    /// Finds out where the kernel keeps what the programs read.
    pub(super) fn prepare(&mut self, paths: &Paths) {
        self.layout = task_layout(paths);
    }

    /// Attaches what is wanted, new or was refused some time ago, and detaches what is not wanted or
    /// what nobody maps any more.
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
        // What was on a file that is gone is attached to one of its twins.
        self.twins.retain(|key, of| in_use.contains(key) && !gone.contains(of));
        for key in
            wanted.iter().filter(|(_, attach)| **attach == Attach::Nothing).map(|(key, _)| key)
        {
            self.given_up.extend(self.attached.get(key).map(|(file, _)| (*key, *file)));
            self.take_off(key);
            // Nothing is to be tried again of it until it is wanted.
            self.refusals.clear(Some(key));
        }
        for key in &gone {
            self.take_off(key);
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
            if !self.words.allows(library.finder, now) {
                continue;
            }
            let (functions, returns) = (attached.functions(), attached.returns());
            let (path, version) = (library.path(), &library.exports.version);
            let stepped = library.exports.stepped.len();
            let process = library.finder;
            tracing::info!(%process, %path, %version, functions, returns, stepped, "counting collective calls");
        }
    }

    /// Numbers what is new.
    fn number(&mut self, in_use: &HashSet<FileKey>) {
        self.numbers.retain(|key, _| in_use.contains(key));
        for key in in_use {
            self.numbers.entry(*key).or_insert_with(|| {
                self.last_number = self.last_number.wrapping_add(1).max(1);
                self.last_number
            });
        }
    }

    /// The number of a file: of one that is the same as another, the other's.
    pub(super) fn number_of(&self, key: &FileKey) -> Option<u32> {
        self.numbers.get(self.base(key)).copied()
    }

    /// Loads the programs once; false while the kernel does not take them.
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

    /// The files that are probed from now on. One that is refused keeps no other from it.
    fn attach_new(
        &mut self,
        libraries: &Libraries,
        wanted: &HashMap<FileKey, Attach>,
        now: Instant,
    ) -> Vec<FileKey> {
        let mut new = Vec::new();
        for (key, library) in libraries.in_use() {
            let wanted = wanted.get(key).copied().unwrap_or(Attach::Full);
            let is_there = self.attached.contains_key(key) || self.twins.contains_key(key);
            if is_there || wanted == Attach::Nothing || self.is_detaching(key) {
                continue;
            }
            let timed = wanted == Attach::Full;
            let mut probed =
                libraries.in_use().filter(|(other, _)| self.attached.contains_key(*other));
            if let Some((twin, _)) = probed.find(|(_, other)| libraries.are_twins(library, other)) {
                self.refusals.clear(Some(key));
                self.twins.insert(*key, *twin);
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
                        refused.filter(|_| self.words.allows(library.finder, now))
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
                    let is_news = self.refusals.note(Some(*key), format!("{path}: {error}"), now);
                    if is_news && self.words.allows(library.finder, now) {
                        tracing::warn!(%process, %path, error, "a library's calls cannot be counted");
                    }
                }
            }
        }
        new
    }

    /// When something that was refused is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.refusals.due()
    }

    /// Attaches what only timing needs to files where that is wanted, and detaches it elsewhere.
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

    /// A few at a time: a library that comes meanwhile is attached first. None of a file of which
    /// somebody keeps the mappings locked.
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
                tracing::debug!(why, "probes are left where they are");
                // Others' come first the next time.
                self.detaching.insert(0, (file, link));
                self.held_up = self.held_up.saturating_add(1);
                self.detach_after = Some(Stuck::again(now, self.held_up));
                return;
            }
            self.held_up = 0;
            drop(link);
        }
    }

    /// When links are to be closed, if any are.
    pub(super) fn detaching_due(&self) -> Option<Instant> {
        let due = self.detach_after.unwrap_or_else(Instant::now);
        (!self.detaching.is_empty()).then_some(due)
    }

    fn take_off(&mut self, key: &FileKey) {
        self.timed.remove(key);
        if let Some((file, attached)) = self.attached.remove(key) {
            self.detaching.extend(attached.into_holds().into_iter().map(|hold| (file, hold)));
        }
    }

    /// What each thread has hit so far.
    pub(super) fn hits(&self) -> Vec<(u64, Tally)> {
        self.probes.as_ref().map(Probes::hits).unwrap_or_default()
    }

    /// What the programs have counted of themselves so far.
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

    /// Nothing is attached.
    pub(super) fn is_idle(&self) -> bool {
        self.attached.is_empty()
    }

    /// Whether the kernel has taken the programs.
    pub(super) fn is_loaded(&self) -> bool {
        self.probes.is_some()
    }

    /// How many links are still to be closed.
    pub(super) fn detaching(&self) -> usize {
        self.detaching.len()
    }

    /// Why the kernel does not take the programs, or a file's probes.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refusals.why()
    }

    /// How many files are in use, those that are the same counted once.
    pub(super) fn files(&self, libraries: &Libraries) -> u64 {
        libraries.in_use().filter(|(key, _)| !self.twins.contains_key(*key)).count() as u64
    }
}

fn target<'a>(library: &'a Library, place: &'a Path, number: Option<&u32>) -> Target<'a> {
    Target { file: place, exports: &library.exports, number: number.copied().unwrap_or(0) }
}
