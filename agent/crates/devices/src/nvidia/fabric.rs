//! The NVLink fabric that a device joined: one call, in the newer of two versions that the driver
//! supports.

use super::caller::{Call, NvmlCaller};
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::device::{CodeKind, UNKNOWN_CODE};
use gpuwho_model::catalog::link::{self as metric, FabricCondition, FabricHealth, FabricState};
use gpuwho_sys::nvml::fabric::{self as raw, Fabric, Version};
use nvml_wrapper::Device;
use std::fmt::Write as _;

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u8 = 3;

/// Conditions of two bits, by the position of the lower bit: 1 true, 2 false, 0 unknown.
const CONDITIONS: &[(u32, FabricCondition)] = &[
    (0, FabricCondition::DegradedBandwidth),
    (2, FabricCondition::RouteRecovery),
    (4, FabricCondition::RouteUnhealthy),
    (6, FabricCondition::AccessTimeout),
];

/// Conditions of two bits where true is healthy (CUDA 13.1 and later).
const REQUIREMENTS: &[(u32, FabricCondition)] =
    &[(12, FabricCondition::Unassigned), (14, FabricCondition::Disconnected)];

/// Configuration errors: the values, from 2, of the four bits at position 8; 1 is "none".
const CONFIGURATION: &[FabricCondition] = &[
    FabricCondition::SystemGuid,
    FabricCondition::ChassisSerial,
    FabricCondition::NoPartition,
    FabricCondition::TooFewLinks,
    FabricCondition::Firmware,
    FabricCondition::Location,
    FabricCondition::GpuState,
];

/// The fabric that a device joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Joined {
    /// UUID of the cluster; `None` for a single host without a rack.
    pub(super) cluster: Option<String>,
    /// Clique in the cluster.
    pub(super) clique: Option<String>,
}

/// Boards that are parts of a rack: without its fabric they are ill (`Azure/azhpc-images` 506,
/// `NVIDIA/NVSentinel` 883). Others may need none, or have one within their host alone.
const OF_RACKS: [&str; 2] = ["GB200", "GB300"];

/// Reads the fabric state, exports it, and returns the cluster and the clique. `is_of_rack` is found out once.
pub(super) fn read(
    device: &Device<'_>,
    is_of_rack: &mut Option<bool>,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) -> Joined {
    let mut reported = caller.call(Call::Fabric, || raw::fabric(device, Version::V3));
    if caller.lacks(Call::Fabric) {
        reported = caller.call(Call::OldFabric, || raw::fabric(device, Version::V2));
    }
    let Some(fabric) = reported else { return Joined::default() };
    let is_alone = fabric.state == 0
        || (fabric.state, fabric.status) == (COMPLETED, 0) && !has_cluster(&fabric);
    if is_alone && is_of_rack.is_none() {
        let name = caller.call(Call::Name, || device.name());
        *is_of_rack = name.map(|name| OF_RACKS.iter().any(|board| name.contains(board)));
    }
    let is_known = has_cluster(&fabric) || *is_of_rack == Some(true);
    let unregistered = is_known.then_some(i64::from(is_alone));
    push(out, &metric::FABRIC_CONDITION, FabricCondition::Unregistered, unregistered);
    // State 0 means that the device needs no fabric.
    if fabric.state == 0 {
        return Joined::default();
    }
    let state = state(&fabric);
    for word in FabricState::ALL {
        push(out, &metric::FABRIC_STATE, *word, Some(i64::from(*word == state)));
    }
    let unknown = (state == FabricState::Other).then_some(i64::from(fabric.state));
    push(out, &UNKNOWN_CODE, CodeKind::FabricState, unknown);
    health(&fabric, out);
    conditions(fabric.health, out);
    joined(&fabric)
}

fn state(fabric: &Fabric) -> FabricState {
    match (fabric.state, fabric.status) {
        (COMPLETED, 0) => FabricState::Completed,
        (COMPLETED, _) => FabricState::Failed,
        (2, _) => FabricState::InProgress,
        (0 | 1, _) => FabricState::NotStarted,
        _ => FabricState::Other,
    }
}

fn health(fabric: &Fabric, out: &mut Vec<WireValue>) {
    let health = match fabric.summary {
        1 => FabricHealth::Healthy,
        2 => FabricHealth::Unhealthy,
        3 => FabricHealth::Limited,
        _ => return,
    };
    for word in FabricHealth::ALL {
        push(out, &metric::FABRIC_HEALTH, *word, Some(i64::from(*word == health)));
    }
}

fn conditions(mask: u32, out: &mut Vec<WireValue>) {
    let mut put = |condition, on: Option<bool>| {
        push(out, &metric::FABRIC_CONDITION, condition, on.map(i64::from));
    };
    let yes = |place: u32| match mask >> place & 3 {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    };
    for (place, condition) in CONDITIONS {
        put(*condition, yes(*place));
    }
    for (place, condition) in REQUIREMENTS {
        put(*condition, yes(*place).map(|yes| !yes));
    }
    let wrong = mask >> 8 & 0xf;
    for (value, condition) in (2..).zip(CONFIGURATION).filter(|_| wrong != 0) {
        put(*condition, Some(wrong == value));
    }
}

fn joined(fabric: &Fabric) -> Joined {
    if state(fabric) != FabricState::Completed {
        return Joined::default();
    }
    Joined {
        cluster: has_cluster(fabric).then(|| uuid(&fabric.cluster)),
        clique: Some(fabric.clique.to_string()),
    }
}

fn has_cluster(fabric: &Fabric) -> bool {
    fabric.cluster.iter().any(|byte| *byte != 0)
}

/// Formats bytes as a UUID.
fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (place, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&place) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
