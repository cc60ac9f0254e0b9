//! One device's totals and the intervals between its readings.
//!
//! An interval is the time between two consecutive readings; no other time is accounted. The energy
//! counter also covers the time between intervals; that energy is unattributed.

use super::accounts::{Accounts, Amounts, Level, MICRO, NANO, Resource, add};
use super::allocations::Bound;
use super::divide::{self, Part};
use super::reading::{Reading, WHOLE};
use super::{Amount, Increment};
use gpuwho_model::catalog::share::{self as metric, ShareMethod};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, ProcKey};
use gpuwho_model::sample::Batch;
use std::time::{Duration, SystemTime};

/// How long the driver's last process samples stay valid when no newer ones arrive: a few sample
/// periods of up to one second. A shorter reading interval may find no new sample.
const SAMPLES_VALID_FOR: Duration = Duration::from_secs(3);

/// The totals and accounts of a device.
#[derive(Debug, Default)]
pub(super) struct Device {
    last: Option<SystemTime>,
    /// A batch had no reading of this device since the last reading.
    missed: bool,
    /// The energy counter at its last reading, in microjoules, and when that was.
    energy: Option<(u64, SystemTime)>,
    /// The last reading had no energy counter.
    energy_missed: bool,
    /// The last process samples, and when they arrived.
    samples: Vec<(ProcKey, u64)>,
    sampled: Option<SystemTime>,
    accounted_ns: u128,
    totals: Amounts,
    accounts: Accounts,
    /// What the last reading added.
    added: Vec<Added>,
}

/// What a reading added to an owner's account, and the length of its interval in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Added {
    owner: OwnerId,
    method: ShareMethod,
    resource: Resource,
    amount: u128,
    ns: u64,
}

/// The time between a reading and the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interval {
    /// The same reading as before.
    Same,
    /// Nanoseconds since the previous reading; 0 if the clock was set back.
    After(u64),
    /// There is no previous reading, or it is too old.
    Gap,
}

impl Device {
    /// The device is missing from this batch.
    pub(super) fn mark_missed(&mut self) {
        self.missed = true;
    }

    /// Gives a reading without process samples the last ones, if they are recent enough.
    pub(super) fn reuse_samples(&mut self, reading: &mut Reading, at: SystemTime) {
        if reading.processes.iter().any(|on| on.sampled.is_some()) {
            self.samples.clear();
            let fresh = reading.processes.iter();
            self.samples.extend(fresh.filter_map(|on| Some((on.process, on.sampled?))));
            self.sampled = Some(at);
            return;
        }
        let age = self.sampled.and_then(|sampled| at.duration_since(sampled).ok());
        if age.is_none_or(|age| age > SAMPLES_VALID_FOR) {
            return;
        }
        for on in &mut reading.processes {
            let last = self.samples.iter().find(|(process, _)| *process == on.process);
            on.sampled = last.map(|(_, sampled)| *sampled);
        }
    }

    /// Accounts a reading; without a time it has nothing to account.
    pub(super) fn record(
        &mut self,
        reading: &Reading,
        max_gap: Duration,
        allocations: &[Bound],
        parts: &mut Vec<Part>,
    ) {
        self.added.clear();
        let Some(at) = reading.at else { return };
        let interval = self.interval(at, max_gap);
        let ns = match interval {
            Interval::Same => return,
            Interval::After(ns) => ns,
            Interval::Gap => 0,
        };
        self.last = Some(at);
        self.missed = false;
        self.accounted_ns += u128::from(ns);
        self.accounts.begin(at);
        let busy = divide::busy_instances(reading, parts).or_else(|| {
            divide::busy(reading, parts);
            reading.busy
        });
        if let Some(busy) = busy {
            let time = u128::from(busy) * u128::from(ns) / u128::from(WHOLE);
            self.share(Resource::Busy, time, ns, parts);
            self.level(Level::Utilization, busy.into(), parts);
        }
        if let Some(used) = divide::memory(reading, parts) {
            self.share(Resource::Memory, used * u128::from(ns), ns, parts);
            self.level(Level::Memory, used, parts);
        }
        divide::energy(reading, allocations, parts);
        if let Some(power) = reading.power {
            self.level(Level::Power, power.into(), parts);
        }
        self.record_energy((reading, at), interval, parts);
        self.sum_added();
        self.accounts.expire();
    }

