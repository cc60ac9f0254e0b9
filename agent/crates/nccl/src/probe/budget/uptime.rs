//! Measures probe uptime, by which counts are scaled: for each library file, because one may be
//! refused or found later than another, and within a file for each owner's processes, because those
//! of one owner may be paused. The watch thread records the changes; the collector asks for the
//! sums at the time of its counts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The state of the probes from a time on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Present {
    /// A process maps the library: the probes should be attached.
    pub wanted: bool,
    /// Calls are counted.
    pub entries: bool,
    /// Calls are also timed until they return.
    pub returns: bool,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct UptimeTotals {
    pub wanted: Duration,
    /// Time with entries, and with returns, attached.
    pub attached: [Duration; 2],
}

impl UptimeTotals {
    /// The difference to earlier sums.
    pub(super) fn since(self, before: Self) -> Self {
        let [entries, returns] = self.attached;
        let [entries_then, returns_then] = before.attached;
        let wanted = self.wanted.saturating_sub(before.wanted);
        let entries = entries.saturating_sub(entries_then);
        Self { wanted, attached: [entries, returns.saturating_sub(returns_then)] }
    }

    /// Adds two sums.
    fn and(self, other: Self) -> Self {
        let [entries, returns] = self.attached;
        let [more_entries, more_returns] = other.attached;
        let attached = [entries + more_entries, returns + more_returns];
        Self { wanted: self.wanted + other.wanted, attached }
    }

    /// The fraction of the wanted time in which the probes were attached; `None` if none was
    /// wanted.
    pub(super) fn parts(self) -> Option<[f64; 2]> {
        let wanted = self.wanted.as_secs_f64();
        (wanted > 0.0).then(|| self.attached.map(|attached| attached.as_secs_f64() / wanted))
    }
}

/// The sums, and the current state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uptime {
    since: Option<Instant>,
    present: Present,
    before: UptimeTotals,
}

impl Uptime {
    /// Sets the state from a time on.
    pub(in super::super) fn note(&mut self, at: Instant, present: Present) {
        self.before = self.at(at);
        self.since = Some(at);
        self.present = present;
    }

    /// The sums at a time.
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

/// The numbers of a file and of an owner whose processes use it.
pub(super) type Use = (u32, u32);

/// The state of each use from a time on.
pub(in super::super) type EachPresent = HashMap<Use, Present>;

/// The sums of each use.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct UptimeByUse {
    uses: HashMap<Use, Used>,
    /// The sums of ended uses.
    gone: UptimeTotals,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cover: Uptime,
    /// When entries were attached again after a pause: calls before that may have been missed.
    /// `CLOCK_BOOTTIME`.
    gap_ns: u64,
    /// No process of the owner maps it any more, and its last sums were read.
    is_over: bool,
}

impl UptimeByUse {
    /// Sets the state from a time on; a use that is missing is neither attached nor wanted.
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

    /// The sums of each use at a time. Those of an ended use are returned once more, for the last
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

    /// Calls of an owner in a file may have been missed before this time; in any file if `file` is
    /// `None`.
    pub(in super::super) fn gap_ns(&self, file: Option<u32>, owner: u32) -> u64 {
        let matches = |which: &Use| which.1 == owner && file.is_none_or(|file| which.0 == file);
        let found = self.uses.iter().filter(|(which, _)| matches(which));
        found.map(|(_, used)| used.gap_ns).max().unwrap_or(0)
    }
}

/// The sums at a time: of each use, and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct EachCovered {
    pub uses: HashMap<Use, UptimeTotals>,
    pub all: UptimeTotals,
}

impl EachCovered {
    /// The coverage of one use since earlier sums.
    pub(in super::super) fn parts_since(&self, before: &Self, which: Use) -> Option<[f64; 2]> {
        let then = before.uses.get(&which).copied().unwrap_or_default();
        self.uses.get(&which)?.since(then).parts()
    }
}

#[cfg(test)]
mod tests;
