//! The ownership table: who each process that touches an accelerator is.
//!
//! Evidence is worked up on the thread that brings it: a few reads in `/proc` and, for a process
//! that is already gone, the cgroup numbers the kernel captured. The tick only looks up. No lock
//! is held while anything is read.

mod ends;
pub mod killed;
mod quotas;

use super::allocations::AllocationRegistry;
use super::hierarchies::Layout;
use super::names::{self, Change, ContainerFacts, MetadataCache, PodFacts, Provider};
use super::owner::{Owner, OwnerFacts, OwnerId};
use super::process::Living;
use super::quota::Refusals;
use super::slurm::Job;
use super::table::{Resolution, Table, started_ns};
use super::{Evidence, Host, NAMES, Opened, PLACES, ProcessAttribution, Settings, Workload};
use crate::host::{Clock, boot_time_ns};
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::sample::Histogram;
use crate::tenant_files::TenantFiles;
use ends::ExitDetector;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
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
    ends: ExitDetector,
    refusals: Refusals,
}

/// How many there are of what, for `gpuwho doctor` and the self-metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Processes that hold a device.
    pub holders: usize,
    /// Processes that ended within the last minutes.
    pub ended: usize,
    /// Processes, alive or ended, whose owner is not known.
    pub pending: usize,
    /// Holders that found no room in the table.
    pub refused: u64,
    /// Paths read that lead out of this cgroup namespace: the agent must run in the host's.
    pub wrong_namespace: u64,
}

/// A state of the table, to compare with a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    processes: u64,
    owners: u64,
}

/// Seconds from open to owner: from what a lookup takes to what a lost event costs.
pub const LATENCY_BOUNDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Rows tried again in one [`Ownership::expire`].
const MAX_RETRIES: usize = 256;
/// One thread observes and one supplies. What is known and not believed is found behind each time.
const MAX_REPEATS: usize = 2;

impl Ownership {
    /// An empty table that reads the host's files at `paths`.
    pub fn new(paths: &Paths) -> Self {
        Self::with_settings(paths, Settings::default_settings(paths))
    }

    /// The same, with what the operator has said.
    pub fn with_settings(paths: &Paths, settings: Settings) -> Self {
        Self::reading_through(&TenantFiles::direct(paths), settings)
    }

    /// The same, where what a tenant can make hang is read through `files`.
    pub fn reading_through(files: &TenantFiles, settings: Settings) -> Self {
        Self::make(Host::new(settings, files), boot_time_ns)
    }

