//! MIG: the instances of a device, each with a handle of its own. How a device is cut changes with
//! the scenario's time, and the handle of an instance that was destroyed leads nowhere.

use super::{exports, instance_handle, on_device, on_instance, on_target, put};
use crate::runtime::Code;
use crate::scenario::{Device, Instance};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use std::ffi::c_uint;

/// MIG devices that a device with MIG can have.
const MAX_INSTANCES: c_uint = 7;

/// Bytes in what the library calls a megabyte.
const MEGABYTE: u64 = 1 << 20;

fn by_index(device: Device<'_>, index: c_uint, seconds: f64) -> Result<nvmlDevice_t, Code> {
    if device.group.mig.is_none() {
        return Err(NOT_SUPPORTED);
    }
    if index >= MAX_INSTANCES {
        return Err(INVALID_ARGUMENT);
    }
    let there = |instance: &Instance| instance.index == index && instance.lives(seconds);
    let place = device.group.instances.iter().position(|instance| device.mig() && there(instance));
    place.map(|place| instance_handle(device.index, place)).ok_or(NOT_FOUND)
}

fn attributes(instance: &Instance) -> nvmlDeviceAttributes_t {
    nvmlDeviceAttributes_t {
        multiprocessorCount: instance.multiprocessors,
        sharedCopyEngineCount: instance.gpu_slices,
        sharedDecoderCount: instance.gpu_slices / 2,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: instance.gpu_slices,
        computeInstanceSliceCount: instance.compute_slices,
        memorySizeMB: instance.memory.total / MEGABYTE,
    }
}

exports! {
    /// MIG mode now and after the next reset.
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let mode = c_uint::from(device.group.mig.ok_or(NOT_SUPPORTED)?);
            put(now, mode)?;
            put(pending, mode)
        });
    /// How many MIG devices there can be; none where there is no MIG.
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            put(count, if device.group.mig.is_some() { MAX_INSTANCES } else { 0 })
        });
    /// The handle of an instance.
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, to: *mut nvmlDevice_t) |name|
        on_device(name, device, |call, device| put(to, by_index(device, index, call.seconds)?));
    /// The device around an instance.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: nvmlDevice_t, to: *mut nvmlDevice_t) |name|
        on_instance(name, device, |_, device, _| put(to, super::device_handle(device.index)));
    /// Whether a handle is an instance's.
    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_target(name, device, |_, target| put(to, c_uint::from(target.instance.is_some())));
    /// GPU instance id.
    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_instance(name, device, |_, _, instance| put(to, instance.gpu_instance));
    /// Compute instance id.
    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_instance(name, device, |_, _, instance| put(to, instance.compute_instance));
    /// How much of its device an instance is.
    fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, to: *mut nvmlDeviceAttributes_t) |name|
        on_instance(name, device, |_, _, instance| put(to, attributes(instance)));
}
