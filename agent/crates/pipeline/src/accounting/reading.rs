//! Extracts each device's values from a batch, as the accounting needs them: whole numbers, and
//! processes with their owners. A value that is not a number or out of range counts as not read.

use super::instances::Slice;
use super::only_owner;
use gpuwho_model::catalog::device::{self, MemoryState, Task};
use gpuwho_model::catalog::process::{self, ProcessTask, ProcessType};
use gpuwho_model::catalog::{Dims as _, MetricDef};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, InstanceId, ProcKey};
use gpuwho_model::sample::{Batch, GpuProcess, Sample, Subject, Value};
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::inventory::Inventory;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Fractions are counted in this many parts.
pub(super) const WHOLE: u64 = 1_000_000_000;
/// Microjoules in a joule, and microwatts in a watt.
const MICRO: f64 = 1e6;

/// One device in one batch.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) gpu: GpuId,
    /// When it was read; `None` if this batch has no reading of it.
    pub(super) at: Option<SystemTime>,
    /// Busy fraction, of [`WHOLE`]; `None` in MIG mode. AMD's driver has it of partitioned devices too.
    pub(super) busy: Option<u64>,
    /// Bytes used.
    pub(super) memory: Option<u64>,
    /// Power drawn, in microwatts.
    pub(super) power: Option<u64>,
    /// The energy counter in microjoules.
    pub(super) energy: Option<u64>,
    /// The number of processes on the driver's list, identified or not.
    listed: usize,
    /// Identified processes: those on the list and those with samples. A process in several MIG
    /// instances has one entry for each.
    pub(super) processes: Vec<OnDevice>,
    /// Entries of the previous reading, valid while the ownership table's version is the same.
    previous: Vec<OnDevice>,
    /// The ownership table's version when the entries were made.
    version: Version,
    /// The device's MIG instances, or AMD's partitions of it.
    pub(super) instances: Vec<Slice>,
}

/// A process on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    pub(super) process: ProcKey,
    pub(super) owner: OwnerId,
    /// The MIG instance it is in, if the driver reports one.
    pub(super) instance: Option<InstanceId>,
    /// Whether an earlier entry is of the same process in another instance.
    repeated: bool,
    /// Whether it is the MPS server, which works for its clients.
    pub(super) serves: bool,
    /// Whether it has exited.
    pub(super) ended: bool,
    /// Bytes it holds, if the driver reports them.
    pub(super) memory: Option<u64>,
    /// Fraction of time it used the multiprocessors, of [`WHOLE`]; `None` without a sample since
    /// the last reading.
    pub(super) sampled: Option<u64>,
}

impl OnDevice {
    /// The sampled fraction, or 0 without a sample.
    pub(super) fn busy(&self) -> u64 {
        self.sampled.unwrap_or(0)
    }
}

/// Which owners have processes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupancy {
    /// No process.
    Idle,
    /// Only unidentified processes.
    Unidentified,
    /// Only processes of one owner.
    One(OwnerId),
    /// Processes of several owners, or of one and unidentified ones.
    Several,
}

impl Reading {
    fn new(gpu: GpuId) -> Self {
        Self {
            gpu,
            at: None,
            busy: None,
            memory: None,
            power: None,
            energy: None,
            listed: 0,
            processes: Vec::new(),
            previous: Vec::new(),
            version: Version::default(),
            instances: Vec::new(),
        }
    }

    /// The number of processes on the driver's list without an identified process.
    pub(super) fn unidentified(&self) -> usize {
        // An exited process with samples is not on the list. It has no memory value, so processes
        // with one count, unless the driver reports none for any process.
        let once = || self.processes.iter().filter(|on| !on.repeated);
        let with_memory = once().filter(|on| on.memory.is_some()).count();
        let known = if with_memory == 0 { once().count() } else { with_memory };
        self.listed.saturating_sub(known)
    }

