//! Reports a change of an owner's probe budget once: in the log, and as an event for consumers that
//! scale rates by coverage.

use crate::probe::libraries::Libraries;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::catalog::nccl::ProbeLevel;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{
    BudgetDecision, EventSource, Moment, Named, Observation, Place, Severity,
};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Libraries that are named; a host has one or two in use.
const MAX_NAMED: usize = 4;

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct BudgetChange {
    pub before: ProbeLevel,
    pub level: ProbeLevel,
    /// Hits a second and process: measured, and allowed.
    pub rate: u64,
    pub budget: u64,
    /// The process with the most hits.
    pub busiest: Option<u32>,
    /// Paths and versions.
    pub libraries: (String, String),
}

impl BudgetChange {
    /// Paths and versions of the libraries that some processes use.
    pub(super) fn names(libraries: &Libraries, is_one: impl Fn(u32) -> bool) -> (String, String) {
        let mut all: Vec<(Arc<str>, Arc<str>)> = libraries
            .in_use()
            .filter(|(_, library)| library.users.keys().any(|user| is_one(user.pid)))
            .map(|(_, library)| (library.path(), Arc::clone(&library.exports.version)))
            .collect();
        all.sort_unstable();
        all.truncate(MAX_NAMED);
        let (paths, mut versions): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        versions.dedup();
        (paths.join(", "), versions.join(", "))
    }

    /// Logs the change and emits the event.
    pub(in super::super) fn log(self, aggregator: Option<&EventAggregator>) {
        let (level, budget) = (self.level.as_str(), self.budget);
        let (before, rate) = (self.before.as_str(), self.rate);
        let libraries = &self.libraries.0;
        tracing::warn!(
            before,
            level,
            rate,
            budget,
            busiest = self.busiest,
            libraries,
            "the probe budget changed what is attached"
        );
        if let Some(aggregator) = aggregator {
            let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
            aggregator.take(self.observation(), at, EventSource::ProbeBudget, Instant::now());
        }
    }

    fn observation(self) -> Observation {
        let seen = match self.level {
            ProbeLevel::Full | ProbeLevel::Off => "calls are counted and timed",
            ProbeLevel::Entries => "calls are counted, durations are not seen",
            ProbeLevel::Detached => "calls are not counted for some minutes",
        };
        let (rate, budget) = (self.rate, self.budget);
        let message = format!("{seen}: {rate} hits a second and process, {budget} allowed");
        let less = what_is_left(self.level) < what_is_left(self.before);
        let severity = if less { Severity::Warning } else { Severity::Info };
        let decision = BudgetDecision {
            before: self.before,
            level: self.level,
            rate,
            budget,
            libraries: self.libraries.0.into(),
            versions: self.libraries.1.into(),
        };
        let reported =
            Observation::new(EventKind::ProbeLevelChange, Place::Host, severity, message);
        let process = self.busiest.map(Named::pid);
        Observation { process, decision: Some(Box::new(decision)), ..reported }
    }
}

/// Orders the levels by how much is seen.
pub(super) fn what_is_left(level: ProbeLevel) -> u8 {
    match level {
        ProbeLevel::Off | ProbeLevel::Detached => 0,
        ProbeLevel::Entries => 1,
        ProbeLevel::Full => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(before: ProbeLevel, level: ProbeLevel) -> BudgetChange {
        BudgetChange {
            before,
            level,
            rate: 40_000,
            budget: 13_333,
            busiest: Some(77),
            libraries: ("/usr/lib/libnccl.so.2".into(), "2.29.7".into()),
        }
    }

    #[test]
    fn an_event_names_library_step_rate_and_budget() {
        let reported = change(ProbeLevel::Entries, ProbeLevel::Detached).observation();
        assert_eq!(
            reported,
            Observation {
                process: Some(Named::pid(77)),
                decision: Some(Box::new(BudgetDecision {
                    before: ProbeLevel::Entries,
                    level: ProbeLevel::Detached,
                    rate: 40_000,
                    budget: 13_333,
                    libraries: "/usr/lib/libnccl.so.2".into(),
                    versions: "2.29.7".into(),
                })),
                ..Observation::new(
                    EventKind::ProbeLevelChange,
                    Place::Host,
                    Severity::Warning,
                    "calls are not counted for some minutes: 40000 hits a second and process, \
                     13333 allowed"
                )
            }
        );
    }

    #[test]
    fn a_higher_level_is_not_a_warning() {
        let back = change(ProbeLevel::Detached, ProbeLevel::Entries).observation();
        assert_eq!(back.severity, Severity::Info);
    }
}
