//! Who is on a device: the driver's process lists, and what each process kept busy since it was
//! last looked at.

use super::ask::{Ask, Call};
use super::readings::{bytes, fraction, push};
use crate::catalog::device as device_metric;
use crate::catalog::process::{self as metric, ProcessTask, ProcessType};
use crate::collect::device::wire::{Reading, WireValue};
use crate::sys::nvml::{self, List};
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The driver's word for "I cannot tell how much memory".
const MEMORY_NOT_TOLD: u64 = u64::MAX;
/// The first reading looks back this far.
const FIRST_LOOK_BACK: Duration = Duration::from_secs(1);
/// A greater percentage is not one; drivers have been seen to hand out uninitialised slots.
const MOST_PERCENT: u32 = 100;

/// One device's lists, with buffers that are kept.
#[derive(Debug, Default)]
pub(super) struct ProcessLists {
    infos: Vec<nvmlProcessInfo_t>,
    samples: Vec<nvmlProcessUtilizationSample_t>,
    cursors: Cursors,
}

/// How far each process's samples were read, in microseconds since the epoch: a time for each, as
/// processes are sampled at different times.
#[derive(Debug, Default)]
struct Cursors {
    since_us: Option<u64>,
    read_to: BTreeMap<u32, u64>,
}

/// What a process kept busy: sums of percentages over a number of samples.
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

impl ProcessLists {
    /// Reads the lists and the utilisation of a device's processes.
    pub(super) fn read(&mut self, device: &Device<'_>, ask: &mut Ask, reading: &mut Reading) {
        let mut pids = BTreeSet::new();
        let lists = [
            (Call::ComputeProcesses, List::Compute, ProcessType::Compute),
            (Call::GraphicsProcesses, List::Graphics, ProcessType::Graphics),
        ];
        let mut answered = 0;
        for (call, list, on_list) in lists {
            let infos = &mut self.infos;
            if ask.ask(call, || nvml::processes(device, list, infos)).is_some() {
                answered += 1;
                pids.extend(infos.iter().map(|info| info.pid));
                memory(infos, on_list, &mut reading.processes);
            }
        }
        let count = i64::try_from(pids.len()).ok().filter(|_| answered > 0);
        push(&mut reading.values, &device_metric::PROCESS_COUNT, (), count);
        self.utilization(device, ask, reading);
    }

    fn utilization(&mut self, device: &Device<'_>, ask: &mut Ask, reading: &mut Reading) {
        let since_us = self.cursors.since();
        let samples = &mut self.samples;
        let call = || nvml::process_utilization(device, since_us, samples);
        if ask.ask(Call::ProcessUtilization, call).is_none() {
            return;
        }
        for (pid, busy) in self.cursors.take(&self.samples) {
            let tasks = [
                (ProcessTask::Sm, busy.sm),
                (ProcessTask::Memory, busy.memory),
                (ProcessTask::Encoder, busy.encoder),
                (ProcessTask::Decoder, busy.decoder),
            ];
            let values = tasks.into_iter().filter_map(|(task, mean)| {
                Some((pid, WireValue::new(&metric::UTILIZATION, task, mean.fraction()?)?))
            });
            reading.processes.extend(values);
        }
    }
}

/// Memory by process: a process with contexts in several instances is listed once for each.
fn memory(infos: &[nvmlProcessInfo_t], list: ProcessType, out: &mut Vec<(u32, WireValue)>) {
    let mut by_pid: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for info in infos {
        let told = Some(info.usedGpuMemory).filter(|memory| *memory != MEMORY_NOT_TOLD);
        let sum = by_pid.entry(info.pid).or_insert(Some(0));
        *sum = sum.zip(told).and_then(|(sum, more)| sum.checked_add(more));
    }
    out.extend(by_pid.into_iter().filter_map(|(pid, memory)| {
        Some((pid, WireValue::new(&metric::MEMORY_USAGE, list, bytes(memory?)?)?))
    }));
}

impl Cursors {
    /// From when on to ask.
    fn since(&mut self) -> u64 {
        *self.since_us.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(now.saturating_sub(FIRST_LOOK_BACK).as_micros()).unwrap_or_default()
        })
    }

    /// Sums what is new for each process and moves its cursor. The next question starts at the
    /// oldest cursor of those that had something new: what is older was on offer just now.
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
            // A cursor before the question's start adds nothing to it.
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
        if percent <= MOST_PERCENT {
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
    use super::{BTreeMap, Cursors, nvmlProcessUtilizationSample_t};

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
        assert_eq!(cursors.since(), 150);
        let second = [sample(1, 200, 10), sample(2, 160, 40), sample(3, 200, 30)];
        assert_eq!(busy(&mut cursors, &second), [(2, Some(0.4))].into());
    }

    #[test]
    fn a_percentage_over_a_hundred_is_no_sample() {
        let mut cursors = Cursors { since_us: Some(0), ..Cursors::default() };
        let garbage = [sample(1, 10, u32::MAX), sample(1, 20, 40), sample(2, 10, 101)];
        assert_eq!(busy(&mut cursors, &garbage), [(1, Some(0.4)), (2, None)].into());
    }
}
