//! Event sets: what a scenario's `[[event]]` tables say happens, once each.

use super::{exports, on_device, put, system};
use crate::runtime::Code;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t,
};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Address of the one set's handle; never dereferenced.
const SET: usize = 0x800;
/// Every type of `nvml.h` up to CUDA 13.0.
const TYPES: u64 = 0xff9f;
/// A wait looks at the scenario this often.
const STEP: Duration = Duration::from_millis(10);

/// Events of the scenario that were given out, in its order.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

fn is_set(set: nvmlEventSet_t) -> Result<(), Code> {
    if set.addr() == SET { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

/// The next event that has happened.
fn next() -> Result<Option<nvmlEventData_t>, Code> {
    let call = system("nvmlEventSetWait_v2")?;
    let at = GIVEN.load(Ordering::Relaxed);
    let Some(event) = call.loaded.scenario.events.get(at) else { return Ok(None) };
    if event.at > call.seconds {
        return Ok(None);
    }
    GIVEN.store(at + 1, Ordering::Relaxed);
    Ok(Some(nvmlEventData_t {
        device: super::device_handle(event.device),
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: event.gpu_instance.unwrap_or(c_uint::MAX),
        computeInstanceId: c_uint::MAX,
    }))
}

exports! {
    /// Makes a set.
    fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) |name| {
        system(name)?;
        crate::nodes::open("nvidiactl");
        put(to, std::ptr::without_provenance_mut(SET))
    };
    /// The types a device has.
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        on_device(name, device, |_, _| put(to, TYPES));
    /// Adds a device; its events come from now on.
    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) |name|
        on_device(name, device, |_, _| {
            is_set(set)?;
            if types & !TYPES == 0 { Ok(()) } else { Err(INVALID_ARGUMENT) }
        });
    /// Waits for an event.
    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, to: *mut nvmlEventData_t, timeout: c_uint) |_name| {
        is_set(set)?;
        let end = Instant::now() + Duration::from_millis(u64::from(timeout));
        loop {
            if let Some(event) = next()? {
                return put(to, event);
            }
            if Instant::now() >= end {
                return Err(TIMEOUT);
            }
            thread::sleep(STEP);
        }
    };
    /// Ends a set.
    fn nvmlEventSetFree(set: nvmlEventSet_t) |name| {
        system(name)?;
        is_set(set)
    };
}
