//! The exported functions, with the library's own rules: handles it did not give are refused (2),
//! version words are checked (25), no buffer is written past its length (7), nothing is answered
//! before `nvmlInit` (1), and no panic crosses into C (999).
#![expect(unsafe_code, reason = "a C ABI takes pointers from its caller")]

pub mod board;
pub mod device;
pub mod events;
pub mod fields;
pub mod gpm;
pub mod links;
pub mod mig;
pub mod modes;
pub mod process;
pub mod system_events;
pub mod wear;

use crate::chance;
use crate::counts;
use crate::nodes;
use crate::runtime::{self, Call, Code};
use crate::scenario::driver::Amiss;
use crate::scenario::failure::About;
use crate::scenario::{Device, Instance};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
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
/// No scenario has as many devices; still below the handles of instances.
const NO_DEVICE: u32 = 255;
/// Address of the first handle of a MIG instance: beyond those of 256 devices.
const FIRST_INSTANCE_HANDLE: usize = 0x2000;
/// Instances a device can have in the course of a scenario.
const INSTANCE_HANDLES: usize = 64;

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
            let $name = stringify!($function);
            $crate::abi::guard($name, || $body)
        }
    )+};
}
use exports;

/// Runs a function's body and counts it; a panic ends here.
fn guard(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> nvmlReturn_t {
    let inside = counts::enter(name);
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    };
    counts::leave(inside, code != SUCCESS);
    code
}

/// Begins a call that is about no device.
fn system(name: &str) -> Result<Call, Code> {
    runtime::begin(name, None).unwrap_or(Err(UNINITIALIZED))
}

/// What a handle leads to: a device, or a MIG instance of it.
#[derive(Clone, Copy)]
struct Target<'a> {
    device: Device<'a>,
    instance: Option<&'a Instance>,
}

