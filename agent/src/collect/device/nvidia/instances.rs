//! The MIG instances of a device. Every reading asks again which there are: an administrator cuts a
//! device anew at any time. Costs a call for each place there can be (seven) and three for each
//! instance, and four more when one is new.
//!
//! An instance's ids and, because the driver makes it of the device and the ids
//! (`nvGenerateSmcUuid`), its UUID come again when another is made at its place; so its name, which
//! ends in the profile, is asked for with the UUID.

use super::caller::{Call, NvmlCaller};
use super::readings::bytes;
use crate::catalog::device::MemoryState;
use crate::catalog::instance as metric;
use crate::collect::device::wire::push;
use crate::collect::device::wire::{InstanceIdentity, InstanceReading, Place, WireValue};
use crate::ids::GpuUuid;
use crate::inventory::InstanceExtent;
use crate::sys::nvml::mig;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Stands before the profile in an instance's name.
const PROFILE_MARK: &str = " MIG ";
/// Bytes in what the library calls a megabyte.
const MEGABYTE: u64 = 1 << 20;

/// No device can be cut into more: seven, and twice as many where instances may be halved.
const MAX_INSTANCES: u32 = 64;

/// One device's instances as last seen.
#[derive(Debug, Default)]
pub(super) struct Instances {
    /// How many there can be.
    most: Option<u32>,
    known: Vec<KnownInstance>,
}

/// An instance that was seen before.
#[derive(Debug)]
struct KnownInstance {
    uuid: String,
    name: Option<String>,
    place: Place,
    /// The agent has all of its identity.
    reported: bool,
}

/// An instance as those need it who read what is in it.
pub(super) struct Handle {
    pub(super) device: Device<'static>,
    pub(super) place: Place,
    /// Another one for another instance, also at the same place.
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
    /// Reads every instance there is now and gives their handles.
    pub(super) fn read(
        &mut self,
        device: &Device<'static>,
        caller: &mut NvmlCaller,
        out: &mut Vec<InstanceReading>,
    ) -> Vec<Handle> {
        if self.most.is_none() {
            let most = caller.call(Call::InstanceCount, || device.mig_device_count());
            self.most = caller.in_range(most, 0..=MAX_INSTANCES);
        }
        let mut handles = Vec::new();
        let mut known = Vec::new();
        for index in 0..self.most.unwrap_or(0) {
            let handle =
                caller.call(Call::InstanceHandle, || there(device.mig_device_by_index(index)));
            let Some(handle) = handle else { continue };
            // One that is destroyed at this very moment has no answers; it is not there.
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

    /// Which instance a handle leads to, and its identity if the agent does not have it.
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
        let told = attributes.is_some() && name.is_some();
        let extent = attributes.map_or_else(InstanceExtent::default, |told| InstanceExtent {
            // As many instances as there can be: the least takes one slice.
            device_slices: self.most,
            gpu_slices: Some(told.gpu_instance_slice_count),
            compute_slices: Some(told.compute_instance_slice_count),
            multiprocessors: Some(told.multiprocessor_count),
            memory: told.memory_size_mb.checked_mul(MEGABYTE),
        });
        let profile = name.as_deref().and_then(|name| name.rsplit_once(PROFILE_MARK));
        let profile = profile.map(|(_, profile)| profile.to_owned());
        let identity = InstanceIdentity { uuid: GpuUuid::new(&uuid), profile, extent };
        let place = Place { gpu_instance, compute_instance: Some(compute_instance) };
        Some((KnownInstance { uuid, name, place, reported: told }, Some(identity)))
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

/// Some drivers say "invalid argument" of a place without an instance, not "not found"; so do all of
/// the handle of one that was destroyed since it was found.
fn there<T>(answer: Result<T, NvmlError>) -> Result<T, NvmlError> {
    match answer {
        Err(NvmlError::InvalidArg) => Err(NvmlError::NotFound),
        answer => answer,
    }
}
