//! Who is on a device, by two kinds of evidence: the driver's list, and the device nodes that
//! processes were seen to open. One pass over the living rows of the ownership table a batch.

use super::accounts::MAX_ACCOUNTS;
use super::reading::Reading;
use crate::attribute::grants::DeviceName;
use crate::attribute::ownership::Ownership;
use crate::attribute::party::PartyId;
use crate::catalog::share::{self as metric, Presence};
use crate::ids::GpuId;
use crate::inventory::Inventory;
use crate::sample::{Batch, GpuParty};
use std::time::SystemTime;

/// The vendor whose nodes carry the minor number that its driver tells.
const NVIDIA: &str = "nvidia";
/// The openings of devices; the buffers are kept.
#[derive(Debug, Default)]
pub(super) struct Presences {
    /// One for each living process that opened a device, sorted.
    opened: Vec<(GpuId, PartyId)>,
    by_minor: Vec<(u32, GpuId)>,
    /// The parties of one device's processes, sorted.
    counted: Vec<PartyId>,
}

impl Presences {
    /// Looks at every process that holds a device.
    pub(super) fn look(&mut self, ownership: &Ownership, inventory: &Inventory) {
        self.by_minor.clear();
        let devices = inventory.all().into_iter().filter(|(_, info)| info.vendor == NVIDIA);
        self.by_minor.extend(devices.filter_map(|(gpu, info)| Some((info.minor?, gpu))));
        self.opened.clear();
        ownership.openings(|party, node| {
            let Some(DeviceName::Minor(minor)) = DeviceName::of_node(node) else { return };
            let device = self.by_minor.iter().find(|(known, _)| *known == minor);
            self.opened.extend(device.map(|(_, gpu)| (*gpu, party)));
        });
        self.opened.sort_unstable();
    }

    /// Whether a process of a party opened a device.
    pub(super) fn has_opened(&self, gpu: GpuId, party: PartyId) -> bool {
        self.opened.binary_search(&(gpu, party)).is_ok()
    }

    /// The number of processes of each party on a device.
    pub(super) fn emit(&mut self, reading: &Reading, at: SystemTime, out: &mut Batch) {
        let gpu = reading.gpu;
        self.counted.clear();
        let living = reading.processes.iter().filter(|on| !on.ended);
        self.counted.extend(living.map(|on| on.party));
        self.counted.sort_unstable();
        emit((gpu, Presence::Listed), &self.counted, at, out);
        self.counted.clear();
        let first = self.opened.partition_point(|(on, _)| *on < gpu);
        let here = self.opened.iter().skip(first).take_while(|(on, _)| *on == gpu);
        self.counted.extend(here.map(|(_, party)| *party));
        emit((gpu, Presence::Opened), &self.counted, at, out);
    }
}

/// Counts equal neighbours; those beyond [`MAX_ACCOUNTS`] together.
fn emit((gpu, presence): (GpuId, Presence), parties: &[PartyId], at: SystemTime, out: &mut Batch) {
    let mut other = 0;
    for (place, same) in parties.chunk_by(PartialEq::eq).enumerate() {
        let count = i64::try_from(same.len()).unwrap_or(i64::MAX);
        match same.first() {
            Some(&party) if place < MAX_ACCOUNTS => {
                let subject = GpuParty { gpu, party };
                out.at(at, metric::OWNER_PROCESSES.sample(subject, presence, count));
            }
            _ => other += count,
        }
    }
    if other > 0 {
        let subject = GpuParty { gpu, party: PartyId::OTHER };
        out.at(at, metric::OWNER_PROCESSES.sample(subject, presence, other));
    }
}
