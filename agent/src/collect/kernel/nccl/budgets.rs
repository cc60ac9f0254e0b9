//! Once a second, while a library is in use or something was given up: how often the probes were
//! hit, and what the governors say to it. There is one for the processes of each
//! owner, over all libraries, since a process may have loaded several; the process that makes most is
//! the one it goes by. With nothing in use nothing is read and nobody waits for it.

use super::Settings;
use super::attaching::Attaching;
use super::budget::{Attach, LOOK_EVERY, Patience, ProbeBudget};
use super::change::{BudgetChange, what_is_left};
use super::libraries::Libraries;
use super::quota::Quotas;
use super::shared::Shared;
use super::tally::{Tallies, Tally};
use crate::catalog::nccl::GovernorLevel;
use gpuwho_common::nccl::STRANGERS;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Attached for less than this, a rate is none.
const SHORTEST: Duration = Duration::from_millis(100);

/// The governors and what they were told last.
pub(super) struct ProbeBudgets {
    budget: u64,
    patience: Patience,
    owners: HashMap<u32, OwnerBudget>,
    tallies: Tallies,
    looked: CounterSample,
}

/// The governor of an owner's processes.
struct OwnerBudget {
    budget: ProbeBudget,
    /// From when on its hits are counted: the last look, or when what it says came into force.
    since: Instant,
    /// Level and cycle that were told.
    reported: (GovernorLevel, u32),
}

/// The counters at the last look.
struct CounterSample {
    at: Instant,
    /// Whether there was something to govern.
    is_busy: bool,
}

impl ProbeBudgets {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            budget: settings.budget,
            patience: settings.patience,
            owners: HashMap::new(),
            tallies: Tallies::default(),
            looked: CounterSample { at: now, is_busy: false },
        }
    }

    /// Hits a second and process that are allowed.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// What an owner's processes are to be allowed now.
    pub(super) fn attach(&self, owner: u32) -> Attach {
        self.owners.get(&owner).map_or(Attach::Full, |decision| decision.budget.attach())
    }

    /// The same of all owners with a governor.
    pub(super) fn all(&self) -> Vec<(u32, Attach)> {
        let all = self.owners.iter();
        all.map(|(owner, decision)| (*owner, decision.budget.attach())).collect()
    }

    /// What it says of these owners is in force from now on.
    pub(super) fn enforced(&mut self, owners: &[u32], of: &HashMap<u32, u32>) {
        let now = Instant::now();
        for owner in owners {
            if let Some(decision) = self.owners.get_mut(owner) {
                decision.since = now;
            }
        }
        // What was hit before is of another time.
        self.tallies.take(|pid| owners.contains(of.get(&pid).unwrap_or(&STRANGERS)));
    }

    /// The owner of whose processes least is seen, and its governor.
    pub(super) fn least(&self) -> Option<(u32, &ProbeBudget)> {
        let all = self.owners.iter().map(|(owner, decision)| (*owner, &decision.budget));
        all.min_by_key(|(owner, governor)| {
            (what_is_left(governor.level()), u32::MAX - governor.cycle(), *owner)
        })
    }

    /// When the next look is due, if any is.
    pub(super) fn due(&self) -> Option<Instant> {
        let look = self.looked.is_busy.then(|| self.looked.at + LOOK_EVERY)?;
        Some(self.owners.values().map(OwnerBudget::due).fold(look, Instant::min))
    }

    /// Tells the governors the hits, and everybody the counters, when it is time; gives what that has
    /// changed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        attaching: &Attaching,
        libraries: &Libraries,
        shared: &Shared,
    ) -> Vec<BudgetChange> {
        let is_wanted = libraries.in_use().next().is_some();
        let is_busy = is_wanted || attaching.detaching() > 0 || !self.owners.is_empty();
        if !self.looked.is_busy {
            // Nothing was hit, and the time until now is nobody's.
            (self.looked.at, self.looked.is_busy) = (now, is_busy);
            return Vec::new();
        }
        if self.due().is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.tallies.look(attaching.hits());
        (self.looked.at, self.looked.is_busy) = (now, is_busy);
        // Reads the kernel's maps: not under the lock.
        let counts = attaching.counts();
        shared.with(|known| known.counts = counts);
        shared.with(|known| self.decide(now, (attaching, libraries), &known.quotas))
    }

    /// Tells each governor whose time has come the hits of its owner's processes.
    fn decide(
        &mut self,
        now: Instant,
        (attaching, libraries): (&Attaching, &Libraries),
        quotas: &Quotas,
    ) -> Vec<BudgetChange> {
        let users = libraries.users().into_iter().map(|process| quotas.owner_of(process.pid));
        let mut present: HashSet<u32> = users.collect();
        // Who holds no device may call a library that others use.
        present.extend(self.tallies.processes().map(|pid| quotas.owner_of(pid)));
        let (budget, patience) = (self.budget, self.patience);
        for owner in &present {
            self.owners.entry(*owner).or_insert_with(|| OwnerBudget::new(budget, patience, now));
        }
        // What was given up comes back first.
        self.owners.retain(|owner, decision| {
            present.contains(owner) || decision.budget.level() != GovernorLevel::Full
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
            // What it has said is not done yet.
            if quotas.allowed(*owner) != decision.budget.attach() {
                continue;
            }
            let cost = |(pid, tally): (u32, Tally)| {
                (tally.cost(attaching.stepped_of(libraries, pid)), pid)
            };
            let (hits, busiest) = tallies.into_iter().map(cost).max().unzip();
            let rate = rate(hits.unwrap_or(0).into(), passed);
            decision.budget.look(rate, now);
            if let Some((before, level)) = decision.changed() {
                let libraries = BudgetChange::names(libraries, is_one);
                let cycle = decision.budget.cycle();
                changes.push(BudgetChange {
                    before,
                    level,
                    cycle,
                    rate,
                    budget,
                    busiest,
                    libraries,
                });
            }
        }
        changes
    }
}

