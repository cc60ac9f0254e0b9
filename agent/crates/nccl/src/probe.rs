//! Observes the collective library (NCCL, RCCL) in the processes that hold a device: calls, bytes,
//! durations, arrival skew and hangs, for each rank of each communicator.
//!
//! The programs count in maps; once a tick the collector reads them, some hundreds of entries per
//! system call. A separate thread finds the libraries and keeps the probes within their budgets.
//! With eight ranks of ten communicators a tick reads about 400 kB.

mod attach;
mod budget;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod libraries;
mod maps;
mod members;
pub mod phase;
#[cfg(feature = "fixtures")]
mod probed;
mod shared;
mod state;

pub use attach::many::Way;
use attach::watch::Running;
use budget::account::{report_coverage, report_probes};
pub use budget::controller::RecoveryTiming;
use budget::denials::Denials;
use budget::quota::EachOwner;
use budget::uptime::EachCovered;
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::Importance;
use gpuwho_common::nccl::{
    Communicator, LOST_CALL, LOST_COMMUNICATOR, LOST_THREAD, LOST_UNREADABLE, MadeId,
};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::catalog::nccl as metric;
use gpuwho_model::catalog::nccl::KnownBy;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_model::status::{Report, StatusRegistry};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::tenant_files::TenantFiles;
use gpuwho_pipeline::event::aggregator::EventAggregator;
pub use libraries::rescan::RescanHandle;
use maps::Maps;
use members::complete::{Completion, Sources};
use members::host::Host;
use members::peers::{Peers, groups};
use members::rank_status::{report_stuck, statuses};
use members::report::{MemberContext, count, report};
use members::{Member, MemberTable, Processes as _, Reading};
#[cfg(feature = "fixtures")]
pub use probed::{BudgetedProbe, Probed, place_of};
use shared::Shared;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the source; its threads are `collect:nccl` and `nccl:watch`.
pub const NAME: &str = "nccl";

/// What to count, and the limits on its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether the source is enabled.
    pub enabled: bool,
    /// Hits of probes a second and process above which less is attached.
    pub budget: u64,
    /// How long less is attached.
    pub recovery: RecoveryTiming,
    /// Calls a second of a thread up to which every call is timed, if returns are probed. Of a
    /// faster thread one call in sixteen is timed, at random, if the kernel can skip a return,
    /// which is a third of a call's cost. 0 times every call.
    pub timed_rate: u32,
    /// A rank that stays in one call this long, or makes none for this long while its peers
    /// advance, is hung.
    pub hang_after: Duration,
    /// Directories of the host below which root's FUSE mounts are probed: their servers are trusted
    /// to answer the kernel.
    pub trusted_mounts: Vec<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            budget: budget::tally::BUDGET,
            recovery: RecoveryTiming::default(),
            // Twice the rate of a training step of a second with 200 collectives.
            timed_rate: 500,
            // Longer than a checkpoint that one rank writes alone, shorter than PyTorch's timeout
            // of ten minutes.
            hang_after: Duration::from_mins(1),
            trusted_mounts: Vec::new(),
        }
    }
}

/// The collector. Dropping it detaches everything.
#[derive(Debug)]
pub struct Nccl {
    settings: Settings,
    paths: Paths,
    files: TenantFiles,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    shared: Shared,
    maps: Option<Maps>,
    members: MemberTable,
    completion: Completion,
    peers: Peers,
    aggregator: Option<Arc<EventAggregator>>,
    /// Probe uptime at this reading and at the last one.
    covered: [EachCovered; 2],
    denials: Denials,
    errors: u64,
    /// It needs no thread of its own before there are maps to read.
    is_quick_while_idle: bool,
    #[expect(dead_code, reason = "kept to be dropped")]
    running: Running,
}

/// The parts of the agent that the probe works with.
#[derive(Clone, Copy, Debug)]
pub struct Dependencies<'a> {
    /// Reads the files of tenants.
    pub files: &'a TenantFiles,
    /// The processes that hold a device.
    pub ownership: &'a Ownership,
    /// The registry of communicators.
    pub communicators: &'a Arc<Communicators>,
    /// The status of sources and threads.
    pub board: &'a StatusRegistry,
    /// Receives events.
    pub aggregator: Option<&'a Arc<EventAggregator>>,
}

/// Starts the search for libraries in the processes that hold a device.
pub fn start(settings: Settings, with: Dependencies<'_>) -> io::Result<(Nccl, RescanHandle)> {
    let table = with.ownership.clone();
    let holders = move || table.openers().iter().map(|owner| owner.process).collect();
    Nccl::start(settings, with, Box::new(holders))
}

