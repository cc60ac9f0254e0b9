//! One device: turns a reading into samples, and into a summary for `gpuwho`'s table.

use super::ReaderContext;
use crate::wire::{InstanceReading, ProcessValue, Reading, WireValue};
use gpuwho_collect::snapshot::{DeviceSnapshot, InstanceSnapshot, ProcessSnapshot};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::{DeviceState, MemoryState, Sensor, Task};
use gpuwho_model::catalog::gpm as gpm_metric;
use gpuwho_model::catalog::gpm::CounterState;
use gpuwho_model::catalog::instance as instance_metric;
use gpuwho_model::catalog::process as process_metric;
use gpuwho_model::catalog::process::{ProcessTask, ProcessType};
use gpuwho_model::ids::Place;
use gpuwho_model::ids::{GpuId, InstanceId, ProcKey};
use gpuwho_model::sample::{GpuProcess, Sample, Subject};
use gpuwho_owners::attribute::pid_cache::ProcessesByPid;
use gpuwho_owners::inventory::{InstanceInfo, Inventory};
use gpuwho_owners::partitions::PartitionNodes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A device.
pub(super) struct DeviceRow {
    pub(super) snapshot: DeviceSnapshot,
    instances: BTreeMap<Place, InstanceId>,
    /// Time of the last reading on the boot clock; negative if before the boot.
    pub(super) last_good_ns: Option<i64>,
    /// State of its performance counters.
    pub(super) counters: Option<CounterState>,
    /// What of the last good reading is missing.
    pub(super) note: String,
    pub(super) samples: Vec<(SystemTime, Sample)>,
    /// The state was set in this tick.
    pub(super) settled: bool,
}

impl DeviceRow {
    pub(super) fn new(gpu: GpuId) -> Self {
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
            has_counters: false,
            instances: Vec::new(),
            processes: Vec::new(),
        };
        let instances = BTreeMap::new();
        Self {
            snapshot,
            instances,
            last_good_ns: None,
            counters: None,
            note: String::new(),
            samples: Vec::new(),
            settled: false,
        }
    }

    pub(super) fn set(&mut self, state: DeviceState, reason: &str) {
        self.settled = true;
        self.snapshot.state = state;
        reason.clone_into(&mut self.snapshot.reason);
    }

    /// Updates the partitions; true if they changed since the last reading.
    pub(super) fn update_instances(
        &mut self,
        now: &[InstanceReading],
        inventory: &Inventory,
    ) -> bool {
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

    /// The partition of a process by its open nodes, if the driver's list does not name it.
    fn by_nodes(
        &self,
        process: ProcKey,
        context: &ReaderContext,
        partitions: &PartitionNodes,
    ) -> Option<InstanceId> {
        if self.instances.is_empty() {
            return None;
        }
        let info = context.inventory.get(self.snapshot.gpu)?;
        let place = partitions.only_one_of(&(context.nodes)(process), &info)?;
        self.snapshot.instance_at(place)
    }

    /// Turns a good reading into samples; returns the number of unidentified processes.
    pub(super) fn fill(
        &mut self,
        reading: &Reading,
        context: &ReaderContext,
        partitions: &PartitionNodes,
    ) -> usize {
        let time = UNIX_EPOCH + Duration::from_nanos(reading.time_ns);
        self.last_good_ns = Some(reading.asked_ns.cast_signed());
        self.samples.clear();
        self.samples.reserve_exact(reading.values.len() + reading.processes.len());
        self.note.clone_from(&reading.note);
        let gpu = self.snapshot.gpu;
        self.samples
            .extend(reading.values.iter().filter_map(|value| sampled(time, gpu.into(), value)));
        self.summarise(&reading.values);
        let is_in = |state: &&CounterState| {
            let on = |value: &WireValue| value.int(&gpm_metric::STATUS, **state) == Some(1);
            reading.values.iter().any(on)
        };
        self.counters = CounterState::ALL.iter().find(is_in).copied();
        self.snapshot.has_counters =
            matches!(self.counters, Some(CounterState::Ok | CounterState::Waiting));
        self.fill_instances(time, &reading.instances);
        let mut pids: Vec<u32> = reading.processes.iter().map(|value| value.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut who = (context.identify)(&pids, reading.asked_ns);
        let mut processes: BTreeMap<(u32, Option<Place>), ProcessSnapshot> = BTreeMap::new();
        if !context.lists_processes {
            who = self.add_openers(reading.asked_ns, context, &mut processes);
            let count = i64::try_from(processes.len()).unwrap_or(i64::MAX);
            self.samples.push((time, metric::PROCESS_COUNT.sample(gpu, (), count)));
        }
        for ProcessValue { pid, place, value } in &reading.processes {
            let known = processes.entry((*pid, *place)).or_insert_with(|| {
                let process = who.get(pid).copied();
                let by_nodes = || self.by_nodes(process?, context, partitions);
                let instance =
                    place.map_or_else(by_nodes, |place| self.snapshot.instance_at(place));
                ProcessSnapshot { pid: *pid, process, instance, ..ProcessSnapshot::default() }
            });
            note(known, value);
            // Exported below, once per process.
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

    /// Adds the processes that have the device's own node open, of a driver that lists none.
    fn add_openers(
        &self,
        asked_ns: u64,
        context: &ReaderContext,
        processes: &mut BTreeMap<(u32, Option<Place>), ProcessSnapshot>,
    ) -> ProcessesByPid {
        let pids = (context.openers)();
        let who = (context.identify)(&pids, asked_ns);
        let Some(info) = context.inventory.get(self.snapshot.gpu) else { return who };
        for (pid, process) in who.iter() {
            if (context.nodes)(*process).iter().any(|node| info.has_node(node)) {
                let on = ProcessSnapshot { pid: *pid, process: Some(*process), ..<_>::default() };
                processes.insert((*pid, None), on);
            }
        }
        who
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

/// Takes what a value says of a process.
fn note(process: &mut ProcessSnapshot, value: &WireValue) {
    for kind in ProcessType::ALL {
        if let Some(memory) = value.int(&process_metric::MEMORY_USAGE, *kind) {
            process.memory = Some(memory);
            process.kind = Some(*kind);
        }
    }
    let busy = value.double(&process_metric::UTILIZATION, ProcessTask::Sm);
    process.utilization = busy.or(process.utilization);
}

/// Turns a value into a sample. Agent and child are the same build, so the catalogue has every
/// metric.
fn sampled(time: SystemTime, subject: Subject, value: &WireValue) -> Option<(SystemTime, Sample)> {
    let (metric, dims, value) = (value.metric()?, value.dims(), value.value());
    Some((time, Sample { metric, subject, dims, labels: None, value }))
}
