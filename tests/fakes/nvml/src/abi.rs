//! The exported functions, with the library's own rules: handles it did not give are refused (2),
//! version words are checked (25), no buffer is written past its length (7), nothing is answered
//! before `nvmlInit` (1), and no panic crosses into C (999).
#![expect(unsafe_code, reason = "a C ABI takes pointers from its caller")]

pub mod device;
pub mod process;

use crate::runtime::{self, Call, Code};
use crate::scenario::Device;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Address of the first device's handle; handles are never dereferenced.
const FIRST_HANDLE: usize = 0x1000;
/// Distance of handles.
const HANDLE_STEP: usize = 16;

/// Declares exported functions. The body sees `name`, the function's own name.
macro_rules! exports {
    ($($(#[doc = $doc:literal])+ fn $function:ident($($arg:ident: $ty:ty),*) |$name:ident| $body:expr;)+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Safety
        ///
        /// As in `nvml.h`: every pointer is null or points to what its type says, as long as the
        /// length beside it says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function($($arg: $ty),*) -> nvmlReturn_t {
            $crate::abi::guard(|| {
                let $name = stringify!($function);
                $body
            })
        }
    )+};
}
use exports;

/// Runs a function's body; a panic ends here.
fn guard(body: impl FnOnce() -> Result<(), Code>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Begins a call that is about no device.
fn system(name: &str) -> Result<Call, Code> {
    runtime::begin(name, None).unwrap_or(Err(UNINITIALIZED))
}

/// Begins a call about a device and runs its body.
fn on_device<T>(
    name: &str,
    handle: nvmlDevice_t,
    body: impl FnOnce(&Call, Device<'_>) -> Result<T, Code>,
) -> Result<T, Code> {
    let offset = handle.addr().checked_sub(FIRST_HANDLE).ok_or(INVALID_ARGUMENT)?;
    if offset % HANDLE_STEP != 0 {
        return Err(INVALID_ARGUMENT);
    }
    let index = u32::try_from(offset / HANDLE_STEP).map_err(|_| INVALID_ARGUMENT)?;
    let call = runtime::begin(name, Some(index)).unwrap_or(Err(UNINITIALIZED))?;
    let device = call.loaded.scenario.device(index).ok_or(INVALID_ARGUMENT)?;
    body(&call, device)
}

/// Writes an answer.
fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the exported function's caller promises that it points to a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text with its end mark into a buffer of a length.
fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if (length as usize) < text.len() + 1 {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer has `length` bytes by the caller's promise, and the text and its end mark
    // fit, as checked above.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// A whole number out of a curve's value, as the driver would round it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and scenario values are small and not negative"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// [`whole`] for the library's 32-bit answers.
fn whole32(value: f64) -> c_uint {
    c_uint::try_from(whole(value)).unwrap_or(c_uint::MAX)
}

fn init(name: &str) -> Result<(), Code> {
    runtime::start().map_err(|error| {
        runtime::complain(&error);
        UNKNOWN
    })?;
    // An injected failure of `nvmlInit` leaves the library as it was: not initialised.
    system(name).map(drop).inspect_err(|_| runtime::stop())
}

exports! {
    /// Reads the scenario.
    fn nvmlInit_v2() |name| init(name);
    /// Reads the scenario; flags change nothing here.
    fn nvmlInitWithFlags(_flags: c_uint) |name| init(name);
    /// Forgets the scenario.
    fn nvmlShutdown() |name| { system(name)?; runtime::stop(); Ok(()) };
    /// The driver's version.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) |name| {
        let call = system(name)?;
        put_text(version, length, &call.loaded.scenario.driver)
    };
    /// The newest CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) |name| {
        put(version, system(name)?.loaded.scenario.cuda)
    };
    /// How many devices there are.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) |name| {
        let devices = system(name)?.loaded.scenario.devices().count();
        put(count, c_uint::try_from(devices).unwrap_or(c_uint::MAX))
    };
    /// The handle of a device.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut nvmlDevice_t) |name| {
        let address = FIRST_HANDLE + HANDLE_STEP * index as usize;
        let device = std::ptr::without_provenance_mut(address);
        on_device(name, device, |_, _| put(handle, device))
    };
}

/// What a code means.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"The operation was successful",
        NOT_SUPPORTED => c"Not Supported",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
