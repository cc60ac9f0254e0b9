//! Parses lines that start with a driver and an address: PCIe errors, and AMD's RAS errors, resets
//! and hangs.
//!
//! Taken from Linux 6.1 and 6.12 (`aer_print_error`, `pci_print_aer`, `dpc_process_error`,
//! `amdgpu_ras.c`, `amdgpu_ras_eeprom.c`, `amdgpu_job_timedout`), and from the patches before,
//! between and after them where other versions differ. Errors are `Corrected` and `Uncorrected`
//! (6.1) or `Correctable` and `Uncorrectable` (6.12), with or without a leading `AER: `; RAS lines
//! have a leading `{sequence}` in 6.12 and none in 6.1.

use super::grammar;
use crate::catalog::event::EventKind;
use crate::event::{Observation, Place, Severity};

/// Drivers of accelerators, as their lines start, and the driver of PCIe ports.
const DRIVERS: &[&str] = &["nvidia", "amdgpu", "nouveau", "xe", "i915", "habanalabs", PORT];
/// The driver of PCIe ports.
const PORT: &str = "pcieport";

/// Parses such a line.
pub(super) fn read(text: &str) -> Option<Observation> {
    let job = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring ";
    if let Some(rest) = text.strip_prefix(job) {
        // The line of Linux 6.1 does not name the device; that of 6.12 does.
        return is_hang(rest).then(|| hang(Place::Host, text));
    }
    let (driver, rest) = text.split_once(' ')?;
    if !DRIVERS.contains(&driver) {
        return None;
    }
    let (port, rest) = grammar::port(rest)?;
    let place = if driver == PORT { Place::Port(port) } else { Place::Pci(port.address) };
    let rest = rest.strip_prefix(": ")?;
    if let Some(severity) = bus_error(rest) {
        return Some(Observation::new(EventKind::PcieError, place, severity, text));
    }
    if driver != "amdgpu" {
        return None;
    }
    let rest = rest.strip_prefix("amdgpu: ").unwrap_or(rest);
    amdgpu(rest.strip_prefix("[drm] *ERROR* ").unwrap_or(rest), place, text)
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

/// Parses AMD's lines. Other lines of the driver contain process names.
fn amdgpu(rest: &str, place: Place, text: &str) -> Option<Observation> {
    let ras = after_place(rest);
    let (kind, severity) = if let Some(severity) = counted(ras).or_else(|| memory(ras)) {
        (EventKind::Ecc, severity)
    } else if ras.starts_with("GPU reset begin!") {
        (EventKind::Reset, Severity::Critical)
    } else if ras.strip_prefix("ring ").is_some_and(is_hang) {
        return Some(hang(place, text));
    } else {
        return None;
    };
    Some(Observation::new(kind, place, severity, text))
}

/// The text after the event's number and the location on the board, `{7}socket: 0, die: 0, `.
fn after_place(rest: &str) -> &str {
    let event = || {
        let (_, rest) = grammar::number(rest.strip_prefix('{')?)?;
        Some(rest.strip_prefix('}')?.trim_start())
    };
    let rest = event().unwrap_or(rest);
    let place = || {
        let (_, rest) = grammar::number(rest.strip_prefix("socket: ")?)?;
        let (_, rest) = grammar::number(rest.strip_prefix(", die: ")?)?;
        Some(rest.strip_prefix(',').unwrap_or(rest).trim_start())
    };
    place().unwrap_or(rest)
}

/// Matches `1 new uncorrectable hardware errors detected in umc block`. A line that repeats the
/// totals is not an error of its own.
fn counted(words: &str) -> Option<Severity> {
    let words = grammar::number(words).map_or(words, |(_, rest)| rest.trim_start());
    let words = words.strip_prefix("new ").unwrap_or(words);
    if words.starts_with("poison consumption detected in ") {
        return Some(Severity::Warning);
    }
    let (how, rest) = words.split_once(' ')?;
    // The first kernels with RAS, of 2019, do not write `hardware`.
    let rest = rest.strip_prefix("hardware ").unwrap_or(rest);
    let is_new = rest.starts_with("error(")
        || rest
            .strip_prefix("errors detected in ")
            .is_some_and(|rest| !rest.starts_with("total in "));
    match how {
        "uncorrectable" if is_new => Some(Severity::Critical),
        "deferred" if is_new => Some(Severity::Warning),
        "correctable" if is_new => Some(Severity::Info),
        _ => None,
    }
}

/// Matches bad pages against their threshold, and consumed poison.
fn memory(words: &str) -> Option<Severity> {
    let behind = |before: &str| Some(grammar::number(words.strip_prefix(before)?)?.1);
    let records = behind("RAS records:");
    let pages = behind("Saved bad pages ");
    let is_over = records.is_some_and(|rest| rest.starts_with(" exceed threshold:"))
        || pages.is_some_and(|rest| rest.starts_with(" reaches threshold value "));
    let reset = words.strip_prefix("GPU reset for ").and_then(|rest| rest.split_once(' '));
    let is_poison = reset.is_some_and(|(_, rest)| rest.starts_with("RAS poison consumption is "))
        || words.starts_with("RAS poison consumption, ");
    if is_over {
        Some(Severity::Critical)
    } else if is_poison || records.is_some_and(|rest| rest.starts_with(" exceeds 90% of ")) {
        Some(Severity::Warning)
    } else {
        None
    }
}

/// Matches `gfx_0.0.0 timeout, signaled seq=12, emitted seq=14`.
fn is_hang(rest: &str) -> bool {
    let ring = rest.split_once(' ');
    ring.is_some_and(|(_, words)| words.starts_with("timeout, signaled seq="))
}

fn hang(place: Place, text: &str) -> Observation {
    Observation::new(EventKind::DriverTimeout, place, Severity::Warning, text)
}
