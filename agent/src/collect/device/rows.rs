//! What the agent knows of each device of one reader: turns readings into samples, and keeps the
//! status and the age of every device going whatever happens to it.

use super::capabilities::Capabilities;
use super::snapshot::{DeviceSnapshot, InstanceSnapshot, ProcessSnapshot};
use super::wire::{InstanceReading, Outcome, Place, ProcessValue, Reading, WireValue};
use crate::catalog::device::{self as metric, DeviceState, MemoryState, Sensor, Task};
use crate::catalog::gpm::{self as gpm_metric, CounterState};
use crate::catalog::instance as instance_metric;
use crate::catalog::process::{self as process_metric, ProcessTask, ProcessType};
use crate::host::boot_time_ns;
use crate::ids::{GpuId, InstanceId, ProcKey};
use crate::inventory::{InstanceInfo, Inventory};
use crate::paths::Paths;
use crate::sample::{Batch, GpuProcess, Sample, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells who the PIDs are that the driver named at a moment of `CLOCK_BOOTTIME` in nanoseconds.
pub type Identify = Box<dyn Fn(&[u32], u64) -> BTreeMap<u32, ProcKey> + Send>;

/// Tells which device nodes a process was seen to open.
pub type HeldNodes = Box<dyn Fn(ProcKey) -> Vec<Arc<str>> + Send>;

/// What the agent knows beside the readings.
pub(super) struct Knows {
    pub(super) inventory: Arc<Inventory>,
    pub(super) identify: Identify,
    pub(super) nodes: HeldNodes,
}

/// Every state, in the catalogue's order.
const STATES: [DeviceState; 5] = [
    DeviceState::Ok,
    DeviceState::Lost,
    DeviceState::Hung,
    DeviceState::Failing,
    DeviceState::Released,
];

/// Every device of a reader by its position in the library's order.
pub(super) struct Rows {
    by_slot: BTreeMap<u32, Row>,
    /// Devices that never told their identity, and why.
    unnamed: BTreeMap<u32, String>,
    /// Processes left out of the last readings, because nothing says who they are.
    pub(super) unidentified: usize,
    /// The nodes of MIG instances, read when the set of instances changes.
    capabilities: Arc<Capabilities>,
    paths: Paths,
}

struct Row {
    snapshot: DeviceSnapshot,
    instances: BTreeMap<Place, InstanceId>,
    last_good_ns: Option<u64>,
    /// How its performance counters stand.
    counters: Option<CounterState>,
    samples: Vec<(SystemTime, Sample)>,
}

impl Rows {
    /// No device yet.
    pub(super) fn new(paths: &Paths) -> Self {
        Self {
            by_slot: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            unidentified: 0,
            capabilities: Arc::default(),
            paths: paths.clone(),
        }
    }

    /// Forgets what the last tick read. `state` holds for every device until it answers.
    pub(super) fn begin(&mut self, state: DeviceState, reason: &str) {
        self.unidentified = 0;
        for row in self.by_slot.values_mut() {
            row.samples.clear();
            row.counters = None;
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
    pub(super) fn take(&mut self, slot: u32, reading: &Reading, timely: bool, knows: &Knows) {
        let known = self.by_slot.get(&slot).map(|row| row.snapshot.gpu);
        let gpu = reading.identity.clone().map(|info| knows.inventory.put(info)).or(known);
        let Some(gpu) = gpu else {
            self.unnamed.insert(slot, why(&reading.outcome).to_owned());
            return;
        };
        self.unnamed.remove(&slot);
        let row = self.by_slot.entry(slot).or_insert_with(|| Row::new(gpu));
        row.snapshot.gpu = gpu;
        if reading.outcome == Outcome::Ok {
            let changed = row.recut(&reading.instances, &knows.inventory);
            if changed {
                self.capabilities = Arc::new(Capabilities::read(&self.paths));
            }
            self.unidentified += row.fill(reading, knows, &self.capabilities);
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

    /// What the nodes of MIG instances grant.
    pub(super) fn capabilities(&self) -> Arc<Capabilities> {
        Arc::clone(&self.capabilities)
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

    /// One clause for each device that is well but does not tell all it could.
    pub(super) fn remarks(&self) -> Vec<String> {
        let remarks = self.by_slot.iter().filter_map(|(slot, row)| {
            let why = match row.counters? {
                CounterState::Busy => "another program, a profiler perhaps, has them",
                CounterState::Forbidden => "this user may not read them",
                CounterState::Failing => "reading them failed",
                CounterState::Ok | CounterState::Waiting | CounterState::Unsupported => {
                    return None;
                }
            };
            Some(format!("device {slot} has no performance counters now: {why}"))
        });
        remarks.collect()
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
            instances: Vec::new(),
            processes: Vec::new(),
        };
        let instances = BTreeMap::new();
        Self { snapshot, instances, last_good_ns: None, counters: None, samples: Vec::new() }
    }

    fn set(&mut self, state: DeviceState, reason: &str) {
        self.snapshot.state = state;
        reason.clone_into(&mut self.snapshot.reason);
    }

    /// Takes the MIG instances there are now; true when they are not those of the last reading.
    fn recut(&mut self, now: &[InstanceReading], inventory: &Inventory) -> bool {
        let gpu = self.snapshot.gpu;
        let ids = now.iter().filter_map(|read| {
            let new = read.identity.clone().map(|identity| {
                inventory.put_instance(InstanceInfo {
                    uuid: identity.uuid,
                    gpu,
                    gpu_instance: read.place.gpu_instance,
                    compute_instance: read.place.compute_instance,
                    profile: identity.profile,
                    extent: identity.extent,
                })
            });
            Some((read.place, new.or_else(|| self.instances.get(&read.place).copied())?))
        });
        let instances = ids.collect();
        let changed = self.instances != instances;
        self.instances = instances;
        changed
    }

    /// Where a process is by the nodes it holds, for one of which the driver's list does not say.
    fn by_nodes(
        &self,
        process: ProcKey,
        knows: &Knows,
        capabilities: &Capabilities,
    ) -> Option<InstanceId> {
        if self.instances.is_empty() {
            return None;
        }
        let minor = knows.inventory.get(self.snapshot.gpu)?.minor?;
        let place = capabilities.only_instance_of(&(knows.nodes)(process), minor)?;
        self.snapshot.instance_at(place)
    }

    /// Turns a good reading into samples; gives the number of processes nobody knows.
    fn fill(&mut self, reading: &Reading, knows: &Knows, capabilities: &Capabilities) -> usize {
        let time = UNIX_EPOCH + Duration::from_nanos(reading.time_ns);
        self.last_good_ns = Some(reading.asked_ns);
        self.samples.clear();
        let gpu = self.snapshot.gpu;
        self.samples
            .extend(reading.values.iter().filter_map(|value| sampled(time, gpu.into(), value)));
        self.summarise(&reading.values);
        let is_in = |state: &&CounterState| {
            let on = |value: &WireValue| value.int(&gpm_metric::STATUS, **state) == Some(1);
            reading.values.iter().any(on)
        };
        self.counters = CounterState::ALL.iter().find(is_in).copied();
        self.fill_instances(time, &reading.instances);
        let mut pids: Vec<u32> = reading.processes.iter().map(|value| value.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let who = (knows.identify)(&pids, reading.asked_ns);
        let mut processes: BTreeMap<(u32, Option<Place>), ProcessSnapshot> = BTreeMap::new();
        for ProcessValue { pid, place, value } in &reading.processes {
            let known = processes.entry((*pid, *place)).or_insert_with(|| {
                let process = who.get(pid).copied();
                let by_nodes = || self.by_nodes(process?, knows, capabilities);
                let instance =
                    place.map_or_else(by_nodes, |place| self.snapshot.instance_at(place));
                ProcessSnapshot { pid: *pid, process, instance, ..ProcessSnapshot::default() }
            });
            known.note(value);
            // Said below of everybody, once.
            let is_info = value.int(&process_metric::INFO, ()).is_some();
            if let Some(process) = known.process.filter(|_| !is_info) {
                let subject = GpuProcess { gpu, process, instance: known.instance }.into();
                self.samples.extend(sampled(time, subject, value));
            }
        }
        let identified = processes.values().filter_map(|known| {
            Some(GpuProcess { gpu, process: known.process?, instance: known.instance })
        });
        let identified: BTreeSet<GpuProcess> = identified.collect();
        self.samples.extend(
            identified.into_iter().map(|on| (time, process_metric::INFO.sample(on, (), 1))),
        );
        self.snapshot.processes = processes.into_values().collect();
        let unknown = self.snapshot.processes.iter().filter(|process| process.process.is_none());
        unknown.count()
    }

    fn fill_instances(&mut self, time: SystemTime, readings: &[InstanceReading]) {
        self.snapshot.instances.clear();
        for read in readings {
            let Some(&instance) = self.instances.get(&read.place) else { continue };
            let values = &read.values;
            let (usage, limit) = (&instance_metric::MEMORY_USAGE, &instance_metric::MEMORY_LIMIT);
            self.snapshot.instances.push(InstanceSnapshot {
                instance,
                place: read.place,
                memory_used: values.iter().find_map(|value| value.int(usage, MemoryState::Used)),
                memory_limit: values.iter().find_map(|value| value.int(limit, ())),
            });
            let samples = values.iter().filter_map(|value| sampled(time, instance.into(), value));
            self.samples.extend(samples);
        }
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
        for kind in ProcessType::ALL {
            if let Some(memory) = value.int(&process_metric::MEMORY_USAGE, *kind) {
                self.memory = Some(memory);
                self.kind = Some(*kind);
            }
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
