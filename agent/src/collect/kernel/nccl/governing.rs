//! Once a second, while a library is in use or something was given up: how often the probes were
//! hit, what that has cost, and what the governor says to it. There is one governor for all libraries,
//! since a process may have loaded several, and the process that pays most is the one it goes by.
//! With nothing in use nothing is read and nobody waits for it.

use super::Settings;
use super::attaching::Attaching;
use super::busiest::Busiest;
use super::change::Change;
use super::governor::{Attach, Governor, LOOK_EVERY};
use super::libraries::Libraries;
use super::price::{self, Hits, Price};
use super::runs::Runner;
use super::shared::Shared;
use crate::catalog::nccl::GovernorLevel;
use crate::paths::Paths;
use gpuwho_common::nccl::COUNTERS;
use std::time::{Duration, Instant};

/// Attached for less than this, a rate is none.
const SHORTEST: Duration = Duration::from_millis(100);

/// The governor and what it was told last.
pub(super) struct Governing {
    pub governor: Governor,
    paths: Paths,
    /// The operator has set the budget.
    is_asked: bool,
    is_tried: bool,
    price: Price,
    runner: Runner,
    busiest: Busiest,
    looked: Looked,
    /// Level and cycle that were told.
    told: (GovernorLevel, u32),
}

/// The counters at the last look.
struct Looked {
    at: Instant,
    hits: Hits,
    /// For how long entries had been attached.
    attached: Duration,
    /// Whether there was something to govern.
    is_busy: bool,
}

impl Governing {
    pub(super) fn new(settings: &Settings, paths: &Paths, now: Instant) -> Self {
        let budget = settings.budget.unwrap_or(price::USUAL.budget());
        let hits = Hits::of(&[0; COUNTERS as usize]);
        Self {
            governor: Governor::new(budget, settings.patience),
            paths: paths.clone(),
            is_asked: settings.budget.is_some(),
            is_tried: false,
            price: price::USUAL,
            runner: Runner::default(),
            busiest: Busiest::default(),
            looked: Looked { at: now, hits, attached: Duration::ZERO, is_busy: false },
            told: (GovernorLevel::Full, 1),
        }
    }

    /// What is to be attached now.
    pub(super) fn attach(&self) -> Attach {
        self.governor.attach()
    }

    /// When the next look is due, if any is.
    pub(super) fn due(&self) -> Option<Instant> {
        let look = self.looked.is_busy.then(|| self.looked.at + LOOK_EVERY)?;
        Some(self.governor.due().map_or(look, |phase| phase.min(look)))
    }

    /// Finds out what hits cost, once, and from that the budget, unless one was asked for.
    pub(super) fn set_price(&mut self, attaching: &mut Attaching, libraries: &Libraries) {
        if self.is_tried || !attaching.may_try(libraries) {
            return;
        }
        let Some(many) = attaching.many() else { return };
        self.is_tried = true;
        match price::tried(many, &self.paths) {
            Ok((found, links)) => {
                attaching.end_trial(links, price::TRIED_RETURNS);
                self.price = found;
                self.allow();
                let budget = self.governor.budget();
                let ns = |time: Duration| time.as_nanos();
                let (entry_ns, stepped_ns) = (ns(found.entry), ns(found.stepped));
                let return_ns = ns(found.returned);
                tracing::info!(
                    entry_ns,
                    stepped_ns,
                    return_ns,
                    budget,
                    "hits a second and process are allowed"
                );
            }
            Err(error) => tracing::debug!(%error, "the price of a hit is not known"),
        }
    }

    fn allow(&mut self) {
        if !self.is_asked {
            self.governor.allow(self.price.budget());
        }
    }

    /// Tells the governor the hits, and everybody the counters, when it is time; gives what that has
    /// changed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        attaching: &Attaching,
        libraries: &Libraries,
        shared: &Shared,
    ) -> Option<Change> {
        let is_wanted = libraries.in_use().next().is_some();
        let is_busy = is_wanted || attaching.detaching() > 0 || !attaching.is_idle();
        if !self.looked.is_busy {
            // Nothing was hit, and the time until now is nobody's.
            (self.looked.at, self.looked.is_busy) = (now, is_busy);
            return None;
        }
        let phase_is_over = self.governor.due().is_some_and(|due| now >= due);
        if now.duration_since(self.looked.at) < LOOK_EVERY && !phase_is_over {
            return None;
        }
        let counts = attaching.counts();
        let hits = Hits::of(&counts);
        let new = hits.since(&self.looked.hits);
        let is_hit = new.entries() > 0;
        if let Some(program) = self.runner.look(now, is_hit, || attaching.runs(&self.paths)) {
            self.price.program = program;
            self.allow();
        }
        let (paid_ns, dearest) = self.price.paid(&new, &attaching.stepped(libraries));
        let price = self.price;
        let [attached, _] = shared.with(|known| {
            known.counts = counts;
            known.price = price;
            known.paid_ns += paid_ns;
            known.covers.any(now).attached
        });
        let busiest = self.busiest.look(attaching.hits());
        let passed = attached.saturating_sub(self.looked.attached);
        self.looked = Looked { at: now, hits, attached, is_busy };
        if attaching.in_force() != self.governor.attach() {
            return None;
        }
        // What its returns have cost is its part of what all have: the programs count them together.
        let plain = busiest.of(paid_ns) / price.plain().as_nanos().max(1);
        let rate = rate(plain, passed);
        self.governor.look(rate, now);
        self.changed(rate, (busiest.pid, dearest), libraries)
    }

    /// What is worth saying: another level, or a cycle of twice or half the length.
    fn changed(
        &mut self,
        rate: u64,
        (busiest, dearest): (Option<u32>, Option<&'static str>),
        libraries: &Libraries,
    ) -> Option<Change> {
        let (level, cycle) = (self.governor.level(), self.governor.cycle());
        let (before, cycle_before) = self.told;
        let is_alike = cycle < 2 * cycle_before && cycle_before < 2 * cycle;
        if level == before && is_alike {
            return None;
        }
        self.told = (level, cycle);
        Some(Change {
            before,
            level,
            cycle,
            rate,
            budget: self.governor.budget(),
            price: self.price,
            busiest,
            dearest,
            libraries: Change::names(libraries),
        })
    }
}

/// Plain hits a second of one process.
fn rate(hits: u128, passed: Duration) -> u64 {
    if passed < SHORTEST {
        return 0;
    }
    u64::try_from(hits * 1_000 / passed.as_millis().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut governing = Governing::new(&Settings::default(), &Paths::default(), now);
        let (attaching, libraries) = (Attaching::new(0), none());
        let shared = Shared::default();
        for second in 1..100 {
            let look = now + second * LOOK_EVERY;
            assert!(governing.look(look, &attaching, &libraries, &shared).is_none());
            assert_eq!(governing.due(), None);
        }
        assert_eq!(shared.with(|known| known.paid_ns), 0);
    }

    #[test]
    fn what_was_given_up_is_looked_at_each_second_also_while_nothing_is_attached() {
        let now = Instant::now();
        let mut governing = Governing::new(&Settings::default(), &Paths::default(), now);
        let (mut attaching, libraries) = (Attaching::new(0), none());
        assert!(attaching.enforce(Attach::Nothing, &libraries).is_some());
        governing.look(now, &attaching, &libraries, &Shared::default());
        assert_eq!(governing.due(), Some(now + LOOK_EVERY));
    }
}
