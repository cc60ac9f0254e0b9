//! The state of each device of one reader: turns readings into samples, and exports the status and
//! the age of every device in every tick, also of devices stored by an earlier run that the driver
//! does not list.

mod absence;
mod row;

use super::Vendor;
use super::wire::{Outcome, Reading, WireValue};
use absence::absence;
use gpuwho_collect::snapshot::DeviceSnapshot;
use gpuwho_model::catalog::device::{self as metric, DeviceState};
use gpuwho_model::catalog::gpm::CounterState;
use gpuwho_model::catalog::wear;
use gpuwho_model::ids::{GpuId, ProcKey};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Batch;
use gpuwho_owners::attribute::pid_cache::ProcessesByPid;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::inventory::register::BestLink;
use gpuwho_owners::inventory::{GpuInfo, Inventory};
use gpuwho_owners::partitions::PartitionNodes;
use row::DeviceRow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Resolves PIDs that the driver listed at a time of `CLOCK_BOOTTIME` in nanoseconds.
pub type Identify = Box<dyn Fn(&[u32], u64) -> ProcessesByPid + Send>;

/// Returns the device nodes that a process has opened.
pub type OpenNodes = Box<dyn Fn(ProcKey) -> Vec<Arc<str>> + Send>;

/// Returns the processes that have the vendor's nodes open.
pub type NodeOpeners = Box<dyn Fn() -> Vec<u32> + Send>;

/// Asks the processes on devices for what they serve, and returns what those of one device served.
/// Called with `None` at the begin of a tick.
pub type ServedValues = Box<dyn FnMut(Option<&GpuInfo>) -> Vec<WireValue> + Send>;

/// Completes a device's identity by a library beside the files, if it lacks what the library has. Writes to
/// the note why there is nothing, if the library is at fault.
pub type CompleteIdentity = Box<dyn FnMut(&GpuInfo, &mut String) -> Option<GpuInfo> + Send>;

/// Lookups that readings need.
pub(super) struct ReaderContext {
    pub(super) inventory: Arc<Inventory>,
    pub(super) identify: Identify,
    pub(super) nodes: OpenNodes,
    pub(super) openers: NodeOpeners,
    /// Whether readings list the processes on a device.
    pub(super) lists_processes: bool,
    /// Values that the processes on a device serve themselves.
    pub(super) served: ServedValues,
    /// Asks the library beside the files.
    pub(super) complete: CompleteIdentity,
}

/// The state and the reason of a device that does not answer.
#[derive(Clone, Debug)]
pub(super) struct Unavailable {
    pub(super) state: DeviceState,
    pub(super) why: String,
}

/// Every device of a reader.
pub(super) struct DeviceStates {
    vendor: &'static Vendor,
    by_gpu: BTreeMap<GpuId, DeviceRow>,
    /// Devices by position in the library's order, once identified.
    slots: BTreeMap<u32, GpuId>,
    /// Positions of devices without identity, and why.
    unnamed: BTreeMap<u32, Unavailable>,
    /// Processes left out of this tick's readings, because their PID could not be resolved.
    pub(super) unidentified: usize,
    /// The nodes of partitions, read when the set of partitions changes.
    partitions: Arc<PartitionNodes>,
    paths: Paths,
    /// The device store's generation at the last load.
    generation: Option<u64>,
}

impl DeviceStates {
    /// Starts without devices.
    pub(super) fn new(vendor: &'static Vendor, paths: &Paths) -> Self {
        Self {
            vendor,
            by_gpu: BTreeMap::new(),
            slots: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            unidentified: 0,
            partitions: Arc::default(),
            paths: paths.clone(),
            generation: None,
        }
    }

    /// Clears the last tick.
    pub(super) fn begin(&mut self) {
        self.unidentified = 0;
        for row in self.by_gpu.values_mut() {
            row.samples.clear();
            row.counters = None;
            row.settled = false;
        }
    }

    /// Drops the positions: a newly loaded library has its own order of devices.
    pub(super) fn reset_slots(&mut self) {
        self.slots.clear();
        self.unnamed.clear();
    }

    /// Sets the state of a device that did not answer this tick.
    pub(super) fn mark_hung(&mut self, slot: u32, unavailable: Unavailable) {
        let row = self.slots.get(&slot).and_then(|gpu| self.by_gpu.get_mut(gpu));
        match row {
            Some(row) => row.set(unavailable.state, &unavailable.why),
            None => {
                self.unnamed.insert(slot, unavailable);
            }
        }
    }

    /// Sets the state of every device that has none in this tick.
    pub(super) fn mark_rest(&mut self, state: DeviceState, reason: &str) {
        for row in self.by_gpu.values_mut().filter(|row| !row.settled) {
            row.set(state, reason);
        }
    }

