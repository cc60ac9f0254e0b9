//! What a line of the kernel says about an accelerator. Pure: text in, happening out.
//!
//! Wording as of NVIDIA's open kernel modules (R515 to R595; `nvErrorLog_va`, `nv_pci_remove`,
//! `RmInitAdapter`), and of Linux 6.18 (`aer_print_error`, `__oom_kill_process`, `dump_oom_summary`,
//! `amdgpu_ras.c`). A line that fits no pattern is nobody's business here.

use crate::catalog::event::EventKind;
use crate::event::{Happening, Named, Place, Severity, xid};
use crate::ids::PciAddress;

/// Drivers of accelerators, as their lines begin.
const DRIVERS: &[&str] = &["nvidia", "amdgpu", "nouveau", "xe", "i915", "habanalabs", "pcieport"];

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
    if first.contains("Killed process ") {
        return killed(first);
    }
    if let Some(rest) = first.strip_prefix("oom-kill:constraint=") {
        return chosen(rest, first);
    }
    on_bus(first)
}

fn happening(kind: EventKind, place: Place, severity: Severity, text: &str) -> Happening {
    Happening {
        kind,
        place,
        code: None,
        severity,
        process: None,
        gpu_instance: None,
        peer: None,
        stuck: None,
        message: text.into(),
    }
}

/// Lines of the NVIDIA driver.
fn nvrm(rest: &str, text: &str) -> Option<Happening> {
    if let Some(rest) = rest.strip_prefix("Xid (") {
        return xid_line(rest, text);
    }
    if let Some(rest) = rest.strip_prefix("The NVIDIA GPU ") {
        let gone = text.contains("fallen off the bus");
        return gone.then(|| happening(EventKind::Lost, place(rest), Severity::Critical, text));
    }
    if let Some(rest) = rest.strip_prefix("Attempting to remove device ") {
        return Some(happening(EventKind::DriverUnbind, place(rest), Severity::Warning, text));
    }
    if rest.contains("RmInitAdapter failed") {
        let place = place(rest.strip_prefix("GPU ").unwrap_or_default());
        return Some(happening(EventKind::InitFailed, place, Severity::Critical, text));
    }
    // One of each burst: the heading of the report, and the heartbeat's end.
    let is_timeout = rest.contains("* GSP Timeout *") || rest.contains("Heartbeat timed out");
    is_timeout.then(|| happening(EventKind::DriverTimeout, Place::Host, Severity::Critical, text))
}

/// `PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.`; older drivers write
/// no `PCI:`, no process, or quote an unknown one; with MIG ` GPU-I:05` follows the address.
fn xid_line(rest: &str, text: &str) -> Option<Happening> {
    let (address, rest) = rest.split_once("):")?;
    let mut words = address.split(' ');
    let place = place(words.next()?);
    let gpu_instance = words.find_map(|word| word.strip_prefix("GPU-I:")).and_then(hex);
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let code: u32 = code.trim().parse().ok()?;
    let severity = xid::find(code).map_or(Severity::Critical, |row| row.action.severity());
    let process = process(rest);
    let event = happening(EventKind::Xid, place, severity, text);
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
    let event = happening(EventKind::Sxid, place(address), severity, text);
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
    Some(happening(kind, Place::Host, Severity::Info, text))
}

/// `Out of memory: Killed process 4321 (python) total-vm:…`, `Memory cgroup out of memory: Killed …`;
/// kernels before 5.1 say why in a line before, and begin with `Killed`.
fn killed(text: &str) -> Option<Happening> {
    let (why, rest) = text.split_once("Killed process ")?;
    if !why.is_empty() && !why.ends_with("ut of memory: ") {
        return None;
    }
    let (pid, rest) = rest.split_once(" (")?;
    // A command name may hold anything, a closing bracket too; what follows it may not.
    let (comm, _) = rest.rsplit_once(") total-vm:")?;
    let process = Some(Named { pid: pid.parse().ok()?, comm: Some(comm.into()) });
    let event = happening(EventKind::OomKill, Place::Host, Severity::Warning, text);
    Some(Happening { process, ..event })
}

