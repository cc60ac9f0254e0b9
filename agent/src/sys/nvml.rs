//! The NVML calls for which the safe wrapper makes two calls where one does, or has none.
//!
//! The wrapper asks for the length of a list, then for the list; a list call costs milliseconds
//! under the driver's lock, so these ask once with a buffer that is kept, and again only when the
//! driver says that it is too small.

pub mod gpm;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlProcessInfo_t,
    nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t,
};
use std::ffi::c_uint;

/// Room for this many entries is asked for first; eight processes on each of eight MIG instances.
const FIRST_ROOM: usize = 64;
/// More entries than this are no process list.
const MOST_ROOM: usize = 1 << 16;

/// A list a device keeps of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Those with a compute context.
    Compute,
    /// Those with a graphics context.
    Graphics,
    /// Those with a compute context through an MPS server.
    Mps,
}

/// Reads one of a device's process lists into `to`.
pub fn processes(
    device: &Device<'_>,
    list: List,
    to: &mut Vec<nvmlProcessInfo_t>,
) -> Result<(), NvmlError> {
    let library = device.nvml().lib();
    let call = match list {
        List::Compute => nvml_sym(library.nvmlDeviceGetComputeRunningProcesses_v3.as_ref()),
        List::Graphics => nvml_sym(library.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref()),
        List::Mps => nvml_sym(library.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref()),
    }?;
    let handle = handle(device);
    // SAFETY: all four are integers, for which zero is a value.
    let empty: nvmlProcessInfo_t = unsafe { std::mem::zeroed() };
    fetch(to, empty, |room, entries| {
        // SAFETY: the handle is the library's own, and `entries` has `room` entries.
        unsafe { call(handle, room, entries) }
    })
}

/// Reads the utilisation samples of a device's processes that are newer than a time in
/// microseconds since the epoch into `to`.
pub fn process_utilization(
    device: &Device<'_>,
    since_us: u64,
    to: &mut Vec<nvmlProcessUtilizationSample_t>,
) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetProcessUtilization.as_ref())?;
    let handle = handle(device);
    // SAFETY: all six are integers, for which zero is a value.
    let empty: nvmlProcessUtilizationSample_t = unsafe { std::mem::zeroed() };
    fetch(to, empty, |room, entries| {
        // SAFETY: the handle is the library's own, and `entries` has `room` entries.
        unsafe { call(handle, entries, room, since_us) }
    })
}

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

/// Closes every handle the library holds. `Nvml`'s own `Drop` does it too, but not for one that is
/// borrowed for as long as the process lives.
pub fn shutdown(nvml: &Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    // SAFETY: the library is initialised, because there is an `Nvml`.
    nvml_try(unsafe { call() })
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is used only while `device`, and so the library, is borrowed.
    unsafe { device.handle() }
}

/// Fills `to` by a call that takes the room there is and gives the number of entries there are.
fn fetch<T: Copy>(
    to: &mut Vec<T>,
    empty: T,
    call: impl Fn(*mut c_uint, *mut T) -> nvmlReturn_t,
) -> Result<(), NvmlError> {
    let mut room = to.capacity().clamp(FIRST_ROOM, MOST_ROOM);
    loop {
        to.clear();
        to.resize(room, empty);
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        let code = call(&raw mut count, to.as_mut_ptr());
        let told = usize::try_from(count).unwrap_or(usize::MAX);
        if code == INSUFFICIENT_SIZE && told > room && told <= MOST_ROOM {
            // Some more, for processes that start before the next call.
            room = told + 8;
            continue;
        }
        to.truncate(if code == 0 { told } else { 0 });
        return nvml_try(code);
    }
}