    /// Sets the state of every known device that is at no position now.
    pub(super) fn mark_missing(&mut self, inventory: &Inventory) {
        let listed: BTreeSet<GpuId> = self.slots.values().copied().collect();
        let known = inventory.register().known(self.vendor.name);
        for (gpu, row) in self.by_gpu.iter_mut().filter(|(gpu, _)| !listed.contains(gpu)) {
            if row.settled {
                continue;
            }
            let info = inventory.get(*gpu);
            let index = info.as_ref().map_or(u32::MAX, |info| info.index);
            let unnamed = self.unnamed.get(&index).or_else(|| self.unnamed.values().next());
            let known =
                known.iter().find(|known| info.as_ref().is_some_and(|i| i.uuid == known.uuid));
            let unavailable = absence(known, self.vendor.nodes.drivers, unnamed, &self.paths);
            row.set(unavailable.state, &unavailable.why);
        }
    }

    /// The device at a position, once identified.
    pub(super) fn at(&self, slot: u32) -> Option<GpuId> {
        self.slots.get(&slot).copied()
    }

    /// Takes a reading. A late one adds its values, with their own time, but does not change the
    /// device's current state. Returns the device, if it is identified.
    pub(super) fn take(
        &mut self,
        slot: u32,
        reading: &Reading,
        timely: bool,
        context: &ReaderContext,
    ) -> Option<GpuId> {
        let time = UNIX_EPOCH + Duration::from_nanos(reading.time_ns);
        let reported = reading.identity.clone().map(|info| {
            let info = context.inventory.register().same(info);
            context.inventory.register().identified(&info, time);
            context.inventory.put(info)
        });
        let Some(gpu) = reported.or_else(|| self.slots.get(&slot).copied()) else {
            let (state, why) = (state(&reading.outcome), why(&reading.outcome).to_owned());
            self.unnamed.insert(slot, Unavailable { state, why });
            return None;
        };
        self.unnamed.remove(&slot);
        self.slots.insert(slot, gpu);
        let row = self.by_gpu.entry(gpu).or_insert_with(|| DeviceRow::new(gpu));
        if reading.outcome == Outcome::Ok {
            let changed = row.update_instances(&reading.instances, &context.inventory);
            if changed {
                self.partitions = Arc::new((self.vendor.nodes.partition_nodes)(&self.paths));
            }
            self.unidentified += row.fill(reading, context, &self.partitions);
            if let Some(info) = context.inventory.get(gpu) {
                context.inventory.register().seen(&info.uuid, time);
                context.inventory.register().linked(&info.uuid, link(&reading.values));
            }
        }
        if timely {
            row.set(state(&reading.outcome), why(&reading.outcome));
        }
        Some(gpu)
    }

    /// Adds the stored devices and removes those that were removed from the store. Returns early if
    /// the store has not changed.
    pub(super) fn load_known(&mut self, inventory: &Inventory) {
        let register = inventory.register();
        let generation = Some(register.generation());
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        let listed: BTreeSet<GpuId> = self.slots.values().copied().collect();
        self.by_gpu.retain(|gpu, _| {
            let info = || inventory.get(*gpu);
            listed.contains(gpu) || info().is_some_and(|info| register.knows(&info.uuid))
        });
        for known in register.known(self.vendor.name) {
            let gpu = inventory.find(&known.uuid).unwrap_or_else(|| inventory.put((&known).into()));
            self.by_gpu.entry(gpu).or_insert_with(|| {
                let mut row = DeviceRow::new(gpu);
                row.last_good_ns = Some(on_boot_clock(known.last_seen));
                row
            });
        }
    }

    /// Moves all samples into the batch.
    pub(super) fn emit(&mut self, out: &mut Batch) {
        let now = boot_time_ns().cast_signed();
        let of_row = |row: &DeviceRow| row.samples.len() + DeviceState::ALL.len() + 2;
        out.samples.reserve_exact(self.by_gpu.values().map(of_row).sum());
        for (&gpu, row) in &mut self.by_gpu {
            let current = row.snapshot.state;
            for &state in DeviceState::ALL {
                out.push(metric::STATE.sample(gpu, state, i64::from(state == current)));
            }
            if let Some(up) = up(current) {
                out.push(metric::UP.sample(gpu, (), i64::from(up)));
            }
            let since = |at: i64| now.saturating_sub(at).max(0).unsigned_abs();
            let age = row.last_good_ns.map(|at| Duration::from_nanos(since(at)));
            row.snapshot.age = age;
            if let Some(age) = age {
                out.push(metric::READ_AGE.sample(gpu, (), age.as_secs_f64()));
            }
            if row.samples.is_empty() {
                // An operator who searches for the board needs its address and serial number.
                out.push(metric::INFO.sample(gpu, (), 1));
            }
            // Without its buffer, which would take as much as the batch until the next tick.
            out.samples.extend(std::mem::take(&mut row.samples));
        }
    }

