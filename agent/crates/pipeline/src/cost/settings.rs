//! `[cost]`: prices, energy, carbon, teams and budgets.

use super::carbon::CarbonSettings;
use super::price::{DevicePrice, RawPrice, Row, code_of, nano};
use super::team::{MAX_TEAM_LEN, RawTeam, Teams};
use gpuwho_model::config::{ConfigError, Section, Tables};
use gpuwho_owners::inventory::GpuInfo;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "cost";

/// Most rows of each list: more than a site has price classes or teams.
const MAX_ROWS: usize = 1024;
/// No data centre needs ten times what its devices do.
const MAX_PUE: f64 = 10.0;

/// The section.
pub const SECTION: Section = Section::of::<RawCost>(
    NAME,
    r#"# Prices of a device for an hour; the first row that fits counts. model, instance (host.type, see
# [resource]) and partition (of the Slurm job) may contain *. Without a price there is no money, only time
# (gpu.owner.time).
#: prices = [
#:   { model = "*H100*", partition = "reserved", per_hour = 1.9, currency = "EUR", date = "2026-11-01" },
#:   { model = "*H100*", per_hour = 2.99 },
#:   { per_hour = 1.5 },
#: ]
# Currency of prices without one.
#: currency = "USD"
# Price of a kilowatt-hour, in `currency`. The energy's cost is separate from the devices'.
#: energy_price = 0.15
# Power usage effectiveness: the data centre's energy for each unit of the devices'.
#: pue = 1.0
# Carbon intensity in grams per kilowatt-hour.
#: carbon_intensity = 350
# A file with that number, which another program refreshes. It counts instead of carbon_intensity until
# it is older than carbon_max_age.
#: carbon_file = "/run/gpuwho/carbon-intensity"
#: carbon_max_age = "2h"
# Teams, for gpuwho.team on costs and receipts; the first rule whose conditions all hold counts:
# namespace, account, partition, unit, user (with *), pod_label ("KEY=VALUE", or "KEY": its value is the
# team). [kubernetes] labels must select the label.
#: teams = [
#:   { team = "nlp", namespace = "nlp-*" },
#:   { team = "vision", account = "cv", partition = "gpu*" },
#:   { pod_label = "team" },
#: ]
# A team's budget for 30 days, for the alert on gpuwho.cost.budget.
#: budgets = [{ team = "nlp", amount = 20000, currency = "USD" }]
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCost {
    prices: Option<Vec<RawPrice>>,
    currency: Option<String>,
    energy_price: Option<f64>,
    pue: Option<f64>,
    carbon_intensity: Option<f64>,
    carbon_file: Option<PathBuf>,
    carbon_max_age: Option<String>,
    teams: Option<Vec<RawTeam>>,
    budgets: Option<Vec<RawBudget>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawBudget {
    team: Option<String>,
    amount: Option<f64>,
    currency: Option<String>,
}

/// A team's budget for 30 days.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Budget {
    pub(super) team: Arc<str>,
    pub(super) amount: f64,
    pub(super) currency: Arc<str>,
}

/// The resolved section.
#[derive(Debug)]
pub struct Settings {
    rows: Vec<Row>,
    /// Whether a row names a partition.
    pub(super) is_by_partition: bool,
    /// Currency and billionths of a unit for a kilowatt-hour.
    pub(super) energy_price: Option<(Arc<str>, u64)>,
    /// Thousandths.
    pub(super) pue_milli: u32,
    pub(super) carbon: CarbonSettings,
    pub(super) teams: Teams,
    pub(super) budgets: Vec<Budget>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            is_by_partition: false,
            energy_price: None,
            pue_milli: 1000,
            carbon: CarbonSettings::default(),
            teams: Teams::default(),
            budgets: Vec::new(),
        }
    }
}

