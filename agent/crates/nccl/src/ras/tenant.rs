//! The tenant of a process that answers. Its answers are trusted only about processes of the same
//! user and the same owner. Membership in a communicator proves nothing: any process can load a
//! modified library that claims it, and any process in the network can read the hash from NCCL
//! itself.

use super::answer::LocalNames;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The tenant of an answering process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Speaker {
    /// A user within a pod's container, a job, a service or their own slice.
    Owner {
        /// Real user id.
        uid: u32,
        /// The owner that the process's use of devices is attributed to.
        owner: OwnerId,
    },
    /// A process of unknown owner is its own tenant.
    Process(ProcKey),
}

impl Speaker {
    /// The tenant of a process.
    pub(super) fn of(process: ProcKey, aggregator: &EventAggregator) -> Self {
        match aggregator.owner(process) {
            Some(owner) if owner.owner > OwnerId::OTHER => {
                Self::Owner { uid: owner.uid, owner: owner.owner }
            }
            _ => Self::Process(process),
        }
    }

    /// Its user, if known.
    pub(super) fn uid(self) -> Option<u32> {
        match self {
            Self::Owner { uid, .. } => Some(uid),
            Self::Process(_) => None,
        }
    }
}

/// The sender of an answer, with the processes about which it is trusted.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub tenant: Speaker,
    /// The processes that have the connection open.
    pub answering: Vec<ProcKey>,
    /// All processes of the tenant on this node.
    pub trusted: HashSet<ProcKey>,
    /// By their NCCL names in this network.
    pub here: LocalNames,
    /// Its PID namespace is the agent's.
    pub sees_host_pids: bool,
}

/// Each tenant gets a quarter of the thread's time: after a query it pauses three times as long as
/// the query took, which is a minute after the longest.
const PAUSE: u32 = 3;
/// A tenant that owes at most this much is still served, because several looks happen together when
/// a job starts.
const CREDIT: Duration = Duration::from_secs(1);
/// Events of a tenant per [`WINDOW`]; more than a node's processes.
const MAX_EVENTS: u32 = 16;
const WINDOW: Duration = Duration::from_mins(1);

/// Usage of the thread by tenant.
#[derive(Debug, Default)]
pub(super) struct Accounts(HashMap<Speaker, Account>);

#[derive(Debug)]
struct Account {
    free_at: Instant,
    served_at: Option<Instant>,
    events: u32,
    window: Instant,
}

impl Accounts {
    /// Whether a tenant may be served now.
    pub(super) fn is_free(&self, tenant: Speaker, now: Instant) -> bool {
        self.0.get(&tenant).is_none_or(|account| account.free_at <= now + CREDIT)
    }

    /// Time of the last query: tenants are served in this order.
    pub(super) fn served_at(&self, tenant: Speaker) -> Option<Instant> {
        self.0.get(&tenant)?.served_at
    }

    /// Adds time spent on a tenant.
    pub(super) fn charge(&mut self, tenant: Speaker, now: Instant, spent: Duration) {
        let account = self.account(tenant, now);
        account.free_at = account.free_at.max(now) + spent.saturating_mul(PAUSE);
    }

    /// Records the time of a query.
    pub(super) fn serve(&mut self, tenant: Speaker, now: Instant) {
        self.account(tenant, now).served_at = Some(now);
    }

    /// Whether one more event of a tenant may be reported now.
    pub(super) fn allows_event(&mut self, tenant: Speaker, now: Instant) -> bool {
        let account = self.account(tenant, now);
        if now.saturating_duration_since(account.window) >= WINDOW {
            (account.window, account.events) = (now, 0);
        }
        account.events = account.events.saturating_add(1);
        account.events <= MAX_EVENTS
    }

    /// Removes tenants that are gone and owe nothing.
    pub(super) fn retain(&mut self, now: Instant, is_there: impl Fn(Speaker) -> bool) {
        self.0.retain(|tenant, account| {
            let is_settled = account.free_at <= now && account.window + WINDOW <= now;
            !is_settled || is_there(*tenant)
        });
    }

    fn account(&mut self, tenant: Speaker, now: Instant) -> &mut Account {
        let new = || Account { free_at: now, served_at: None, events: 0, window: now };
        self.0.entry(tenant).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Speaker = Speaker::Process(ProcKey { pid: 1, start_ticks: 1 });
    const OTHER: Speaker = Speaker::Process(ProcKey { pid: 2, start_ticks: 1 });

    #[test]
    fn a_tenant_gets_a_quarter_of_the_time_and_delays_no_other() {
        let (mut accounts, now) = (Accounts::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        accounts.charge(ONE, now, Duration::from_secs(20));
        assert!(!accounts.is_free(ONE, after(58)) && accounts.is_free(OTHER, now));
        assert!(accounts.is_free(ONE, after(59)));
        // Short looks add up.
        for _ in 0..300 {
            accounts.charge(OTHER, now, Duration::from_millis(1));
        }
        assert!(accounts.is_free(OTHER, now));
        accounts.charge(OTHER, now, Duration::from_millis(50));
        assert!(!accounts.is_free(OTHER, now));
        accounts.charge(ONE, now, Duration::from_secs(20));
        accounts.retain(after(100), |_| false);
        assert_eq!(accounts.0.keys().copied().collect::<Vec<_>>(), [ONE], "it still owes");
    }

    #[test]
    fn events_of_a_tenant_are_limited_each_minute() {
        let (mut accounts, now) = (Accounts::default(), Instant::now());
        let mut reported = |tenant, after| {
            (0..100)
                .filter(|_| accounts.allows_event(tenant, now + Duration::from_secs(after)))
                .count()
        };
        assert_eq!(
            (reported(ONE, 0), reported(ONE, 59), reported(OTHER, 59), reported(ONE, 60)),
            (16, 0, 16, 16)
        );
    }
}