    /// The devices as last read.
    pub(super) fn snapshots(&self) -> Vec<DeviceSnapshot> {
        self.by_gpu.values().map(|row| row.snapshot.clone()).collect()
    }

    /// The partitions that device nodes open.
    pub(super) fn partitions(&self) -> Arc<PartitionNodes> {
        Arc::clone(&self.partitions)
    }

    /// How many devices are in a state.
    pub(super) fn count(&self, state: DeviceState) -> usize {
        self.by_gpu.values().filter(|row| row.snapshot.state == state).count()
    }

    /// One clause for each device that has a problem, for the status.
    pub(super) fn problems(&self, inventory: &Inventory) -> Vec<String> {
        let mut problems = Vec::new();
        for (slot, gpu) in &self.slots {
            let Some(row) = self.by_gpu.get(gpu) else { continue };
            let DeviceSnapshot { state, reason, .. } = &row.snapshot;
            if *state != DeviceState::Ok {
                problems.push(format!("device {slot} is {}: {reason}", state.as_str()));
            }
        }
        for (slot, unavailable) in &self.unnamed {
            problems.push(format!("device {slot} has no identity: {}", unavailable.why));
        }
        let listed: BTreeSet<GpuId> = self.slots.values().copied().collect();
        let is_gone = |row: &&DeviceRow| {
            row.snapshot.state == DeviceState::Missing && !listed.contains(&row.snapshot.gpu)
        };
        for row in self.by_gpu.values().filter(is_gone) {
            if let Some(info) = inventory.get(row.snapshot.gpu) {
                problems.push(format!("{} is missing: {}", info.uuid, row.snapshot.reason));
            }
        }
        problems
    }

    /// One clause for each working device without its performance counters, and one for each thing
    /// that is missing of devices.
    pub(super) fn remarks(&self) -> Vec<String> {
        let remarks = self.slots.iter().filter_map(|(slot, gpu)| {
            let why = match self.by_gpu.get(gpu)?.counters? {
                CounterState::Busy => "another program, a profiler perhaps, has them",
                CounterState::Forbidden => "this user may not read them",
                CounterState::Failing => "reading them failed",
                CounterState::Ok | CounterState::Waiting | CounterState::Unsupported => {
                    return None;
                }
            };
            Some(format!("device {slot} has no performance counters now: {why}"))
        });
        let notes = self.by_gpu.values().filter(|row| row.snapshot.state == DeviceState::Ok);
        let notes: BTreeSet<&str> = notes.map(|row| row.note.as_str()).collect();
        let notes = notes.into_iter().filter(|note| !note.is_empty()).map(str::to_owned);
        remarks.chain(notes).collect()
    }

    /// Whether any device answers.
    pub(super) fn any_ok(&self) -> bool {
        self.count(DeviceState::Ok) > 0
    }
}

/// Whether a device in a state is up; `None` if it is not expected to answer.
fn up(state: DeviceState) -> Option<bool> {
    match state {
        DeviceState::Ok => Some(true),
        DeviceState::Released | DeviceState::Replaced => None,
        DeviceState::Lost
        | DeviceState::Hung
        | DeviceState::Failing
        | DeviceState::Missing
        | DeviceState::NoDriver => Some(false),
    }
}

/// The lanes and the generation of the PCIe link in a reading.
fn link(values: &[WireValue]) -> BestLink {
    let of = |metric| values.iter().find_map(|value| value.int(metric, ()));
    [of(&wear::PCIE_WIDTH), of(&wear::PCIE_GENERATION)]
}

/// Converts seconds since the epoch to nanoseconds on the boot clock; negative if before the boot.
fn on_boot_clock(seconds: u64) -> i64 {
    let then = UNIX_EPOCH + Duration::from_secs(seconds);
    let ago = SystemTime::now().duration_since(then).unwrap_or_default();
    let ago = i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX);
    boot_time_ns().cast_signed().saturating_sub(ago)
}

fn state(outcome: &Outcome) -> DeviceState {
    match outcome {
        Outcome::Ok => DeviceState::Ok,
        Outcome::Lost(_) | Outcome::DriverGone(_) => DeviceState::Lost,
        Outcome::Failing(_) => DeviceState::Failing,
    }
}

fn why(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Ok => "",
        Outcome::Lost(why) | Outcome::Failing(why) | Outcome::DriverGone(why) => why,
    }
}
