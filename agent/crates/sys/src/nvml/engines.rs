//! Utilisation of single engines of a device.

use super::handle;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// Busy percentage of the JPEG decoder.
pub fn jpeg_utilization(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetJpgUtilization.as_ref())?;
    let (mut percent, mut period_us) = (0, 0);
    // SAFETY: the handle is the library's own, and both answers have their place.
    nvml_try(unsafe { call(handle(device), &raw mut percent, &raw mut period_us) })?;
    Ok(percent)
}

/// Busy percentage of the optical flow accelerator.
pub fn ofa_utilization(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetOfaUtilization.as_ref())?;
    let (mut percent, mut period_us) = (0, 0);
    // SAFETY: the handle is the library's own, and both answers have their place.
    nvml_try(unsafe { call(handle(device), &raw mut percent, &raw mut period_us) })?;
    Ok(percent)
}
