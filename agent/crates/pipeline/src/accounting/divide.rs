//! Divides a device's use in an interval over its owners. Each function returns parts with weights;
//! [`split`] turns them into amounts that add up exactly.
//!
//! Nothing is guessed: use by several owners that no evidence splits is
//! [`ShareMethod::Unsplittable`] and unattributed.

use super::allocations::{Bound, rights};
use super::reading::{Occupancy, OnDevice, Reading, WHOLE};
use gpuwho_model::catalog::share::ShareMethod;
use gpuwho_model::ids::OwnerId;

/// One owner's part of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) owner: OwnerId,
    pub(super) method: ShareMethod,
    pub(super) weight: u128,
}

impl Part {
    /// Creates a part; without an identified owner its method is `none`, unless it is unsplittable.
    fn new(owner_id: OwnerId, method: ShareMethod, weight: impl Into<u128>) -> Self {
        let is_known = owner_id != OwnerId::UNATTRIBUTED || method == ShareMethod::Unsplittable;
        let method = if is_known { method } else { ShareMethod::Nobody };
        Self { owner: owner_id, method, weight: weight.into() }
    }

    /// The unattributed part.
    pub(super) fn idle(weight: impl Into<u128>) -> Self {
        Self::new(OwnerId::UNATTRIBUTED, ShareMethod::Nobody, weight)
    }

    fn unsplittable(weight: impl Into<u128>) -> Self {
        Self::new(OwnerId::UNATTRIBUTED, ShareMethod::Unsplittable, weight)
    }
}

/// Gives each part its amount of a total. Rounds running sums, not parts, so the amounts add up to
/// the total exactly; with a total weight of 0, all of it is unattributed.
pub(super) fn split(total: u128, parts: &[Part], mut give: impl FnMut(&Part, u128)) {
    let whole: u128 = parts.iter().map(|part| part.weight).sum();
    if whole == 0 {
        for part in parts {
            give(part, 0);
        }
        return give(&Part::idle(0_u8), total);
    }
    let mut share = running(total, whole);
    for part in parts {
        give(part, share(part.weight));
    }
}

/// Gives each weight in turn its share of a total. Rounds running sums, so that the shares of weights
/// that add up to `whole` add up to the total exactly.
pub(super) fn running(total: u128, whole: u128) -> impl FnMut(u128) -> u128 {
    let (mut weight, mut given) = (0_u128, 0);
    move |more| {
        weight = weight.saturating_add(more);
        let up_to = total.saturating_mul(weight) / whole.max(1);
        let amount = up_to - given;
        given = up_to;
        amount
    }
}

/// Divides a device's busy time. The driver's process samples cover another period than its device
/// value and may add up to more or less, so they only give the proportions. If there is an
/// unidentified process, it gets what the samples leave of the device value.
pub(super) fn busy(reading: &Reading, parts: &mut Vec<Part>) {
    parts.clear();
    match reading.occupancy() {
        Occupancy::Idle | Occupancy::Unidentified => parts.push(Part::idle(1_u8)),
        Occupancy::One(owner_id) => parts.push(Part::new(owner_id, ShareMethod::Exclusive, 1_u8)),
        Occupancy::Several if reading.sampled() == 0 => {
            // Weight 0 keeps the owners' series.
            let zero = reading.processes.iter().filter(|on| !on.serves);
            parts.extend(zero.map(|on| Part::new(on.owner, ShareMethod::Sampled, 0_u8)));
            parts.push(Part::unsplittable(1_u8));
        }
        Occupancy::Several => {
            parts.extend(reading.processes.iter().map(|on| {
                if on.serves {
                    // The clients' work; the driver does not name the client.
                    Part::unsplittable(on.busy())
                } else {
                    Part::new(on.owner, ShareMethod::Sampled, on.busy())
                }
            }));
            if reading.unidentified() > 0 {
                let left = reading.busy.unwrap_or(0).saturating_sub(reading.sampled());
                parts.push(Part::idle(left));
            }
        }
    }
}

/// Divides a partitioned device's busy time over the owners in its partitions (GPU instances, AMD's
/// partitions) and returns the busy fraction of the device, of [`WHOLE`]. A partition's work belongs to
/// its only owner. `None` if one that may be in use reports no utilisation.
pub(super) fn busy_instances(reading: &Reading, parts: &mut Vec<Part>) -> Option<u64> {
    parts.clear();
    let instances = reading.gpu_instances()?;
    parts.extend(instances.iter().map(|instance| match instance.occupancy {
        Occupancy::One(owner_id) => Part::new(owner_id, ShareMethod::Instance, instance.busy),
        Occupancy::Idle => Part::idle(instance.busy),
        Occupancy::Unidentified | Occupancy::Several => Part::unsplittable(instance.busy),
    }));
    let busy: u64 = instances.iter().map(|instance| instance.busy).sum();
    Some(busy.min(WHOLE))
}

