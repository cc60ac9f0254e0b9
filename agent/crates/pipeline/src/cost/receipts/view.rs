//! A receipt as people, JSON and the log get it.

use gpuwho_model::catalog::attributes::{self as attr, AttrKey};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// The version of the JSON (`agent/docs/cost.md`).
pub const SCHEMA: u32 = 1;

/// What a job, pod or unit had of the devices of a host, and what it got for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Receipt {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its name: kind and id of the owner.
    pub receipt: String,
    /// `running`, `ended` or `evicted`.
    pub state: String,
    /// Kind of owner.
    pub kind: String,
    /// Host name.
    pub host: String,
    /// The owner's names and labels, as on `gpu.allocation.info`.
    pub owner: BTreeMap<String, String>,
    /// The team.
    pub team: Option<String>,
    /// Users of its processes.
    pub users: Vec<u32>,
    /// Begin of the first interval that it was charged for.
    pub began: String,
    /// When it was last seen.
    pub until: String,
    /// Seconds between the two.
    pub seconds: f64,
    /// Device-time.
    pub gpu_hours: GpuHours,
    /// Money for device-time, by currency and source of the price.
    pub cost: Vec<Money>,
    /// Energy of the devices; like all that follows null where no reading has it.
    pub energy_joules: Option<f64>,
    /// Cost of that energy by currency, with PUE.
    pub energy_cost: BTreeMap<String, f64>,
    /// Carbon dioxide of that energy, with PUE.
    pub carbon_grams: Option<f64>,
    /// Mean use of a device while the owner had it.
    pub utilization_mean: Option<f64>,
    /// Largest use of a device in one interval.
    pub utilization_peak: Option<f64>,
    /// Mean memory on a device.
    pub memory_mean_bytes: Option<f64>,
    /// Largest memory on a device.
    pub memory_peak_bytes: Option<u64>,
    /// Mean power of a device.
    pub power_mean_watts: Option<f64>,
    /// Largest power of a device, as the mean of ten seconds or more.
    pub power_peak_watts: Option<f64>,
    /// Time for which a device's clocks were held down, by reason; reasons overlap.
    pub throttled_seconds: BTreeMap<String, f64>,
    /// Collectives, where NCCL's data is there.
    pub collectives: Option<Collectives>,
    /// Tokens, of an inference engine.
    pub tokens: Option<Tokens>,
    /// Events that affected it, with their number.
    pub events: BTreeMap<String, u64>,
    /// Methods by which busy time was divided.
    pub shares: Vec<String>,
    /// What could not be known.
    pub unknown: Vec<String>,
    /// What would have been enough, where little was used.
    pub would_fit: Vec<String>,
    /// Each device.
    pub devices: Vec<DeviceReceipt>,
}

/// The place of the receipt that makes way: the first of the tenant that has the most.
pub(super) fn makes_way<T: Eq + Hash>(tenants: impl Iterator<Item = T>) -> Option<usize> {
    // Of each tenant its receipts and the place of its first one.
    let mut all: HashMap<T, (usize, usize)> = HashMap::new();
    for (place, tenant) in tenants.enumerate() {
        all.entry(tenant).or_insert((0, place)).0 += 1;
    }
    // Of two tenants with as many, the one whose first is older.
    let most = all.into_values().max_by_key(|(count, first)| (*count, Reverse(*first)));
    most.map(|(_, first)| first)
}

/// Hours of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHours {
    /// Allocated to the owner; null where nothing names its allocations.
    pub granted: Option<f64>,
    /// Kept busy by it.
    pub used: f64,
    /// Had by it, and not busy.
    pub idle: f64,
    /// Had by it, without a reading of the use.
    pub unknown: f64,
}

/// An amount of money.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Money {
    /// ISO 4217 code.
    pub currency: String,
    /// `configured`.
    pub source: String,
    /// Used, idle and unknown together.
    pub total: f64,
    /// For time used.
    pub used: f64,
    /// For time idle.
    pub idle: f64,
    /// For time whose use is unknown.
    pub unknown: f64,
    /// For time allocated, used or not; not a part of the total. Null where nothing names its allocations.
    pub granted: Option<f64>,
}

/// Collectives of the owner's ranks on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collectives {
    /// Time in collectives, of all ranks (NCCL's Inspector).
    pub seconds: Option<f64>,
    /// Time between the first and the last arrival of this host's ranks.
    pub waiting_seconds: f64,
    /// The rank for which the others waited the longest.
    pub slowest_rank: Option<u32>,
}

