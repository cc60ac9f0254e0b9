//! The rows of what a call pays.

use std::collections::BTreeMap;

pub(crate) const UNTOUCHED: &str = "untouched";
pub(crate) const FLOOR_ENTRY: &str = "floor, entry";
pub(crate) const FLOOR_BOTH: &str = "floor, both";
pub(crate) const FLOOR_SESSION: &str = "floor, session";
pub(crate) const OURS: &str = "ours";
pub(crate) const ALL: &str = "ours, all returns";
pub(crate) const ENTRIES: &str = "ours, entries";
pub(crate) const EACH: &str = "ours, a probe each";
pub(crate) const RING: &str = "ring";

/// In the order of their turns.
pub(crate) const ARMS: [&str; 9] =
    [UNTOUCHED, FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, OURS, ALL, ENTRIES, EACH, RING];

/// Of a core, at the rate of [`FAST`].
const TARGET_PERCENT: f64 = 1.0;
/// Calls a second that a process makes at the most, as a rule.
const FAST: u32 = 2_000;

/// Who calls, and how often each; 0 is without a pause.
pub(crate) fn callers(processes: usize, rate: u32) -> String {
    let plural = if processes == 1 { "process" } else { "processes" };
    match rate {
        0 => format!("{processes} {plural}, without a pause"),
        rate => format!("{processes} {plural}, {rate} calls/s"),
    }
}

/// What was found at one rate.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) processes: usize,
    /// Calls a second of a process; 0 is without a pause.
    pub(crate) rate: u32,
    /// Nanoseconds of a call, by way.
    pub(crate) calls: BTreeMap<&'static str, Vec<f64>>,
    /// CPU nanoseconds of a way's reader, a call.
    pub(crate) readers: BTreeMap<&'static str, Vec<f64>>,
}

impl Found {
    pub(crate) fn row(&self) -> String {
        let [entry, both, session, ours, all, entries, each, ring] =
            [FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, OURS, ALL, ENTRIES, EACH, RING]
                .map(|arm| self.more(arm));
        let [read_out, adds] = [OURS, RING].map(|arm| self.reader(arm));
        let percent = ours * f64::from(self.rate) / 1e7;
        let of_a_core = match self.rate {
            0 => String::new(),
            _ => format!(", {percent:.2} % of a core"),
        };
        let verdict = match self.rate {
            FAST if percent <= TARGET_PERCENT => format!("≤ {TARGET_PERCENT} % | met"),
            FAST => format!("≤ {TARGET_PERCENT} % | MISSED"),
            _ => "|".to_owned(),
        };
        format!(
            "| {} | {:.0} + {ours:.0} ns{of_a_core}; every return {all:.0}, none {entries:.0}, \
             a probe each {each:.0}; does nothing: entry {entry:.0}, both {both:.0}, session {session:.0}; \
             ring {:.0}, {:.1} times | {verdict} |",
            callers(self.processes, self.rate),
            self.of(UNTOUCHED),
            ring + adds,
            (ring + adds) / (ours + read_out),
        )
    }

    /// Nanoseconds of a call more than without probes.
    fn more(&self, arm: &str) -> f64 {
        self.of(arm) - self.of(UNTOUCHED)
    }

    /// CPU nanoseconds of the reader, a call.
    fn reader(&self, arm: &str) -> f64 {
        self.readers.get(arm).map_or(f64::NAN, |all| median(all))
    }

    fn of(&self, arm: &str) -> f64 {
        self.calls.get(arm).map_or(f64::NAN, |all| median(all))
    }
}

pub(crate) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
