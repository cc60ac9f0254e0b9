//! The accounts of all owners: time and money since the agent started. Whole numbers, so that the
//! owners' sums are the device's sum.
//!
//! A device has at most [`MAX_ACCOUNTS`] accounts of owners. Beyond it a new owner takes the place of one
//! that is inactive, else its amounts go to `other`. What was counted stays where it was.

use crate::attribute::owner::OwnerId;
use crate::catalog::cost::{self as metric, TimeUse};
use crate::ids::GpuId;
use crate::labels::LabelSet;
use crate::sample::{Batch, GpuOwner};
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

/// What is added to an account.
#[derive(Debug)]
pub(super) enum Added {
    Time {
        state: TimeUse,
        ns: u64,
        money: Option<u128>,
        /// Labels of the device's cost and of the owner's.
        priced: Option<(LabelSet, LabelSet)>,
    },
    Granted {
        money: u128,
        labels: LabelSet,
    },
    Energy {
        money: Option<u128>,
        labels: LabelSet,
        carbon: Option<u128>,
        /// Without the currency.
        plain: LabelSet,
    },
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
    money: HashMap<LabelSet, Money>,
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

    pub(super) fn add(&mut self, gpu: GpuId, owner: OwnerId, added: Added) {
        if let Added::Time { money: Some(money), priced: Some((labels, _)), .. } = &added {
            *self.devices.entry(gpu).or_default().entry(labels.clone()).or_default() += money;
        }
        let owner = self.slot(gpu, owner);
        let account = self.by_owner.entry((gpu, owner)).or_default();
        account.last = self.batches;
        account.add(added);
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

impl Account {
    fn add(&mut self, added: Added) {
        match added {
            Added::Time { state, ns, money, priced } => {
                if let Some(sum) = self.time.get_mut(state as usize) {
                    *sum = Some(sum.unwrap_or(0) + u128::from(ns));
                }
                if let Some((money, (_, labels))) = money.zip(priced)
                    && let Some(sum) = self.of(labels).by_use.get_mut(state as usize)
                {
                    *sum = Some(sum.unwrap_or(0) + money);
                }
            }
            Added::Granted { money, labels } => {
                let sum = &mut self.of(labels).granted;
                *sum = Some(sum.unwrap_or(0) + money);
            }
            Added::Energy { money, labels, carbon, plain } => {
                if let Some(money) = money {
                    let sum = &mut self.of(labels).energy;
                    *sum = Some(sum.unwrap_or(0) + money);
                }
                if let Some(carbon) = carbon {
                    let sum = &mut self.of(plain).carbon;
                    *sum = Some(sum.unwrap_or(0) + carbon);
                }
            }
        }
    }

    fn of(&mut self, labels: LabelSet) -> &mut Money {
        self.money.entry(labels).or_default()
    }

    fn emit(&self, on: GpuOwner, out: &mut Batch) {
        for (&state, ns) in TimeUse::ALL.iter().zip(self.time) {
            if let Some(ns) = ns {
                out.push(metric::OWNER_TIME.sample(on, state, ns as f64 / NS_PER_SECOND));
            }
        }
        for (labels, money) in &self.money {
            let mut push =
                |sample: crate::sample::Sample| out.push(sample.labelled(labels.clone()));
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
