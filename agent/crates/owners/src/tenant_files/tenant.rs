//! The tenant to which reads of a process are charged, before the process is attributed.

use gpuwho_model::ids::ProcKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process's tenant is not looked for again: one search reads some hundred files of a
/// process, and several sources look at a new one. Who moves a process, or changes its user, may have
/// its reads charged to the tenant before for so long.
const RECENT: Duration = Duration::from_secs(15);
/// Processes whose tenant is kept.
const MAX_RECENT: usize = 1_024;

/// The tenant that owns the file systems for which a read may wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileOwner(Arc<str>);

impl FileOwner {
    /// The operator's own directories.
    pub fn operator() -> Self {
        Self(Arc::from("the operator"))
    }

    /// A process's lock on its mappings.
    pub(super) fn mappings(process: ProcKey) -> Self {
        Self(Arc::from(format!("process {process}'s mappings")))
    }

    /// A tenant by name.
    pub fn named(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl fmt::Display for FileOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The tenants of processes that were read a moment ago. That the process is still the same, the
/// helper checks that reads of it.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentTenants(Arc<Mutex<HashMap<ProcKey, (FileOwner, Instant)>>>);

impl RecentTenants {
    /// The tenant of a process; `find` reads it.
    pub(super) fn get(
        &self,
        process: ProcKey,
        find: impl FnOnce() -> Option<FileOwner>,
    ) -> Option<FileOwner> {
        self.get_at(Instant::now(), process, find)
    }

    fn get_at(
        &self,
        now: Instant,
        process: ProcKey,
        find: impl FnOnce() -> Option<FileOwner>,
    ) -> Option<FileOwner> {
        // Whole whatever panicked beside it; not held while a tenant is looked for.
        let all = || self.0.lock();
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < RECENT;
        let known = all().get(&process).filter(|(_, at)| is_recent(at)).cloned();
        if let Some((tenant, _)) = known {
            return Some(tenant);
        }
        let tenant = find()?;
        let mut all = all();
        if all.len() >= MAX_RECENT {
            all.retain(|_, (_, at)| is_recent(at));
        }
        if all.len() < MAX_RECENT {
            all.insert(process, (tenant.clone(), now));
        }
        Some(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_looked_for_once_in_a_while_and_few_are_kept() {
        let (recent, now) = (RecentTenants::default(), Instant::now());
        let process = |pid| ProcKey { pid, start_ticks: 1 };
        let find = |name: &'static str| move || Some(FileOwner::named(name));
        let never = || panic!("looked for");
        assert_eq!(recent.get_at(now, process(1), || None), None);
        assert_eq!(recent.get_at(now, process(1), find("one")), Some(FileOwner::named("one")));
        let soon = now + RECENT / 2;
        assert_eq!(recent.get_at(soon, process(1), never), Some(FileOwner::named("one")));
        let other = ProcKey { pid: 1, start_ticks: 2 };
        assert_eq!(recent.get_at(soon, other, find("two")), Some(FileOwner::named("two")));
        let later = now + RECENT;
        assert_eq!(recent.get_at(later, process(1), find("moved")).unwrap().to_string(), "moved");
        for pid in 0..2_000 {
            recent.get_at(later, process(pid), find("many"));
        }
        assert!(recent.0.lock().len() <= MAX_RECENT);
    }
}
