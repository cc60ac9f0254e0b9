//! What devices cost: money, energy cost and carbon by owner, and the receipts of what has ended.
//!
//! [`Costs`] is a stage of the pipeline after the shares. It multiplies what the shares added by a
//! price, in whole units: nanoseconds times billionths of a currency unit an hour. So the owners' money of
//! a device adds up to its price times its time exactly. Without a configured price there is no money,
//! only GPU-seconds. `docs/cost.md` has the formulas.
//!
//! Cost: one account look-up for each increment of a share, some five for each owner on a device.

mod account;
mod carbon;
mod currency;
mod list;
mod price;
pub mod receipts;
pub mod settings;
mod team;

pub use carbon::{Carbon, STATUS};
pub use settings::{SECTION, Settings};

use crate::accounting::{Amount, Increment};
use crate::attribute::owner::{OwnerFacts, OwnerId};
use crate::attribute::ownership::{Ownership, Version};
use crate::catalog::attributes as attr;
use crate::catalog::cost as metric;
use crate::collect::own;
use crate::ids::GpuId;
use crate::inventory::Inventory;
use crate::labels::{LabelSet, LabelSets};
use crate::sample::{Agent, Batch, Host};
use account::{Accounts, Added, NANO_PER_UNIT};
use price::Priced;
use std::collections::HashMap;
use std::sync::Arc;

/// Sets of labels of costs: prices times teams. Beyond it they are `other`.
const MAX_LABEL_SETS: usize = 1024;
/// Owners whose team and partition are remembered; then all are looked up again.
const MAX_OWNERS: usize = 4096;

