//! Once a second, while a library is in use or something was given up: how often the probes were
//! hit, for how long they were attached, and what the governor says to that. With neither nothing
//! is read and nobody waits for it.

use super::Settings;
use super::attaching::Attaching;
use super::governor::{Attach, Governor, LOOK_EVERY};
use super::libraries::Libraries;
use super::price;
use super::probes::Hold;
use super::shared::Shared;
use crate::paths::Paths;
use gpuwho_common::nccl::{HIT_ENTRY, HIT_RETURN};
use std::time::{Duration, Instant};

/// The governor and what it was told last.
pub(super) struct Governing {
    pub governor: Governor,
    /// A budget was asked for or found out.
    has_budget: bool,
    looked: Looked,
}

/// The counters at the last look.
struct Looked {
    at: Instant,
    hits: u64,
    /// Whether there was something to govern.
    is_busy: bool,
}

impl Governing {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        let budget = settings.budget.unwrap_or(price::budget(price::USUAL));
        Self {
            governor: Governor::new(budget, settings.patience),
            has_budget: settings.budget.is_some(),
            looked: Looked { at: now, hits: 0, is_busy: false },
        }
    }

    /// What is to be attached now.
    pub(super) fn attach(&self) -> Attach {
        self.governor.attach()
    }

    /// When the next look is due, if any is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.looked.is_busy.then(|| self.looked.at + LOOK_EVERY)
    }

    /// Finds out what a hit costs, once, unless a budget was asked for.
    pub(super) fn set_budget(&mut self, attaching: &mut Attaching, paths: &Paths) {
        if self.has_budget {
            return;
        }
        let Some(many) = attaching.many() else { return };
        self.has_budget = true;
        match price::of_a_hit(many, paths) {
            Ok((hit, link)) => {
                attaching.detach(Hold::Many(link));
                self.governor.allow(price::budget(hit));
                let (hit_ns, budget) = (hit.as_nanos(), self.governor.budget());
                tracing::info!(hit_ns, budget, "hits a second and process are allowed");
            }
            Err(error) => tracing::debug!(%error, "the price of a hit is not known"),
        }
    }

    /// Tells the governor the hits, and everybody the counters, when it is time.
    pub(super) fn look(
        &mut self,
        now: Instant,
        attaching: &Attaching,
        libraries: &Libraries,
        shared: &Shared,
    ) {
        let is_wanted = libraries.in_use().next().is_some();
        let is_busy = is_wanted || attaching.detaching() > 0 || !attaching.is_idle();
        if !self.looked.is_busy {
            // Nothing was hit, and the time until now is nobody's.
            (self.looked.at, self.looked.is_busy) = (now, is_busy);
            return;
        }
        let passed = now.duration_since(self.looked.at);
        if passed < LOOK_EVERY {
            return;
        }
        let counts = attaching.counts();
        let place = |counter: u32| counts.get(counter as usize).copied().unwrap_or(0);
        let hits = place(HIT_ENTRY) + place(HIT_RETURN);
        let new = hits.saturating_sub(self.looked.hits);
        self.looked = Looked { at: now, hits, is_busy };
        let is_attached = attaching.is_attached();
        let is_timed = is_attached && attaching.in_force() == Attach::Full;
        let callers = shared.with(|known| {
            let ns = u64::try_from(passed.as_nanos()).unwrap_or(0);
            let [entries, returns] = &mut known.attached_ns;
            if is_wanted {
                known.wanted_ns += ns;
                *entries += if is_attached { ns } else { 0 };
                *returns += if is_timed { ns } else { 0 };
            }
            known.counts = counts;
            known.callers
        });
        if attaching.in_force() == self.governor.attach() {
            let users = libraries.users().len() as u64;
            self.governor.look(rate(new, passed, callers, users), now);
        }
    }
}

/// Hits a second and process. By the processes that have communicators, since those that only map
/// the library, like a job's data loaders, make no calls; until the collector has read who has, by
/// those that map it.
fn rate(hits: u64, passed: Duration, callers: u64, users: u64) -> u64 {
    let processes = if callers == 0 { users.max(1) } else { callers };
    let rate = u128::from(hits) * 1_000 / passed.as_millis().max(1) / u128::from(processes);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_shared_by_those_that_call_and_before_they_are_known_by_those_that_could() {
        let second = Duration::from_secs(1);
        // Eight ranks with eight data loaders each, then before the first reading.
        assert_eq!(rate(8_000, second, 8, 72), 1_000);
        assert_eq!(rate(8_000, second, 0, 8), 1_000);
        assert_eq!(rate(8_000, 2 * second, 0, 0), 4_000);
        assert_eq!(rate(u64::MAX, Duration::ZERO, 1, 1), u64::MAX);
    }

    #[test]
    fn without_a_library_there_is_nothing_to_wait_for() {
        let now = Instant::now();
        let mut governing = Governing::new(&Settings::default(), now);
        let (attaching, libraries) = (Attaching::default(), Libraries::default());
        let shared = Shared::default();
        for second in 1..100 {
            governing.look(now + second * LOOK_EVERY, &attaching, &libraries, &shared);
            assert_eq!(governing.due(), None);
        }
        assert_eq!(shared.with(|known| (known.wanted_ns, known.attached_ns)), (0, [0, 0]));
    }

    #[test]
    fn what_was_given_up_is_looked_at_each_second_also_while_nothing_is_attached() {
        let now = Instant::now();
        let mut governing = Governing::new(&Settings::default(), now);
        let (mut attaching, libraries) = (Attaching::default(), Libraries::default());
        assert!(attaching.enforce(Attach::Nothing, &libraries));
        governing.look(now, &attaching, &libraries, &Shared::default());
        assert_eq!(governing.due(), Some(now + LOOK_EVERY));
    }
}
