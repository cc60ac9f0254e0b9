//! The processes on a device: the driver's process lists, and the utilisation of each process since
//! the last reading.
//!
//! With MPS the driver lists a client both as a compute and as an MPS process, and the server as a
//! compute process. A list costs milliseconds: the MPS list is read only if there is a server, and
//! the graphics list seldom while it is empty, as it is on most boards of a data centre. A process that is
//! on neither and has used the device is on that one, so the samples are read before it.

use super::caller::{Call, NvmlCaller};
use super::instances::Handle;
use super::readings::{bytes, fraction};
use crate::wire::push;
use crate::wire::{ProcessValue, Reading, WireValue};
use gpuwho_model::catalog::device as device_metric;
use gpuwho_model::catalog::process::{self as metric, ProcessTask, ProcessType};
use gpuwho_model::ids::Place;
use gpuwho_sys::nvml::lists::{self, List};
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The driver's value for an unknown memory size.
const MEMORY_UNKNOWN: u64 = u64::MAX;
/// The driver's value for "in no instance".
const NO_INSTANCE: u32 = u32::MAX;
/// `nvidia-cuda-mps-server`, truncated by the kernel (`TASK_COMM_LEN`). The control daemon has the
/// same name and no compute context.
const SERVER_NAME: &str = "nvidia-cuda-mps";
/// Time between two reads of a graphics list that is empty, unless a process that is in no other list has
/// used the device.
const GRAPHICS_EVERY: Duration = Duration::from_mins(1);
/// How far the first reading looks back.
const FIRST_LOOK_BACK: Duration = Duration::from_secs(1);
/// A sample further in the future than this means that the clock was set back since.
const MAX_AHEAD: Duration = Duration::from_secs(10);
/// Drivers have returned uninitialised slots with higher percentages.
const MAX_PERCENT: u32 = 100;

/// One device's lists, with reused buffers.
#[derive(Debug, Default)]
pub(super) struct ProcessLists {
    infos: Vec<nvmlProcessInfo_t>,
    samples: Vec<nvmlProcessUtilizationSample_t>,
    cursors: Cursors,
    servers: Servers,
    /// The graphics list was empty, and is read again then.
    graphics_due: Option<Instant>,
}

/// How far each process's samples were read, in microseconds since the epoch: one time for each,
/// because processes are sampled at different times.
#[derive(Debug, Default)]
struct Cursors {
    since_us: Option<u64>,
    read_to: BTreeMap<u32, u64>,
}

/// Utilisation of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Busy {
    sm: Mean,
    memory: Mean,
    encoder: Mean,
    decoder: Mean,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mean {
    sum: u32,
    count: u32,
}

/// A process list: the call for a device, and the call for an instance.
struct ListQuery {
    list: List,
    of_device: Call,
    of_instance: Call,
}

const COMPUTE: ListQuery = ListQuery {
    list: List::Compute,
    of_device: Call::ComputeProcesses,
    of_instance: Call::InstanceComputeProcesses,
};
const GRAPHICS: ListQuery = ListQuery {
    list: List::Graphics,
    of_device: Call::GraphicsProcesses,
    of_instance: Call::InstanceGraphicsProcesses,
};
const MPS: ListQuery = ListQuery {
    list: List::Mps,
    of_device: Call::MpsProcesses,
    of_instance: Call::InstanceMpsProcesses,
};

/// A process in one of its instances.
type ProcessPlace = (u32, Option<Place>);

/// A process's entry in the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    kind: ProcessType,
    memory: Option<u64>,
}

