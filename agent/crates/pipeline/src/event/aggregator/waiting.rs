//! Events that wait in the aggregator: for the other source's report, for the summary of their
//! window, for the pipeline.

use crate::event::{Affected, AffectedOwner, Event, EventSource, Observation, Place, Severity};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Two reports of one fault arrive within this time: the driver writes the log line and posts the
/// event in the same handler, and either reader may be late under load.
const SAME: Duration = Duration::from_secs(2);
/// The library reports an unbinding up to one wait for its other events later.
const SAME_UNBIND: Duration = Duration::from_secs(7);
/// Events of one key exported one by one in a [`WINDOW`]; the rest are summed up in one record.
const MAX_EVENTS_PER_WINDOW: u64 = 10;
/// The same for ended processes of one owner. Each such event is the only account of its process,
/// so the limit is higher; it keeps one owner from filling the queue to the receiver.
const MAX_ENDED_PER_WINDOW: u64 = 240;
/// The time that one summary covers.
const WINDOW: Duration = Duration::from_mins(1);
/// Events that may wait for the pipeline, which takes them within a tick.
pub(super) const MAX_QUEUED: usize = 256;
/// Limit of those that the processes of one owner cause, so that other owners' events find room.
const MAX_QUEUED_PER_OWNER: usize = MAX_QUEUED / 4;
/// Events that may wait for the other source; beyond that, each is exported without waiting.
pub(super) const MAX_HELD: usize = 1024;
/// Keys that are folded and counted separately: more than any host has faults.
const MAX_KEYS: usize = 1024;
/// Ended peers that are remembered: a node loses some hundred at once.
const MAX_DEAD: usize = 1024;
/// After this time an event waits for nothing but the pipeline.
pub(super) const MAX_AGE: Duration = WINDOW.saturating_add(SAME_UNBIND);

/// Observations with the same key may be the same fault.
type Key = (EventKind, Place, Option<u32>);
/// Events with the same key share a summary. Severity and owner are part of it, so that a severe
/// event is not lost among others of its code, nor one owner's events among those of another owner.
type FoldKey = (Key, Severity, Option<QuotaKey>);

/// The waiting events and the counts.
#[derive(Debug)]
pub(super) struct State {
    /// Finds the tenant of a process: all containers of one tenant share its part of the queue.
    ownership: Ownership,
    pub(super) next_id: u64,
    /// Whether a second source reports events, so that each event waits for its report.
    pub(super) paired: bool,
    held: Vec<(Instant, Event)>,
    folds: HashMap<FoldKey, Fold>,
    pub(super) out: VecDeque<Event>,
    pub(super) kinds: HashMap<EventKind, u64>,
    /// XIDs: how many, and which of all was the last.
    pub(super) xids: BTreeMap<(Place, u16, Severity), (u64, u64)>,
    pub(super) lost: u64,
    /// Ended peers that an event told of, and which source was the first: NCCL gives a process up a minute
    /// after the probes have missed it.
    dead: VecDeque<(ProcKey, EventSource)>,
    /// Number of events that were summed up or lost, with the only owner that they affected.
    pub(super) refused: Vec<(Arc<ProcessAttribution>, u64)>,
}

/// Events of one key within a window.
#[derive(Debug)]
struct Fold {
    until: Instant,
    count: u64,
    /// Number that is exported one by one.
    limit: u64,
    last: Option<Event>,
}

impl State {
    /// An empty state.
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
            dead: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    /// Whether the other source has told of this process's end.
    fn is_told(&mut self, process: ProcKey, event_source: EventSource) -> bool {
        let known = self.dead.iter().find(|(dead, _)| *dead == process);
        if let Some((_, first)) = known {
            return *first != event_source;
        }
        if self.dead.len() >= MAX_DEAD {
            self.dead.pop_front();
        }
        self.dead.push_back((process, event_source));
        false
    }

