//! Drivers that hang, crash, come and go, and an agent that lets go: what somebody at the receiver
//! sees of it.

mod late;
mod missing;
mod release;
mod reset;
mod sick;
mod soak;
mod upgrade;

use serde_json::Value;
use std::fs;
use std::path::Path;

/// The lines of the file sink so far.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
