//! The ownership table: who each process that touches an accelerator is.

use super::{Evidence, Owner};
use crate::ids::ProcKey;
use crate::paths::Paths;
use std::sync::Arc;

/// The table, shared by the source that fills it and the enrich stage that reads it.
#[derive(Clone, Debug)]
pub struct Ownership {}

impl Ownership {
    /// An empty table that reads the host's files at `paths`.
    pub fn new(_paths: &Paths) -> Self {
        Self {}
    }

    /// Takes one piece of evidence; resolves the owner at once where it can.
    pub fn observe(&self, _evidence: Evidence) {}

    /// The identity of a process the driver names by number. A process that started after
    /// `seen_at_ns` (`CLOCK_BOOTTIME`, when the driver was asked) is another one: `None`.
    pub fn process(&self, _pid: u32, _seen_at_ns: u64) -> Option<ProcKey> {
        None
    }

    /// Whose a process is: one lookup.
    pub fn owner(&self, _process: ProcKey) -> Option<Arc<Owner>> {
        None
    }

    /// Everything known to hold a device now.
    pub fn holders(&self) -> Vec<Arc<Owner>> {
        Vec::new()
    }
}
