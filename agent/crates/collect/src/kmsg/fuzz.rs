//! Entry points of the fuzz targets (`tests/fuzz`).

use super::lines::Reports;
use super::record::{Line, parse};

/// Parses any text as lines of the kernel log.
pub fn log(text: &str) {
    let mut reports = Reports::default();
    for line in text.lines() {
        if let Line::Kernel(record) = parse(line) {
            reports.scan(&record);
            reports.read(&record);
        }
    }
}

/// Converts any text in the format of `syslog(2)` to records of `/dev/kmsg`.
pub use super::syslog::as_records;
