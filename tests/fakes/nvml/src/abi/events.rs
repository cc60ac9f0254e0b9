//! Event sets: what a scenario's `[[event]]` tables say happens, once each.

use super::{exports, on_device, put, system};
use crate::changes::Changes;
use crate::runtime::Code;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t,
};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Address of the one set's handle; never dereferenced.
const SET: usize = 0x800;
/// Every type of `nvml.h` up to CUDA 13.0.
const TYPES: u64 = 0xff9f;

/// Events of the scenario that were given out, in its order.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

fn is_set(set: nvmlEventSet_t) -> Result<(), Code> {
    if set.addr() == SET { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

/// What a look at the scenario finds.
enum Next {
    /// An event that has happened; given out now.
    Happened(nvmlEventData_t),
    /// One that will, this much later.
    Later(Duration),
    /// Nothing, as the scenario stands.
    Never,
}

fn next() -> Result<Next, Code> {
    let call = system("nvmlEventSetWait_v2")?;
    let at = GIVEN.load(Ordering::Relaxed);
    let Some(event) = call.loaded.scenario.events.get(at) else { return Ok(Next::Never) };
    if event.at > call.seconds {
        let later = Duration::try_from_secs_f64(event.at - call.seconds);
        return Ok(Next::Later(later.unwrap_or(Duration::MAX)));
    }
    GIVEN.store(at + 1, Ordering::Relaxed);
    Ok(Next::Happened(nvmlEventData_t {
        device: super::device_handle(event.device),
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: event.gpu_instance.unwrap_or(c_uint::MAX),
        computeInstanceId: c_uint::MAX,
    }))
}

/// Waits as the driver does: asleep in the kernel until there is an event or the time is over.
fn wait(timeout: Duration) -> Result<nvmlEventData_t, Code> {
    let end = Instant::now() + timeout;
    // Before the first look, so that no change is missed between a look and a sleep.
    let changes = Changes::watch();
    loop {
        let asleep = match next()? {
            Next::Happened(event) => return Ok(event),
            Next::Later(time) => time,
            Next::Never => Duration::MAX,
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        changes.sleep(left.min(asleep));
    }
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
        put(to, wait(Duration::from_millis(u64::from(timeout)))?)
    };
    /// Ends a set.
    fn nvmlEventSetFree(set: nvmlEventSet_t) |name| {
        system(name)?;
        is_set(set)
    };
}
