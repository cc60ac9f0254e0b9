//! The sums of an owner on one device.

use crate::accounting::Amount;
use crate::cost::receipts::view::{DeviceReceipt, GpuHours, Money};
use crate::cost::{Charge, account};
use gpuwho_model::catalog::cost::TimeUse;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(super) const NS_PER_HOUR: f64 = 3.6e12;
/// Shortest window of a peak of power: counters of energy step, and readings come late on a busy host.
const PEAK_WINDOW_NS: u64 = 10_000_000_000;
/// A mean power so far above the board's limit is none.
const OVER_LIMIT: f64 = 1.25;

/// The sums on one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::cost::receipts) struct OnDevice {
    pub(super) index: u32,
    pub(super) model: Option<String>,
    pub(in crate::cost::receipts) memory_limit: Option<u64>,
    /// Time for which it was there or had an allocation.
    pub(super) present_ns: u64,
    pub(super) granted_ns: u64,
    pub(super) by_use: [u64; TimeUse::ALL.len()],
    pub(super) byte_ns: u128,
    pub(super) bytes_peak: u64,
    /// Billionths of the device in an interval.
    pub(super) busy_peak: u64,
    pub(super) microjoules: u128,
    pub(super) milliwatts_peak: u64,
    /// Time for which it was there and the device's memory and energy were not known.
    #[serde(default)]
    pub(super) unknown_ns: [u64; 2],
    /// Microjoules and nanoseconds of the window of power that is not over.
    #[serde(default)]
    pub(super) window: (u128, u64),
    /// The largest power limit of the device in watts.
    #[serde(default)]
    pub(in crate::cost::receipts) power_limit: f64,
    /// Windows that were over the limit.
    #[serde(default)]
    pub(super) implausible: u64,
    pub(super) money: Vec<MoneySums>,
    pub(super) energy_money: EnergyMoney,
    pub(super) carbon: Option<u128>,
}

/// Money of one currency and source.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct MoneySums {
    pub(super) currency: String,
    pub(super) source: String,
    pub(super) by_use: [u128; TimeUse::ALL.len()],
    pub(super) granted: u128,
}

/// The cost of energy by currency: nearly always one, for which a map takes ten times a list's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, u128>", into = "BTreeMap<String, u128>")]
pub(super) struct EnergyMoney(Vec<(String, u128)>);

impl OnDevice {
    /// Adds what was charged; returns whether that was a power that cannot be. `is_unknown`: the device's memory
    /// and energy.
    pub(super) fn add_all(&mut self, charges: &[Charge], is_unknown: [bool; 2]) -> bool {
        let added = charges.iter().map(|charge| self.add(charge, is_unknown));
        let ns = added.max().unwrap_or(0);
        self.window.1 = self.window.1.saturating_add(ns);
        if ns == 0 {
            // The first reading, one without energy, or the clock was set back.
            self.window = (0, 0);
        }
        self.window.1 >= PEAK_WINDOW_NS && self.end_window()
    }

    /// Takes the mean power of a window as a peak, unless it cannot be.
    fn end_window(&mut self) -> bool {
        let (microjoules, ns) = std::mem::take(&mut self.window);
        let milliwatts = microjoules * 1_000_000 / u128::from(ns.max(1));
        let milliwatts = u64::try_from(milliwatts).unwrap_or(u64::MAX);
        let limit = self.power_limit * 1e3 * OVER_LIMIT;
        let is_over = limit > 0.0 && milliwatts as f64 > limit;
        let possible = if is_over { 0 } else { milliwatts };
        self.milliwatts_peak = self.milliwatts_peak.max(possible);
        self.implausible += u64::from(is_over);
        is_over
    }

