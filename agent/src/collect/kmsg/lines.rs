//! What a line of the kernel says about an accelerator. Pure: text in, happening out.
//!
//! Here are NVIDIA's words, read in every release of its open kernel modules from 515.43 to 595.45
//! (`krcReportXid`, `osHandleGpuLost`, `RmInitAdapter`, `nv_pci_remove`, `nv-procfs.c`,
//! `kernel_gsp.c`, `nvlink_linux.c`, `common_nvswitch.h`). PCIe and AMD are in [`bus`], kills in
//! [`kill`]. A line that fits no pattern is nobody's business here.
//!
//! The kernel prints text of tenants: a crash is `COMM[PID]: segfault at … in FILE[…]`, and both
//! names are the tenant's. So each pattern is anchored: it begins where the line begins and names
//! every byte up to the driver's own free text, which no tenant can write. At the beginning of a
//! line a tenant has a command name (15 bytes; behind it `[`, `: `, ` (`, ` ` or `/`) or the name of
//! a network interface (15 bytes without `:`, `/` and spaces). No pattern begins with one of
//! these. A packet filter's line begins with up to 127 bytes of whoever set the rule
//! ([`is_of_a_packet`]).

mod bus;
mod fallen;
mod grammar;
mod kill;

use super::record::Record;
use crate::catalog::event::EventKind;
use crate::event::{Named, Observation, Place, Severity, xid};
use fallen::Fallen;
use kill::Kills;

/// Reads lines in their order: some add to the ones before, or repeat them.
#[derive(Debug, Default)]
pub(super) struct Reports {
    kills: Kills,
    fallen: Fallen,
}

impl Reports {
    /// Lines before the next one are missing.
    pub(super) fn lost(&mut self) {
        self.kills.lost();
    }

    /// Keeps of a line what says something of later ones.
    pub(super) fn heed(&mut self, record: &Record<'_>) {
        self.kills.heed(record);
    }

    /// What a line that was heeded says that is new.
    pub(super) fn read(&mut self, record: &Record<'_>) -> Option<Observation> {
        let mut what = read(&record.text)?;
        self.kills.place(&mut what, record);
        (!self.fallen.is_reported(&what, record.at_us)).then_some(what)
    }
}

/// What a line says, if it is about an accelerator or a killed process.
fn read(text: &str) -> Option<Observation> {
    if is_of_a_packet(text) {
        return None;
    }
    if let Some(rest) = text.strip_prefix("NVRM: ") {
        return nvrm(rest, text);
    }
    if let Some(rest) = text.strip_prefix("nvidia-nvswitch") {
        return sxid(rest, text);
    }
    if let Some(rest) = text.strip_prefix("nvidia-nvlink: ") {
        return module(rest, text);
    }
    kill::read(text).or_else(|| bus::read(text))
}

/// A packet filter's line: the prefix of its rule, then `IN=… OUT=… ` and the packet's fields
/// (`nf_log_syslog.c`, 6.18). Rules of other network namespaces are logged where
/// `net.netfilter.nf_log_all_netns` is set. A process's name may hold `IN= OUT=` too, but behind it
/// comes the driver's sentence.
fn is_of_a_packet(text: &str) -> bool {
    // `SRC=::1`, `DF`, `[4`, `bytes]`: no words.
    let is_field = |word: &str| {
        word.contains('=') || word.ends_with(']') || !word.bytes().any(|b| b.is_ascii_lowercase())
    };
    text.match_indices("IN=").any(|(at, _)| {
        let fields = text.get(at..).unwrap_or_default();
        let is_out = fields.split_whitespace().nth(1).is_some_and(|word| word.starts_with("OUT="));
        is_out && fields.split_whitespace().all(is_field)
    })
}

/// Lines of the NVIDIA driver.
fn nvrm(rest: &str, text: &str) -> Option<Observation> {
    let critical = |kind, place| Some(Observation::new(kind, place, Severity::Critical, text));
    if let Some(rest) = rest.strip_prefix("Xid (") {
        return xid_line(rest, text);
    }
    if let Some(rest) = rest.strip_prefix("The NVIDIA GPU ") {
        let (address, rest) = grammar::device(rest)?;
        return is_gone(rest).then(|| critical(EventKind::Lost, Place::Pci(address))).flatten();
    }
    if let Some(place) = unbound(rest) {
        return Some(Observation::new(EventKind::DriverUnbind, place, Severity::Warning, text));
    }
    let named = rest.strip_prefix("GPU ").and_then(grammar::device);
    let (place, words) = match named {
        Some((address, rest)) => (Place::Pci(address), rest.strip_prefix(": ")?),
        None => (Place::Host, rest),
    };
    if named.is_some() && words.trim_end() == "GPU has fallen off the bus." {
        return critical(EventKind::Lost, place);
    }
    if is_failed_init(words) {
        return critical(EventKind::InitFailed, place);
    }
    is_timeout(rest).then(|| critical(EventKind::DriverTimeout, Place::Host)).flatten()
}

/// The second and third line of one `printk`.
fn is_gone(rest: &str) -> bool {
    let ids = || {
        let (_, rest) = grammar::hex(rest.strip_prefix("\nNVRM: (PCI ID: ")?, 4..=4)?;
        let (_, rest) = grammar::hex(rest.strip_prefix(':')?, 4..=4)?;
        rest.strip_prefix(") installed in this system has\nNVRM: fallen off the bus")
    };
    ids().is_some()
}

