//! How much of a processor may be spent on looking at what a process maps: its files, their
//! number and the length of its list of mappings are its own choice.
//!
//! What was spent is forgotten with time. A process may be looked at as long as neither it nor
//! the tenant it belongs to has spent too much; the looks of one tenant never keep another
//! waiting.

use crate::ids::ProcKey;
use crate::sys::clock::ThreadClock;
use crate::tenant_files::FileOwner;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A process at once: a Python program with a thousand libraries takes a tenth of it.
const PROCESS_AT_ONCE: Duration = Duration::from_millis(250);
/// And later, in a second.
const PROCESS_LATER: Duration = Duration::from_millis(2);
/// All processes of a tenant at once: sixteen ranks that begin.
const TENANT_AT_ONCE: Duration = Duration::from_secs(1);
/// And later, in a second: one per cent of a core.
const TENANT_LATER: Duration = Duration::from_millis(10);

/// What was spent on whom.
#[derive(Debug, Default)]
pub(super) struct ScanBudget {
    processes: HashMap<ProcKey, (FileOwner, Spent)>,
    tenants: HashMap<FileOwner, Spent>,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl Spent {
    fn nothing(now: Instant) -> Self {
        Self { time: Duration::ZERO, at: now }
    }

    /// What is not forgotten yet, when so much is in a second.
    fn left(self, a_second: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        self.time.saturating_sub(passed.mul_f64(a_second.as_secs_f64()))
    }

    fn add(&mut self, time: Duration, a_second: Duration, now: Instant) {
        let left = self.left(a_second, now);
        *self = Self { time: left + time, at: self.at.max(now) };
    }
}

impl ScanBudget {
    /// How long may be spent on a process now; nothing where it must wait.
    pub(super) fn allowed(&self, process: ProcKey, now: Instant) -> Duration {
        let Some((tenant, spent)) = self.processes.get(&process) else { return PROCESS_AT_ONCE };
        let of_process = PROCESS_AT_ONCE.saturating_sub(spent.left(PROCESS_LATER, now));
        let of_tenant = self.tenants.get(tenant).map_or(TENANT_AT_ONCE, |spent| {
            TENANT_AT_ONCE.saturating_sub(spent.left(TENANT_LATER, now))
        });
        of_process.min(of_tenant)
    }

    /// A process is the tenant's.
    pub(super) fn belongs(&mut self, process: ProcKey, tenant: &FileOwner, now: Instant) {
        let new = || (tenant.clone(), Spent::nothing(now));
        self.processes.entry(process).or_insert_with(new);
    }

    /// So much was spent on a process.
    pub(super) fn spend(&mut self, process: ProcKey, time: Duration, now: Instant) {
        let Some((tenant, spent)) = self.processes.get_mut(&process) else { return };
        spent.add(time, PROCESS_LATER, now);
        let of_tenant = self.tenants.entry(tenant.clone()).or_insert_with(|| Spent::nothing(now));
        of_tenant.add(time, TENANT_LATER, now);
    }

    /// It has ended. What its tenant has spent stays until it is forgotten: else one process after
    /// the other would be as new.
    pub(super) fn remove(&mut self, process: ProcKey, now: Instant) {
        self.processes.remove(&process);
        let processes = &self.processes;
        self.tenants.retain(|tenant, spent| {
            !spent.left(TENANT_LATER, now).is_zero()
                || processes.values().any(|(of, _)| of == tenant)
        });
    }
}

/// What a look takes of a processor.
pub(super) struct Meter {
    begun: Duration,
    allowed: Duration,
}

impl Meter {
    /// From now on, so much may be taken.
    pub(super) fn start(allowed: Duration) -> Self {
        Self { begun: ThreadClock::OWN.spent().unwrap_or_default(), allowed }
    }

    /// So much was taken.
    pub(super) fn spent(&self) -> Duration {
        ThreadClock::OWN.spent().unwrap_or_default().saturating_sub(self.begun)
    }

    /// Whether it was enough.
    pub(super) fn is_over(&self) -> bool {
        self.spent() >= self.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcKey {
        ProcKey { pid, start_ticks: 7 }
    }

    #[test]
    fn who_has_spent_what_is_allowed_waits_until_enough_is_forgotten() {
        let (mut pace, now) = (ScanBudget::default(), Instant::now());
        pace.belongs(process(1), &FileOwner::named("one"), now);
        assert_eq!(pace.allowed(process(1), now), PROCESS_AT_ONCE);
        pace.spend(process(1), PROCESS_AT_ONCE + PROCESS_LATER, now);
        let allowed = |after| pace.allowed(process(1), now + Duration::from_secs(after));
        assert_eq!([0, 1].map(allowed), [Duration::ZERO; 2]);
        assert_eq!(allowed(3), 2 * PROCESS_LATER);
        assert_eq!(allowed(3_600), PROCESS_AT_ONCE);
    }

    #[test]
    fn a_tenant_with_many_processes_one_after_the_other_waits_and_no_other_tenant_does() {
        let (mut pace, now) = (ScanBudget::default(), Instant::now());
        for pid in 0..4 {
            pace.belongs(process(pid), &FileOwner::named("greedy"), now);
            pace.spend(process(pid), PROCESS_AT_ONCE, now);
            pace.remove(process(pid), now);
        }
        pace.belongs(process(9), &FileOwner::named("greedy"), now);
        assert_eq!(pace.allowed(process(9), now), Duration::ZERO);
        pace.belongs(process(10), &FileOwner::named("other"), now);
        assert_eq!(pace.allowed(process(10), now), PROCESS_AT_ONCE);
        // And nothing is kept of those who have paid.
        let later = now + Duration::from_hours(1);
        for pid in [9, 10] {
            pace.remove(process(pid), later);
        }
        assert_eq!((pace.processes.len(), pace.tenants.len()), (0, 0));
    }
}
