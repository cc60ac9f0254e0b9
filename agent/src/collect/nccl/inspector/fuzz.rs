//! What the fuzz targets call (`tests/fuzz`): any bytes as what the Inspector, or somebody in its
//! place, wrote.

use super::environment::InspectorEnv;
use super::exposition::{MAX_ROWS, parse};
use super::record::Record;
use std::io::Read;

/// A line of records.
pub fn record(line: &[u8]) {
    // Both outcomes are answers.
    let _ = Record::parse(line);
}

/// A file of metrics; whether no more rows were kept than may be.
pub fn exposition(text: &str) -> bool {
    parse(text, &mut |_| ()).len() <= MAX_ROWS
}

/// What an environment asks for, in words.
pub fn environment(source: impl Read) -> Option<String> {
    InspectorEnv::read(source).ok().map(|asked| format!("{asked:?}"))
}
