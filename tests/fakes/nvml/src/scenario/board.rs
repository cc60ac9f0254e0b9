//! What a board is and how it is set up: texts, numbers and switches that hardly ever change.

use crate::curve::Curve;
use serde::Deserialize;

/// What a board is; a value that is not there is not supported.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Board {
    /// VBIOS version.
    pub vbios: Option<String>,
    /// Part number.
    pub part: Option<String>,
    /// Version of the GSP's firmware.
    pub gsp: Option<String>,
    /// Version of the InfoROM's image.
    pub inforom: Option<String>,
    /// Versions of the InfoROM's OEM, ECC and power objects, in this order.
    pub inforom_objects: Vec<String>,
    /// The InfoROM's checksum is wrong.
    pub inforom_corrupted: bool,
    /// The module's number on the baseboard is the device's index.
    pub module: bool,
    /// Where the board is in its rack.
    pub platform: Option<Platform>,
    /// 0 none, 1 HMM, 2 ATS.
    pub addressing: Option<u32>,
}

/// Where a board is in its rack; its number in its node is the device's index.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Serial number of the chassis, 13 letters.
    pub chassis: String,
    /// Slot, switches counted.
    pub slot: u8,
    /// Tray, switches not counted.
    pub tray: u8,
    /// Node in the slot.
    pub host: u8,
    /// What NVLink leads to: 0 other devices, 1 a switch.
    pub peer: u8,
}

/// How a device is set up; a mode that is not there is not supported.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Modes {
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: Option<u32>,
    /// Accounting mode.
    pub accounting: Option<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`: 0 none.
    pub recovery: Option<Curve>,
    /// Sessions, frames a second and microseconds a frame of the encoder.
    pub encoder: Option<[u32; 3]>,
    /// The same of frame buffer capture.
    pub capture: Option<[u32; 3]>,
    /// KiB of memory that confidential computing protects, and that it does not.
    pub protected: Option<[u64; 2]>,
}

/// Confidential computing on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confidential {
    /// It is on.
    pub on: bool,
    /// With the tools of developers, which may look into it.
    #[serde(default)]
    pub devtools: bool,
    /// 0 unavailable, 1 simulation, 2 production.
    pub environment: u32,
    /// The devices accept work.
    #[serde(default)]
    pub ready: bool,
}