    /// Sums what was added for several processes of an owner: a peak is the owner's.
    fn sum_added(&mut self) {
        let key = |added: &Added| (added.resource as u8, added.owner, added.method as u8);
        self.added.sort_unstable_by_key(key);
        self.added.dedup_by(|more, sum| {
            let is_same = key(more) == key(sum);
            sum.amount += if is_same { more.amount } else { 0 };
            is_same
        });
    }

    /// Adds every counter to a batch as a sample.
    pub(super) fn emit(&self, gpu: GpuId, at: SystemTime, out: &mut Batch) {
        let seconds = self.accounted_ns as f64 / NANO;
        out.at(at, metric::ACCOUNTED_TIME.sample(gpu, (), seconds));
        let [busy, memory, energy] = self.totals;
        if let Some(busy) = busy {
            out.at(at, metric::BUSY_TIME.sample(gpu, (), busy as f64 / NANO));
            let unattributed = self.accounts.unattributed(Resource::Busy) as f64 / NANO;
            out.at(at, metric::UNATTRIBUTED_TIME.sample(gpu, (), unattributed));
        }
        let memory = memory.map(|sum| metric::MEMORY_TIME.sample(gpu, (), sum as f64 / NANO));
        let energy = energy.map(|sum| metric::ACCOUNTED_ENERGY.sample(gpu, (), sum as f64 / MICRO));
        out.samples.extend(memory.into_iter().chain(energy).map(|sample| (at, sample)));
        self.accounts.emit(gpu, at, out);
    }

    /// Whether an owner has an account here.
    pub(super) fn has_account(&self, owner_id: OwnerId) -> bool {
        self.accounts.has_account(owner_id)
    }

    /// Returns how many shares went to `other` since the last call.
    pub(super) fn take_folded(&mut self) -> u64 {
        self.accounts.take_folded()
    }

    fn interval(&self, at: SystemTime, max_gap: Duration) -> Interval {
        match self.last {
            Some(last) if last == at => Interval::Same,
            Some(last) if !self.missed => match at.duration_since(last) {
                Ok(length) if length > max_gap => Interval::Gap,
                Ok(length) => Interval::After(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)),
                Err(_) => Interval::After(0),
            },
            Some(_) | None => Interval::Gap,
        }
    }

    /// Accounts the energy counter; `parts` divide the energy of a whole interval.
    fn record_energy(
        &mut self,
        (reading, at): (&Reading, SystemTime),
        interval: Interval,
        parts: &mut Vec<Part>,
    ) {
        let Some(now) = reading.energy else {
            self.energy_missed = true;
            return;
        };
        // A counter that fell has restarted; its value before the restart is unknown.
        let increase = self.energy.and_then(|(before, _)| now.checked_sub(before)).unwrap_or(0);
        let window = self.energy.and_then(|(_, before)| at.duration_since(before).ok());
        let ns = window.map_or(0, |window| u64::try_from(window.as_nanos()).unwrap_or(u64::MAX));
        if increase > 0 && (self.energy_missed || interval == Interval::Gap) {
            parts.clear();
            parts.push(Part::idle(1_u8));
        }
        self.energy = Some((now, at));
        self.energy_missed = false;
        self.share(Resource::Energy, increase.into(), ns, parts);
    }

    /// What the last reading added, for the cost and the receipts.
    pub(super) fn increments(&self, gpu: GpuId, elapsed_ns: u64, out: &mut Vec<Increment>) {
        out.extend(self.added.iter().map(|added| {
            let &Added { owner, method, amount, ns, .. } = added;
            let what = match added.resource {
                Resource::Busy => Amount::Busy(method),
                Resource::Memory => {
                    let bytes = amount.checked_div(ns.into()).unwrap_or(0);
                    Amount::Memory { byte_ns: amount, bytes: u64::try_from(bytes).unwrap_or(0) }
                }
                Resource::Energy => Amount::Energy { microjoules: amount, ns },
            };
            Increment { gpu, owner, elapsed_ns, what }
        }));
    }

    /// Divides what the device has at this reading.
    fn level(&mut self, level: Level, total: u128, parts: &[Part]) {
        let accounts = &mut self.accounts;
        divide::split(total, parts, |part, amount| accounts.add_level(part.owner, level, amount));
    }

    fn share(&mut self, resource: Resource, total: u128, ns: u64, parts: &[Part]) {
        add(&mut self.totals, resource, total);
        let (accounts, added) = (&mut self.accounts, &mut self.added);
        divide::split(total, parts, |part, amount| {
            let Part { owner, method, .. } = *part;
            accounts.add(owner, method, resource, amount);
            added.push(Added { owner, method, resource, amount, ns });
        });
    }
}
