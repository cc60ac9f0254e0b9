//! How each source is doing: what `gpuwho doctor` prints and the self-metrics count.

use crate::catalog::agent::{DropReason, SourceState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A source's own account of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it is doing.
    pub state: SourceState,
    /// Why, in one sentence a person can act on; empty when ready.
    pub reason: String,
    /// What the operator can do about it; empty when nothing.
    pub remedy: String,
    /// Readings that failed and will be tried again, since the start.
    pub errors: u64,
    /// Times its child process was started again.
    pub restarts: u64,
    /// What it lost, by reason, since the start.
    pub dropped: Vec<(DropReason, u64)>,
}

impl Report {
    /// Working as it should.
    pub fn ready() -> Self {
        Self::of(SourceState::Ready, "", "")
    }

    /// In a state, with the reason and the remedy.
    pub fn of(state: SourceState, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state,
            reason: reason.into(),
            remedy: remedy.into(),
            errors: 0,
            restarts: 0,
            dropped: Vec::new(),
        }
    }
}

/// The latest report of every source.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<BTreeMap<&'static str, Report>>>);

impl Board {
    /// Replaces a source's report; gives the state it had before, if it differs.
    pub fn put(&self, source: &'static str, report: Report) -> Option<SourceState> {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = report.state;
        let before = board.insert(source, report).map(|old| old.state);
        before.filter(|old| *old != state)
    }

    /// Every report by source.
    pub fn all(&self) -> BTreeMap<&'static str, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
