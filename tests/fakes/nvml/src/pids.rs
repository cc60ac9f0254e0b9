//! Binds a scenario's processes to real PIDs.

use crate::scenario::Process;
use std::env;
use std::fs;
use std::path::Path;

/// The PID a process has now; `None` while it is not there.
pub(crate) fn resolve(process: &Process<'_>) -> Option<u32> {
    let text = process.group.pid.replace("{index}", &process.device.to_string());
    if text == "self" {
        return Some(std::process::id());
    }
    if let Some(name) = text.strip_prefix("env:") {
        return env::var(name).ok()?.parse().ok();
    }
    if let Some(name) = text.strip_prefix("file:") {
        let folder = env::var_os("FAKE_NVML_PIDS").unwrap_or_default();
        // Read again at every call: tests start and end processes at will.
        let list = fs::read_to_string(Path::new(&folder).join(name)).ok()?;
        return list.split_whitespace().nth(usize::try_from(process.slot).ok()?)?.parse().ok();
    }
    text.parse().ok()
}
