//! Parses a kernel line about an accelerator. Pure: text in, observation out.
//!
//! This file has NVIDIA's lines, taken from every release of its open kernel modules from 515.43 to
//! 595.45 (`krcReportXid`, `osHandleGpuLost`, `RmInitAdapter`, `nv_pci_remove`, `nv-procfs.c`,
//! `kernel_gsp.c`, `nvlink_linux.c`, `common_nvswitch.h`). PCIe is in [`bus`], the other vendors in
//! [`amdgpu`], [`habanalabs`], [`intel`] and [`tenstorrent`], OOM kills in [`kill`]. AWS Neuron has none:
//! its driver prints for whoever has a node of it open what he likes (`ncdev_printk`). A line that matches no pattern is ignored.
//!
//! The kernel prints text chosen by tenants: a crash is `COMM[PID]: segfault at … in FILE[…]`, and
//! the tenant chooses both names. So each pattern is anchored: it starts where the line starts and
//! matches every byte up to the driver's own free text, which no tenant can write. At the start of
//! a line a tenant controls a command name (15 bytes, followed by `[`, `: `, ` (`, ` ` or `/`) or
//! the name of a network interface (15 bytes without `:`, `/` and spaces). No pattern starts with
//! one of these. A packet filter's line starts with up to 127 bytes chosen by whoever set the rule
//! ([`is_of_a_packet`]).

mod amdgpu;
mod bus;
mod fallen;
mod grammar;
mod habanalabs;
mod intel;
mod kill;
mod tenstorrent;

use super::record::Record;
use fallen::Fallen;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Named, Observation, Place, Severity, xid};
use grammar::Words as _;
use kill::Kills;

/// Parses lines in order: some extend or repeat earlier ones.
#[derive(Debug, Default)]
pub(super) struct Reports {
    kills: Kills,
    fallen: Fallen,
}

impl Reports {
    /// Records that lines before the next one are missing.
    pub(super) fn lost(&mut self) {
        self.kills.lost();
    }

    /// Stores what a line says about later ones.
    pub(super) fn scan(&mut self, record: &Record<'_>) {
        self.kills.scan(record);
    }

    /// Parses a scanned line; `None` if it is irrelevant or repeats an earlier one.
    pub(super) fn read(&mut self, record: &Record<'_>) -> Option<Observation> {
        let mut what = read(&record.text)?;
        self.kills.place(&mut what, record);
        (!self.fallen.is_reported(&what, record.at_us)).then_some(what)
    }
}

/// The observation in a line, if it is about an accelerator or a killed process.
fn read(text: &str) -> Option<Observation> {
    if is_of_a_packet(text) {
        return None;
    }
    if let Some(rest) = text.after("NVRM: ") {
        return nvrm(rest, text);
    }
    if let Some(rest) = text.after("nvidia-nvswitch") {
        return sxid(rest, text);
    }
    if let Some(rest) = text.after("nvidia-nvlink: ") {
        return module(rest, text);
    }
    kill::read(text).or_else(|| bus::read(text))
}

/// Whether this is a packet filter's line: the prefix of its rule, then `IN=… OUT=… ` and the
/// packet's fields (`nf_log_syslog.c`, 6.18). Rules of other network namespaces are logged if
/// `net.netfilter.nf_log_all_netns` is set. A process's name may contain `IN= OUT=` too, but the
/// driver's sentence follows it.
fn is_of_a_packet(text: &str) -> bool {
    // Packet fields are `SRC=::1`, `DF`, `[4`, `bytes]`: no lower-case words.
    let is_field = |word: &str| {
        word.contains('=') || word.ends_with(']') || !word.bytes().any(|b| b.is_ascii_lowercase())
    };
    text.match_indices("IN=").any(|(at, _)| {
        let fields = text.get(at..).unwrap_or_default();
        let is_out = fields.split_whitespace().nth(1).is_some_and(|word| word.starts_with("OUT="));
        is_out && fields.split_whitespace().all(is_field)
    })
}

