//! Who is on each accelerator, now: what `gpuwho` alone prints, and what the control socket
//! answers.

pub(crate) mod engines;
mod others;
mod selection;
pub(crate) mod table;

pub use engines::EngineView;
pub use others::Others;
pub use selection::Selection;

use gpuwho_model::status::SourceStatus;
use gpuwho_model::text::{device_name, printable};
use gpuwho_owners::attribute::view::OwnerView;
use gpuwho_pipeline::event::recent::Summary;
use gpuwho_pipeline::health::report::ConditionView;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the JSON (`agent/docs/json.md`): grows with a change that breaks readers.
pub const SCHEMA: u32 = 1;

/// A rest of memory smaller than this part of the device is the driver's own.
const DRIVER_PART: i64 = 100;

/// The whole answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// [`SCHEMA`].
    #[serde(default)]
    pub schema: u32,
    /// Host name.
    pub host: String,
    /// The agent's version, or of the command that read for itself.
    pub version: String,
    /// Sums over the devices.
    #[serde(default)]
    pub totals: Totals,
    /// Every device seen.
    pub devices: Vec<Device>,
    /// Every living process that has a device open.
    pub holders: Vec<Holder>,
    /// Processes that had a device open and ended a short while ago, the last to end first.
    #[serde(default)]
    pub ended: Vec<Holder>,
    /// Every inference engine that is read.
    #[serde(default)]
    pub engines: Vec<EngineView>,
    /// What the agent keeps of events.
    #[serde(default)]
    pub events: Summary,
    /// Every source of data.
    pub sources: Vec<Source>,
    /// Where the agent sends what it reads, or lets it be fetched; for root and the agent's own user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receivers: Vec<Source>,
    /// Others' processes are left out of `devices` and `holders`.
    #[serde(default)]
    pub others_hidden: bool,
    /// How many processes that are.
    #[serde(default)]
    pub hidden_processes: usize,
}

/// Sums over all devices that answer, and processes counted once however many devices they are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Devices.
    pub devices: usize,
    /// Those of them that answer.
    pub devices_ok: usize,
    /// Processes on the drivers' lists, those that are not named included.
    pub processes: usize,
    /// Memory in use.
    pub memory_used_bytes: Option<i64>,
    /// Memory there is.
    pub memory_limit_bytes: Option<i64>,
    /// Power drawn.
    pub power_watts: Option<f64>,
}

/// A device. Every value is absent while it does not answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// UUID.
    pub uuid: String,
    /// Index in the driver's order: each vendor counts from 0.
    pub index: u32,
    /// Its vendor, as the sources name it.
    #[serde(default)]
    pub vendor: String,
    /// Its PCI address, if the driver reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Product name.
    pub model: String,
    /// `ok`, `lost`, `hung`, `failing`, `released`, `missing`, `replaced`, `no_driver`.
    pub state: String,
    /// Why, in the driver's words; empty when it answers.
    pub reason: String,
    /// Seconds since the last good reading.
    pub read_age_seconds: Option<f64>,
    /// Busy fraction.
    pub utilization: Option<f64>,
    /// Memory in use.
    pub memory_used_bytes: Option<i64>,
    /// Memory there is.
    pub memory_limit_bytes: Option<i64>,
    /// Memory in use that no listed process accounts for; absent where that is the driver's own.
    #[serde(default)]
    pub memory_unattributed_bytes: Option<i64>,
    /// Memory in use that is all the only owner's on it, where the driver does not say what each process
    /// holds: the counters' `exclusive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_exclusive_bytes: Option<i64>,
    /// Memory in use by several owners that nothing divides: the counters' `unsplittable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_unsplittable_bytes: Option<i64>,
    /// Power drawn.
    pub power_watts: Option<f64>,
    /// Temperature of the die.
    pub temperature_celsius: Option<f64>,
    /// Its MIG instances.
    #[serde(default)]
    pub instances: Vec<Instance>,
    /// Processes the driver lists.
    pub processes: Vec<Process>,
    /// Those of them that are not named to who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Others>,
    /// What is wrong with it, the worst first; empty also where no agent runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<ConditionView>,
}

/// A MIG instance of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// UUID.
    pub uuid: String,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: Option<u32>,
    /// `3g.20gb`.
    pub profile: Option<String>,
    /// Memory in use.
    pub memory_used_bytes: Option<i64>,
    /// Memory there is.
    pub memory_limit_bytes: Option<i64>,
}

/// A process on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// `compute`, `graphics`, `mps`, `mps_server`.
    #[serde(default)]
    pub kind: Option<String>,
    /// UUID of the MIG instance it is in.
    #[serde(default)]
    pub instance: Option<String>,
    /// Its device memory.
    pub memory_bytes: Option<i64>,
    /// Fraction of time it kept the multiprocessors busy.
    pub utilization: Option<f64>,
}

/// A process that holds a device node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// Device nodes it opened.
    pub nodes: Vec<String>,
    /// UUIDs of the MIG instances these nodes grant.
    #[serde(default)]
    pub instances: Vec<String>,
}

