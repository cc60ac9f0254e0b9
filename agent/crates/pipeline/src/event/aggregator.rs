//! Turns observations into events: merges two reports of one fault, counts it, limits bursts,
//! attaches the affected owners.
//!
//! An observation is processed on the thread of its source, because the affected processes may have
//! ended a moment later. Events wait in a bounded queue until the pipeline takes them.

mod affected;
mod waiting;

use super::{AffectedOwner, Event, EventSource, Moment, Observation, Place, Severity};
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::{GpuId, PciAddress, ProcKey};
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::{GpuInfo, Inventory};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use waiting::State;

/// Owners of one event that get a record of their own.
pub const MAX_AFFECTED: usize = 16;

/// Lists the processes on a device, each with its MIG GPU instance.
pub type Listed = Box<dyn Fn(GpuId) -> Vec<(ProcKey, Option<u32>)> + Send + Sync>;

/// What the aggregator uses to find devices and processes.
pub struct Sources {
    /// The devices.
    pub inventory: Arc<Inventory>,
    /// The owners of processes.
    pub ownership: Ownership,
    /// The processes that the driver last listed on a device, each with its MIG GPU instance.
    pub listed: Listed,
    /// Where the host's files are.
    pub paths: Paths,
    /// Called when there are events to export.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Called when an operator unbinds a device from its driver and the kernel waits for the
    /// processes that hold it.
    pub make_way: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// Turns observations into events. Sources share it between threads.
#[derive(Debug)]
pub struct EventAggregator {
    sources: Sources,
    state: Mutex<State>,
    /// Readable while there are events that [`EventAggregator::apply_due`] has not seen; `None` if
    /// there was no descriptor left for it.
    waits: Option<OwnedFd>,
}

/// Counts of events since the start, for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events by kind.
    pub kinds: Vec<(EventKind, u64)>,
    /// XIDs by device, code and severity.
    pub xids: Vec<(GpuId, u16, Severity, u64)>,
    /// The last code of each device that had one.
    pub last_xids: Vec<(GpuId, u16)>,
    /// Events that were counted but not exported.
    pub lost: u64,
}

impl EventAggregator {
    /// An aggregator without events.
    pub fn new(sources: Sources) -> Self {
        let state = Mutex::new(State::new(sources.ownership.clone()));
        let waits = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self { sources, state, waits }
    }

    /// Whether any device is known. Before that, no owner of an event can be found.
    pub fn knows_devices(&self) -> bool {
        !self.sources.inventory.all().is_empty()
    }

    /// Sets whether the vendor library reports events too. If so, each event is held until both
    /// sources had time to report it.
    pub fn pair(&self, paired: bool) {
        self.state().paired = paired;
    }

    /// Takes an observation of a source. `now` is the agent's clock.
    pub fn take(&self, what: Observation, at: Moment, event_source: EventSource, now: Instant) {
        let mut what = what;
        let known = self.device(what.place);
        if let Some((gpu, info)) = &known {
            what.place = Place::Gpu(*gpu);
            // Some libraries report instance 0 of a device that is not in MIG mode.
            what.gpu_instance = what.gpu_instance.filter(|_| info.mig == Some(true));
        }
        let Some(with_affected) = self.affected_owners(&what, at) else { return };
        let is_unbinding = what.kind == EventKind::DriverUnbind;
        // Merged or held under one lock: the other source may report the same fault concurrently.
        let mut state = self.state();
        if state.merge(&what, &with_affected, event_source, now) {
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
        if let Some(waits) = &self.waits {
            // A full counter is readable too.
            let _ = rustix::io::write(waits, &1_u64.to_ne_bytes());
        }
        if is_unbinding {
            (self.sources.make_way)();
        }
        (self.sources.wake)();
    }

    /// When [`EventAggregator::apply_due`] must be called next; `None` while no event waits.
    pub fn due(&self) -> Option<Instant> {
        self.state().due()
    }

    /// A descriptor that is readable once [`EventAggregator::due`] may have become earlier, until
    /// the next [`EventAggregator::apply_due`].
    pub fn waits(&self) -> Option<BorrowedFd<'_>> {
        self.waits.as_ref().map(OwnedFd::as_fd)
    }

