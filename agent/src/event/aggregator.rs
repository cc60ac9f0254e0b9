//! Where happenings become events: one of two tellings, counted, folded, with its victims.
//!
//! A happening is worked up on the thread that brings it, because its victims may be gone a moment
//! later. What is to be told waits in a bounded queue until the pipeline takes it.

mod affected;
mod waiting;

use super::{AffectedOwner, Event, EventSource, Moment, Observation, Place, Severity};
use crate::attribute::ProcessAttribution;
use crate::attribute::ownership::Ownership;
use crate::catalog::agent::OwnerLimit;
use crate::catalog::event::EventKind;
use crate::ids::{GpuId, PciAddress, PciPort, ProcKey};
use crate::inventory::{GpuInfo, Inventory};
use crate::paths::Paths;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use waiting::State;

/// Owners that get a record of their own.
pub const MAX_AFFECTED: usize = 16;

/// Tells who is on a device, and in which of its MIG GPU instances.
pub type Listed = Box<dyn Fn(GpuId) -> Vec<(ProcKey, Option<u32>)> + Send + Sync>;

/// What the desk asks about devices and processes.
pub struct Sources {
    /// The devices.
    pub inventory: Arc<Inventory>,
    /// Whose processes are.
    pub ownership: Ownership,
    /// The processes that the driver last listed on a device, each with its MIG GPU instance.
    pub listed: Listed,
    /// Where the host's files are.
    pub paths: Paths,
    /// Called when there is something to tell.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Called when somebody takes a device from its driver and waits for those who hold it.
    pub make_way: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The desk.
#[derive(Debug)]
pub struct EventAggregator {
    sources: Sources,
    state: Mutex<State>,
}

/// What has happened so far, for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events by kind.
    pub kinds: Vec<(EventKind, u64)>,
    /// XIDs by device, code and severity.
    pub xids: Vec<(GpuId, u16, Severity, u64)>,
    /// Events that were counted and could not be told.
    pub lost: u64,
}

impl EventAggregator {
    /// An empty desk.
    pub fn new(sources: Sources) -> Self {
        let state = Mutex::new(State::new(sources.ownership.clone()));
        Self { sources, state }
    }

    /// Whether any device is known: before, nothing can be said of whose an event was.
    pub fn knows_devices(&self) -> bool {
        !self.sources.inventory.all().is_empty()
    }

    /// Says whether the vendor library tells events too: then each is held until both had time.
    pub fn pair(&self, paired: bool) {
        self.state().paired = paired;
    }

    /// Takes what a source saw. `now` is the agent's clock.
    pub fn take(&self, what: Observation, at: Moment, event_source: EventSource, now: Instant) {
        let mut what = what;
        let known = self.device(what.place);
        if let Some((gpu, info)) = &known {
            what.place = Place::Gpu(*gpu);
            // Some libraries leave 0 there where a device is not cut.
            what.gpu_instance = what.gpu_instance.filter(|_| info.mig == Some(true));
        }
        let Some(with_affected) = self.affected_owners(&what, at) else { return };
        let is_unbinding = what.kind == EventKind::DriverUnbind;
        // Looked for and held in one go: the other source's telling may come at this very moment.
        let mut state = self.state();
        if state.merge((&what, &with_affected), event_source, now) {
            return;
        }
        state.next_id += 1;
        let mut event = Event {
            what,
            at,
            seen: SystemTime::now(),
            source: event_source,
            gpu: known.map(|(_, info)| info),
            affected_owners: Vec::new(),
            owners: 0,
            count: 1,
            id: state.next_id,
        };
        event.set_affected(&with_affected);
        state.hold(event, now);
        drop(state);
        if is_unbinding {
            (self.sources.make_way)();
        }
        (self.sources.wake)();
    }

    /// Tells what has waited long enough; call it now and then.
    pub fn apply_due(&self, now: Instant) {
        let mut state = self.state();
        let before = state.out.len();
        state.release(now);
        state.sum_up(now);
        let more = state.out.len() > before;
        let refused = std::mem::take(&mut state.refused);
        drop(state);
        let ownership = &self.sources.ownership;
        for (owner, count) in refused {
            ownership.refuse(ownership.key_of(Some(&owner)), OwnerLimit::Events, count);
        }
        if more {
            (self.sources.wake)();
        }
    }

    /// Everything to be told now.
    pub fn drain(&self) -> Vec<Event> {
        self.state().out.drain(..).collect()
    }

    /// Everything, also what waits for its pair or for its minute: at the end.
    pub fn finish(&self) -> Vec<Event> {
        let mut state = self.state();
        let end = Instant::now() + waiting::MAX_AGE;
        state.release(end);
        state.sum_up(end);
        state.out.drain(..).collect()
    }

    /// The counts so far; those of a device the agent does not know yet come when it does.
    pub fn tally(&self) -> Tally {
        let state = self.state();
        let kinds = EventKind::ALL.iter().map(|kind| {
            let count = state.kinds.get(kind).copied().unwrap_or(0);
            (*kind, count)
        });
        let kinds = kinds.collect();
        let xids = state.xids.clone();
        let lost = state.lost;
        drop(state);
        let mut known: BTreeMap<(GpuId, u16, Severity), u64> = BTreeMap::new();
        for ((place, code, severity), count) in xids {
            if let Some((gpu, _)) = self.device(place) {
                *known.entry((gpu, code, severity)).or_default() += count;
            }
        }
        let counted = known.into_iter();
        let xids = counted.map(|((gpu, code, how), count)| (gpu, code, how, count)).collect();
        Tally { kinds, xids, lost }
    }

    /// The device at a place: itself, or the only one below a port.
    fn device(&self, place: Place) -> Option<(GpuId, Arc<GpuInfo>)> {
        let inventory = &self.sources.inventory;
        match place {
            Place::Gpu(gpu) => inventory.get(gpu).map(|info| (gpu, info)),
            Place::Host => None,
            Place::Pci(address) => inventory.all().into_iter().find(|(_, info)| {
                info.pci_address.as_deref().and_then(PciAddress::parse) == Some(address)
            }),
            Place::Port(port) => {
                let all = inventory.all();
                let mut below = all.iter().filter(|(_, info)| self.is_below(info, port));
                match (below.next(), below.next()) {
                    (Some(only), None) => Some(only.clone()),
                    _ => None,
                }
            }
        }
    }

    /// Whether a device hangs on a port: sysfs has the way to it in its path.
    fn is_below(&self, info: &GpuInfo, port: PciPort) -> bool {
        let Some(at) = info.pci_address.as_deref().and_then(PciAddress::parse) else {
            return false;
        };
        let link = self.sources.paths.sys.join(format!("bus/pci/devices/{at}"));
        let Ok(way) = std::fs::read_link(link) else { return false };
        way.parent().is_some_and(|ports| {
            let mut names = ports.components().filter_map(|part| part.as_os_str().to_str());
            names.any(|name| PciPort::parse(name) == Some(port))
        })
    }

    /// Whose a process is.
    pub fn owner(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.sources.ownership.attribution(process)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts and queues are whole whatever panicked beside them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    /// Sets whom it struck.
    fn set_affected(&mut self, all_affected: &[AffectedOwner]) {
        self.owners = all_affected.len() as u64;
        self.affected_owners = all_affected.iter().take(MAX_AFFECTED).cloned().collect();
    }
}

#[cfg(test)]
mod tests;
