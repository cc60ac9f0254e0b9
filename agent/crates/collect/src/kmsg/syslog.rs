//! Reads the kernel log by `syslog(2)` where `/dev/kmsg` is refused, as the device rules of
//! container runtimes do for unprivileged containers. The records go through a pipe in the format
//! of `/dev/kmsg`.
//!
//! `syslog(2)` returns text: a record with a line break in it (in a command name, for example) is
//! several lines, each with the kernel's prefix. Lines with the same prefix are joined again, so
//! that no tenant can forge the start of a record. Records have no sequence number here; their time
//! is used instead, and of several records with the same microsecond and priority the first counts.
//! Costs a copy of the end of the log a second, about a millisecond.

use gpuwho_sys::kernel_log;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

/// Read interval: shorter than the difference that counts as clock drift.
const INTERVAL: Duration = Duration::from_millis(800);
/// Bytes to read: more than a host logs in a second.
const TAIL_LEN: usize = 64 << 10;
/// Bytes to read if it logged more: the largest common log buffer.
const MAX_LEN: usize = 1 << 20;
const MICROS: u64 = 1_000_000;

/// Whether the log can be read this way: it is readable, and its lines have times.
pub(super) fn probe() -> io::Result<()> {
    let text = kernel_log::read_end(TAIL_LEN)?;
    if !text.is_empty() && records(&String::from_utf8_lossy(&text)).is_empty() {
        return Err(io::Error::other("its lines have no times (printk.time)"));
    }
    Ok(())
}

/// Starts a thread that reads repeatedly into a pipe; returns the read end. The thread ends when
/// that is closed.
pub(super) fn follow() -> io::Result<OwnedFd> {
    probe()?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    let mut reported = std::fs::File::from(write);
    let mut last = 0;
    thread::Builder::new().name("kmsg:syslog".into()).spawn(move || {
        loop {
            match newer(&mut last) {
                // The read end is closed.
                Ok(text) if reported.write_all(text.as_bytes()).is_err() => return,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the kernel log cannot be read by syslog(2)"),
            }
            thread::sleep(INTERVAL);
        }
    })?;
    Ok(read)
}

/// Returns the records newer than `last`.
fn newer(last: &mut u64) -> io::Result<String> {
    let mut text = kernel_log::read_end(TAIL_LEN)?;
    let oldest =
        |text: &[u8]| records(&String::from_utf8_lossy(text)).first().map(|first| first.at_us);
    if oldest(&text).is_some_and(|oldest| oldest > *last) {
        text = kernel_log::read_end(MAX_LEN)?;
    }
    let mut reported = String::new();
    // Records of several CPUs may be out of order by some microseconds.
    let before = *last;
    for record in records(&String::from_utf8_lossy(&text)) {
        if record.at_us > before {
            *last = record.at_us.max(*last);
            record.write_record(&mut reported);
        }
    }
    Ok(reported)
}

/// Converts a text to records in the format of `/dev/kmsg`.
#[cfg(any(test, feature = "fixtures"))]
pub fn as_records(text: &str) -> String {
    let mut out = String::new();
    for record in records(text) {
        record.write_record(&mut out);
    }
    out
}

/// One record: all lines with the same prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record<'a> {
    priority: u32,
    at_us: u64,
    lines: Vec<&'a str>,
}

impl Record<'_> {
    /// Writes the record in the format of `/dev/kmsg`.
    fn write_record(&self, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{},{},{},-;", self.priority, self.at_us, self.at_us);
        for (number, line) in self.lines.iter().enumerate() {
            let between = if number == 0 { "" } else { "\n" };
            for byte in between.bytes().chain(line.bytes()) {
                let _ = match byte {
                    b' '..=b'[' | b']'..=b'~' => write!(out, "{}", char::from(byte)),
                    _ => write!(out, "\\x{byte:02x}"),
                };
            }
        }
        out.push('\n');
    }
}

