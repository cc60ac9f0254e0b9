//! What the driver's accounts say of the processes on a device, where an administrator has turned
//! accounting on: a call for each process when it is new and at every sixth reading, in between what
//! was last said.

use super::ask::{Ask, Call, Pace};
use super::readings::{bytes, fraction, push};
use crate::catalog::process as metric;
use crate::collect::device::wire::{ProcessValue, Reading, WireValue};
use nvml_wrapper::Device;
use std::collections::{BTreeMap, BTreeSet};

/// Accounts that are read of a device; more processes than this have no use for single figures.
const MOST: usize = 64;

/// One device's accounts, by PID.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    known: BTreeMap<u32, Vec<WireValue>>,
}

impl Accounts {
    /// Adds what is known of the processes that the reading lists.
    pub(super) fn read(&mut self, device: &Device<'_>, ask: &mut Ask, reading: &mut Reading) {
        // Of a process in several instances there is one account: it goes to the first.
        let listed: BTreeMap<_, _> =
            reading.processes.iter().rev().map(|value| (value.pid, value.place)).collect();
        let pids: BTreeSet<u32> = listed.keys().copied().take(MOST).collect();
        let again = ask.due(Pace::Medium);
        self.known.retain(|pid, _| pids.contains(pid) && !again);
        for (pid, place) in listed.into_iter().take(MOST) {
            if !self.known.contains_key(&pid)
                && let Some(account) = account(device, pid, ask)
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

    /// Forgets everything: accounting is off.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

/// A process that has not used the device yet has no account.
fn account(device: &Device<'_>, pid: u32, ask: &mut Ask) -> Option<Vec<WireValue>> {
    let stats = ask.ask(Call::Account, || device.accounting_stats_for(pid))?;
    let mut values = Vec::new();
    // Of an earlier process with this number.
    if stats.is_running {
        let peak = stats.max_memory_usage.and_then(bytes);
        push(&mut values, &metric::MEMORY_PEAK, (), peak);
        let busy = stats.gpu_utilization.filter(|percent| *percent <= 100);
        push(&mut values, &metric::LIFETIME_UTILIZATION, (), busy.map(fraction));
    }
    Some(values)
}
