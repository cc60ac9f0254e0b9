//! Splits each device's busy time, memory and energy over the owners of its processes.
//!
//! A pipeline stage between the readers and the enrich stage. It computes the owners' counters from
//! a reader's batch, the ownership table and the allocations, and adds them to the same batch. For
//! each device and interval, the owners' shares plus the unattributed rest equal the device's own
//! amount exactly: all sums are whole nanoseconds, byte-nanoseconds and microjoules.
//!
//! Cost: lookups in memory only, one owner lookup for each process on a device and one account
//! lookup for each share. [`divide`] decides how a share is found; `docs/decisions/0007-shares.md`
//! explains why.

mod accounts;
mod allocations;
mod device;
mod disputes;
mod divide;
#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests only"
)]
pub mod fixture;
mod instances;
mod presence;
mod reading;
mod time;

use allocations::Allocations;
use device::Device;
use divide::Part;
use gpuwho_model::catalog::cost::TimeUse;
use gpuwho_model::catalog::share::{self as metric, ShareMethod};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::Inventory;
use presence::DeviceOpeners;
use reading::Readings;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use time::{Elapsed, TimeDivision};

/// A pause between two readings longer than this many intervals is a gap: no time is accounted.
const MAX_GAP_INTERVALS: u32 = 3;
/// The gap limit is never below this: at intervals of milliseconds, a tick is often late by more
/// than its interval.
const MIN_GAP: Duration = Duration::from_secs(2);
/// Batches between two removals of unused owners: ten minutes at a 10 s interval.
const CLEAR_EVERY: u64 = 60;

/// What a batch added to an owner's account of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Increment {
    /// The device.
    pub gpu: GpuId,
    /// The owner, `unattributed` included.
    pub owner: OwnerId,
    /// Nanoseconds since the device's last batch, on a clock that no one sets.
    pub elapsed_ns: u64,
    /// What was added.
    pub what: Amount,
}

/// What is added to an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The owner is on the device, or has it allocated.
    Present,
    /// Nanoseconds of the device; of all owners together the time since the last batch.
    Time(TimeUse, u64),
    /// Nanoseconds of the device that were allocated to the owner.
    Granted(u64),
    /// Busy time was divided, by this method.
    Busy(ShareMethod),
    /// Memory held.
    Memory {
        /// Over time.
        byte_ns: u128,
        /// Bytes.
        bytes: u64,
    },
    /// Energy.
    Energy {
        /// Microjoules.
        microjoules: u128,
        /// Nanoseconds between the readings of the counter: a rate is over these, not over `elapsed_ns`.
        ns: u64,
    },
}

/// The owner that all processes on a device have; none where nobody knows who some of them are.
pub fn only_owner(
    mut owners: impl Iterator<Item = OwnerId>,
    unidentified: usize,
) -> Option<OwnerId> {
    let first = owners.next().filter(|_| unidentified == 0)?;
    owners.all(|owner| owner == first).then_some(first)
}

/// The accounts of all devices.
#[derive(Debug)]
pub struct Accounting {
    max_gap: Duration,
    devices: BTreeMap<GpuId, Device>,
    allocations: Allocations,
    readings: Readings,
    openers: DeviceOpeners,
    parts: Vec<Part>,
    folded: u64,
    batches: u64,
    started: Instant,
    /// When the last batch of each device came, since `started`.
    last: BTreeMap<GpuId, Duration>,
    division: TimeDivision,
    increments: Vec<Increment>,
    /// How many samples the last batch was given.
    added: usize,
}

impl Accounting {
    /// Starts with no accounts; `interval` is the time between readings.
    pub fn new(interval: Duration) -> Self {
        let max_gap = (interval * MAX_GAP_INTERVALS).max(MIN_GAP);
        Self {
            max_gap,
            devices: BTreeMap::new(),
            allocations: Allocations::new(max_gap),
            readings: Readings::default(),
            openers: DeviceOpeners::default(),
            parts: Vec::new(),
            folded: 0,
            batches: 0,
            started: Instant::now(),
            last: BTreeMap::new(),
            division: TimeDivision::default(),
            increments: Vec::new(),
            added: 0,
        }
    }