    /// Releases held events and summaries that are due. The thread `kmsg` calls it.
    pub fn apply_due(&self, now: Instant) {
        if let Some(waits) = &self.waits {
            // Fails if nothing was written; what is taken meanwhile is written again.
            let _ = rustix::io::read(waits, &mut [0; 8]);
        }
        if self.release_due(now) {
            (self.sources.wake)();
        }
    }

    /// The same for the tick, which needs no waking: the thread `kmsg` may be switched off. Returns
    /// whether events were released.
    pub fn release_due(&self, now: Instant) -> bool {
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
        more
    }

    /// Takes the events that are ready for export.
    pub fn drain(&self) -> Vec<Event> {
        self.state().out.drain(..).collect()
    }

    /// Takes all events when the agent stops, also those that are held or summed up.
    pub fn finish(&self) -> Vec<Event> {
        let mut state = self.state();
        let end = Instant::now() + waiting::MAX_AGE;
        state.release(end);
        state.sum_up(end);
        state.out.drain(..).collect()
    }

    /// The counts so far. Counts of an address follow once a device is known there.
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
        let mut latest: BTreeMap<GpuId, (u64, u16)> = BTreeMap::new();
        for ((place, code, severity), (count, last)) in xids {
            if let Some((gpu, _)) = self.device(place) {
                *known.entry((gpu, code, severity)).or_default() += count;
                let latest = latest.entry(gpu).or_default();
                *latest = (*latest).max((last, code));
            }
        }
        let counted = known.into_iter();
        let xids = counted.map(|((gpu, code, how), count)| (gpu, code, how, count)).collect();
        let last_xids = latest.into_iter().map(|(gpu, (_, code))| (gpu, code)).collect();
        Tally { kinds, xids, last_xids, lost }
    }

    /// The device at a place; for a port, the only device below it.
    fn device(&self, place: Place) -> Option<(GpuId, Arc<GpuInfo>)> {
        let inventory = &self.sources.inventory;
        match place {
            Place::Gpu(gpu) => inventory.get(gpu).map(|info| (gpu, info)),
            Place::Host => None,
            Place::Pci(address) => inventory.all().into_iter().find(|(_, info)| {
                info.pci_address.as_deref().and_then(PciAddress::parse) == Some(address)
            }),
            Place::Accel(number) => inventory.all().into_iter().find(|(_, info)| {
                let names = [format!("accel/accel{number}"), format!("hl{number}")];
                info.nodes.iter().any(|node| names.contains(node))
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

    /// Whether a device is below a port: the device's path in sysfs names every port above it.
    fn is_below(&self, info: &GpuInfo, port: PciAddress) -> bool {
        let Some(at) = info.pci_address.as_deref().and_then(PciAddress::parse) else {
            return false;
        };
        let link = self.sources.paths.sys.join(format!("bus/pci/devices/{at}"));
        let Ok(path) = std::fs::read_link(link) else { return false };
        path.parent().is_some_and(|ports| {
            let mut names = ports.components().filter_map(|part| part.as_os_str().to_str());
            names.any(|name| PciAddress::parse(name) == Some(port))
        })
    }

    /// The attribution of a process.
    pub fn owner(&self, process: ProcKey) -> Option<Arc<ProcessAttribution>> {
        self.sources.ownership.attribution(process)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Event {
    /// Sets the affected owners.
    fn set_affected(&mut self, all_affected: &[AffectedOwner]) {
        self.owners = all_affected.len() as u64;
        self.affected_owners = all_affected.iter().take(MAX_AFFECTED).cloned().collect();
    }
}

#[cfg(test)]
mod tests;
