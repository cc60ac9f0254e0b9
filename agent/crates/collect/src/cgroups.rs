//! CPU time, memory, limits, throttling and pressure of the cgroups of owners that hold a device.
//!
//! Which directory is an owner's is looked up in memory when somebody's owner changes; at most
//! [`MAX_OWNERS`] of them are read. Each is two small files a tick, one more on version 1 and three more where pressure is
//! exported; `memory.stat` every [`MEMORY_EVERY`], and limits every [`LIMITS_EVERY`]. The files stay open. Nothing is read where nothing of it is exported. Why not with
//! `cgroups-rs`, and what a tenant with cgroups of his own could do: `docs/decisions/0015-owners-cgroups.md`.

mod directory;
mod readings;

use super::Collector;
use super::source::{Context, Diagnosing, SharedSelection, Source};
use crate::cpu_limit::Importance;
use directory::{Directory, Roots};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::cgroup as metric;
use gpuwho_model::finding::Finding;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, OwnerCgroup};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use readings::{Limits, MemoryStat, Readings};
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, Instant};

/// This source's name.
pub(super) const NAME: &str = "cgroups";

/// Cgroups read in a tick, far more than owners share the devices of a host. The owners that held a
/// device first are read.
const MAX_OWNERS: usize = 256;
/// Descriptors of a cgroup that stays open: its directory in four hierarchies, eight files.
const DESCRIPTORS: u64 = 12;
/// Cgroups hold no more than this part of the descriptors that the agent may open.
const PART_OF_DESCRIPTORS: u64 = 4;
/// Processes of an owner whose paths are parsed: a tenant can put each of its processes into another
/// cgroup.
const MAX_PATHS: usize = 64;
/// Time between two readings of an owner's limits, which hardly ever change.
const LIMITS_EVERY: Duration = Duration::from_secs(30);
/// Time between two readings of an owner's `memory.stat`, for which the kernel adds up every counter of memory: it costs
/// as much as all other files together.
const MEMORY_EVERY: Duration = Duration::from_secs(4);
/// The owners of one tick are read again in so many parts of these times, not all at once.
const SPREAD: u32 = 16;
/// Time for a tick; the owners after it are left out. The kernel adds up a cgroup's counters when
/// they are read, which takes milliseconds with ten thousand cgroups below it.
const MAX_TIME: Duration = Duration::from_secs(1);

/// The source as configured.
#[derive(Debug)]
pub(super) struct CgroupSource {
    pub(super) is_enabled: bool,
}

impl Source for CgroupSource {
    fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let metrics = CgroupMetrics::new(&context.paths, context.ownership.clone());
        Ok(vec![Box::new(CgroupMetrics { selection: Some(context.selection.clone()), ..metrics })])
    }

    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        if !self.is_enabled {
            return vec![Finding::switched_off(NAME, "host.cgroups")];
        }
        let found = Roots::find(settings.paths).describe();
        let is_absent = || {
            let report = absent(settings.paths);
            Finding::new(NAME, "absent", report.reason, report.remedy)
        };
        vec![found.map_or_else(is_absent, |facts| Finding::new(NAME, "ok", facts, ""))]
    }
}

/// The collector.
#[derive(Debug)]
pub(super) struct CgroupMetrics {
    paths: Paths,
    ownership: Ownership,
    /// The table when the owners were taken from it.
    version: Option<Version>,
    owners: BTreeMap<OwnerId, Cgroup>,
    /// Owners with a cgroup that were not read last time.
    left_out: usize,
    /// Cgroups that stay open.
    max_open: usize,
    roots: Roots,
    is_absent: bool,
    /// What is exported; everything without it.
    selection: Option<SharedSelection>,
}

/// An owner's cgroup.
#[derive(Debug)]
struct Cgroup {
    /// Its path within each hierarchy.
    path: String,
    /// Opened when it is first read, and again after it was gone.
    directory: Option<Directory>,
    limits: Seldom<Limits>,
    memory: Seldom<MemoryStat>,
}

/// What is read less often than at each tick, and when it was.
#[derive(Debug, Default)]
struct Seldom<T>(Option<(Instant, T)>);

impl<T: Copy> Seldom<T> {
    /// What was read within this time, else what is read now. The first reading of owners that come together counts as
    /// more or less old.
    fn get(&mut self, every: Duration, owner: OwnerCgroup, read: impl FnOnce() -> T) -> T {
        let now = Instant::now();
        let since = match &self.0 {
            Some((at, known)) if now.duration_since(*at) < every => return *known,
            Some(_) => Duration::ZERO,
            None => every * (owner.0.number() % SPREAD) / SPREAD,
        };
        let read = read();
        self.0 = Some((now.checked_sub(since).unwrap_or(now), read));
        read
    }
}

impl CgroupMetrics {
    fn new(paths: &Paths, ownership: Ownership) -> Self {
        Self {
            paths: paths.clone(),
            ownership,
            version: None,
            owners: BTreeMap::new(),
            left_out: 0,
            max_open: max_open(getrlimit(Resource::Nofile).current),
            roots: Roots::default(),
            is_absent: true,
            selection: None,
        }
    }