    /// The same with another clock (nanoseconds of `CLOCK_BOOTTIME`).
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
            ends: ExitDetector::default(),
            refusals: Refusals::default(),
        }))
    }

    /// Takes one piece of evidence; resolves the owner at once where it can.
    pub fn observe(&self, evidence: Evidence) {
        let case = match evidence {
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
        if let Some(case) = case {
            self.resolve(case);
        }
    }

    /// The identity of a process the driver names by number (a thread group's). A process that
    /// started after `seen_at_ns` (`CLOCK_BOOTTIME`, when the driver was asked) is another one:
    /// `None`. One that ended up to ten seconds before is found while its number is unused,
    /// because drivers list a process until its memory is freed.
    ///
    /// A lookup for a known process; a number seen for the first time is read in `/proc` once.
    pub fn process(&self, pid: u32, seen_at_ns: u64) -> Option<ProcKey> {
        self.catch_up(seen_at_ns);
        if let Some(process) = self.read().alive_at(pid, seen_at_ns) {
            return Some(process);
        }
        match Living::find(&self.0.host.paths, pid) {
            Some(living) => self.listed(&living, seen_at_ns),
            None => self.read().just_ended(pid, seen_at_ns),
        }
    }

    /// The same for all that the driver named, those nobody knows left out; and whether it stays
    /// so until the [`Version`] changes, because all of them are there and alive.
    pub(crate) fn processes(
        &self,
        pids: &[u32],
        seen_at_ns: u64,
    ) -> (BTreeMap<u32, ProcKey>, bool) {
        let find = |pid: &u32| Some((*pid, self.process(*pid, seen_at_ns)?));
        let found: BTreeMap<_, _> = pids.iter().filter_map(find).collect();
        let table = self.read();
        let stays = found.len() == pids.len() && found.values().all(|key| table.is_living(*key));
        (found, stays)
    }

    /// Whose the process was that had this number at a moment (`CLOCK_BOOTTIME`), if it is known to
    /// have held a device: nothing is read, and nobody is taken for a holder.
    pub fn known(&self, pid: u32, at_ns: u64) -> Option<Arc<ProcessAttribution>> {
        let table = self.read();
        let process = table.alive_at(pid, at_ns).or_else(|| table.just_ended(pid, at_ns))?;
        table.attribution(process)
    }

    /// Whose a process is: one lookup.
    pub fn attribution(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.read().attribution(process)
    }

    /// While it is the same, so is what [`Ownership::owner`] and [`Ownership::party`] give: who
    /// has looked everybody up need not do it again.
    pub fn version(&self) -> Version {
        Version { processes: self.read().version(), owners: self.0.host.owners.version() }
    }

    /// Everything known to hold a device now.
    pub fn openers(&self) -> Vec<Arc<ProcessAttribution>> {
        self.read().openers()
    }

    /// How many hold a device now.
    pub fn holding(&self) -> usize {
        self.read().holding()
    }

    /// Every device node that a living process opened, with the process's party.
    pub fn open_nodes(&self, each: impl FnMut(OwnerId, &[Arc<str>])) {
        self.read().open_nodes(each);
    }

    /// What held a device and ended within the last minutes.
    pub fn ended(&self) -> Vec<Arc<ProcessAttribution>> {
        self.read().ended()
    }

    /// The file of the host's users and how long it has not answered, if it hangs.
    pub fn hung_users(&self) -> Option<(&Path, Duration)> {
        self.0.host.users.hung()
    }

    /// The Slurm jobs on this node, those that ended within the last minutes included. A look at
    /// what is kept: nothing is read.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.0.host.slurm.jobs()
    }

    /// Time from a device's opening to the owner being known, in seconds.
    pub fn latency(&self) -> Histogram {
        self.0.latency.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many there are of what.
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

    /// The index of what runtimes and kubelet say; its suppliers subscribe to what it lacks.
    pub fn names(&self) -> &MetadataCache {
        &self.0.host.names
    }

    /// What was granted to whom.
    pub fn allocations(&self) -> &AllocationRegistry {
        &self.0.allocations
    }

    /// Takes what a supplier says of a pod, and names its processes again if it is news.
    pub fn put_pod(&self, provider: Provider, facts: PodFacts) {
        let change = Change::Pod(facts.uid.clone());
        if self.names().put_pod(provider, facts) {
            self.learned(&change);
        }
    }

    /// Takes what a supplier says of a container, and names its processes again if it is news.
    pub fn put_container(&self, provider: Provider, facts: ContainerFacts) {
        let change = Change::Container(facts.id.clone());
        if self.names().put_container(provider, facts) {
            self.learned(&change);
        }
    }

    /// A supplier says that a pod or a container has ended: forgotten some minutes later.
    pub fn gone(&self, provider: Provider, what: &Change) {
        self.names().gone(provider, what, self.0.clock.now());
    }

    /// Who a party is: one lookup. The `Arc` changes when its names do.
    pub fn owner(&self, id: OwnerId) -> Option<Arc<OwnerFacts>> {
        self.0.host.owners.facts(id)
    }

    /// The number of a party that was granted something, with the names of `workload`.
    pub fn allocation_owner(&self, owner_id: Owner, workload: &Workload) -> OwnerId {
        self.0.host.owners.granted(owner_id, workload)
    }

    /// Forgets parties that no process is of and that `in_use` does not name.
    pub fn retain_owners(&self, in_use: impl Fn(OwnerId) -> bool) {
        let live = self.read().owners();
        self.0.host.owners.retain(|owner_id| live.contains(&owner_id) || in_use(owner_id));
    }

    /// Names the processes of a pod or a container again.
    fn learned(&self, change: &Change) {
        self.refresh_names(|owner| match change {
            Change::Pod(uid) => owner.workload.pod.as_ref().is_some_and(|pod| pod.uid == *uid),
            Change::Container(id) => {
                let workload = &owner.workload;
                workload.container.as_ref().or(workload.unconfirmed()) == Some(id)
            }
        });
    }

    /// Looks up the names of those processes again; where they are stands.
    fn refresh_names(&self, test: impl Fn(&ProcessAttribution) -> bool) {
        let cases = self.read().to_name(test);
        for case in cases {
            self.resolve(case);
        }
    }

    /// What the resolvers read.
    pub(super) fn host(&self) -> &Host {
        &self.0.host
    }

    /// Which cgroup versions the host uses.
    pub fn layout(&self) -> Layout {
        self.0.host.hierarchies.layout()
    }

    /// Once a tick, off the sampling path: forgets what ended long ago, tries again what is not
    /// known yet, and finds the ends that nobody reported.
    pub fn expire(&self, now_ns: u64) {
        self.sweep(now_ns);
        self.write().expire(now_ns);
        let host = &self.0.host;
        host.hierarchies.expire(now_ns);
        for job in host.slurm.expire(&host.hierarchies, &host.users, now_ns) {
            self.refresh_names(|owner| owner.cgroup.as_deref().is_some_and(|path| job.holds(path)));
        }
        self.0.host.podlogs.poll();
        self.0.host.names.expire(now_ns);
        let cases = self.write().incomplete(now_ns, MAX_RETRIES);
        for case in cases {
            self.resolve(case);
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
        let case = self.write().listed(living.key, &living.comm, uid);
        if let Some(case) = case {
            self.resolve(case);
        }
        self.read().attribution(living.key).map(|owner| owner.process)
    }

    /// Finds the owner, and again while a supplier has told something between the look and the
    /// row's taking of it, which the supplier could not yet see in the row.
    fn resolve(&self, case: Resolution) {
        let process = case.attribution.process;
        self.apply(case);
        for _ in 0..MAX_REPEATS {
            let is_behind = |owner: &ProcessAttribution| names::is_behind(&self.0.host, owner);
            let Some(case) = self.read().one_to_name(process, is_behind) else { return };
            self.apply(case);
        }
    }

    /// Every source in order, then the row takes what they found.
    fn apply(&self, mut case: Resolution) {
        let places = if case.placed { &[] } else { PLACES };
        for (_, source) in places.iter().chain(NAMES) {
            source(&self.0.host, &case.cgroups, &mut case.attribution);
        }
        if let Some(known) = self.attribution(case.attribution.process) {
            case.attribution.workload.keep_names(&known.workload);
        }
        case.attribution.owner =
            self.0.host.owners.of(&case.attribution, |uid| self.0.host.users.name(uid));
        let opened_ns = self.write().apply(case);
        if let Some(opened_ns) = opened_ns {
            let took_ns = self.0.clock.now().saturating_sub(opened_ns);
            let mut latency = self.0.latency.lock().unwrap_or_else(PoisonError::into_inner);
            latency.observe(took_ns as f64 / 1e9);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
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