/// `…,oom_memcg=/a,task_memcg=/a/b,task=python,pid=4321,uid=0`, or `…,global_oom,task_memcg=…`: since
/// 5.0 the line before [`killed`]'s, and it has the cgroup, which names container or job.
fn chosen(rest: &str, text: &str) -> Option<Happening> {
    let (_, rest) = rest.split_once(",task_memcg=")?;
    let (_, rest) = rest.split_once(",task=")?;
    // A command name may hold commas; the numbers behind it may not.
    let (comm, rest) = rest.rsplit_once(",pid=")?;
    let (pid, _) = rest.split_once(",uid=")?;
    let process = Some(Named { pid: pid.parse().ok()?, comm: Some(comm.into()) });
    let event = happening(EventKind::OomKill, Place::Host, Severity::Warning, text);
    Some(Happening { process, ..event })
}

/// The process last killed, so that two lines about it are one event.
#[derive(Debug, Default)]
pub(super) struct LastKill(Option<(u32, u64)>);

impl LastKill {
    /// The kernel writes both lines in one go; a number is not used again as soon.
    const APART_US: u64 = 2_000_000;

    /// Whether a line tells of the same kill as the one before.
    pub(super) fn is_told(&mut self, what: &Happening, at_us: u64) -> bool {
        let killed = what.process.as_ref().filter(|_| what.kind == EventKind::OomKill);
        let Some(pid) = killed.map(|process| process.pid) else { return false };
        let before = self.0.replace((pid, at_us));
        before
            .is_some_and(|(last, then)| last == pid && at_us.saturating_sub(then) <= Self::APART_US)
    }
}

/// Lines that begin with a driver and an address: PCIe errors, AMD's RAS and resets.
fn on_bus(text: &str) -> Option<Happening> {
    let (device, rest) = text.split_once(": ")?;
    let (driver, address) = device.split_once(' ')?;
    if !DRIVERS.contains(&driver) {
        return None;
    }
    let place = Place::Pci(PciAddress::parse(address)?);
    if let Some((_, rest)) = rest.split_once("PCIe Bus Error: severity=") {
        let corrected = rest.starts_with("Correct");
        let fatal =
            rest.starts_with("Uncorrected (Fatal)") || rest.starts_with("Uncorrectable (Fatal)");
        let severity = match (corrected, fatal) {
            (true, _) => Severity::Info,
            (_, true) => Severity::Critical,
            _ => Severity::Warning,
        };
        return Some(happening(EventKind::PcieError, place, severity, text));
    }
    if driver != "amdgpu" {
        return None;
    }
    amdgpu(rest.strip_prefix("amdgpu: ").unwrap_or(rest), place, text)
}

/// AMD's words. A line that repeats the totals is no error of its own.
fn amdgpu(rest: &str, place: Place, text: &str) -> Option<Happening> {
    let (kind, severity) = if rest.contains("in total in ") {
        return None;
    } else if rest.contains("uncorrectable hardware error") {
        (EventKind::Ecc, Severity::Critical)
    } else if rest.contains("correctable hardware error") {
        (EventKind::Ecc, Severity::Info)
    } else if rest.starts_with("GPU reset begin!") {
        (EventKind::Reset, Severity::Critical)
    } else if rest.starts_with("ring ") && rest.contains(" timeout, signaled seq=") {
        (EventKind::DriverTimeout, Severity::Warning)
    } else {
        return None;
    };
    Some(happening(kind, place, severity, text))
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
    pid.filter(|pid| *pid != 0).map(|pid| Named { pid, comm })
}

/// The address a text begins with.
fn place(text: &str) -> Place {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || ":.".contains(c)));
    let address = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    PciAddress::parse(address.trim_end_matches([':', '.'])).map_or(Place::Host, Place::Pci)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
