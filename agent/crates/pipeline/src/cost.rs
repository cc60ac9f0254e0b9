//! What devices cost: money, energy cost and carbon by owner, and the receipts of what has ended.
//!
//! [`Costs`] is a stage of the pipeline after the shares. It multiplies what the shares added by a
//! price, in whole units: nanoseconds times billionths of a currency unit an hour. So the owners' money of
//! a device adds up to its price times its time exactly. Without a configured price there is no money,
//! only GPU-seconds. `docs/cost.md` has the formulas.
//!
//! Cost: one look-up of rates and one of an account for each owner on a device.

mod account;
mod carbon;
mod currency;
mod price;
pub mod receipts;
pub mod settings;
mod team;

pub use carbon::{Carbon, STATUS};
pub use settings::{SECTION, Settings};

use crate::accounting::{Amount, Increment};
use account::{Accounts, NANO_PER_UNIT};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::cost as metric;
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::labels::{Label, LabelSet, LabelSets};
use gpuwho_model::sample::{Agent, Batch, Host};
use gpuwho_owners::attribute::owner::OwnerFacts;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::inventory::Inventory;
use price::Priced;
use std::collections::HashMap;
use std::sync::Arc;

/// Sets of labels of costs: prices times teams. Beyond it they are `other`.
const MAX_LABEL_SETS: usize = 1024;
/// Rates of owners on devices that are remembered; at a change of an owner beyond it all are made again.
const MAX_RATES: usize = 4096;

/// What an increment costs, for the receipts.
#[derive(Clone, Debug)]
pub struct Charge {
    /// What was added.
    pub increment: Increment,
    /// What its owner pays for the device.
    pub rates: Arc<Rates>,
    /// Money, where there is a price. Of time and allocations: billionths of a unit of the price's currency an
    /// hour, times nanoseconds. Of energy: billionths of a unit of its currency a kilowatt-hour, times
    /// microjoules and thousandths of PUE.
    pub money: Option<u128>,
    /// Carbon, with PUE.
    pub carbon: Option<u128>,
}

/// What an owner pays for a device.
#[derive(Debug)]
pub struct Rates {
    /// The owner's team.
    pub team: Option<Arc<str>>,
    priced: Option<Priced>,
    /// Billionths of a unit of a currency for a kilowatt-hour.
    energy: Option<(Arc<str>, u64)>,
    /// Labels of the owner's money, of its cost of energy, and of its carbon.
    of_money: LabelSet,
    of_energy: LabelSet,
    of_carbon: LabelSet,
}

/// What an owner pays, and the facts from which that is.
#[derive(Debug)]
struct OwnerRates {
    rates: Arc<Rates>,
    facts: Option<Arc<OwnerFacts>>,
    /// When the facts were last compared with the table's.
    epoch: u64,
}

impl Charge {
    fn of(increment: &Increment, rates: &Arc<Rates>, (pue, carbon): (u128, Option<u64>)) -> Self {
        let price = rates.priced.as_ref().map(|priced| u128::from(priced.nano));
        let (money, carbon) = match increment.what {
            Amount::Time(_, ns) | Amount::Granted(ns) => {
                (price.map(|nano| nano * u128::from(ns)), None)
            }
            Amount::Energy { microjoules, .. } => {
                let with_pue = microjoules.saturating_mul(pue);
                let price = rates.energy.as_ref().map(|(_, nano)| u128::from(*nano));
                let of = |rate: u128| with_pue.saturating_mul(rate);
                (price.map(of), carbon.map(u128::from).map(of))
            }
            Amount::Present | Amount::Busy(_) | Amount::Memory { .. } => (None, None),
        };
        Self { increment: *increment, rates: Arc::clone(rates), money, carbon }
    }

    /// Whether it has a place in an account: time always, the rest where it has a price.
    fn counts(&self) -> bool {
        let is_time = matches!(self.increment.what, Amount::Time(..));
        is_time || self.money.is_some() || self.carbon.is_some()
    }
}

impl Rates {
    /// Currency and source of the price.
    pub(crate) fn price(&self) -> Option<(&str, &'static str)> {
        self.priced.as_ref().map(|priced| (&*priced.currency, priced.source))
    }

