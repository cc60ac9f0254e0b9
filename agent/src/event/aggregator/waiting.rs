//! What waits at the desk: for the other source's telling, for its minute's summary, for the pipeline.

use crate::attribute::ProcessAttribution;
use crate::attribute::ownership::Ownership;
use crate::attribute::quota::QuotaKey;
use crate::catalog::event::EventKind;
use crate::event::{Affected, AffectedOwner, Event, EventSource, Observation, Place, Severity};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Two tellings of one thing come within this time: the driver writes the log line and posts the
/// event in the same handler, and either reader may be late under load.
const SAME: Duration = Duration::from_secs(2);
/// The library's word of an unbinding comes up to one wait for its other events later.
const SAME_UNBIND: Duration = Duration::from_secs(7);
/// Like events of a device and owner told one by one in a [`WINDOW`]; the others are summed up.
const MAX_EVENTS_PER_WINDOW: u64 = 10;
/// The same of an owner's processes that have ended. None is like another, each is the only account
/// of its process; but one owner's must not fill the queue to the receiver.
const MAX_ENDED_PER_WINDOW: u64 = 240;
/// A summary's time.
const WINDOW: Duration = Duration::from_mins(1);
/// Events that may wait for the pipeline, which takes them within a tick.
pub(super) const MAX_QUEUED: usize = 256;
/// Those of them that one owner's processes can cause: the others' find room whatever one does.
const MAX_QUEUED_PER_OWNER: usize = MAX_QUEUED / 4;
/// Events that may wait for the other source; with more, each is told by itself.
pub(super) const MAX_HELD: usize = 1024;
/// Kinds, devices and codes kept apart for folding and counting: more than any host has faults.
const MAX_KEYS: usize = 1024;
/// After this time nothing waits any more but for the pipeline.
pub(super) const MAX_AGE: Duration = WINDOW.saturating_add(SAME_UNBIND);

/// What makes two happenings alike.
type Key = (EventKind, Place, Option<u32>);
/// What makes two events alike for a summary: a bad one is not lost among others of its code, and
/// no owner's among those of another whose process is named again and again.
type FoldKey = (Key, Severity, Option<QuotaKey>);

/// What waits, and what was counted.
#[derive(Debug)]
pub(super) struct State {
    /// Knows who the tenant is: whatever containers he makes, they share his part.
    ownership: Ownership,
    pub(super) next_id: u64,
    /// Whether a second source is there, so that its telling is waited for.
    pub(super) paired: bool,
    held: Vec<(Instant, Event)>,
    folds: HashMap<FoldKey, Fold>,
    pub(super) out: VecDeque<Event>,
    pub(super) kinds: HashMap<EventKind, u64>,
    pub(super) xids: BTreeMap<(Place, u16, Severity), u64>,
    pub(super) lost: u64,
    /// Events that were summed up or lost, with the only owner they were about.
    pub(super) refused: Vec<(Arc<ProcessAttribution>, u64)>,
}

/// Like events within a window.
#[derive(Debug)]
struct Fold {
    until: Instant,
    seen: u64,
    /// Told one by one.
    most: u64,
    last: Option<Event>,
}

impl State {
    /// Nothing waits.
    pub(super) fn new(ownership: Ownership) -> Self {
        Self {
            ownership,
            next_id: 0,
            paired: false,
            held: Vec::new(),
            folds: HashMap::new(),
            out: VecDeque::new(),
            kinds: HashMap::new(),
            xids: BTreeMap::new(),
            lost: 0,
            refused: Vec::new(),
        }
    }

    /// Whether this is the other source's telling of what waits. `with_affected` is whom it struck as this
    /// source has it.
    pub(super) fn merge(
        &mut self,
        (what, with_affected): (&Observation, &[AffectedOwner]),
        event_source: EventSource,
        now: Instant,
    ) -> bool {
        let alike = |(until, event): &&mut (Instant, Event)| {
            *until >= now
                && event.source != event_source
                && event.source != EventSource::Both
                && key(&event.what) == key(what)
        };
        let Some((_, event)) = self.held.iter_mut().find(alike) else { return false };
        event.source = EventSource::Both;
        if event_source == EventSource::Kmsg {
            // The log line says more than the event does: the process, and how bad it is. But an
            // instance that only the event names is better than the whole device.
            let is_wider = what.gpu_instance.is_none() && event.what.gpu_instance.is_some();
            if what.process.is_some() || !is_wider {
                event.set_affected(with_affected);
            }
            event.what.severity = what.severity;
            event.what.message = what.message.clone();
            event.what.process = event.what.process.take().or_else(|| what.process.clone());
            event.what.gpu_instance = event.what.gpu_instance.or(what.gpu_instance);
        }
        true
    }

