//! How a device's use in an interval is divided over the parties on it. Each function gives parts
//! whose weights [`split`] turns into amounts that add up exactly.
//!
//! Nothing is guessed: what several parties may have used and nothing splits is
//! [`ShareMethod::Unsplittable`], and belongs to nobody.

use super::allocations::Bound;
use super::reading::{Crew, OnDevice, Reading, WHOLE};
use crate::attribute::party::PartyId;
use crate::catalog::share::ShareMethod;

/// A party's part of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) party: PartyId,
    pub(super) method: ShareMethod,
    pub(super) weight: u128,
}

impl Part {
    /// A part; that of an owner who is not known is nobody's, however it was found.
    fn new(party: PartyId, method: ShareMethod, weight: impl Into<u128>) -> Self {
        let is_known = party != PartyId::UNATTRIBUTED || method == ShareMethod::Unsplittable;
        let method = if is_known { method } else { ShareMethod::Nobody };
        Self { party, method, weight: weight.into() }
    }

    /// What nobody is known for.
    pub(super) fn nobody(weight: impl Into<u128>) -> Self {
        Self::new(PartyId::UNATTRIBUTED, ShareMethod::Nobody, weight)
    }

    fn unsplittable(weight: impl Into<u128>) -> Self {
        Self::new(PartyId::UNATTRIBUTED, ShareMethod::Unsplittable, weight)
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
        return give(&Part::nobody(0_u8), total);
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
    match reading.crew() {
        Crew::Nobody | Crew::Strangers => parts.push(Part::nobody(1_u8)),
        Crew::One(party) => parts.push(Part::new(party, ShareMethod::Exclusive, 1_u8)),
        Crew::Several if reading.sampled() == 0 => {
            // Those who are there keep their series.
            let zero = reading.processes.iter().filter(|on| !on.serves);
            parts.extend(zero.map(|on| Part::new(on.party, ShareMethod::Sampled, 0_u8)));
            parts.push(Part::unsplittable(1_u8));
        }
        Crew::Several => {
            parts.extend(reading.processes.iter().map(|on| {
                if on.serves {
                    // Its clients' work, without a word on which one's.
                    Part::unsplittable(on.busy())
                } else {
                    Part::new(on.party, ShareMethod::Sampled, on.busy())
                }
            }));
            if reading.unidentified() > 0 {
                let left = reading.busy.unwrap_or(0).saturating_sub(reading.sampled());
                parts.push(Part::nobody(left));
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
    parts.extend(instances.iter().map(|instance| match instance.crew {
        Crew::One(party) => Part::new(party, ShareMethod::Instance, instance.busy),
        Crew::Nobody => Part::nobody(instance.busy),
        Crew::Strangers | Crew::Several => Part::unsplittable(instance.busy),
    }));
    let busy: u64 = instances.iter().map(|instance| instance.busy).sum();
    Some(busy.min(WHOLE))
}

/// Whose the used memory is, in bytes: what each process holds, and the rest nobody's.
pub(super) fn memory(reading: &Reading, used: u64, parts: &mut Vec<Part>) {
    parts.clear();
    let crew = reading.crew();
    let is_told = reading.processes.iter().all(|on| on.memory.is_some() || on.ended);
    if let Crew::One(party) = crew
        && !is_told
    {
        // Virtual GPUs and confidential computing: the driver tells the device's only.
        return parts.push(Part::new(party, ShareMethod::Exclusive, used));
    }
    let method = |on: &OnDevice| match crew {
        _ if on.instance.is_some() => ShareMethod::Instance,
        Crew::One(_) => ShareMethod::Exclusive,
        Crew::Nobody | Crew::Strangers | Crew::Several => ShareMethod::Sampled,
    };
    let held = reading.processes.iter();
    parts.extend(held.filter_map(|on| Some(Part::new(on.party, method(on), on.memory?))));
    let sum: u128 = parts.iter().map(|part| part.weight).sum();
    match u128::from(used).checked_sub(sum) {
        Some(rest) if is_told => parts.push(Part::nobody(rest)),
        Some(rest) => parts.push(Part::unsplittable(rest)),
        None => scale(used.into(), parts),
    }
}

/// Whose the energy is.
pub(super) fn energy(reading: &Reading, grants: &[Bound], parts: &mut Vec<Part>) {
    match (reading.busy, reading.crew()) {
        (None, _) if !reading.instances.is_empty() => instances(reading, grants, parts),
        (None, Crew::Several) => {
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
    match reading.crew() {
        Crew::One(party) => parts.push(Part::new(party, ShareMethod::Exclusive, 1_u8)),
        Crew::Strangers => parts.push(Part::nobody(1_u8)),
        Crew::Nobody if grants.is_empty() => parts.push(Part::nobody(1_u8)),
        Crew::Nobody => {
            let granted = grants.iter().map(|grant| grant.party);
            parts.extend(granted.map(|party| Part::new(party, ShareMethod::Allocated, 1_u8)));
        }
        Crew::Several => {
            let held = reading.processes.iter().filter_map(|on| Some((on.party, on.memory?)));
            parts.extend(held.map(|(party, held)| Part::new(party, ShareMethod::Allocated, held)));
            let sum: u128 = parts.iter().map(|part| part.weight).sum();
            if reading.unidentified() > 0 {
                let used = u128::from(reading.memory.unwrap_or(0));
                parts.push(Part::nobody(used.saturating_sub(sum)));
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
        let mut granted = grants.iter().filter(|grant| grant.instance == Some(slice.instance));
        parts.push(match reading.crew_of(|instance| instance == slice.instance) {
            Crew::One(party) => Part::new(party, ShareMethod::Instance, slice.size),
            Crew::Strangers | Crew::Several => Part::unsplittable(slice.size),
            Crew::Nobody => match granted.next() {
                Some(grant) if granted.all(|other| other.party == grant.party) => {
                    Part::new(grant.party, ShareMethod::Allocated, slice.size)
                }
                _ => Part::nobody(slice.size),
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
