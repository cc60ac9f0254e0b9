//! Attachments that the kernel refused, and when to retry: soon at first, because a limit may be
//! reached only briefly or a permission be granted, then with an increasing delay.

use crate::probe::libraries::FileKey;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Delay before the first retry.
const MIN_RETRY: Duration = Duration::from_secs(1);
/// Longest delay: loading every program takes a tenth of a second.
const MAX_RETRY: Duration = Duration::from_mins(5);

/// All refusals: of probes on a file or, without one, of the programs themselves.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<Option<FileKey>, ProbeRefusal>);

#[derive(Debug)]
struct ProbeRefusal {
    why: String,
    wait: Duration,
    again: Instant,
}

impl Refusals {
    /// Records a refusal; true if it is new, or has another reason than the last.
    pub(super) fn note(&mut self, what: Option<FileKey>, why: String, now: Instant) -> bool {
        let before = self.0.get(&what);
        let wait = before.map_or(MIN_RETRY, |before| (before.wait * 2).min(MAX_RETRY));
        let is_new = before.is_none_or(|before| before.why != why);
        self.0.insert(what, ProbeRefusal { why, wait, again: now + wait });
        is_new
    }

    /// Whether it is too early to retry.
    pub(super) fn is_early(&self, what: Option<&FileKey>, now: Instant) -> bool {
        self.0.get(&what.copied()).is_some_and(|refusal| now < refusal.again)
    }

    /// Whether a file was refused and awaits a retry.
    pub(super) fn is_known(&self, file: &FileKey) -> bool {
        self.0.contains_key(&Some(*file))
    }

    /// Removes a refusal after a success.
    pub(super) fn clear(&mut self, what: Option<&FileKey>) {
        self.0.remove(&what.copied());
    }

    /// Removes files that are no longer in use.
    pub(super) fn retain(&mut self, in_use: &HashSet<FileKey>) {
        let is_used = |what: &Option<FileKey>| match what {
            Some(file) => in_use.contains(file),
            None => !in_use.is_empty(),
        };
        self.0.retain(|what, _| is_used(what));
    }

    /// The reason of one refusal, the programs' own first.
    pub(super) fn why(&self) -> Option<&str> {
        let first = self.0.iter().min_by(|(one, _), (other, _)| one.cmp(other));
        first.map(|(_, refusal)| refusal.why.as_str())
    }

    /// When the next retry is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|refusal| refusal.again).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_until_they_succeed() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..11 {
            refusals.note(None, "no".into(), now);
            let due = refusals.due().unwrap();
            assert!(refusals.is_early(None, due.checked_sub(Duration::from_millis(1)).unwrap()));
            assert!(!refusals.is_early(None, due));
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        refusals.clear(None);
        assert_eq!((refusals.due(), refusals.why()), (None, None));
        assert!(refusals.note(None, "no".into(), now), "begins anew");
        assert_eq!(refusals.due(), Some(now + MIN_RETRY));
        assert!(!refusals.note(None, "no".into(), now));
        assert!(refusals.note(None, "another".into(), now));
        // The library is not in use any more: no retry is due.
        refusals.retain(&HashSet::new());
        assert_eq!(refusals.due(), None);
    }
}
