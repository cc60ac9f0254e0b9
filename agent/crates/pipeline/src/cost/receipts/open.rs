//! A receipt that has not ended: sums in whole units, as the state file holds them.

mod device;
mod names;

use super::advice;
use super::increase::Counted;
use super::view::{Collectives, DeviceReceipt, Receipt, SCHEMA, Tokens, is_named};
use crate::accounting::Amount;
use crate::cost::{Charge, account};
use device::NS_PER_HOUR;
pub(super) use device::OnDevice;
use gpuwho_model::catalog::cost::{ReceiptEnd, TimeUse};
use gpuwho_owners::attribute::owner::{Owner, OwnerFacts};
use gpuwho_owners::inventory::GpuInfo;
use names::OwnerNames;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Users of an owner's processes; with several only root sees the receipt.
pub(super) const MAX_USERS: usize = 4;
/// Devices of a receipt: more than a host has.
const MAX_DEVICES: usize = 64;
/// Kinds of events.
const MAX_EVENTS: usize = 32;
/// Ranks by which others waited.
const MAX_RANKS: usize = 64;

/// The sums of an owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) key: Arc<str>,
    kind: String,
    names: OwnerNames,
    pub(super) team: Option<String>,
    users: BTreeSet<u32>,
    began_ms: u64,
    /// When something was last added, on the wall clock.
    pub(super) last_ms: u64,
    devices: BTreeMap<String, Box<OnDevice>>,
    throttled: BTreeMap<String, f64>,
    prompt_tokens: f64,
    generated_tokens: f64,
    collectives: f64,
    waiting: BTreeMap<u32, f64>,
    events: BTreeMap<String, u64>,
    methods: BTreeSet<String>,
    restarts: u32,
    unobserved_ms: u64,
    /// When something was last added; before the first time, until when it is waited for.
    #[serde(skip)]
    seen: Option<Instant>,
    /// Nothing was added since the agent started again.
    #[serde(skip)]
    is_resumed: bool,
}

impl Open {
    pub(super) fn new(key: Arc<str>, kind: &str, at: SystemTime) -> Self {
        let now = millis(at);
        Self {
            key,
            kind: kind.to_owned(),
            names: OwnerNames::default(),
            team: None,
            users: BTreeSet::new(),
            began_ms: now,
            last_ms: now,
            devices: BTreeMap::new(),
            throttled: BTreeMap::new(),
            prompt_tokens: 0.0,
            generated_tokens: 0.0,
            collectives: 0.0,
            waiting: BTreeMap::new(),
            events: BTreeMap::new(),
            methods: BTreeSet::new(),
            restarts: 0,
            unobserved_ms: 0,
            seen: Some(Instant::now()),
            is_resumed: false,
        }
    }

    /// Goes on after a restart of the agent, if the owner is seen before this time.
    pub(super) fn resume(&mut self, until: Instant) {
        self.restarts = self.restarts.saturating_add(1);
        self.is_resumed = true;
        self.seen = Some(until);
    }

    /// Whether nothing was added for so long.
    pub(super) fn is_over(&self, now: Instant, after: Duration) -> bool {
        let after = if self.is_resumed { Duration::ZERO } else { after };
        self.seen
            .is_none_or(|seen| now.checked_duration_since(seen).is_some_and(|ago| ago >= after))
    }

    /// Takes the owner's current names.
    pub(super) fn describe(&mut self, facts: &Arc<OwnerFacts>, users: &[u32]) {
        self.users.extend(users);
        while self.users.len() > MAX_USERS {
            self.users.pop_last();
        }
        self.names.take(facts);
    }