impl ProcessLists {
    /// Reads the lists and the utilisation of a device's processes.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        instances: &[Handle],
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) {
        let compute = self.list(&COMPUTE, device, instances, caller);
        let busy = self.busy(device, caller);
        let is_listed = |of: &u32| compute.iter().flatten().any(|((pid, _), _)| pid == of);
        if !busy.keys().all(is_listed) {
            self.graphics_due = None;
        }
        let graphics = self.graphics(device, instances, caller);
        self.servers.update(compute.iter().flat_map(BTreeMap::keys).map(|(pid, _)| *pid));
        let mps =
            if self.servers.any() { self.list(&MPS, device, instances, caller) } else { None };
        let answered = compute.is_some() || graphics.is_some();
        let listed = self.servers.join(
            &compute.unwrap_or_default(),
            &graphics.unwrap_or_default(),
            &mps.unwrap_or_default(),
        );
        let pids: BTreeSet<u32> = listed.keys().map(|(pid, _)| *pid).collect();
        let count = i64::try_from(pids.len()).ok().filter(|_| answered);
        push(&mut reading.values, &device_metric::PROCESS_COUNT, (), count);
        reading.processes.extend(listed.iter().filter_map(|((pid, place), listed)| {
            // A process whose memory the driver hides is still exported.
            let value = match listed.memory {
                Some(reported) => {
                    WireValue::new(&metric::MEMORY_USAGE, listed.kind, bytes(reported)?)?
                }
                None => WireValue::new(&metric::INFO, (), 1)?,
            };
            Some(ProcessValue { pid: *pid, place: *place, value })
        }));
        utilization(busy, &listed, &mut reading.processes);
    }

    fn graphics(
        &mut self,
        device: &Device<'_>,
        instances: &[Handle],
        caller: &mut NvmlCaller,
    ) -> Option<BTreeMap<ProcessPlace, Option<u64>>> {
        let now = Instant::now();
        if self.graphics_due.is_some_and(|due| now < due) {
            return Some(BTreeMap::new());
        }
        let found = self.list(&GRAPHICS, device, instances, caller);
        let is_empty = found.as_ref().is_some_and(BTreeMap::is_empty);
        self.graphics_due = is_empty.then(|| now + GRAPHICS_EVERY);
        found
    }

    /// Reads a list; if the device does not provide it, from its instances. `None` if neither does.
    fn list(
        &mut self,
        asked: &ListQuery,
        device: &Device<'_>,
        instances: &[Handle],
        caller: &mut NvmlCaller,
    ) -> Option<BTreeMap<ProcessPlace, Option<u64>>> {
        let mut found = BTreeMap::new();
        let infos = &mut self.infos;
        if caller.call(asked.of_device, || lists::processes(device, asked.list, infos)).is_some() {
            let there: Vec<Place> = instances.iter().map(|instance| instance.place).collect();
            tally(infos, |info| place(info, &there), &mut found);
            return Some(found);
        }
        let mut answered = false;
        for Handle { device, place, .. } in instances {
            if caller
                .call(asked.of_instance, || lists::processes(device, asked.list, infos))
                .is_some()
            {
                answered = true;
                tally(infos, |_| Some(*place), &mut found);
            }
        }
        answered.then_some(found)
    }

    /// How busy each process was since the last reading.
    fn busy(&mut self, device: &Device<'_>, caller: &mut NvmlCaller) -> BTreeMap<u32, Busy> {
        let since_us = self.cursors.since(SystemTime::now());
        let samples = &mut self.samples;
        let call = || lists::process_utilization(device, since_us, samples);
        match caller.call(Call::ProcessUtilization, call) {
            Some(()) => self.cursors.take(&self.samples),
            None => BTreeMap::new(),
        }
    }
}

fn utilization(
    busy: BTreeMap<u32, Busy>,
    listed: &BTreeMap<ProcessPlace, Listed>,
    out: &mut Vec<ProcessValue>,
) {
    for (pid, busy) in busy {
        let tasks = [
            (ProcessTask::Sm, busy.sm),
            (ProcessTask::Memory, busy.memory),
            (ProcessTask::Encoder, busy.encoder),
            (ProcessTask::Decoder, busy.decoder),
        ];
        let place = only_place(listed, pid);
        out.extend(tasks.into_iter().filter_map(|(task, mean)| {
            let value = WireValue::new(&metric::UTILIZATION, task, mean.fraction()?)?;
            Some(ProcessValue { pid, place, value })
        }));
    }
}

