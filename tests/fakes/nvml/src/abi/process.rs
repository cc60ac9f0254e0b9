//! Who is on a device.

use super::board::architecture;
use super::device::{ARGUMENT_VERSION, version_word};
use super::{Target, exports, on_device, on_target, put, whole, whole32};
use crate::pids;
use crate::runtime::{self, Call, Code};
use crate::scenario::{Device, Instance, List, Process};
use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_ARCH_HOPPER as HOPPER, nvmlAccountingStats_t, nvmlDevice_t,
    nvmlDeviceArchitecture_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use std::ffi::{c_uint, c_ulonglong};

/// Older than every device.
const ANY: nvmlDeviceArchitecture_t = 0;
/// What the driver says where it does not know a process's memory or instance.
const UNKNOWN_MEMORY: c_ulonglong = c_ulonglong::MAX;
const NO_INSTANCE: c_uint = c_uint::MAX;
/// The driver samples processes once a second and keeps this many samples of each.
const SAMPLES_KEPT: u64 = 4;
/// Slots of processes that are gone, which the driver counts when asked for the size.
const STALE_SLOTS: usize = 2;

/// The processes of a device that are there, with their PIDs.
fn living<'a>(call: &Call, device: Device<'a>) -> impl Iterator<Item = (u32, Process<'a>)> {
    let seconds = call.seconds;
    device
        .processes()
        .filter(move |process| process.lives(seconds))
        .filter_map(|process| Some((pids::resolve(&process)?, process)))
}

/// Whether a process shows through a handle: a device's shows all that are on it, an instance's
/// those in it.
fn shows(target: Target<'_>, process: &Process<'_>) -> bool {
    let of_instance = target.instance.map(Instance::place);
    of_instance.is_none() || of_instance == process.group.instance
}

/// The processes of a list, as a handle shows them; devices older than `oldest` do not support it.
fn infos(
    name: &str,
    handle: nvmlDevice_t,
    list: List,
    oldest: nvmlDeviceArchitecture_t,
) -> Result<Vec<nvmlProcessInfo_t>, Code> {
    on_target(name, handle, |call, target| {
        if architecture(target.device) < oldest {
            return Err(NOT_SUPPORTED);
        }
        let on_list = living(call, target.device)
            .filter(|(_, process)| process.group.is_on(list) && shows(target, process));
        let infos = on_list.map(|(pid, process)| {
            let memory = process.group.memory.as_ref();
            let [gpu_instance, compute_instance] =
                process.group.instance.filter(|_| target.device.mig()).unwrap_or([NO_INSTANCE; 2]);
            nvmlProcessInfo_t {
                pid,
                usedGpuMemory: memory
                    .map_or(UNKNOWN_MEMORY, |curve| whole(process.value(curve, call.seconds))),
                gpuInstanceId: gpu_instance,
                computeInstanceId: compute_instance,
            }
        });
        Ok(infos.collect::<Vec<_>>())
    })
}

fn list(
    name: &str,
    handle: nvmlDevice_t,
    (count, to): (*mut c_uint, *mut nvmlProcessInfo_t),
    list: List,
) -> Result<(), Code> {
    let infos = infos(name, handle, list, ANY)?;
    hand_over(&infos, infos.len(), count, to)
}

/// The first version of a list, which has no instances.
fn list_v1(
    name: &str,
    handle: nvmlDevice_t,
    (count, to): (*mut c_uint, *mut nvmlProcessInfo_v1_t),
    list: List,
) -> Result<(), Code> {
    let first = |info: nvmlProcessInfo_t| {
        let nvmlProcessInfo_t { pid, usedGpuMemory, .. } = info;
        nvmlProcessInfo_v1_t { pid, usedGpuMemory }
    };
    let infos: Vec<_> = infos(name, handle, list, ANY)?.into_iter().map(first).collect();
    hand_over(&infos, infos.len(), count, to)
}

/// The list that has confidential memory too, from Hopper on.
fn details(
    name: &str,
    handle: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_t,
) -> Result<(), Code> {
    if list.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by the caller's promise a structure whose first members are set.
    let (version, mode, to) = unsafe { ((*list).version, (*list).mode, (*list).procArray) };
    if version != version_word::<nvmlProcessDetailList_t>(1) {
        return Err(ARGUMENT_VERSION);
    }
    let asked = match mode {
        0 => List::Compute,
        1 => List::Graphics,
        2 => List::Mps,
        _ => return Err(INVALID_ARGUMENT),
    };
    let detail = |info: nvmlProcessInfo_t| nvmlProcessDetail_v1_t {
        pid: info.pid,
        usedGpuMemory: info.usedGpuMemory,
        gpuInstanceId: info.gpuInstanceId,
        computeInstanceId: info.computeInstanceId,
        // No scenario says what of it is a process's.
        usedGpuCcProtectedMemory: 0,
    };
    let details: Vec<_> = infos(name, handle, asked, HOPPER)?.into_iter().map(detail).collect();
    // SAFETY: as above.
    let count = unsafe { &raw mut (*list).numProcArrayEntries };
    hand_over(&details, details.len(), count, to)
}

