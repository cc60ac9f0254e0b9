//! What the fuzz targets call (`tests/fuzz`): any bytes as what a process says on NCCL's status socket.

use super::answer::LocalNames;
use super::json::from_json;
use super::text::from_text;

/// As NCCL 2.28 and later answers.
pub fn json(bytes: &[u8]) {
    // Both outcomes are answers.
    let _ = from_json(bytes, &LocalNames::default());
}

/// As those before it answer.
pub fn text(text: &str) {
    let _ = from_text(text, &LocalNames::default());
}
