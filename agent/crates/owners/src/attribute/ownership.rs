//! The ownership table: the owner of each process that uses an accelerator.
//!
//! The thread that brings evidence also processes it: a few reads in `/proc` and, for a process
//! that is already gone, the cgroup ids that the kernel captured. The tick only looks up. No lock
//! is held during a read.

mod ends;
pub mod killed;
mod quotas;
mod resolving;

use super::allocations::AllocationRegistry;
use super::hierarchies::Layout;
use super::names::{Change, ContainerFacts, MetadataCache, PodFacts, Provider};
use super::owner::{Owner, OwnerFacts};
use super::quota::Refusals;
use super::slurm::Job;
use super::table::{Resolution, Table, started_ns};
use super::{Evidence, Host, Opened, ProcessAttribution, Settings, Workload};
use crate::host::{Clock, boot_time_ns};
use crate::process::Living;
use crate::tenant_files::TenantFiles;
use ends::ExitDetector;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Histogram;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The table, shared by the source that fills it and the enrich stage that reads it.
#[derive(Clone, Debug)]
pub struct Ownership(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    host: Host,
    clock: Clock,
    table: RwLock<Table>,
    allocations: AllocationRegistry,
    latency: Mutex<Histogram>,
    /// Notified, and its mutex held, after each result of a resolution.
    resolved: (Mutex<()>, Condvar),
    ends: ExitDetector,
    refusals: Refusals,
}

/// Counts of the table, for `gpuwho doctor` and the self-metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Processes that hold a device.
    pub holders: usize,
    /// Processes that ended within the last minutes.
    pub ended: usize,
    /// Processes, live or ended, without a known owner.
    pub pending: usize,
    /// Processes with a device that found no room in the table.
    pub refused: u64,
    /// Cgroup paths that lead out of the agent's cgroup namespace: the agent must run in the
    /// host's.
    pub wrong_namespace: u64,
}

/// A version of the table, to compare with a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    processes: u64,
    owners: u64,
}

/// Seconds from open to owner: from a lookup's duration to the delay of a lost event.
pub const LATENCY_BOUNDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Incomplete entries retried in one [`Ownership::expire`].
const MAX_RETRIES: usize = 256;

impl Ownership {
    /// Creates an empty table that reads the host's files at `paths`.
    pub fn new(paths: &Paths) -> Self {
        Self::with_settings(paths, Settings::default_settings(paths))
    }

    /// The same, with the operator's settings.
    pub fn with_settings(paths: &Paths, settings: Settings) -> Self {
        Self::reading_through(&TenantFiles::direct(paths), settings)
    }

    /// The same; files that a tenant can make hang are read through `files`.
    pub fn reading_through(files: &TenantFiles, settings: Settings) -> Self {
        Self::make(Host::new(settings, files), boot_time_ns)
    }

    /// The same, with another clock (nanoseconds of `CLOCK_BOOTTIME`).
    #[cfg(any(test, feature = "fixtures"))]
    pub fn with_clock(paths: &Paths, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self::make(Host::new(Settings::default_settings(paths), &TenantFiles::direct(paths)), clock)
    }

