//! Limits the CPU time for scanning a process's mappings: the process determines its files, their
//! number and the length of its list.
//!
//! Spent time is forgiven over time. A process may be scanned as long as neither it nor its tenant
//! has spent too much; the scans of one tenant never delay another.

use gpuwho_model::ids::ProcKey;
use gpuwho_owners::tenant_files::FileOwner;
use gpuwho_sys::clock::ThreadClock;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Burst for a process: a Python program with a thousand libraries uses a tenth of it.
const PROCESS_BURST: Duration = Duration::from_millis(250);
/// Sustained rate for a process, per second.
const PROCESS_PER_SECOND: Duration = Duration::from_millis(2);
/// Burst for all processes of a tenant: sixteen ranks that start.
const TENANT_BURST: Duration = Duration::from_secs(1);
/// Sustained rate for a tenant, per second: one per cent of a core.
const TENANT_PER_SECOND: Duration = Duration::from_millis(10);

/// Time spent by process and by tenant.
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

    /// The time that is not forgiven yet, at a rate per second.
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
    /// How long a process may be scanned now; zero if it must wait.
    pub(super) fn allowed(&self, process: ProcKey, now: Instant) -> Duration {
        let Some((tenant, spent)) = self.processes.get(&process) else { return PROCESS_BURST };
        let of_process = PROCESS_BURST.saturating_sub(spent.left(PROCESS_PER_SECOND, now));
        let of_tenant = self.tenants.get(tenant).map_or(TENANT_BURST, |spent| {
            TENANT_BURST.saturating_sub(spent.left(TENANT_PER_SECOND, now))
        });
        of_process.min(of_tenant)
    }

    /// Records the tenant of a process.
    pub(super) fn belongs(&mut self, process: ProcKey, tenant: &FileOwner, now: Instant) {
        let new = || (tenant.clone(), Spent::nothing(now));
        self.processes.entry(process).or_insert_with(new);
    }

    /// Adds time spent on a process.
    pub(super) fn spend(&mut self, process: ProcKey, time: Duration, now: Instant) {
        let Some((tenant, spent)) = self.processes.get_mut(&process) else { return };
        spent.add(time, PROCESS_PER_SECOND, now);
        let of_tenant = self.tenants.entry(tenant.clone()).or_insert_with(|| Spent::nothing(now));
        of_tenant.add(time, TENANT_PER_SECOND, now);
    }

    /// Removes an ended process. Its tenant's time stays until it is forgiven: otherwise a sequence
    /// of short processes would never be limited.
    pub(super) fn remove(&mut self, process: ProcKey, now: Instant) {
        self.processes.remove(&process);
        let processes = &self.processes;
        self.tenants.retain(|tenant, spent| {
            !spent.left(TENANT_PER_SECOND, now).is_zero()
                || processes.values().any(|(of, _)| of == tenant)
        });
    }
}

/// The CPU time of a scan.
pub(super) struct Meter {
    begun: Duration,
    allowed: Duration,
}

impl Meter {
    /// Starts a measurement with a limit.
    pub(super) fn start(allowed: Duration) -> Self {
        Self { begun: ThreadClock::OWN.spent().unwrap_or_default(), allowed }
    }

    /// The time used so far.
    pub(super) fn spent(&self) -> Duration {
        ThreadClock::OWN.spent().unwrap_or_default().saturating_sub(self.begun)
    }

    /// Whether the limit is reached.
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
    fn a_process_over_the_limit_waits_until_enough_is_forgiven() {
        let (mut pace, now) = (ScanBudget::default(), Instant::now());
        pace.belongs(process(1), &FileOwner::named("one"), now);
        assert_eq!(pace.allowed(process(1), now), PROCESS_BURST);
        pace.spend(process(1), PROCESS_BURST + PROCESS_PER_SECOND, now);
        let allowed = |after| pace.allowed(process(1), now + Duration::from_secs(after));
        assert_eq!([0, 1].map(allowed), [Duration::ZERO; 2]);
        assert_eq!(allowed(3), 2 * PROCESS_PER_SECOND);
        assert_eq!(allowed(3_600), PROCESS_BURST);
    }

    #[test]
    fn a_sequence_of_processes_limits_only_their_tenant() {
        let (mut pace, now) = (ScanBudget::default(), Instant::now());
        for pid in 0..4 {
            pace.belongs(process(pid), &FileOwner::named("greedy"), now);
            pace.spend(process(pid), PROCESS_BURST, now);
            pace.remove(process(pid), now);
        }
        pace.belongs(process(9), &FileOwner::named("greedy"), now);
        assert_eq!(pace.allowed(process(9), now), Duration::ZERO);
        pace.belongs(process(10), &FileOwner::named("other"), now);
        assert_eq!(pace.allowed(process(10), now), PROCESS_BURST);
        // Nothing remains of tenants whose time is forgiven.
        let later = now + Duration::from_hours(1);
        for pid in [9, 10] {
            pace.remove(process(pid), later);
        }
        assert_eq!((pace.processes.len(), pace.tenants.len()), (0, 0));
    }
}
