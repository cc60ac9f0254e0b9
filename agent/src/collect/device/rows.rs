//! What the agent knows of each device of one reader: turns readings into samples, and keeps the
//! status and the age of every device going whatever happens to it.

use super::snapshot::{DeviceSnapshot, ProcessSnapshot};
use super::wire::{Outcome, Reading, WireValue};
use crate::catalog::device::{self as metric, DeviceState, MemoryState, Sensor, Task};
use crate::catalog::process::{self as process_metric, ProcessTask, ProcessType};
use crate::host::boot_time_ns;
use crate::ids::{GpuId, ProcKey};
use crate::inventory::Inventory;
use crate::sample::{Batch, GpuProcess, Sample, Subject};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells who a PID is that the driver named at a moment of `CLOCK_BOOTTIME` in nanoseconds.
pub type Identify = Box<dyn Fn(u32, u64) -> Option<ProcKey> + Send>;

/// Every state, in the catalogue's order.
const STATES: [DeviceState; 5] = [
    DeviceState::Ok,
    DeviceState::Lost,
    DeviceState::Hung,
    DeviceState::Failing,
    DeviceState::Released,
];

/// Every device of a reader by its position in the library's order.
#[derive(Default)]
pub(super) struct Rows {
    by_slot: BTreeMap<u32, Row>,
    /// Devices that never told their identity, and why.
    unnamed: BTreeMap<u32, String>,
    /// Processes left out of the last readings, because nothing says who they are.
    pub(super) unidentified: usize,
}

struct Row {
    snapshot: DeviceSnapshot,
    last_good_ns: Option<u64>,
    samples: Vec<(SystemTime, Sample)>,
}

impl Rows {
    /// Forgets what the last tick read. `state` holds for every device until it answers.
    pub(super) fn begin(&mut self, state: DeviceState, reason: &str) {
        self.unidentified = 0;
        for row in self.by_slot.values_mut() {
            row.samples.clear();
            row.set(state, reason);
        }
    }

    /// Sets the state of devices that did not answer this tick.
    pub(super) fn silent(&mut self, slot: u32, state: DeviceState, reason: &str) {
        match self.by_slot.get_mut(&slot) {
            Some(row) => row.set(state, reason),
            None => {
                self.unnamed.insert(slot, reason.to_owned());
            }
        }
    }

    /// Takes a reading. One that answers an earlier tick brings its values, with their own time,
    /// but says nothing about how the device is now.
    pub(super) fn take(
        &mut self,
        slot: u32,
        reading: &Reading,
        timely: bool,
        (inventory, identify): (&Inventory, &Identify),
    ) {
        let known = self.by_slot.get(&slot).map(|row| row.snapshot.gpu);
        let gpu = reading.identity.clone().map(|info| inventory.put(info)).or(known);
        let Some(gpu) = gpu else {
            self.unnamed.insert(slot, why(&reading.outcome).to_owned());
            return;
        };
        self.unnamed.remove(&slot);
        let row = self.by_slot.entry(slot).or_insert_with(|| Row::new(gpu));
        row.snapshot.gpu = gpu;
        if reading.outcome == Outcome::Ok {
            self.unidentified += row.fill(reading, identify);
        }
        if timely {
            row.set(state(&reading.outcome), why(&reading.outcome));
        }
    }

    /// Moves everything into the batch.
    pub(super) fn emit(&mut self, out: &mut Batch) {
        let now = boot_time_ns();
        for row in self.by_slot.values_mut() {
            let gpu = row.snapshot.gpu;
            for state in STATES {
                let on = i64::from(state == row.snapshot.state);
                out.push(metric::STATE.sample(gpu, state, on));
            }
            let age = row.last_good_ns.map(|at| Duration::from_nanos(now.saturating_sub(at)));
            row.snapshot.age = age;
            if let Some(age) = age {
                out.push(metric::READ_AGE.sample(gpu, (), age.as_secs_f64()));
            }
            out.samples.append(&mut row.samples);
        }
    }

    /// What the last tick showed.
    pub(super) fn snapshots(&self) -> Vec<DeviceSnapshot> {
        self.by_slot.values().map(|row| row.snapshot.clone()).collect()
    }

    /// How many devices are in a state, and how many there are.
    pub(super) fn count(&self, state: DeviceState) -> usize {
        self.by_slot.values().filter(|row| row.snapshot.state == state).count()
    }

