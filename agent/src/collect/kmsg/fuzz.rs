//! What the fuzz targets call (`tests/fuzz`).

use super::lines::{self, Kills};
use super::record::{Line, parse};

/// Any text as lines of the kernel log, one after another.
pub fn log(text: &str) {
    let mut kills = Kills::default();
    for line in text.lines() {
        let Line::Kernel(record) = parse(line) else { continue };
        kills.heed(&record.text, record.at_us);
        if let Some(what) = lines::read(&record.text) {
            kills.told(what, record.at_us);
        }
    }
}
