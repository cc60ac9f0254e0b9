//! Identity and configuration of a board.

use super::{handle, layout, version_word};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlConfComputeMemSizeInfo_t, nvmlConfComputeSystemState_t,
    nvmlDeviceAddressingMode_t, nvmlPlatformInfo_t,
};

layout!(nvmlPlatformInfo_t, 44, ibGuid at 4, chassisSerialNumber at 20, slotNumber at 36,
    trayIndex at 37, hostId at 38, peerType at 39, moduleId at 40);
layout!(nvmlDeviceAddressingMode_t, 8, value at 4);
layout!(nvmlC2cModeInfo_v1_t, 4, isC2cEnabled at 0);
layout!(nvmlConfComputeSystemState_t, 12, ccFeature at 4, devToolsMode at 8);
layout!(nvmlConfComputeMemSizeInfo_t, 16, unprotectedMemSizeKib at 8);

/// The place of a board in its rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Serial number of the chassis; empty where it is missing.
    pub chassis: String,
    /// Slot, counting switches.
    pub slot: u8,
    /// Tray, not counting switches.
    pub tray: u8,
    /// Node in the slot.
    pub host: u8,
    /// What NVLink connects to: 0 other devices, 1 a switch.
    pub peer: u8,
    /// The device in the node.
    pub module: u8,
}

/// Confidential computing on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confidential {
    /// 0 unavailable, 1 simulation, 2 production.
    pub environment: u32,
    /// Whether it is on.
    pub on: bool,
    /// Whether developer tools, which can inspect it, are enabled.
    pub devtools: bool,
}

/// Reads the place of a board in its rack.
pub fn platform(device: &Device<'_>) -> Result<Platform, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetPlatformInfo.as_ref())?;
    let mut info = nvmlPlatformInfo_t {
        version: version_word::<nvmlPlatformInfo_t>(2),
        ibGuid: [0; 16],
        chassisSerialNumber: [0; 16],
        slotNumber: 0,
        trayIndex: 0,
        hostId: 0,
        peerType: 0,
        moduleId: 0,
    };
    // SAFETY: the handle is the library's own, and `info` has the version of its version word.
    nvml_try(unsafe { call(handle(device), &raw mut info) })?;
    let letters = info.chassisSerialNumber.iter().take_while(|letter| **letter != 0);
    let chassis = letters.map(|letter| char::from(*letter)).collect::<String>();
    Ok(Platform {
        chassis: chassis.trim().to_owned(),
        slot: info.slotNumber,
        tray: info.trayIndex,
        host: info.hostId,
        peer: info.peerType,
        module: info.moduleId,
    })
}

/// How device and host address each other's memory: 0 none, 1 HMM, 2 ATS.
pub fn addressing_mode(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetAddressingMode.as_ref())?;
    let version = version_word::<nvmlDeviceAddressingMode_t>(1);
    let mut mode = nvmlDeviceAddressingMode_t { version, value: 0 };
    // SAFETY: the handle is the library's own, and `mode` has the version of its version word.
    nvml_try(unsafe { call(handle(device), &raw mut mode) })?;
    Ok(mode.value)
}

/// The module's number on the baseboard.
pub fn module_id(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetModuleId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is the library's own, and `id` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut id) })?;
    Ok(id)
}

/// Whether the links to the CPU of the module are on.
pub fn chip_links_are_on(device: &Device<'_>) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetC2cModeInfoV.as_ref())?;
    let mut info = nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 };
    // SAFETY: the handle is the library's own, and `info` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut info) })?;
    Ok(info.isC2cEnabled != 0)
}

/// Confidential computing on the host.
pub fn confidential(nvml: &Nvml) -> Result<Confidential, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeState.as_ref())?;
    let mut state = nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 };
    // SAFETY: the library is initialised, and `state` is where the answer goes.
    nvml_try(unsafe { call(&raw mut state) })?;
    Ok(Confidential {
        environment: state.environment,
        on: state.ccFeature != 0,
        devtools: state.devToolsMode != 0,
    })
}

/// Whether the host's devices accept work in confidential computing.
pub fn confidential_ready(nvml: &Nvml) -> Result<bool, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeGpusReadyState.as_ref())?;
    let mut ready = 0;
    // SAFETY: the library is initialised, and `ready` is where the answer goes.
    nvml_try(unsafe { call(&raw mut ready) })?;
    Ok(ready != 0)
}

/// KiB of a device's memory that confidential computing protects, and that it does not.
pub fn confidential_memory(device: &Device<'_>) -> Result<[u64; 2], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetConfComputeMemSizeInfo.as_ref())?;
    let mut size =
        nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib: 0 };
    // SAFETY: the handle is the library's own, and `size` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut size) })?;
    Ok([size.protectedMemSizeKib, size.unprotectedMemSizeKib])
}