/// Parses the records of a text; lines without the kernel's prefix are left out.
fn records(text: &str) -> Vec<Record<'_>> {
    let mut found: Vec<Record<'_>> = Vec::new();
    for (priority, at_us, line) in text.split('\n').filter_map(prefixed) {
        match found.last_mut() {
            Some(last) if (last.priority, last.at_us) == (priority, at_us) => last.lines.push(line),
            _ => found.push(Record { priority, at_us, lines: vec![line] }),
        }
    }
    found
}

/// Parses `<6>[   12.345678] text`, with the caller after the time if the kernel prints it
/// (`CONFIG_PRINTK_CALLER`).
fn prefixed(line: &str) -> Option<(u32, u64, &str)> {
    let (priority, rest) = line.strip_prefix('<')?.split_once('>')?;
    let (time, rest) = rest.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) =
        time.trim_start().split_once('.').filter(|(_, micros)| micros.len() == 6)?;
    let at_us = seconds.parse::<u64>().ok()?.checked_mul(MICROS)?;
    let at_us = at_us.checked_add(micros.parse().ok()?)?;
    let rest = match rest.strip_prefix('[') {
        Some(caller) => caller.split_once(']')?.1,
        None => rest,
    };
    Some((priority.parse().ok()?, at_us, rest.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests {
    use super::super::record::{Line, parse};
    use super::{MAX_LEN, as_records, kernel_log};
    use rustix::fs::{Mode, OFlags, open};
    use std::collections::HashMap;

    /// Recorded on Linux 6.18, after a process named `x`, line break, `NVRM: Fake` crashed.
    const CRASH: &str = "<6>[ 3143.106335] Freezing\n\
        <6>[ 3346.296569] x\n\
        <6>[ 3346.296569] NVRM: Fake[19226]: segfault at 10\n\
        <6>[ 3346.296644] Code: e1\n";

    #[test]
    fn a_line_break_in_a_name_starts_no_record() {
        let expected = "6,3143106335,3143106335,-;Freezing\n\
            6,3346296569,3346296569,-;x\\x0aNVRM: Fake[19226]: segfault at 10\n\
            6,3346296644,3346296644,-;Code: e1\n";
        assert_eq!(as_records(CRASH), expected);
    }

    #[test]
    fn a_prefix_in_a_name_follows_the_kernels_own() {
        let text = "<6>[    1.000002] y\n<6>[    1.000002] <3>[    9.000000] NVRM: Xid\n";
        assert_eq!(as_records(text), "6,1000002,1000002,-;y\\x0a<3>[    9.000000] NVRM: Xid\n");
        assert_eq!(as_records("NVRM: Xid\n<3>[x] NVRM\n<3>NVRM\n\n"), "");
    }

    #[test]
    fn the_caller_is_not_part_of_the_text() {
        assert_eq!(as_records("<3>[    1.000002][  T123] a\\b\n"), "3,1000002,1000002,-;a\\x5cb\n");
    }

    #[test]
    fn both_ways_of_reading_the_log_agree() {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let (Ok(kmsg), Ok(text)) =
            (open("/dev/kmsg", flags, Mode::empty()), kernel_log::read_end(MAX_LEN))
        else {
            println!("skipped: needs to read the kernel log");
            return;
        };
        let mut directly: HashMap<u64, Vec<String>> = HashMap::new();
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length) = rustix::io::read(&kmsg, &mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if let Line::Kernel(record) = parse(line.lines().next().unwrap()) {
                directly.entry(record.at_us).or_default().push(record.text.into_owned());
            }
        }
        let mut compared = 0;
        for line in as_records(&String::from_utf8_lossy(&text)).lines() {
            let Line::Kernel(record) = parse(line) else { continue };
            // Records of the same microsecond are joined here.
            let Some([text]) = directly.get(&record.at_us).map(Vec::as_slice) else { continue };
            assert_eq!(record.text, *text);
            compared += 1;
        }
        assert!(compared > 0 || directly.is_empty(), "{directly:?}");
    }
}
