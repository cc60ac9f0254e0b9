//! The MIG instances of a device in a reading: how much of it each GPU instance kept busy, and who is
//! in it. The driver has no utilisation in this mode; from Hopper on the performance counters of a
//! GPU instance tell.

use super::reading::{Occupancy, Reading, WHOLE, fraction};
use crate::attribute::owner::OwnerId;
use crate::catalog::{MetricDef, gpm, instance};
use crate::ids::{GpuId, InstanceId};
use crate::inventory::Inventory;
use crate::sample::Sample;
use std::time::SystemTime;

/// A MIG instance of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) instance: InstanceId,
    /// Compute slices; 0 where the driver does not tell.
    pub(super) size: u32,
    /// The GPU instance it is in, which may hold others.
    gpu_instance: u32,
    /// The GPU instance's part of the device's compute slices, of [`WHOLE`], where the driver tells.
    part: Option<u64>,
    /// Fraction of time the GPU instance was busy, of [`WHOLE`]; on one of those in it.
    busy: Option<u64>,
}

/// A GPU instance of a device in MIG mode.
#[derive(Clone, Debug)]
pub(super) struct GpuInstance {
    /// How busy it kept the device, of [`WHOLE`].
    pub(super) busy: u64,
    /// Who is in it.
    pub(super) occupancy: Occupancy,
    /// The party of each process in it.
    pub(super) owners: Vec<OwnerId>,
}

impl Slice {
    /// An instance of a reading, and the device it is a part of.
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
        let busy = value(gpm::INSTANCE_GR_ENGINE_ACTIVE.def()).and_then(fraction);
        Some((info.gpu, Self { instance, size, gpu_instance, part, busy }))
    }
}

impl Reading {
    /// Who is in some of its MIG instances. A process that the driver lists without an instance may
    /// be in any.
    pub(super) fn occupancy_of(&self, is_in: impl Fn(InstanceId) -> bool) -> Occupancy {
        let is_placed = self.processes.iter().all(|on| on.instance.is_some());
        let hides = !is_placed || self.unidentified() > 0;
        let inside = self.processes.iter().filter(|on| on.instance.is_some_and(&is_in));
        let mut owner_ids = inside.map(|on| on.owner);
        match (owner_ids.next(), hides) {
            (None, false) => Occupancy::Nobody,
            (None, true) => Occupancy::Strangers,
            (Some(first), false) if owner_ids.all(|owner_id| owner_id == first) => {
                Occupancy::One(first)
            }
            _ => Occupancy::Several,
        }
    }

    /// The GPU instances; `None` where nothing tells how busy one is that anybody may be in.
    pub(super) fn gpu_instances(&self) -> Option<Vec<GpuInstance>> {
        let mut slices: Vec<_> = self.instances.iter().collect();
        slices.sort_unstable_by_key(|slice| slice.gpu_instance);
        let instances = slices.chunk_by(|a, b| a.gpu_instance == b.gpu_instance);
        let instances = instances.map(|same| {
            let is_in = |instance| same.iter().any(|slice| slice.instance == instance);
            let crew = self.occupancy_of(is_in);
            let told = same.iter().find_map(|slice| Some((slice.busy?, slice.part?)));
            let busy = match (told, crew) {
                (Some((busy, part)), _) => u128::from(busy) * u128::from(part) / u128::from(WHOLE),
                (None, Occupancy::Nobody) => 0,
                (None, _) => return None,
            };
            let inside = self.processes.iter().filter(|on| on.instance.is_some_and(is_in));
            let owner_ids = inside.map(|on| on.owner).collect();
            Some(GpuInstance {
                busy: u64::try_from(busy).unwrap_or(WHOLE),
                occupancy: crew,
                owners: owner_ids,
            })
        });
        instances.collect::<Option<Vec<_>>>().filter(|instances| !instances.is_empty())
    }
}