/// Sums a list by process: a process with contexts in several instances is listed once for each.
/// Unknown memory makes the sum `None`.
fn tally(
    infos: &[nvmlProcessInfo_t],
    place: impl Fn(&nvmlProcessInfo_t) -> Option<Place>,
    found: &mut BTreeMap<ProcessPlace, Option<u64>>,
) {
    for info in infos {
        let reported = Some(info.usedGpuMemory).filter(|memory| *memory != MEMORY_UNKNOWN);
        let sum = found.entry((info.pid, place(info))).or_insert(Some(0));
        *sum = sum.zip(reported).and_then(|(sum, more)| sum.checked_add(more));
    }
}

/// The instance that an entry names, among the current ones. A GPU instance alone is enough if it
/// has only one compute instance.
fn place(info: &nvmlProcessInfo_t, there: &[Place]) -> Option<Place> {
    let named = |id: u32| Some(id).filter(|id| *id != NO_INSTANCE);
    let compute_instance = named(info.computeInstanceId);
    let mut meant = there.iter().filter(|place| {
        place.gpu_instance == info.gpuInstanceId
            && (compute_instance.is_none() || place.compute_instance == compute_instance)
    });
    match (meant.next(), meant.next()) {
        (Some(place), None) => Some(*place),
        _ => None,
    }
}

/// The instance of a process that is in only one.
fn only_place(listed: &BTreeMap<ProcessPlace, Listed>, pid: u32) -> Option<Place> {
    let mut places = listed.keys().filter(|(of, _)| *of == pid);
    match (places.next(), places.next()) {
        (Some((_, place)), None) => *place,
        _ => None,
    }
}

/// The MPS servers among the compute processes. A process's name is read when it appears on the
/// list, and a server's at every reading, because its PID may have been reused.
#[derive(Debug, Default)]
struct Servers {
    known: BTreeMap<u32, bool>,
}

impl Servers {
    fn update(&mut self, pids: impl Iterator<Item = u32>) {
        let known = std::mem::take(&mut self.known);
        self.known =
            pids.map(|pid| (pid, *known.get(&pid).unwrap_or(&true) && is_server(pid))).collect();
    }

    fn any(&self) -> bool {
        self.known.values().any(|server| *server)
    }

    /// One entry per process, even if it is on several lists: each list gives all the memory of the
    /// process (`nvml.h`: "all of the memory used by the application"), so a sum would count it
    /// twice.
    fn join(
        &self,
        compute: &BTreeMap<ProcessPlace, Option<u64>>,
        graphics: &BTreeMap<ProcessPlace, Option<u64>>,
        mps: &BTreeMap<ProcessPlace, Option<u64>>,
    ) -> BTreeMap<ProcessPlace, Listed> {
        let mut all = BTreeMap::new();
        let kinds = [ProcessType::Mps, ProcessType::Compute, ProcessType::Graphics];
        for (kind, list) in kinds.into_iter().zip([mps, compute, graphics]) {
            for (who, memory) in list {
                let row = all.entry(*who).or_insert(Listed { kind, memory: None });
                row.memory = row.memory.or(*memory);
                if self.known.get(&who.0) == Some(&true) {
                    row.kind = ProcessType::MpsServer;
                }
            }
        }
        all
    }
}

fn is_server(pid: u32) -> bool {
    // A process that has ended is not a server.
    let name =
        gpuwho_model::text::read_lossy(format!("/proc/{pid}/comm").as_ref()).unwrap_or_default();
    name.trim_end() == SERVER_NAME
}

impl Cursors {
    /// The start time of the next query.
    fn since(&mut self, now: SystemTime) -> u64 {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let known = self.since_us.filter(|since_us| *since_us <= micros(now + MAX_AHEAD));
        known.unwrap_or_else(|| {
            let since_us = micros(now.saturating_sub(FIRST_LOOK_BACK));
            *self = Self { since_us: Some(since_us), ..Self::default() };
            since_us
        })
    }

