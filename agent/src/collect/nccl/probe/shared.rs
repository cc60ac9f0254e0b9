//! What the thread that attaches and the collector that reads know of each other.

use super::budget::quota::Quotas;
use super::budget::uptime::UptimeByUse;
use super::libraries::fields::Fields;
use super::libraries::library::VersionAndPath;
use super::maps::Maps;
use crate::catalog::agent::SourceState;
use crate::catalog::nccl::GovernorLevel;
use crate::collect::status::Report;
use crate::ids::ProcKey;
use gpuwho_common::nccl::COUNTERS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by both; each holds the lock only to copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<AttachState>>);

/// What the thread that attaches has found.
#[derive(Debug)]
pub(super) struct AttachState {
    pub state: (SourceState, String, String),
    /// What the governor allows the owner that it allows least.
    pub level: GovernorLevel,
    pub files: u64,
    /// Probes that are still to be detached.
    pub detaching: usize,
    /// Hits a second and process that are allowed; 0 before it is known.
    pub budget: u64,
    /// Rounds of the thread so far.
    pub looked: u64,
    /// How often something of what processes map was refused or left out.
    pub refused: u64,
    /// Version and file of each process's library.
    pub libraries: HashMap<ProcKey, VersionAndPath>,
    /// The same by the number of the file.
    pub files_by_number: HashMap<(ProcKey, u32), VersionAndPath>,
    /// The number of each process's library, where it maps one only.
    pub only: HashMap<ProcKey, u32>,
    /// Where each process's library keeps what a communicator is.
    pub fields: HashMap<ProcKey, Fields>,
    pub counts: [u64; COUNTERS as usize],
    /// For how long calls, and their returns, were seen of each owner in each file, and should have
    /// been.
    pub covers: UptimeByUse,
    /// Whose each process is, and what it may take and is allowed.
    pub quotas: Quotas,
    /// The maps, once, when they are there.
    pub maps: Option<Maps>,
}

impl Default for AttachState {
    fn default() -> Self {
        Self {
            state: (SourceState::Absent, String::new(), String::new()),
            level: GovernorLevel::Off,
            files: 0,
            detaching: 0,
            budget: 0,
            looked: 0,
            refused: 0,
            libraries: HashMap::new(),
            files_by_number: HashMap::new(),
            only: HashMap::new(),
            fields: HashMap::new(),
            counts: [0; COUNTERS as usize],
            covers: UptimeByUse::default(),
            quotas: Quotas::default(),
            maps: None,
        }
    }
}

impl Shared {
    /// Looks at or changes what is known.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut AttachState) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How the source is doing.
    pub(super) fn report(&self) -> Report {
        self.with(|known| {
            let (state, reason, remedy) = known.state.clone();
            Report::of(state, reason, remedy)
        })
    }
}
