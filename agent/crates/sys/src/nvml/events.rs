//! The event set, and the set of the system's own events.

use super::{handle, layout, version_word};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventSet_t, nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
    nvmlSystemEventData_v1_t, nvmlSystemEventSet_t, nvmlSystemEventSetCreateRequest_v1_t,
    nvmlSystemEventSetFreeRequest_v1_t, nvmlSystemEventSetWaitRequest_v1_t,
    nvmlSystemRegisterEventRequest_v1_t,
};
use std::ptr::null_mut;

layout!(nvmlEventData_t, 32, eventType at 8, eventData at 16, gpuInstanceId at 24);
layout!(nvmlSystemEventSetCreateRequest_v1_t, 16, version at 0, set at 8);
layout!(nvmlSystemEventSetFreeRequest_v1_t, 16, version at 0, set at 8);
layout!(nvmlSystemRegisterEventRequest_v1_t, 24, version at 0, eventTypes at 8, set at 16);
layout!(nvmlSystemEventData_v1_t, 16, eventType at 0, gpuId at 8);
layout!(nvmlSystemEventSetWaitRequest_v1_t, 32, version at 0, timeoutms at 4, set at 8, data at 16,
    dataSize at 24, numEvent at 28);

/// A set of devices for whose events the agent waits. The wrapper's own set drops bits of event
/// types that it does not know.
pub struct EventSet {
    nvml: &'static Nvml,
    set: nvmlEventSet_t,
}

// SAFETY: NVML is thread-safe (`nvml.h`), and a set is bound to no thread.
unsafe impl Send for EventSet {}

/// One event, as returned by the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// The handle of the device.
    pub device: usize,
    /// The type of event.
    pub kind: u64,
    /// The code of an XID.
    pub data: u64,
    /// The MIG GPU instance; all ones if there is none.
    pub gpu_instance: u32,
}

impl EventSet {
    /// An empty set.
    pub fn new(nvml: &'static Nvml) -> Result<Self, NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
        let mut set = null_mut();
        // SAFETY: `set` is where the answer goes.
        nvml_try(unsafe { call(&raw mut set) })?;
        Ok(Self { nvml, set })
    }

    /// Adds a device; returns the handle that its events have.
    pub fn register(&mut self, device: &Device<'_>, types: u64) -> Result<usize, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        let handle = handle(device);
        // SAFETY: handle and set are the library's own.
        nvml_try(unsafe { call(handle, types, self.set) })?;
        Ok(handle.addr())
    }

    /// Waits for an event; `None` after the timeout.
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
            // SAFETY: the set is the library's own and is not used afterwards. One that cannot be
            // freed is freed when the process ends.
            let _ = unsafe { call(self.set) };
        }
    }
}

/// Largest number of system events of one call; later calls return the rest.
const AT_ONCE: usize = 16;

/// The set of the system's own events: devices bound to and unbound from the driver (drivers of
/// 2025 and later).
pub struct SystemEventSet {
    nvml: &'static Nvml,
    set: nvmlSystemEventSet_t,
}

// SAFETY: NVML is thread-safe (`nvml.h`), and a set is bound to no thread.
unsafe impl Send for SystemEventSet {}

/// One system event, as returned by the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSystemEvent {
    /// The type of event.
    pub kind: u64,
    /// The PCI domain of the device.
    pub domain: u32,
    /// Its bus.
    pub bus: u8,
    /// Its number on the bus.
    pub device: u8,
}

impl SystemEventSet {
    /// Makes a set that receives events of these types from now on.
    pub fn of(nvml: &'static Nvml, types: u64) -> Result<Self, NvmlError> {
        let create = nvml_sym(nvml.lib().nvmlSystemEventSetCreate.as_ref())?;
        let register = nvml_sym(nvml.lib().nvmlSystemRegisterEvents.as_ref())?;
        let version = version_word::<nvmlSystemEventSetCreateRequest_v1_t>(1);
        let mut made = nvmlSystemEventSetCreateRequest_v1_t { version, set: null_mut() };
        // SAFETY: `made` has its version word, and is where the answer goes.
        nvml_try(unsafe { create(&raw mut made) })?;
        // From here on `Drop` frees the set, also after an error.
        let this = Self { nvml, set: made.set };
        let version = version_word::<nvmlSystemRegisterEventRequest_v1_t>(1);
        let mut wanted =
            nvmlSystemRegisterEventRequest_v1_t { version, eventTypes: types, set: this.set };
        // SAFETY: `wanted` has its version word, and the set is the library's own.
        nvml_try(unsafe { register(&raw mut wanted) })?;
        Ok(this)
    }

    /// The events since the last call; does not wait.
    pub fn look(&mut self) -> Result<Vec<RawSystemEvent>, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlSystemEventSetWait.as_ref())?;
        let mut data = [nvmlSystemEventData_v1_t { eventType: 0, gpuId: 0 }; AT_ONCE];
        let mut request = nvmlSystemEventSetWaitRequest_v1_t {
            version: version_word::<nvmlSystemEventSetWaitRequest_v1_t>(1),
            // `nvml.h`: "If timeoutms is zero, skip waiting for event."
            timeoutms: 0,
            set: self.set,
            data: data.as_mut_ptr(),
            dataSize: u32::try_from(AT_ONCE).unwrap_or_default(),
            numEvent: 0,
        };
        // SAFETY: the request has its version word, the set is the library's own, and `data` is an
        // array of the length beside it.
        match unsafe { call(&raw mut request) } {
            TIMEOUT => Ok(Vec::new()),
            code => {
                nvml_try(code)?;
                let count = usize::try_from(request.numEvent).unwrap_or(AT_ONCE);
                Ok(data.iter().take(count).map(RawSystemEvent::from).collect())
            }
        }
    }
}

impl From<&nvmlSystemEventData_v1_t> for RawSystemEvent {
    /// "gpuId in PCI format": as the driver makes it of the address (`gpuGenerate32BitId` of the
    /// open kernel modules; `NV0000_BUSDEVICE_…` of `ctrl0000vgpu.h`).
    fn from(data: &nvmlSystemEventData_v1_t) -> Self {
        let [high, low, bus, device] = data.gpuId.to_be_bytes();
        let domain = u32::from(u16::from_be_bytes([high, low]));
        Self { kind: data.eventType, domain, bus, device }
    }
}

impl Drop for SystemEventSet {
    fn drop(&mut self) {
        if let Ok(call) = &self.nvml.lib().nvmlSystemEventSetFree {
            let version = version_word::<nvmlSystemEventSetFreeRequest_v1_t>(1);
            let mut request = nvmlSystemEventSetFreeRequest_v1_t { version, set: self.set };
            // SAFETY: the set is the library's own and is not used afterwards. One that cannot be
            // freed is freed when the process ends.
            let _ = unsafe { call(&raw mut request) };
        }
    }
}

/// The event types that a device supports.
pub fn supported_events(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSupportedEventTypes.as_ref())?;
    let mut types = 0;
    // SAFETY: the handle is the library's own, and `types` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut types) })?;
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_event_has_the_address_of_its_device() {
        let data = nvmlSystemEventData_v1_t { eventType: 1, gpuId: 0x0002_c105 };
        let expected = RawSystemEvent { kind: 1, domain: 2, bus: 0xc1, device: 5 };
        assert_eq!(RawSystemEvent::from(&data), expected);
    }
}
