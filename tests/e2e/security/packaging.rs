//! What the agent may do, as packaged: the unit, the DaemonSet, and the process that loads the
//! driver's library. Each restriction is put on the built agent by other means than systemd's.

mod capabilities;
mod manifests;
mod pod;
mod reader;
mod unit;

use serde_json::Value;
use std::collections::BTreeMap;

const UNIT: &str = include_str!("../../../deploy/systemd/gpuwho.service");
const DAEMONSET: &str = include_str!("../../../deploy/kubernetes/daemonset.yaml");
const INSTALL: &str = include_str!("../../../agent/docs/install.md");

/// The words of a directive of the unit; each line that sets it adds to them.
fn directive(name: &str) -> Vec<String> {
    let values = UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// A capability's name without `CAP_`.
fn short(name: &str) -> String {
    name.trim_start_matches("CAP_").to_owned()
}

/// The state of each source or finding, by its name.
fn states(list: &Value, name: &str) -> BTreeMap<String, String> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let entries = list.as_array().into_iter().flatten();
    entries.map(|entry| (text(entry, name), text(entry, "state"))).collect()
}
