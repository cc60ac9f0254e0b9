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
///
/// The sheet has one action for drivers before R575 and from it on: they differ in where the unit is in the
/// first word, which is not read, and in some units' names. `TLW_RX` and `TLW_TX` have `_PIPE0` and
/// `_PIPE1` behind them from R575 on; `NETIR_LINK_EVT` became `NETIR_LINK_DOWN`. The cause of the latter is
/// in the same bits of both.
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

/// `RLW_REMAP Nonfatal XC1 i0 Link 10 (0x004505c6 0x00000000 …)`: the word before the severity is the
/// unit, the numbers in parentheses are the unit's own word and its status. Columns are padded in some
/// versions, and up to R570 it is `XC 1 i 0 Link 10 [0x004505c6]`.
pub(super) fn nvlink(text: &str) -> Option<Detail<'_>> {
    let (words, numbers) = last(text).split_once(['(', '[']).unwrap_or((last(text), ""));
    let words: Vec<&str> = words.split_whitespace().collect();
    let is = |of: &'static str| move |word: &&str| word.eq_ignore_ascii_case(of);
    let is_nonfatal = |word: &&str| is("Nonfatal")(word) || is("Non-fatal")(word);
    let at = words.iter().position(|word| is("Fatal")(word) || is_nonfatal(word))?;
    let is_fatal = words.get(at).is_some_and(is("Fatal"));
    let is_unit = |byte: u8| byte.is_ascii_alphanumeric() || b"_/".contains(&byte);
    // `MSE Degraded` is the only unit of two words.
    let is_code = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let unit = words.iter().take(at).find(|word| !is_code(word)).copied();
    let unit = unit.filter(|unit| unit.bytes().all(is_unit));
    let mut numbers = numbers.split([' ', '\t', ',', ')', ']']).filter(|word| !word.is_empty());
    let own = numbers.next().and_then(bits);
    let status = numbers.next();
    let bits = status.and_then(bits);
    let is_of = |rows| unit.is_some_and(|unit| is_in(rows, unit, bits));
    let (action, affects) = if is_injected(words.get(at..).unwrap_or_default()) {
        (Action::Injected, Affects::Process)
    } else if is_fatal && unit.is_some_and(|unit| is_wanted_down(unit, own)) {
        (Action::Watch, Affects::Device)
    } else if is_fatal {
        (Action::CheckLink, Affects::Device)
    } else if is_of(FOLLOWED) {
        (Action::FollowRecovery, Affects::Process)
    } else if is_of(HARMLESS) {
        (Action::Nothing, Affects::Process)
    } else {
        (Action::Watch, Affects::Process)
    };
    Some(Detail { action, affects, unit, status: status.filter(|_| bits.is_some()) })
}

