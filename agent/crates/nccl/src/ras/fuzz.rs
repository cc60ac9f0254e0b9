//! Entry points of the fuzz targets (`tests/fuzz`): any bytes in place of an answer of NCCL's
//! status socket.

use super::answer::LocalNames;
use super::json::from_json;

/// Parses the format of NCCL 2.28.7 and later.
pub fn json(bytes: &[u8]) {
    // Both results are valid.
    let _ = from_json(bytes, &LocalNames::default());
}
