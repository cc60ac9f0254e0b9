//! The ledger: each device's busy time, memory and energy, split over the owners of its processes.
//!
//! A stage of the pipeline between the readers and the enrich stage. From a reader's batch, the
//! ownership table and the grants it makes the owners' counters and adds them to the same batch.
//! For each device and interval the owners' parts, with what nobody is known for, are exactly the
//! device's own amount: all sums are of whole nanoseconds, byte-nanoseconds and microjoules.
//!
//! Costs lookups in memory, no reads: one of the owner for each process on a device, one of the
//! account for each part. How a share is found is decided in [`divide`]; why, in
//! `docs/decisions/0007-shares.md`.

mod accounts;
mod allocations;
mod device;
mod divide;
#[cfg(test)]
mod fixture;
mod instances;
mod presence;
mod reading;

use crate::attribute::ownership::Ownership;
use crate::catalog::share as metric;
use crate::ids::GpuId;
use crate::inventory::Inventory;
use crate::sample::{Agent, Batch};
use allocations::Allocations;
use device::Device;
use divide::Part;
use presence::DeviceOpeners;
use reading::Readings;
use std::collections::BTreeMap;
use std::time::Duration;

/// A pause between readings that is longer than this many intervals is not an interval.
const MAX_GAP_INTERVALS: u32 = 3;
/// A pause this long always is one: ticks of milliseconds are late by more than themselves.
const SHORTEST_GAP: Duration = Duration::from_secs(2);
/// Batches between two clearings of the parties that nobody needs: ten minutes at ten seconds.
const CLEAR_EVERY: u64 = 60;

/// The accounts of every device.
#[derive(Debug)]
pub struct Accounting {
    longest: Duration,
    devices: BTreeMap<GpuId, Device>,
    allocations: Allocations,
    readings: Readings,
    presences: DeviceOpeners,
    parts: Vec<Part>,
    folded: u64,
    batches: u64,
}

impl Accounting {
    /// No account yet; readings come at `interval`.
    pub fn new(interval: Duration) -> Self {
        Self {
            longest: (interval * MAX_GAP_INTERVALS).max(SHORTEST_GAP),
            devices: BTreeMap::new(),
            allocations: Allocations::default(),
            readings: Readings::default(),
            presences: DeviceOpeners::default(),
            parts: Vec::new(),
            folded: 0,
            batches: 0,
        }
    }

    /// Books what a batch says of devices, and adds the owners' counters to it. A batch of another
    /// source stays as it is.
    pub fn account(&mut self, batch: &mut Batch, ownership: &Ownership, inventory: &Inventory) {
        self.readings.take(batch, ownership, inventory);
        if self.readings.is_empty() {
            return;
        }
        self.allocations.bind(ownership.allocations(), inventory);
        self.presences.look(ownership, inventory);
        for reading in self.readings.iter_mut() {
            let device = self.devices.entry(reading.gpu).or_default();
            if let Some(at) = reading.at {
                device.recall_samples(reading, at);
                let grants = self.allocations.on(reading.gpu);
                device.record((&*reading, at), self.longest, grants, &mut self.parts);
                device.emit(reading.gpu, at, batch);
                self.presences.emit(reading, at, batch);
            } else {
                device.not_read();
            }
            let seen = (&*reading, &self.presences);
            self.allocations.account(seen, self.longest, ownership, batch);
        }
        self.folded += self.devices.values_mut().map(Device::take_folded).sum::<u64>();
        let folded = i64::try_from(self.folded).unwrap_or(i64::MAX);
        batch.push(metric::FOLDED.sample(Agent, (), folded));
        batch.push(metric::UNBOUND_GRANTS.sample(Agent, (), self.allocations.unbound()));
        self.clear(ownership);
    }

    /// Now and then forgets the parties of which there is no process, no account and no grant.
    fn clear(&mut self, ownership: &Ownership) {
        self.batches += 1;
        if self.batches.is_multiple_of(CLEAR_EVERY) {
            ownership.retain_owners(|owner| {
                self.allocations.names(owner)
                    || self.devices.values().any(|device| device.knows(owner))
            });
        }
    }
}

#[cfg(test)]
mod conservation_tests;
#[cfg(test)]
mod instances_tests;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole seconds and joules, which a double holds exactly")]
mod tests;
