//! How a device's use in an interval is divided over the parties on it. Each function gives parts
//! whose weights [`split`] turns into amounts that add up exactly.
//!
//! Nothing is guessed: what several parties may have used and nothing splits is
//! [`ShareMethod::Unsplittable`], and belongs to nobody.

use super::allocations::Bound;
use super::reading::{Occupancy, OnDevice, Reading, WHOLE};
use crate::attribute::owner::OwnerId;
use crate::catalog::share::ShareMethod;

/// A party's part of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) owner: OwnerId,
    pub(super) method: ShareMethod,
    pub(super) weight: u128,
}

impl Part {
    /// A part; that of an owner who is not known is nobody's, however it was found.
    fn new(owner_id: OwnerId, method: ShareMethod, weight: impl Into<u128>) -> Self {
        let is_known = owner_id != OwnerId::UNATTRIBUTED || method == ShareMethod::Unsplittable;
        let method = if is_known { method } else { ShareMethod::Nobody };
        Self { owner: owner_id, method, weight: weight.into() }
    }

    /// What nobody is known for.
    pub(super) fn idle(weight: impl Into<u128>) -> Self {
        Self::new(OwnerId::UNATTRIBUTED, ShareMethod::Nobody, weight)
    }

    fn unsplittable(weight: impl Into<u128>) -> Self {
        Self::new(OwnerId::UNATTRIBUTED, ShareMethod::Unsplittable, weight)
    }
}

/// Gives each part its amount of a total. Running sums are rounded, not parts, so that nothing is
/// lost or added; without any weight all of it is nobody's.
pub(super) fn split(total: u128, parts: &[Part], mut give: impl FnMut(&Part, u128)) {
    let whole: u128 = parts.iter().map(|part| part.weight).sum();
    if whole == 0 {
        for part in parts {
            give(part, 0);
        }
        return give(&Part::idle(0_u8), total);
    }
    let (mut weight, mut given) = (0, 0);
    for part in parts {
        weight += part.weight;
        let up_to = total.saturating_mul(weight) / whole;
        give(part, up_to - given);
        given = up_to;
    }
}

