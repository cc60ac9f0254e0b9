//! What the driver's accounts say of the processes on a device, where an administrator has turned
//! accounting on: a call for each process when it is new and at every sixth reading, in between what
//! was last said.
//!
//! The account of a process that has left the lists is told once, as an event. Those that came and
//! went between two readings are looked for in the driver's buffer at every sixth: two calls, and one
//! for each. What had ended before the first look is history.

use super::caller::{Call, NvmlCaller, PollEvery};
use super::readings::{bytes, fraction};
use crate::catalog::process as metric;
use crate::collect::device::wire::push;
use crate::collect::device::wire::{Ended, Place, ProcessValue, Reading, WireValue};
use crate::host::boot_time_ns;
use nvml_wrapper::Device;
use nvml_wrapper::struct_wrappers::device::AccountingStats;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Accounts that are read of a device; more processes than this have no use for single figures.
const MAX_ACCOUNTS: usize = 64;
/// A process that is on no list and still runs, as the driver has it, is asked for this often.
const MAX_TRIES: u32 = 3;

/// One device's accounts, by PID.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    known: BTreeMap<u32, Vec<WireValue>>,
    /// On the lists at the last reading, or waited for since.
    there: BTreeMap<u32, There>,
    /// In the driver's buffer, and told or from before the first look.
    reported: BTreeSet<u32>,
    /// Whether that look was taken.
    looked: bool,
}

/// A process that was listed.
#[derive(Clone, Copy, Debug)]
struct There {
    place: Option<Place>,
    /// When the driver was asked for the list.
    seen_ns: u64,
    tries: u32,
}

impl Accounts {
    /// Adds what is known of the processes that the reading lists, and of those that have ended.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) {
        // Of a process in several instances there is one account: it goes to the first.
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

    /// Tells the accounts of those that are listed no more.
    fn close(
        &mut self,
        device: &Device<'_>,
        caller: &mut NvmlCaller,
        listed: &BTreeMap<u32, Option<Place>>,
        reading: &mut Reading,
    ) {
        let told = &mut self.reported;
        let mut left: BTreeMap<u32, There> = BTreeMap::new();
        for (pid, there) in std::mem::take(&mut self.there) {
            if listed.contains_key(&pid) {
                continue;
            }
            let stats = caller.call(Call::Account, || device.accounting_stats_for(pid));
            match stats.filter(|stats| !stats.is_running) {
                Some(stats) => {
                    told.insert(pid);
                    reading.ended.push(ended((pid, there.place), Some(there.seen_ns), &stats));
                }
                None if there.tries < MAX_TRIES => {
                    left.insert(pid, There { tries: there.tries + 1, ..there });
                }
                None => {}
            }
        }
        let seen_ns = reading.asked_ns;
        for (pid, place) in listed.iter().take(MAX_ACCOUNTS) {
            told.remove(pid);
            left.insert(*pid, There { place: *place, seen_ns, tries: 0 });
        }
        self.there = left;
    }

    /// Tells the accounts of those that were on no list while they were there.
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
        let told = &mut self.reported;
        if !std::mem::replace(&mut self.looked, true) {
            *told = pids;
            return;
        }
        told.retain(|pid| pids.contains(pid));
        let new = pids.iter().filter(|pid| !self.there.contains_key(pid));
        let new: Vec<u32> =
            new.filter(|pid| !told.contains(pid)).copied().take(MAX_ACCOUNTS).collect();
        for pid in new {
            let stats = caller.call(Call::Account, || device.accounting_stats_for(pid));
            if let Some(stats) = stats.filter(|stats| !stats.is_running) {
                told.insert(pid);
                reading.ended.push(ended((pid, None), None, &stats));
            }
        }
    }

    /// Forgets everything: accounting is off.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// A process that has not used the device yet has no account.
fn account(device: &Device<'_>, pid: u32, caller: &mut NvmlCaller) -> Option<Vec<WireValue>> {
    let stats = caller.call(Call::Account, || device.accounting_stats_for(pid))?;
    let mut values = Vec::new();
    // Of an earlier process with this number.
    if stats.is_running {
        push(&mut values, &metric::MEMORY_PEAK, (), stats.max_memory_usage.and_then(bytes));
        push(&mut values, &metric::LIFETIME_UTILIZATION, (), stats.gpu_utilization.and_then(busy));
    }
    Some(values)
}

/// The last account of a process; `seen_ns` if it was on a list.
fn ended(
    (pid, place): (u32, Option<Place>),
    seen_ns: Option<u64>,
    stats: &AccountingStats,
) -> Ended {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let lasted = Duration::from_millis(stats.time);
    let started = Duration::from_micros(stats.start_time);
    // A start that is none, or an end that is to come: it has ended by now, that is sure.
    let end = started.checked_add(lasted).filter(|end| stats.start_time > 0 && *end <= now);
    let end = end.unwrap_or(now);
    // In the middle of its life, where it was on no list: neither end of that is exact.
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
        let told = ended((7, None), Some(5), &stats(start_us, 90_500));
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
        assert_eq!(told, expected);
    }

    #[test]
    fn an_end_that_is_to_come_is_now() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        for start_time in [0, u64::MAX / 2_000] {
            let told = ended((7, None), None, &stats(start_time, 90_500));
            assert!(told.ended_ns >= nanos(before), "{told:?}");
            assert!(told.seen_ns < boot_time_ns(), "{told:?}");
        }
    }
}
