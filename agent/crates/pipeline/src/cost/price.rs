//! Configured prices: the first row that fits a device, its host and its owner's partition.

use super::currency;
use super::settings::{matches, wrong};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::config::ConfigError;
use gpuwho_model::labels::{LabelSet, LabelSets};
use serde::Deserialize;
use std::sync::Arc;

/// A price above this is a typing error.
const MAX_PRICE: f64 = 1e6;

/// Where a price comes from.
pub(super) const CONFIGURED: &str = "configured";

/// A row of `[cost] prices`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPrice {
    per_hour: Option<f64>,
    model: Option<String>,
    instance: Option<String>,
    partition: Option<String>,
    currency: Option<String>,
    date: Option<String>,
}

/// A resolved row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) price: DevicePrice,
    model: Option<String>,
    instance: Option<String>,
    pub(super) partition: Option<String>,
}

/// The price of a device for an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DevicePrice {
    /// Billionths of a currency unit.
    pub(super) nano: u64,
    pub(super) currency: Arc<str>,
    pub(super) source: &'static str,
    pub(super) date: Option<Arc<str>>,
}

/// A price with its labels.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) nano: u64,
    pub(super) currency: Arc<str>,
    pub(super) source: &'static str,
    /// Currency and source.
    pub(super) labels: LabelSet,
    /// These and the date.
    pub(super) shown: LabelSet,
}

impl Priced {
    pub(super) fn new(price: DevicePrice, sets: &mut LabelSets) -> Self {
        let DevicePrice { nano, currency, source, date } = price;
        let mut labels = vec![(&attr::CURRENCY, &*currency), (&attr::PRICE_SOURCE, source)];
        let plain = sets.intern(&labels);
        labels.extend(date.as_deref().map(|date| (&attr::PRICE_DATE, date)));
        let shown = sets.intern(&labels);
        Self { nano, currency: Arc::clone(&currency), source, labels: plain, shown }
    }
}

impl Row {
    pub(super) fn resolve(
        raw: RawPrice,
        place: usize,
        default: &Arc<str>,
    ) -> Result<Self, ConfigError> {
        let key = |name: &str| format!("prices[{place}].{name}");
        let Some(per_hour) = raw.per_hour else {
            let problem = "the row has no price".to_owned();
            return Err(wrong(&key("per_hour"), problem, "write per_hour = 2.5"));
        };
        let nano = nano(&key("per_hour"), per_hour)?;
        let currency = match raw.currency {
            Some(code) => code_of(&key("currency"), code)?,
            None => Arc::clone(default),
        };
        if let Some(date) = &raw.date
            && (date.len() != 10 || humantime::parse_rfc3339(&format!("{date}T00:00:00Z")).is_err())
        {
            let problem = format!("`{date}` is not a day");
            return Err(wrong(&key("date"), problem, "write it like 2026-11-01"));
        }
        let price = DevicePrice {
            nano,
            currency,
            source: CONFIGURED,
            date: raw.date.as_deref().map(Arc::from),
        };
        let (model, instance, partition) = (raw.model, raw.instance, raw.partition);
        Ok(Self { price, model, instance, partition })
    }

    /// Whether the row is for such a device.
    pub(super) fn fits(
        &self,
        model: Option<&str>,
        machine: Option<&str>,
        partition: Option<&str>,
    ) -> bool {
        let fits = |wanted: &Option<String>, value: Option<&str>| match wanted {
            Some(pattern) => value.is_some_and(|value| matches(pattern, value)),
            None => true,
        };
        fits(&self.model, model)
            && fits(&self.instance, machine)
            && fits(&self.partition, partition)
    }
}

/// A number of units of a currency as billionths.
pub(super) fn nano(key: &str, units: f64) -> Result<u64, ConfigError> {
    if !(0.0..=MAX_PRICE).contains(&units) {
        let problem = format!("`{units}` is not a price");
        return Err(wrong(key, problem, "write a number from 0 to 1000000"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 10^15, and rounded"
    )]
    Ok((units * 1e9).round() as u64)
}

/// A currency's code.
pub(super) fn code_of(key: &str, code: String) -> Result<Arc<str>, ConfigError> {
    if currency::is_known(&code) {
        return Ok(code.into());
    }
    let problem = format!("`{code}` is not the code of a currency");
    Err(wrong(key, problem, "write its three letters, like USD or EUR (ISO 4217)"))
}
