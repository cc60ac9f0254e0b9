//! The log record of a receipt.

use super::view::{Receipt, ReceiptReport};
use crate::event::Severity;
use crate::event::record::Record;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// The record's event name.
pub const NAME: &str = "gpuwho.receipt";
/// Longest body; beyond it the devices are left out.
const MAX_BODY: usize = 32 * 1024;

/// The log record of a finished receipt: the figures as attributes, the whole receipt as JSON.
pub fn record(receipt: &Receipt) -> Record {
    let mut set = AttrSet::new();
    set.set(&attr::OWNER_KIND, &*receipt.kind);
    for key in attr::ALL {
        set.set_some(key, receipt.owner.get(key.name).map(String::as_str));
    }
    set.set_some(&attr::TEAM, receipt.team.as_deref());
    set.set(&attr::RECEIPT_END, &*receipt.state);
    set.set_some(&attr::RECEIPT_GRANTED, receipt.gpu_hours.granted);
    set.set(&attr::RECEIPT_USED, receipt.gpu_hours.used);
    set.set(&attr::RECEIPT_IDLE, receipt.gpu_hours.idle);
    set.set_some(&attr::RECEIPT_ENERGY, receipt.energy_joules);
    // With several currencies the body has the money.
    if let [money] = receipt.cost.as_slice() {
        set.set(&attr::RECEIPT_COST, money.total);
        set.set(&attr::CURRENCY, &*money.currency);
        set.set(&attr::PRICE_SOURCE, &*money.source);
    }
    set.set_some(&attr::RECEIPT_CARBON, receipt.carbon_grams);
    let whole = json(receipt).filter(|text| text.len() <= MAX_BODY);
    let short = || json(&Receipt { devices: Vec::new(), ..receipt.clone() });
    let time = humantime::parse_rfc3339(&receipt.until).unwrap_or(UNIX_EPOCH);
    Record {
        name: NAME,
        severity: Severity::Info.number(),
        severity_text: Severity::Info.as_str(),
        time_ns: ns(time),
        observed_ns: ns(SystemTime::now()),
        body: whole.or_else(short).unwrap_or_default().into(),
        attributes: set,
    }
}

fn json(receipt: &Receipt) -> Option<String> {
    serde_json::to_string(receipt).ok()
}

fn ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl ReceiptReport {
    /// As JSON.
    pub fn json(&self) -> Option<String> {
        serde_json::to_string_pretty(self).ok()
    }
}