/// Tokens that an inference engine served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Of prompts.
    pub prompt: f64,
    /// Generated.
    pub generated: f64,
}

/// The part of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceReceipt {
    /// UUID.
    pub uuid: String,
    /// Index in the driver's order.
    pub index: u32,
    /// Product name.
    pub model: Option<String>,
    /// Its memory.
    pub memory_limit_bytes: Option<u64>,
    /// Device-time.
    pub gpu_hours: GpuHours,
    /// Money for it.
    pub cost: Vec<Money>,
    /// Energy.
    pub energy_joules: Option<f64>,
    /// Mean use while the owner had it.
    pub utilization_mean: Option<f64>,
    /// Largest use in one interval.
    pub utilization_peak: Option<f64>,
    /// Mean memory.
    pub memory_mean_bytes: Option<f64>,
    /// Largest memory.
    pub memory_peak_bytes: Option<u64>,
}

/// The answer to `gpuwho receipt`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiptReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Host name.
    pub host: String,
    /// Whether receipts of other users are left out, which nothing says there are.
    pub others_hidden: bool,
    /// Running ones first, then the latest.
    pub receipts: Vec<Receipt>,
}

impl Receipt {
    /// Who may have many receipts: the Kubernetes namespace, else the first user, else the kind.
    pub(super) fn tenant(&self) -> Arc<str> {
        let namespace =
            self.owner.get(attr::K8S_NAMESPACE_NAME.name).map(|name| format!("namespace/{name}"));
        let user = || self.users.first().map(|user| format!("user/{user}"));
        namespace.or_else(user).unwrap_or_else(|| self.kind.clone()).into()
    }

    /// Whether a name that a person types means this receipt: job, pod (by name, NAMESPACE/NAME or UID),
    /// unit, container, or the receipt's own name.
    pub fn is_of(&self, name: &str) -> bool {
        is_named(&self.receipt, &self.owner, name)
    }

    /// Whether a user other than root may see it: only its own processes were on the devices.
    pub fn is_visible_to(&self, uid: u32) -> bool {
        let job = || self.owner.get(attr::SLURM_JOB_UID.name).and_then(|uid| uid.parse().ok());
        match self.users.as_slice() {
            [] => job() == Some(uid),
            users => users.iter().all(|user| *user == uid),
        }
    }

    /// With the host's name.
    #[must_use]
    pub(crate) fn on(self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self }
    }

    /// One line of `KEY=VALUE`, for a job's comment. What is not known has no key.
    pub fn line(&self) -> String {
        let GpuHours { granted, used, idle, .. } = self.gpu_hours;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let keys = [
            granted.map(|granted| format!("gpu_hours={granted:.3}")),
            Some(format!("used={used:.3} idle={idle:.3}")),
            self.utilization_mean.map(|busy| format!("busy={:.0}%", busy * 100.0)),
            self.memory_peak_bytes.map(|bytes| format!("memory_peak={:.1}GiB", gib(bytes))),
            self.energy_joules.map(|joules| format!("energy={:.3}kWh", joules / 3.6e6)),
        ];
        let cost = |money: &Money| format!("cost={:.2}{}", money.total, money.currency);
        let carbon = self.carbon_grams.map(|grams| format!("co2={grams:.0}g"));
        let all = keys.into_iter().flatten().chain(self.cost.iter().map(cost)).chain(carbon);
        all.collect::<Vec<_>>().join(" ")
    }
}

/// Whether a name that a person types means the receipt of an owner.
pub(super) fn is_named(receipt: &str, owner: &BTreeMap<String, String>, name: &str) -> bool {
    let has = |key: &AttrKey| owner.get(key.name).map(String::as_str);
    let (kind, id) = receipt.split_once('/').unwrap_or_default();
    let pod = has(&attr::K8S_POD_NAME);
    let in_namespace = || {
        let (namespace, short) = name.split_once('/')?;
        Some(has(&attr::K8S_NAMESPACE_NAME) == Some(namespace) && pod == Some(short))
    };
    !name.is_empty()
        && (receipt == name
            || id == name
            || pod == Some(name)
            || has(&attr::SLURM_JOB_ID) == Some(name)
            || id.strip_suffix(".service") == Some(name)
            || (kind == "container" && name.len() >= 12 && id.starts_with(name))
            || in_namespace() == Some(true))
}
