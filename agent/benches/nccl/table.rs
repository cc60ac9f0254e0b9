//! The figures in a table.

use std::collections::BTreeMap;

pub(crate) const UNTOUCHED: &str = "untouched";
pub(crate) const FLOOR_ENTRY: &str = "floor, entry";
pub(crate) const FLOOR_BOTH: &str = "floor, both";
pub(crate) const FLOOR_SESSION: &str = "floor, session";
pub(crate) const ENTRIES: &str = "ours, entries";
pub(crate) const FULL: &str = "ours, both";
pub(crate) const EACH: &str = "ours, both, a probe each";
pub(crate) const RING: &str = "ring";

/// In the order of their turns.
pub(crate) const ARMS: [&str; 8] =
    [UNTOUCHED, FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, ENTRIES, FULL, EACH, RING];

pub(crate) const HEAD: &str = "\
| processes | calls/s | call alone | trap, entry | trap, both | trap, session | ours, entries | ours, \
both | of that program | its reader | a probe each | ring | of that program | its reader | ring : \
ours, total | without traps | of a core at 2,000 calls/s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// What was found at one rate.
pub(crate) struct Found {
    pub(crate) processes: usize,
    pub(crate) rate: u32,
    /// Nanoseconds of a call, by way.
    pub(crate) calls: BTreeMap<&'static str, Vec<f64>>,
    /// CPU nanoseconds of the ring's reader, a call.
    pub(crate) reader: Vec<f64>,
    /// CPU nanoseconds of reading the maps once a tick, a call.
    pub(crate) read_out: Vec<f64>,
}

impl Found {
    pub(crate) fn row(&self) -> String {
        let alone = self.of(UNTOUCHED);
        let more = |arm: &str| self.of(arm) - alone;
        let [entry, both, session, entries, full, each, ring] =
            [FLOOR_ENTRY, FLOOR_BOTH, FLOOR_SESSION, ENTRIES, FULL, EACH, RING].map(more);
        let (reader, read_out) = (median(self.reader.clone()), median(self.read_out.clone()));
        let rate = if self.rate == 0 { "all".to_owned() } else { self.rate.to_string() };
        let (ours, theirs) = (full - session + read_out, ring - both + reader);
        format!(
            "| {} | {rate} | {alone:.0} | {entry:.0} | {both:.0} | {session:.0} | {entries:.0} \
             | {full:.0} | {:.0} | {read_out:.1} | {each:.0} | {ring:.0} | {:.0} | {reader:.0} \
             | {:.1} | {:.1} | {:.2} % |",
            self.processes,
            full - session,
            ring - both,
            (ring + reader) / (full + read_out),
            theirs / ours,
            full * 2_000.0 / 1e9 * 100.0,
        )
    }

    fn of(&self, arm: &str) -> f64 {
        median(self.calls.get(arm).cloned().unwrap_or_default())
    }
}

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
