//! The driver's accounting records of the processes on a device, if an administrator enabled
//! accounting: one call for each process when it is new and at every sixth reading; the record is
//! reused in between.
//!
//! The final record of a process that left the lists is reported once, as an event. Processes that
//! started and ended between two readings are found in the driver's buffer at every sixth reading:
//! two calls, and one for each process. Those in the buffer at the first look are ignored.

use super::caller::{Call, NvmlCaller, PollEvery};
use super::readings::{bytes, fraction};
use crate::wire::push;
use crate::wire::{Ended, ProcessValue, Reading, WireValue};
use gpuwho_model::catalog::process as metric;
use gpuwho_model::ids::Place;
use gpuwho_owners::host::boot_time_ns;
use nvml_wrapper::Device;
use nvml_wrapper::struct_wrappers::device::AccountingStats;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Limit on the records read of a device.
const MAX_ACCOUNTS: usize = 64;
/// How often the final record of an unlisted process is read again while the driver says that the
/// process still runs.
const MAX_TRIES: u32 = 3;

/// One device's accounting records, by PID.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    known: BTreeMap<u32, Vec<WireValue>>,
    /// Processes listed at the last reading, or whose final record is awaited.
    there: BTreeMap<u32, There>,
    /// Processes in the driver's buffer that were reported, or that were there at the first look.
    reported: BTreeSet<u32>,
    /// Whether the buffer was has_baseline at once.
    has_baseline: bool,
}

/// A process that was listed.
#[derive(Clone, Copy, Debug)]
struct There {
    place: Option<Place>,
    /// When the list was read.
    seen_ns: u64,
    tries: u32,
}

impl Accounts {
    /// Adds the records of the processes in the reading, and of those that have ended.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) {
        // A process in several instances has one record: it goes to the first instance.
        let listed: BTreeMap<_, _> =
            reading.processes.iter().rev().map(|value| (value.pid, value.place)).collect();
        let pids: BTreeSet<u32> = listed.keys().copied().take(MAX_ACCOUNTS).collect();
        let again = caller.due(PollEvery::Medium);
        self.known.retain(|pid, _| pids.contains(pid) && !again);
        self.close(device, caller, &listed, reading);
        if again {
            self.look_for_others(device, caller, reading);
        }
        for (pid, place) in listed.into_iter().take(MAX_ACCOUNTS) {
            if !self.known.contains_key(&pid)
                && let Some(account) = account(device, pid, caller)
            {
                self.known.insert(pid, account);
            }
            let values = self.known.get(&pid).into_iter().flatten();
            reading.processes.extend(values.map(|value| ProcessValue {
                pid,
                place,
                value: *value,
            }));
        }
    }

    /// Reports the final records of processes that are no longer listed.
    fn close(
        &mut self,
        device: &Device<'_>,
        caller: &mut NvmlCaller,
        listed: &BTreeMap<u32, Option<Place>>,
        reading: &mut Reading,
    ) {
        let reported = &mut self.reported;
        let mut left: BTreeMap<u32, There> = BTreeMap::new();
        for (pid, there) in std::mem::take(&mut self.there) {
            if listed.contains_key(&pid) {
                continue;
            }
            let stats = caller.call(Call::Account, || device.accounting_stats_for(pid));
            match stats.filter(|stats| !stats.is_running) {
                Some(stats) => {
                    reported.insert(pid);
                    reading.ended.push(ended(pid, there.place, Some(there.seen_ns), &stats));
                }
                None if there.tries < MAX_TRIES => {
                    left.insert(pid, There { tries: there.tries + 1, ..there });
                }
                None => {}
            }
        }
        let seen_ns = reading.asked_ns;
        for (pid, place) in listed.iter().take(MAX_ACCOUNTS) {
            reported.remove(pid);
            left.insert(*pid, There { place: *place, seen_ns, tries: 0 });
        }
        self.there = left;
    }

    /// Reports the final records of processes that no reading listed.
    fn look_for_others(
        &mut self,
        device: &Device<'_>,
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) {
        let Some(pids) = caller.call(Call::AccountingPids, || device.accounting_pids()) else {
            return;
        };
        let pids: BTreeSet<u32> = pids.into_iter().collect();
        let reported = &mut self.reported;
        if !std::mem::replace(&mut self.has_baseline, true) {
            *reported = pids;
            return;
        }
        reported.retain(|pid| pids.contains(pid));
        let new = pids.iter().filter(|pid| !self.there.contains_key(pid));
        let new: Vec<u32> =
            new.filter(|pid| !reported.contains(pid)).copied().take(MAX_ACCOUNTS).collect();
        for pid in new {
            let stats = caller.call(Call::Account, || device.accounting_stats_for(pid));
            if let Some(stats) = stats.filter(|stats| !stats.is_running) {
                reported.insert(pid);
                reading.ended.push(ended(pid, None, None, &stats));
            }
        }
    }

    /// Clears everything: accounting is off.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Reads a process's record; a process that has not used the device yet has none.
