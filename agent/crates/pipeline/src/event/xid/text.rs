//! Reads the driver's text of an XID beyond its number: the NVLink unit and its status (144 to
//! 150), and the recovery action (154).
//!
//! The text comes last on the line, after the process's name, which that process chooses freely. So
//! parsing starts at the last comma.

use super::{Action, Affects};

/// The contents of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detail<'a> {
    pub(super) action: Action,
    pub(super) affects: Affects,
    pub(super) unit: Option<&'a str>,
    pub(super) status: Option<&'a str>,
}

/// Units and bits of their status that a non-fatal error may have.
type Rows = &'static [(&'static str, u32)];

/// Rows of the decode table of XIDs 144 to 150 in NVIDIA's catalogue (sheet "XID 144-150 Decode",
/// as of October 2025, in `leptonai/gpud` 4a8de33: `catalog_generated.go`) that say `IGNORE` and
/// nothing else. All other non-fatal rows say `IGNORE` with something to look at, or [`FOLLOWED`].
/// `TLW_RX` and `TLW_TX` have `_PIPE0` and `_PIPE1` behind them from R575 on.
const HARMLESS: Rows = &[
    ("SAW_MVB", 0x24),
    ("RLW_REMAP", 0x300),
    ("RLW_RSPCOL", 0x1),
    ("RLW_SRC_TRACK", 0x2),
    ("RLW_TAGSTATE", 0x1_0001),
    ("TLW_CTRL", 0x1),
    ("TLW_RX", 0x1),
    ("TLW_TX", 0x1),
    ("NETIR_MFDE_EVENT", 0x3),
];
/// Rows that say `XID_154_EVAL`: an application has ended, and an XID 154 may follow.
const FOLLOWED: Rows = &[("RLW_REMAP", 0x3f), ("RLW_SRC_TRACK", 0xc)];
/// Causes of a link's going down, bits 20 to 25 of the first word of `NETIR_LINK_EVT`, that the
/// table ignores though the link is lost: `INVESTIGATE_SW/USER`, `INVESTIGATE_HOST`.
const WANTED_DOWN: [u32; 2] = [0b10_0110, 0b10_1000];