    /// Adds a charge; returns the time between the readings of its energy.
    fn add(&mut self, charge: &Charge, is_unknown: [bool; 2]) -> u64 {
        let elapsed = charge.increment.elapsed_ns;
        match charge.increment.what {
            Amount::Present => {
                self.present_ns += elapsed;
                for (sum, is_unknown) in self.unknown_ns.iter_mut().zip(is_unknown) {
                    *sum += if is_unknown { elapsed } else { 0 };
                }
            }
            Amount::Busy(_) => {}
            Amount::Granted(ns) => {
                self.granted_ns += ns;
                if let Some(sums) = self.sums(charge) {
                    sums.0.granted += sums.1;
                }
            }
            Amount::Time(state, ns) => {
                if let Some(sum) = self.by_use.get_mut(state as usize) {
                    *sum += ns;
                }
                if let Some((sums, money)) = self.sums(charge)
                    && let Some(sum) = sums.by_use.get_mut(state as usize)
                {
                    *sum += money;
                }
                let share = u128::from(ns) * 1_000_000_000;
                if state == TimeUse::Used
                    && let Some(busy) = share.checked_div(elapsed.into())
                {
                    self.busy_peak = self.busy_peak.max(u64::try_from(busy).unwrap_or(0));
                }
            }
            Amount::Memory { byte_ns, bytes } => {
                self.byte_ns += byte_ns;
                self.bytes_peak = self.bytes_peak.max(bytes);
            }
            Amount::Energy { microjoules, ns } => {
                self.microjoules += microjoules;
                self.window.0 += microjoules;
                if let Some((money, currency)) = charge.money.zip(charge.rates.energy_currency()) {
                    self.energy_money.add(currency, money);
                }
                if let Some(carbon) = charge.carbon {
                    self.carbon = Some(self.carbon.unwrap_or(0) + carbon);
                }
                return ns;
            }
        }
        0
    }

    fn sums(&mut self, charge: &Charge) -> Option<(&mut MoneySums, u128)> {
        let (currency, source) = charge.rates.price()?;
        Some((MoneySums::of(&mut self.money, currency, source)?, charge.money?))
    }

    /// Adds another device's sums.
    pub(super) fn sum(&mut self, other: &Self) {
        self.present_ns += other.present_ns;
        self.granted_ns += other.granted_ns;
        self.by_use.iter_mut().zip(other.by_use).for_each(|(sum, more)| *sum += more);
        self.byte_ns += other.byte_ns;
        self.bytes_peak = self.bytes_peak.max(other.bytes_peak);
        self.busy_peak = self.busy_peak.max(other.busy_peak);
        self.microjoules += other.microjoules;
        self.milliwatts_peak = self.milliwatts_peak.max(other.milliwatts_peak);
        self.unknown_ns.iter_mut().zip(other.unknown_ns).for_each(|(sum, more)| *sum += more);
        self.implausible += other.implausible;
        if let Some(carbon) = other.carbon {
            self.carbon = Some(self.carbon.unwrap_or(0) + carbon);
        }
        for more in &other.money {
            if let Some(sum) = MoneySums::of(&mut self.money, &more.currency, &more.source) {
                sum.sum(more);
            }
        }
        for (currency, more) in &other.energy_money.0 {
            self.energy_money.add(currency, *more);
        }
    }

    /// The cost of energy by currency.
    pub(super) fn energy_cost(&self) -> BTreeMap<String, f64> {
        let units =
            |(currency, sum): &(String, u128)| (currency.clone(), account::energy_units(*sum));
        self.energy_money.0.iter().map(units).collect()
    }

    /// A sum over time as a mean of the time for which it was there.
    pub(super) fn mean(&self, sum: u128) -> f64 {
        if self.present_ns == 0 { 0.0 } else { sum as f64 / self.present_ns as f64 }
    }

    /// Mean and largest memory, if any reading had it.
    pub(super) fn memory(&self) -> Option<(f64, u64)> {
        let is_known = self.present_ns > self.unknown_ns[0] || self.byte_ns > 0;
        // The clocks of the readings and of presence differ by a little.
        let mean = || self.mean(self.byte_ns).min(self.bytes_peak as f64);
        is_known.then(|| (mean(), self.bytes_peak))
    }