fn account(device: &Device<'_>, pid: u32, caller: &mut NvmlCaller) -> Option<Vec<WireValue>> {
    let stats = caller.call(Call::Account, || device.accounting_stats_for(pid))?;
    let mut values = Vec::new();
    // A record that is not running belongs to an earlier process with this PID.
    if stats.is_running {
        push(&mut values, &metric::MEMORY_PEAK, (), stats.max_memory_usage.and_then(bytes));
        push(&mut values, &metric::LIFETIME_UTILIZATION, (), stats.gpu_utilization.and_then(busy));
    }
    Some(values)
}

/// The final record of a process; `seen_ns` is set if it was listed.
fn ended(pid: u32, place: Option<Place>, seen_ns: Option<u64>, stats: &AccountingStats) -> Ended {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let lasted = Duration::from_millis(stats.time);
    let started = Duration::from_micros(stats.start_time);
    // The driver may give no start, or an end in the future; the process has ended by now.
    let end = started.checked_add(lasted).filter(|end| stats.start_time > 0 && *end <= now);
    let end = end.unwrap_or(now);
    // For an unlisted process, use the middle of its life, because neither end is exact.
    let ago = nanos(now.saturating_sub(end) + lasted / 2);
    Ended {
        pid,
        place,
        seen_ns: seen_ns.unwrap_or_else(|| boot_time_ns().saturating_sub(ago)),
        ended_ns: nanos(end),
        seconds: lasted.as_secs_f64(),
        memory_peak: stats.max_memory_usage.and_then(bytes),
        busy: stats.gpu_utilization.and_then(busy),
        memory_busy: stats.memory_utilization.and_then(busy),
    }
}

fn busy(percent: u32) -> Option<f64> {
    (percent <= 100).then(|| fraction(percent))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(start_time: u64, time: u64) -> AccountingStats {
        AccountingStats {
            gpu_utilization: Some(45),
            is_running: false,
            max_memory_usage: Some(1 << 30),
            memory_utilization: Some(101),
            start_time,
            time,
        }
    }

    #[test]
    fn an_account_is_in_base_units_and_ends_when_the_driver_says() {
        let start_us = 1_700_000_000_000_000;
        let reported = ended(7, None, Some(5), &stats(start_us, 90_500));
        let expected = Ended {
            pid: 7,
            place: None,
            seen_ns: 5,
            ended_ns: (start_us + 90_500_000) * 1000,
            seconds: 90.5,
            memory_peak: Some(1 << 30),
            busy: Some(0.45),
            memory_busy: None,
        };
        assert_eq!(reported, expected);
    }

    #[test]
    fn an_end_in_the_future_is_now() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        for start_time in [0, u64::MAX / 2_000] {
            let reported = ended(7, None, None, &stats(start_time, 90_500));
            assert!(reported.ended_ns >= nanos(before), "{reported:?}");
            assert!(reported.seen_ns < boot_time_ns(), "{reported:?}");
        }
    }
}