    fn make(host: Host, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            host,
            clock: Clock::new(clock),
            table: RwLock::default(),
            allocations: AllocationRegistry::default(),
            latency: Mutex::new(Histogram::new(LATENCY_BOUNDS)),
            resolved: Default::default(),
            ends: ExitDetector::default(),
            refusals: Refusals::default(),
        }))
    }

    /// Processes one piece of evidence; resolves the owner at once if possible.
    pub fn observe(&self, evidence: Evidence) {
        let resolution = match evidence {
            Evidence::Opened(opened) => self.write().opened(&opened, &[]),
            Evidence::Forked { parent, child } => self.forked(parent, &child),
            Evidence::Execed { process, comm } => self.write().execed(process, &comm),
            Evidence::Moved { process, cgroups } => self.write().moved(process, cgroups),
            Evidence::Exited { process, at_ns } => {
                self.write().exited(process, at_ns);
                None
            }
            Evidence::CgroupMade { id, path } => {
                self.0.host.hierarchies.made(id, &path);
                self.0.host.slurm.made(id, &path, self.0.clock.now());
                None
            }
            Evidence::CgroupRemoved { id } => {
                let now_ns = self.0.clock.now();
                self.0.host.hierarchies.removed(id, now_ns);
                self.0.host.slurm.removed(id, now_ns);
                None
            }
        };
        if let Some(resolution) = resolution {
            self.resolve(resolution);
        }
    }

    /// The identity of a process that the driver lists by PID (of the thread group). `None` if the
    /// process started after `seen_at_ns` (`CLOCK_BOOTTIME` of the driver's answer): it is another
    /// one. A process that ended up to ten seconds before is found while its PID is unused, because
    /// drivers list a process until its memory is freed. Later, and as long as the driver goes on listing
    /// the PID, it is nobody's: a process that has it now is found once it is seen to open a device.
    ///
    /// One lookup for a known process; an unknown PID is read in `/proc` once.
    pub fn process(&self, pid: u32, seen_at_ns: u64) -> Option<ProcKey> {
        self.catch_up(seen_at_ns);
        if let Some(process) = self.read().alive_at(pid, seen_at_ns) {
            return Some(process);
        }
        let living = Living::find(&self.0.host.paths, pid);
        if let Some(living) = &living
            && !self.read().is_stale(pid)
        {
            return self.listed(living, seen_at_ns);
        }
        let mut table = self.write();
        table.note_stale(pid);
        table.just_ended(pid, seen_at_ns).filter(|_| living.is_none())
    }

    /// The same for all PIDs of a driver's list, without unknown ones; and whether the result is
    /// valid until the [`Version`] changes, because all of them are known and alive. Waits for the
    /// first result of those that another thread has just found: half an owner would be another
    /// series.
    pub(crate) fn processes(
        &self,
        pids: &[u32],
        seen_at_ns: u64,
    ) -> (BTreeMap<u32, ProcKey>, bool) {
        let find = |pid: &u32| Some((*pid, self.process(*pid, seen_at_ns)?));
        let found: BTreeMap<_, _> = pids.iter().filter_map(find).collect();
        self.wait_for_first_results(&found);
        let table = self.read();
        let is_stable =
            found.len() == pids.len() && found.values().all(|key| table.is_living(*key));
        (found, is_stable)
    }

    /// The attribution of the process that had a PID at a given time (`CLOCK_BOOTTIME`), if it is
    /// known to have held a device. Reads nothing and adds no entry.
    pub fn known(&self, pid: u32, at_ns: u64) -> Option<Arc<ProcessAttribution>> {
        let table = self.read();
        let process = table.alive_at(pid, at_ns).or_else(|| table.just_ended(pid, at_ns))?;
        table.attribution(process)
    }

    /// The attribution of a process: one lookup.
    pub fn attribution(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.read().attribution(process)
    }

    /// Changes whenever a result of [`Ownership::attribution`] or [`Ownership::owner`] changes, so
    /// that callers can reuse results.
    pub fn version(&self) -> Version {
        Version { processes: self.read().version(), owners: self.0.host.owners.version() }
    }

    /// All processes that hold a device now.
    pub fn openers(&self) -> Vec<Arc<ProcessAttribution>> {
        self.read().openers()
    }

    /// The number of processes that hold a device now.
    pub fn holding(&self) -> usize {
        self.read().holding()
    }

    /// Calls `each` with the device nodes of every live process, and the process's owner.
    pub fn open_nodes(&self, each: impl FnMut(OwnerId, &[Arc<str>])) {
        self.read().open_nodes(each);
    }

    /// Processes that held a device and ended within the last minutes.
    pub fn ended(&self) -> Vec<Arc<ProcessAttribution>> {
        self.read().ended()
    }

    /// The user database and how long it has not answered, if it hangs.
    pub fn hung_users(&self) -> Option<(&Path, Duration)> {
        self.0.host.users.hung()
    }

    /// The Slurm jobs on this node, including those that ended within the last minutes. Reads
    /// memory only.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.0.host.slurm.jobs()
    }

    /// Time from a device's open to its known owner, in seconds.
    pub fn latency(&self) -> Histogram {
        self.0.latency.lock().clone()
    }

    /// The counts of the table.
    pub fn counts(&self) -> TableCounts {
        let table = self.read();
        TableCounts {
            holders: table.holding(),
            ended: table.ended_count(),
            pending: table.pending(),
            refused: table.refused,
            wrong_namespace: self.0.host.hierarchies.wrong_namespace(),
        }
    }

    /// The index of runtime and kubelet metadata; providers subscribe to its requests.
    pub fn names(&self) -> &MetadataCache {
        &self.0.host.names
    }

    /// The allocations.
    pub fn allocations(&self) -> &AllocationRegistry {
        &self.0.allocations
    }

    /// Stores a provider's facts about a pod, and refreshes its processes if they changed.
    pub fn put_pod(&self, provider: Provider, facts: PodFacts) {
        let change = Change::Pod(facts.uid.clone());
        if self.names().put_pod(provider, facts) {
            self.learned(&change);
        }
    }

    /// Stores a provider's facts about a container, and refreshes its processes if they changed.
    pub fn put_container(&self, provider: Provider, facts: ContainerFacts) {
        let change = Change::Container(facts.id.clone());
        if self.names().put_container(provider, facts) {
            self.learned(&change);
        }
    }

    /// Records that a provider reports the end of a pod or container; its facts are removed some
    /// minutes later.
    pub fn gone(&self, provider: Provider, what: &Change) {
        self.names().gone(provider, what, self.0.clock.now());
    }

    /// An owner's facts: one lookup. The `Arc` changes with the names.
    pub fn owner(&self, id: OwnerId) -> Option<Arc<OwnerFacts>> {
        self.0.host.owners.facts(id)
    }

    /// The number of an owner of an allocation, with the names of `workload`.
    pub fn allocation_owner(&self, owner_id: Owner, workload: &Workload) -> OwnerId {
        self.0.host.owners.allocated(owner_id, workload)
    }

    /// Removes owners without processes that `in_use` does not name.
    pub fn retain_owners(&self, in_use: impl Fn(OwnerId) -> bool) {
        let live = self.read().owners();
        self.0.host.owners.retain(|owner_id| live.contains(&owner_id) || in_use(owner_id));
    }

    /// Refreshes the names of a pod's or container's processes.
    fn learned(&self, change: &Change) {
        self.refresh_names(|owner| match change {
            Change::Pod(uid) => owner.workload.pod.as_ref().is_some_and(|pod| pod.uid == *uid),
            Change::Container(id) => {
                let workload = &owner.workload;
                workload.container.as_ref().or(workload.unconfirmed()) == Some(id)
            }
        });
    }

    /// Looks up the names of the matching processes again; their cgroups stay.
    fn refresh_names(&self, test: impl Fn(&ProcessAttribution) -> bool) {
        let resolutions = self.read().to_refresh(test);
        for resolution in resolutions {
            self.resolve(resolution);
        }
    }

    /// The sources of the resolvers.
    pub(super) fn host(&self) -> &Host {
        &self.0.host
    }

    /// The cgroup versions in use.
    pub fn layout(&self) -> Layout {
        self.0.host.hierarchies.layout()
    }

    /// Once a tick, off the sampling path: removes what ended long ago, retries incomplete entries,
    /// and finds exits that were not reported.
    pub fn expire(&self, now_ns: u64) {
        self.sweep(now_ns);
        self.write().expire(now_ns);
        let host = &self.0.host;
        host.hierarchies.expire(now_ns);
        for job in host.slurm.expire(&host.hierarchies, &host.users, now_ns) {
            let is_inside = |path: &str| job.holds(path);
            self.refresh_names(|owner| {
                owner.cgroup.as_deref().is_some_and(is_inside) && !job.is_known_to(owner)
            });
        }
        self.0.host.podlogs.poll();
        self.0.host.names.expire(now_ns);
        let resolutions = self.write().incomplete(now_ns, MAX_RETRIES);
        for resolution in resolutions {
            self.resolve(resolution);
        }
    }

    fn forked(&self, parent: ProcKey, child: &Opened) -> Option<Resolution> {
        let mut table = self.write();
        let nodes = table.attribution(parent).map(|owner| owner.nodes.clone()).unwrap_or_default();
        table.opened(child, &nodes)
    }

    fn listed(&self, living: &Living, seen_at_ns: u64) -> Option<ProcKey> {
        if started_ns(living.key) > seen_at_ns {
            return None;
        }
        let uid = living.uid()?;
        let resolution = self.write().listed(living.key, &living.comm, uid);
        if let Some(resolution) = resolution {
            self.resolve(resolution);
        }
        self.read().attribution(living.key).map(|owner| owner.process)
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write()
    }
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod numbers_tests;
#[cfg(test)]
mod storm_tests;
#[cfg(test)]
mod tests;
