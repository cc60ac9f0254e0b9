//! The accounts of one device: each owner's cumulative use since the agent started.
//!
//! A device has at most [`MAX_ACCOUNTS`] accounts. A new owner replaces the one absent the longest;
//! if all owners are present, its use goes to the `other` account. Amounts already recorded stay
//! where they are, so counters only increase.

use gpuwho_model::catalog::share::{self as metric, ShareMethod};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Batch, GpuOwner};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Accounts of a device: more than the containers that share one device in practice. A number
/// takes 72 bytes.
pub(super) const MAX_ACCOUNTS: usize = 64;
/// An account of an owner that is absent this long is removed.
const KEEP: Duration = Duration::from_mins(10);
/// Nanoseconds in a second, and byte-nanoseconds in a byte-second.
pub(super) const NANO: f64 = 1e9;
/// Microjoules in a joule.
pub(super) const MICRO: f64 = 1e6;

/// The accounted resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// Busy time in nanoseconds.
    Busy,
    /// Memory used, in byte-nanoseconds.
    Memory,
    /// Energy in microjoules.
    Energy,
}

/// What of the device an owner has at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Utilisation, in parts of 10^9.
    Utilization,
    /// Bytes.
    Memory,
    /// Microwatts.
    Power,
}

/// One amount for each resource; `None` until the resource is first counted.
pub(super) type Amounts = [Option<u128>; 3];

/// All accounts of a device.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    by_owner: BTreeMap<OwnerId, Box<Account>>,
    /// Times of the current and the previous reading.
    readings: [Option<SystemTime>; 2],
    folded: u64,
}

#[derive(Debug)]
struct Account {
    /// Indexed by the method's position in [`ShareMethod::ALL`].
    amounts: [Amounts; ShareMethod::ALL.len()],
    /// Indexed by [`Level`]: at the current reading.
    levels: [Option<u128>; 3],
    last: SystemTime,
}

/// Adds to one resource's amount.
pub(super) fn add(amounts: &mut Amounts, resource: Resource, amount: u128) {
    if let Some(sum) = amounts.get_mut(resource as usize) {
        *sum = Some(sum.unwrap_or(0).saturating_add(amount));
    }
}

impl Accounts {
    /// Starts a reading.
    pub(super) fn begin(&mut self, at: SystemTime) {
        let [before, _] = self.readings;
        self.readings = [Some(at), before];
        for (owner_id, account) in &mut self.by_owner {
            // The rest stays, as 0: a gauge that comes and goes would be summed at its last value.
            let rest = (*owner_id <= OwnerId::OTHER).then_some(0);
            account.levels = account.levels.map(|level| level.and(rest));
        }
    }

    /// Adds an amount, possibly 0, from the current reading.
    pub(super) fn add(
        &mut self,
        owner_id: OwnerId,
        method: ShareMethod,
        resource: Resource,
        amount: u128,
    ) {
        let Some((slot, account, at)) = self.account(owner_id) else { return };
        account.add(at, method, resource, amount);
        self.folded += u64::from(slot != owner_id);
    }

    /// Adds to what an owner has at the current reading. Nobody's 0 counts from its first other value on.
    pub(super) fn add_level(&mut self, owner_id: OwnerId, level: Level, amount: u128) {
        if amount == 0 && owner_id <= OwnerId::OTHER {
            return;
        }
        let Some((_, account, at)) = self.account(owner_id) else { return };
        account.last = at;
        if let Some(sum) = account.levels.get_mut(level as usize) {
            *sum = Some(sum.unwrap_or(0).saturating_add(amount));
        }
    }

    /// An owner's account and whose it is, with the time of the current reading.
    fn account(&mut self, owner_id: OwnerId) -> Option<(OwnerId, &mut Account, SystemTime)> {
        let [Some(at), _] = self.readings else { return None };
        let is_known = self.by_owner.contains_key(&owner_id);
        let owner_id = if is_known { owner_id } else { self.slot(owner_id) };
        let account = self.by_owner.entry(owner_id).or_insert_with(|| Box::new(Account::new(at)));
        Some((owner_id, account, at))
    }

