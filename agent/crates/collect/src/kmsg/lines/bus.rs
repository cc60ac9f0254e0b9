//! Parses lines that start with a driver and an address: PCIe errors, and those of the vendors' drivers.
//!
//! Taken from Linux 6.1 and 6.12 (`aer_print_error`, `pci_print_aer`, `dpc_process_error`), and from
//! the patches before, between and after them where other versions differ. Errors are `Corrected`
//! and `Uncorrected` (6.1) or `Correctable` and `Uncorrectable` (6.12), with or without a leading
//! `AER: `.

use super::{amdgpu, grammar, habanalabs, intel, tenstorrent};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Observation, Place, Severity};

/// Drivers of accelerators, as their lines start, and the driver of PCIe ports.
const DRIVERS: &[&str] = &[
    "nvidia",
    "amdgpu",
    "nouveau",
    "xe",
    "i915",
    "habanalabs",
    "tenstorrent",
    "vfio-pci",
    "neuron-driver",
    PORT,
];
/// The driver of PCIe ports.
const PORT: &str = "pcieport";

/// Parses such a line.
pub(super) fn read(text: &str) -> Option<Observation> {
    if let Some(what) = amdgpu::without_address(text).or_else(|| habanalabs::of_node(text)) {
        return Some(what);
    }
    let (driver, rest) = text.split_once(' ')?;
    if !DRIVERS.contains(&driver) {
        return None;
    }
    let (at, rest) = grammar::device(rest)?;
    let place = if driver == PORT { Place::Port(at) } else { Place::Pci(at) };
    let rest = rest.strip_prefix(": ")?;
    if let Some(severity) = bus_error(rest) {
        return Some(Observation::new(EventKind::PcieError, place, severity, text));
    }
    match driver {
        "amdgpu" => {
            let rest = rest.strip_prefix("amdgpu: ").unwrap_or(rest);
            amdgpu::read(rest.strip_prefix("[drm] *ERROR* ").unwrap_or(rest), place, text)
        }
        "habanalabs" => habanalabs::read(rest, place, text),
        "tenstorrent" => tenstorrent::read(rest, place, text),
        _ => intel::read(driver, rest, place, text),
    }
}

/// The severity of a PCIe error; matches one line of each report.
fn bus_error(rest: &str) -> Option<Severity> {
    let error = rest.strip_prefix("AER: ").unwrap_or(rest);
    if let Some(how) = error.strip_prefix("PCIe Bus Error: severity=") {
        let (how, _) = how.split_once(", type=")?;
        return Some(match how {
            "Corrected" | "Correctable" => Severity::Info,
            "Uncorrected (Fatal)" | "Uncorrectable (Fatal)" => Severity::Critical,
            _ => Severity::Warning,
        });
    }
    // Firmware that handles errors first prints this; the severity is in later lines.
    if error.starts_with("aer_status: ") {
        return Some(Severity::Warning);
    }
    // The port has disconnected the devices below it.
    rest.strip_prefix("DPC: ")?.starts_with("containment event, ").then_some(Severity::Critical)
}
