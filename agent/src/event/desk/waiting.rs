//! What waits at the desk: for the other source's telling, for its minute's summary, for the pipeline.

use crate::catalog::event::EventKind;
use crate::event::{Event, Happening, Place, Severity, Victim, Witness};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Two tellings of one thing come within this time: the driver writes the log line and posts the
/// event in the same handler, and either reader may be late under load.
const SAME: Duration = Duration::from_secs(2);
/// The library's word of an unbinding comes up to one wait for its other events later.
const SAME_UNBIND: Duration = Duration::from_secs(7);
/// Like events of a device told one by one in a [`WINDOW`]; the others are summed up.
const MOST_TOLD: u64 = 10;
/// A summary's time.
const WINDOW: Duration = Duration::from_mins(1);
/// Events that may wait for the pipeline, which takes them within a tick.
pub(super) const MOST_WAITING: usize = 256;
/// Kinds, devices and codes kept apart for folding and counting: more than any host has faults.
const MOST_KEYS: usize = 1024;
/// After this time nothing waits any more but for the pipeline.
pub(super) const LONGEST: Duration = WINDOW.saturating_add(SAME_UNBIND);

/// What makes two happenings alike.
type Key = (EventKind, Place, Option<u32>);
/// What makes two events alike for a summary: a bad one is not lost among others of its code.
type FoldKey = (Key, Severity);

/// What waits, and what was counted.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) next_id: u64,
    /// Whether a second source is there, so that its telling is waited for.
    pub(super) paired: bool,
    held: Vec<(Instant, Event)>,
    folds: HashMap<FoldKey, Fold>,
    pub(super) out: VecDeque<Event>,
    pub(super) kinds: HashMap<EventKind, u64>,
    pub(super) xids: BTreeMap<(Place, u16, Severity), u64>,
    pub(super) lost: u64,
}

/// Like events within a window.
#[derive(Debug)]
struct Fold {
    until: Instant,
    seen: u64,
    last: Option<Event>,
}

impl State {
    /// Whether this is the other source's telling of what waits. `struck` is whom it struck as this
    /// source has it.
    pub(super) fn merge(
        &mut self,
        (what, struck): (&Happening, &[Victim]),
        witness: Witness,
        now: Instant,
    ) -> bool {
        let alike = |(until, event): &&mut (Instant, Event)| {
            *until >= now
                && event.witness != witness
                && event.witness != Witness::Both
                && key(&event.what) == key(what)
        };
        let Some((_, event)) = self.held.iter_mut().find(alike) else { return false };
        event.witness = Witness::Both;
        if witness == Witness::Kmsg {
            // The log line says more than the event does: the process, and how bad it is. But an
            // instance that only the event names is better than the whole device.
            let is_wider = what.gpu_instance.is_none() && event.what.gpu_instance.is_some();
            if what.process.is_some() || !is_wider {
                event.strike(struck);
            }
            event.what.severity = what.severity;
            event.what.message = what.message.clone();
            event.what.process = event.what.process.take().or_else(|| what.process.clone());
            event.what.gpu_instance = event.what.gpu_instance.or(what.gpu_instance);
        }
        true
    }

    fn count(&mut self, what: &Happening) {
        *self.kinds.entry(what.kind).or_default() += 1;
        let code = what.code.filter(|_| what.kind == EventKind::Xid);
        let Some(code) = code.and_then(|code| u16::try_from(code).ok()) else { return };
        let key = (what.place, code, what.severity);
        if self.xids.len() < MOST_KEYS || self.xids.contains_key(&key) {
            *self.xids.entry(key).or_default() += 1;
        } else {
            self.lost += 1;
        }
    }

    /// Held until the other source had time to tell it, if there is one.
    pub(super) fn hold(&mut self, event: Event, now: Instant) {
        let same = match event.what.kind {
            EventKind::ProcessEnded => Duration::ZERO,
            EventKind::DriverUnbind => SAME_UNBIND,
            _ => SAME,
        };
        if self.paired && !same.is_zero() {
            self.held.push((now + same, event));
        } else {
            self.tell(event, now);
        }
    }

    /// Told now, or counted into its minute's summary.
    fn tell(&mut self, event: Event, now: Instant) {
        self.count(&event.what);
        if event.what.kind == EventKind::ProcessEnded {
            // None is like another: each is the only account of its process.
            self.push(event);
            return;
        }
        let key = (key(&event.what), event.what.severity);
        if self.folds.len() >= MOST_KEYS && !self.folds.contains_key(&key) {
            self.lost += 1;
            return;
        }
        let fresh = Fold { until: now + WINDOW, seen: 0, last: None };
        let fold = self.folds.entry(key).or_insert(fresh);
        fold.seen += 1;
        if fold.seen > MOST_TOLD {
            fold.last = Some(event);
        } else {
            self.push(event);
        }
    }

    /// What has waited for its pair long enough.
    pub(super) fn release(&mut self, now: Instant) {
        let (due, held) = self.held.drain(..).partition(|(until, _)| *until <= now);
        self.held = held;
        let due: Vec<(Instant, Event)> = due;
        for (_, event) in due {
            self.tell(event, now);
        }
    }

    /// The summaries of the minutes that are over.
    pub(super) fn sum_up(&mut self, now: Instant) {
        let mut over = Vec::new();
        self.folds.retain(|_, fold| {
            if fold.until > now {
                return true;
            }
            if let Some(mut event) = fold.last.take() {
                event.count = fold.seen - MOST_TOLD;
                over.push(event);
            }
            false
        });
        for event in over {
            self.push(event);
        }
    }

    fn push(&mut self, event: Event) {
        if self.out.len() >= MOST_WAITING {
            self.lost += 1;
            return;
        }
        self.out.push_back(event);
    }
}

fn key(what: &Happening) -> Key {
    (what.kind, what.place, what.code)
}
