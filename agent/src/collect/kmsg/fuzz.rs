//! What the fuzz targets call (`tests/fuzz`).

use super::lines::Reports;
use super::record::{Line, parse};

/// Any text as lines of the kernel log, one after another.
pub fn log(text: &str) {
    let mut reports = Reports::default();
    for line in text.lines() {
        if let Line::Kernel(record) = parse(line) {
            reports.heed(&record);
            reports.read(&record);
        }
    }
}

/// Any text as what `syslog(2)` gives out; what it is as records of `/dev/kmsg`.
pub use super::syslog::as_records;