/// `RmInitAdapter failed! (0x62:0x65:1436)`.
fn is_failed_init(words: &str) -> bool {
    let codes =
        words.strip_prefix("RmInitAdapter failed! (0x").and_then(|rest| rest.split_once(')'));
    codes.is_some_and(|(codes, rest)| {
        let is_code = |byte: u8| byte.is_ascii_hexdigit() || byte == b'x' || byte == b':';
        codes.bytes().all(is_code) && rest.trim_end().is_empty()
    })
}

/// One of each burst: the heading of the report (another word in each of 525 to 545), and the
/// heartbeat's end (595). The XID 119 or 120 that comes with it has the device.
/// `GPU6 _kgspLogRpcTimeout: ***** GSP Timeout *****`.
fn is_timeout(rest: &str) -> bool {
    let words = || {
        let rest = match rest.strip_prefix("GPU") {
            Some(rest) => grammar::number(rest)?.1.strip_prefix(' ')?,
            None => rest,
        };
        grammar::identifier(rest)?.1.strip_prefix(": ")
    };
    words().is_some_and(|words| {
        let stars = words.trim_end();
        let heading = stars.strip_prefix("********").and_then(|rest| rest.strip_suffix("********"));
        let heading = heading.map(|heading| heading.trim_matches('*'));
        matches!(heading, Some(" GSP Timeout " | " GSP Failure "))
            || words.starts_with("Heartbeat timed out, currentTimeMs ")
    })
}

/// Where a device is being taken from the driver: the driver waits for those who hold it (up to
/// 515.57 it named the minor number only), or somebody has asked for the lock that comes before
/// (`/proc/driver/nvidia/gpus/*/unbindLock`) and got it, or did not because the device is held.
fn unbound(rest: &str) -> Option<Place> {
    if let Some(rest) = rest.strip_prefix("Attempting to remove ") {
        let (place, rest) = if let Some(rest) = rest.strip_prefix("minor device ") {
            (Place::Host, grammar::number(rest)?.1)
        } else {
            let (address, rest) = grammar::device(rest.strip_prefix("device ")?)?;
            (Place::Pci(address), rest)
        };
        return (rest.trim_end() == " with non-zero usage count!").then_some(place);
    }
    let (address, rest) = grammar::device(rest.strip_prefix("GPU ")?)?;
    let words = rest.strip_prefix(": ")?.trim_end();
    let is_lock = ["UnbindLock acquired", "Could not acquire UnbindLock"].contains(&words);
    is_lock.then_some(Place::Pci(address))
}

/// `PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.`; older drivers write
/// no `PCI:`, no process, or quote an unknown one; with MIG ` GPU-I:05` follows the address, in
/// decimal (`%02u`), and behind it may be ` GPU-CI:00`.
fn xid_line(rest: &str, text: &str) -> Option<Observation> {
    let (address, rest) = grammar::address(rest.strip_prefix("PCI:").unwrap_or(rest))?;
    let (gpu_instance, rest) = instance(rest)?;
    let (code, rest) = grammar::number(rest.strip_prefix("): ")?)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')? };
    let process = process(rest.trim_start());
    let severity = xid::verdict(code, text).action.severity();
    let event = Observation::new(EventKind::Xid, Place::Pci(address), severity, text);
    Some(Observation { code: Some(code), process, gpu_instance, ..event })
}

fn instance(rest: &str) -> Option<(Option<u32>, &str)> {
    let Some(rest) = rest.strip_prefix(" GPU-I:") else { return Some((None, rest)) };
    let (id, rest) = grammar::number(rest)?;
    let rest = match rest.strip_prefix(" GPU-CI:") {
        Some(rest) => grammar::number(rest)?.1,
        None => rest,
    };
    Some((Some(id), rest))
}

/// `3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …`. Two lines more of each fault, with
/// the same number, have its registers.
fn sxid(rest: &str, text: &str) -> Option<Observation> {
    let (_, rest) = grammar::number(rest)?;
    let (address, rest) = grammar::device(rest.strip_prefix(": SXid (PCI:")?)?;
    let (code, rest) = grammar::number(rest.strip_prefix("): ")?)?;
    let words = rest.strip_prefix(", ")?;
    if words.starts_with("Severity ") || words.starts_with("Data {") {
        return None;
    }
    let is_fatal = words.starts_with("Fatal, ");
    let severity = if is_fatal { Severity::Critical } else { Severity::Warning };
    let event = Observation::new(EventKind::Sxid, Place::Pci(address), severity, text);
    Some(Observation { code: Some(code), ..event })
}

/// The driver's coming and going.
fn module(rest: &str, text: &str) -> Option<Observation> {
    let (words, number) = rest.split_once(", major device number ")?;
    let kind = match words {
        "Unregistered the Nvlink Core" | "Unregistered Nvlink Core" => EventKind::DriverUnloaded,
        "Nvlink Core is being initialized" => EventKind::DriverLoaded,
        _ => return None,
    };
    let (_, rest) = grammar::number(number)?;
    rest.trim_end().is_empty().then(|| Observation::new(kind, Place::Host, Severity::Info, text))
}

/// `pid=1234, name=python, …` or `pid='<unknown>', …` at the beginning: a process without a number
/// is none. The name is the process's own: nothing behind it is looked for.
fn process(text: &str) -> Option<Named> {
    let rest = text.strip_prefix("pid=")?;
    let (pid, rest) = grammar::number(rest.strip_prefix('\'').unwrap_or(rest))?;
    let name = rest.trim_start_matches('\'').strip_prefix(", name=");
    let comm = name.and_then(|name| name.split(',').next());
    // The kernel's own thread has number 0 and holds nothing.
    (pid != 0).then(|| Named { comm: comm.map(Box::from), ..Named::pid(pid) })
}

#[cfg(test)]
mod tests;
