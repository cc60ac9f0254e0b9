//! The accounts of all owners: time and money since the agent started. Whole numbers, so that the
//! owners' sums are the device's sum.
//!
//! A device has at most [`MAX_ACCOUNTS`] accounts of owners. Beyond it a new owner takes the place of one
//! that is inactive, else its amounts go to `other`. What was counted stays where it was.

use super::{Charge, Rates};
use crate::accounting::Amount;
use gpuwho_model::catalog::cost::{self as metric, TimeUse};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::labels::LabelSet;
use gpuwho_model::sample::{Batch, GpuOwner};
use std::collections::btree_map::Range;
use std::collections::{BTreeMap, HashMap};

/// As the accounts of shares have.
const MAX_ACCOUNTS: usize = 64;
/// Batches after which an account without an increment is removed: ten minutes at a 10 s interval.
const KEEP: u64 = 60;
/// Billionths of a currency unit.
pub(super) const NANO_PER_UNIT: f64 = 1e9;
/// Nanoseconds in an hour.
const NS_PER_HOUR: f64 = 3.6e12;
const NS_PER_SECOND: f64 = 1e9;
/// Microjoules in a kilowatt-hour, times thousandths of PUE.
const MICROJOULES_PER_KWH: f64 = 3.6e12 * 1e3;
const MILLI: f64 = 1e3;

/// Units of a currency.
pub(super) fn units(money: u128) -> f64 {
    money as f64 / NS_PER_HOUR / NANO_PER_UNIT
}

/// Units of a currency of an energy cost.
pub(super) fn energy_units(money: u128) -> f64 {
    money as f64 / MICROJOULES_PER_KWH / NANO_PER_UNIT
}

/// Grams.
pub(super) fn grams(carbon: u128) -> f64 {
    carbon as f64 / MICROJOULES_PER_KWH / MILLI
}

/// Amounts of one set of labels: an owner whose team becomes known later has two.
#[derive(Debug, Default)]
struct Money {
    by_use: [Option<u128>; TimeUse::ALL.len()],
    granted: Option<u128>,
    energy: Option<u128>,
    carbon: Option<u128>,
}

#[derive(Debug, Default)]
struct Account {
    time: [Option<u128>; TimeUse::ALL.len()],
    /// By labels: of money, of energy and of carbon, and those of a former team.
    money: Vec<(LabelSet, Money)>,
    last: u64,
}

/// All accounts.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    by_owner: BTreeMap<(GpuId, OwnerId), Account>,
    /// Cost of each device by its labels.
    devices: BTreeMap<GpuId, HashMap<LabelSet, u128>>,
    batches: u64,
}

impl Accounts {
    /// Starts a batch.
    pub(super) fn begin(&mut self) {
        self.batches += 1;
        if self.batches.is_multiple_of(KEEP) {
            let now = self.batches;
            self.by_owner.retain(|(_, owner), account| {
                *owner <= OwnerId::OTHER || account.last.saturating_add(KEEP) >= now
            });
        }
    }

    /// Adds what an owner was charged for a device.
    pub(super) fn add(&mut self, gpu: GpuId, owner: OwnerId, rates: &Rates, charges: &[Charge]) {
        if !charges.iter().any(Charge::counts) {
            return;
        }
        let owner = self.slot(gpu, owner);
        let account = self.by_owner.entry((gpu, owner)).or_default();
        account.last = self.batches;
        let of_time = charges.iter().filter_map(|charge| account.add(rates, charge));
        if let Some(money) = of_time.reduce(|sum, more| sum + more)
            && let Some(priced) = &rates.priced
        {
            let sums = self.devices.entry(gpu).or_default();
            *sums.entry(priced.labels.clone()).or_default() += money;
        }
    }

    /// Adds a device's counters to a batch.
    pub(super) fn emit(&self, gpu: GpuId, out: &mut Batch) {
        for (labels, money) in self.devices.get(&gpu).into_iter().flatten() {
            let sample = metric::DEVICE_COST.sample(gpu, (), units(*money));
            out.push(sample.labelled(labels.clone()));
        }
        for (&(_, owner), account) in self.on(gpu) {
            account.emit(GpuOwner { gpu, owner }, out);
        }
    }

