//! Reasons for reduced clocks, and the temperature margin.
//!
//! Driver 535 renamed the functions (`…ClocksThrottleReasons` to `…ClocksEventReasons`); the older
//! name is used where the newer one is missing.

use super::{handle, layout, version_word};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::nvmlMarginTemperature_t;

layout!(nvmlMarginTemperature_t, 8, marginTemperature at 4);

/// The current reasons for reduced clocks, as a set of bits.
pub fn event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceGetCurrentClocksEventReasons.as_ref())
        .or_else(|_| nvml_sym(library.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref()))?;
    let mut reasons = 0;
    // SAFETY: the handle is the library's own, and `reasons` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut reasons) })?;
    Ok(reasons)
}

/// The reasons that the device supports.
pub fn supported_event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceGetSupportedClocksEventReasons.as_ref())
        .or_else(|_| nvml_sym(library.nvmlDeviceGetSupportedClocksThrottleReasons.as_ref()))?;
    let mut reasons = 0;
    // SAFETY: the handle is the library's own, and `reasons` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut reasons) })?;
    Ok(reasons)
}

/// Degrees until the device is slowed down.
pub fn margin_temperature(device: &Device<'_>) -> Result<i32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMarginTemperature.as_ref())?;
    let version = version_word::<nvmlMarginTemperature_t>(1);
    let mut margin = nvmlMarginTemperature_t { version, marginTemperature: 0 };
    // SAFETY: the handle is the library's own, and `margin` has the version of its version word.
    nvml_try(unsafe { call(handle(device), &raw mut margin) })?;
    Ok(margin.marginTemperature)
}
