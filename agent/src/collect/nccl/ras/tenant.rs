//! On whose behalf a process speaks. What it says is believed of processes of the same user and the
//! same owner alone. That a process is in a communicator proves nothing: anybody can make a library
//! that says so, and whoever shares a network can read the hash from NCCL itself.

use super::answer::LocalNames;
use crate::attribute::owner::OwnerId;
use crate::event::aggregator::EventAggregator;
use crate::ids::ProcKey;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Speaker {
    /// A user within a pod's container, a job, a service or their own slice.
    Owner {
        /// Real user id.
        uid: u32,
        /// The account that the use of devices goes on.
        owner: OwnerId,
    },
    /// A process whose owner is not known: it speaks for itself.
    Process(ProcKey),
}

impl Speaker {
    /// Whose a process is.
    pub(super) fn of(process: ProcKey, desk: &EventAggregator) -> Self {
        match desk.owner(process) {
            Some(owner) if owner.owner > OwnerId::OTHER => {
                Self::Owner { uid: owner.uid, owner: owner.owner }
            }
            _ => Self::Process(process),
        }
    }

    /// Its user, where that is known.
    pub(super) fn uid(self) -> Option<u32> {
        match self {
            Self::Owner { uid, .. } => Some(uid),
            Self::Process(_) => None,
        }
    }
}

/// Who has answered, and of whom it may speak.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub tenant: Speaker,
    /// The processes that hold the connection.
    pub answering: Vec<ProcKey>,
    /// All processes of the tenant on this node.
    pub trusted: HashSet<ProcKey>,
    /// By the names that NCCL has for them in this network.
    pub here: LocalNames,
    /// It counts processes as the agent does.
    pub sees_host_pids: bool,
}

/// Of the thread's time a tenant gets a quarter: after a question that took so long it pauses three
/// times as long, which is a minute after the longest.
const PAUSE: u32 = 3;
/// A tenant that owes no more than this is served: a few looks come together when a job starts.
const CREDIT: Duration = Duration::from_secs(1);
/// Events of a tenant in a [`WINDOW`]; more than a node's processes.
const MAX_EVENTS: u32 = 16;
const WINDOW: Duration = Duration::from_mins(1);

/// What each tenant has had of the thread.
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
    /// Whether a tenant's turn may come.
    pub(super) fn is_free(&self, tenant: Speaker, now: Instant) -> bool {
        self.0.get(&tenant).is_none_or(|account| account.free_at <= now + CREDIT)
    }

    /// When it was asked last: who waits longest comes first.
    pub(super) fn served_at(&self, tenant: Speaker) -> Option<Instant> {
        self.0.get(&tenant)?.served_at
    }

    /// Notes what was spent on it until now.
    pub(super) fn charge(&mut self, tenant: Speaker, now: Instant, spent: Duration) {
        let account = self.account(tenant, now);
        account.free_at = account.free_at.max(now) + spent.saturating_mul(PAUSE);
    }

    /// Notes that it is asked now.
    pub(super) fn serve(&mut self, tenant: Speaker, now: Instant) {
        self.account(tenant, now).served_at = Some(now);
    }

    /// Whether one more event of its may be told now.
    pub(super) fn allows_event(&mut self, tenant: Speaker, now: Instant) -> bool {
        let account = self.account(tenant, now);
        if now.saturating_duration_since(account.window) >= WINDOW {
            (account.window, account.events) = (now, 0);
        }
        account.events = account.events.saturating_add(1);
        account.events <= MAX_EVENTS
    }

    /// Forgets those that are gone and owe nothing.
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
    fn a_tenant_gets_a_quarter_of_the_time_and_costs_the_others_nothing() {
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
    fn so_many_events_of_a_tenant_are_told_each_minute() {
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