    /// Which owners have processes on it.
    pub(super) fn occupancy(&self) -> Occupancy {
        let (unidentified, owners) =
            (self.unidentified(), self.processes.iter().map(|on| on.owner));
        match (only_owner(owners, unidentified), self.processes.len(), unidentified) {
            (Some(owner), ..) => Occupancy::One(owner),
            (None, 0, 0) => Occupancy::Idle,
            (None, 0, _) => Occupancy::Unidentified,
            _ => Occupancy::Several,
        }
    }

    /// The sum of the driver's samples of all processes.
    pub(super) fn sampled(&self) -> u64 {
        self.processes.iter().map(OnDevice::busy).sum()
    }

    /// Whether a sample covers work that an MPS server did for its clients.
    pub(super) fn is_served(&self) -> bool {
        self.processes.iter().any(|on| on.serves && on.busy() > 0)
    }

    /// Starts a new reading at this version of the ownership table.
    fn clear(&mut self, gpu: GpuId, version: Version) {
        let mut processes = std::mem::take(&mut self.previous);
        let mut previous = std::mem::take(&mut self.processes);
        let mut instances = std::mem::take(&mut self.instances);
        processes.clear();
        instances.clear();
        if (self.gpu, self.version) != (gpu, version) {
            previous.clear();
        }
        *self = Self { processes, previous, version, instances, ..Self::new(gpu) };
    }

    /// Adds a process. In the steady state it is at the same index as in the previous reading, and
    /// its owner is not looked up again.
    fn put(&mut self, on: GpuProcess, repeated: bool, ownership: &Ownership) {
        let previous = self.previous.get(self.processes.len());
        let known = previous.filter(|known| {
            known.process == on.process
                && known.instance == on.instance
                && known.repeated == repeated
        });
        self.processes.push(match known {
            Some(known) => OnDevice { serves: false, memory: None, sampled: None, ..*known },
            None => OnDevice::of(on, repeated, ownership),
        });
    }

    fn note(&mut self, metric: &'static MetricDef, sample: &Sample) {
        let is = |def: &'static MetricDef| std::ptr::eq(metric, def);
        if is(device::UTILIZATION.def()) && sample.dims == Task::General.indexes() {
            self.busy = fraction(&sample.value);
        } else if is(device::MEMORY_USAGE.def()) && sample.dims == MemoryState::Used.indexes() {
            self.memory = count(&sample.value);
        } else if is(device::POWER.def()) {
            self.power = double(&sample.value).and_then(|watts| whole(watts * MICRO));
        } else if is(device::ENERGY.def()) {
            self.energy = double(&sample.value).and_then(|joules| whole(joules * MICRO));
        } else if is(device::PROCESS_COUNT.def()) {
            let listed = count(&sample.value).unwrap_or(0);
            self.listed = usize::try_from(listed).unwrap_or(usize::MAX);
        }
    }
}

impl OnDevice {
    fn of(on: GpuProcess, repeated: bool, ownership: &Ownership) -> Self {
        let owner = ownership.attribution(on.process);
        Self {
            process: on.process,
            owner: owner.as_ref().map_or(OwnerId::UNATTRIBUTED, |owner| owner.owner),
            instance: on.instance,
            repeated,
            serves: false,
            ended: owner.is_some_and(|owner| owner.exited_ns.is_some()),
            memory: None,
            sampled: None,
        }
    }

    fn note(&mut self, metric: &'static MetricDef, sample: &Sample) {
        if std::ptr::eq(metric, process::MEMORY_USAGE.def()) {
            self.memory = count(&sample.value);
            self.serves = sample.dims == ProcessType::MpsServer.indexes();
        } else if std::ptr::eq(metric, process::UTILIZATION.def())
            && sample.dims == ProcessTask::Sm.indexes()
        {
            self.sampled = fraction(&sample.value);
        }
    }
}

/// The readings of one batch; buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Readings {
    devices: Vec<Reading>,
    /// How many of `devices` this batch uses.
    used: usize,
    by_gpu: HashMap<GpuId, usize>,
    by_process: HashMap<GpuProcess, (usize, usize)>,
    placed: HashSet<(GpuId, ProcKey)>,
    /// The current version of the ownership table.
    version: Version,
}

