//! Lines that begin with a driver and an address: PCIe errors, and AMD's RAS, resets and hangs.
//!
//! Read in Linux 6.1 and 6.12 (`aer_print_error`, `pci_print_aer`, `dpc_process_error`,
//! `amdgpu_ras.c`, `amdgpu_ras_eeprom.c`, `amdgpu_job_timedout`), and in the patches before, between
//! and after them for what these two have otherwise. Errors are `Corrected` and `Uncorrected` (6.1) or
//! `Correctable` and `Uncorrectable` (6.12), with or without `AER: ` before; RAS lines have a
//! `{sequence}` before them in 6.12 and none in 6.1.

use crate::catalog::event::EventKind;
use crate::event::{Happening, Place, Severity};
use crate::ids::{PciAddress, PciPort};

/// Drivers of accelerators, as their lines begin, and of the ports above them.
const DRIVERS: &[&str] = &["nvidia", "amdgpu", "nouveau", "xe", "i915", "habanalabs", PORT];
/// The driver of ports.
const PORT: &str = "pcieport";

/// What such a line says.
pub(super) fn read(text: &str) -> Option<Happening> {
    if let Some(rest) = text.strip_prefix("[drm:amdgpu_job_timedout") {
        // Linux 6.1: which device it was, the line does not say. In 6.12 it does.
        return rest.contains(" timeout, signaled seq=").then(|| hang(Place::Host, text));
    }
    let (device, rest) = text.split_once(": ")?;
    let (driver, address) = device.split_once(' ')?;
    if !DRIVERS.contains(&driver) {
        return None;
    }
    let place = if driver == PORT {
        Place::Port(PciPort::parse(address)?)
    } else {
        Place::Pci(PciAddress::parse(address)?)
    };
    if let Some(severity) = bus_error(rest) {
        return Some(Happening::new(EventKind::PcieError, place, severity, text));
    }
    if driver != "amdgpu" {
        return None;
    }
    let rest = rest.strip_prefix("amdgpu: ").unwrap_or(rest);
    amdgpu(rest.strip_prefix("[drm] *ERROR* ").unwrap_or(rest), place, text)
}

/// How bad a PCIe error is; one line of each report.
fn bus_error(rest: &str) -> Option<Severity> {
    if let Some((_, how)) = rest.split_once("PCIe Bus Error: severity=") {
        let fatal = how.starts_with("Uncorrect") && how.contains("(Fatal)");
        return Some(match (how.starts_with("Correct"), fatal) {
            (true, _) => Severity::Info,
            (_, true) => Severity::Critical,
            _ => Severity::Warning,
        });
    }
    // Of firmware that keeps the errors to itself first; how bad it was is in the lines behind.
    if rest.strip_prefix("AER: ").unwrap_or(rest).starts_with("aer_status: ") {
        return Some(Severity::Warning);
    }
    // The port has cut off what is below it.
    rest.strip_prefix("DPC: ")?.starts_with("containment event, ").then_some(Severity::Critical)
}

/// AMD's words. A line that repeats the totals is no error of its own.
fn amdgpu(rest: &str, place: Place, text: &str) -> Option<Happening> {
    let has = |words: &str| rest.contains(words);
    // The first kernels with RAS, of 2019, have no `hardware`.
    let errors = |how: &str| {
        has(&format!("{how} hardware error")) || has(&format!(" {how} errors detected in "))
    };
    let (kind, severity) = if has("detected in total in ") {
        return None;
    } else if errors("uncorrectable") || has("Saved bad pages") || has("exceed threshold") {
        (EventKind::Ecc, Severity::Critical)
    } else if errors("deferred") || has("poison consumption") || has("exceeds 90% of threshold") {
        (EventKind::Ecc, Severity::Warning)
    } else if errors("correctable") {
        (EventKind::Ecc, Severity::Info)
    } else if rest.starts_with("GPU reset begin!") {
        (EventKind::Reset, Severity::Critical)
    } else if rest.starts_with("ring ") && has(" timeout, signaled seq=") {
        return Some(hang(place, text));
    } else {
        return None;
    };
    Some(Happening::new(kind, place, severity, text))
}

fn hang(place: Place, text: &str) -> Happening {
    Happening::new(EventKind::DriverTimeout, place, Severity::Warning, text)
}
