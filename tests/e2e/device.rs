//! Devices and their drivers: what is read of them, and what is seen when they fail, come and go.

mod amd;
mod failures;
mod gpm;
mod healthy;
mod late;
mod links;
pub(crate) mod mig;
mod missing;
mod models;
pub(crate) mod reader;
mod release;
mod reset;
mod scenes;
mod sick;
mod soak;
mod upgrade;
mod vendors;

use serde_json::Value;
use std::fs;
use std::path::Path;

/// The lines of the file sink so far.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