    fn on(&self, gpu: GpuId) -> Range<'_, (GpuId, OwnerId), Account> {
        self.by_owner.range((gpu, OwnerId::UNATTRIBUTED)..=(gpu, OwnerId::LAST))
    }

    /// The account of an owner: its own, or `other`.
    fn slot(&mut self, gpu: GpuId, owner: OwnerId) -> OwnerId {
        if owner <= OwnerId::OTHER || self.by_owner.contains_key(&(gpu, owner)) {
            return owner;
        }
        let others = self.on(gpu).filter(|((_, owner), _)| *owner > OwnerId::OTHER);
        if others.clone().count() < MAX_ACCOUNTS {
            return owner;
        }
        let idle = others.filter(|(_, account)| account.last.saturating_add(1) < self.batches);
        match idle.min_by_key(|(_, account)| account.last).map(|(key, _)| *key) {
            Some(oldest) => {
                self.by_owner.remove(&oldest);
                owner
            }
            None => OwnerId::OTHER,
        }
    }
}

fn add(sum: &mut Option<u128>, more: Option<u128>) {
    *sum = Some(sum.unwrap_or(0) + more.unwrap_or(0));
}

impl Account {
    /// Returns the money of time, which is the device's as well.
    fn add(&mut self, rates: &Rates, charge: &Charge) -> Option<u128> {
        match charge.increment.what {
            Amount::Time(state, ns) => {
                let time = self.time.get_mut(state as usize)?;
                *time = Some(time.unwrap_or(0) + u128::from(ns));
                let sums = &mut self.of(&rates.of_money, charge.money)?.by_use;
                add(sums.get_mut(state as usize)?, charge.money);
                return charge.money;
            }
            Amount::Granted(_) => {
                add(&mut self.of(&rates.of_money, charge.money)?.granted, charge.money);
            }
            Amount::Energy { .. } => {
                if let Some(sums) = self.of(&rates.of_energy, charge.money) {
                    add(&mut sums.energy, charge.money);
                }
                add(&mut self.of(&rates.of_carbon, charge.carbon)?.carbon, charge.carbon);
            }
            Amount::Present | Amount::Busy(_) | Amount::Memory { .. } => {}
        }
        None
    }

    /// The sums of a set of labels, if there is something to add to them.
    fn of(&mut self, labels: &LabelSet, more: Option<u128>) -> Option<&mut Money> {
        more?;
        let place = self.money.iter().position(|(known, _)| known == labels);
        let place = place.unwrap_or_else(|| {
            // Nearly all have one to three.
            self.money.reserve_exact(1);
            self.money.push((labels.clone(), Money::default()));
            self.money.len() - 1
        });
        self.money.get_mut(place).map(|(_, sums)| sums)
    }

    fn emit(&self, on: GpuOwner, out: &mut Batch) {
        for (&state, ns) in TimeUse::ALL.iter().zip(self.time) {
            if let Some(ns) = ns {
                out.push(metric::OWNER_TIME.sample(on, state, ns as f64 / NS_PER_SECOND));
            }
        }
        for (labels, money) in &self.money {
            let mut push =
                |sample: gpuwho_model::sample::Sample| out.push(sample.labelled(labels.clone()));
            for (&state, sum) in TimeUse::ALL.iter().zip(money.by_use) {
                if let Some(sum) = sum {
                    push(metric::OWNER_COST.sample(on, state, units(sum)));
                }
            }
            if let Some(sum) = money.granted {
                push(metric::ALLOCATION_COST.sample(on, (), units(sum)));
            }
            if let Some(sum) = money.energy {
                push(metric::ENERGY_COST.sample(on, (), energy_units(sum)));
            }
            if let Some(sum) = money.carbon {
                push(metric::CARBON.sample(on, (), grams(sum)));
            }
        }
    }
}
