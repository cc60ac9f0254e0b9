//! For how long calls were seen, to the moment: what a count is divided by. Of each library's file by
//! itself, since one may be refused or found later than another, and in it of each owner's processes,
//! since those of one may be paused while others' are not. The watching thread says
//! when that changes, whoever reads the counts asks for the sums at that very moment.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What is there from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Present {
    /// Somebody maps a library: the probes should be there.
    pub wanted: bool,
    /// Calls are counted.
    pub entries: bool,
    /// And timed until they return.
    pub returns: bool,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct UptimeTotals {
    pub wanted: Duration,
    /// Entries, and returns.
    pub attached: [Duration; 2],
}

impl UptimeTotals {
    /// What was added since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        let [entries, returns] = self.attached;
        let [entries_then, returns_then] = before.attached;
        let wanted = self.wanted.saturating_sub(before.wanted);
        let entries = entries.saturating_sub(entries_then);
        Self { wanted, attached: [entries, returns.saturating_sub(returns_then)] }
    }

    /// Both added up.
    fn and(self, other: Self) -> Self {
        let [entries, returns] = self.attached;
        let [more_entries, more_returns] = other.attached;
        let attached = [entries + more_entries, returns + more_returns];
        Self { wanted: self.wanted + other.wanted, attached }
    }

    /// The part of the wanted time in which the probes were there; `None` where none was wanted.
    pub(super) fn parts(self) -> Option<[f64; 2]> {
        let wanted = self.wanted.as_secs_f64();
        (wanted > 0.0).then(|| self.attached.map(|attached| attached.as_secs_f64() / wanted))
    }
}

/// The sums, and what is there now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uptime {
    since: Option<Instant>,
    present: Present,
    before: UptimeTotals,
}

impl Uptime {
    /// From a moment on this is there.
    pub(super) fn note(&mut self, at: Instant, present: Present) {
        self.before = self.at(at);
        self.since = Some(at);
        self.present = present;
    }

    /// The sums at a moment.
    pub(super) fn at(&self, now: Instant) -> UptimeTotals {
        let passed =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let Present { wanted, entries, returns } = self.present;
        let more = |sum: Duration, is: bool| if wanted && is { sum + passed } else { sum };
        let [entries_then, returns_then] = self.before.attached;
        UptimeTotals {
            wanted: more(self.before.wanted, true),
            attached: [more(entries_then, entries), more(returns_then, returns)],
        }
    }
}

/// A file and an owner whose processes use it, by their numbers.
pub(super) type Use = (u32, u32);

/// What is there of each use from a moment on.
pub(in super::super) type EachPresent = HashMap<Use, Present>;

/// The sums of each use.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct UptimeByUse {
    uses: HashMap<Use, Used>,
    /// Those of uses that are over.
    gone: UptimeTotals,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cover: Uptime,
    /// When entries were seen again after they had not been: what was called before that
    /// may have been missed. `CLOCK_BOOTTIME`.
    gap_ns: u64,
    /// Nobody of the owner maps it any more, and its last sums were read.
    is_over: bool,
}

impl UptimeByUse {
    /// From a moment on this is there; of uses that are not named nothing, and nobody wants it.
    pub(in super::super) fn note(&mut self, at: Instant, at_boot_ns: u64, present: &EachPresent) {
        for which in present.keys() {
            self.uses.entry(*which).or_default();
        }
        for (which, used) in &mut self.uses {
            let present = present.get(which).copied().unwrap_or_default();
            used.is_over &= !present.wanted;
            let [before, _] = used.cover.at(at).attached;
            if present.entries && !used.cover.present.entries && !before.is_zero() {
                used.gap_ns = at_boot_ns;
            }
            used.cover.note(at, present);
        }
    }

    /// The sums of each use at a moment. Those of one that is over are given once more, for the last
    /// counts.
    pub(in super::super) fn read(&mut self, now: Instant) -> EachCovered {
        let uses = self.uses.iter().map(|(which, used)| (*which, used.cover.at(now)));
        let uses: HashMap<Use, UptimeTotals> = uses.collect();
        let all = uses.values().fold(self.gone, |sum, one| sum.and(*one));
        let gone = &mut self.gone;
        self.uses.retain(|_, used| {
            if used.is_over {
                *gone = gone.and(used.cover.at(now));
            }
            !std::mem::replace(&mut used.is_over, !used.cover.present.wanted)
        });
        EachCovered { uses, all }
    }

    /// Before this moment calls of an owner in a file may have been missed; of a file that is not
    /// known, in any.
    pub(in super::super) fn gap_ns(&self, file: Option<u32>, owner: u32) -> u64 {
        let is_it = |which: &Use| which.1 == owner && file.is_none_or(|file| which.0 == file);
        let found = self.uses.iter().filter(|(which, _)| is_it(which));
        found.map(|(_, used)| used.gap_ns).max().unwrap_or(0)
    }
}

/// The sums at a moment: of each use, and of all added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct EachCovered {
    pub uses: HashMap<Use, UptimeTotals>,
    pub all: UptimeTotals,
}

impl EachCovered {
    /// The parts of one use since an earlier moment.
    pub(in super::super) fn parts_since(&self, before: &Self, which: Use) -> Option<[f64; 2]> {
        let then = before.uses.get(&which).copied().unwrap_or_default();
        self.uses.get(&which)?.since(then).parts()
    }
}

#[cfg(test)]
mod tests;