/// Parses lines of the NVIDIA driver.
fn nvrm(rest: &str, text: &str) -> Option<Observation> {
    let critical = |kind, place| Some(Observation::new(kind, place, Severity::Critical, text));
    if let Some(rest) = rest.after("Xid (") {
        return xid_line(rest, text);
    }
    if let Some(rest) = rest.after("The NVIDIA GPU ") {
        let (address, rest) = grammar::device(rest)?;
        return is_gone(rest).then(|| critical(EventKind::Lost, Place::Pci(address))).flatten();
    }
    if let Some(place) = unbound(rest) {
        return Some(Observation::new(EventKind::DriverUnbind, place, Severity::Warning, text));
    }
    let named = rest.after("GPU ").and_then(grammar::device);
    let (place, words) = match named {
        Some((address, rest)) => (Place::Pci(address), rest.after(": ")?),
        None => (Place::Host, rest),
    };
    if named.is_some() && words.is("GPU has fallen off the bus.") {
        return critical(EventKind::Lost, place);
    }
    if is_failed_init(words) {
        return critical(EventKind::InitFailed, place);
    }
    is_timeout(rest).then(|| critical(EventKind::DriverTimeout, Place::Host)).flatten()
}

/// Matches the second and third line of one `printk`.
fn is_gone(rest: &str) -> bool {
    let ids = || {
        let (_, rest) = grammar::hex(rest.after("\nNVRM: (PCI ID: ")?, 4..=4)?;
        let (_, rest) = grammar::hex(rest.after(":")?, 4..=4)?;
        rest.after(") installed in this system has\nNVRM: fallen off the bus")
    };
    ids().is_some()
}

/// Matches `RmInitAdapter failed! (0x62:0x65:1436)`.
fn is_failed_init(words: &str) -> bool {
    let codes = words.after("RmInitAdapter failed! (0x").and_then(|rest| rest.split_once(')'));
    codes.is_some_and(|(codes, rest)| {
        let is_code = |byte: u8| byte.is_ascii_hexdigit() || b"xX:".contains(&byte);
        codes.trim_end().bytes().all(is_code) && rest.trim_end().is_empty()
    })
}

/// Matches one line of each burst: the heading of the report (it differs between 525 and 545), and
/// the end of the heartbeat (595): `GPU6 _kgspLogRpcTimeout: ***** GSP Timeout *****`. The XID 119
/// or 120 that accompanies it names the device.
fn is_timeout(rest: &str) -> bool {
    let words = || {
        let rest = match rest.after("GPU") {
            Some(rest) => grammar::number(rest)?.1.after(" ")?,
            None => rest,
        };
        grammar::identifier(rest)?.1.after(": ")
    };
    words().is_some_and(|words| {
        let stars = words.trim_end();
        let heading = stars.after("********").and_then(|rest| rest.strip_suffix("********"));
        let heading = heading.map(|heading| heading.trim_matches('*').trim_start());
        heading.is_some_and(|words| words.is("GSP Timeout") || words.is("GSP Failure"))
            || words.begins("Heartbeat timed out, currentTimeMs ")
    })
}

/// The device that is being unbound from the driver: the driver waits for its openers (up to 515.57
/// the line had the minor number only), or a program requested the unbind lock
/// (`/proc/driver/nvidia/gpus/*/unbindLock`) and got it, or failed because the device is open.
fn unbound(rest: &str) -> Option<Place> {
    if let Some(rest) = rest.after("Attempting to remove ") {
        let (place, rest) = if let Some(rest) = rest.after("minor device ") {
            (Place::Host, grammar::number(rest)?.1)
        } else {
            let (address, rest) = grammar::device(rest.after("device ")?)?;
            (Place::Pci(address), rest)
        };
        return rest.is(" with non-zero usage count!").then_some(place);
    }
    let (address, rest) = grammar::device(rest.after("GPU ")?)?;
    let words = rest.after(": ")?;
    let is_lock = words.is("UnbindLock acquired") || words.is("Could not acquire UnbindLock");
    is_lock.then_some(Place::Pci(address))
}