/// Who kept a device busy. The driver's samples of processes cover another time than its value of
/// the device, and may add up to more or less: they only say in what proportion, unless somebody
/// unknown is there, who then has what they leave.
pub(super) fn busy(reading: &Reading, parts: &mut Vec<Part>) {
    parts.clear();
    match reading.occupancy() {
        Occupancy::Nobody | Occupancy::Strangers => parts.push(Part::idle(1_u8)),
        Occupancy::One(owner_id) => parts.push(Part::new(owner_id, ShareMethod::Exclusive, 1_u8)),
        Occupancy::Several if reading.sampled() == 0 => {
            // Those who are there keep their series.
            let zero = reading.processes.iter().filter(|on| !on.serves);
            parts.extend(zero.map(|on| Part::new(on.owner, ShareMethod::Sampled, 0_u8)));
            parts.push(Part::unsplittable(1_u8));
        }
        Occupancy::Several => {
            parts.extend(reading.processes.iter().map(|on| {
                if on.serves {
                    // Its clients' work, without a word on which one's.
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

/// Who kept the MIG instances of a device busy, and how busy that is of the device, of
/// [`WHOLE`]: a GPU instance's work is the only party's in it. `None` where
/// nothing tells of one that anybody may be in.
pub(super) fn busy_instances(reading: &Reading, parts: &mut Vec<Part>) -> Option<u64> {
    parts.clear();
    let instances = reading.gpu_instances()?;
    parts.extend(instances.iter().map(|instance| match instance.occupancy {
        Occupancy::One(owner_id) => Part::new(owner_id, ShareMethod::Instance, instance.busy),
        Occupancy::Nobody => Part::idle(instance.busy),
        Occupancy::Strangers | Occupancy::Several => Part::unsplittable(instance.busy),
    }));
    let busy: u64 = instances.iter().map(|instance| instance.busy).sum();
    Some(busy.min(WHOLE))
}

/// Whose the used memory is, in bytes: what each process holds, and the rest nobody's.
pub(super) fn memory(reading: &Reading, used: u64, parts: &mut Vec<Part>) {
    parts.clear();
    let crew = reading.occupancy();
    let is_reported = reading.processes.iter().all(|on| on.memory.is_some() || on.ended);
    if let Occupancy::One(owner_id) = crew
        && !is_reported
    {
        // Virtual GPUs and confidential computing: the driver tells the device's only.
        return parts.push(Part::new(owner_id, ShareMethod::Exclusive, used));
    }
    let method = |on: &OnDevice| match crew {
        _ if on.instance.is_some() => ShareMethod::Instance,
        Occupancy::One(_) => ShareMethod::Exclusive,
        Occupancy::Nobody | Occupancy::Strangers | Occupancy::Several => ShareMethod::Sampled,
    };
    let held = reading.processes.iter();
    parts.extend(held.filter_map(|on| Some(Part::new(on.owner, method(on), on.memory?))));
    let sum: u128 = parts.iter().map(|part| part.weight).sum();
    match u128::from(used).checked_sub(sum) {
        Some(rest) if is_reported => parts.push(Part::idle(rest)),
        Some(rest) => parts.push(Part::unsplittable(rest)),
        None => scale(used.into(), parts),
    }
}

/// Whose the energy is.
pub(super) fn energy(reading: &Reading, grants: &[Bound], parts: &mut Vec<Part>) {
    match (reading.busy, reading.occupancy()) {
        (None, _) if !reading.instances.is_empty() => instances(reading, grants, parts),
        (None, Occupancy::Several) => {
            parts.clear();
            parts.push(Part::unsplittable(1_u8));
        }
        (Some(0) | None, _) => idle(reading, grants, parts),
        (Some(_), _) => busy(reading, parts),
    }
}

/// Whose the energy of an idle device is: the only holder's, else by memory held, else in equal
/// parts to those it is granted to.
fn idle(reading: &Reading, grants: &[Bound], parts: &mut Vec<Part>) {
    parts.clear();
    match reading.occupancy() {
        Occupancy::One(owner_id) => parts.push(Part::new(owner_id, ShareMethod::Exclusive, 1_u8)),
        Occupancy::Strangers => parts.push(Part::idle(1_u8)),
        Occupancy::Nobody if grants.is_empty() => parts.push(Part::idle(1_u8)),
        Occupancy::Nobody => {
            let granted = grants.iter().map(|allocation| allocation.owner);
            parts.extend(granted.map(|owner_id| Part::new(owner_id, ShareMethod::Allocated, 1_u8)));
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

/// Whose the energy of a device in MIG mode is: an instance's part is its share of the compute
/// slices in use by instances, and belongs to the only party in it, else to those it is granted to.
fn instances(reading: &Reading, grants: &[Bound], parts: &mut Vec<Part>) {
    parts.clear();
    for slice in &reading.instances {
        let mut granted =
            grants.iter().filter(|allocation| allocation.instance == Some(slice.instance));
        parts.push(match reading.occupancy_of(|instance| instance == slice.instance) {
            Occupancy::One(owner_id) => Part::new(owner_id, ShareMethod::Instance, slice.size),
            Occupancy::Strangers | Occupancy::Several => Part::unsplittable(slice.size),
            Occupancy::Nobody => match granted.next() {
                Some(allocation) if granted.all(|other| other.owner == allocation.owner) => {
                    Part::new(allocation.owner, ShareMethod::Allocated, slice.size)
                }
                _ => Part::idle(slice.size),
            },
        });
    }
}

/// Makes the weights add up to a total that is less.
fn scale(total: u128, parts: &mut [Part]) {
    let whole: u128 = parts.iter().map(|part| part.weight).sum();
    let (mut weight, mut given) = (0, 0);
    for part in parts {
        weight += part.weight;
        let up_to = total.saturating_mul(weight) / whole.max(1);
        part.weight = up_to - given;
        given = up_to;
    }
}

#[cfg(test)]
mod tests;
