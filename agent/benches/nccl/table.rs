//! The figures in a table.

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
pub(crate) const KEPT: &str = "ring, kept";

/// In the order of their turns.
pub(crate) const ARMS: [&str; 10] =
    [UNTOUCHED, FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, OURS, ALL, ENTRIES, EACH, RING, KEPT];

pub(crate) const HEAD: &str = "\
| processes | calls/s | call alone | nothing, entry | nothing, both | nothing, session | ours | its \
reader | ours, every return | ours, no return | ours, a probe each | ring | its reader | its reader, \
keeping | ring : ours | ring, kept : ours | ours, of a core |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

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
        let [entry, both, session, ours, all, entries, each, ring, kept] =
            [FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, OURS, ALL, ENTRIES, EACH, RING, KEPT]
                .map(|arm| self.more(arm));
        let [read_out, adds, keeps] = [OURS, RING, KEPT].map(|arm| self.reader(arm));
        let (rate, of_a_core) = match self.rate {
            0 => ("all".to_owned(), String::new()),
            rate => (rate.to_string(), format!("{:.2} %", ours * f64::from(rate) / 1e7)),
        };
        format!(
            "| {} | {rate} | {:.0} | {entry:.0} | {both:.0} | {session:.0} | {ours:.0} \
             | {read_out:.1} | {all:.0} | {entries:.0} | {each:.0} | {ring:.0} | {adds:.0} \
             | {keeps:.0} | {:.1} | {:.1} | {of_a_core} |",
            self.processes,
            self.of(UNTOUCHED),
            (ring + adds) / (ours + read_out),
            (kept + keeps) / (ours + read_out),
        )
    }

    /// Nanoseconds of a call more than without probes.
    pub(crate) fn more(&self, arm: &str) -> f64 {
        self.of(arm) - self.of(UNTOUCHED)
    }

    /// CPU nanoseconds of the reader, a call.
    pub(crate) fn reader(&self, arm: &str) -> f64 {
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
