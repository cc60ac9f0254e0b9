//! The partitions of a device in a reading (MIG instances, AMD's partitions): how busy each was, and
//! its owners. NVIDIA's driver has no utilisation in MIG mode; from Hopper on, the performance counters
//! of a GPU instance provide it. AMD's driver has it of each partition, beside the device's own.

use super::reading::{Occupancy, Reading, WHOLE, fraction};
use gpuwho_model::catalog::{MetricDef, gpm, instance};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_model::sample::Sample;
use gpuwho_owners::inventory::Inventory;
use std::time::SystemTime;

/// A MIG instance of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) instance: InstanceId,
    /// Compute slices; 0 if the driver does not report them.
    pub(super) size: u32,
    /// The GPU instance it is in, which may hold other compute instances.
    gpu_instance: u32,
    /// The GPU instance's part of the device's slices, of [`WHOLE`], if the driver reports it.
    part: Option<u64>,
    /// Busy fraction of the GPU instance, of [`WHOLE`]; present on one of its compute instances.
    busy: Option<u64>,
}

/// A GPU instance of a device in MIG mode.
#[derive(Clone, Debug)]
pub(super) struct GpuInstance {
    /// Its busy time as a fraction of the device, of [`WHOLE`].
    pub(super) busy: u64,
    /// Which owners have processes in it.
    pub(super) occupancy: Occupancy,
    /// The owner of each process in it.
    pub(super) owners: Vec<OwnerId>,
}

impl Slice {
    /// Reads an instance from its samples, with the device it is a part of.
    pub(super) fn reported(
        instance: InstanceId,
        samples: &[(SystemTime, Sample)],
        inventory: &Inventory,
    ) -> Option<(GpuId, Self)> {
        let value = |metric: &'static MetricDef| {
            let mut samples = samples.iter().map(|(_, sample)| sample);
            samples.find(|sample| std::ptr::eq(sample.metric, metric)).map(|sample| &sample.value)
        };
        value(instance::INFO.def())?;
        let info = inventory.instance(instance)?;
        let (extent, gpu_instance) = (info.extent, info.gpu_instance);
        let part = extent.gpu_slices.zip(extent.device_slices).and_then(|(slices, of)| {
            (u64::from(slices) * WHOLE).checked_div(of.into()).map(|part| part.min(WHOLE))
        });
        let size = extent.compute_slices.or(extent.gpu_slices).unwrap_or(0);
        let counted = value(gpm::INSTANCE_GR_ENGINE_ACTIVE.def());
        let busy = counted.or_else(|| value(instance::UTILIZATION.def())).and_then(fraction);
        Some((info.gpu, Self { instance, size, gpu_instance, part, busy }))
    }
}

impl Reading {
    /// The occupancy of some of the instances. A process that the driver lists without an instance may
    /// be in any: nothing is known of one that has no other process, unless all on the device is one
    /// owner's.
    pub(super) fn occupancy_of(&self, is_in: impl Fn(InstanceId) -> bool) -> Occupancy {
        let hides = self.unidentified() > 0;
        let is_inside = self.processes.iter().any(|on| on.instance.is_some_and(&is_in));
        let may_be = self.processes.iter().filter(|on| on.instance.is_none_or(&is_in));
        let mut owner_ids = may_be.map(|on| on.owner);
        match (owner_ids.next(), is_inside) {
            (None, _) if !hides => Occupancy::Idle,
            (Some(first), true) if !hides && owner_ids.all(|owner_id| owner_id == first) => {
                Occupancy::One(first)
            }
            (Some(first), false) if self.occupancy() == Occupancy::One(first) => {
                Occupancy::One(first)
            }
            (_, true) => Occupancy::Several,
            (_, false) => Occupancy::Unidentified,
        }
    }

    /// The part of the device that each GPU instance has, of [`WHOLE`], with its compute instances and
    /// their sizes; in the order of [`Reading::gpu_instances`]. Where the driver does not report the
    /// parts, the instances divide the whole device by compute slices.
    pub(super) fn extents(&self) -> Vec<(u64, Vec<(InstanceId, u32)>)> {
        let mut slices: Vec<_> = self.instances.iter().collect();
        slices.sort_unstable_by_key(|slice| slice.gpu_instance);
        let is_reported = slices.iter().all(|slice| slice.part.is_some());
        let sizes: u64 = slices.iter().map(|slice| u64::from(slice.size)).sum();
        let extent = |same: &[&Slice]| match same.first().and_then(|slice| slice.part) {
            Some(part) if is_reported => part,
            _ => {
                let size: u64 = same.iter().map(|slice| u64::from(slice.size)).sum();
                (size * WHOLE).checked_div(sizes).unwrap_or(0)
            }
        };
        let same = slices.chunk_by(|a, b| a.gpu_instance == b.gpu_instance);
        let with_sizes = |same: &[&Slice]| {
            let sizes = same.iter().map(|slice| (slice.instance, slice.size)).collect();
            (extent(same), sizes)
        };
        same.map(with_sizes).collect()
    }

    /// The GPU instances; `None` if an instance that may be in use reports no utilisation.
    pub(super) fn gpu_instances(&self) -> Option<Vec<GpuInstance>> {
        let mut slices: Vec<_> = self.instances.iter().collect();
        slices.sort_unstable_by_key(|slice| slice.gpu_instance);
        let instances = slices.chunk_by(|a, b| a.gpu_instance == b.gpu_instance);
        let instances = instances.map(|same| {
            let is_in = |instance| same.iter().any(|slice| slice.instance == instance);
            let occupancy = self.occupancy_of(is_in);
            let counted = same.iter().find_map(|slice| Some((slice.busy?, slice.part?)));
            let busy = match (counted, occupancy) {
                (Some((busy, part)), _) => u128::from(busy) * u128::from(part) / u128::from(WHOLE),
                // The device's own value covers work in it, of a process that has ended for example.
                (None, Occupancy::Idle) if self.busy.is_none() => 0,
                (None, _) => return None,
            };
            let inside = self.processes.iter().filter(|on| on.instance.is_some_and(is_in));
            let owner_ids = inside.map(|on| on.owner).collect();
            Some(GpuInstance {
                busy: u64::try_from(busy).unwrap_or(WHOLE),
                occupancy,
                owners: owner_ids,
            })
        });
        instances.collect::<Option<Vec<_>>>().filter(|instances| !instances.is_empty())
    }
}