    /// Sums the new samples of each process and moves its cursor. The next query starts at the
    /// oldest cursor among the processes with new samples: this query already returned everything
    /// older.
    fn take(&mut self, samples: &[nvmlProcessUtilizationSample_t]) -> BTreeMap<u32, Busy> {
        let start = self.since_us.unwrap_or_default();
        let mut busy: BTreeMap<u32, Busy> = BTreeMap::new();
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        for sample in samples {
            let read_to = self.read_to.get(&sample.pid).copied().unwrap_or(start);
            if sample.timeStamp <= read_to {
                continue;
            }
            busy.entry(sample.pid).or_default().add(sample);
            let last = newest.entry(sample.pid).or_insert(sample.timeStamp);
            *last = sample.timeStamp.max(*last);
        }
        if let Some(oldest) = newest.values().min() {
            self.since_us = Some(*oldest);
            // A cursor before the query's start has no effect.
            self.read_to.retain(|_, read_to| *read_to > *oldest);
            self.read_to.extend(newest);
        }
        busy
    }
}

impl Busy {
    fn add(&mut self, sample: &nvmlProcessUtilizationSample_t) {
        self.sm.add(sample.smUtil);
        self.memory.add(sample.memUtil);
        self.encoder.add(sample.encUtil);
        self.decoder.add(sample.decUtil);
    }
}

impl Mean {
    fn add(&mut self, percent: u32) {
        if percent <= MAX_PERCENT {
            self.sum += percent;
            self.count += 1;
        }
    }

    fn fraction(self) -> Option<f64> {
        (self.count > 0).then(|| fraction(self.sum) / f64::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BTreeMap, Cursors, Duration, Listed, MEMORY_UNKNOWN, NO_INSTANCE, Place, ProcessType,
        Servers, SystemTime, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, only_place, place,
        tally,
    };

    fn sample(pid: u32, time_stamp: u64, sm: u32) -> nvmlProcessUtilizationSample_t {
        nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: time_stamp,
            smUtil: sm,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        }
    }

    fn busy(
        cursors: &mut Cursors,
        samples: &[nvmlProcessUtilizationSample_t],
    ) -> BTreeMap<u32, Option<f64>> {
        let taken = cursors.take(samples);
        taken.into_iter().map(|(pid, busy)| (pid, busy.sm.fraction())).collect()
    }

    fn info(pid: u32, memory: u64, gpu_instance: u32) -> nvmlProcessInfo_t {
        let compute_instance = if gpu_instance == NO_INSTANCE { NO_INSTANCE } else { 0 };
        nvmlProcessInfo_t {
            pid,
            usedGpuMemory: memory,
            gpuInstanceId: gpu_instance,
            computeInstanceId: compute_instance,
        }
    }

    fn at(gpu_instance: u32) -> Place {
        Place { gpu_instance, compute_instance: Some(0) }
    }

    fn listed(infos: &[nvmlProcessInfo_t]) -> BTreeMap<super::ProcessPlace, Option<u64>> {
        let mut found = BTreeMap::new();
        tally(infos, |info| place(info, &[at(1), at(2)]), &mut found);
        found
    }