/// Begins a call about a device or a MIG instance and runs its body.
fn on_target<T>(
    name: &str,
    handle: nvmlDevice_t,
    body: impl FnOnce(&Call, Target<'_>) -> Result<T, Code>,
) -> Result<T, Code> {
    let offset = handle.addr().checked_sub(FIRST_HANDLE).ok_or(INVALID_ARGUMENT)?;
    if offset % HANDLE_STEP != 0 {
        return Err(INVALID_ARGUMENT);
    }
    let of_instance = handle.addr().checked_sub(FIRST_INSTANCE_HANDLE);
    let number = of_instance.map(|offset| offset / HANDLE_STEP);
    let index = number.map_or(offset / HANDLE_STEP, |number| number / INSTANCE_HANDLES);
    let index = u32::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
    let about = About { device: index, instance: number.is_some() };
    let call = runtime::begin(name, Some(about)).unwrap_or(Err(UNINITIALIZED))?;
    let device = call.loaded.scenario.device(index).ok_or(INVALID_ARGUMENT)?;
    if !device.is_there(call.seconds) {
        return Err(GPU_IS_LOST);
    }
    match device.amiss(call.seconds, call.loaded_at) {
        Some(Amiss::Lost) => return Err(GPU_IS_LOST),
        Some(Amiss::Stale) => return Err(UNINITIALIZED),
        None => {}
    }
    let place = number.map(|number| number % INSTANCE_HANDLES);
    let instance = place.map(|place| device.group.instances.get(place).ok_or(INVALID_ARGUMENT));
    let instance = instance.transpose()?;
    // The handle of an instance that was destroyed leads nowhere.
    if instance.is_some_and(|instance| !device.mig() || !instance.lives(call.seconds)) {
        return Err(INVALID_ARGUMENT);
    }
    body(&call, Target { device, instance })
}

/// Begins a call that is answered for whole devices only.
fn on_device<T>(
    name: &str,
    handle: nvmlDevice_t,
    body: impl FnOnce(&Call, Device<'_>) -> Result<T, Code>,
) -> Result<T, Code> {
    on_target(name, handle, |call, target| match target.instance {
        Some(_) => Err(NOT_SUPPORTED),
        None => body(call, target.device),
    })
}

/// Begins a call that is answered for MIG instances only.
fn on_instance<T>(
    name: &str,
    handle: nvmlDevice_t,
    body: impl FnOnce(&Call, Device<'_>, &Instance) -> Result<T, Code>,
) -> Result<T, Code> {
    on_target(name, handle, |call, target| {
        body(call, target.device, target.instance.ok_or(INVALID_ARGUMENT)?)
    })
}

/// The handle of a device.
fn device_handle(index: u32) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(FIRST_HANDLE + HANDLE_STEP * index as usize)
}

/// The handle of an instance by its place in its device's table.
fn instance_handle(device: u32, place: usize) -> nvmlDevice_t {
    let number = device as usize * INSTANCE_HANDLES + place;
    std::ptr::without_provenance_mut(FIRST_INSTANCE_HANDLE + HANDLE_STEP * number)
}

/// Writes an answer.
fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the exported function's caller promises that it points to a `T`, which
    // is one of the header's integers, pointers and structures of them: any bytes are one.
    unsafe {
        to.write(value);
        chance::spoil(std::slice::from_raw_parts_mut(to.cast::<u8>(), size_of::<T>()));
    }
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

fn count(name: &str, to: *mut c_uint) -> Result<(), Code> {
    let call = system(name)?;
    let devices = call.loaded.scenario.listed(call.seconds).count();
    put(to, c_uint::try_from(devices).unwrap_or(c_uint::MAX))
}

fn by_index(name: &str, index: c_uint, handle: *mut nvmlDevice_t) -> Result<(), Code> {
    // One that is not listed is refused like any handle of nothing.
    let number = runtime::listed(index).unwrap_or(NO_DEVICE);
    let device = device_handle(number);
    on_device(name, device, |_, _| {
        nodes::open(&format!("nvidia{number}"));
        put(handle, device)
    })
}

exports! {
    /// Reads the scenario.
    fn nvmlInit_v2() |name| init(name);
    /// The same by its older name.
    fn nvmlInit() |name| init(name);
    /// Reads the scenario; flags change nothing here.
    fn nvmlInitWithFlags(_flags: c_uint) |name| init(name);
    /// Forgets the scenario.
    fn nvmlShutdown() |name| { system(name)?; runtime::stop(); Ok(()) };
    /// The driver's version.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) |name| {
        let call = system(name)?;
        put_text(version, length, &call.loaded.library)
    };
    /// The newest CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) |name| {
        put(version, system(name)?.loaded.cuda)
    };
    /// The same by its older name, which other exporters call.
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) |name| {
        put(version, system(name)?.loaded.cuda)
    };
    /// How many devices there are.
    fn nvmlDeviceGetCount_v2(to: *mut c_uint) |name| count(name, to);
    /// The same by its older name.
    fn nvmlDeviceGetCount(to: *mut c_uint) |name| count(name, to);
    /// The handle of a device.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut nvmlDevice_t) |name|
        by_index(name, index, handle);
    /// The same by its older name.
    fn nvmlDeviceGetHandleByIndex(index: c_uint, handle: *mut nvmlDevice_t) |name|
        by_index(name, index, handle);
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

#[cfg(test)]
mod tests {
    use super::board::{nvmlDeviceGetArchitecture, nvmlDeviceGetBrand, nvmlDeviceGetNumaNodeId};
    use super::device::{
        nvmlDeviceGetApplicationsClock, nvmlDeviceGetClock, nvmlDeviceGetClockInfo,
        nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2,
        nvmlDeviceGetName, nvmlDeviceGetPowerManagementDefaultLimit,
        nvmlDeviceGetPowerManagementLimitConstraints, nvmlDeviceGetTemperature,
        nvmlDeviceGetTemperatureV,
    };
    use super::links::nvmlDeviceGetNvLinkState;
    use super::mig::{
        nvmlDeviceGetComputeInstanceId, nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
        nvmlDeviceGetGpuInstanceId, nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceIsMigDeviceHandle,
    };
    use super::process::{
        nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetRunningProcessDetailList,
    };
    use super::{
        nvmlDeviceGetCount, nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex,
        nvmlDeviceGetHandleByIndex_v2, nvmlInit_v2, nvmlShutdown,
    };
    use nvml_wrapper_sys::bindings::{
        nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessDetail_v1_t,
        nvmlProcessDetailList_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlTemperature_t,
    };
    use std::env;
    use std::process::Command;
    use std::ptr;