/// `RLW_REMAP Nonfatal XC1 i0 Link 10 (0x004505c6 0x00000000 …)`: the word after the unit is the
/// severity, the numbers in parentheses are the unit's own word and its status.
pub(super) fn nvlink(text: &str) -> Option<Detail<'_>> {
    let mut words = last(text).split(' ');
    let (unit, how) = (words.next()?, words.next()?);
    let is_unit =
        |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_/".contains(&byte);
    if unit.is_empty() || !unit.bytes().all(is_unit) {
        return None;
    }
    let mut numbers = words.skip_while(|word| !word.starts_with("(0x"));
    let own = numbers.next().and_then(|word| bits(word.strip_prefix('(')?));
    let status = numbers.next().map(|word| word.trim_end_matches(')'));
    let bits = status.and_then(bits);
    let (action, affects) = match how {
        "Fatal" if is_wanted_down(unit, own) => (Action::Watch, Affects::Device),
        "Fatal" => (Action::CheckLink, Affects::Device),
        "Nonfatal" if is_in(FOLLOWED, unit, bits) => (Action::FollowRecovery, Affects::Process),
        "Nonfatal" if is_in(HARMLESS, unit, bits) => (Action::Nothing, Affects::Process),
        "Nonfatal" => (Action::Watch, Affects::Process),
        _ => return None,
    };
    Some(Detail { action, affects, unit: Some(unit), status: status.filter(|_| bits.is_some()) })
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`: the numbers are
/// `NV2080_CTRL_GPU_RECOVERY_ACTION_*` (`gpuRefreshRecoveryActionInLock`, 570 to 595).
pub(super) fn recovery(text: &str) -> Option<Detail<'_>> {
    let change = last(text).strip_prefix("GPU recovery action changed from 0x")?;
    let (_, to) = change.split_once(") to 0x")?;
    let (number, _) = to.split_once(" (")?;
    let action = match number {
        "0" => Action::Recovered,
        "1" | "4" => Action::ResetGpu,
        "2" => Action::RestartNode,
        "3" => Action::DrainPeers,
        _ => return None,
    };
    Some(Detail { action, affects: Affects::Device, unit: None, status: None })
}

fn last(text: &str) -> &str {
    text.rsplit(", ").next().unwrap_or(text).trim_end()
}

fn bits(word: &str) -> Option<u32> {
    u32::from_str_radix(word.strip_prefix("0x")?.trim_end_matches(')'), 16).ok()
}

fn is_in(rows: Rows, unit: &str, status: Option<u32>) -> bool {
    // A unit has several names in some versions, `TLW_RX/TLW_RX_PIPE0`.
    let is_named = |name: &str| {
        let mut names = unit.split('/');
        names.any(|unit| {
            unit == name || unit.strip_prefix(name).is_some_and(|end| end.starts_with("_PIPE"))
        })
    };
    let known = |bits: u32| rows.iter().any(|(name, mask)| is_named(name) && bits & !mask == 0);
    status.is_some_and(|bits| bits != 0 && known(bits))
}

fn is_wanted_down(unit: &str, own: Option<u32>) -> bool {
    let is_link = unit.starts_with("NETIR_LINK_EVT") || unit.starts_with("NETIR_LINK_DOWN");
    is_link && own.is_some_and(|bits| WANTED_DOWN.contains(&(bits >> 20 & 0x3f)))
}

#[cfg(test)]
mod tests {
    use crate::event::Severity;
    use crate::event::xid::verdict;

    /// Severity, unit and status of a line.
    fn read(code: u32, words: &str) -> (Severity, Option<String>, Option<String>) {
        let line = format!("NVRM: Xid (PCI:0018:01:00): {code}, {words}");
        let verdict = verdict(code, &line);
        let text = |text: Option<&str>| text.map(str::to_owned);
        (verdict.action.severity(), text(verdict.unit), text(verdict.status))
    }

    /// Lines of B200 and GB200 (`leptonai/gpud` 1160 and its tests, `akash-network/support` 244),
    /// with statuses of the decode table.
    const LINES: &[(u32, &str, Severity)] = &[
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 10 (0x004505c6 0x00000000)", Severity::Critical),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", Severity::Warning),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)", Severity::Warning),
        (
            145,
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0)",
            Severity::Warning,
        ),
        (
            145,
            "pid=4, name=<unknown>, RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x1 0x2)",
            Severity::Critical,
        ),
        (
            145,
            "pid=7, name=python3, RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x6 0x1)",
            Severity::Warning,
        ),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x0)", Severity::Warning),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000020 0x0)", Severity::Info),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000004)", Severity::Warning),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 10 (0x00000004 0x00000300)", Severity::Info),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 10 (0x00000004 0x00000304)", Severity::Warning),
        (146, "TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x0a 0x01)", Severity::Info),
        (146, "TLW_TX_PIPE1 Nonfatal XC0 i0 Link 00 (0x0a 0x03)", Severity::Warning),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", Severity::Critical),
    ];

    #[test]
    fn an_nvlink_error_has_the_severity_of_its_line() {
        for (code, words, severity) in LINES {
            assert_eq!(read(*code, words).0, *severity, "{code}, {words}");
        }
        let (code, words, severity) = LINES[3];
        let (unit, status) = ("RLW_SRC_TRACK".to_owned(), "0x00000008".to_owned());
        assert_eq!(read(code, words), (severity, Some(unit), Some(status)));
    }

    #[test]
    fn an_nvlink_error_without_a_text_that_is_known_is_a_warning() {
        for words in
            ["", "RLW_REMAP", "a text of a later driver", "pid=1, name=X Fatal (0x1 0x1), y"]
        {
            assert_eq!(read(145, words), (Severity::Warning, None, None), "{words}");
        }
    }

    #[test]
    fn a_process_name_with_the_drivers_text_has_no_effect() {
        let words = "pid=7, name=X Fatal (0x1), RLW_REMAP Nonfatal XC1 i0 Link 10 (0x4 0x4)";
        assert_eq!(read(145, words).0, Severity::Warning);
        let words = "pid=7, name=x) to 0x0 (, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
        assert_eq!(read(154, words).0, Severity::Critical);
    }

    #[test]
    fn a_changed_recovery_action_has_the_severity_of_the_action() {
        for (to, severity) in [
            ("0x1 (GPU Reset Required)", Severity::Critical),
            ("0x2 (Node Reboot Required)", Severity::Critical),
            ("0x3 (Drain P2P)", Severity::Warning),
            ("0x4 (Drain and Reset)", Severity::Critical),
            ("0x0 (None)", Severity::Info),
            ("0x9 (Something new)", Severity::Warning),
        ] {
            let words = format!("GPU recovery action changed from 0x4 (Drain and Reset) to {to}");
            assert_eq!(read(154, &words), (severity, None, None), "{to}");
        }
    }
}
