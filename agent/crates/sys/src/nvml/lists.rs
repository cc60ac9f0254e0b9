//! Lists of a device's processes.
//!
//! The wrapper reads the length of a list, then the list. A list call costs milliseconds under the
//! driver's lock, so these functions call once with a reused buffer, and again only when the driver
//! reports that it is too small.

use super::{handle, layout};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE, nvmlReturn_t,
};
use std::ffi::c_uint;

layout!(nvmlProcessInfo_t, 24, usedGpuMemory at 8, gpuInstanceId at 16, computeInstanceId at 20);
layout!(nvmlProcessUtilizationSample_t, 32, timeStamp at 8, smUtil at 16, decUtil at 28);

/// Room of the first call: eight processes on each of eight MIG instances.
const FIRST_ROOM: usize = 64;
/// Largest plausible process list.
const MAX_ENTRIES: usize = 1 << 16;

/// One of a device's process lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Processes with a compute context.
    Compute,
    /// Processes with a graphics context.
    Graphics,
    /// Processes with a compute context through an MPS server.
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

/// Fills `to` by a call that takes the available room and returns the number of entries.
fn fetch<T: Copy>(
    to: &mut Vec<T>,
    empty: T,
    call: impl Fn(*mut c_uint, *mut T) -> nvmlReturn_t,
) -> Result<(), NvmlError> {
    let mut room = to.capacity().clamp(FIRST_ROOM, MAX_ENTRIES);
    loop {
        to.clear();
        to.resize(room, empty);
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        let code = call(&raw mut count, to.as_mut_ptr());
        let reported = usize::try_from(count).unwrap_or(usize::MAX);
        if code == INSUFFICIENT_SIZE && reported > room && reported <= MAX_ENTRIES {
            // Extra room for processes that start before the next call.
            room = reported + 8;
            continue;
        }
        to.truncate(if code == 0 { reported } else { 0 });
        nvml_try(code)?;
        // With too little room it is not known which entries the library wrote.
        if reported > room {
            to.clear();
            return Err(NvmlError::InsufficientSize(None));
        }
        return Ok(());
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_ROOM, fetch};
    use nvml_wrapper::error::NvmlError;

    #[test]
    fn a_count_above_the_room_is_a_failure_and_no_list() {
        let mut list = Vec::new();
        let answer = fetch(&mut list, 0_u32, |count, _| {
            // SAFETY: `fetch` gives the address of its own count.
            unsafe { *count = u32::MAX };
            0
        });
        assert!(matches!(answer, Err(NvmlError::InsufficientSize(None))), "{answer:?}");
        assert!(list.is_empty(), "{list:?}");
    }

    #[test]
    fn a_count_within_the_room_is_the_length_of_the_list() {
        let mut list = Vec::new();
        let answer = fetch(&mut list, 7_u32, |count, _| {
            // SAFETY: `fetch` gives the address of its own count.
            unsafe { *count = 3 };
            0
        });
        assert!(answer.is_ok() && list == [7; 3], "{list:?}");
        assert!(list.capacity() >= FIRST_ROOM);
    }
}
