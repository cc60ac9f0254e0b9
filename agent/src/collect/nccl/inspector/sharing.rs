//! How the files that are read, and the bytes of them, are divided between the owners of the
//! processes that write them, so that none of them leaves the others without.

use super::files::FileKey;
use super::sources::Source;
use crate::attribute::quota::QuotaKey;
use crate::ids::ProcKey;
use std::collections::HashMap;

/// Files read at once.
pub(super) const MAX_FILES: usize = 512;
/// Files of one process: its records, and an exposition a device, of which a host has sixteen.
pub(super) const MAX_OF_PROCESS: usize = 32;

/// Makes room for one more file of a process: where all places are taken, whoever has most gives
/// one. The file that makes way, or `Err` where there is no room.
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
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let (most, _) = most.filter(|(_, count)| *count > own + 1).ok_or(())?;
    let of_most = files.iter().find(|(_, source)| source.owner == most).ok_or(())?;
    Ok(Some(*of_most.0))
}

/// The owners' files, those first that took the least at the last reading: what they leave is for
/// the others.
#[derive(Debug, Default)]
pub(super) struct Turns {
    used: HashMap<QuotaKey, u64>,
}

impl Turns {
    /// The files by owner, in the order in which they are read.
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

    /// What an owner's files took.
    pub(super) fn took(&mut self, owner: QuotaKey, bytes: u64) {
        self.used.insert(owner, bytes);
    }
}

/// An equal part of what is left, for each of those who still wait; what one leaves is for the
/// next.
#[derive(Debug)]
pub(super) struct Parts {
    left: u64,
    waiting: u64,
}

impl Parts {
    /// So many bytes for so many.
    pub(super) fn new(left: u64, waiting: usize) -> Self {
        Self { left, waiting: waiting as u64 }
    }

    /// The next one's part.
    pub(super) fn next(&mut self) -> u64 {
        let part = self.left / self.waiting.max(1);
        self.waiting = self.waiting.saturating_sub(1);
        part
    }

    /// What it took of it.
    pub(super) fn took(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests;