    /// Mean and largest use, if any reading had it.
    pub(super) fn utilization(&self) -> Option<(f64, f64)> {
        let [used, idle, _] = self.by_use;
        let mean = || self.mean(used.into());
        (used > 0 || idle > 0).then(|| (mean(), self.busy_peak as f64 / 1e9))
    }

    /// Joules, if the device counts them.
    pub(super) fn energy(&self) -> Option<f64> {
        let is_known = self.present_ns > self.unknown_ns[1] || self.microjoules > 0;
        is_known.then(|| self.microjoules as f64 / 1e6)
    }

    pub(super) fn hours(&self, is_granted: bool) -> GpuHours {
        let [used, idle, unknown] = self.by_use.map(|ns| ns as f64 / NS_PER_HOUR);
        let granted = is_granted.then(|| self.granted_ns as f64 / NS_PER_HOUR);
        GpuHours { granted, used, idle, unknown }
    }

    /// `is_granted`: something names what is allocated to the owner.
    pub(super) fn receipt(&self, uuid: &str, is_granted: bool) -> DeviceReceipt {
        let (utilization, memory) = (self.utilization(), self.memory());
        DeviceReceipt {
            uuid: uuid.to_owned(),
            index: self.index,
            model: self.model.clone(),
            memory_limit_bytes: self.memory_limit,
            gpu_hours: self.hours(is_granted),
            cost: self.money.iter().map(|money| money.view(is_granted)).collect(),
            energy_joules: self.energy(),
            utilization_mean: utilization.map(|(mean, _)| mean),
            utilization_peak: utilization.map(|(_, peak)| peak),
            memory_mean_bytes: memory.map(|(mean, _)| mean),
            memory_peak_bytes: memory.map(|(_, peak)| peak),
        }
    }
}

impl EnergyMoney {
    fn add(&mut self, currency: &str, more: u128) {
        if let Some((_, sum)) = self.0.iter_mut().find(|(known, _)| known == currency) {
            *sum += more;
            return;
        }
        self.0.reserve_exact(1);
        self.0.push((currency.to_owned(), more));
    }
}

impl From<BTreeMap<String, u128>> for EnergyMoney {
    fn from(by_currency: BTreeMap<String, u128>) -> Self {
        Self(by_currency.into_iter().collect())
    }
}

impl From<EnergyMoney> for BTreeMap<String, u128> {
    fn from(money: EnergyMoney) -> Self {
        money.0.into_iter().collect()
    }
}

impl MoneySums {
    /// The entry of a currency and source.
    pub(super) fn of<'a>(
        list: &'a mut Vec<Self>,
        currency: &str,
        source: &str,
    ) -> Option<&'a mut Self> {
        let is_it = |sums: &Self| sums.currency == currency && sums.source == source;
        let place = list.iter().position(is_it).unwrap_or_else(|| {
            let (currency, source) = (currency.to_owned(), source.to_owned());
            // Nearly all have one: room for four would be most of a receipt's memory.
            list.reserve_exact(1);
            list.push(Self { currency, source, ..Self::default() });
            list.len() - 1
        });
        list.get_mut(place)
    }

    pub(super) fn sum(&mut self, other: &Self) {
        self.by_use.iter_mut().zip(other.by_use).for_each(|(sum, more)| *sum += more);
        self.granted += other.granted;
    }

    pub(super) fn view(&self, is_granted: bool) -> Money {
        let [used, idle, unknown] = self.by_use.map(account::units);
        Money {
            currency: self.currency.clone(),
            source: self.source.clone(),
            total: account::units(self.by_use.iter().sum()),
            used,
            idle,
            unknown,
            granted: is_granted.then(|| account::units(self.granted)),
        }
    }
}