    /// Takes the owners of all processes that hold a device now. An owner whose processes are in
    /// several cgroups that name it (tasks of a Nomad allocation, an old and a new container of one
    /// name) has no cgroup of its own. Returns whether the table has changed.
    fn find_owners(&mut self) -> bool {
        let version = self.ownership.version();
        if self.version.replace(version) == Some(version) {
            return false;
        }
        let mut found: BTreeMap<OwnerId, Option<String>> = BTreeMap::new();
        let mut looked: HashMap<OwnerId, usize> = HashMap::new();
        for process in self.ownership.openers() {
            let looked = looked.entry(process.owner).or_default();
            *looked += 1;
            if *looked > MAX_PATHS {
                continue;
            }
            let Some(facts) = self.ownership.owner(process.owner) else { continue };
            let path = process.cgroup.as_deref().and_then(|path| facts.owner.cgroup(path));
            let Some(path) = path else { continue };
            found
                .entry(process.owner)
                .and_modify(|known| *known = known.take().filter(|known| known == path))
                .or_insert_with(|| Some(path.to_owned()));
        }
        let mut before = std::mem::take(&mut self.owners);
        self.owners = found
            .into_iter()
            .filter_map(|(owner, path)| {
                let path = path?;
                let known = before.remove(&owner).filter(|known| known.path == path);
                Some((owner, known.unwrap_or_else(|| Cgroup::at(path))))
            })
            .collect();
        true
    }

    fn collect_within(&mut self, limit: Duration, out: &mut Batch) {
        if self.selection.as_ref().is_some_and(|now| !now.wants_any(metric::ALL)) {
            (self.version, self.is_absent) = (None, false);
            self.owners.clear();
            return;
        }
        let has_changed = self.find_owners();
        // A hierarchy that is mounted later is found with the next change of an owner.
        if self.is_absent || has_changed {
            self.roots = Roots::find(&self.paths);
            self.is_absent = self.roots.describe().is_none();
        }
        let exports = |metric| self.selection.as_ref().is_none_or(|now| now.wants(metric));
        let has_pressure = exports(metric::PRESSURE_TIME.def());
        let (began, all) = (Instant::now(), self.owners.len());
        let mut read = 0;
        for (owner, cgroup) in &mut self.owners {
            if read < MAX_OWNERS && began.elapsed() < limit {
                read += 1;
                cgroup.read(&self.roots, has_pressure, OwnerCgroup(*owner), out);
            }
            if read > self.max_open {
                cgroup.directory = None;
            }
        }
        self.left_out = all - read;
    }
}

/// How many cgroups stay open where so many descriptors are allowed.
fn max_open(descriptors: Option<u64>) -> usize {
    let most = descriptors.unwrap_or(u64::MAX) / PART_OF_DESCRIPTORS / DESCRIPTORS;
    usize::try_from(most).unwrap_or(MAX_OWNERS).min(MAX_OWNERS)
}

impl Cgroup {
    fn at(path: String) -> Self {
        Self { path, directory: None, limits: Seldom(None), memory: Seldom(None) }
    }

    /// Nothing of one that is gone; it is looked for again at the next tick.
    fn read(&mut self, roots: &Roots, has_pressure: bool, owner: OwnerCgroup, out: &mut Batch) {
        let directory = self.directory.get_or_insert_with(|| roots.open(&self.path));
        let mut readings = Readings::of(directory, has_pressure);
        // It may be gone: what is known says nothing then.
        let is_known = readings != Readings::default();
        let within = |every| if is_known { every } else { Duration::ZERO };
        let stat = || MemoryStat::of(directory, readings.memory);
        readings.stat = self.memory.get(within(MEMORY_EVERY), owner, stat);
        let limits = self.limits.get(within(LIMITS_EVERY), owner, || Limits::of(directory));
        readings.throttle(&limits, directory);
        if readings == Readings::default() {
            *self = Self::at(std::mem::take(&mut self.path));
            return;
        }
        readings.emit(owner, out);
        limits.emit(owner, out);
    }
}

impl Collector for CgroupMetrics {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The kernel answers at once or takes [`MAX_TIME`] at most, for which each tick waits anyway.
    fn never_waits(&self) -> bool {
        true
    }

    fn importance(&self) -> Importance {
        Importance::Host
    }

    fn collect(&mut self, out: &mut Batch) {
        self.collect_within(MAX_TIME, out);
    }

    fn report(&self) -> Report {
        if self.is_absent {
            return absent(&self.paths);
        }
        if self.left_out == 0 {
            return Report::ready();
        }
        let reason = format!(
            "the cgroups of {} owners that hold a device are not read: {MAX_OWNERS} are, within \
             {MAX_TIME:?}",
            self.left_out
        );
        Report::of(SourceState::Degraded, reason, "")
    }
}

fn absent(paths: &Paths) -> Report {
    let reason = format!("no cgroup hierarchy is mounted at {}", paths.cgroup.display());
    let remedy = "mount the host's /sys/fs/cgroup there, or set [paths] cgroup";
    Report::of(SourceState::Absent, reason, remedy)
}

#[cfg(test)]
mod tests;
