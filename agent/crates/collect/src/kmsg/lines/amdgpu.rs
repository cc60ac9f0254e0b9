//! Parses the lines of AMD's driver: RAS errors, resets, hangs, page faults, heat.
//!
//! Taken from Linux 6.1 and 6.12 (`amdgpu_ras.c`, `amdgpu_ras_eeprom.c`, `amdgpu_job_timedout`,
//! `amdgpu_device.c`, `gmc_v9_0.c`, `smu_cmn.c`, `kfd_device_queue_manager.c`), and from the patches
//! before, between and after them where other versions differ. RAS lines have a leading
//! `{sequence}` in 6.12 and none in 6.1. Only page faults of kernels before 6.8 have text of a
//! tenant in the line: the names of process and thread.

use super::grammar::{self, Words as _};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Named, Observation, Place, Severity};

/// The device is about to be, or was, switched off because of its temperature.
const OVERHEATED: [&str; 3] = [
    "ERROR: GPU over temperature range(SW CTF) detected!",
    "ERROR: GPU HW Critical Temperature Fault(aka CTF) detected!",
    "ERROR: GPU HW CTF! Please find other logs for the reason.",
];
/// The firmware lowers the clocks.
const THROTTLED: [&str; 2] = [
    "WARN: GPU thermal throttling temperature reached, expect performance decrease.",
    "WARN: GPU is throttled, expect performance decrease.",
];
/// Longest command name of a process (`TASK_COMM_LEN` without its end).
const MAX_COMM: usize = 15;

/// A hang in the words of Linux 6.1, which do not name the device.
pub(super) fn without_address(text: &str) -> Option<Observation> {
    let rest = text.after("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring ")?;
    is_hang(rest).then(|| hang(Place::Host, text))
}

/// Parses what follows driver and address.
pub(super) fn read(rest: &str, place: Place, text: &str) -> Option<Observation> {
    if let Some(PageFault { process }) = page_fault(rest) {
        let kind = EventKind::MemoryFault;
        let event = Observation::new(kind, place, Severity::Warning, text);
        return Some(Observation { process, ..event });
    }
    let ras = after_place(rest);
    let (kind, severity) = if let Some(severity) = counted(ras).or_else(|| memory(ras)) {
        (EventKind::Ecc, severity)
    } else if ras.begins("GPU reset begin!") {
        (EventKind::Reset, Severity::Critical)
    } else if is_failed_reset(ras) || OVERHEATED.iter().any(|words| ras.is(words)) {
        (EventKind::Unavailable, Severity::Critical)
    } else if ras.is("device lost from bus!") {
        (EventKind::Lost, Severity::Critical)
    } else if THROTTLED.iter().any(|words| ras.begins(words)) {
        (EventKind::ClockChange, Severity::Warning)
    } else if ras.after("ring ").is_some_and(is_hang) || is_stuck(ras) {
        return Some(hang(place, text));
    } else {
        return None;
    };
    Some(Observation::new(kind, place, severity, text))
}

/// The text after the event's number and the location on the board, `{7}socket: 0, die: 0, `.
fn after_place(rest: &str) -> &str {
    let event = || {
        let (_, rest) = grammar::number(rest.after("{")?)?;
        Some(rest.after("}")?.trim_start())
    };
    let rest = event().unwrap_or(rest);
    let place = || {
        let (_, rest) = grammar::number(rest.after("socket: ")?)?;
        let (_, rest) = grammar::number(rest.after(", die: ")?)?;
        Some(rest.after(",").unwrap_or(rest).trim_start())
    };
    place().unwrap_or(rest)
}

/// Matches `1 new uncorrectable hardware errors detected in umc block`. A line that repeats the
/// totals is not an error of its own.
fn counted(words: &str) -> Option<Severity> {
    let words = grammar::number(words).map_or(words, |(_, rest)| rest.trim_start());
    let words = words.after("new ").unwrap_or(words);
    if words.begins("poison consumption detected in ") {
        return Some(Severity::Warning);
    }
    let (how, rest) = words.split_once([' ', '\t'])?;
    let rest = rest.trim_start();
    // The first kernels with RAS, of 2019, do not write `hardware`.
    let rest = rest.after("hardware ").unwrap_or(rest);
    let is_new = rest.begins("error(")
        || rest.after("errors detected in ").is_some_and(|rest| !rest.begins("total in "));
    let kinds = [
        ("uncorrectable", Severity::Critical),
        ("deferred", Severity::Warning),
        ("correctable", Severity::Info),
    ];
    let known = kinds.iter().find(|(word, _)| is_new && how.is(word));
    known.map(|(_, severity)| *severity)
}