    /// One clause for each device that is not well, for a person to read.
    pub(super) fn troubles(&self) -> Vec<String> {
        let named = self.by_slot.iter().filter(|(_, row)| row.snapshot.state != DeviceState::Ok);
        let named = named.map(|(slot, row)| {
            let word = match row.snapshot.state {
                DeviceState::Ok => "ok",
                DeviceState::Lost => "lost",
                DeviceState::Hung => "hung",
                DeviceState::Failing => "failing",
                DeviceState::Released => "released",
            };
            format!("device {slot} is {word}: {}", row.snapshot.reason)
        });
        let unnamed = self.unnamed.iter();
        named
            .chain(unnamed.map(|(slot, why)| format!("device {slot} has no identity: {why}")))
            .collect()
    }

    /// Whether any device answers.
    pub(super) fn any_ok(&self) -> bool {
        self.count(DeviceState::Ok) > 0
    }
}

impl Row {
    fn new(gpu: GpuId) -> Self {
        let snapshot = DeviceSnapshot {
            gpu,
            state: DeviceState::Ok,
            reason: String::new(),
            age: None,
            utilization: None,
            memory_used: None,
            memory_limit: None,
            power: None,
            temperature: None,
            processes: Vec::new(),
        };
        Self { snapshot, last_good_ns: None, samples: Vec::new() }
    }

    fn set(&mut self, state: DeviceState, reason: &str) {
        self.snapshot.state = state;
        reason.clone_into(&mut self.snapshot.reason);
    }

    /// Turns a good reading into samples; gives the number of processes nobody knows.
    fn fill(&mut self, reading: &Reading, identify: &Identify) -> usize {
        let time = UNIX_EPOCH + Duration::from_nanos(reading.time_ns);
        self.last_good_ns = Some(reading.asked_ns);
        self.samples.clear();
        let gpu = self.snapshot.gpu;
        self.samples
            .extend(reading.values.iter().filter_map(|value| sampled(time, gpu.into(), value)));
        self.summarise(&reading.values);
        let mut processes: BTreeMap<u32, ProcessSnapshot> = BTreeMap::new();
        for (pid, value) in &reading.processes {
            let known = processes.entry(*pid).or_insert_with(|| {
                let process = identify(*pid, reading.asked_ns);
                ProcessSnapshot { pid: *pid, process, ..ProcessSnapshot::default() }
            });
            known.note(value);
            if let Some(process) = known.process {
                let subject = GpuProcess { gpu, process }.into();
                self.samples.extend(sampled(time, subject, value));
            }
        }
        let identified = processes.values().filter_map(|process| process.process);
        self.samples.extend(identified.map(|process| {
            (time, process_metric::INFO.sample(GpuProcess { gpu, process }, (), 1))
        }));
        self.snapshot.processes = processes.into_values().collect();
        self.snapshot.processes.iter().filter(|process| process.process.is_none()).count()
    }

    fn summarise(&mut self, values: &[WireValue]) {
        let snapshot = &mut self.snapshot;
        let int = |metric, dims| values.iter().find_map(|value| value.int(metric, dims));
        snapshot.utilization =
            values.iter().find_map(|value| value.double(&metric::UTILIZATION, Task::General));
        snapshot.memory_used = int(&metric::MEMORY_USAGE, MemoryState::Used);
        snapshot.memory_limit =
            values.iter().find_map(|value| value.int(&metric::MEMORY_LIMIT, ()));
        snapshot.power = values.iter().find_map(|value| value.double(&metric::POWER, ()));
        snapshot.temperature =
            values.iter().find_map(|value| value.double(&metric::TEMPERATURE, Sensor::Gpu));
    }
}

impl ProcessSnapshot {
    fn note(&mut self, value: &WireValue) {
        for list in [ProcessType::Compute, ProcessType::Graphics] {
            let memory = value.int(&process_metric::MEMORY_USAGE, list);
            self.memory = memory.map(|more| self.memory.unwrap_or(0) + more).or(self.memory);
        }
        let busy = value.double(&process_metric::UTILIZATION, ProcessTask::Sm);
        self.utilization = busy.or(self.utilization);
    }
}

/// A value as a sample; parent and child are one build, so the catalogue knows every one.
fn sampled(time: SystemTime, subject: Subject, value: &WireValue) -> Option<(SystemTime, Sample)> {
    let (metric, dims, value) = (value.metric()?, value.dims(), value.value());
    Some((time, Sample { metric, subject, dims, value }))
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
