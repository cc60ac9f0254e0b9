//! The entry point of the fuzz target (`tests/fuzz`).

use super::wire::{Answer, Request};

/// Parses any bytes as a message between the agent and a helper.
pub fn message(bytes: &[u8]) {
    // Each outcome is an answer.
    let _ = postcard::take_from_bytes::<Request>(bytes);
    let _ = postcard::take_from_bytes::<Answer>(bytes);
}
