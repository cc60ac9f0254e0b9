//! What the sources of NCCL tell each other.

use super::probe::phase::LibraryState;
use gpuwho_collect::source::Shared;
use gpuwho_model::ids::ProcKey;
use std::sync::Arc;

/// Lists and look-ups of the probes, for the other sources.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The processes that have loaded NCCL.
    pub processes: NcclProcesses,
    /// Versions and phases of their libraries.
    pub states: NcclStates,
    /// Whether a process may use NCCL.
    pub in_use: NcclInUse,
}

/// Lists the processes that have loaded NCCL.
pub(crate) type NcclProcesses = Shared<Arc<dyn Fn() -> Vec<ProcKey> + Send + Sync>>;
/// Tells versions and phases of the libraries of those processes.
pub(crate) type NcclStates = Shared<Arc<dyn Fn() -> Vec<LibraryState> + Send + Sync>>;
/// Tells whether a process uses NCCL, or might; empty where nothing looks for it.
pub(crate) type NcclInUse = Shared<Arc<dyn Fn() -> bool + Send + Sync>>;
