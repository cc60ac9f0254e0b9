//! Errors in a device's memories.

use super::{handle, layout, version_word};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlEccSramErrorStatus_t, nvmlRowRemapperHistogramValues_t};

layout!(nvmlEccSramErrorStatus_t, 104, aggregateUncParity at 8, aggregateCor at 24,
    volatileCor at 48, aggregateUncBucketL2 at 56, aggregateUncBucketOther at 88,
    bThresholdExceeded at 96);
layout!(nvmlRowRemapperHistogramValues_t, 20, max at 0, partial at 8, none at 16);

/// Numbers of remapped rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappedRows {
    /// Remapped because of corrected errors.
    pub corrected: u32,
    /// Remapped because of uncorrected errors.
    pub uncorrected: u32,
    /// Whether rows wait for a reset.
    pub pending: bool,
    /// Whether a row could not be remapped.
    pub failed: bool,
}

/// Errors of the static memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SramErrors {
    /// Corrected, since the driver was loaded and since the board was made.
    pub corrected: [u64; 2],
    /// Uncorrected (parity and ECC), since the driver was loaded and since the board was made.
    pub uncorrected: [u64; 2],
    /// Uncorrected, since the board was made, of L2, multiprocessors, PCIe, microcontrollers,
    /// others.
    pub units: [u64; 5],
    /// Whether there are more than the field diagnosis allows.
    pub exceeded: bool,
}

/// Reads how many rows are remapped.
pub fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    let [a, b, c, d] =
        [&raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed];
    // SAFETY: the handle is the library's own, and the four answers have their places.
    nvml_try(unsafe { call(handle(device), a, b, c, d) })?;
    Ok(RemappedRows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

/// Reads how many banks have all, most, some, few and none of their spare rows.
pub fn spare_rows(device: &Device<'_>) -> Result<[u32; 5], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRowRemapperHistogram.as_ref())?;
    let mut banks =
        nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    // SAFETY: the handle is the library's own, and `banks` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut banks) })?;
    Ok([banks.max, banks.high, banks.partial, banks.low, banks.none])
}

/// Reads the errors of the static memories; only for root.
pub fn sram_errors(device: &Device<'_>) -> Result<SramErrors, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSramEccErrorStatus.as_ref())?;
    // SAFETY: integers, for which zero is a value.
    let empty: nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
    let version = version_word::<nvmlEccSramErrorStatus_t>(1);
    let mut status = nvmlEccSramErrorStatus_t { version, ..empty };
    // SAFETY: the handle is the library's own, and `status` has the version of its version word.
    nvml_try(unsafe { call(handle(device), &raw mut status) })?;
    let uncorrected = |parity: u64, ecc: u64| parity.saturating_add(ecc);
    Ok(SramErrors {
        corrected: [status.volatileCor, status.aggregateCor],
        uncorrected: [
            uncorrected(status.volatileUncParity, status.volatileUncSecDed),
            uncorrected(status.aggregateUncParity, status.aggregateUncSecDed),
        ],
        units: [
            status.aggregateUncBucketL2,
            status.aggregateUncBucketSm,
            status.aggregateUncBucketPcie,
            status.aggregateUncBucketMcu,
            status.aggregateUncBucketOther,
        ],
        exceeded: status.bThresholdExceeded != 0,
    })
}
