//! Runs the resolvers for one entry of the table, outside its lock.

use super::Ownership;
use crate::attribute::table::Resolution;
use crate::attribute::{NAMES, PLACES, ProcessAttribution, names};
use gpuwho_model::ids::ProcKey;
use std::collections::BTreeMap;
use std::time::Duration;

/// Repetitions of a resolution. One thread observes and one provides names, so two are enough;
/// facts that the resolvers reject would otherwise repeat it without end.
const MAX_REPEATS: usize = 2;
/// How long a lookup waits for the owner that another thread is resolving: its reads wait for the
/// user database for at most 200 ms.
const FIRST_RESULT: Duration = Duration::from_millis(500);

impl Ownership {
    /// Waits until the processes have an owner or are known to have none, for a limited time.
    pub(super) fn wait_for_first_results(&self, processes: &BTreeMap<u32, ProcKey>) {
        let is_unresolved = || {
            let table = self.read();
            processes.values().any(|process| table.is_unresolved(*process))
        };
        let (mutex, resolved) = &self.0.resolved;
        resolved.wait_while_for(&mut mutex.lock(), |()| is_unresolved(), FIRST_RESULT);
    }

    /// Finds the owner, and repeats that if a provider delivered facts before the entry was
    /// updated, so that the provider could not see that the entry needed them.
    pub(super) fn resolve(&self, resolution: Resolution) {
        let process = resolution.attribution.process;
        self.apply(resolution);
        for _ in 0..MAX_REPEATS {
            let is_behind = |owner: &ProcessAttribution| names::is_behind(&self.0.host, owner);
            let Some(resolution) = self.read().one_to_refresh(process, is_behind) else { return };
            self.apply(resolution);
        }
    }

    /// Runs every resolver in order, then updates the entry.
    fn apply(&self, mut resolution: Resolution) {
        let places = if resolution.placed { &[] } else { PLACES };
        for (_, source) in places.iter().chain(NAMES) {
            source(&self.0.host, &resolution.cgroups, &mut resolution.attribution);
        }
        if let Some(known) = self.attribution(resolution.attribution.process) {
            resolution.attribution.workload.keep_names(&known.workload);
        }
        resolution.attribution.owner =
            self.0.host.owners.of(&resolution.attribution, |uid| self.0.host.users.name(uid));
        let opened_ns = self.write().apply(resolution);
        drop(self.0.resolved.0.lock());
        self.0.resolved.1.notify_all();
        if let Some(opened_ns) = opened_ns {
            let took_ns = self.0.clock.now().saturating_sub(opened_ns);
            let mut latency = self.0.latency.lock();
            latency.observe(took_ns as f64 / 1e9);
        }
    }
}
