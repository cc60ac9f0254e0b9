//! The agent's own figures that other parts leave for its next tick.

use super::stages::Stages;
use gpuwho_model::catalog::agent::ReloadOutcome;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// Figures other parts leave here for the next tick.
#[derive(Debug, Default)]
pub struct SelfStats {
    /// Series alive.
    pub series: AtomicU64,
    /// PIDs of the device reader children.
    pub readers: Mutex<Vec<u32>>,
    /// Facts the kernel source has lost.
    pub evidence_lost: AtomicU64,
    /// What each stage has used.
    pub stages: Stages,
    /// Reloads of the configuration, by [`ReloadOutcome`].
    pub reloads: [AtomicU64; ReloadOutcome::ALL.len()],
}
