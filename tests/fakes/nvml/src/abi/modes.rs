//! How a device is set up, and who uses its video engines.

use super::{exports, on_device, put, system};
use crate::runtime::Code;
use crate::scenario::Group;
use crate::scenario::board::Confidential;
use nvml_wrapper_sys::bindings::{
    nvmlComputeMode_t, nvmlConfComputeMemSizeInfo_t, nvmlConfComputeSystemState_t, nvmlDevice_t,
    nvmlEnableState_t, nvmlFBCStats_t, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_t,
};
use std::ffi::c_uint;

/// Processes that the driver keeps accounts of.
const ACCOUNTS: c_uint = 4000;

/// Answers whether a mode is on.
fn mode(
    name: &str,
    device: nvmlDevice_t,
    to: *mut nvmlEnableState_t,
    mode: impl FnOnce(&Group) -> Option<bool>,
) -> Result<(), Code> {
    on_device(name, device, |_, device| {
        put(to, nvmlEnableState_t::from(mode(device.group).ok_or(NOT_SUPPORTED)?))
    })
}

fn confidential(name: &str) -> Result<Confidential, Code> {
    system(name)?.loaded.scenario.confidential.ok_or(NOT_SUPPORTED)
}

exports! {
    /// Persistence mode.
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, to: *mut nvmlEnableState_t) |name|
        mode(name, device, to, |group| group.modes.persistence);
    /// Compute mode.
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, to: *mut nvmlComputeMode_t) |name|
        on_device(name, device, |_, device| put(to, device.group.modes.compute.ok_or(NOT_SUPPORTED)?));
    /// Accounting mode.
    fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, to: *mut nvmlEnableState_t) |name|
        mode(name, device, to, |group| group.modes.accounting);
    /// How many processes the driver keeps accounts of.
    fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            device.group.modes.accounting.ok_or(NOT_SUPPORTED)?;
            put(to, ACCOUNTS)
        });
    /// Sessions of the encoder.
    fn nvmlDeviceGetEncoderStats(device: nvmlDevice_t, sessions: *mut c_uint, frames: *mut c_uint, latency: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let reported = device.group.modes.encoder.ok_or(NOT_SUPPORTED)?;
            put(sessions, reported[0])?;
            put(frames, reported[1])?;
            put(latency, reported[2])
        });
    /// Sessions of frame buffer capture.
    fn nvmlDeviceGetFBCStats(device: nvmlDevice_t, to: *mut nvmlFBCStats_t) |name|
        on_device(name, device, |_, device| {
            let [sessions, frames, latency] = device.group.modes.capture.ok_or(NOT_SUPPORTED)?;
            let reported = nvmlFBCStats_t { sessionsCount: sessions, averageFPS: frames, averageLatency: latency };
            put(to, reported)
        });
    /// Confidential computing on the host.
    fn nvmlSystemGetConfComputeState(to: *mut nvmlConfComputeSystemState_t) |name| {
        let reported = confidential(name)?;
        put(to, nvmlConfComputeSystemState_t {
            environment: reported.environment,
            ccFeature: c_uint::from(reported.on),
            devToolsMode: c_uint::from(reported.devtools),
        })
    };
    /// Whether the devices accept work.
    fn nvmlSystemGetConfComputeGpusReadyState(to: *mut c_uint) |name|
        put(to, c_uint::from(confidential(name)?.ready));
    /// How much memory is protected.
    fn nvmlDeviceGetConfComputeMemSizeInfo(device: nvmlDevice_t, to: *mut nvmlConfComputeMemSizeInfo_t) |name|
        on_device(name, device, |_, device| {
            let [protected, unprotected] = device.group.modes.protected.ok_or(NOT_SUPPORTED)?;
            put(to, nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: protected, unprotectedMemSizeKib: unprotected })
        });
}