/// A source of data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Name.
    pub name: String,
    /// State.
    pub state: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
    /// Failed readings.
    pub errors: u64,
    /// Restarts of its child.
    pub restarts: u64,
    /// What it lost, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Source {
    /// A source as it stands on the board.
    pub fn of(name: &str, standing: &SourceStatus) -> Self {
        let report = &standing.report;
        Self {
            name: name.into(),
            state: report.state.as_str().into(),
            reason: printable(&report.reason).into_owned(),
            remedy: report.remedy.clone(),
            errors: report.errors,
            restarts: report.restarts,
            dropped: report.dropped.iter().map(|(why, n)| (why.as_str().into(), *n)).collect(),
        }
    }

    /// Whether it was asked for and does not work as it should. What is absent is not on this host.
    pub fn is_failing(&self) -> bool {
        self.state != "ready" && self.state != "absent"
    }
}

impl HostReport {
    /// A device as `--gpu` takes it: its index, with its vendor where there are several.
    pub(crate) fn name(&self, device: &Device) -> String {
        let is_mixed = self.devices.iter().any(|other| other.vendor != device.vendor);
        device_name(&device.vendor, device.index, is_mixed)
    }
}

impl Device {
    /// Everything but who is on it.
    fn without_processes(&self) -> Self {
        Self {
            uuid: self.uuid.clone(),
            vendor: self.vendor.clone(),
            pci_address: self.pci_address.clone(),
            model: self.model.clone(),
            state: self.state.clone(),
            reason: self.reason.clone(),
            instances: self.instances.clone(),
            processes: Vec::new(),
            others: None,
            health: self.health.clone(),
            ..*self
        }
    }

    /// With the memory in use that no process is known to hold, as the counters divide it. `has_one_owner`:
    /// all processes are one owner's that is known.
    #[must_use]
    pub fn with_rest(mut self, has_one_owner: bool) -> Self {
        if self.processes.iter().all(|process| process.memory_bytes.is_some()) {
            self.memory_unattributed_bytes = self.unattributed();
        } else if has_one_owner {
            self.memory_exclusive_bytes = self.memory_used_bytes;
        } else {
            self.memory_unsplittable_bytes = self.unattributed();
        }
        self
    }

    /// Memory and use of its only owner, where they are the device's own: if that has one process, or more.
    fn exclusive(&self, has_one_process: bool) -> Option<(i64, Option<f64>)> {
        let bytes = self.memory_exclusive_bytes?;
        let is_sampled = self.processes.iter().any(|process| process.utilization.is_some());
        let busy = self.utilization.filter(|_| !is_sampled);
        (has_one_process == (self.processes.len() == 1)).then_some((bytes, busy))
    }

    /// Memory in use that no process on the driver's list accounts for.
    fn unattributed(&self) -> Option<i64> {
        let listed = self.processes.iter().filter_map(|process| process.memory_bytes);
        let rest = self.memory_used_bytes? - listed.fold(0, i64::saturating_add);
        let is_drivers = rest <= self.memory_limit_bytes.unwrap_or(0) / DRIVER_PART;
        (rest > 0 && !is_drivers).then_some(rest)
    }
}

impl Totals {
    /// Of devices whose processes are all named.
    pub fn of(devices: &[Device]) -> Self {
        let processes = devices.iter().flat_map(|device| &device.processes);
        let pids: BTreeSet<u32> = processes.map(|process| process.owner.pid).collect();
        let sum = |of: fn(&Device) -> Option<i64>| devices.iter().filter_map(of).reduce(add);
        let watts = devices.iter().filter_map(|device| device.power_watts);
        Self {
            devices: devices.len(),
            devices_ok: devices.iter().filter(|device| device.state == "ok").count(),
            processes: pids.len(),
            memory_used_bytes: sum(|device| device.memory_used_bytes),
            memory_limit_bytes: sum(|device| device.memory_limit_bytes),
            power_watts: watts.reduce(|one, other| one + other),
        }
    }
}

fn add(one: i64, other: i64) -> i64 {
    one.saturating_add(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes::SYSTEMD_UNIT;
    use gpuwho_model::ids::OwnerId;
    use gpuwho_model::ids::ProcKey;
    use gpuwho_owners::attribute::cgroup::parse_path;
    use gpuwho_owners::attribute::{Method, ProcessAttribution};
    use std::sync::Arc;

    #[test]
    fn names_that_others_have_chosen_reach_no_terminal_unchanged() {
        let path = "/system.slice/\u{202e}x\x1b[2J.service";
        let owner = ProcessAttribution {
            process: ProcKey { pid: 7, start_ticks: 1 },
            comm: Arc::from("\x1b[2Jroot\n"),
            uid: 7,
            user: None,
            cgroup: Some(Arc::from(path)),
            workload: parse_path(path),
            method: Method::Proc,
            nodes: Vec::new(),
            exited_ns: None,
            owner: OwnerId::UNATTRIBUTED,
        };
        let person = OwnerView::of(&owner);
        let names = (person.unit.as_deref(), &*person.comm);
        assert_eq!(names, (Some("\u{fffd}x\u{fffd}[2J.service"), "\u{fffd}[2Jroot\u{fffd}"));
        let unit = owner.attributes();
        let unit = unit.get(&SYSTEMD_UNIT).map(ToString::to_string);
        assert_eq!(unit, person.unit, "an attribute is no other");
    }
}
