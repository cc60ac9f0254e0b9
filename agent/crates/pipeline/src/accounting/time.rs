//! Divides the time of a device over owners: who used it, who had it and left it idle, and what no
//! reading shows. For each device and interval the parts add up to the interval exactly.
//!
//! Used time is divided like busy time. The rest goes to the owners that the device is allocated to,
//! those first that used less than their part; where nobody has it allocated, to the owners of its
//! processes; otherwise it has no owner. A MIG instance is a part of the device by its slices.

use super::allocations::{Bound, Members, is_of, rights};
use super::divide::{self, Part, running, split};
use super::reading::{Occupancy, Reading, WHOLE};
use super::{Amount, Increment};
use gpuwho_model::catalog::cost::TimeUse;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, InstanceId};

/// A part of a device that has its own owners: the whole device, a GPU instance, or what no
/// instance takes.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Its part of the device, of [`WHOLE`].
    extent: u64,
    /// Whether its use is known.
    is_known: bool,
}

/// Divides time; buffers are reused.
#[derive(Debug, Default)]
pub(super) struct TimeDivision {
    parts: Vec<Part>,
    /// Use in the current region, of [`WHOLE`].
    used: Vec<(OwnerId, u128)>,
    /// Owners with a right to the current region, with weights.
    entitled: Vec<(OwnerId, u128)>,
    /// Parts of the device, of [`WHOLE`].
    weights: Vec<(OwnerId, TimeUse, u128)>,
    granted: Vec<(OwnerId, u128)>,
    /// The containers on the device that use what their pod has.
    pub(super) members: Members,
}

/// The time since the last batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elapsed {
    pub(super) ns: u64,
    /// Whether the device was read in it.
    pub(super) is_read: bool,
}

impl TimeDivision {
    /// Divides the time since the last batch. Time in which the device was not read
    /// is known to be granted, but not how it was used.
    pub(super) fn divide(
        &mut self,
        reading: &Reading,
        Elapsed { ns: elapsed_ns, is_read }: Elapsed,
        allocations: &[Bound],
        out: &mut Vec<Increment>,
    ) {
        self.weights.clear();
        self.granted.clear();
        if reading.instances.is_empty() {
            self.device(reading, is_read, allocations);
        } else {
            self.instances(reading, is_read, allocations);
        }
        let increment = |owner, what| Increment { gpu: reading.gpu, owner, elapsed_ns, what };
        let whole: u128 = self.weights.iter().map(|(_, _, weight)| weight).sum();
        let mut share = running(elapsed_ns.into(), whole);
        for &(owner, state, weight) in &self.weights {
            out.push(increment(owner, Amount::Time(state, narrow(share(weight)))));
        }
        let granted: u128 = self.granted.iter().map(|(_, weight)| weight).sum();
        let mut share = running(elapsed_ns.into(), whole.max(granted));
        for &(owner, weight) in &self.granted {
            out.push(increment(owner, Amount::Granted(narrow(share(weight)))));
        }
    }

    /// A device that is not divided into instances.
    fn device(&mut self, reading: &Reading, is_read: bool, allocations: &[Bound]) {
        self.used.clear();
        self.entitled.clear();
        let occupancy = reading.occupancy();
        let busy = reading.busy.filter(|_| is_read);
        if let Some(busy) = busy {
            divide::busy(reading, &mut self.parts);
            let used = &mut self.used;
            split(busy.into(), &self.parts, |part, amount| used.push((part.owner, amount)));
        }
        self.entitled.extend(rights(allocations, |_| true));
        if allocations.is_empty() {
            self.entitle_holders(reading, occupancy);
        } else {
            self.grant(WHOLE);
        }
        // Without a process, a device that reports no utilisation is idle.
        let is_known = is_read && (busy.is_some() || occupancy == Occupancy::Idle);
        self.add(Region { extent: WHOLE, is_known });
    }

    /// Without an allocation, the owners of the processes have the device: by memory held, as they
    /// share the energy of an idle device.
    fn entitle_holders(&mut self, reading: &Reading, occupancy: Occupancy) {
        match occupancy {
            Occupancy::One(owner) => self.entitled.push((owner, 1)),
            Occupancy::Several => {
                let held = reading.processes.iter().filter_map(|on| Some((on.owner, on.memory?)));
                self.entitled.extend(held.map(|(owner, held)| (owner, held.into())));
                let sum: u128 = self.entitled.iter().map(|(_, weight)| weight).sum();
                let rest = u128::from(reading.memory.unwrap_or(0)).saturating_sub(sum);
                if reading.unidentified() > 0 {
                    self.entitled.push((OwnerId::UNATTRIBUTED, rest));
                }
            }
            Occupancy::Idle | Occupancy::Unidentified => {}
        }
    }