/// Whether the number behind `i` is not 0: the error was injected for a test (`i1`, `i 2`).
fn is_injected(words: &[&str]) -> bool {
    let numbers = words.iter().zip(words.iter().skip(1).chain(&[""])).filter_map(|(word, next)| {
        let rest = word.strip_prefix(['i', 'I'])?;
        if rest.is_empty() { next.parse::<u32>().ok() } else { rest.parse().ok() }
    });
    numbers.into_iter().any(|number| number != 0)
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`: the numbers are
/// `NV2080_CTRL_GPU_RECOVERY_ACTION_*` (`gpuRefreshRecoveryActionInLock`, 570 to 595).
pub(super) fn recovery(text: &str) -> Option<Detail<'_>> {
    let words: Vec<String> = last(text).split_whitespace().map(str::to_ascii_lowercase).collect();
    let to = words.iter().rposition(|word| word == "to")?;
    if !words.join(" ").starts_with("gpu recovery action changed ") {
        return None;
    }
    let action = match words.get(to + 1)?.as_str() {
        "0x0" => Action::Recovered,
        "0x1" | "0x4" => Action::ResetGpu,
        "0x2" => Action::RestartNode,
        "0x3" => Action::DrainPeers,
        _ => return None,
    };
    Some(Detail { action, affects: Affects::Device, unit: None, status: None })
}

fn last(text: &str) -> &str {
    let end = text.rsplit(',').next().unwrap_or(text);
    // Where no comma follows the number, the line begins here.
    end.rsplit("):").next().unwrap_or(end).trim()
}

fn bits(word: &str) -> Option<u32> {
    u32::from_str_radix(word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))?, 16).ok()
}

fn is_in(rows: Rows, unit: &str, status: Option<u32>) -> bool {
    // A unit has several names in some versions, `TLW_RX/TLW_RX_PIPE0`.
    let is_named = |name: &str| {
        let mut names = unit.split('/');
        names.any(|unit| {
            let (of, end) = unit.split_at_checked(name.len()).unwrap_or((unit, ""));
            of.eq_ignore_ascii_case(name) && (end.is_empty() || end.starts_with("_PIPE"))
        })
    };
    // That of `NETIR_MFDE_EVENT` is a number: 1 is fatal, 3 is nothing.
    let fits = |bits: u32, mask: u32| {
        if unit.to_ascii_uppercase().starts_with("NETIR") {
            bits == mask
        } else {
            bits & !mask == 0
        }
    };
    let known = |bits| rows.iter().any(|(name, mask)| is_named(name) && fits(bits, *mask));
    status.is_some_and(|bits| bits != 0 && known(bits))
}

fn is_wanted_down(unit: &str, own: Option<u32>) -> bool {
    let unit = unit.to_ascii_uppercase();
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
            "pid=4, name=<unknown>, RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x1 0x2)",
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
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x14 0x00000003)", Severity::Info),
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x14 0x00000001)", Severity::Warning),
        (150, "MSE Degraded Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", Severity::Critical),
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

    /// The columns are padded in `NVIDIA/NVSentinel`'s test lines and in `leptonai/gpud`'s log of a GB200;
    /// `DataDog/datadog-agent`'s tests of 2026-09 have the words apart, numbers of two digits, brackets.
    #[test]
    fn an_nvlink_error_reads_alike_however_its_columns_are_set() {
        let spellings: &[fn(&str) -> String] = &[
            |line| line.replace(' ', "  "),
            |line| line.replace(' ', "\t"),
            |line| format!("{line} \r"),
            str::to_lowercase,
            |line| line.replace("XC", "XC ").replace(" i0", " i 00"),
            |line| line.replace('(', "[").replace(')', "]"),
        ];
        for (code, words, severity) in LINES {
            for spell in spellings {
                let words = spell(words);
                assert_eq!(read(*code, &words).0, *severity, "{code}, {words:?}");
            }
        }
        let dead = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)";
        assert_eq!(read(149, dead).0, Severity::Critical);
        for words in ["NETIR_LINK_EVT Fatal", "Fatal XC0 i0 Link 09", "NETIR_INT Fatal (0x18"] {
            assert_eq!(read(149, words).0, Severity::Critical, "{words}");
        }
    }

    /// NVIDIA's format of the message: `<sub component> <fatal vs nonfatal> <Crosscontain> <injected> <link>`.
    #[test]
    fn an_injected_error_is_information() {
        for flags in ["XC0 i1", "XC0 i2", "XC 0 i 1", "XC1 i01", "xc0 I1"] {
            for how in ["Fatal", "Nonfatal"] {
                let words = format!("RLW_SRC_TRACK {how} {flags} Link 04 (0x000982c2 0x00000002)");
                assert_eq!(read(145, &words).0, Severity::Info, "{words}");
            }
        }
        let line = "NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK Fatal XC0 i1 Link 04";
        let sentence = verdict(145, line).action.sentence();
        assert_eq!(sentence, "nothing to do: the error was injected for a test");
    }

    /// Units whose name changed with R575, as NVIDIA's sheet has both.
    #[test]
    fn a_unit_means_the_same_under_both_drivers_names() {
        for (old, new, status) in [
            ("TLW_RX", "TLW_RX_PIPE0", "0x1"),
            ("TLW_TX", "TLW_TX_PIPE1", "0x2"),
            ("NVLPW_CTRL", "NVLPW", "0x80000000"),
            ("NETIR", "NETIR_INT", "0x0"),
            ("NETIR_LINK_EVT", "NETIR_LINK_DOWN", "0x0"),
        ] {
            for how in ["Fatal", "Nonfatal"] {
                for cause in ["0x0", "0x02600000", "0x02800000"] {
                    let of = |unit| {
                        read(149, &format!("{unit} {how} XC0 i0 Link 1 ({cause} {status})")).0
                    };
                    assert_eq!(of(old), of(new), "{old} {how} {cause}");
                }
            }
        }
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
            for words in
                [words.replace(' ', "  "), words.to_uppercase().replace("0X", "0x"), words + "\r"]
            {
                assert_eq!(read(154, &words).0, severity, "{words:?}");
            }
        }
    }
}
