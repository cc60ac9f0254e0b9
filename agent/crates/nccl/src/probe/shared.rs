//! The state shared between the attaching thread and the collector.

use super::budget::quota::Quotas;
use super::budget::uptime::UptimeByUse;
use super::libraries::fields::Fields;
use super::libraries::library::VersionAndPath;
use super::maps::Maps;
use super::phase::LastChanges;
use gpuwho_common::nccl::COUNTERS;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::nccl::ProbeLevel;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::status::Report;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Shared by both; each holds the lock only to copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<AttachState>>);

/// The state of the attaching thread.
#[derive(Debug)]
pub(super) struct AttachState {
    pub state: (SourceState, String, String),
    /// The most reduced level of all owners' budgets.
    pub level: ProbeLevel,
    pub files: u64,
    /// Number of probes still to be detached.
    pub detaching: usize,
    /// The limit in hits a second and process; 0 until the programs are loaded.
    pub budget: u64,
    /// Rounds of the thread so far.
    pub rounds: u64,
    /// Number of mapped files that were refused or ignored.
    pub refused: u64,
    /// A process may use a library that was not found.
    pub is_suspected: bool,
    /// Version and file of each process's library.
    pub libraries: HashMap<ProcKey, VersionAndPath>,
    /// The same by the number of the file.
    pub files_by_number: HashMap<(ProcKey, u32), VersionAndPath>,
    /// The file number of each process that maps only one library.
    pub only: HashMap<ProcKey, u32>,
    /// The field offsets of each process's library.
    pub fields: HashMap<ProcKey, Fields>,
    /// When each process's communicators changed last, once somebody wants to know.
    pub phases: Option<LastChanges>,
    pub counts: [u64; COUNTERS as usize],
    /// Probe uptime of each owner in each file, and the time in which probes were wanted.
    pub uptime: UptimeByUse,
    /// Each process's owner, its limits and its setting.
    pub quotas: Quotas,
    /// The maps, once, after they are loaded.
    pub maps: Option<Maps>,
}

impl Default for AttachState {
    fn default() -> Self {
        Self {
            state: (SourceState::Absent, String::new(), String::new()),
            level: ProbeLevel::Off,
            files: 0,
            detaching: 0,
            budget: 0,
            rounds: 0,
            refused: 0,
            is_suspected: false,
            libraries: HashMap::new(),
            files_by_number: HashMap::new(),
            only: HashMap::new(),
            fields: HashMap::new(),
            phases: None,
            counts: [0; COUNTERS as usize],
            uptime: UptimeByUse::default(),
            quotas: Quotas::default(),
            maps: None,
        }
    }
}

impl Shared {
    /// Reads or changes the state.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut AttachState) -> T) -> T {
        access(&mut self.0.lock())
    }

    /// The status of the source.
    pub(super) fn report(&self) -> Report {
        self.with(|known| {
            let (state, reason, remedy) = known.state.clone();
            Report::of(state, reason, remedy)
        })
    }
}
