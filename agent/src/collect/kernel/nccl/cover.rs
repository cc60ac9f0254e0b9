//! For how long the probes were there, to the moment: what a count is divided by. Of each library's
//! file by itself, since one may be refused or found later than another. The watching thread says
//! when that changes, whoever reads the counts asks for the sums at that very moment.

use std::collections::HashMap;
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

/// What is there of each file from a moment on, by the file's number.
pub(super) type EachPresent = HashMap<u32, Present>;

/// The sums of each file, by its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Covers {
    files: HashMap<u32, File>,
    /// Those of files that nobody maps any more.
    gone: Covered,
    /// While any file had them.
    any: Cover,
}

#[derive(Clone, Copy, Debug, Default)]
struct File {
    cover: Cover,
    /// When entries were attached again after they had been detached: what was called before that
    /// may have been missed. `CLOCK_BOOTTIME`.
    gap_ns: u64,
    /// Nobody maps it any more, and its last sums were read.
    is_over: bool,
}

impl Covers {
    /// From a moment on this is there; of files that are not named nothing, and nobody wants it.
    pub(super) fn note(&mut self, at: Instant, at_boot_ns: u64, present: &EachPresent) {
        for number in present.keys() {
            self.files.entry(*number).or_default();
        }
        for (number, file) in &mut self.files {
            let present = present.get(number).copied().unwrap_or_default();
            file.is_over &= !present.wanted;
            let [before, _] = file.cover.at(at).attached;
            if present.entries && !file.cover.present.entries && !before.is_zero() {
                file.gap_ns = at_boot_ns;
            }
            file.cover.note(at, present);
        }
        let any = |is: fn(&Present) -> bool| present.values().any(is);
        let (wanted, entries) = (any(|one| one.wanted), any(|one| one.entries));
        self.any.note(at, Present { wanted, entries, returns: any(|one| one.returns) });
    }

    /// While the probes were on any file.
    pub(super) fn any(&self, now: Instant) -> Covered {
        self.any.at(now)
    }

    /// The sums of each file at a moment. Those of a file that nobody maps any more are given once
    /// more, for the last counts of those who did.
    pub(super) fn read(&mut self, now: Instant) -> EachCovered {
        let files = self.files.iter().map(|(number, file)| (*number, file.cover.at(now)));
        let files: HashMap<u32, Covered> = files.collect();
        let all = files.values().fold(self.gone, |sum, one| sum.and(*one));
        let gone = &mut self.gone;
        self.files.retain(|_, file| {
            if file.is_over {
                *gone = gone.and(file.cover.at(now));
            }
            !std::mem::replace(&mut file.is_over, !file.cover.present.wanted)
        });
        EachCovered { files, all }
    }

    /// Before this moment calls of a file may have been missed; of one that is not known, of any.
    pub(super) fn gap_ns(&self, number: Option<u32>) -> u64 {
        let of = |number| self.files.get(&number).map_or(0, |file| file.gap_ns);
        let any = || self.files.values().map(|file| file.gap_ns).max().unwrap_or(0);
        number.map_or_else(any, of)
    }
}

/// The sums at a moment: of each file, and of all added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EachCovered {
    pub files: HashMap<u32, Covered>,
    pub all: Covered,
}

impl EachCovered {
    /// The parts of one file since an earlier moment.
    pub(super) fn parts_since(&self, before: &Self, number: u32) -> Option<[f64; 2]> {
        let then = before.files.get(&number).copied().unwrap_or_default();
        self.files.get(&number)?.since(then).parts()
    }
}

#[cfg(test)]
#[path = "cover_tests.rs"]
mod tests;