impl Readings {
    /// Reads all device, process and instance samples of a batch.
    pub(super) fn take(&mut self, batch: &Batch, ownership: &Ownership, inventory: &Inventory) {
        self.used = 0;
        self.by_gpu.clear();
        self.by_process.clear();
        self.placed.clear();
        // Read before any lookup: a change meanwhile invalidates the entries in the next batch.
        self.version = ownership.version();
        // A subject's samples are consecutive.
        for same in batch.samples.chunk_by(|(_, a), (_, b)| a.subject == b.subject) {
            let Some((_, first)) = same.first() else { continue };
            match first.subject {
                Subject::Gpu(gpu) => self.device(gpu, same),
                Subject::Process(on) => self.process(on, same, ownership),
                Subject::Instance(instance) => self.instance(instance, same, inventory),
                _ => {}
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Reading> {
        self.devices.iter_mut().take(self.used)
    }

    fn device(&mut self, gpu: GpuId, samples: &[(SystemTime, Sample)]) {
        let place = self.place(gpu);
        let Some(reading) = self.devices.get_mut(place) else { return };
        let values = samples.iter().filter(|(_, sample)| !is_about_reading(sample.metric));
        for (time, sample) in values {
            reading.at = Some(*time);
            reading.note(sample.metric, sample);
        }
    }

    fn process(&mut self, on: GpuProcess, samples: &[(SystemTime, Sample)], ownership: &Ownership) {
        let known = self.by_process.get(&on).copied();
        let (device, place) = known.unwrap_or_else(|| {
            let device = self.place(on.gpu);
            let repeated = !self.placed.insert((on.gpu, on.process));
            let place = self.devices.get_mut(device).map_or(0, |reading| {
                reading.put(on, repeated, ownership);
                reading.processes.len() - 1
            });
            self.by_process.insert(on, (device, place));
            (device, place)
        });
        let reading = self.devices.get_mut(device);
        if let Some(known) = reading.and_then(|reading| reading.processes.get_mut(place)) {
            for (_, sample) in samples {
                known.note(sample.metric, sample);
            }
        }
    }

    fn instance(
        &mut self,
        instance: InstanceId,
        samples: &[(SystemTime, Sample)],
        inventory: &Inventory,
    ) {
        let Some((gpu, slice)) = Slice::reported(instance, samples, inventory) else { return };
        let place = self.place(gpu);
        if let Some(reading) = self.devices.get_mut(place) {
            reading.instances.push(slice);
        }
    }

    /// The index of a device's reading in this batch.
    fn place(&mut self, gpu: GpuId) -> usize {
        let next = self.used;
        let place = *self.by_gpu.entry(gpu).or_insert(next);
        if place == next {
            self.used += 1;
            match self.devices.get_mut(place) {
                Some(reading) => reading.clear(gpu, self.version),
                None => self.devices.push(Reading { version: self.version, ..Reading::new(gpu) }),
            }
        }
        place
    }
}

/// Whether a metric describes the reading itself, and is also sent without one.
fn is_about_reading(metric: &'static MetricDef) -> bool {
    std::ptr::eq(metric, device::STATE.def()) || std::ptr::eq(metric, device::READ_AGE.def())
}

pub(super) fn fraction(value: &Value) -> Option<u64> {
    double(value).filter(|value| *value >= 0.0).and_then(|value| whole(value.min(1.0) * 1e9))
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Double(_) | Value::Histogram(_) => None,
    }
}

fn double(value: &Value) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::Int(_) | Value::Histogram(_) => None,
    }
}

/// The nearest whole number; `None` for a negative value, for NaN, and above 2^53, beyond which an
/// `f64` is not exact.
fn whole(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 2^53, and rounded"
    )]
    (0.0..=EXACT).contains(&value).then(|| value.round() as u64)
}
