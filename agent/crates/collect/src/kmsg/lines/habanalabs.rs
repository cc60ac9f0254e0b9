//! Parses the lines of Intel Gaudi's driver: resets, a device that does not answer or is given up.
//!
//! Taken from Linux 6.1 to 6.16 (`hl_device_reset`, `hl_device_heartbeat`, `hl_pci_err_detected`). They
//! begin with the PCI device or, by version, with the device's node: `habanalabs hl0`, `accel accel0`. None
//! has text of a tenant.

use super::grammar::{self, Words as _};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Observation, Place, Severity};

/// A line that begins with the device's node.
pub(super) fn of_node(text: &str) -> Option<Observation> {
    let nodes = ["accel accel", "habanalabs hl"];
    let rest = nodes.iter().find_map(|node| text.after(node))?;
    let (number, rest) = grammar::number(rest)?;
    read(rest.after(": ")?, Place::Accel(number), text)
}

/// Parses what follows driver and device.
pub(super) fn read(rest: &str, place: Place, text: &str) -> Option<Observation> {
    // A device that is given up is named once more.
    let (place, words) = match grammar::device(rest) {
        Some((address, rest)) => (Place::Pci(address), rest.after(" ")?),
        None => (place, rest),
    };
    let kind = if words.is("Going to reset device") {
        EventKind::Reset
    } else if words.is("Failed to reset! Device is NOT usable") {
        EventKind::Unavailable
    } else if words.is("PCI failure state error detected") {
        EventKind::Lost
    } else if words.begins("Device heartbeat failed!") {
        EventKind::DriverTimeout
    } else {
        return None;
    };
    Some(Observation::new(kind, place, Severity::Critical, text))
}
