//! What a board is: versions, serial numbers and its place in the rack, and the fabric it joined.

use super::device::{ARGUMENT_VERSION, text, version_word};
use super::{exports, on_device, on_target, put, put_text};
use crate::runtime::Code;
use crate::scenario::Device;
use crate::scenario::board::Platform;
use crate::scenario::links::Fabric;
use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_ARCH_AMPERE as AMPERE, NVML_DEVICE_ARCH_BLACKWELL as BLACKWELL,
    NVML_DEVICE_ARCH_HOPPER as HOPPER, NVML_DEVICE_ARCH_UNKNOWN as UNKNOWN_ARCHITECTURE,
    NVML_DEVICE_ARCH_VOLTA as VOLTA, nvmlBrandType_enum_NVML_BRAND_NVIDIA as NVIDIA,
    nvmlBrandType_enum_NVML_BRAND_NVIDIA_RTX as NVIDIA_RTX,
    nvmlBrandType_enum_NVML_BRAND_TESLA as TESLA, nvmlBrandType_t, nvmlC2cModeInfo_v1_t,
    nvmlDevice_t, nvmlDeviceAddressingMode_t, nvmlDeviceArchitecture_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfo_v3_t, nvmlInforomObject_t, nvmlPlatformInfo_t,
    nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM as CORRUPTED_INFOROM,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use std::ffi::{c_char, c_uint};

/// Bytes the version of the GSP's firmware needs by its documentation; the call has no length.
const GSP_VERSION_LENGTH: c_uint = 0x50;

/// What the names of the scenarios' devices contain, with their generation.
const ARCHITECTURES: &[(&str, nvmlDeviceArchitecture_t)] = &[
    ("V100", VOLTA),
    ("A10", AMPERE),
    ("H100", HOPPER),
    ("H200", HOPPER),
    ("GB200", BLACKWELL),
    ("Blackwell", BLACKWELL),
];

/// The generation of a device.
pub(super) fn architecture(device: Device<'_>) -> nvmlDeviceArchitecture_t {
    let is_of = |(part, _): &&(&str, _)| device.group.name.contains(part);
    ARCHITECTURES.iter().find(is_of).map_or(UNKNOWN_ARCHITECTURE, |(_, known)| *known)
}

fn brand(device: Device<'_>) -> nvmlBrandType_t {
    let name = &device.group.name;
    match name.starts_with("Tesla") {
        true => TESLA,
        false if name.contains("RTX") => NVIDIA_RTX,
        false => NVIDIA,
    }
}

/// The version word in front of a structure.
fn asked_version<T>(to: *mut T) -> Result<c_uint, Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by the caller's promise a structure that begins with its version word.
    Ok(unsafe { to.cast::<c_uint>().read() })
}

fn fabric(to: *mut nvmlGpuFabricInfo_v3_t, device: Device<'_>, seconds: f64) -> Result<(), Code> {
    let known = device.group.fabric.as_ref().ok_or(NOT_SUPPORTED)?;
    let asked = asked_version(to)?;
    let newest = version_word::<nvmlGpuFabricInfo_v3_t>(3);
    if asked == newest && known.version >= 3 {
        return put(to, fabric_v3(known, device, seconds));
    }
    if asked != version_word::<nvmlGpuFabricInfo_v2_t>(2) {
        return Err(ARGUMENT_VERSION);
    }
    let nvmlGpuFabricInfo_v3_t { clusterUuid, status, cliqueId, state, healthMask, .. } =
        fabric_v3(known, device, seconds);
    let version = asked;
    let reported =
        nvmlGpuFabricInfo_v2_t { version, clusterUuid, status, cliqueId, state, healthMask };
    put(to.cast(), reported)
}

fn fabric_v3(fabric: &Fabric, device: Device<'_>, seconds: f64) -> nvmlGpuFabricInfo_v3_t {
    let state = fabric.state_at(device, seconds);
    // Until the registration is over there is neither a cluster nor a clique.
    let joined = state == 3;
    nvmlGpuFabricInfo_v3_t {
        version: version_word::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: if joined { fabric.cluster_bytes() } else { [0; 16] },
        status: if joined { fabric.status } else { 0 },
        cliqueId: if joined { fabric.clique } else { 0 },
        state,
        healthMask: fabric.health.mask(),
        healthSummary: fabric.summary,
    }
}

