//! Sets of system events: what a scenario's `[[system_event]]` tables say happens, once each. A set
//! gets what happens after it was registered; there is one at a time.

use super::device::{ARGUMENT_VERSION, pci, version_word};
use super::{exports, put, system};
use crate::runtime::{self, Call, Code};
use crate::scenario::SystemEvent;
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t, nvmlSystemEventData_v1_t,
    nvmlSystemEventSet_t, nvmlSystemEventSetCreateRequest_v1_t, nvmlSystemEventSetFreeRequest_v1_t,
    nvmlSystemEventSetWaitRequest_v1_t, nvmlSystemRegisterEventRequest_v1_t,
};
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Address of the one set's handle; never dereferenced.
const SET: usize = 0x900;
/// Both types.
const TYPES: u64 = 3;
/// A wait looks at the scenario this often.
const STEP: Duration = Duration::from_millis(10);

/// Since when events are recorded, which ones, and how many of the scenario were given out.
static REGISTERED: Mutex<Option<(f64, u64)>> = Mutex::new(None);
static GIVEN: Mutex<usize> = Mutex::new(0);

fn is_set(set: nvmlSystemEventSet_t) -> Result<(), Code> {
    if set.addr() == SET { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

/// What a caller asks, if it is of the version this library knows.
fn asked<T: Copy>(request: *mut T, version: impl FnOnce(&T) -> c_uint) -> Result<T, Code> {
    if request.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by the caller's promise a `T`.
    let asked = unsafe { *request };
    if version(&asked) == version_word::<T>(1) { Ok(asked) } else { Err(ARGUMENT_VERSION) }
}

/// The next event that has happened, given out now.
fn next(call: &Call) -> Option<nvmlSystemEventData_v1_t> {
    let (since, types) = (*REGISTERED.lock().unwrap_or_else(PoisonError::into_inner))?;
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let event: &SystemEvent = call.loaded.scenario.system_events.get(*given)?;
        if event.at > call.seconds {
            return None;
        }
        *given += 1;
        if event.at >= since && event.kind & types != 0 {
            let device = call.loaded.scenario.device(event.device)?;
            let at = pci(device);
            let gpu_id = at.domain << 16 | at.bus << 8 | at.device;
            return Some(nvmlSystemEventData_v1_t { eventType: event.kind, gpuId: gpu_id });
        }
    }
}

fn wait(name: &str, request: *mut nvmlSystemEventSetWaitRequest_v1_t) -> Result<(), Code> {
    let mut call = system(name)?;
    let mut asked = asked(request, |request| request.version)?;
    is_set(asked.set)?;
    if asked.data.is_null() || asked.dataSize == 0 {
        return Err(INVALID_ARGUMENT);
    }
    let end = Instant::now() + Duration::from_millis(u64::from(asked.timeoutms));
    asked.numEvent = 0;
    loop {
        while asked.numEvent < asked.dataSize
            && let Some(event) = next(&call)
        {
            // SAFETY: by the caller's promise `data` has `dataSize` entries, and this is one of them.
            put(unsafe { asked.data.add(asked.numEvent as usize) }, event)?;
            asked.numEvent += 1;
        }
        if asked.numEvent > 0 {
            return put(request, asked);
        }
        if Instant::now() >= end {
            return Err(TIMEOUT);
        }
        thread::sleep(STEP);
        call = runtime::begin(name, None).unwrap_or(Err(INVALID_ARGUMENT))?;
    }
}

exports! {
    /// Makes a set.
    fn nvmlSystemEventSetCreate(request: *mut nvmlSystemEventSetCreateRequest_v1_t) |name| {
        system(name)?;
        let made = asked(request, |request| request.version)?;
        put(request, nvmlSystemEventSetCreateRequest_v1_t { set: std::ptr::without_provenance_mut(SET), ..made })
    };
    /// Says which events a set gets, from now on.
    fn nvmlSystemRegisterEvents(request: *mut nvmlSystemRegisterEventRequest_v1_t) |name| {
        let call = system(name)?;
        let wanted = asked(request, |request| request.version)?;
        is_set(wanted.set)?;
        if wanted.eventTypes & !TYPES != 0 {
            return Err(INVALID_ARGUMENT);
        }
        *REGISTERED.lock().unwrap_or_else(PoisonError::into_inner) = Some((call.seconds, wanted.eventTypes));
        Ok(())
    };
    /// Waits for events.
    fn nvmlSystemEventSetWait(request: *mut nvmlSystemEventSetWaitRequest_v1_t) |name|
        wait(name, request);
    /// Ends a set.
    fn nvmlSystemEventSetFree(request: *mut nvmlSystemEventSetFreeRequest_v1_t) |name| {
        system(name)?;
        is_set(asked(request, |request| request.version)?.set)
    };
}
