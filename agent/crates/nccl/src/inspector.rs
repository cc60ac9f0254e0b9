//! Reads the collectives that NCCL's Inspector plugin records, in addition to the kernel probes:
//! time on the device, algorithmic and bus bandwidth, algorithm and protocol.
//!
//! The job chooses to load the plugin; the agent does not enable it. The agent finds its files
//! through the processes that hold a device ([`files`]), joins them to the communicators that the
//! probes report ([`ranks`]), and reads their ends ([`tail`]). Costs one `stat` a file and tick; an
//! inotify watch would wake the agent at each of up to 2,000 dumps a second. At most
//! `nccl.inspector_rate` bytes a second are read from all files together; the rest is counted.

mod environment;
mod exposition;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod processes;
mod rank;
mod ranks;
mod record;
mod sharing;
mod sources;
mod state;
mod tail;

use crate::known::{NcclInUse, NcclProcesses};
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::Importance;
use gpuwho_common::device_users::TICK_NS;
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::inspector::{self as metric, FileState, LineOutcome};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::tenant_files::names::Kind;
use gpuwho_owners::tenant_files::search::{FileFilter, FileKey, Opened};
use gpuwho_owners::tenant_files::{ReadError, TenantFiles};
use processes::Processes;
use rank::number;
use ranks::Ranks;
use record::Record;
use sharing::{Parts, Turns, make_room};
use sources::{Content, MeanValues, Source};
pub(super) use state::diagnose;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tail::{Piece, Tail};

/// Name of the source; its thread is `collect:nccl_inspector` once a process may use NCCL.
pub const NAME: &str = "nccl_inspector";

/// Time limit of a reading for scanning one owner's open files; the next reading scans the rest.
const SCAN_BUDGET: Duration = Duration::from_millis(100);
/// Minimum time that counts as the gap before a reading, so that the first one has a budget.
const MIN_GAP: Duration = Duration::from_secs(1);
/// Maximum time that counts as the gap: a late reading does not read everything at once.
const MAX_GAP: Duration = Duration::from_secs(30);
/// Tolerance of start times and file times: both have a resolution of hundredths of a second.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(30);

/// Where to search for files, and how much to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether the source is enabled.
    pub enabled: bool,
    /// Directories to search in addition to those of the processes.
    pub directories: Vec<PathBuf>,
    /// Bytes a second, for all files together.
    pub rate: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            directories: Vec::new(),
            // A thousand records a second: some tenths of a per cent of a core.
            rate: 512 * 1024,
        }
    }
}

/// The collector.
#[derive(Debug)]
pub struct Inspector {
    settings: Settings,
    reads: TenantFiles,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    processes: Processes,
    files: HashMap<FileKey, Source>,
    turns: Turns,
    /// Files removed to make room for another owner: counted, so that a later reading starts at the end.
    displaced: HashSet<FileKey>,
    ranks: Ranks,
    lines: [u64; LineOutcome::ALL.len()],
    skipped: u64,
    errors: u64,
    /// Files without owner at the last search of the directories.
    unowned: u64,
    refused: u64,
    unreadable: Option<(PathBuf, ReadError)>,
    began: SystemTime,
    last: Instant,
    /// Tells whether NCCL may be in use; nothing is read before.
    awaits: Option<NcclInUse>,
}

impl Inspector {
    /// Reads the files of processes that hold a device.
    pub fn new(
        settings: Settings,
        reads: &TenantFiles,
        ownership: &Ownership,
        communicators: &Arc<Communicators>,
        loaded: &NcclProcesses,
    ) -> Self {
        Self {
            settings,
            reads: reads.clone(),
            ownership: ownership.clone(),
            communicators: Arc::clone(communicators),
            processes: Processes::new(loaded),
            files: HashMap::new(),
            turns: Turns::default(),
            displaced: HashSet::new(),
            ranks: Ranks::default(),
            lines: [0; LineOutcome::ALL.len()],
            skipped: 0,
            errors: 0,
            unowned: 0,
            refused: 0,
            unreadable: None,
            began: SystemTime::now() - CLOCK_TOLERANCE,
            last: Instant::now(),
            awaits: None,
        }
    }

    fn scan(&mut self, holders: &[ProcKey]) {
        let now = Instant::now();
        let owner_of = |process| self.ownership.quota_key(process);
        self.processes.update(&self.reads, holders, &owner_of, now);
        let mut spent: HashMap<QuotaKey, Duration> = HashMap::new();
        for process in self.processes.due(now) {
            let owner = self.ownership.quota_key(process);
            let spent = spent.entry(owner).or_default();
            if *spent >= SCAN_BUDGET {
                continue;
            }
            let began = Instant::now();
            self.scan_process(process, owner, now);
            *spent += began.elapsed();
        }
        self.refused = self.processes.refused();
        self.search_directories(now);
    }

