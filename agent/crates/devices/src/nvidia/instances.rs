//! The MIG instances of a device. Every reading lists them again, because an administrator can
//! repartition a device at any time. Costs one call for each possible instance (seven), three for
//! each instance, and four more for a new one.
//!
//! An instance made at the place of an earlier one has the same ids and the same UUID, which the
//! driver derives from the device and the ids (`nvGenerateSmcUuid`). So its name, which ends in the
//! profile, is read with the UUID.

use super::caller::{Call, NvmlCaller};
use super::readings::bytes;
use crate::wire::push;
use crate::wire::{InstanceIdentity, InstanceReading, WireValue};
use gpuwho_model::catalog::device::MemoryState;
use gpuwho_model::catalog::instance as metric;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::ids::Place;
use gpuwho_owners::inventory::InstanceExtent;
use gpuwho_sys::nvml::mig;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Precedes the profile in an instance's name.
const PROFILE_MARK: &str = " MIG ";
/// Bytes in the library's megabyte.
const MEGABYTE: u64 = 1 << 20;

/// A device supports seven instances, and twice as many if instances may be halved; more are
/// implausible.
const MAX_INSTANCES: u32 = 64;

/// One device's instances as last read.
#[derive(Debug, Default)]
pub(super) struct Instances {
    /// The maximum number of instances.
    max: Option<u32>,
    known: Vec<KnownInstance>,
}

/// An instance of the last reading.
#[derive(Debug)]
struct KnownInstance {
    uuid: String,
    name: Option<String>,
    place: Place,
    /// The agent has its complete identity.
    reported: bool,
}

/// An instance's handle for other readers.
pub(super) struct Handle {
    pub(super) device: Device<'static>,
    pub(super) place: Place,
    /// Differs between instances, also at the same place.
    pub(super) mark: u64,
}

impl KnownInstance {
    fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.uuid, &self.name).hash(&mut hasher);
        hasher.finish()
    }
}

impl Instances {
    /// Reads the current instances and returns their handles.
    pub(super) fn read(
        &mut self,
        device: &Device<'static>,
        caller: &mut NvmlCaller,
        out: &mut Vec<InstanceReading>,
    ) -> Vec<Handle> {
        if self.max.is_none() {
            let max = caller.call(Call::InstanceCount, || device.mig_device_count());
            self.max = caller.in_range(max, 0..=MAX_INSTANCES);
        }
        let mut handles = Vec::new();
        let mut known = Vec::new();
        for index in 0..self.max.unwrap_or(0) {
            let handle =
                caller.call(Call::InstanceHandle, || there(device.mig_device_by_index(index)));
            let Some(handle) = handle else { continue };
            // An instance that is being destroyed has no answers; it is left out.
            let Some((now, identity)) = self.identify(&handle, caller) else { continue };
            out.push(InstanceReading { place: now.place, identity, values: Vec::new() });
            handles.push(Handle { device: handle, place: now.place, mark: now.mark() });
            known.push(now);
        }
        self.known = known;
        let mut seen = BTreeSet::new();
        for (handle, reading) in handles.iter().zip(out) {
            push(&mut reading.values, &metric::INFO, (), Some(1));
            if seen.insert(handle.place.gpu_instance) {
                memory(&handle.device, caller, &mut reading.values);
            }
        }
        handles
    }

    /// Identifies the instance behind a handle; returns its identity if the agent does not have it.
    fn identify(
        &self,
        handle: &Device<'_>,
        caller: &mut NvmlCaller,
    ) -> Option<(KnownInstance, Option<InstanceIdentity>)> {
        let uuid = caller.call(Call::InstanceUuid, || there(handle.uuid()))?;
        let name = caller.call(Call::InstanceName, || there(handle.name()));
        let same =
            |known: &&KnownInstance| known.reported && known.uuid == uuid && known.name == name;
        if let Some(known) = self.known.iter().find(same) {
            return Some((KnownInstance { uuid, name, ..*known }, None));
        }
        let gpu_instance =
            caller.call(Call::GpuInstanceId, || there(mig::gpu_instance_id(handle)))?;
        let compute_instance =
            caller.call(Call::ComputeInstanceId, || there(mig::compute_instance_id(handle)))?;
        let attributes = caller.call(Call::InstanceAttributes, || there(handle.attributes()));
        let is_complete = attributes.is_some() && name.is_some();
        let extent = attributes.map_or_else(InstanceExtent::default, |read| InstanceExtent {
            // The maximum number of instances, because the smallest takes one slice.
            device_slices: self.max,
            gpu_slices: Some(read.gpu_instance_slice_count),
            compute_slices: Some(read.compute_instance_slice_count),
            multiprocessors: Some(read.multiprocessor_count),
            memory: read.memory_size_mb.checked_mul(MEGABYTE),
        });
        let profile = name.as_deref().and_then(|name| name.rsplit_once(PROFILE_MARK));
        let profile = profile.map(|(_, profile)| profile.to_owned());
        let identity = InstanceIdentity { uuid: GpuUuid::new(&uuid), profile, extent };
        let place = Place { gpu_instance, compute_instance: Some(compute_instance) };
        Some((KnownInstance { uuid, name, place, reported: is_complete }, Some(identity)))
    }
}

fn memory(instance: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let memory = caller.call(Call::InstanceMemory, || there(instance.memory_info()));
    let Some(memory) = memory else { return };
    push(out, &metric::MEMORY_USAGE, MemoryState::Used, bytes(memory.used));
    push(out, &metric::MEMORY_USAGE, MemoryState::Free, bytes(memory.free));
    push(out, &metric::MEMORY_USAGE, MemoryState::Reserved, bytes(memory.reserved));
    push(out, &metric::MEMORY_LIMIT, (), bytes(memory.total));
}

/// Some drivers return "invalid argument" instead of "not found" for a place without an instance;
/// all do for the handle of an instance destroyed since it was found.
fn there<T>(answer: Result<T, NvmlError>) -> Result<T, NvmlError> {
    match answer {
        Err(NvmlError::InvalidArg) => Err(NvmlError::NotFound),
        answer => answer,
    }
}
