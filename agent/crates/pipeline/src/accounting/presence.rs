//! The owners on a device by two kinds of evidence: the driver's process list, and the device nodes
//! that processes opened. Each batch scans the live processes of the ownership table once.

use super::accounts::MAX_ACCOUNTS;
use super::reading::Reading;
use gpuwho_model::catalog::share::{self as metric, Presence};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Batch, GpuOwner};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::{GpuInfo, Inventory, node_name};
use std::sync::Arc;
use std::time::SystemTime;

/// The opened devices; buffers are reused.
#[derive(Debug, Default)]
pub(super) struct DeviceOpeners {
    /// One entry for each live process that opened a device, sorted.
    opened: Vec<(GpuId, OwnerId)>,
    /// The device nodes, sorted, with the inventory version they are from.
    by_node: (u64, Vec<(String, GpuId)>),
    /// The owners of one device's processes, sorted.
    counted: Vec<OwnerId>,
}

impl DeviceOpeners {
    /// Collects the devices that every live process has open.
    pub(super) fn update(&mut self, ownership: &Ownership, inventory: &Inventory) {
        let version = inventory.version();
        if self.by_node.0 != version {
            let nodes = |(gpu, info): &(GpuId, Arc<GpuInfo>)| {
                let gpu = *gpu;
                info.nodes.iter().map(move |node| (node.clone(), gpu)).collect::<Vec<_>>()
            };
            let mut nodes: Vec<_> = inventory.all().iter().flat_map(nodes).collect();
            nodes.sort_unstable();
            self.by_node = (version, nodes);
        }
        self.opened.clear();
        let nodes = &self.by_node.1;
        ownership.open_nodes(|owner_id, held| {
            let first = self.opened.len();
            for node in held {
                let name = node_name(node);
                let place = nodes.binary_search_by(|(known, _)| known.as_str().cmp(name));
                let device = place.ok().and_then(|place| nodes.get(place));
                let device = device.map(|(_, gpu)| (*gpu, owner_id));
                // A process that opens several nodes of one device (its partitions) counts once.
                let device = device
                    .filter(|on| !self.opened.iter().skip(first).any(|before| *before == *on));
                self.opened.extend(device);
            }
        });
        self.opened.sort_unstable();
    }

    /// The owners of processes that opened a device.
    pub(super) fn owners_on(&self, gpu: GpuId) -> impl Iterator<Item = OwnerId> {
        let first = self.opened.partition_point(|(on, _)| *on < gpu);
        let here = self.opened.iter().skip(first).take_while(move |(on, _)| *on == gpu);
        here.map(|(_, owner)| *owner)
    }

    /// Adds the number of processes of each owner on a device to a batch.
    pub(super) fn emit(&mut self, reading: &Reading, at: SystemTime, out: &mut Batch) {
        let gpu = reading.gpu;
        self.counted.clear();
        let live = reading.processes.iter().filter(|on| !on.ended);
        self.counted.extend(live.map(|on| on.owner));
        self.counted.sort_unstable();
        emit(gpu, Presence::Listed, &self.counted, at, out);
        self.counted.clear();
        let mut counted = std::mem::take(&mut self.counted);
        counted.extend(self.owners_on(gpu));
        self.counted = counted;
        emit(gpu, Presence::Opened, &self.counted, at, out);
    }
}

/// Counts equal neighbours; owners beyond [`MAX_ACCOUNTS`] are counted together as `other`.
fn emit(gpu: GpuId, presence: Presence, owners: &[OwnerId], at: SystemTime, out: &mut Batch) {
    let mut other = 0;
    for (place, same) in owners.chunk_by(PartialEq::eq).enumerate() {
        let count = i64::try_from(same.len()).unwrap_or(i64::MAX);
        match same.first() {
            Some(&owner_id) if place < MAX_ACCOUNTS => {
                let subject = GpuOwner { gpu, owner: owner_id };
                out.at(at, metric::OWNER_PROCESSES.sample(subject, presence, count));
            }
            _ => other += count,
        }
    }
    if other > 0 {
        let subject = GpuOwner { gpu, owner: OwnerId::OTHER };
        out.at(at, metric::OWNER_PROCESSES.sample(subject, presence, other));
    }
}