    #[test]
    fn a_process_in_two_instances_is_listed_in_each_and_unknown_memory_is_none() {
        let found = listed(&[
            info(1, 10, 1),
            info(1, 20, 2),
            info(2, 5, NO_INSTANCE),
            info(2, 6, NO_INSTANCE),
            info(3, MEMORY_UNKNOWN, 1),
            info(4, 7, 8),
        ]);
        let expected = [
            ((1, Some(at(1))), Some(10)),
            ((1, Some(at(2))), Some(20)),
            ((2, None), Some(11)),
            ((3, Some(at(1))), None),
            // An instance created since the instances were listed, or destroyed.
            ((4, None), Some(7)),
        ];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn a_gpu_instance_alone_names_its_only_compute_instance() {
        let part = |gpu_instance, compute_instance| Place { gpu_instance, compute_instance };
        let there = [part(1, Some(0)), part(2, Some(0)), part(2, Some(1))];
        let named = |gpu_instance| {
            let alone =
                nvmlProcessInfo_t { computeInstanceId: NO_INSTANCE, ..info(9, 0, gpu_instance) };
            place(&alone, &there)
        };
        assert_eq!([1, 2, NO_INSTANCE].map(named), [Some(there[0]), None, None]);
    }

    #[test]
    fn a_process_on_several_lists_counts_its_memory_once() {
        let known = [(1, true), (2, false), (3, false)].into();
        let compute = listed(&[info(1, 30, 1), info(2, 700, 1), info(3, MEMORY_UNKNOWN, 1)]);
        let graphics = listed(&[info(3, 50, 1), info(4, 60, NO_INSTANCE)]);
        let mps = listed(&[info(2, 700, 1)]);
        let joined = Servers { known }.join(&compute, &graphics, &mps);
        let row = |kind, memory| Listed { kind, memory: Some(memory) };
        let expected = [
            ((1, Some(at(1))), row(ProcessType::MpsServer, 30)),
            ((2, Some(at(1))), row(ProcessType::Mps, 700)),
            ((3, Some(at(1))), row(ProcessType::Compute, 50)),
            ((4, None), row(ProcessType::Graphics, 60)),
        ];
        assert_eq!(joined, expected.into());
    }

    #[test]
    fn a_process_wide_value_is_placed_only_if_the_process_is_in_one_instance() {
        let row = Listed { kind: ProcessType::Compute, memory: None };
        let all = [
            ((1, Some(at(1))), row),
            ((1, Some(at(2))), row),
            ((2, Some(at(1))), row),
            ((3, None), row),
        ];
        let all = all.into();
        let places = [1, 2, 3, 4].map(|pid| only_place(&all, pid));
        assert_eq!(places, [None, Some(at(1)), None, None]);
    }

    #[test]
    fn a_process_gets_the_mean_of_its_new_samples_each_once() {
        let mut cursors = Cursors { since_us: Some(100), ..Cursors::default() };
        let first = [sample(1, 90, 99), sample(1, 110, 10), sample(1, 120, 30), sample(2, 120, 8)];
        assert_eq!(busy(&mut cursors, &first), [(1, Some(0.2)), (2, Some(0.08))].into());
        let second = [sample(1, 120, 30), sample(1, 130, 50), sample(2, 120, 8)];
        assert_eq!(busy(&mut cursors, &second), [(1, Some(0.5))].into());
    }

    #[test]
    fn processes_sampled_at_one_time_or_late_lose_nothing() {
        let mut cursors = Cursors { since_us: Some(100), ..Cursors::default() };
        let first = [sample(1, 200, 10), sample(2, 150, 20), sample(3, 200, 30)];
        assert_eq!(busy(&mut cursors, &first).len(), 3);
        assert_eq!(cursors.since(SystemTime::UNIX_EPOCH), 150);
        let second = [sample(1, 200, 10), sample(2, 160, 40), sample(3, 200, 30)];
        assert_eq!(busy(&mut cursors, &second), [(2, Some(0.4))].into());
    }

    #[test]
    fn a_clock_set_back_loses_only_earlier_samples() {
        let mut cursors = Cursors::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(cursors.since(at(7200)), 7_199_000_000);
        let read = [sample(1, 7_199_500_000, 10), sample(2, 7_199_400_000, 20)];
        assert_eq!(busy(&mut cursors, &read).len(), 2);
        assert_eq!(
            cursors.since(at(7199)),
            7_199_400_000,
            "the driver's clock may be ahead a little"
        );
        assert_eq!(cursors.since(at(3600)), 3_599_000_000, "an hour back");
        let read = [sample(1, 3_599_500_000, 30), sample(2, 3_599_400_000, 40)];
        assert_eq!(busy(&mut cursors, &read), [(1, Some(0.3)), (2, Some(0.4))].into());
    }

    #[test]
    fn a_percentage_over_a_hundred_is_dropped() {
        let mut cursors = Cursors { since_us: Some(0), ..Cursors::default() };
        let garbage = [sample(1, 10, u32::MAX), sample(1, 20, 40), sample(2, 10, 101)];
        assert_eq!(busy(&mut cursors, &garbage), [(1, Some(0.4)), (2, None)].into());
    }
}