    /// The partitions of a device, and the part that none takes.
    fn instances(&mut self, reading: &Reading, is_read: bool, allocations: &[Bound]) {
        let counted = reading.gpu_instances().filter(|_| is_read);
        let mut left = WHOLE;
        for (place, (extent, slices)) in reading.extents().into_iter().enumerate() {
            left = left.saturating_sub(extent);
            self.used.clear();
            let instance = counted.as_ref().and_then(|counted| counted.get(place));
            if let Some(instance) = instance {
                let owner = match instance.occupancy {
                    Occupancy::One(owner) => owner,
                    _ => OwnerId::UNATTRIBUTED,
                };
                self.used.push((owner, instance.busy.min(extent).into()));
            }
            self.entitled.clear();
            let is_granted = slices
                .iter()
                .filter(|(instance, size)| {
                    !self.entitle_instance(reading, *instance, *size, allocations)
                })
                // Each of them is entitled, whatever the others are.
                .count()
                == 0;
            if is_granted {
                self.grant(extent);
            }
            self.add(Region { extent, is_known: instance.is_some() });
        }
        self.used.clear();
        self.entitled.clear();
        self.entitle(allocations, None, WHOLE.into());
        self.grant(left);
        self.add(Region { extent: left, is_known: is_read });
    }

    /// Gives an instance to those it is allocated to, else to those that have the whole device, else to
    /// the only owner in it. Returns whether it is allocated.
    fn entitle_instance(
        &mut self,
        reading: &Reading,
        instance: InstanceId,
        size: u32,
        allocations: &[Bound],
    ) -> bool {
        let size = u128::from(size.max(1)) * u128::from(WHOLE);
        if self.entitle(allocations, Some(instance), size) || self.entitle(allocations, None, size)
        {
            return true;
        }
        let owner = match reading.occupancy_of(|other| other == instance) {
            Occupancy::One(owner) => owner,
            _ => OwnerId::UNATTRIBUTED,
        };
        self.entitled.push((owner, size));
        false
    }

    /// Gives a part of the device to those that have an instance, or the whole device; false if nobody
    /// has.
    fn entitle(&mut self, allocations: &[Bound], on: Option<InstanceId>, weight: u128) -> bool {
        let rights = rights(allocations, |bound| bound.instance == on);
        let whole: u128 = rights.clone().map(|(_, right)| right).sum();
        self.entitled.extend(rights.map(|(owner, right)| (owner, weight * right / whole)));
        whole > 0
    }

    /// The current region is granted to those with a right to it.
    fn grant(&mut self, extent: u64) {
        let whole: u128 = self.entitled.iter().map(|(_, weight)| weight).sum();
        let mut share = running(extent.into(), whole);
        for &(owner, weight) in &self.entitled {
            add(&mut self.granted, owner, share(weight));
        }
    }

    /// Adds the current region: what is used, and the rest to those with a right to it, by what they
    /// did not use of their parts.
    fn add(&mut self, region: Region) {
        let Region { extent, is_known } = region;
        let state = if is_known { TimeUse::Idle } else { TimeUse::Unknown };
        let mut rest = u128::from(extent);
        for &(owner, used) in &self.used {
            let used = used.min(rest);
            rest -= used;
            self.weights.push((owner, TimeUse::Used, used));
        }
        let whole: u128 = self.entitled.iter().map(|(_, weight)| weight).sum();
        if whole == 0 {
            return self.weights.push((OwnerId::UNATTRIBUTED, state, rest));
        }
        let mut share = running(extent.into(), whole);
        let mut unused: Vec<(OwnerId, u128)> = Vec::with_capacity(self.entitled.len());
        for &(owner, weight) in &self.entitled {
            add(&mut unused, owner, share(weight));
        }
        for (owner, part) in &mut unused {
            let used = self.used.iter().filter(|(by, _)| is_of(*by, *owner, &self.members));
            *part = part.saturating_sub(used.map(|(_, used)| used).sum());
        }
        let mut whole: u128 = unused.iter().map(|(_, part)| part).sum();
        if whole == 0 {
            // All of it is used, or rounding has left a rest.
            for (_, part) in &mut unused {
                *part = 1;
            }
            whole = unused.len() as u128;
        }
        let mut share = running(rest, whole);
        self.weights.extend(unused.iter().map(|&(owner, part)| (owner, state, share(part))));
    }
}

/// Adds to an owner's entry.
fn add(list: &mut Vec<(OwnerId, u128)>, owner: OwnerId, amount: u128) {
    match list.iter_mut().find(|(known, _)| *known == owner) {
        Some((_, sum)) => *sum += amount,
        None => list.push((owner, amount)),
    }
}

/// A part of a number of this size.
fn narrow(part: u128) -> u64 {
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Notes the owners that are on a device or have it allocated.
pub(super) fn note_present(
    gpu: GpuId,
    elapsed_ns: u64,
    owners: impl Iterator<Item = OwnerId>,
    out: &mut Vec<Increment>,
) {
    let first = out.len();
    for owner in owners {
        let known = out.iter().skip(first).any(|increment| increment.owner == owner);
        if !known {
            out.push(Increment { gpu, owner, elapsed_ns, what: Amount::Present });
        }
    }
}

#[cfg(test)]
mod tests;