impl Nccl {
    fn start(
        settings: Settings,
        with: Dependencies<'_>,
        candidates: libraries::scan::Candidates,
    ) -> io::Result<(Self, RescanHandle)> {
        let shared = Shared::default();
        let (running, waker) = attach::watch::start(&settings, with, candidates, shared.clone())?;
        let nccl = Self {
            settings,
            paths: with.files.paths().clone(),
            files: with.files.clone(),
            ownership: with.ownership.clone(),
            communicators: Arc::clone(with.communicators),
            shared,
            maps: None,
            members: MemberTable::default(),
            completion: Completion::default(),
            peers: Peers::default(),
            aggregator: with.aggregator.cloned(),
            covered: Default::default(),
            denials: Denials::default(),
            errors: 0,
            is_quick_while_idle: false,
            running,
        };
        Ok((nccl, waker))
    }

    fn read(&mut self, out: &mut Batch) -> io::Result<()> {
        // Read at the time of the counts, because it scales them.
        let covered = self.shared.with(|known| known.uptime.read(Instant::now()));
        let [last, before] = &mut self.covered;
        *before = std::mem::replace(last, covered);
        let Some(maps) = &mut self.maps else { return Ok(()) };
        let taken = self.shared.with(|known| known.quotas.taken());
        let mut snapshot = maps.read()?;
        maps.forget_names(&snapshot);
        let now_ns = boot_time_ns();
        let (host, fields) =
            self.shared.with(|known| (Host::of(&self.paths, known), known.fields.clone()));
        let sources = Sources { files: &self.files, processes: &host, fields: &fields };
        self.completion.read(&mut snapshot, &sources);
        let reading = self.members.read(&snapshot, &host, &self.communicators);
        for (number, calls) in &reading.gone {
            maps.remove(*number, communicator(&snapshot, *number), calls);
        }
        reading.gone_threads.iter().for_each(|task| maps.forget_thread(*task));
        for (handle, pid, ranks) in &reading.sized {
            maps.size(*handle, *pid, *ranks);
        }
        let members = &reading.members;
        let reported = self.communicators.reported();
        self.completion.take(&snapshot, members, &reported);
        let unused = unused_ids(maps, members, &host)?;
        out.push(metric::UNUSED_IDS.sample(Agent, (), count(unused.len() as u64)));
        let counted = close_pending(&self.shared, &taken, &snapshot, &reading, &unused);
        self.denials.note(&counted, &self.ownership);
        let groups = groups(members, &self.communicators);
        self.peers.compare(members, &snapshot.communicators, &groups);
        self.shared.with(|known| {
            if let Some(phases) = &mut known.phases {
                phase::note(phases, &snapshot, (members, &groups), &host, now_ns);
            }
        });
        let statuses = statuses(members, &groups, now_ns, self.settings.hang_after);
        let hang_ns = u64::try_from(self.settings.hang_after.as_nanos()).unwrap_or(u64::MAX);
        let (lost, until_ns) = (&mut self.peers.lost, now_ns.saturating_sub(hang_ns));
        lost.note(&reading, &groups, (&host, &self.ownership), until_ns);
        if let Some(aggregator) = &self.aggregator {
            lost.report(aggregator);
        }
        for stuck in self.peers.hangs.note(members, &statuses, now_ns) {
            report_stuck(stuck, &self.ownership, self.aggregator.as_deref());
        }
        let context = MemberContext { statuses: &statuses, peers: &self.peers, now_ns };
        for member in members {
            report(out, member, &context);
        }
        report_coverage(out, members, &snapshot, &host, &self.covered);
        self.peers.forget(&reading, &groups);
        report_known(out, members);
        Ok(())
    }

    /// Shares the thread of the sources that never wait until the programs are loaded.
    pub fn share_thread_while_idle(&mut self) {
        self.is_quick_while_idle = true;
    }

    /// Returns a function that tells whether a process uses the library, or might: its mappings
    /// cannot be read, or name it.
    pub fn in_use(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let shared = self.shared.clone();
        Arc::new(move || shared.with(|known| !known.libraries.is_empty() || known.is_suspected))
    }

    /// Returns a function that tells versions and phases of the processes with the library loaded.
    pub fn states(&self) -> Arc<dyn Fn() -> Vec<phase::LibraryState> + Send + Sync> {
        phase::states(self.shared.clone())
    }

    /// Returns a function that lists the processes with the library loaded.
    pub fn loaded(&self) -> Arc<dyn Fn() -> Vec<ProcKey> + Send + Sync> {
        let shared = self.shared.clone();
        Arc::new(move || shared.with(|known| known.libraries.keys().copied().collect()))
    }
}

