//! What the kernel has refused and when it is asked again: soon at first, since a limit may be
//! reached for a moment and a right be given a moment later, then ever more seldom.

use crate::collect::nccl::probe::libraries::FileKey;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Before the second try.
const SOON: Duration = Duration::from_secs(1);
/// Between tries at last: loading every program takes a tenth of a second.
const SELDOM: Duration = Duration::from_mins(5);

/// All refusals: of probes on a file, or, without one, of the programs themselves.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<Option<FileKey>, ProbeRefusal>);

#[derive(Debug)]
struct ProbeRefusal {
    why: String,
    wait: Duration,
    again: Instant,
}

impl Refusals {
    /// Notes one; true if it is the first of its kind, or for another reason than the last.
    pub(super) fn note(&mut self, what: Option<FileKey>, why: String, now: Instant) -> bool {
        let before = self.0.get(&what);
        let wait = before.map_or(SOON, |before| (before.wait * 2).min(SELDOM));
        let is_news = before.is_none_or(|before| before.why != why);
        self.0.insert(what, ProbeRefusal { why, wait, again: now + wait });
        is_news
    }

    /// Whether it is too early to ask again.
    pub(super) fn is_early(&self, what: Option<&FileKey>, now: Instant) -> bool {
        self.0.get(&what.copied()).is_some_and(|refusal| now < refusal.again)
    }

    /// Whether a file was refused and is tried again later.
    pub(super) fn is_known(&self, file: &FileKey) -> bool {
        self.0.contains_key(&Some(*file))
    }

    /// It was taken after all.
    pub(super) fn clear(&mut self, what: Option<&FileKey>) {
        self.0.remove(&what.copied());
    }

    /// Forgets files that nobody maps any more.
    pub(super) fn retain(&mut self, in_use: &HashSet<FileKey>) {
        let is_used = |what: &Option<FileKey>| match what {
            Some(file) => in_use.contains(file),
            None => !in_use.is_empty(),
        };
        self.0.retain(|what, _| is_used(what));
    }

    /// The reason of one of them, the programs' own first.
    pub(super) fn why(&self) -> Option<&str> {
        let first = self.0.iter().min_by(|(one, _), (other, _)| one.cmp(other));
        first.map(|(_, refusal)| refusal.why.as_str())
    }

    /// When something is to be asked again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|refusal| refusal.again).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_asked_soon_then_ever_more_seldom_until_it_is_taken() {
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
        assert_eq!(refusals.due(), Some(now + SOON));
        assert!(!refusals.note(None, "no".into(), now));
        assert!(refusals.note(None, "another".into(), now));
        // Nobody uses the library any more: nobody waits.
        refusals.retain(&HashSet::new());
        assert_eq!(refusals.due(), None);
    }
}