    fn scan_process(&mut self, process: ProcKey, owner: QuotaKey, now: Instant) {
        // Known files are not skipped for expositions, so that a second writer of one is noticed.
        let records = self.files.iter().filter(|(_, source)| source.is_records());
        let known = records.map(|(key, _)| *key).collect();
        let wanted = FileFilter { known, ..FileFilter::default() };
        for opened in self.processes.scan(&self.reads, process, now, &wanted) {
            if !self.take(process, owner, opened) {
                self.processes.refuse(process);
            }
        }
    }

    /// Searches the operator's directories for files that no running process has open.
    fn search_directories(&mut self, now: Instant) {
        self.unowned = 0;
        self.unreadable = None;
        for path in self.settings.directories.clone() {
            // A directory may contain years of other jobs' files.
            let (known, since) = (self.files.keys().copied().collect(), Some(self.began));
            let wanted = FileFilter { known, since, by: None };
            let place = self.reads.operators(&path);
            let found = place.and_then(|place| place.search(&wanted));
            match found {
                Ok(found) => {
                    self.refused += found.refused;
                    for opened in found.files {
                        self.take_from_directory(opened, now);
                    }
                }
                Err(error) => self.unreadable = Some((path, error)),
            }
        }
    }

    fn take_from_directory(&mut self, opened: Opened, now: Instant) {
        match self.processes.writer(&opened.seen, now) {
            Some(process) if opened.seen.modified + CLOCK_TOLERANCE >= started(process) => {
                let owner = self.ownership.quota_key(process);
                self.refused += u64::from(!self.take(process, owner, opened));
            }
            _ => self.unowned += 1,
        }
    }

    /// Adds a file of a process; false if the limit is reached.
    fn take(&mut self, process: ProcKey, owner: QuotaKey, opened: Opened) -> bool {
        if let Some(known) = self.files.get_mut(&opened.seen.key) {
            known.join(process, &self.processes);
            return true;
        }
        let Ok(evicted) = make_room(&self.files, process, owner) else {
            self.ownership.refuse(owner, OwnerLimit::InspectorFiles, 1);
            return false;
        };
        if let Some((key, gone)) = evicted.and_then(|key| self.files.remove_entry(&key)) {
            self.ownership.refuse(gone.owner, OwnerLimit::InspectorFiles, 1);
            self.displaced.insert(key);
        }
        let is_displaced = self.displaced.remove(&opened.seen.key);
        let content = match opened.seen.kind {
            // Records written before the agent's start are not read.
            Kind::Records { .. } if is_displaced || started(process) < self.began => {
                let Ok(tail) = Tail::from_end(opened.file) else {
                    self.errors += 1;
                    return true;
                };
                Content::Records(tail)
            }
            Kind::Records { .. } => Content::Records(Tail::from_start(opened.file)),
            Kind::Exposition => Content::Exposition(MeanValues::new(opened.file)),
        };
        tracing::info!(%process, kind = ?opened.seen.kind, "reading a file of NCCL's Inspector");
        self.files.insert(opened.seen.key, Source { process, owner, content, is_shared: false });
        true
    }

    /// Reads the new part of every file, each within its share of the budget.
    fn read(&mut self, out: &mut Batch) {
        let now = Instant::now();
        let gap = now.duration_since(self.last).clamp(MIN_GAP, MAX_GAP).as_millis();
        self.last = now;
        let budget = self.settings.rate.saturating_mul(u64::try_from(gap).unwrap_or(0)) / 1000;
        let mut files = std::mem::take(&mut self.files);
        let turns = self.turns.order(&files);
        self.turns.begin();
        let mut owners = Parts::new(budget, turns.len());
        for (owner, keys) in turns {
            let (part, mut took) = (owners.next(), 0);
            let mut parts = Parts::new(part, keys.len());
            for key in keys {
                let Some(source) = files.get_mut(&key) else { continue };
                let bytes = self.read_one(source, parts.next(), out);
                parts.spend(bytes);
                took += bytes;
            }
            owners.spend(took);
            self.turns.record(owner, took);
        }
        self.files = files;
    }