    /// A team's rates with a price in US dollars.
    #[cfg(test)]
    pub(crate) fn of_team(team: Option<&str>, nano: u64) -> Self {
        let mut sets = LabelSets::new(1);
        let (currency, source, date) = ("USD".into(), price::CONFIGURED, None);
        let price = price::DevicePrice { nano, currency, source, date };
        let plain = sets.intern(&[]);
        Self {
            team: team.map(Arc::from),
            priced: Some(Priced::new(price, &mut sets)),
            energy: None,
            of_money: plain.clone(),
            of_energy: plain.clone(),
            of_carbon: plain,
        }
    }

    /// Currency of the cost of energy.
    pub(crate) fn energy_currency(&self) -> Option<&str> {
        self.energy.as_ref().map(|(currency, _)| &**currency)
    }
}

impl OwnerRates {
    /// Whether it is of these facts, and no label had to be folded for want of room.
    fn is_of(&self, facts: Option<&Arc<OwnerFacts>>) -> bool {
        let Rates { of_money, of_energy, of_carbon, .. } = &*self.rates;
        let is_folded = [of_money, of_energy, of_carbon].into_iter().any(LabelSet::is_folded);
        !is_folded && self.facts.as_ref().map(Arc::as_ptr) == facts.map(Arc::as_ptr)
    }
}

/// The stage.
#[derive(Debug)]
pub struct Costs {
    settings: Arc<Settings>,
    carbon: Arc<Carbon>,
    /// The host's machine type, by which prices are found.
    machine: Option<String>,
    accounts: Accounts,
    labels: LabelSets,
    prices: HashMap<(GpuId, Option<Arc<str>>), Option<Priced>>,
    rates: HashMap<(GpuId, OwnerId), OwnerRates>,
    versions: Option<(Version, u64)>,
    /// Counts changes of owners.
    epoch: u64,
    /// Of one device; the buffer is reused.
    charges: Vec<Charge>,
}

impl Costs {
    /// Starts with nothing charged; `machine` is the host's machine type.
    pub fn new(settings: Arc<Settings>, carbon: Arc<Carbon>, machine: Option<String>) -> Self {
        Self {
            settings,
            carbon,
            machine,
            accounts: Accounts::default(),
            labels: LabelSets::new(MAX_LABEL_SETS),
            prices: HashMap::new(),
            rates: HashMap::new(),
            versions: None,
            epoch: 0,
            charges: Vec::new(),
        }
    }