    /// Adds what was charged for a device, of which this is not known; returns whether a figure could not be.
    pub(super) fn add(
        &mut self,
        charges: &[Charge],
        info: Option<&GpuInfo>,
        (now, at): (Instant, SystemTime),
        is_unknown: [bool; 2],
    ) -> bool {
        // What is charged is of the interval that ends now.
        let length = charges.iter().map(|charge| charge.increment.elapsed_ns).max();
        let from_ms = millis(at).saturating_sub(length.unwrap_or(0) / 1_000_000);
        if self.is_resumed {
            self.unobserved_ms += from_ms.saturating_sub(self.last_ms);
            self.is_resumed = false;
        }
        self.seen = Some(now);
        self.began_ms = self.began_ms.min(from_ms);
        self.last_ms = self.last_ms.max(millis(at));
        let Some(info) = info else { return false };
        for charge in charges {
            if let Amount::Busy(method) = charge.increment.what
                && !self.methods.contains(method.as_str())
            {
                self.methods.insert(method.as_str().to_owned());
            }
        }
        let uuid = info.uuid.as_str();
        if let Some(device) = self.devices.get_mut(uuid) {
            return device.add_all(charges, is_unknown);
        }
        if self.devices.len() < MAX_DEVICES {
            let (index, model) = (info.index, info.model.clone());
            let mut device = Box::new(OnDevice { index, model, ..OnDevice::default() });
            device.add_all(charges, is_unknown);
            self.devices.insert(uuid.to_owned(), device);
        }
        false
    }

    /// Whether a name that a person types means it.
    pub(super) fn is_of(&self, name: &str) -> bool {
        is_named(&self.key, &self.names.all(), name)
    }

    /// The sums of a device.
    pub(super) fn device(&mut self, uuid: &str) -> Option<&mut OnDevice> {
        self.devices.get_mut(uuid).map(|device| &mut **device)
    }

    pub(super) fn throttled(&mut self, reason: &str, seconds: f64) {
        *self.throttled.entry(reason.to_owned()).or_default() += seconds;
    }

    pub(super) fn tokens(&mut self, counted: Counted, more: f64) {
        match counted {
            Counted::PromptTokens => self.prompt_tokens += more,
            _ => self.generated_tokens += more,
        }
    }

    pub(super) fn collectives(&mut self, counted: Counted, seconds: f64, rank: Option<u32>) {
        if counted == Counted::Collectives {
            self.collectives += seconds;
        } else if let Some(rank) = rank
            && (self.waiting.contains_key(&rank) || self.waiting.len() < MAX_RANKS)
        {
            *self.waiting.entry(rank).or_default() += seconds;
        }
    }

    pub(super) fn event(&mut self, title: &str, count: u64) {
        let is_known = self.events.contains_key(title);
        let title = if is_known || self.events.len() < MAX_EVENTS { title } else { "other events" };
        *self.events.entry(title.to_owned()).or_default() += count;
    }

    /// The receipt, running without an end.
    pub(super) fn receipt(&self, end: Option<ReceiptEnd>) -> Receipt {
        let total = self.total();
        let slowest = self.waiting.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let has_collectives = self.collectives > 0.0 || slowest.is_some();
        let has_tokens = self.prompt_tokens + self.generated_tokens > 0.0;
        // Without any, nothing says what is allocated to whom.
        let is_granted = total.granted_ns > 0;
        let (energy, utilization, memory) = (total.energy(), total.utilization(), total.memory());
        let peak = Some(total.milliwatts_peak).filter(|peak| *peak > 0);
        let devices: Vec<DeviceReceipt> =
            self.devices.iter().map(|(uuid, device)| device.receipt(uuid, is_granted)).collect();
        let receipt = Receipt {
            schema: SCHEMA,
            receipt: self.key.to_string(),
            state: end.map_or("running", ReceiptEnd::as_str).to_owned(),
            kind: self.kind.clone(),
            host: String::new(),
            owner: self.names.all(),
            team: self.team.clone(),
            users: self.users.iter().copied().collect(),
            began: rfc3339(self.began_ms),
            until: rfc3339(self.last_ms),
            seconds: self.last_ms.saturating_sub(self.began_ms) as f64 / 1e3,
            gpu_hours: total.hours(is_granted),
            cost: total.money.iter().map(|money| money.view(is_granted)).collect(),
            energy_joules: energy,
            energy_cost: total.energy_cost(),
            carbon_grams: total.carbon.map(account::grams),
            utilization_mean: utilization.map(|(mean, _)| mean),
            utilization_peak: utilization.map(|(_, peak)| peak),
            memory_mean_bytes: memory.map(|(mean, _)| mean),
            memory_peak_bytes: memory.map(|(_, peak)| peak),
            power_mean_watts: energy.map(|_| total.mean(total.microjoules * 1000)),
            power_peak_watts: peak.map(|milliwatts| milliwatts as f64 / 1e3),
            throttled_seconds: self.throttled.clone(),
            collectives: has_collectives.then(|| Collectives {
                seconds: (self.collectives > 0.0).then_some(self.collectives),
                waiting_seconds: self.waiting.values().sum(),
                slowest_rank: slowest.map(|(rank, _)| *rank),
            }),
            tokens: has_tokens
                .then_some(Tokens { prompt: self.prompt_tokens, generated: self.generated_tokens }),
            events: self.events.clone(),
            shares: self.methods.iter().cloned().collect(),
            unknown: self.unknown(&total, end),
            would_fit: Vec::new(),
            devices,
        };
        Receipt { would_fit: advice::of(&receipt), ..receipt }
    }

