//! The NVLink fabric with which a device registers.

use super::{handle, layout, version_word};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t};

layout!(nvmlGpuFabricInfo_v2_t, 36, clusterUuid at 4, status at 20, cliqueId at 24, state at 28,
    healthMask at 32);
layout!(nvmlGpuFabricInfo_v3_t, 40, clusterUuid at 4, status at 20, cliqueId at 24, state at 28,
    healthMask at 32, healthSummary at 36);

/// Versions of the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Without a summary.
    V2,
    /// With a summary.
    V3,
}

/// A device's fabric state, in the library's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// State of the registration: `NVML_GPU_FABRIC_STATE_…`.
    pub state: u8,
    /// Result of a finished registration: 0, or a return code.
    pub status: u32,
    /// The cluster.
    pub cluster: [u8; 16],
    /// The clique in it.
    pub clique: u32,
    /// Some bits for each condition: `NVML_GPU_FABRIC_HEALTH_MASK_…`.
    pub health: u32,
    /// `NVML_GPU_FABRIC_HEALTH_SUMMARY_…`; 0 where the library has no value.
    pub summary: u8,
}

/// Reads the fabric state with the given version of the structure.
pub fn fabric(device: &Device<'_>, version: Version) -> Result<Fabric, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    let word = match version {
        Version::V2 => version_word::<nvmlGpuFabricInfo_v2_t>(2),
        Version::V3 => version_word::<nvmlGpuFabricInfo_v3_t>(3),
    };
    // The newer structure extends the older one.
    let mut info = nvmlGpuFabricInfo_v3_t {
        version: word,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the handle is the library's own, and `info` has room for either version.
    nvml_try(unsafe { call(handle(device), &raw mut info) })?;
    Ok(Fabric {
        state: info.state,
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health: info.healthMask,
        summary: info.healthSummary,
    })
}