    /// Merges an observation into a held event of the other source; true if there was one. The end of a
    /// peer is one event, whoever tells first.
    /// `with_affected` are the affected owners according to this source.
    pub(super) fn merge(
        &mut self,
        what: &Observation,
        with_affected: &[AffectedOwner],
        event_source: EventSource,
        now: Instant,
    ) -> bool {
        if what.kind == EventKind::PeerDead {
            let process = what.peer.as_ref().and_then(|peer| peer.process);
            return process.is_some_and(|process| self.is_told(process, event_source));
        }
        let alike = |(until, event): &&mut (Instant, Event)| {
            *until >= now
                && event.source != event_source
                && event.source != EventSource::Both
                && key(&event.what) == key(what)
        };
        let Some((_, event)) = self.held.iter_mut().find(alike) else { return false };
        event.source = EventSource::Both;
        if event_source == EventSource::Kmsg {
            // The log line has more than the library's event: the process and the severity. But an
            // instance that only the library's event names is more precise than the whole device.
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
        let of_kind = self.kinds.entry(what.kind).or_default();
        *of_kind += 1;
        let place = *of_kind;
        let code = what.code.filter(|_| what.kind == EventKind::Xid);
        let Some(code) = code.and_then(|code| u16::try_from(code).ok()) else { return };
        let key = (what.place, code, what.severity);
        if self.xids.len() < MAX_KEYS || self.xids.contains_key(&key) {
            let (count, last) = self.xids.entry(key).or_default();
            (*count, *last) = (*count + 1, place);
        } else {
            self.lost += 1;
        }
    }

    /// Holds an event until the other source had time to report it, if there is one.
    pub(super) fn hold(&mut self, event: Event, now: Instant) {
        let same = match event.what.kind {
            EventKind::ProcessEnded | EventKind::HealthStarted | EventKind::HealthEnded => {
                Duration::ZERO
            }
            EventKind::DriverUnbind => SAME_UNBIND,
            _ => SAME,
        };
        if self.paired && !same.is_zero() && self.held.len() < MAX_HELD {
            self.held.push((now + same, event));
        } else {
            self.emit(event, now);
        }
    }

    /// Queues an event for export, or counts it into the summary of its window.
    fn emit(&mut self, event: Event, now: Instant) {
        self.count(&event.what);
        let has_ended = event.what.kind == EventKind::ProcessEnded;
        let limit = if has_ended { MAX_ENDED_PER_WINDOW } else { MAX_EVENTS_PER_WINDOW };
        let alike = if has_ended {
            // One key for all devices.
            (event.what.kind, Place::Host, None)
        } else {
            key(&event.what)
        };
        let owner = event.only_owner().or_else(|| named(&event)).map(|owner| self.quota_key(owner));
        let key = (alike, event.what.severity, owner);
        if self.folds.len() >= MAX_KEYS && !self.folds.contains_key(&key) {
            self.lost += 1;
            return;
        }
        let fresh = || Fold { until: now + WINDOW, count: 0, limit, last: None };
        let fold = self.folds.entry(key).or_insert_with(fresh);
        if fold.until <= now && fold.last.is_none() {
            *fold = fresh();
        }
        fold.count += 1;
        if fold.count > limit {
            fold.last = Some(event);
        } else {
            self.push(event);
        }
    }

    /// When the next held event or summary is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let held = self.held.iter().map(|(until, _)| *until);
        // A window without a summary ends without anything to tell.
        let folds = self.folds.values().filter(|fold| fold.last.is_some());
        held.chain(folds.map(|fold| fold.until)).min()
    }

    /// Queues the held events that have waited long enough for the other source.
    pub(super) fn release(&mut self, now: Instant) {
        let (due, held) = self.held.drain(..).partition(|(until, _)| *until <= now);
        self.held = held;
        let due: Vec<(Instant, Event)> = due;
        for (_, event) in due {
            self.emit(event, now);
        }
    }

    /// Queues the summaries of the windows that are over.
    pub(super) fn sum_up(&mut self, now: Instant) {
        let mut over = Vec::new();
        self.folds.retain(|_, fold| {
            if fold.until > now {
                return true;
            }
            if let Some(mut event) = fold.last.take() {
                event.count = fold.count.saturating_sub(fold.limit);
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

    /// Queues an event; false if there is no room. The limit per owner applies once the queue is
    /// half full.
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

    /// Whether the owner that caused this event has too many queued events.
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
            event.only_owner().filter(|_| by_process).map(|owner| self.quota_key(owner))
        };
        let Some(key) = owner(event) else { return false };
        self.out.iter().filter(|event| owner(event) == Some(key)).count() >= MAX_QUEUED_PER_OWNER
    }

    fn quota_key(&self, owner: &ProcessAttribution) -> QuotaKey {
        self.ownership.key_of(Some(owner))
    }
}

impl Event {
    /// The affected owner, where there is exactly one.
    fn only_owner(&self) -> Option<&Arc<ProcessAttribution>> {
        match self.affected_owners.as_slice() {
            [only] if self.owners == 1 => Some(&only.owner),
            _ => None,
        }
    }
}

/// The owner of the process that the source names.
fn named(event: &Event) -> Option<&Arc<ProcessAttribution>> {
    let affected_owner = event.affected_owners.first()?;
    (affected_owner.affected == Some(Affected::Named)).then_some(&affected_owner.owner)
}

fn key(what: &Observation) -> Key {
    (what.kind, what.place, what.code)
}
