//! Finds the rules' inputs among the samples of a batch: one look-up by the metric's index for each
//! sample, nothing for samples that are not about a device.

use super::device::Vital;
use super::rules::{Input, RULES, Signal};
use gpuwho_model::catalog::device::{self, Clock, DeviceState, Sensor, Task};
use gpuwho_model::catalog::{self, DimIndexes, MetricDef, NO_DIM, OneDim as _, share};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Batch, Sample, Subject, Value};
use std::ops::Range;

/// What a sample is, besides a rule's input.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// The value of a rule's input.
    Input(usize),
    Answers,
    Replaced,
    Busy,
    Energy,
    Temperature,
    Clock,
    OtherClock,
}

/// Which samples are wanted.
#[derive(Debug)]
pub(super) struct Index {
    /// By the metric's index in the catalogue: the wanted dimensions and their roles.
    wanted: Vec<Vec<(DimIndexes, Role)>>,
    /// Where each rule's inputs are.
    pub(super) places: Vec<Range<usize>>,
    count: usize,
}

/// A device's part of a batch.
#[derive(Debug)]
pub(super) struct DeviceReadings {
    pub(super) gpu: GpuId,
    pub(super) vital: Vital,
    pub(super) values: Vec<Option<f64>>,
    /// The clock that shows how fast it is.
    pub(super) clock: Option<f64>,
    other_clock: Option<f64>,
    /// Who has processes on it, sorted.
    pub(super) owners: Vec<OwnerId>,
}

impl Index {
    pub(super) fn new() -> Self {
        let mut index =
            Self { wanted: Vec::new(), places: Vec::with_capacity(RULES.len()), count: 0 };
        for rule in RULES {
            let from = index.count;
            match rule.signal {
                Signal::Value(all)
                | Signal::Increase(all, _)
                | Signal::MostIncrease(all, _)
                | Signal::Loss(all) => {
                    for input in all {
                        index.input(*input);
                    }
                }
                Signal::Link(value, _) => index.input(value),
                Signal::Ramp(_) | Signal::Peers | Signal::Event(_) => {}
            }
            index.places.push(from..index.count);
        }
        let of = |dim: u8| [dim, NO_DIM];
        index.want(device::STATE.def(), of(DeviceState::Ok.index()), Role::Answers);
        index.want(device::STATE.def(), of(DeviceState::Replaced.index()), Role::Replaced);
        index.want(device::UTILIZATION.def(), of(Task::General.index()), Role::Busy);
        index.want(device::ENERGY.def(), [NO_DIM; 2], Role::Energy);
        index.want(device::TEMPERATURE.def(), of(Sensor::Gpu.index()), Role::Temperature);
        index.want(device::CLOCK_SPEED.def(), of(Clock::Sm.index()), Role::Clock);
        index.want(device::CLOCK_SPEED.def(), of(Clock::Graphics.index()), Role::OtherClock);
        index
    }

    fn input(&mut self, input: Input) {
        let place = self.count;
        self.count += 1;
        self.want(input.metric, input.dims, Role::Input(place));
    }

    fn want(&mut self, metric: &'static MetricDef, dims: DimIndexes, role: Role) {
        let at = usize::from(catalog::index_of(metric));
        if self.wanted.len() <= at {
            self.wanted.resize_with(at + 1, Vec::new);
        }
        if let Some(wanted) = self.wanted.get_mut(at) {
            wanted.push((dims, role));
        }
    }

    /// Puts the readings of each device in a batch into `out`, whose old ones go to `spare` and are
    /// used again.
    pub(super) fn read(&self, batch: &Batch, [out, spare]: [&mut Vec<DeviceReadings>; 2]) {
        spare.append(out);
        for (_, sample) in &batch.samples {
            match sample.subject {
                Subject::Gpu(gpu) => {
                    let at = usize::from(catalog::index_of(sample.metric));
                    let wanted = self.wanted.get(at).map_or(&[][..], Vec::as_slice);
                    if let (false, Some(value)) = (wanted.is_empty(), number(sample)) {
                        let take = |on: &mut DeviceReadings| on.take(wanted, sample.dims, value);
                        self.of(gpu, [&mut *out, &mut *spare], take);
                    }
                }
                Subject::GpuOwner(on)
                    if *sample.metric == *share::OWNER_PROCESSES.def()
                        && number(sample).is_some_and(|count| count > 0.0) =>
                {
                    let add = |of: &mut DeviceReadings| of.owners.push(on.owner);
                    self.of(on.gpu, [&mut *out, &mut *spare], add);
                }
                _ => {}
            }
        }
        for readings in out.iter_mut() {
            readings.owners.sort_unstable();
            readings.owners.dedup();
            readings.clock = readings.clock.or(readings.other_clock);
        }
    }

    /// Changes a device's readings. Samples of one device follow each other, so the last is tried
    /// first.
    fn of(
        &self,
        gpu: GpuId,
        [out, spare]: [&mut Vec<DeviceReadings>; 2],
        change: impl FnOnce(&mut DeviceReadings),
    ) {
        if let Some(known) = out.iter_mut().rev().find(|readings| readings.gpu == gpu) {
            return change(known);
        }
        let mut fresh = spare.pop().unwrap_or_else(|| DeviceReadings::new(gpu));
        fresh.clear(gpu, self.count);
        change(&mut fresh);
        out.push(fresh);
    }
}

impl DeviceReadings {
    fn new(gpu: GpuId) -> Self {
        Self {
            gpu,
            vital: Vital::default(),
            values: Vec::new(),
            clock: None,
            other_clock: None,
            owners: Vec::new(),
        }
    }

    fn clear(&mut self, gpu: GpuId, inputs: usize) {
        self.gpu = gpu;
        self.vital = Vital::default();
        self.values.clear();
        self.values.resize(inputs, None);
        (self.clock, self.other_clock) = (None, None);
        self.owners.clear();
    }

    fn take(&mut self, wanted: &[(DimIndexes, Role)], dims: DimIndexes, value: f64) {
        for (of, role) in wanted {
            if *of != dims && of[0] != NO_DIM {
                continue;
            }
            match role {
                Role::Input(place) => {
                    if let Some(slot) = self.values.get_mut(*place) {
                        *slot = Some(slot.unwrap_or(0.0) + value);
                    }
                }
                Role::Answers => self.vital.answers = Some(value > 0.0),
                Role::Replaced => self.vital.is_replaced = value > 0.0,
                Role::Busy => self.vital.busy = Some(value),
                Role::Energy => self.vital.energy = Some(value),
                Role::Temperature => self.vital.temperature = Some(value),
                Role::Clock => self.clock = Some(value),
                Role::OtherClock => self.other_clock = Some(value),
            }
        }
    }
}

/// A finite number.
fn number(sample: &Sample) -> Option<f64> {
    let value = match &sample.value {
        Value::Int(value) => *value as f64,
        Value::Double(value) => *value,
        Value::Histogram(_) => return None,
    };
    value.is_finite().then_some(value)
}