/// Writes a list into the caller's array if it has room, else says how much room it needs.
fn hand_over<T: Copy>(
    items: &[T],
    needed: usize,
    count: *mut c_uint,
    to: *mut T,
) -> Result<(), Code> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by the caller's promise the length of the array at `to`.
    let room = unsafe { *count } as usize;
    let fits = room >= items.len() && (!to.is_null() || items.is_empty());
    let reported = if fits { items.len() } else { needed };
    put(count, c_uint::try_from(reported).unwrap_or(c_uint::MAX))?;
    if !fits {
        return Err(INSUFFICIENT_SIZE);
    }
    if !items.is_empty() {
        // SAFETY: `to` is not null and has room for `items.len()` items, as checked above.
        unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), to, items.len()) };
    }
    Ok(())
}

/// The samples of a process newer than a time: one at each full second of the scenario, stamped in
/// microseconds since the Unix epoch as the driver does.
fn samples(
    call: &Call,
    (pid, process): (u32, Process<'_>),
    since_us: u64,
) -> Vec<nvmlProcessUtilizationSample_t> {
    let last = whole(call.seconds.max(0.0).floor());
    let first = last.saturating_sub(SAMPLES_KEPT - 1);
    (first..=last)
        .map(|second| {
            let seconds = second as f64;
            let percent = |curve| whole32(process.value(curve, seconds));
            nvmlProcessUtilizationSample_t {
                pid,
                timeStamp: whole((runtime::epoch() + seconds) * 1e6),
                smUtil: percent(&process.group.sm),
                memUtil: percent(&process.group.memory_controller),
                encUtil: percent(&process.group.encoder),
                decUtil: percent(&process.group.decoder),
            }
        })
        .filter(|sample| sample.timeStamp > since_us)
        .collect()
}

/// The processes that a device has an account of, with their PIDs: those that were there at any time.
fn accounted<'a>(call: &Call, device: Device<'a>) -> Result<Vec<(u32, Process<'a>)>, Code> {
    if device.group.modes.accounting != Some(true) {
        return Err(NOT_SUPPORTED);
    }
    let known = device.processes().filter(|process| process.group.from <= call.seconds);
    Ok(known.filter_map(|process| Some((pids::resolve(&process)?, process))).collect())
}

/// The account of a process, if the device keeps accounts.
fn account(call: &Call, device: Device<'_>, pid: u32) -> Result<nvmlAccountingStats_t, Code> {
    let mut found = accounted(call, device)?.into_iter();
    let (_, process) = found.find(|(known, _)| *known == pid).ok_or(NOT_FOUND)?;
    let group = process.group;
    let ended = group.until.filter(|until| *until <= call.seconds);
    let value = |curve| process.value(curve, ended.unwrap_or(call.seconds));
    let peak = group.peak.as_ref().or(group.memory.as_ref());
    Ok(nvmlAccountingStats_t {
        gpuUtilization: whole32(value(&group.sm)),
        memoryUtilization: whole32(value(&group.memory_controller)),
        maxMemoryUsage: peak.map_or(UNKNOWN_MEMORY, |curve| whole(value(curve))),
        // Told when it has ended.
        time: ended.map_or(0, |until| whole((until - group.from) * 1e3)),
        startTime: whole((runtime::epoch() + group.from) * 1e6),
        isRunning: c_uint::from(ended.is_none()),
        reserved: [0; 5],
    })
}

exports! {
    /// The account of a process, where accounting is on.
    fn nvmlDeviceGetAccountingStats(device: nvmlDevice_t, pid: c_uint, to: *mut nvmlAccountingStats_t) |name|
        on_device(name, device, |call, device| put(to, account(call, device, pid)?));
    /// The processes of which there is an account.
    fn nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, to: *mut c_uint) |name| {
        let pids = on_device(name, device, |call, device| {
            Ok(accounted(call, device)?.into_iter().map(|(pid, _)| pid).collect::<Vec<c_uint>>())
        })?;
        hand_over(&pids, pids.len(), count, to)
    };
    /// Processes with compute contexts.
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_t) |name|
        list(name, device, (count, to), List::Compute);
    /// Processes with graphics contexts.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_t) |name|
        list(name, device, (count, to), List::Graphics);
    /// Processes with compute contexts through an MPS server.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_t) |name|
        list(name, device, (count, to), List::Mps);
    /// The first of the three lists by its older names.
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v2_t) |name|
        list(name, device, (count, to), List::Compute);
    /// Without instances.
    fn nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v1_t) |name|
        list_v1(name, device, (count, to), List::Compute);
    /// The second of the three lists by its older names.
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v2_t) |name|
        list(name, device, (count, to), List::Graphics);
    /// Without instances.
    fn nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v1_t) |name|
        list_v1(name, device, (count, to), List::Graphics);
    /// The third of the three lists by its older names.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v2_t) |name|
        list(name, device, (count, to), List::Mps);
    /// Without instances.
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v1_t) |name|
        list_v1(name, device, (count, to), List::Mps);
    /// Any of the three lists. By whether there is this function nvitop knows how long a record is.
    fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, to: *mut nvmlProcessDetailList_t) |name|
        details(name, device, to);
    /// Utilisation samples newer than a time; not with MIG on.
    fn nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, to: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, since_us: c_ulonglong) |name| {
        let found = on_device(name, device, |call, device| {
            if device.mig() {
                return Err(NOT_SUPPORTED);
            }
            Ok(living(call, device).flat_map(|found| samples(call, found, since_us)).collect::<Vec<_>>())
        })?;
        if found.is_empty() {
            return Err(NOT_FOUND);
        }
        hand_over(&found, found.len() + STALE_SLOTS, count, to)
    };
}
