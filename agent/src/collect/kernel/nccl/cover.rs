//! For how long the probes were there, to the moment: what a count is divided by. The watching
//! thread says when that changes, whoever reads the counts asks for the sums at that very moment.

use std::time::{Duration, Instant};

/// What is there from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    /// Somebody maps a library: the probes should be there.
    pub wanted: bool,
    /// Calls are counted.
    pub entries: bool,
    /// And timed until they return.
    pub returns: bool,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Covered {
    pub wanted: Duration,
    /// Entries, and returns.
    pub attached: [Duration; 2],
}

impl Covered {
    /// What was added since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        let [entries, returns] = self.attached;
        let [entries_then, returns_then] = before.attached;
        let wanted = self.wanted.saturating_sub(before.wanted);
        let entries = entries.saturating_sub(entries_then);
        Self { wanted, attached: [entries, returns.saturating_sub(returns_then)] }
    }

    /// The part of the wanted time in which the probes were there; `None` where none was wanted.
    pub(super) fn parts(self) -> Option<[f64; 2]> {
        let wanted = self.wanted.as_secs_f64();
        (wanted > 0.0).then(|| self.attached.map(|attached| attached.as_secs_f64() / wanted))
    }
}

/// The sums, and what is there now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cover {
    since: Option<Instant>,
    present: Present,
    before: Covered,
}

impl Cover {
    /// From a moment on this is there.
    pub(super) fn note(&mut self, at: Instant, present: Present) {
        self.before = self.at(at);
        self.since = Some(at);
        self.present = present;
    }

    /// The sums at a moment.
    pub(super) fn at(&self, now: Instant) -> Covered {
        let passed =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let Present { wanted, entries, returns } = self.present;
        let more = |sum: Duration, is: bool| if wanted && is { sum + passed } else { sum };
        let [entries_then, returns_then] = self.before.attached;
        Covered {
            wanted: more(self.before.wanted, true),
            attached: [more(entries_then, entries), more(returns_then, returns)],
        }
    }
}

#[cfg(test)]
#[path = "cover_tests.rs"]
mod tests;