impl Collector for Nccl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        self.is_quick_while_idle && self.maps.is_none()
    }

    fn importance(&self) -> Importance {
        Importance::Extra
    }

    fn collect(&mut self, out: &mut Batch) {
        let was_quick = self.never_waits();
        if let Some(maps) = self.shared.with(|known| known.maps.take()) {
            self.maps = Some(maps);
        }
        if was_quick && self.maps.is_some() {
            // The thread of its own, which it gets now, reads them at once.
            return;
        }
        if let Err(error) = self.read(out) {
            self.errors += 1;
            tracing::debug!(%error, "cannot read the maps of collective calls");
        }
        self.shared.with(|known| report_probes(out, known, &self.covered));
    }

    fn report(&self) -> Report {
        let counts = self.shared.with(|known| known.counts);
        let lost = |counter: u32| counts.get(counter as usize).copied().unwrap_or(0);
        let report = match (self.shared.report(), self.denials.now()) {
            (Report { state: SourceState::Ready, .. }, Some(refused)) => {
                let remedy = "its other calls and those of all other owners are counted";
                Report::of(SourceState::Degraded, refused, remedy)
            }
            (report, _) => report,
        };
        Report {
            errors: self.errors + lost(LOST_UNREADABLE) + self.shared.with(|known| known.refused),
            dropped: vec![
                (DropReason::CommunicatorsFull, lost(LOST_COMMUNICATOR)),
                (DropReason::OperationsFull, lost(LOST_CALL)),
                (DropReason::ThreadsFull, lost(LOST_THREAD)),
            ],
            ..report
        }
    }
}

/// Exports the number of communicators by how they were identified.
fn report_known(out: &mut Batch, members: &[Member]) {
    for &one in KnownBy::ALL {
        let known = members.iter().filter(|member| member.facts.known_by == one);
        let count = known.map(|member| member.numbers.len() as u64).sum();
        out.push(metric::COMMUNICATORS.sample(Agent, one, members::report::count(count)));
    }
}

fn communicator(snapshot: &maps::Snapshot, number: u64) -> Option<&Communicator> {
    snapshot.communicators.iter().find(|(one, _)| *one == number).map(|(_, found)| found)
}

/// Unique ids of running processes from which no communicator on this node was created.
fn unused_ids(
    maps: &mut Maps,
    members: &[Member],
    host: &Host<'_>,
) -> io::Result<Vec<(u64, MadeId)>> {
    let used: HashSet<u64> = members.iter().filter_map(|m| m.facts.hash).map(|h| h.0).collect();
    let is_over =
        |(hash, made): &(u64, MadeId)| used.contains(hash) || host.find(made.pid, 0).is_none();
    let (over, unused): (Vec<_>, Vec<_>) = maps.unique_ids()?.into_iter().partition(is_over);
    for (hash, _) in over {
        maps.forget_id(hash);
    }
    Ok(unused)
}

/// Frees the map entries that a reading has removed: `taken` is what owners had taken when it
/// started. Returns what they have taken and were refused so far.
fn close_pending(
    shared: &Shared,
    taken: &EachOwner,
    snapshot: &maps::Snapshot,
    reading: &Reading,
    ids: &[(u64, MadeId)],
) -> EachOwner {
    let gone = reading.gone.iter().map(|(number, _)| *number).collect();
    let threads = reading.gone_threads.iter().copied().collect();
    shared.with(|known| {
        let held = known.quotas.held(snapshot, ids, &gone, &threads);
        known.quotas.apply(taken, &held);
        known.quotas.taken()
    })
}

/// The kernel refuses the programs.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Refused(#[from] gpuwho_bpf::load::LoadError);

/// Loads every program; returns one line of text, newline included.
pub fn self_test(paths: &Paths) -> Result<String, Refused> {
    let (programs, way) = attach::probes::Probes::try_all(paths)?;
    Ok(format!("nccl: {programs} programs loaded, {}\n", way.as_str()))
}

/// The finding of `gpuwho doctor`: whether the kernel accepts the programs.
pub fn diagnose(settings: &Settings, paths: &Paths) -> (SourceState, String) {
    if !settings.enabled {
        return (SourceState::Absent, "switched off (nccl.enabled)".into());
    }
    match attach::probes::Probes::try_all(paths) {
        Ok((programs, way)) => {
            let way = way.as_str();
            let detail =
                format!("{programs} programs can be loaded; attached, {way}, when NCCL is in use");
            (SourceState::Ready, detail)
        }
        Err(error) => (SourceState::Degraded, format!("{error}: collectives are not counted")),
    }
}

#[cfg(test)]
mod live_tests;
