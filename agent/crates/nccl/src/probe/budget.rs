//! Reads the probe hits once a second while a library is in use or a budget is reduced, and applies
//! the budgets. There is one budget per owner, over all libraries, because a process may load
//! several; the most expensive process decides. Nothing is read, and the thread does not wake,
//! while nothing is in use.

pub(super) mod account;
mod change;
pub(super) mod controller;
pub(super) mod denials;
pub(super) mod quota;
pub(super) mod tally;
pub(super) mod uptime;

use super::Settings;
use super::attach::Attaching;
use super::libraries::Libraries;
use super::shared::Shared;
use change::{BudgetChange, what_is_left};
use controller::{Attach, LOOK_EVERY, ProbeBudget, RecoveryTiming};
use gpuwho_common::nccl::STRANGERS;
use gpuwho_model::catalog::nccl::ProbeLevel;
use quota::Quotas;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tally::{Tallies, Tally};

/// A rate over a shorter time than this is not used.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// The budgets of all owners.
pub(super) struct ProbeBudgets {
    budget: u64,
    recovery: RecoveryTiming,
    owners: HashMap<u32, OwnerBudget>,
    tallies: Tallies,
    last: CounterSample,
}

/// The budget of an owner's processes.
struct OwnerBudget {
    budget: ProbeBudget,
    /// Start of the current measurement: the last reading, or the time when its decision was
    /// applied.
    since: Instant,
    /// The level as last reported.
    reported: ProbeLevel,
}

/// The last reading of the counters.
struct CounterSample {
    at: Instant,
    /// Whether there was anything to limit.
    is_busy: bool,
}

impl ProbeBudgets {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            budget: settings.budget,
            recovery: settings.recovery,
            owners: HashMap::new(),
            tallies: Tallies::default(),
            last: CounterSample { at: now, is_busy: false },
        }
    }

    /// The limit in hits a second and process.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// What an owner's processes are allowed now.
    pub(super) fn attach(&self, owner: u32) -> Attach {
        self.owners.get(&owner).map_or(Attach::Full, |decision| decision.budget.attach())
    }

    /// The same for all owners with a budget.
    pub(super) fn all(&self) -> Vec<(u32, Attach)> {
        let all = self.owners.iter();
        all.map(|(owner, decision)| (*owner, decision.budget.attach())).collect()
    }

    /// Records that the decisions for these owners are applied from now on.
    pub(super) fn enforced(&mut self, owners: &[u32], of: &HashMap<u32, u32>) {
        let now = Instant::now();
        for owner in owners {
            if let Some(decision) = self.owners.get_mut(owner) {
                decision.since = now;
            }
        }
        // Earlier hits belong to the previous setting.
        self.tallies.take(|pid| owners.contains(of.get(&pid).unwrap_or(&STRANGERS)));
    }

    /// The owner with the most reduced probes, and its budget.
    pub(super) fn least(&self) -> Option<(u32, &ProbeBudget)> {
        let all = self.owners.iter().map(|(owner, decision)| (*owner, &decision.budget));
        all.min_by_key(|(owner, budget)| (what_is_left(budget.level()), *owner))
    }

    /// When the next reading is due, if any is.
    pub(super) fn due(&self) -> Option<Instant> {
        let look = self.last.is_busy.then(|| self.last.at + LOOK_EVERY)?;
        Some(self.owners.values().map(OwnerBudget::due).fold(look, Instant::min))
    }

    /// Reads the counters when due, updates the budgets and the shared counters, and returns the
    /// changes.
    pub(super) fn update(
        &mut self,
        now: Instant,
        attaching: &Attaching,
        libraries: &Libraries,
        shared: &Shared,
    ) -> Vec<BudgetChange> {
        let is_wanted = libraries.in_use().next().is_some();
        let is_busy = is_wanted || attaching.detaching() > 0 || !self.owners.is_empty();
        if !self.last.is_busy {
            // There were no hits, and the time until now is not measured.
            (self.last.at, self.last.is_busy) = (now, is_busy);
            return Vec::new();
        }
        if self.due().is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.tallies.update(attaching.hits());
        (self.last.at, self.last.is_busy) = (now, is_busy);
        // Reads BPF maps, so not under the lock.
        let counts = attaching.counts();
        shared.with(|known| known.counts = counts);
        shared.with(|known| self.decide(now, attaching, libraries, &known.quotas))
    }

    /// Updates each due budget with the hits of its owner's processes.
    fn decide(
        &mut self,
        now: Instant,
        attaching: &Attaching,
        libraries: &Libraries,
        quotas: &Quotas,
    ) -> Vec<BudgetChange> {
        let users = libraries.users().into_iter().map(|process| quotas.owner_of(process.pid));
        let mut present: HashSet<u32> = users.collect();
        // A process without an open device may call a library that others use.
        present.extend(self.tallies.processes().map(|pid| quotas.owner_of(pid)));
        let (budget, recovery) = (self.budget, self.recovery);
        for owner in &present {
            self.owners.entry(*owner).or_insert_with(|| OwnerBudget::new(budget, recovery, now));
        }
        // An owner without processes is removed only once its budget is back at full.
        self.owners.retain(|owner, decision| {
            present.contains(owner) || decision.budget.level() != ProbeLevel::Full
        });
        let mut changes = Vec::new();
        for (owner, decision) in &mut self.owners {
            if now < decision.due() {
                continue;
            }
            let is_one = |pid: u32| quotas.owner_of(pid) == *owner;
            let tallies = self.tallies.take(is_one);
            let passed = now.saturating_duration_since(decision.since);
            decision.since = now;
            // Its last decision is not applied yet.
            if quotas.allowed(*owner) != decision.budget.attach() {
                continue;
            }
            let cost = |(pid, tally): (u32, Tally)| {
                let (stepped, functions) = attaching.stepped_of(libraries, pid);
                (tally.cost(stepped, functions), pid)
            };
            let (hits, busiest) = tallies.into_iter().map(cost).max().unzip();
            let rate = rate(hits.unwrap_or(0).into(), passed);
            decision.budget.update(rate, now);
            if let Some((before, level)) = decision.changed() {
                let libraries = BudgetChange::names(libraries, is_one);
                changes.push(BudgetChange { before, level, rate, budget, busiest, libraries });
            }
        }
        changes
    }
}