    fn read_one(&mut self, source: &mut Source, share: u64, out: &mut Batch) -> u64 {
        let read = self.read_source(source, share, out);
        read.unwrap_or_else(|error| {
            self.errors += 1;
            let process = source.process;
            tracing::debug!(%process, %error, "cannot read a file of the Inspector");
            0
        })
    }

    fn read_source(&mut self, source: &mut Source, share: u64, out: &mut Batch) -> io::Result<u64> {
        let (process, owner) = (source.process, source.owner);
        match &mut source.content {
            Content::Records(tail) => {
                let pid = self.processes.get(process).map(|process| process.own.pid);
                let (ranks, lines, communicators) =
                    (&mut self.ranks, &mut self.lines, &self.communicators);
                let took = tail.read(share, &mut |piece| {
                    let outcome = match piece {
                        Piece::TooLong => LineOutcome::TooLong,
                        Piece::Line(line) => match Record::parse(line) {
                            Ok(record) if Some(record.pid) != pid => LineOutcome::Foreign,
                            Ok(record) => ranks.count(process, owner, &record, communicators),
                            Err(outcome) => outcome,
                        },
                    };
                    tally(lines, outcome);
                })?;
                self.skipped += took.skipped;
                Ok(took.bytes)
            }
            Content::Exposition(means) => {
                let lines = &mut self.lines;
                let bytes = means.read(share, &mut |outcome| tally(lines, outcome))?;
                if !source.is_shared && means.is_fresh() {
                    self.report_means(process, owner, means, out);
                }
                Ok(bytes)
            }
        }
    }

    fn report_means(
        &mut self,
        process: ProcKey,
        owner: QuotaKey,
        means: &MeanValues,
        out: &mut Batch,
    ) {
        let reported = self.ranks.levels(process, owner, &means.rows, &self.communicators);
        for (recent, operation, levels) in reported {
            for (metric, value) in [
                (&metric::RECENT_DURATION, levels.seconds),
                (&metric::RECENT_ALGORITHM_BANDWIDTH, levels.algorithm_bandwidth),
                (&metric::RECENT_BUS_BANDWIDTH, levels.bus_bandwidth),
            ] {
                if let Some(value) = value {
                    out.push(metric.sample(recent, operation, value));
                }
            }
        }
    }

    fn report_usage(&self, out: &mut Batch) {
        self.ranks.report(out);
        let shared = self.files.values().filter(|source| source.is_shared).count() as u64;
        let read = self.files.len() as u64 - shared;
        for (state, files) in FileState::ALL.iter().zip([read, self.unowned, shared, self.refused])
        {
            out.push(metric::FILES.sample(Agent, *state, number(files)));
        }
        for (outcome, lines) in LineOutcome::ALL.iter().zip(self.lines) {
            out.push(metric::LINES.sample(Agent, *outcome, number(lines)));
        }
        out.push(metric::SKIPPED.sample(Agent, (), number(self.skipped)));
    }
}

impl Collector for Inspector {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        self.awaits.is_some()
    }

    fn importance(&self) -> Importance {
        Importance::Extra
    }

    fn collect(&mut self, out: &mut Batch) {
        if self.awaits_use() {
            return self.report_usage(out);
        }
        let openers = self.ownership.openers();
        let holders: Vec<ProcKey> = openers.iter().map(|one| one.process).collect();
        self.ranks.begin(&self.communicators);
        self.scan(&holders);
        self.read(out);
        let gone = self.processes.gone().clone();
        self.ranks.end(&gone, &self.communicators);
        self.report_usage(out);
        self.ranks.remove_processes(&gone);
        for ((owner, limit), count) in self.ranks.take_refused() {
            self.ownership.refuse(owner, limit, count);
        }
        if self.files.is_empty() {
            self.displaced.clear();
        }
        // Files are closed, because an open file pins its file system, perhaps a volume.
        self.files.retain(|_, source| !gone.contains(&source.process));
    }

    fn report(&self) -> Report {
        let (state, reason, remedy) = self.state();
        Report { errors: self.errors, ..Report::of(state, reason, remedy) }
    }
}

/// Start time of a process.
fn started(process: ProcKey) -> SystemTime {
    let since = process.start_ticks.saturating_mul(TICK_NS);
    let ago = Duration::from_nanos(boot_time_ns().saturating_sub(since));
    SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn tally(lines: &mut [u64; LineOutcome::ALL.len()], outcome: LineOutcome) {
    if let Some(count) = lines.get_mut(outcome as usize) {
        *count += 1;
    }
}

#[cfg(test)]
mod live_tests;
