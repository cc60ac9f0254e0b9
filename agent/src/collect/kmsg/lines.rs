//! What a line of the kernel says about an accelerator. Pure: text in, happening out.
//!
//! Here are NVIDIA's words, read in every release of its open kernel modules from 515.43 to 595.45
//! (`krcReportXid`, `osHandleGpuLost`, `RmInitAdapter`, `nv_pci_remove`, `nv-procfs.c`,
//! `kernel_gsp.c`, `nvlink_linux.c`, `common_nvswitch.h`). PCIe and AMD are in [`bus`], kills in
//! [`kill`]. A line that fits no pattern is nobody's business here.

mod bus;
mod kill;

use crate::catalog::event::EventKind;
use crate::event::{Happening, Named, Place, Severity, xid};
use crate::ids::PciAddress;
pub(super) use kill::Kills;

/// What a line says, if it is about an accelerator or a killed process.
pub(super) fn read(text: &str) -> Option<Happening> {
    let first = text.split('\n').next().unwrap_or(text);
    if let Some(rest) = first.strip_prefix("NVRM: ") {
        return nvrm(rest, text);
    }
    if first.contains("SXid (") {
        return sxid(first);
    }
    if let Some(rest) = first.strip_prefix("nvidia-nvlink: ") {
        return module(rest, first);
    }
    kill::read(first).or_else(|| bus::read(first))
}

/// Lines of the NVIDIA driver.
fn nvrm(rest: &str, text: &str) -> Option<Happening> {
    if let Some(rest) = rest.strip_prefix("Xid (") {
        return xid_line(rest, text);
    }
    if let Some(rest) = rest.strip_prefix("The NVIDIA GPU ") {
        let gone = text.contains("fallen off the bus");
        return gone
            .then(|| Happening::new(EventKind::Lost, place(rest), Severity::Critical, text));
    }
    if let Some(address) = unbound(rest) {
        return Some(Happening::new(
            EventKind::DriverUnbind,
            place(address),
            Severity::Warning,
            text,
        ));
    }
    if rest.contains("RmInitAdapter failed") {
        let place = place(rest.strip_prefix("GPU ").unwrap_or_default());
        return Some(Happening::new(EventKind::InitFailed, place, Severity::Critical, text));
    }
    // One of each burst: the heading of the report (another word in each of 525 to 545), and the
    // heartbeat's end (595). The XID 119 or 120 that comes with it has the device.
    let is_timeout = ["* GSP Timeout *", "* GSP Failure *", "Heartbeat timed out"]
        .iter()
        .any(|heading| rest.contains(heading));
    is_timeout
        .then(|| Happening::new(EventKind::DriverTimeout, Place::Host, Severity::Critical, text))
}

/// The address behind the words of a device's being taken from the driver: the driver waits for
/// those who hold it (up to 515.57 it named the minor number only), or somebody has asked for the
/// lock that comes before (`/proc/driver/nvidia/gpus/*/unbindLock`) and got it, or did not because
/// the device is held.
fn unbound(rest: &str) -> Option<&str> {
    if let Some(rest) = rest.strip_prefix("Attempting to remove ") {
        return Some(rest.strip_prefix("device ").unwrap_or_default());
    }
    let (address, words) = rest.strip_prefix("GPU ")?.split_once(": ")?;
    let is_lock = ["UnbindLock acquired", "Could not acquire UnbindLock"].contains(&words.trim());
    is_lock.then_some(address)
}

/// `PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.`; older drivers write
/// no `PCI:`, no process, or quote an unknown one; with MIG ` GPU-I:05` follows the address, in
/// decimal (`%02u`).
fn xid_line(rest: &str, text: &str) -> Option<Happening> {
    let (address, rest) = rest.split_once("):")?;
    let mut words = address.split(' ');
    let place = place(words.next()?);
    let gpu_instance = words.find_map(|word| word.strip_prefix("GPU-I:"));
    let gpu_instance = gpu_instance.and_then(|id| id.parse().ok());
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let code: u32 = code.trim().parse().ok()?;
    let severity = xid::find(code).map_or(Severity::Critical, |row| row.action.severity());
    let process = process(rest);
    let event = Happening::new(EventKind::Xid, place, severity, text);
    Some(Happening { code: Some(code), process, gpu_instance, ..event })
}

/// `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …`
fn sxid(text: &str) -> Option<Happening> {
    let rest = text.strip_prefix("nvidia-nvswitch")?;
    let (_, rest) = rest.split_once("SXid (")?;
    let (address, rest) = rest.split_once("):")?;
    let code = rest.trim_start().split(',').next()?.parse().ok()?;
    let fatal = rest.contains(", Fatal");
    let severity = if fatal { Severity::Critical } else { Severity::Warning };
    let event = Happening::new(EventKind::Sxid, place(address), severity, text);
    Some(Happening { code: Some(code), ..event })
}

/// The driver's coming and going.
fn module(rest: &str, text: &str) -> Option<Happening> {
    let kind = if rest.starts_with("Unregistered") {
        EventKind::DriverUnloaded
    } else if rest.starts_with("Nvlink Core is being initialized") {
        EventKind::DriverLoaded
    } else {
        return None;
    };
    Some(Happening::new(kind, Place::Host, Severity::Info, text))
}

/// `pid=1234`, `pid='<unknown>'`, `name=python`: a process without a number is none.
fn process(text: &str) -> Option<Named> {
    let (mut pid, mut comm) = (None, None);
    for field in text.split(',').map(str::trim) {
        if let Some(number) = field.strip_prefix("pid=") {
            pid = pid.or_else(|| number.trim_matches('\'').parse().ok());
        } else if let Some(name) = field.strip_prefix("name=") {
            comm = comm.or_else(|| Some(Box::from(name.trim_matches('\''))));
        }
    }
    // The kernel's own thread has number 0 and holds nothing.
    pid.filter(|pid| *pid != 0).map(|pid| Named { comm, ..Named::pid(pid) })
}

/// The address a text begins with.
fn place(text: &str) -> Place {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || ":.".contains(c)));
    let address = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    PciAddress::parse(address.trim_end_matches([':', '.'])).map_or(Place::Host, Place::Pci)
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