/// Parses `PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.` Older drivers
/// write no `PCI:` or no process, or quote an unknown one. With MIG, ` GPU-I:05` follows the
/// address, in decimal (`%02u`), and ` GPU-CI:00` may follow that.
fn xid_line(rest: &str, text: &str) -> Option<Observation> {
    let place = rest.after("PCI:").unwrap_or(rest);
    let (address, rest) = grammar::device(place).or_else(|| grammar::address(place))?;
    let (gpu_instance, rest) = instance(rest)?;
    let (code, rest) = grammar::number(rest.after("): ")?)?;
    let is_end = |rest: &&str| rest.is_empty() || rest.starts_with(char::is_whitespace);
    let rest = rest.after(",").or(Some(rest).filter(is_end))?;
    let process = process(rest.trim_start());
    let severity = xid::verdict(code, text).action.severity();
    let event = Observation::new(EventKind::Xid, Place::Pci(address), severity, text);
    Some(Observation { code: Some(code), process, gpu_instance, ..event })
}

fn instance(rest: &str) -> Option<(Option<u32>, &str)> {
    let Some(rest) = rest.after(" GPU-I:") else { return Some((None, rest)) };
    let (id, rest) = grammar::number(rest)?;
    let rest = match rest.after(" GPU-CI:") {
        Some(rest) => grammar::number(rest)?.1,
        None => rest,
    };
    Some((Some(id), rest))
}

/// Parses `3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …`. Two more lines of each fault,
/// with the same code, have its registers.
fn sxid(rest: &str, text: &str) -> Option<Observation> {
    let (_, rest) = grammar::number(rest)?;
    let (address, rest) = grammar::device(rest.after(": SXid (PCI:")?)?;
    let (code, rest) = grammar::number(rest.after("): ")?)?;
    let words = rest.after(", ")?;
    if words.begins("Severity ") || words.begins("Data {") {
        return None;
    }
    let first = words.split(|c: char| !c.is_ascii_alphanumeric()).next();
    let is_fatal = first.is_some_and(|word| word.is("Fatal"));
    let severity = if is_fatal { Severity::Critical } else { Severity::Warning };
    let event = Observation::new(EventKind::Sxid, Place::Pci(address), severity, text);
    Some(Observation { code: Some(code), ..event })
}

/// Parses the lines that the driver prints when it is loaded or unloaded.
fn module(rest: &str, text: &str) -> Option<Observation> {
    let kinds = [
        ("Unregistered the Nvlink Core", EventKind::DriverUnloaded),
        ("Unregistered Nvlink Core", EventKind::DriverUnloaded),
        ("Nvlink Core is being initialized", EventKind::DriverLoaded),
    ];
    let (rest, kind) = kinds.iter().find_map(|(words, kind)| Some((rest.after(words)?, *kind)))?;
    let (_, rest) = grammar::number(rest.after(", major device number ")?)?;
    rest.trim_end().is_empty().then(|| Observation::new(kind, Place::Host, Severity::Info, text))
}

/// Parses `pid=1234, name=python, …` or `pid='<unknown>', …` at the start; without a PID there is
/// no process. The process chooses its name: nothing after it is parsed.
fn process(text: &str) -> Option<Named> {
    let rest = text.after("pid=")?;
    let (pid, rest) = grammar::number(rest.after("'").unwrap_or(rest))?;
    let name =
        rest.trim_start_matches('\'').after(", name").and_then(|name| name.strip_prefix('='));
    let comm = name.and_then(|name| name.split(',').next()).map(str::trim_end);
    // PID 0 is the kernel's own thread and has no device open.
    (pid != 0).then(|| Named { comm: comm.map(Box::from), ..Named::pid(pid) })
}

#[cfg(test)]
mod tests;
