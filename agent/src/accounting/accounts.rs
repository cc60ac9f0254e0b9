//! The accounts of one device: what each party used of it since the agent began to count.
//!
//! A device tells [`MAX_ACCOUNTS`] parties apart. A new one takes the place of the one that was
//! away the longest; where all are there at the same time, it goes on `other`. What was counted
//! before stays where it was, so that increases add up whatever comes and goes.

use crate::attribute::owner::OwnerId;
use crate::catalog::share::{self as metric, ShareMethod};
use crate::ids::GpuId;
use crate::sample::{Batch, GpuParty};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Parties told apart on a device: more containers than a device is shared by, and 72 bytes a
/// number.
pub(super) const MAX_ACCOUNTS: usize = 64;
/// How long the account of a party that is away is kept.
const KEEP: Duration = Duration::from_mins(10);
/// Nanoseconds of a second, and byte-nanoseconds of a byte-second.
pub(super) const NANO: f64 = 1e9;
/// Microjoules of a joule.
pub(super) const MICRO: f64 = 1e6;

/// What is accounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// Nanoseconds busy.
    Busy,
    /// Byte-nanoseconds used.
    Memory,
    /// Microjoules.
    Energy,
}

/// One number for each resource; `None` until it is first counted.
pub(super) type Amounts = [Option<u128>; 3];

/// Every account of a device.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    by_owner: BTreeMap<OwnerId, Account>,
    /// The reading that is being booked, and the one before.
    readings: [Option<SystemTime>; 2],
    folded: u64,
}

#[derive(Debug)]
struct Account {
    /// By the method's place in [`ShareMethod::ALL`].
    amounts: [Amounts; ShareMethod::ALL.len()],
    last: SystemTime,
}

/// Adds to a number.
pub(super) fn add(amounts: &mut Amounts, resource: Resource, amount: u128) {
    if let Some(sum) = amounts.get_mut(resource as usize) {
        *sum = Some(sum.unwrap_or(0).saturating_add(amount));
    }
}

impl Accounts {
    /// A reading begins.
    pub(super) fn begin(&mut self, at: SystemTime) {
        let [before, _] = self.readings;
        self.readings = [Some(at), before];
    }

    /// Books an amount, which may be nothing, of the reading that began last.
    pub(super) fn add(
        &mut self,
        (owner_id, method): (OwnerId, ShareMethod),
        resource: Resource,
        amount: u128,
    ) {
        let [Some(at), _] = self.readings else { return };
        if let Some(account) = self.by_owner.get_mut(&owner_id) {
            return account.add(at, (method, resource), amount);
        }
        let owner_id = self.slot(owner_id);
        let account = self.by_owner.entry(owner_id).or_insert_with(|| Account::new(at));
        account.add(at, (method, resource), amount);
    }

    /// Forgets those who were away for long.
    pub(super) fn expire(&mut self) {
        let [Some(at), _] = self.readings else { return };
        self.by_owner.retain(|owner_id, account| {
            *owner_id <= OwnerId::OTHER
                || at.duration_since(account.last).is_ok_and(|away| away < KEEP)
                || account.last >= at
        });
    }

    /// Whether a party has an account.
    pub(super) fn knows(&self, owner_id: OwnerId) -> bool {
        self.by_owner.contains_key(&owner_id)
    }

    /// How many shares went on `other` since this was last asked.
    pub(super) fn take_folded(&mut self) -> u64 {
        std::mem::take(&mut self.folded)
    }

    /// What was booked for nobody known.
    pub(super) fn unattributed(&self, resource: Resource) -> u128 {
        let account = self.by_owner.get(&OwnerId::UNATTRIBUTED);
        let amounts = account.into_iter().flat_map(|account| &account.amounts);
        amounts.filter_map(|amounts| amounts.get(resource as usize).copied().flatten()).sum()
    }

    /// Every number as a sample.
    pub(super) fn emit(&self, gpu: GpuId, at: SystemTime, out: &mut Batch) {
        for (&owner_id, account) in &self.by_owner {
            let subject = GpuParty { gpu, owner: owner_id };
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

    /// A newcomer itself, or `other` where it finds no place.
    fn slot(&mut self, owner_id: OwnerId) -> OwnerId {
        if owner_id <= OwnerId::OTHER {
            return owner_id;
        }
        let others = self.by_owner.iter().filter(|(owner_id, _)| **owner_id > OwnerId::OTHER);
        if others.clone().count() < MAX_ACCOUNTS {
            return owner_id;
        }
        let readings = self.readings;
        let away = others.filter(|(_, account)| !readings.contains(&Some(account.last)));
        let longest = away.min_by_key(|(_, account)| account.last).map(|(owner_id, _)| *owner_id);
        if let Some(longest) = longest {
            self.by_owner.remove(&longest);
            return owner_id;
        }
        self.folded += 1;
        OwnerId::OTHER
    }
}

impl Account {
    fn new(last: SystemTime) -> Self {
        Self { amounts: Default::default(), last }
    }

    fn add(&mut self, at: SystemTime, (method, resource): (ShareMethod, Resource), amount: u128) {
        self.last = at;
        if let Some(amounts) = self.amounts.get_mut(method as usize) {
            add(amounts, resource, amount);
        }
    }
}