    fn count(&mut self, what: &Observation) {
        *self.kinds.entry(what.kind).or_default() += 1;
        let code = what.code.filter(|_| what.kind == EventKind::Xid);
        let Some(code) = code.and_then(|code| u16::try_from(code).ok()) else { return };
        let key = (what.place, code, what.severity);
        if self.xids.len() < MAX_KEYS || self.xids.contains_key(&key) {
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
        if self.paired && !same.is_zero() && self.held.len() < MAX_HELD {
            self.held.push((now + same, event));
        } else {
            self.emit(event, now);
        }
    }

    /// Told now, or counted into its minute's summary.
    fn emit(&mut self, event: Event, now: Instant) {
        self.count(&event.what);
        let has_ended = event.what.kind == EventKind::ProcessEnded;
        let most = if has_ended { MAX_ENDED_PER_WINDOW } else { MAX_EVENTS_PER_WINDOW };
        let alike = if has_ended {
            // On whatever device.
            (event.what.kind, Place::Host, None)
        } else {
            key(&event.what)
        };
        let owner = event.only_owner().or_else(|| named(&event)).map(|owner| self.whose(owner));
        let key = (alike, event.what.severity, owner);
        if self.folds.len() >= MAX_KEYS && !self.folds.contains_key(&key) {
            self.lost += 1;
            return;
        }
        let fresh = Fold { until: now + WINDOW, seen: 0, most, last: None };
        let fold = self.folds.entry(key).or_insert(fresh);
        fold.seen += 1;
        if fold.seen > most {
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
            self.emit(event, now);
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
                event.count = fold.seen.saturating_sub(fold.most);
                over.push(event);
            }
            false
        });
        for event in over {
            let owner = event.only_owner().map(|owner| (Arc::clone(owner), event.count));
            if self.push(event) {
                self.refused.extend(owner);
            }
        }
    }

    /// Whether there is room for it. An owner's part counts only where places are short.
    fn push(&mut self, event: Event) -> bool {
        let is_short = self.out.len() >= MAX_QUEUED / 2;
        if self.out.len() >= MAX_QUEUED || is_short && self.has_too_many(&event) {
            self.lost += 1;
            let owner = event.only_owner().map(Arc::clone);
            self.refused.extend(owner.map(|owner| (owner, event.count)));
            return false;
        }
        self.out.push_back(event);
        true
    }

    /// Whether the owner whose process caused it has too many that wait.
    fn has_too_many(&self, event: &Event) -> bool {
        let owner = |event: &Event| {
            let by_process = matches!(
                event.what.kind,
                EventKind::ProcessEnded
                    | EventKind::OomKill
                    | EventKind::RankHung
                    | EventKind::PeerDead
                    | EventKind::PeerSilent
                    | EventKind::Xid
            );
            event.only_owner().filter(|_| by_process).map(|owner| self.whose(owner))
        };
        let Some(whose) = owner(event) else { return false };
        self.out.iter().filter(|event| owner(event) == Some(whose)).count() >= MAX_QUEUED_PER_OWNER
    }

    fn whose(&self, owner: &ProcessAttribution) -> QuotaKey {
        self.ownership.key_of(Some(owner))
    }
}

impl Event {
    /// The owner it is about, where it is only one.
    fn only_owner(&self) -> Option<&Arc<ProcessAttribution>> {
        match self.affected_owners.as_slice() {
            [only] if self.owners == 1 => Some(&only.owner),
            _ => None,
        }
    }
}

/// Whose process the source has named.
fn named(event: &Event) -> Option<&Arc<ProcessAttribution>> {
    let affected_owner = event.affected_owners.first()?;
    (affected_owner.affected == Some(Affected::Named)).then_some(&affected_owner.owner)
}

fn key(what: &Observation) -> Key {
    (what.kind, what.place, what.code)
}
