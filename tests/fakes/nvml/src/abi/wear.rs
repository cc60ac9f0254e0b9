//! What wears out: ECC, remapped rows, the PCIe link.

use super::device::version_word;
use super::{exports, on_device, put, whole, whole32};
use crate::runtime::Code;
use crate::scenario::Device;
use crate::scenario::health::{Ecc, Errors, Pcie, Remapped};
use nvml_wrapper_sys::bindings::{
    nvmlBusType_t, nvmlDevice_t, nvmlEccCounterType_t, nvmlEccSramErrorStatus_t, nvmlEnableState_t,
    nvmlMemoryErrorType_t, nvmlMemoryLocation_t, nvmlPcieUtilCounter_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
    nvmlRowRemapperHistogramValues_t,
};
use std::ffi::{c_uint, c_ulonglong};
use std::time::Duration;

/// Argument version mismatch.
const ARGUMENT_VERSION: Code = 25;

/// What a sample of the PCIe throughput takes.
const PCIE_SAMPLE: Duration = Duration::from_millis(20);

fn ecc(device: Device<'_>) -> Result<&Ecc, Code> {
    device.group.ecc.as_ref().ok_or(NOT_SUPPORTED)
}

fn pcie(device: Device<'_>) -> Result<&Pcie, Code> {
    device.group.pcie.as_ref().ok_or(NOT_SUPPORTED)
}

fn remapped(device: Device<'_>) -> Result<&Remapped, Code> {
    device.group.remapped.as_ref().ok_or(NOT_SUPPORTED)
}

/// The memory of a number; the texture memory's second number is not in use.
fn memory(ecc: &Ecc, location: nvmlMemoryLocation_t) -> Result<&Errors, Code> {
    let memory = match location {
        0 => &ecc.l1,
        1 => &ecc.l2,
        2 => &ecc.dram,
        3 => &ecc.registers,
        4 => &ecc.texture,
        6 => &ecc.barrier,
        7 => &ecc.sram,
        _ => return Err(INVALID_ARGUMENT),
    };
    memory.as_ref().ok_or(NOT_SUPPORTED)
}

/// How the uncorrected errors of static memories are spread: half are parity errors, and the parts of
/// the device have a half, a quarter, an eighth, a sixteenth and the rest.
pub fn spread(errors: u64) -> ([u64; 2], [u64; 5]) {
    let parts = [errors / 2, errors / 4, errors / 8, errors / 16];
    let rest = errors - parts.iter().sum::<u64>();
    ([errors / 2, errors - errors / 2], [parts[0], parts[1], parts[2], parts[3], rest])
}

exports! {
    /// Whether ECC is on, and will be.
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, now: *mut nvmlEnableState_t, next: *mut nvmlEnableState_t) |name|
        on_device(name, device, |_, device| {
            let ecc = ecc(device)?;
            put(now, c_uint::from(ecc.enabled[0]))?;
            put(next, c_uint::from(ecc.enabled[1]))
        });
    /// Errors of a memory.
    fn nvmlDeviceGetMemoryErrorCounter(device: nvmlDevice_t, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, location: nvmlMemoryLocation_t, to: *mut c_ulonglong) |name|
        on_device(name, device, |call, device| {
            let counts = device.errors(memory(ecc(device)?, location)?, call.seconds);
            let counts = counts.get(counter as usize).ok_or(INVALID_ARGUMENT)?;
            put(to, *counts.get(kind as usize).ok_or(INVALID_ARGUMENT)?)
        });
    /// The summary of the static memories.
    fn nvmlDeviceGetSramEccErrorStatus(device: nvmlDevice_t, to: *mut nvmlEccSramErrorStatus_t) |name|
        on_device(name, device, |call, device| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and by the caller's promise a structure whose version word is set.
            let version = unsafe { (*to).version };
            if version != version_word::<nvmlEccSramErrorStatus_t>(1) {
                return Err(ARGUMENT_VERSION);
            }
            let ecc = ecc(device)?;
            let (sram, exceeded) = ecc.sram.as_ref().zip(ecc.exceeded).ok_or(NOT_SUPPORTED)?;
            let [volatile, aggregate] = device.errors(sram, call.seconds);
            let ([volatile_parity, volatile_ecc], _) = spread(volatile[1]);
            let ([aggregate_parity, aggregate_ecc], units) = spread(aggregate[1]);
            put(to, nvmlEccSramErrorStatus_t {
                version,
                aggregateUncParity: aggregate_parity,
                aggregateUncSecDed: aggregate_ecc,
                aggregateCor: aggregate[0],
                volatileUncParity: volatile_parity,
                volatileUncSecDed: volatile_ecc,
                volatileCor: volatile[0],
                aggregateUncBucketL2: units[0],
                aggregateUncBucketSm: units[1],
                aggregateUncBucketPcie: units[2],
                aggregateUncBucketMcu: units[3],
                aggregateUncBucketOther: units[4],
                bThresholdExceeded: c_uint::from(exceeded),
            })
        });
    /// Remapped rows.
    fn nvmlDeviceGetRemappedRows(device: nvmlDevice_t, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint, failure: *mut c_uint) |name|
        on_device(name, device, |call, device| {
            let rows = remapped(device)?;
            let count = |curve| whole32(device.value(curve, call.seconds));
            put(corrected, count(&rows.corrected))?;
            put(uncorrected, count(&rows.uncorrected))?;
            put(pending, count(&rows.pending))?;
            put(failure, count(&rows.failure))
        });
    /// Banks by the spare rows they have left.
    fn nvmlDeviceGetRowRemapperHistogram(device: nvmlDevice_t, to: *mut nvmlRowRemapperHistogramValues_t) |name|
        on_device(name, device, |_, device| {
            let [max, high, partial, low, none] = remapped(device)?.banks.ok_or(NOT_SUPPORTED)?;
            put(to, nvmlRowRemapperHistogramValues_t { max, high, partial, low, none })
        });
    /// The type of the bus (`nvmlBusType_t`).
    fn nvmlDeviceGetBusType(device: nvmlDevice_t, to: *mut nvmlBusType_t) |name|
        on_device(name, device, |_, device| put(to, pcie(device)?.bus));
    /// PCIe generation now.
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, pcie(device)?.generation[0]));
    /// PCIe generation at most.
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, pcie(device)?.generation[1]));
    /// PCIe lanes now.
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, pcie(device)?.width[0]));
    /// PCIe lanes at most.
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, pcie(device)?.width[1]));
    /// PCIe throughput in a direction; it blocks as long as it samples.
    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, direction: nvmlPcieUtilCounter_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let sampled = pcie(device)?.sampled.ok_or(NOT_SUPPORTED)?;
            std::thread::sleep(PCIE_SAMPLE);
            put(to, *sampled.get(direction as usize).ok_or(INVALID_ARGUMENT)?)
        });
    /// PCIe packets sent again.
    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |call, device| {
            let replays = pcie(device)?.replays.as_ref().ok_or(NOT_SUPPORTED)?;
            put(to, whole32(device.value(replays, call.seconds)))
        });
}

/// Bytes the link has carried, as a counter of the scenario's width.
pub(super) fn carried(device: Device<'_>, seconds: f64, rate: &crate::curve::Curve) -> u64 {
    whole(device.area(rate, seconds))
}
