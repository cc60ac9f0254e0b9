//! Divides the files to read, and the byte budget, between the owners of the writing processes, so
//! that none can starve the others.

use super::sources::Source;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::tenant_files::search::{FileKey, MAX_OF_PROCESS};
use std::collections::HashMap;

/// Files read at once.
pub(super) const MAX_FILES: usize = 512;

/// Makes room for one more file of a process: at the limit, the owner with the most files gives one
/// up. Returns that file, or `Err` if there is no room.
pub(super) fn make_room(
    files: &HashMap<FileKey, Source>,
    process: ProcKey,
    owner: QuotaKey,
) -> Result<Option<FileKey>, ()> {
    if files.values().filter(|source| source.process == process).count() >= MAX_OF_PROCESS {
        return Err(());
    }
    if files.len() < MAX_FILES {
        return Ok(None);
    }
    let mut counts: HashMap<QuotaKey, usize> = HashMap::new();
    for source in files.values() {
        *counts.entry(source.owner).or_default() += 1;
    }
    let own = counts.get(&owner).copied().unwrap_or(0);
    let largest = counts.into_iter().max_by_key(|(_, count)| *count);
    let (largest, _) = largest.filter(|(_, count)| *count > own + 1).ok_or(())?;
    let of_largest = files.iter().find(|(_, source)| source.owner == largest).ok_or(())?;
    Ok(Some(*of_largest.0))
}

/// The owners' files, sorted by bytes used at the last reading: the others get what the first ones
/// leave.
#[derive(Debug, Default)]
pub(super) struct Turns {
    used: HashMap<QuotaKey, u64>,
}

impl Turns {
    /// The files by owner, in reading order.
    pub(super) fn order(&self, files: &HashMap<FileKey, Source>) -> Vec<(QuotaKey, Vec<FileKey>)> {
        let mut by_owner: HashMap<QuotaKey, Vec<FileKey>> = HashMap::new();
        for (key, source) in files {
            by_owner.entry(source.owner).or_default().push(*key);
        }
        let mut turns: Vec<_> = by_owner.into_iter().collect();
        turns.sort_by_key(|(owner, _)| self.used.get(owner).copied().unwrap_or(0));
        turns
    }

    /// Begins a reading.
    pub(super) fn begin(&mut self) {
        self.used.clear();
    }

    /// Records the bytes that an owner's files used.
    pub(super) fn record(&mut self, owner: QuotaKey, bytes: u64) {
        self.used.insert(owner, bytes);
    }
}

/// Divides a budget: each of those still waiting gets an equal part of what is left, so that unused
/// budget goes to the next.
#[derive(Debug)]
pub(super) struct Parts {
    left: u64,
    waiting: u64,
}

impl Parts {
    /// Starts with `left` bytes for `waiting` recipients.
    pub(super) fn new(left: u64, waiting: usize) -> Self {
        Self { left, waiting: waiting as u64 }
    }

    /// The next recipient's part.
    pub(super) fn next(&mut self) -> u64 {
        let part = self.left / self.waiting.max(1);
        self.waiting = self.waiting.saturating_sub(1);
        part
    }

    /// Subtracts the bytes that it used.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests;
