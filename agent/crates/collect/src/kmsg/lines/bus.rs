//! Parses lines that start with a driver and an address: PCIe errors, and those of the vendors' drivers.
//!
//! Taken from Linux 6.1 and 6.12 (`aer_print_error`, `pci_print_aer`, `dpc_process_error`), and from
//! the patches before, between and after them where other versions differ. Errors are `Corrected`
//! and `Uncorrected` (6.1) or `Correctable` and `Uncorrectable` (6.12), with or without a leading
//! `AER: `.

use super::grammar::{self, Words as _};
use super::{amdgpu, habanalabs, intel, tenstorrent};
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
    let (driver, rest) = text.split_once([' ', '\t'])?;
    let driver = *DRIVERS.iter().find(|known| driver.is(known))?;
    let (at, rest) = grammar::device(rest.trim_start())?;
    let place = if driver == PORT { Place::Port(at) } else { Place::Pci(at) };
    let rest = rest.after(": ")?;
    if let Some(severity) = bus_error(rest) {
        return Some(Observation::new(EventKind::PcieError, place, severity, text));
    }
    match driver {
        "amdgpu" => {
            let rest = rest.after("amdgpu: ").unwrap_or(rest);
            amdgpu::read(rest.after("[drm] *ERROR* ").unwrap_or(rest), place, text)
        }
        "habanalabs" => habanalabs::read(rest, place, text),
        "tenstorrent" => tenstorrent::read(rest, place, text),
        _ => intel::read(driver, rest, place, text),
    }
}

/// The severity of a PCIe error; matches one line of each report.
fn bus_error(rest: &str) -> Option<Severity> {
    let error = rest.after("AER: ").unwrap_or(rest);
    if let Some(how) = error.after("PCIe Bus Error: severity=") {
        let is = |words: [&str; 2]| words.iter().any(|words| how.begins(words));
        return Some(if is(["Corrected", "Correctable"]) {
            Severity::Info
        } else if is(["Uncorrected (Fatal)", "Uncorrectable (Fatal)"]) {
            Severity::Critical
        } else {
            Severity::Warning
        });
    }
    // Firmware that handles errors first prints this; the severity is in later lines.
    if error.begins("aer_status: ") {
        return Some(Severity::Warning);
    }
    // The port has disconnected the devices below it.
    rest.after("DPC: ")?.begins("containment event, ").then_some(Severity::Critical)
}