    /// The rules of the ABI, in a process with the scenario in its environment.
    #[test]
    fn the_rules_of_the_real_library_hold() {
        if env::var_os("FAKE_NVML_SCENARIO").is_some() {
            // SAFETY: every pointer is null or to a local of the right type and length.
            unsafe { check_rules() };
            return;
        }
        alone("the_rules_of_the_real_library_hold", "h100x8");
    }

    /// The same of MIG, in a process with a scenario that has it.
    #[test]
    fn the_rules_of_mig_handles_hold() {
        if env::var_os("FAKE_NVML_SCENARIO").is_some() {
            // SAFETY: every pointer is null or to a local of the right type and length.
            unsafe { check_mig() };
            return;
        }
        alone("the_rules_of_mig_handles_hold", "mig-reconfigure");
    }

    /// Runs a test of this module in a process of its own, with a scenario in its environment.
    fn alone(test: &str, scenario: &str) {
        let scenario = format!("{}/scenarios/{scenario}.toml", env!("CARGO_MANIFEST_DIR"));
        // The first device has three processes.
        let pids = tempfile::tempdir().unwrap();
        std::fs::write(pids.path().join("gpu0"), "11 12 - 14").unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", &format!("abi::tests::{test}")]);
        command.env("FAKE_NVML_SCENARIO", scenario).env("FAKE_NVML_PIDS", pids.path());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    unsafe fn check_mig() {
        let mut device: nvmlDevice_t = ptr::null_mut();
        let (mut instance, mut parent) = (device, device);
        let mut number = 0;
        let mut infos = [nvmlProcessInfo_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        }; 4];
        let by_index = nvmlDeviceGetMigDeviceHandleByIndex;
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!(nvmlInit_v2(), 0);
            assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), 0);
            assert_eq!(nvmlDeviceGetMaxMigDeviceCount(device, &raw mut number), 0);
            assert_eq!(number, 7);
            assert_eq!(by_index(device, 1, &raw mut instance), 0);
            assert_eq!(by_index(device, 6, &raw mut parent), 6, "an index without an instance");
            assert_eq!(by_index(device, 7, &raw mut parent), 2, "no such index");
            let ids = [nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId].map(|id| {
                let code = id(instance, &raw mut number);
                (code, number)
            });
            assert_eq!(ids, [(0, 2), (0, 0)]);
            assert_eq!(nvmlDeviceGetGpuInstanceId(device, &raw mut number), 2, "of a device");
            assert_eq!(nvmlDeviceIsMigDeviceHandle(instance, &raw mut number), 0);
            assert_eq!(number, 1);
            let up = nvmlDeviceGetDeviceHandleFromMigDeviceHandle;
            assert_eq!((up(instance, &raw mut parent), parent), (0, device));
            assert_eq!(nvmlDeviceGetMaxMigDeviceCount(instance, &raw mut number), 3, "a device's");
            let list = nvmlDeviceGetComputeRunningProcesses_v3;
            number = 4;
            assert_eq!((list(device, &raw mut number, infos.as_mut_ptr()), number), (0, 2));
            assert_eq!(infos.map(|info| info.gpuInstanceId)[..2], [1, 2]);
            number = 4;
            assert_eq!((list(instance, &raw mut number, infos.as_mut_ptr()), number), (0, 1));
            assert_eq!(infos[0].pid, 12);
        }
    }

    unsafe fn check_rules() {
        let mut count = 0;
        let mut device: nvmlDevice_t = ptr::null_mut();
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!(nvmlDeviceGetCount_v2(&raw mut count), 1, "before nvmlInit");
            assert_eq!(nvmlInit_v2(), 0);
            assert_eq!((nvmlDeviceGetCount_v2(&raw mut count), count), (0, 8));
            assert_eq!(nvmlDeviceGetHandleByIndex_v2(8, &raw mut device), 2, "no such index");
            assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), 0);
            check_texts_and_versions(device);
            check_lists(device);
            check_other_names(device);
            check_details(device);
            assert_eq!(nvmlShutdown(), 0);
            assert_eq!(nvmlDeviceGetCount_v2(&raw mut count), 1, "after nvmlShutdown");
        }
    }

    unsafe fn check_texts_and_versions(device: nvmlDevice_t) {
        let mut name = [1; 96];
        let mut memory = nvmlMemory_v2_t { version: 2, total: 7, reserved: 0, free: 0, used: 0 };
        let other: nvmlDevice_t = ptr::without_provenance_mut(device.addr() + 1);
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!(nvmlDeviceGetName(other, name.as_mut_ptr(), 96), 2, "a foreign handle");
            assert_eq!(nvmlDeviceGetName(device, name.as_mut_ptr(), 21), 7, "one byte short");
            assert_eq!(name, [1; 96], "written past the length");
            assert_eq!(nvmlDeviceGetName(device, name.as_mut_ptr(), 22), 0);
            assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), 25, "a wrong version");
            assert_eq!(memory.total, 7, "written in spite of the version");
            memory.version = 0x0200_0028;
            assert_eq!(
                (nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), memory.version),
                (0, 0x0200_0028)
            );
        }
        assert_eq!(memory.used + memory.free + memory.reserved, memory.total);
    }

    unsafe fn check_lists(device: nvmlDevice_t) {
        let list = nvmlDeviceGetComputeRunningProcesses_v3;
        let empty =
            nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut infos = [empty; 4];
        let mut count = 0;
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!((list(device, &raw mut count, ptr::null_mut()), count), (7, 3));
            count = 2;
            assert_eq!((list(device, &raw mut count, infos.as_mut_ptr()), count), (7, 3));
            count = 4;
            assert_eq!((list(device, &raw mut count, infos.as_mut_ptr()), count), (0, 3));
        }
        let pids = infos.map(|info| info.pid);
        assert_eq!(pids, [11, 12, 14, 0], "a slot marked `-` has no process");
        assert_eq!(infos[2].usedGpuMemory, (1 << 30) + 3 * (16 << 20), "of the fourth slot");
    }

    /// A value is the same by whichever name it is asked for.
    unsafe fn check_other_names(device: nvmlDevice_t) {
        let mut newest =
            nvmlMemory_v2_t { version: 0x0200_0028, total: 0, reserved: 0, free: 0, used: 0 };
        let mut first = nvmlMemory_t { total: 0, free: 0, used: 0 };
        let mut die = nvmlTemperature_t { version: 0x0100_000c, sensorType: 0, temperature: 0 };
        let (mut count, mut handle, mut numbers) = (0, ptr::null_mut(), [0; 5]);
        let [degrees, now, clock, application, target] = &mut numbers;
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!((nvmlDeviceGetCount(&raw mut count), count), (0, 8));
            assert_eq!((nvmlDeviceGetHandleByIndex(0, &raw mut handle), handle), (0, device));
            assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &raw mut newest), 0);
            assert_eq!(nvmlDeviceGetMemoryInfo(device, &raw mut first), 0);
            assert_eq!(nvmlDeviceGetTemperature(device, 0, degrees), 0);
            assert_eq!(nvmlDeviceGetTemperatureV(device, &raw mut die), 0);
            assert_eq!(nvmlDeviceGetClockInfo(device, 2, now), 0);
            assert_eq!(nvmlDeviceGetClock(device, 2, 0, clock), 0);
            assert_eq!(nvmlDeviceGetApplicationsClock(device, 2, application), 0);
            assert_eq!(nvmlDeviceGetClock(device, 2, 1, target), 0);
            assert_eq!(nvmlDeviceGetClock(device, 2, 3, &raw mut count), 3, "no scenario's");
            die.version = 1;
            assert_eq!(nvmlDeviceGetTemperatureV(device, &raw mut die), 25, "a wrong version");
        }
        assert_eq!([first.total, first.free], [newest.total, newest.free]);
        assert_eq!(first.used, newest.used + newest.reserved);
        assert_eq!(numbers, [40, 2619, 2619, 2618, 2618]);
        assert_eq!(die.temperature, 40);
        check_limits_and_kind(device);
    }

    fn check_limits_and_kind(device: nvmlDevice_t) {
        let mut numbers = [0; 6];
        let [default, lowest, highest, kind, brand, none] = &mut numbers;
        // SAFETY: every pointer is to a local of the right type.
        unsafe {
            assert_eq!(nvmlDeviceGetPowerManagementDefaultLimit(device, default), 0);
            assert_eq!(nvmlDeviceGetPowerManagementLimitConstraints(device, lowest, highest), 0);
            assert_eq!(nvmlDeviceGetArchitecture(device, kind), 0);
            assert_eq!(nvmlDeviceGetBrand(device, brand), 0);
            assert_eq!(nvmlDeviceGetNvLinkState(device, 0, none), 3, "no links");
            assert_eq!(nvmlDeviceGetNumaNodeId(device, none), 3);
            assert_eq!(nvmlDeviceGetMaxCustomerBoostClock(device, 0, none), 3);
        }
        assert_eq!(numbers, [690_000, 200_000, 710_000, 9, 14, 0]);
    }

    /// The lists of each version have the same processes.
    unsafe fn check_details(device: nvmlDevice_t) {
        let mut first = [nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 }; 4];
        let empty =
            nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let (mut second, mut third) = ([empty; 4], [empty; 4]);
        let mut details = [nvmlProcessDetail_v1_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
            usedGpuCcProtectedMemory: 7,
        }; 4];
        let mut list = nvmlProcessDetailList_t {
            version: 0x0100_0018,
            mode: 0,
            numProcArrayEntries: 0,
            procArray: ptr::null_mut(),
        };
        let all = nvmlDeviceGetRunningProcessDetailList;
        let mut counts = [4; 3];
        let [of_first, of_second, of_third] = &mut counts;
        // SAFETY: as promised by the caller.
        unsafe {
            assert_eq!((all(device, &raw mut list), list.numProcArrayEntries), (7, 3));
            (list.numProcArrayEntries, list.procArray) = (4, details.as_mut_ptr());
            assert_eq!((all(device, &raw mut list), list.numProcArrayEntries), (0, 3));
            list.mode = 3;
            assert_eq!(all(device, &raw mut list), 2, "no such mode");
            list.version = 0x0100_0010;
            assert_eq!(all(device, &raw mut list), 25, "a wrong version");
            let (v1, v2, v3) = (
                nvmlDeviceGetComputeRunningProcesses,
                nvmlDeviceGetComputeRunningProcesses_v2,
                nvmlDeviceGetComputeRunningProcesses_v3,
            );
            assert_eq!(v1(device, of_first, first.as_mut_ptr()), 0);
            assert_eq!(v2(device, of_second, second.as_mut_ptr()), 0);
            assert_eq!(v3(device, of_third, third.as_mut_ptr()), 0);
        }
        assert_eq!(counts, [3; 3]);
        let expected = third.map(|info| (info.pid, info.usedGpuMemory));
        assert_eq!(first.map(|info| (info.pid, info.usedGpuMemory)), expected);
        assert_eq!(second.map(|info| (info.pid, info.usedGpuMemory)), expected);
        assert_eq!(details.map(|info| (info.pid, info.usedGpuMemory)), expected);
        assert_eq!(details.map(|info| info.usedGpuCcProtectedMemory), [0, 0, 0, 7]);
    }
}
