//! One device's totals, and the intervals between its readings.
//!
//! An interval is the time between two readings that follow each other: of no other time is
//! anything claimed. Only the energy counter knows what happened in between; that energy is
//! nobody's.

use super::accounts::{Accounts, Amounts, MICRO, NANO, Resource, add};
use super::allocations::Bound;
use super::divide::{self, Part};
use super::reading::{Reading, WHOLE};
use crate::attribute::owner::OwnerId;
use crate::catalog::share as metric;
use crate::ids::{GpuId, ProcKey};
use crate::sample::Batch;
use std::time::{Duration, SystemTime};

/// How long the driver's last samples of processes stand where no newer have come: some of its
/// sample periods, of up to a second each. At intervals shorter than these a reading may find none.
const SAMPLES_STAND: Duration = Duration::from_secs(3);

/// A device's accounts.
#[derive(Debug, Default)]
pub(super) struct Device {
    last: Option<SystemTime>,
    /// A batch was without a reading since the last one.
    missed: bool,
    /// The energy counter when it was last read.
    energy: Option<u64>,
    /// It was not read with the last reading.
    energy_missed: bool,
    /// The last samples of processes, and when they came.
    samples: Vec<(ProcKey, u64)>,
    sampled: Option<SystemTime>,
    accounted_ns: u128,
    totals: Amounts,
    accounts: Accounts,
}

/// The time a reading stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interval {
    /// The reading of before once more.
    Same,
    /// This long since the reading before; 0 where the clock was set back.
    After(u64),
    /// There was none before, or it was too long ago.
    Gap,
}

impl Device {
    /// The device was not read this time.
    pub(super) fn not_read(&mut self) {
        self.missed = true;
    }

    /// Gives a reading that came without any sample of a process those of a moment ago.
    pub(super) fn recall_samples(&mut self, reading: &mut Reading, at: SystemTime) {
        if reading.processes.iter().any(|on| on.sampled.is_some()) {
            self.samples.clear();
            let fresh = reading.processes.iter();
            self.samples.extend(fresh.filter_map(|on| Some((on.process, on.sampled?))));
            self.sampled = Some(at);
            return;
        }
        let age = self.sampled.and_then(|sampled| at.duration_since(sampled).ok());
        if age.is_none_or(|age| age > SAMPLES_STAND) {
            return;
        }
        for on in &mut reading.processes {
            let last = self.samples.iter().find(|(process, _)| *process == on.process);
            on.sampled = last.map(|(_, sampled)| *sampled);
        }
    }

    /// Books a reading.
    pub(super) fn record(
        &mut self,
        (reading, at): (&Reading, SystemTime),
        longest: Duration,
        grants: &[Bound],
        parts: &mut Vec<Part>,
    ) {
        let interval = self.interval(at, longest);
        let ns = match interval {
            Interval::Same => return,
            Interval::After(ns) => u128::from(ns),
            Interval::Gap => 0,
        };
        self.last = Some(at);
        self.missed = false;
        self.accounted_ns += ns;
        self.accounts.begin(at);
        let busy = match reading.busy {
            Some(busy) => {
                divide::busy(reading, parts);
                Some(busy)
            }
            None => divide::busy_instances(reading, parts),
        };
        if let Some(busy) = busy {
            self.share(Resource::Busy, u128::from(busy) * ns / u128::from(WHOLE), parts);
        }
        if let Some(used) = reading.memory {
            divide::memory(reading, used, parts);
            self.share(Resource::Memory, u128::from(used) * ns, parts);
        }
        self.book_energy(reading, interval, grants, parts);
        self.accounts.expire();
    }

    /// Every counter as a sample.
    pub(super) fn emit(&self, gpu: GpuId, at: SystemTime, out: &mut Batch) {
        let seconds = self.accounted_ns as f64 / NANO;
        out.at(at, metric::ACCOUNTED_TIME.sample(gpu, (), seconds));
        let [busy, memory, energy] = self.totals;
        if let Some(busy) = busy {
            out.at(at, metric::BUSY_TIME.sample(gpu, (), busy as f64 / NANO));
            let nobody = self.accounts.unattributed(Resource::Busy) as f64 / NANO;
            out.at(at, metric::UNATTRIBUTED_TIME.sample(gpu, (), nobody));
        }
        let memory = memory.map(|sum| metric::MEMORY_TIME.sample(gpu, (), sum as f64 / NANO));
        let energy = energy.map(|sum| metric::ACCOUNTED_ENERGY.sample(gpu, (), sum as f64 / MICRO));
        out.samples.extend(memory.into_iter().chain(energy).map(|sample| (at, sample)));
        self.accounts.emit(gpu, at, out);
    }

    /// Whether a party has an account here.
    pub(super) fn knows(&self, owner_id: OwnerId) -> bool {
        self.accounts.knows(owner_id)
    }

    /// How many shares went on `other` since this was last asked.
    pub(super) fn take_folded(&mut self) -> u64 {
        self.accounts.take_folded()
    }

    fn interval(&self, at: SystemTime, longest: Duration) -> Interval {
        match self.last {
            Some(last) if last == at => Interval::Same,
            Some(last) if !self.missed => match at.duration_since(last) {
                Ok(length) if length > longest => Interval::Gap,
                Ok(length) => Interval::After(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)),
                Err(_) => Interval::After(0),
            },
            Some(_) | None => Interval::Gap,
        }
    }

    fn book_energy(
        &mut self,
        reading: &Reading,
        interval: Interval,
        grants: &[Bound],
        parts: &mut Vec<Part>,
    ) {
        let Some(now) = reading.energy else {
            self.energy_missed = true;
            return;
        };
        // A counter that fell has begun anew: how far it came before, nobody knows.
        let increase = self.energy.and_then(|before| now.checked_sub(before)).unwrap_or(0);
        if increase > 0 && (self.energy_missed || interval == Interval::Gap) {
            parts.clear();
            parts.push(Part::idle(1_u8));
        } else {
            divide::energy(reading, grants, parts);
        }
        self.energy = Some(now);
        self.energy_missed = false;
        self.share(Resource::Energy, increase.into(), parts);
    }

    fn share(&mut self, resource: Resource, total: u128, parts: &[Part]) {
        add(&mut self.totals, resource, total);
        let accounts = &mut self.accounts;
        divide::split(total, parts, |part, amount| {
            accounts.add((part.owner, part.method), resource, amount);
        });
    }
}