impl OwnerBudget {
    fn new(budget: u64, recovery: RecoveryTiming, now: Instant) -> Self {
        let budget = ProbeBudget::new(budget, recovery);
        Self { budget, since: now, reported: ProbeLevel::Full }
    }

    /// When its next measurement ends.
    fn due(&self) -> Instant {
        self.budget.due().unwrap_or(self.since + LOOK_EVERY)
    }

    /// The level before and now, if it changed.
    fn changed(&mut self) -> Option<(ProbeLevel, ProbeLevel)> {
        let level = self.budget.level();
        let before = std::mem::replace(&mut self.reported, level);
        (level != before).then_some((before, level))
    }
}

/// Hits a second of one process.
fn rate(hits: u128, passed: Duration) -> u64 {
    if passed < MIN_PERIOD {
        return 0;
    }
    u64::try_from(hits * 1_000 / passed.as_millis().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::paths::Paths;
    use gpuwho_owners::tenant_files::TenantFiles;

    fn none() -> Libraries {
        let paths = Paths::default();
        Libraries::new(TenantFiles::direct(&paths), &paths)
    }

    #[test]
    fn a_rate_is_of_the_time_with_probes() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(4_000, 2 * second), 2_000);
        assert_eq!(rate(u128::from(u64::MAX), second), u64::MAX);
        // The probes were attached too briefly for a rate.
        assert_eq!(rate(8_000, Duration::from_millis(99)), 0);
    }

    #[test]
    fn without_a_library_nothing_is_due() {
        let now = Instant::now();
        let mut budgets = ProbeBudgets::new(&Settings::default(), now);
        let (attaching, libraries) = (Attaching::new(0), none());
        let shared = Shared::default();
        for second in 1..100 {
            let look = now + second * LOOK_EVERY;
            assert_eq!(budgets.update(look, &attaching, &libraries, &shared), Vec::new());
            assert_eq!(budgets.due(), None);
        }
    }

    #[test]
    fn a_reduced_budget_is_read_each_second_without_users_too() {
        let now = Instant::now();
        let mut budgets = ProbeBudgets::new(&Settings::default(), now);
        let (attaching, libraries) = (Attaching::new(0), none());
        let mut decision = OwnerBudget::new(10, RecoveryTiming::default(), now);
        decision.budget.update(11, now);
        budgets.owners.insert(7, decision);
        budgets.update(now, &attaching, &libraries, &Shared::default());
        assert_eq!(budgets.due(), Some(now + LOOK_EVERY));
        assert_eq!((budgets.attach(7), budgets.attach(8)), (Attach::Entries, Attach::Full));
        assert_eq!(budgets.least().map(|(owner, _)| owner), Some(7));
    }
}
