//! One record of `/dev/kmsg`: `priority,sequence,microseconds,flags;text`, with control characters
//! as `\xNN` (`Documentation/ABI/testing/dev-kmsg`, `devkmsg_emit` and `msg_add_ext_text`, 6.18).

use std::borrow::Cow;

/// A record of the kernel, borrowed from the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// The sequence number; increases by one.
    pub(super) sequence: u64,
    /// Microseconds of the kernel's log clock, which stops in suspend.
    pub(super) at_us: u64,
    /// The thread or CPU that wrote it (`T4321`, `C2`), if the kernel reports it.
    pub(super) caller: Option<&'a str>,
    /// The text.
    pub(super) text: Cow<'a, str>,
}

/// The kinds of line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A record of the kernel.
    Kernel(Record<'a>),
    /// A program wrote this into the log: not trusted. The kernel gives such a line a facility
    /// other than its own, whatever the program requests (`devkmsg_write`).
    Program {
        /// The sequence number.
        sequence: u64,
    },
    /// A record's dictionary, or an unknown line.
    Other,
}

pub(super) fn parse(line: &str) -> Line<'_> {
    let Some((head, text)) = line.split_once(';') else { return Line::Other };
    let mut fields = head.split(',');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (Some(priority), Some(sequence), Some(at_us)) = (number(), number(), number()) else {
        return Line::Other;
    };
    if priority >> 3 != 0 {
        return Line::Program { sequence };
    }
    let caller = fields.find_map(|field| field.strip_prefix("caller="));
    Line::Kernel(Record { sequence, at_us, caller, text: unescaped(text) })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains("\\x") {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let byte = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte {
            bytes.push(byte);
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.extend_from_slice(b"\\x");
            rest = after;
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_place_its_time_and_its_text() {
        let line = "3,1042,86400123456,-,caller=T99;NVRM: a; b";
        let (sequence, at_us, text) = (1042, 86_400_123_456, "NVRM: a; b".into());
        let record = Record { sequence, at_us, caller: Some("T99"), text };
        assert_eq!(parse(line), Line::Kernel(record));
    }

    #[test]
    fn a_line_of_a_program_is_not_a_kernel_record() {
        assert_eq!(parse("12,7,1,-;NVRM: Xid (PCI:0000:17:00): 79"), Line::Program { sequence: 7 });
    }

    #[test]
    fn dictionaries_and_malformed_lines_are_not_records() {
        for line in [" SUBSYSTEM=pci", "", ";", "a,b,c;d", "6,1;x"] {
            assert_eq!(parse(line), Line::Other, "{line}");
        }
    }

    #[test]
    fn escapes_are_the_characters_they_stand_for() {
        let Line::Kernel(record) = parse("6,1,2,-;one\\x0atwo \\xc3\\xa4 \\xzz \\x5cx41") else {
            panic!("a record")
        };
        assert_eq!(record.text, "one\ntwo ä \\xzz \\x41");
    }
}