/// What an increment costs, for the receipts.
#[derive(Clone, Debug)]
pub struct Charge {
    /// What was added.
    pub increment: Increment,
    /// The owner's team.
    pub team: Option<Arc<str>>,
    /// Money, where there is a price: billionths of a unit of this currency an hour, times
    /// nanoseconds.
    pub money: Option<(Arc<str>, &'static str, u128)>,
    /// Cost of energy, with PUE.
    pub energy: Option<(Arc<str>, u128)>,
    /// Carbon, with PUE.
    pub carbon: Option<u128>,
}

/// What an owner's own facts say about its costs.
#[derive(Clone, Debug, Default)]
struct OwnerRules {
    team: Option<Arc<str>>,
    partition: Option<Arc<str>>,
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
    owners: HashMap<OwnerId, OwnerRules>,
    prices: HashMap<(GpuId, Option<Arc<str>>), Option<Priced>>,
    /// The price of each device for an owner, with the labels of the owner's money.
    priced: HashMap<(GpuId, OwnerId), Option<(Priced, LabelSet)>>,
    versions: Option<(Version, u64)>,
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
            owners: HashMap::new(),
            prices: HashMap::new(),
            priced: HashMap::new(),
            versions: None,
            charges: Vec::new(),
        }
    }

    /// Uses other prices from now on. What was charged stays.
    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
        self.owners.clear();
        self.prices.clear();
        self.priced.clear();
        self.versions = None;
    }

    /// Charges what the shares added and adds the counters to their batch.
    pub fn charge(
        &mut self,
        increments: &[Increment],
        batch: &mut Batch,
        ownership: &Ownership,
        inventory: &Inventory,
    ) {
        self.charges.clear();
        // Each vendor has batches of its own; the host's figures go with the agent's, once a tick.
        if batch.of.source == own::NAME {
            self.look_up_again(ownership, inventory);
            self.of_host(batch, inventory);
        }
        if increments.is_empty() {
            return;
        }
        self.accounts.begin();
        self.look_up_again(ownership, inventory);
        for increment in increments {
            let charge = self.one(increment, ownership, inventory);
            self.charges.push(charge);
        }
        let gpus = increments.chunk_by(|a, b| a.gpu == b.gpu).filter_map(|same| same.first());
        for gpu in gpus.map(|increment| increment.gpu) {
            self.accounts.emit(gpu, batch);
            if let Some(priced) = self.price(gpu, None, inventory) {
                let amount = priced.nano as f64 / NANO_PER_UNIT;
                batch.push(metric::PRICE.sample(gpu, (), amount).labelled(priced.shown));
            }
        }
    }

    /// What the last batch cost, for the receipts.
    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    fn one(
        &mut self,
        increment: &Increment,
        ownership: &Ownership,
        inventory: &Inventory,
    ) -> Charge {
        let Increment { gpu, owner, what, .. } = *increment;
        let team = self.rules(owner, ownership).team;
        let (money, energy, carbon) = (None, None, None);
        let mut charge = Charge { increment: *increment, team, money, energy, carbon };
        let added = match what {
            Amount::Time(state, ns) => {
                let labels = self.labels_of(gpu, owner, ownership, inventory);
                let nano = labels.as_ref().map(|(priced, _)| priced.nano);
                let money = nano.map(|nano| u128::from(nano) * u128::from(ns));
                if let Some(((priced, _), money)) = labels.as_ref().zip(money) {
                    charge.money = Some((Arc::clone(&priced.currency), priced.source, money));
                }
                let priced = labels.map(|(priced, with_team)| (priced.labels, with_team));
                Added::Time { state, ns, money, priced }
            }
            Amount::Granted(ns) => {
                let Some((priced, labels)) = self.labels_of(gpu, owner, ownership, inventory)
                else {
                    return charge;
                };
                let money = u128::from(priced.nano) * u128::from(ns);
                charge.money = Some((priced.currency, priced.source, money));
                Added::Granted { money, labels }
            }
            Amount::Energy(microjoules) => {
                let pue = u128::from(self.settings.pue_milli);
                let with_pue = microjoules.saturating_mul(pue);
                if let Some((currency, nano)) = &self.settings.energy_price {
                    let money = with_pue.saturating_mul(u128::from(*nano));
                    charge.energy = Some((Arc::clone(currency), money));
                }
                charge.carbon = self.carbon.milligrams().map(|mg| with_pue * u128::from(mg));
                let team = charge.team.clone();
                let currency = charge.energy.as_ref().map(|(currency, _)| currency);
                let labels = self.team_labels(currency, team.as_deref());
                let plain = self.team_labels(None, team.as_deref());
                let money = charge.energy.as_ref().map(|(_, money)| *money);
                Added::Energy { money, labels, carbon: charge.carbon, plain }
            }
            Amount::Present | Amount::Busy(_) | Amount::Memory { .. } => return charge,
        };
        self.accounts.add(gpu, owner, added);
        charge
    }

    /// The price of a device for an owner, and the labels of the owner's money.
    fn labels_of(
        &mut self,
        gpu: GpuId,
        owner: OwnerId,
        ownership: &Ownership,
        inventory: &Inventory,
    ) -> Option<(Priced, LabelSet)> {
        if !self.settings.has_prices() {
            return None;
        }
        if let Some(known) = self.priced.get(&(gpu, owner)) {
            return known.clone();
        }
        let rules = self.rules(owner, ownership);
        let priced = self.price(gpu, rules.partition, inventory).map(|priced| {
            let mut labels =
                vec![(&attr::CURRENCY, &*priced.currency), (&attr::PRICE_SOURCE, priced.source)];
            labels.extend(rules.team.as_deref().map(|team| (&attr::TEAM, team)));
            let labels = self.labels.intern(&labels);
            (priced, labels)
        });
        self.priced.insert((gpu, owner), priced.clone());
        priced
    }

    fn team_labels(&mut self, currency: Option<&Arc<str>>, team: Option<&str>) -> LabelSet {
        let currency = currency.map(|currency| (&attr::CURRENCY, &**currency));
        let team = team.map(|team| (&attr::TEAM, team));
        let labels: Vec<_> = currency.into_iter().chain(team).collect();
        self.labels.intern(&labels)
    }

    fn rules(&mut self, owner: OwnerId, ownership: &Ownership) -> OwnerRules {
        if let Some(known) = self.owners.get(&owner) {
            return known.clone();
        }
        let facts = ownership.owner(owner);
        let partition = |facts: &OwnerFacts| {
            let name = facts.details.get(&attr::SLURM_JOB_PARTITION)?.as_text()?;
            let counts = self.settings.is_by_partition && !team::is_claimed(facts);
            counts.then(|| Arc::from(name))
        };
        let rules = OwnerRules {
            team: facts.as_deref().and_then(|facts| self.settings.teams.of(facts)),
            partition: facts.as_deref().and_then(partition),
        };
        self.owners.insert(owner, rules.clone());
        rules
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

    /// Forgets what was looked up, after a change of an owner or a device.
    fn look_up_again(&mut self, ownership: &Ownership, inventory: &Inventory) {
        let now = (ownership.version(), inventory.version());
        let known = self.owners.len().max(self.prices.len()).max(self.priced.len());
        let is_full = known >= MAX_OWNERS;
        if self.versions != Some(now) || is_full {
            self.versions = Some(now);
            self.owners.clear();
            self.prices.clear();
            self.priced.clear();
        }
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
mod tests;