    /// Uses other prices from now on. What was charged stays.
    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
        self.forget();
    }

    /// Charges what the shares added and adds the counters to their batch. The increments are sorted by
    /// device and owner; the receipts get those of a device together.
    pub fn charge(
        &mut self,
        increments: &[Increment],
        batch: &mut Batch,
        (ownership, inventory): (&Ownership, &Inventory),
        mut receipts: impl FnMut(&[Charge]),
    ) {
        // Each vendor has batches of its own; the host's figures go with the agent's, once a tick.
        if batch.of.source == Agent::SOURCE {
            self.look_up_again(ownership, inventory);
            self.of_host(batch, inventory);
        }
        if increments.is_empty() {
            return;
        }
        self.accounts.begin();
        self.look_up_again(ownership, inventory);
        for on_gpu in increments.chunk_by(|a, b| a.gpu == b.gpu) {
            let Some(gpu) = on_gpu.first().map(|increment| increment.gpu) else { continue };
            self.charges.clear();
            for same in on_gpu.chunk_by(|a, b| a.owner == b.owner) {
                let Some(owner) = same.first().map(|increment| increment.owner) else { continue };
                let rates = self.rates(gpu, owner, ownership, inventory);
                let carbon = self.carbon.milligrams();
                let first = self.charges.len();
                let charges = same.iter().map(|increment| {
                    Charge::of(increment, &rates, (self.settings.pue_milli.into(), carbon))
                });
                self.charges.extend(charges);
                let charges = self.charges.get(first..).unwrap_or_default();
                self.accounts.add(gpu, owner, &rates, charges);
            }
            receipts(&self.charges);
            self.accounts.emit(gpu, batch);
            if let Some(priced) = self.price(gpu, None, inventory) {
                let amount = priced.nano as f64 / NANO_PER_UNIT;
                batch.push(metric::PRICE.sample(gpu, (), amount).labelled(priced.shown));
            }
        }
    }

    /// What an owner pays for a device.
    fn rates(
        &mut self,
        gpu: GpuId,
        owner: OwnerId,
        ownership: &Ownership,
        inventory: &Inventory,
    ) -> Arc<Rates> {
        let epoch = self.epoch;
        if let Some(known) = self.rates.get(&(gpu, owner)).filter(|known| known.epoch == epoch) {
            return Arc::clone(&known.rates);
        }
        let facts = ownership.owner(owner);
        let known = self.rates.get_mut(&(gpu, owner));
        if let Some(known) = known.filter(|known| known.is_of(facts.as_ref())) {
            known.epoch = epoch;
            return Arc::clone(&known.rates);
        }
        let rates = Arc::new(self.make_rates(gpu, facts.as_deref(), inventory));
        let known = OwnerRates { rates: Arc::clone(&rates), facts, epoch };
        self.rates.insert((gpu, owner), known);
        rates
    }

    fn make_rates(
        &mut self,
        gpu: GpuId,
        facts: Option<&OwnerFacts>,
        inventory: &Inventory,
    ) -> Rates {
        let partition = |facts: &OwnerFacts| {
            let name = facts.details.get(&attr::SLURM_JOB_PARTITION)?.as_text()?;
            let counts = self.settings.is_by_partition && !team::is_claimed(facts);
            counts.then(|| Arc::from(name))
        };
        let partition = facts.and_then(partition);
        let team = facts.and_then(|facts| self.settings.teams.of(facts));
        let priced =
            if self.settings.has_prices() { self.price(gpu, partition, inventory) } else { None };
        let energy = self.settings.energy_price.clone();
        let price = priced.as_ref().map(|priced| {
            [(&attr::CURRENCY, &*priced.currency), (&attr::PRICE_SOURCE, priced.source)]
        });
        let currency = energy.as_ref().map(|(currency, _)| [(&attr::CURRENCY, &**currency)]);
        let mut labels = |of: &[Label<'_>]| {
            let team = team.as_deref().map(|team| (&attr::TEAM, team));
            let labels: Vec<_> = of.iter().copied().chain(team).collect();
            self.labels.intern(&labels)
        };
        let of_money = labels(price.as_ref().map_or(&[], |price| price));
        let of_energy = labels(currency.as_ref().map_or(&[], |currency| currency));
        let of_carbon = labels(&[]);
        Rates { priced, energy, of_money, of_energy, of_carbon, team: team.clone() }
    }

    fn price(
        &mut self,
        gpu: GpuId,
        partition: Option<Arc<str>>,
        inventory: &Inventory,
    ) -> Option<Priced> {
        let key = (gpu, partition);
        if let Some(known) = self.prices.get(&key) {
            return known.clone();
        }
        let info = inventory.get(gpu)?;
        let found = self.settings.price(&info, self.machine.as_deref(), key.1.as_deref());
        let found = found.map(|price| Priced::new(price, &mut self.labels));
        self.prices.insert(key, found.clone());
        found
    }

    /// Looks owners up again after a change of one, and prices after a change of a device.
    fn look_up_again(&mut self, ownership: &Ownership, inventory: &Inventory) {
        let now = (ownership.version(), inventory.version());
        if self.versions == Some(now) {
            return;
        }
        let is_same_host = self.versions.is_some_and(|(_, devices)| devices == now.1);
        self.versions = Some(now);
        self.epoch += 1;
        if !is_same_host || self.rates.len().max(self.prices.len()) >= MAX_RATES {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.prices.clear();
        self.rates.clear();
    }

    fn of_host(&mut self, batch: &mut Batch, inventory: &Inventory) {
        if self.settings.has_prices() {
            let gpus = inventory.all().into_iter().map(|(gpu, _)| gpu);
            let unpriced = gpus.filter(|gpu| self.price(*gpu, None, inventory).is_none()).count();
            let unpriced = i64::try_from(unpriced).unwrap_or(i64::MAX);
            batch.push(metric::UNPRICED.sample(Agent, (), unpriced));
        }
        if let Some((intensity, source)) = self.carbon.intensity() {
            batch.push(metric::CARBON_INTENSITY.sample(Host, source, intensity));
        }
        for budget in &self.settings.budgets {
            let labels = [(&attr::TEAM, &*budget.team), (&attr::CURRENCY, &*budget.currency)];
            let labels = self.labels.intern(&labels);
            batch.push(metric::BUDGET.sample(Agent, (), budget.amount).labelled(labels));
        }
    }
}

#[cfg(test)]
mod conservation_tests;
#[cfg(test)]
mod tests;
