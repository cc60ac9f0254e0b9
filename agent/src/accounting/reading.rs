//! What a batch says of each device, as the ledger needs it: whole numbers, and processes with
//! their parties. What is not a number or not plausible counts as not read.

use super::instances::Slice;
use crate::attribute::owner::OwnerId;
use crate::attribute::ownership::{Ownership, Version};
use crate::catalog::device::{self, MemoryState, Task};
use crate::catalog::process::{self, ProcessTask, ProcessType};
use crate::catalog::{Dims as _, MetricDef};
use crate::ids::{GpuId, InstanceId, ProcKey};
use crate::inventory::Inventory;
use crate::sample::{Batch, GpuProcess, Sample, Subject, Value};
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Parts of a whole in which fractions are counted.
pub(super) const WHOLE: u64 = 1_000_000_000;
/// Microjoules of a joule.
const MICRO: f64 = 1e6;

/// One device in one batch.
#[derive(Debug)]
pub(super) struct Reading {
    /// Which.
    pub(super) gpu: GpuId,
    /// When it was read; `None` if it was not.
    pub(super) at: Option<SystemTime>,
    /// Fraction of time it was busy, of [`WHOLE`]; none while MIG is on.
    pub(super) busy: Option<u64>,
    /// Bytes used.
    pub(super) memory: Option<u64>,
    /// Energy counter in microjoules.
    pub(super) energy: Option<u64>,
    /// Processes the driver lists, known or not.
    listed: usize,
    /// Those that are known by identity, and those it has samples of; one in several MIG instances
    /// once for each.
    pub(super) processes: Vec<OnDevice>,
    /// Those of its reading before, while nobody's party or end has changed since.
    before: Vec<OnDevice>,
    /// The table when they were taken.
    version: Version,
    /// Its MIG instances.
    pub(super) instances: Vec<Slice>,
}

/// A process on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    /// Who.
    pub(super) process: ProcKey,
    /// On whose account.
    pub(super) owner: OwnerId,
    /// The MIG instance it is in.
    pub(super) instance: Option<InstanceId>,
    /// It is here already, in another instance.
    again: bool,
    /// The MPS server, which works for others.
    pub(super) serves: bool,
    /// It has ended.
    pub(super) ended: bool,
    /// Bytes it holds, where the driver tells.
    pub(super) memory: Option<u64>,
    /// Fraction of time it kept multiprocessors busy, of [`WHOLE`]; `None` without a sample since
    /// the last reading.
    pub(super) sampled: Option<u64>,
}

impl OnDevice {
    /// The fraction, which is nothing without a sample.
    pub(super) fn busy(&self) -> u64 {
        self.sampled.unwrap_or(0)
    }
}

/// Who is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupancy {
    /// No process.
    Nobody,
    /// Only processes that nothing identifies.
    Strangers,
    /// Processes of one party, and no others.
    One(OwnerId),
    /// Several parties, or somebody nobody knows.
    Several,
}

impl Reading {
    fn new(gpu: GpuId) -> Self {
        Self {
            gpu,
            at: None,
            busy: None,
            memory: None,
            energy: None,
            listed: 0,
            processes: Vec::new(),
            before: Vec::new(),
            version: Version::default(),
            instances: Vec::new(),
        }
    }

    /// Processes the driver lists that nothing identifies.
    pub(super) fn unidentified(&self) -> usize {
        // An ended process of which there are samples is on no list: it has no memory, unless the
        // driver tells nobody's.
        let once = || self.processes.iter().filter(|on| !on.again);
        let told = once().filter(|on| on.memory.is_some()).count();
        let known = if told == 0 { once().count() } else { told };
        self.listed.saturating_sub(known)
    }

    /// Who is on it.
    pub(super) fn occupancy(&self) -> Occupancy {
        let mut owners = self.processes.iter().map(|on| on.owner);
        match (owners.next(), self.unidentified()) {
            (None, 0) => Occupancy::Nobody,
            (None, _) => Occupancy::Strangers,
            (Some(first), 0) if owners.all(|owner_id| owner_id == first) => Occupancy::One(first),
            _ => Occupancy::Several,
        }
    }

    /// What the driver's samples of all processes add up to.
    pub(super) fn sampled(&self) -> u64 {
        self.processes.iter().map(OnDevice::busy).sum()
    }

