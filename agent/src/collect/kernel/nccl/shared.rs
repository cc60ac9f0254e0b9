//! What the thread that attaches and the collector that reads know of each other.

use super::cover::Cover;
use super::fields::Fields;
use super::maps::Maps;
use super::price::{Price, USUAL};
use crate::catalog::agent::SourceState;
use crate::catalog::nccl::GovernorLevel;
use crate::collect::status::Report;
use crate::ids::ProcKey;
use gpuwho_common::nccl::COUNTERS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by both; each holds the lock only to copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Known>>);

/// What the thread that attaches has found.
#[derive(Debug)]
pub(super) struct Known {
    pub state: (SourceState, String, String),
    pub level: GovernorLevel,
    pub files: u64,
    /// Probes that are still to be detached.
    pub detaching: usize,
    /// Hits a second and process that are allowed; 0 before it is known.
    pub budget: u64,
    /// Rounds of the thread so far.
    pub looked: u64,
    /// Processes whose dynamic linkers are hooked, and what these have said so far.
    pub hooked: usize,
    pub words: u64,
    /// Version and file of each process's library.
    pub libraries: HashMap<ProcKey, (Arc<str>, Arc<str>)>,
    /// Where each process's library keeps what a communicator is.
    pub fields: HashMap<ProcKey, Fields>,
    pub counts: [u64; COUNTERS as usize],
    /// Calls before this moment may have been missed.
    pub gap_ns: u64,
    /// For how long entries, and returns, were there, and should have been.
    pub cover: Cover,
    /// What hits cost.
    pub price: Price,
    /// Nanoseconds that hits have cost those that made them.
    pub paid_ns: u128,
    /// Processes that have communicators, as the collector saw at its last reading.
    pub callers: u64,
    /// The maps, once, when they are there.
    pub maps: Option<Maps>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            state: (SourceState::Absent, String::new(), String::new()),
            level: GovernorLevel::Off,
            files: 0,
            detaching: 0,
            budget: 0,
            looked: 0,
            hooked: 0,
            words: 0,
            libraries: HashMap::new(),
            fields: HashMap::new(),
            counts: [0; COUNTERS as usize],
            gap_ns: 0,
            cover: Cover::default(),
            price: USUAL,
            paid_ns: 0,
            callers: 0,
            maps: None,
        }
    }
}

impl Shared {
    /// Looks at or changes what is known.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
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
