//! The ranks that NCCL reports of this node's processes (RAS). The probe completes communicators
//! with them whose creation it has not seen.

use super::{CommunicatorHash, Communicators};
use gpuwho_model::ids::ProcKey;
use std::collections::HashMap;

/// A rank of a process of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The communicator.
    pub hash: CommunicatorHash,
    /// Rank in it.
    pub rank: u32,
    /// Its ranks.
    pub ranks: u32,
    /// CUDA device ordinal in the process.
    pub device: Option<u32>,
}

/// All ranks that a process had when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRanks {
    /// Nanoseconds of `CLOCK_BOOTTIME` before the question.
    pub as_of_ns: u64,
    /// The ranks.
    pub ranks: Vec<LocalRank>,
}

/// Ranks by process.
pub type LocalRanks = HashMap<ProcKey, ReportedRanks>;

impl Communicators {
    /// Replaces all reported ranks.
    pub fn set_reported(&self, ranks: LocalRanks) {
        self.0.write().reported = ranks;
    }

    /// The reported ranks of this node's processes.
    pub fn reported(&self) -> LocalRanks {
        self.0.read().reported.clone()
    }
}