impl Settings {
    /// From the section.
    pub fn resolve(tables: &Tables) -> Result<Self, ConfigError> {
        let raw: RawCost = tables.read(NAME)?;
        let currency = code_of("currency", raw.currency.unwrap_or_else(|| "USD".into()))?;
        let (prices, teams) = (raw.prices.unwrap_or_default(), raw.teams.unwrap_or_default());
        let budgets = raw.budgets.unwrap_or_default();
        for (key, len) in
            [("prices", prices.len()), ("teams", teams.len()), ("budgets", budgets.len())]
        {
            if len > MAX_ROWS {
                let problem = format!("{len} rows are more than {MAX_ROWS}");
                return Err(wrong(key, problem, "use * in a row instead of many rows"));
            }
        }
        let row = |(place, row)| Row::resolve(row, place, &currency);
        let rows: Vec<Row> = prices.into_iter().enumerate().map(row).collect::<Result<_, _>>()?;
        let energy_price = raw.energy_price.map(|price| nano("energy_price", price)).transpose()?;
        let budget = |(place, budget)| Budget::resolve(budget, place, &currency);
        Ok(Self {
            is_by_partition: rows.iter().any(|row| row.partition.is_some()),
            rows,
            energy_price: energy_price.map(|price| (Arc::clone(&currency), price)),
            pue_milli: pue(raw.pue.unwrap_or(1.0))?,
            carbon: CarbonSettings::resolve(
                raw.carbon_intensity,
                raw.carbon_file,
                raw.carbon_max_age,
            )?,
            teams: Teams::resolve(teams)?,
            budgets: budgets.into_iter().enumerate().map(budget).collect::<Result<_, _>>()?,
        })
    }

    /// Whether money is counted.
    pub(super) fn has_prices(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The price of a device on this kind of host for an owner of this partition.
    pub(super) fn price(
        &self,
        gpu: &GpuInfo,
        machine: Option<&str>,
        partition: Option<&str>,
    ) -> Option<DevicePrice> {
        let model = gpu.model.as_deref();
        let row = self.rows.iter().find(|row| row.fits(model, machine, partition));
        row.map(|row| row.price.clone())
    }

    /// The carbon settings.
    pub fn carbon(&self) -> CarbonSettings {
        self.carbon.clone()
    }
}

impl Budget {
    fn resolve(raw: RawBudget, place: usize, default: &Arc<str>) -> Result<Self, ConfigError> {
        let key = |name: &str| format!("budgets[{place}].{name}");
        let team = raw.team.filter(|team| (1..=MAX_TEAM_LEN).contains(&team.len()));
        let Some(team) = team else {
            let problem = "the budget names no team".to_owned();
            return Err(wrong(&key("team"), problem, "write a team of [cost] teams"));
        };
        let amount = raw.amount.filter(|amount| amount.is_finite() && *amount > 0.0);
        let Some(amount) = amount else {
            let problem = "there is no positive amount".to_owned();
            return Err(wrong(&key("amount"), problem, "write an amount for 30 days"));
        };
        let currency = match raw.currency {
            Some(code) => code_of(&key("currency"), code)?,
            None => Arc::clone(default),
        };
        Ok(Self { team: team.into(), amount, currency })
    }
}

fn pue(value: f64) -> Result<u32, ConfigError> {
    if !(1.0..=MAX_PUE).contains(&value) {
        let problem = format!("`{value}` is no power usage effectiveness");
        return Err(wrong("pue", problem, "write a number from 1 to 10"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1000 and 10000, and rounded"
    )]
    Ok((value * 1000.0).round() as u32)
}

/// Whether a value is what a pattern says, whatever its case; `*` stands for any text.
pub(super) fn matches(pattern: &str, value: &str) -> bool {
    gpuwho_model::catalog::selection::matches(&pattern.to_lowercase(), &value.to_lowercase())
}

pub(super) fn wrong(key: &str, problem: String, remedy: &str) -> ConfigError {
    ConfigError::Value { key: format!("{NAME}.{key}"), problem, remedy: remedy.into() }
}

#[cfg(test)]
mod tests;