    /// Whether some of the samples are of work that an MPS server did for its clients.
    pub(super) fn is_served(&self) -> bool {
        self.processes.iter().any(|on| on.serves && on.busy() > 0)
    }

    /// Begins anew, with the table as it is now.
    fn clear(&mut self, gpu: GpuId, version: Version) {
        let mut processes = std::mem::take(&mut self.before);
        let mut before = std::mem::take(&mut self.processes);
        let mut instances = std::mem::take(&mut self.instances);
        processes.clear();
        instances.clear();
        if (self.gpu, self.version) != (gpu, version) {
            before.clear();
        }
        *self = Self { processes, before, version, instances, ..Self::new(gpu) };
    }

    /// A process that is not on it yet. In the steady state it has the place it had in the batch
    /// before, and nobody is looked up.
    fn put(&mut self, on: GpuProcess, again: bool, ownership: &Ownership) {
        let before = self.before.get(self.processes.len());
        let known = before.filter(|known| {
            known.process == on.process && known.instance == on.instance && known.again == again
        });
        self.processes.push(match known {
            Some(known) => OnDevice { serves: false, memory: None, sampled: None, ..*known },
            None => OnDevice::of(on, again, ownership),
        });
    }

    fn note(&mut self, metric: &'static MetricDef, sample: &Sample) {
        let is = |def: &'static MetricDef| std::ptr::eq(metric, def);
        if is(device::UTILIZATION.def()) && sample.dims == Task::General.indexes() {
            self.busy = fraction(&sample.value);
        } else if is(device::MEMORY_USAGE.def()) && sample.dims == MemoryState::Used.indexes() {
            self.memory = count(&sample.value);
        } else if is(device::ENERGY.def()) {
            self.energy = double(&sample.value).and_then(|joules| whole(joules * MICRO));
        } else if is(device::PROCESS_COUNT.def()) {
            let listed = count(&sample.value).unwrap_or(0);
            self.listed = usize::try_from(listed).unwrap_or(usize::MAX);
        }
    }
}

impl OnDevice {
    fn of(on: GpuProcess, again: bool, ownership: &Ownership) -> Self {
        let owner = ownership.attribution(on.process);
        Self {
            process: on.process,
            owner: owner.as_ref().map_or(OwnerId::UNATTRIBUTED, |owner| owner.owner),
            instance: on.instance,
            again,
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

/// The readings of one batch; the buffers are kept.
#[derive(Debug, Default)]
pub(super) struct Readings {
    devices: Vec<Reading>,
    /// How many of them this batch has.
    used: usize,
    by_gpu: HashMap<GpuId, usize>,
    by_process: HashMap<GpuProcess, (usize, usize)>,
    people: HashSet<(GpuId, ProcKey)>,
    /// The table now.
    version: Version,
}

impl Readings {
    /// Takes everything about devices out of a batch.
    pub(super) fn take(&mut self, batch: &Batch, ownership: &Ownership, inventory: &Inventory) {
        self.used = 0;
        self.by_gpu.clear();
        self.by_process.clear();
        self.people.clear();
        // Before any lookup: what changes meanwhile makes the next batch look again.
        self.version = ownership.version();
        // A subject's samples come one after the other.
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
        let told = samples.iter().filter(|(_, sample)| !is_about_reading(sample.metric));
        for (time, sample) in told {
            reading.at = Some(*time);
            reading.note(sample.metric, sample);
        }
    }

    fn process(&mut self, on: GpuProcess, samples: &[(SystemTime, Sample)], ownership: &Ownership) {
        let known = self.by_process.get(&on).copied();
        let (device, place) = known.unwrap_or_else(|| {
            let device = self.place(on.gpu);
            let again = !self.people.insert((on.gpu, on.process));
            let place = self.devices.get_mut(device).map_or(0, |reading| {
                reading.put(on, again, ownership);
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

    /// A device's place in this batch.
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

/// Whether a metric is about the reading of a device, sent also when it was not read.
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

/// The nearest whole number; `None` for what is negative, not a number, or beyond what a `f64`
/// counts one by one.
fn whole(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 2^53, and rounded"
    )]
    (0.0..=EXACT).contains(&value).then(|| value.round() as u64)
}