/// Divides the used memory, and returns it in bytes: each process's bytes go to its owner, the rest is
/// unattributed. A device that shares the host's memory has no value of its own (GB10): then it is what its
/// processes hold. `None` if neither is known.
pub(super) fn memory(reading: &Reading, parts: &mut Vec<Part>) -> Option<u128> {
    parts.clear();
    let occupancy = reading.occupancy();
    let is_reported = reading.processes.iter().all(|on| on.memory.is_some() || on.ended);
    if let (Some(used), Occupancy::One(owner_id)) = (reading.memory, occupancy)
        && !is_reported
    {
        // Virtual GPUs and confidential computing: the driver reports only the device's value.
        parts.push(Part::new(owner_id, ShareMethod::Exclusive, used));
        return Some(used.into());
    }
    let method = |on: &OnDevice| match occupancy {
        _ if on.instance.is_some() => ShareMethod::Instance,
        Occupancy::One(_) => ShareMethod::Exclusive,
        Occupancy::Idle | Occupancy::Unidentified | Occupancy::Several => ShareMethod::Sampled,
    };
    let held = reading.processes.iter();
    parts.extend(held.filter_map(|on| Some(Part::new(on.owner, method(on), on.memory?))));
    let sum: u128 = parts.iter().map(|part| part.weight).sum();
    let Some(used) = reading.memory.map(u128::from) else {
        return (!parts.is_empty()).then_some(sum);
    };
    match used.checked_sub(sum) {
        Some(rest) if is_reported => parts.push(Part::idle(rest)),
        Some(rest) => parts.push(Part::unsplittable(rest)),
        None => scale(used, parts),
    }
    Some(used)
}

/// Divides the energy.
pub(super) fn energy(reading: &Reading, allocations: &[Bound], parts: &mut Vec<Part>) {
    match (reading.busy, reading.occupancy()) {
        _ if !reading.instances.is_empty() => instances(reading, allocations, parts),
        (None, Occupancy::Several) => {
            parts.clear();
            parts.push(Part::unsplittable(1_u8));
        }
        (Some(0) | None, _) => idle(reading, allocations, parts),
        (Some(_), _) => busy(reading, parts),
    }
}

/// Divides the energy of an idle device: to its only owner, else by memory held, else to the owners of
/// its allocations by their rights.
fn idle(reading: &Reading, allocations: &[Bound], parts: &mut Vec<Part>) {
    parts.clear();
    match reading.occupancy() {
        Occupancy::One(owner_id) => parts.push(Part::new(owner_id, ShareMethod::Exclusive, 1_u8)),
        Occupancy::Unidentified => parts.push(Part::idle(1_u8)),
        Occupancy::Idle if allocations.is_empty() => parts.push(Part::idle(1_u8)),
        Occupancy::Idle => {
            let allocated = rights(allocations, |_| true);
            parts.extend(
                allocated.map(|(owner, right)| Part::new(owner, ShareMethod::Allocated, right)),
            );
        }
        Occupancy::Several => {
            let held = reading.processes.iter().filter_map(|on| Some((on.owner, on.memory?)));
            parts.extend(
                held.map(|(owner_id, held)| Part::new(owner_id, ShareMethod::Allocated, held)),
            );
            let sum: u128 = parts.iter().map(|part| part.weight).sum();
            if reading.unidentified() > 0 {
                let used = u128::from(reading.memory.unwrap_or(0));
                parts.push(Part::idle(used.saturating_sub(sum)));
            }
            if sum == 0 {
                parts.push(Part::unsplittable(1_u8));
            }
        }
    }
}

/// Divides the energy of a partitioned device: an instance's part is its share of the compute
/// slices of all instances. It goes to the only owner in the instance; that of an instance without
/// processes to the owner of its allocation.
fn instances(reading: &Reading, allocations: &[Bound], parts: &mut Vec<Part>) {
    parts.clear();
    for slice in &reading.instances {
        let mut allocated =
            allocations.iter().filter(|allocation| allocation.instance == Some(slice.instance));
        parts.push(match reading.occupancy_of(|instance| instance == slice.instance) {
            Occupancy::One(owner_id) => Part::new(owner_id, ShareMethod::Instance, slice.size),
            Occupancy::Unidentified | Occupancy::Several => Part::unsplittable(slice.size),
            Occupancy::Idle => match allocated.next() {
                Some(allocation) if allocated.all(|other| other.owner == allocation.owner) => {
                    Part::new(allocation.owner, ShareMethod::Allocated, slice.size)
                }
                _ => Part::idle(slice.size),
            },
        });
    }
}

/// Scales the weights so that they add up to a smaller total.
fn scale(total: u128, parts: &mut [Part]) {
    let whole: u128 = parts.iter().map(|part| part.weight).sum();
    let mut share = running(total, whole);
    for part in parts {
        part.weight = share(part.weight);
    }
}

#[cfg(test)]
mod tests;