    /// Removes accounts of owners absent for [`KEEP`] or longer.
    pub(super) fn expire(&mut self) {
        let [Some(at), _] = self.readings else { return };
        self.by_owner.retain(|owner_id, account| {
            *owner_id <= OwnerId::OTHER
                || at.duration_since(account.last).is_ok_and(|absence| absence < KEEP)
                || account.last >= at
        });
    }

    /// Whether an owner has an account.
    pub(super) fn has_account(&self, owner_id: OwnerId) -> bool {
        self.by_owner.contains_key(&owner_id)
    }

    /// Returns how many shares went to `other` since the last call.
    pub(super) fn take_folded(&mut self) -> u64 {
        std::mem::take(&mut self.folded)
    }

    /// The amount without an identified owner.
    pub(super) fn unattributed(&self, resource: Resource) -> u128 {
        let account = self.by_owner.get(&OwnerId::UNATTRIBUTED);
        let amounts = account.into_iter().flat_map(|account| &account.amounts);
        amounts.filter_map(|amounts| amounts.get(resource as usize).copied().flatten()).sum()
    }

    /// Adds every amount to a batch as a sample.
    pub(super) fn emit(&self, gpu: GpuId, at: SystemTime, out: &mut Batch) {
        for (&owner_id, account) in &self.by_owner {
            let subject = GpuOwner { gpu, owner: owner_id };
            let [utilization, memory, power] = account.levels;
            if let Some(part) = utilization {
                out.at(at, metric::OWNER_UTILIZATION.sample(subject, (), part as f64 / NANO));
            }
            if let Some(bytes) = memory {
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                out.at(at, metric::OWNER_MEMORY.sample(subject, (), bytes));
            }
            if let Some(part) = power {
                out.at(at, metric::OWNER_POWER.sample(subject, (), part as f64 / MICRO));
            }
            for (&method, [busy, memory, energy]) in ShareMethod::ALL.iter().zip(&account.amounts) {
                if let Some(sum) = busy {
                    let seconds = *sum as f64 / NANO;
                    out.at(at, metric::OWNER_BUSY_TIME.sample(subject, method, seconds));
                }
                if let Some(sum) = memory {
                    let seconds = *sum as f64 / NANO;
                    out.at(at, metric::OWNER_MEMORY_TIME.sample(subject, method, seconds));
                }
                if let Some(sum) = energy {
                    let joules = *sum as f64 / MICRO;
                    out.at(at, metric::OWNER_ENERGY.sample(subject, method, joules));
                }
            }
        }
    }

    /// The account for a new owner: its own, or `other` if no account is free.
    fn slot(&mut self, owner_id: OwnerId) -> OwnerId {
        if owner_id <= OwnerId::OTHER {
            return owner_id;
        }
        let others = self.by_owner.iter().filter(|(owner_id, _)| **owner_id > OwnerId::OTHER);
        if others.clone().count() < MAX_ACCOUNTS {
            return owner_id;
        }
        let readings = self.readings;
        let absent = others.filter(|(_, account)| !readings.contains(&Some(account.last)));
        let oldest = absent.min_by_key(|(_, account)| account.last).map(|(owner_id, _)| *owner_id);
        if let Some(oldest) = oldest {
            self.by_owner.remove(&oldest);
            return owner_id;
        }
        OwnerId::OTHER
    }
}

impl Account {
    fn new(last: SystemTime) -> Self {
        Self { amounts: Default::default(), levels: [None; 3], last }
    }

    fn add(&mut self, at: SystemTime, method: ShareMethod, resource: Resource, amount: u128) {
        self.last = at;
        if let Some(amounts) = self.amounts.get_mut(method as usize) {
            add(amounts, resource, amount);
        }
    }
}