impl OwnerBudget {
    fn new(budget: u64, patience: Patience, now: Instant) -> Self {
        let governor = ProbeBudget::new(budget, patience);
        Self { budget: governor, since: now, reported: (GovernorLevel::Full, 1) }
    }

    /// When it is to be told the hits.
    fn due(&self) -> Instant {
        self.budget.due().unwrap_or(self.since + LOOK_EVERY)
    }

    /// Level before and now, where that is worth saying: another one, or a cycle of twice or half the
    /// length.
    fn changed(&mut self) -> Option<(GovernorLevel, GovernorLevel)> {
        let (level, cycle) = (self.budget.level(), self.budget.cycle());
        let (before, cycle_before) = self.reported;
        let is_alike = cycle < 2 * cycle_before && cycle_before < 2 * cycle;
        if level == before && is_alike {
            return None;
        }
        self.reported = (level, cycle);
        Some((before, level))
    }
}

/// Hits a second of one process.
fn rate(hits: u128, passed: Duration) -> u64 {
    if passed < SHORTEST {
        return 0;
    }
    u64::try_from(hits * 1_000 / passed.as_millis().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;
    use crate::tenant_files::TenantFiles;

    fn none() -> Libraries {
        let paths = Paths::default();
        Libraries::new(TenantFiles::direct(&paths), &paths)
    }

    #[test]
    fn a_rate_is_of_the_time_with_probes() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(4_000, 2 * second), 2_000);
        assert_eq!(rate(u128::from(u64::MAX), second), u64::MAX);
        // A moment with probes tells nothing.
        assert_eq!(rate(8_000, Duration::from_millis(99)), 0);
    }

    #[test]
    fn without_a_library_there_is_nothing_to_wait_for() {
        let now = Instant::now();
        let mut budgets = ProbeBudgets::new(&Settings::default(), now);
        let (attaching, libraries) = (Attaching::new(0), none());
        let shared = Shared::default();
        for second in 1..100 {
            let look = now + second * LOOK_EVERY;
            assert_eq!(budgets.look(look, &attaching, &libraries, &shared), Vec::new());
            assert_eq!(budgets.due(), None);
        }
    }

    #[test]
    fn what_was_given_up_is_looked_at_each_second_also_while_nobody_uses_a_library() {
        let now = Instant::now();
        let mut budgets = ProbeBudgets::new(&Settings::default(), now);
        let (attaching, libraries) = (Attaching::new(0), none());
        let mut decision = OwnerBudget::new(10, Patience::default(), now);
        decision.budget.look(11, now);
        budgets.owners.insert(7, decision);
        budgets.look(now, &attaching, &libraries, &Shared::default());
        assert_eq!(budgets.due(), Some(now + LOOK_EVERY));
        assert_eq!((budgets.attach(7), budgets.attach(8)), (Attach::Entries, Attach::Full));
        assert_eq!(budgets.least().map(|(owner, _)| owner), Some(7));
    }
}
