//! Entry points of the fuzz targets (`tests/fuzz`): any bytes in place of what the Inspector wrote.

use super::environment::InspectorEnv;
use super::exposition::{MAX_ROWS, parse};
use super::record::Record;
use std::io::Read;

/// Parses a line of records.
pub fn record(line: &[u8]) {
    // Both results are valid.
    let _ = Record::parse(line);
}

/// Parses a metrics file; true if at most [`MAX_ROWS`] rows result.
pub fn exposition(text: &str) -> bool {
    parse(text, &mut |_| ()).len() <= MAX_ROWS
}

/// Parses an environment; returns the result as text.
pub fn environment(source: impl Read) -> Option<String> {
    InspectorEnv::read(source).ok().map(|asked| format!("{asked:?}"))
}