    /// Accounts the device readings of a batch and adds the owners' counters to it. A batch without
    /// device readings stays unchanged.
    pub fn account(&mut self, batch: &mut Batch, ownership: &Ownership, inventory: &Inventory) {
        self.account_at(self.started.elapsed(), batch, ownership, inventory);
    }

    /// What the last batch added, for the cost and the receipts: by device, and sorted by owner.
    pub fn increments(&self) -> &[Increment] {
        &self.increments
    }

    /// The same at a time of a clock that no one sets.
    fn account_at(
        &mut self,
        now: Duration,
        batch: &mut Batch,
        ownership: &Ownership,
        inventory: &Inventory,
    ) {
        self.increments.clear();
        self.readings.take(batch, ownership, inventory);
        if self.readings.is_empty() {
            return;
        }
        // One growth of the batch, not one after another.
        let read = batch.samples.len();
        batch.samples.reserve_exact(self.added);
        for reading in self.readings.iter_mut() {
            self.allocations.note_instances(reading);
        }
        self.allocations.bind(ownership.allocations(), inventory);
        self.openers.update(ownership, inventory);
        for reading in self.readings.iter_mut() {
            let device = self.devices.entry(reading.gpu).or_default();
            if let Some(at) = reading.at {
                device.reuse_samples(reading, at);
                let allocations = self.allocations.on(reading.gpu);
                device.record(reading, self.max_gap, allocations, &mut self.parts);
                device.emit(reading.gpu, at, batch);
                self.openers.emit(reading, at, batch);
            } else {
                device.mark_missed();
            }
            self.division.members =
                self.allocations.account(reading, &self.openers, ownership, batch);
            let since = now.saturating_sub(self.last.insert(reading.gpu, now).unwrap_or(now));
            let elapsed_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            let (gpu, granted) = (reading.gpu, self.allocations.on(reading.gpu));
            let is_read = reading.at.is_some() && since <= self.max_gap;
            let out = &mut self.increments;
            let first = out.len();
            let elapsed = Elapsed { ns: elapsed_ns, is_read };
            self.division.divide(reading, elapsed, granted, out);
            if reading.at.is_some() {
                device.increments(gpu, elapsed_ns, out);
            }
            let live = reading.processes.iter().filter(|on| !on.ended).map(|on| on.owner);
            let granted = granted.iter().map(|bound| bound.owner);
            let present = live.chain(granted).chain(self.openers.owners_on(gpu));
            time::note_present(gpu, elapsed_ns, present, out);
            out.get_mut(first..).unwrap_or_default().sort_by_key(|increment| increment.owner);
        }
        // It grew by doubling, and the next batch adds about as many.
        self.increments.shrink_to(self.increments.len() + self.increments.len() / 8);
        self.folded += self.devices.values_mut().map(Device::take_folded).sum::<u64>();
        let folded = i64::try_from(self.folded).unwrap_or(i64::MAX);
        batch.push(metric::FOLDED.sample(Agent, (), folded));
        batch.push(metric::UNBOUND_GRANTS.sample(Agent, (), self.allocations.unbound()));
        self.added = batch.samples.len() - read;
        self.clear(ownership);
    }

    /// Every [`CLEAR_EVERY`] batches, removes owners that have no process, no account and no
    /// allocation.
    fn clear(&mut self, ownership: &Ownership) {
        self.batches += 1;
        if self.batches.is_multiple_of(CLEAR_EVERY) {
            ownership.retain_owners(|owner| {
                self.allocations.has_allocation(owner)
                    || self.devices.values().any(|device| device.has_account(owner))
            });
        }
    }
}

#[cfg(test)]
mod instances_tests;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole seconds and joules, which a double holds exactly")]
mod tests;
