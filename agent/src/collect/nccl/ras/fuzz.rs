//! Entry points of the fuzz targets (`tests/fuzz`): any bytes in place of an answer of NCCL's
//! status socket.

use super::answer::LocalNames;
use super::json::from_json;
use super::text::from_text;

/// Parses the format of NCCL 2.28 and later.
pub fn json(bytes: &[u8]) {
    // Both results are valid.
    let _ = from_json(bytes, &LocalNames::default());
}

/// Parses the older text format.
pub fn text(text: &str) {
    let _ = from_text(text, &LocalNames::default());
}
