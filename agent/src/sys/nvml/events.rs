//! The event set.

use super::{handle, layout};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventSet_t, nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
};

layout!(nvmlEventData_t, 32, eventType at 8, eventData at 16, gpuInstanceId at 24);

/// A set of devices whose events are waited for. The wrapper's own drops the bits of event types
/// that it does not know.
pub struct EventSet {
    nvml: &'static Nvml,
    set: nvmlEventSet_t,
}

// SAFETY: NVML is thread-safe (`nvml.h`), and a set is bound to no thread.
unsafe impl Send for EventSet {}

/// One event as the library gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// The handle of the device.
    pub device: usize,
    /// Which event.
    pub kind: u64,
    /// Of an XID its code.
    pub data: u64,
    /// The MIG GPU instance; all ones without.
    pub gpu_instance: u32,
}

impl EventSet {
    /// An empty set.
    pub fn new(nvml: &'static Nvml) -> Result<Self, NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
        let mut set = std::ptr::null_mut();
        // SAFETY: `set` is where the answer goes.
        nvml_try(unsafe { call(&raw mut set) })?;
        Ok(Self { nvml, set })
    }

    /// Adds a device; gives the handle its events carry.
    pub fn register(&mut self, device: &Device<'_>, types: u64) -> Result<usize, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        let handle = handle(device);
        // SAFETY: handle and set are the library's own.
        nvml_try(unsafe { call(handle, types, self.set) })?;
        Ok(handle.addr())
    }

    /// Waits for an event; `None` when there is none in time.
    pub fn wait(&mut self, milliseconds: u32) -> Result<Option<RawEvent>, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        // SAFETY: a pointer and four integers, for which zero is a value.
        let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is the library's own, and `data` is where the answer goes.
        match unsafe { call(self.set, &raw mut data, milliseconds) } {
            TIMEOUT => Ok(None),
            code => {
                nvml_try(code)?;
                let (device, gpu_instance) = (data.device.addr(), data.gpuInstanceId);
                let (kind, data) = (data.eventType, data.eventData);
                Ok(Some(RawEvent { device, kind, data, gpu_instance }))
            }
        }
    }
}

impl Drop for EventSet {
    fn drop(&mut self) {
        if let Ok(call) = &self.nvml.lib().nvmlEventSetFree {
            // SAFETY: the set is the library's own and is used no more. One that cannot be freed
            // goes with the process.
            let _ = unsafe { call(self.set) };
        }
    }
}

/// The event types a device has.
pub fn supported_events(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSupportedEventTypes.as_ref())?;
    let mut types = 0;
    // SAFETY: the handle is the library's own, and `types` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut types) })?;
    Ok(types)
}
