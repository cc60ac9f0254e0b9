//! Which events are evidence of a device's condition. Only what the driver or the kernel reported
//! counts, and only where it needs an operator: faults of a program's own work do not.

use crate::event::xid::{self, Action};
use crate::event::{Observation, Severity};
use gpuwho_model::catalog::event::EventKind;

/// Codes about memory: uncorrectable errors, failed retirements, uncontained errors.
const MEMORY: &[u32] = &[48, 64, 95, 140, 156, 168, 171, 172];
/// The device has fallen off the bus; a fatal PCIe time-out.
const BUS: &[u32] = &[79, 167];
/// NVLink and its training.
const LINK: &[u32] = &[74, 136, 144, 145, 146, 147, 148, 149, 150, 155, 166, 170];
/// Auxiliary power.
const POWER: &[u32] = &[54];
/// The GPU's system processor.
const FIRMWARE: &[u32] = &[119, 120];
/// What the device needs to recover has changed.
const ADVICE: &[u32] = &[154];

fn is_critical(what: &Observation) -> bool {
    what.severity == Severity::Critical
}

fn is_xid(what: &Observation, codes: &[u32]) -> bool {
    let has_code = what.code.is_some_and(|code| codes.contains(&code));
    what.kind == EventKind::Xid && has_code && is_critical(what)
}

pub(super) fn is_memory(what: &Observation) -> bool {
    is_xid(what, MEMORY) || (what.kind == EventKind::Ecc && is_critical(what))
}

pub(super) fn is_bus(what: &Observation) -> bool {
    let is_gone = matches!(what.kind, EventKind::Lost | EventKind::PcieError);
    is_xid(what, BUS) || (is_gone && is_critical(what))
}

pub(super) fn is_link(what: &Observation) -> bool {
    is_xid(what, LINK)
}

pub(super) fn is_power(what: &Observation) -> bool {
    is_xid(what, POWER)
}

pub(super) fn is_firmware(what: &Observation) -> bool {
    is_xid(what, FIRMWARE)
}

/// The driver's advice to reset the device or to restart the host: XID 154. Where the library has it,
/// `gpu.recovery.action` is judged instead.
pub(in crate::health) fn is_advice(what: &Observation) -> bool {
    is_xid(what, ADVICE)
}

/// Any other fault that needs an operator, but for the driver's advice ([`is_advice`]).
pub(super) fn is_other(what: &Observation) -> bool {
    let is_named = [MEMORY, BUS, LINK, POWER, FIRMWARE, ADVICE];
    match what.kind {
        EventKind::Xid => is_critical(what) && !is_named.iter().any(|codes| is_xid(what, codes)),
        EventKind::InitFailed | EventKind::DriverTimeout | EventKind::Unavailable => {
            is_critical(what)
        }
        _ => false,
    }
}

/// Whether an event says that faults before it are over: a reset, or the driver's own word.
pub(in crate::health) fn is_recovery(what: &Observation) -> bool {
    match what.kind {
        EventKind::Reset | EventKind::DriverLoaded | EventKind::DriverBind => true,
        EventKind::Xid => what
            .code
            .is_some_and(|code| xid::verdict(code, &what.message).action == Action::Recovered),
        _ => false,
    }
}