/// Matches bad pages against their threshold, and consumed poison.
fn memory(words: &str) -> Option<Severity> {
    let behind = |before: &str| Some(grammar::number(words.after(before)?)?.1);
    let records = behind("RAS records:");
    let pages = behind("Saved bad pages ");
    let is_over = records.is_some_and(|rest| rest.begins(" exceed threshold:"))
        || pages.is_some_and(|rest| rest.begins(" reaches threshold value "));
    let reset = words.after("GPU reset for ").and_then(|rest| rest.split_once([' ', '\t']));
    let is_poison = reset
        .is_some_and(|(_, rest)| rest.trim_start().begins("RAS poison consumption is "))
        || words.begins("RAS poison consumption, ");
    if is_over {
        Some(Severity::Critical)
    } else if is_poison || records.is_some_and(|rest| rest.begins(" exceeds 90% of ")) {
        Some(Severity::Warning)
    } else {
        None
    }
}

/// Matches `gfx_0.0.0 timeout, signaled seq=12, emitted seq=14`.
fn is_hang(rest: &str) -> bool {
    let ring = rest.split_once([' ', '\t']);
    ring.is_some_and(|(_, words)| words.trim_start().begins("timeout, signaled seq="))
}

fn hang(place: Place, text: &str) -> Observation {
    Observation::new(EventKind::DriverTimeout, place, Severity::Warning, text)
}

/// Matches `GPU reset(2) failed`.
fn is_failed_reset(words: &str) -> bool {
    let rest = words.after("GPU reset(").and_then(grammar::number);
    rest.is_some_and(|(_, rest)| rest.is(") failed"))
}

/// Matches a scheduler of the device that does not answer: `MES failed to respond to msg=3`,
/// `MES(1) failed to respond to msg=REMOVE_QUEUE`, and the queues that cannot be stopped.
fn is_stuck(words: &str) -> bool {
    const STUCK: &str = "The cp might be in an unrecoverable state due to an unsuccessful queues \
                         preemption";
    let scheduler = words.after("MES").map(|rest| {
        let number = rest.after("(").and_then(grammar::number);
        number.and_then(|(_, rest)| rest.after(")")).unwrap_or(rest)
    });
    words.is(STUCK) || scheduler.is_some_and(|rest| rest.begins(" failed to respond to msg="))
}

/// A page fault, and the process that the line names.
struct PageFault {
    process: Option<Named>,
}

/// Matches `[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32772)`, and returns the
/// process that kernels before 6.8 name behind the last number.
fn page_fault(rest: &str) -> Option<PageFault> {
    let (_, rest) = grammar::identifier(rest.after("[")?)?;
    let rest = rest.after("] ")?;
    let kinds = ["no-retry ", "retry "];
    let rest = kinds.iter().find_map(|kind| rest.after(kind)).unwrap_or(rest);
    let mut rest = rest.after("page fault (")?;
    for key in ["src_id:", " ring:", " vmid:", " pasid:"] {
        rest = grammar::number(rest.after(key)?)?.1;
    }
    let rest = rest.trim();
    if rest == ")" {
        return Some(PageFault { process: None });
    }
    let named = rest.strip_prefix(", for process ")?.strip_suffix(')')?;
    Some(PageFault { process: faulting(named).filter(|pid| *pid != 0).map(Named::pid) })
}

/// The PID in `NAME pid 12 thread NAME pid 13`. A name may itself contain ` pid 1 thread `: a line
/// that can be read in two ways names nobody.
fn faulting(named: &str) -> Option<u32> {
    let mut found = None;
    for (at, _) in named.match_indices(" pid ").filter(|(at, _)| *at <= MAX_COMM) {
        let rest = named.get(at + " pid ".len()..)?;
        let Some((pid, rest)) = grammar::number(rest) else { continue };
        let Some(thread) = rest.strip_prefix(" thread ") else { continue };
        let Some((name, number)) = thread.rsplit_once(" pid ") else { continue };
        let is_number = grammar::number(number).is_some_and(|(_, rest)| rest.is_empty());
        if name.len() <= MAX_COMM && is_number && found.replace(pid).is_some() {
            return None;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fault_names_its_process_unless_a_name_makes_it_ambiguous() {
        let fault = |rest: &str| {
            let line =
                format!("[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32772{rest}");
            page_fault(&line).map(|fault| fault.process.map(|named| named.pid))
        };
        assert_eq!(fault(")"), Some(None));
        assert_eq!(fault(", for process python3 pid 12 thread python3 pid 13)"), Some(Some(12)));
        assert_eq!(fault(", for process  pid 0 thread  pid 0)"), Some(None), "nobody");
        assert_eq!(fault(", for process x)"), Some(None), "of whom is not clear");
        let forged = ", for process  pid 1 thread  pid 12 thread x pid 13)";
        assert_eq!(fault(forged), Some(Some(12)), "what is left is too long for a thread's name");
        let forged = ", for process x pid 12 thread  pid 1 thread y pid 13)";
        assert_eq!(fault(forged), Some(Some(12)), "the first name ends where its PID begins");
        let forged = ", for process  pid 1 thread  pid 2 thread  pid 3)";
        assert_eq!(fault(forged), Some(None), "two ways to read it");
        for other in [" ", ") x", ", for process x pid 1 thread y pid 2) z"] {
            assert_eq!(fault(other), None, "{other}");
        }
        assert!(page_fault("[gfx hub] page fault (src_id:0 ring:24 vmid:8 pasid:1)").is_none());
    }
}