    /// The sums of all devices.
    fn total(&self) -> OnDevice {
        let mut total = OnDevice::default();
        self.devices.values().for_each(|device| total.sum(device));
        total
    }

    /// What could not be known, in sentences.
    fn unknown(&self, total: &OnDevice, end: Option<ReceiptEnd>) -> Vec<String> {
        let mut all = Vec::new();
        let unknown = total.by_use[TimeUse::Unknown as usize];
        if unknown > 0 {
            let hours = unknown as f64 / NS_PER_HOUR;
            all.push(format!("no reading shows the use of {hours:.4} GPU-hours"));
        }
        let [_, unmetered] = total.unknown_ns;
        if unmetered > 0 && total.energy().is_some() {
            let hours = unmetered as f64 / NS_PER_HOUR;
            all.push(format!("the energy of {hours:.4} GPU-hours was not counted"));
        }
        if total.implausible > 0 {
            let count = total.implausible;
            all.push(format!(
                "{count} means of power above 125 % of the board's limit are left out"
            ));
        }
        if self.restarts > 0 {
            let seconds = self.unobserved_ms as f64 / 1e3;
            let (times, s) = (self.restarts, if self.restarts == 1 { "" } else { "s" });
            all.push(format!(
                "the agent restarted {times} time{s}; {seconds:.1} s were not observed"
            ));
        }
        if self.methods.contains("unsplittable") {
            all.push("part of the busy time could not be divided among several owners".into());
        }
        if end == Some(ReceiptEnd::Evicted) {
            all.push("too many receipts were open: this one ended before its owner".into());
        }
        all
    }
}

fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn rfc3339(millis: u64) -> String {
    /// The end of the times that RFC 3339 can write.
    const YEAR_9999: u64 = 253_402_300_799;
    let seconds = (millis / 1000).min(YEAR_9999);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// The name of an owner's receipt, the same after a restart of the agent; `None` for what does not end.
pub(super) fn key(owner: &Owner) -> Option<String> {
    let id = match owner {
        Owner::Pod { uid, within, .. } => match within.as_deref().and_then(key) {
            Some(node) => format!("{uid}@{node}"),
            None => uid.to_string(),
        },
        Owner::Job(job) => job.to_string(),
        Owner::Allocation { scheduler, id } => format!("{scheduler}/{id}"),
        Owner::Container(id) => id.as_str().to_owned(),
        Owner::Machine(name) => name.to_string(),
        Owner::Service(unit) => unit.to_string(),
        Owner::User(_) | Owner::Other | Owner::Unattributed => return None,
    };
    Some(format!("{}/{id}", owner.kind()))
}
