//! Parses the lines of Intel's drivers: hangs, resets, a device that is given up.
//!
//! Taken from Linux 6.1, 6.12 and 6.16: of i915 `error_msg` (`i915_gpu_error.c`) and `intel_gt_reset`; of
//! xe `guc_exec_queue_timedout_job`, `gt_reset` and `xe_device_declare_wedged`, with a leading `Tile0: `
//! from 6.17 on. A reset of one engine has no event of its own: the hang before it has.
//!
//! The line of a hang ends in the name of the process, then its PID. `mark_guilty` of i915 begins with a
//! name, of at most 15 bytes and followed by `[`: each pattern is longer than that.

use super::grammar::{self, Words as _};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Named, Observation, Place, Severity};

/// Parses what follows driver and address.
pub(super) fn read(driver: &str, rest: &str, place: Place, text: &str) -> Option<Observation> {
    let words = rest.after("[drm] ")?;
    let words = words.after("*ERROR* ").unwrap_or(words).trim_end();
    let (kind, severity, process) = match driver {
        "i915" => i915(words)?,
        "xe" => xe(words)?,
        _ => return None,
    };
    Some(Observation { process, ..Observation::new(kind, place, severity, text) })
}

/// What a line says, and the process that it names.
type Said = (EventKind, Severity, Option<Named>);

const RESET: Said = (EventKind::Reset, Severity::Critical, None);
const UNAVAILABLE: Said = (EventKind::Unavailable, Severity::Critical, None);

/// Matches `GPU HANG: ecode 12:1:85dffffb, in python3 [4242]`, `Resetting chip for preemption time out`
/// and `Failed to reset chip`.
fn i915(words: &str) -> Option<Said> {
    if let Some(rest) = words.after("GPU HANG: ecode ") {
        let (_, rest) = grammar::number(rest)?;
        let (_, rest) = grammar::hex(rest.after(":")?, 1..=8)?;
        let (_, rest) = grammar::hex(rest.after(":")?, 8..=8)?;
        return hang(rest, ", in ");
    }
    if words.begins("Resetting chip for ") {
        return Some(RESET);
    }
    words.is("Failed to reset chip").then_some(UNAVAILABLE)
}

/// Matches `GT0: Timedout job: seqno=12, lrc_seqno=12, guc_id=2, flags=0x0 in python3 [4242]`, of older
/// kernels without the process, `GT0: reset started`, and the first line of three of a device that is
/// given up.
fn xe(words: &str) -> Option<Said> {
    if let Some(rest) = words.after("CRITICAL: Xe has declared device ") {
        let (_, rest) = grammar::device(rest)?;
        return rest.begins(" as wedged.").then_some(UNAVAILABLE);
    }
    let part = |words, name| {
        let (_, rest) = grammar::number(str::after(words, name)?)?;
        rest.after(": ")
    };
    let words = part(part(words, "Tile").unwrap_or(words), "GT")?;
    if words.is("reset started") {
        return Some(RESET);
    }
    let rest = words.after("Timedout job: seqno=")?;
    let (_, rest) = grammar::number(rest)?;
    let (_, rest) = grammar::number(rest.after(", lrc_seqno=")?)?;
    let (_, rest) = grammar::number(rest.after(", guc_id=")?)?;
    let (_, rest) = grammar::hex(rest.after(", flags=0x")?, 1..=16)?;
    hang(rest, " in ")
}

/// A hang, with the process at the end of the line, if it names one: the driver's own PID is the last of
/// what may look like several. `None` if neither the line nor the name ends there.
fn hang(rest: &str, before: &str) -> Option<Said> {
    let hang = |process| Some((EventKind::DriverTimeout, Severity::Warning, process));
    if rest.is_empty() {
        return hang(None);
    }
    let (name, pid) = rest.after(before)?.strip_suffix(']')?.rsplit_once([' ', '\t'])?;
    // -1: xe does not know it.
    let pid =
        grammar::number(pid.strip_prefix('[')?).filter(|(pid, rest)| rest.is_empty() && *pid != 0);
    hang(pid.map(|(pid, _)| Named { comm: Some(name.trim_end().into()), ..Named::pid(pid) }))
}
