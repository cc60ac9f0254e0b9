//! The MIG instance of a handle.

use super::handle;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// The GPU instance id of a MIG device.
pub fn gpu_instance_id(instance: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(instance.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is the library's own, and `id` is where the answer goes.
    nvml_try(unsafe { call(handle(instance), &raw mut id) })?;
    Ok(id)
}

/// The compute instance id of a MIG device.
pub fn compute_instance_id(instance: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(instance.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is the library's own, and `id` is where the answer goes.
    nvml_try(unsafe { call(handle(instance), &raw mut id) })?;
    Ok(id)
}