fn platform(known: &Platform, device: Device<'_>) -> nvmlPlatformInfo_t {
    let mut chassis = [0; 16];
    for (place, letter) in chassis.iter_mut().zip(known.chassis.bytes().take(13)) {
        *place = letter;
    }
    nvmlPlatformInfo_t {
        version: version_word::<nvmlPlatformInfo_t>(2),
        ibGuid: [0; 16],
        chassisSerialNumber: chassis,
        slotNumber: known.slot,
        trayIndex: known.tray,
        hostId: known.host,
        peerType: known.peer,
        moduleId: u8::try_from(device.index).unwrap_or(u8::MAX),
    }
}

exports! {
    /// The brand, as the name has it.
    fn nvmlDeviceGetBrand(device: nvmlDevice_t, to: *mut nvmlBrandType_t) |name|
        on_target(name, device, |_, target| put(to, brand(target.device)));
    /// The generation.
    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, to: *mut nvmlDeviceArchitecture_t) |name|
        on_target(name, device, |_, target| put(to, architecture(target.device)));
    /// Of devices whose memory is a node of the host's, which no scenario has.
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _to: *mut c_uint) |name|
        on_device(name, device, |_, _| Err(NOT_SUPPORTED));
    /// VBIOS version.
    fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        text(name, device, (to, length), |group| group.board.vbios.as_ref());
    /// Part number.
    fn nvmlDeviceGetBoardPartNumber(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        text(name, device, (to, length), |group| group.board.part.as_ref());
    /// Version of the GSP's firmware.
    fn nvmlDeviceGetGspFirmwareVersion(device: nvmlDevice_t, to: *mut c_char) |name|
        text(name, device, (to, GSP_VERSION_LENGTH), |group| group.board.gsp.as_ref());
    /// Whether there is such firmware: where its version is known, and it is the default.
    fn nvmlDeviceGetGspFirmwareMode(device: nvmlDevice_t, on: *mut c_uint, default: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            device.group.board.gsp.as_ref().ok_or(NOT_SUPPORTED)?;
            put(on, 1)?;
            put(default, 1)
        });
    /// Version of the InfoROM's image.
    fn nvmlDeviceGetInforomImageVersion(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        text(name, device, (to, length), |group| group.board.inforom.as_ref());
    /// Version of one of the InfoROM's objects.
    fn nvmlDeviceGetInforomVersion(device: nvmlDevice_t, object: nvmlInforomObject_t, to: *mut c_char, length: c_uint) |name|
        on_device(name, device, |_, device| {
            let version = device.group.board.inforom_objects.get(object as usize);
            put_text(to, length, version.ok_or(NOT_SUPPORTED)?)
        });
    /// The checksum of its configuration.
    fn nvmlDeviceGetInforomConfigurationChecksum(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let board = &device.group.board;
            board.inforom.as_ref().ok_or(NOT_SUPPORTED)?;
            if board.inforom_corrupted {
                return Err(CORRUPTED_INFOROM);
            }
            put(to, 0x1D3A_0000 + device.index)
        });
    /// The module's number on the baseboard.
    fn nvmlDeviceGetModuleId(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            if device.group.board.module { put(to, device.index) } else { Err(NOT_SUPPORTED) }
        });
    /// The place in the rack.
    fn nvmlDeviceGetPlatformInfo(device: nvmlDevice_t, to: *mut nvmlPlatformInfo_t) |name|
        on_device(name, device, |_, device| {
            let known = device.group.board.platform.as_ref().ok_or(NOT_SUPPORTED)?;
            if asked_version(to)? != version_word::<nvmlPlatformInfo_t>(2) {
                return Err(ARGUMENT_VERSION);
            }
            put(to, platform(known, device))
        });
    /// How device and host address each other's memory.
    fn nvmlDeviceGetAddressingMode(device: nvmlDevice_t, to: *mut nvmlDeviceAddressingMode_t) |name|
        on_device(name, device, |_, device| {
            let value = device.group.board.addressing.ok_or(NOT_SUPPORTED)?;
            let version = asked_version(to)?;
            if version != version_word::<nvmlDeviceAddressingMode_t>(1) {
                return Err(ARGUMENT_VERSION);
            }
            put(to, nvmlDeviceAddressingMode_t { version, value })
        });
    /// Whether the links to the CPU are on.
    fn nvmlDeviceGetC2cModeInfoV(device: nvmlDevice_t, to: *mut nvmlC2cModeInfo_v1_t) |name|
        on_device(name, device, |_, device| {
            device.group.c2c.as_ref().ok_or(NOT_SUPPORTED)?;
            put(to, nvmlC2cModeInfo_v1_t { isC2cEnabled: 1 })
        });
    /// The fabric the device joined.
    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, to: *mut nvmlGpuFabricInfo_v3_t) |name|
        on_device(name, device, |call, device| fabric(to, device, call.seconds));
}
