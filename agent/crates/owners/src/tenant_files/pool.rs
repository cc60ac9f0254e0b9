//! The pool of helpers and its limits per tenant: one request a tenant at a time, so that a tenant
//! can hang at most one helper; a back-off after a read that did not return; a tenth of the time
//! for a tenant with slow reads.

mod close;

use super::helper::{AskError, Helper};
use super::tenant::FileOwner;
use super::wire::{Reply, Request, WireError};
use super::{IDLE, MAX_HELPERS, ReadError};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A further helper starts only once every running one has been busy with its request for this
/// long: most requests take a tenth of a millisecond, and a helper is some MiB.
const START_AFTER: Duration = Duration::from_millis(50);
/// The first back-off after a read that did not return; each further one doubles it.
const BACK_OFF: Duration = Duration::from_secs(30);
/// The longest back-off. After twice this time without a miss a tenant starts with the first again.
const MAX_BACK_OFF: Duration = Duration::from_mins(10);
/// Longest request that does not count as slow: a healthy file system on a busy host.
const FAST: Duration = Duration::from_millis(5);
/// Time that a tenant's slow requests may take at once.
const CREDIT: Duration = Duration::from_secs(2);
/// Credit refills at this fraction (1/10) of the passing time, so that a tenant delays others by at
/// most a tenth of their time.
const REFILL: u32 = 10;
/// With less credit left, requests are refused.
const MIN_CREDIT: Duration = Duration::from_millis(100);
/// Tenants with a record: more than there are pods and jobs on a host.
const MAX_TENANTS: usize = 4_096;

/// The helpers and their queue.
#[derive(Debug)]
pub(super) struct Pool {
    program: PathBuf,
    proc: PathBuf,
    /// Time after which a helper is killed.
    deadline: Duration,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    slots: [Slot; MAX_HELPERS],
    tenants: HashMap<FileOwner, Record>,
    reported: PoolStatus,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Idle(Helper, Instant),
    Busy(FileOwner, Instant),
    /// It did not answer in time.
    Late(Late),
}

#[derive(Debug)]
struct Late {
    helper: Helper,
    tenant: FileOwner,
    since: Instant,
    is_killed: bool,
    /// Whether it missed the deadline; otherwise it ended or sent an invalid answer.
    is_overdue: bool,
}

/// The record of a tenant.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Credit used by slow requests, at the time `at`.
    spent: Duration,
    at: Instant,
    misses: u32,
    missed: Option<Instant>,
    refused_until: Instant,
}

/// The status of the helpers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Running helpers, including hung ones.
    pub helpers: usize,
    /// Hung helpers.
    pub stuck: usize,
    /// Tenants that are refused now, and the time since the read began that did not return.
    pub hung: Vec<(FileOwner, Duration)>,
    /// Reads that missed the deadline, since the start.
    pub misses: u64,
    /// Requests refused because their tenant's reads hang, or are slow, since the start.
    pub refused: u64,
    /// Requests refused because every helper hung or was busy, since the start.
    pub exhausted: u64,
    /// Helpers that could not be started or ended early, since the start.
    pub failed: u64,
}

/// A request, charged to the tenant whose file it reads.
#[derive(Clone, Copy)]
struct Charged<'a> {
    tenant: &'a FileOwner,
    since: Instant,
}

impl Pool {
    pub(super) fn new(program: PathBuf, proc: &Path, deadline: Duration) -> Self {
        let proc = proc.to_owned();
        Self { program, proc, deadline, inner: Mutex::default(), changed: Condvar::new() }
    }

    /// Sends a tenant's request to a helper.
    pub(super) fn ask(
        &self,
        tenant: &FileOwner,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Reply, ReadError> {
        let deadline = Instant::now() + timeout;
        let (at, mut helper, deadline) = self.take(tenant, deadline)?;
        loop {
            let is_fresh = helper.is_none();
            let running = match helper.take().map_or_else(|| self.start(), Ok) {
                Ok(running) => running,
                Err(error) => {
                    self.put(at, Slot::Empty, |inner| inner.reported.failed += 1);
                    return Err(ReadError::Helper(error.to_string()));
                }
            };
            let began = Instant::now();
            match running.ask(request, passed, deadline) {
                Ok(reply) => {
                    self.put(at, Slot::Idle(running, Instant::now()), |inner| {
                        inner.spent(tenant, began.elapsed());
                    });
                    return Ok(reply);
                }
                // An idle helper may have been killed from outside; this tenant's read is not the
                // cause.
                Err(AskError::Wire(WireError::Closed)) if !is_fresh => end(running),
                Err(error) => {
                    return Err(self.lose(at, running, Charged { tenant, since: began }, &error));
                }
            }
        }
    }

    fn start(&self) -> std::io::Result<Helper> {
        Helper::start(&self.program, &self.proc)
    }

    /// Takes a slot for the tenant; returns its helper if one runs, and the deadline of the
    /// request.
    fn take(
        &self,
        tenant: &FileOwner,
        deadline: Instant,
    ) -> Result<(usize, Option<Helper>, Instant), ReadError> {
        let mut inner = self.inner.lock();
        loop {
            let now = Instant::now();
            inner.sweep(self.deadline, now);
            let left = inner.admit(tenant, now)?;
            let has_no_request = !inner
                .slots
                .iter()
                .any(|slot| matches!(slot, Slot::Busy(busy, _) if busy == tenant));
            if has_no_request && let Some(at) = inner.free(now) {
                let busy = Slot::Busy(tenant.clone(), now);
                let slot = inner.slots.get_mut(at).map(|slot| std::mem::replace(slot, busy));
                let helper = match slot {
                    Some(Slot::Idle(helper, _)) => Some(helper),
                    _ => None,
                };
                return Ok((at, helper, deadline.min(now + left)));
            }
            let all_hang = inner.slots.iter().all(|slot| matches!(slot, Slot::Late(_)));
            let timeout = deadline.saturating_duration_since(now);
            if all_hang || timeout.is_zero() {
                inner.reported.exhausted += 1;
                return Err(ReadError::Exhausted);
            }
            self.changed.wait_for(&mut inner, timeout.min(START_AFTER));
        }
    }

    /// Returns a slot.
    fn put(&self, at: usize, slot: Slot, note: impl FnOnce(&mut Inner)) {
        let mut inner = self.inner.lock();
        if let Some(place) = inner.slots.get_mut(at) {
            *place = slot;
        }
        note(&mut inner);
        drop(inner);
        self.changed.notify_all();
    }

    /// Marks a helper that did not answer as late: it is charged to its tenant until it answers or
    /// ends.
    fn lose(
        &self,
        at: usize,
        mut helper: Helper,
        request: Charged<'_>,
        error: &AskError,
    ) -> ReadError {
        let Charged { tenant, since } = request;
        let is_late = matches!(error, AskError::Late);
        if !is_late {
            helper.kill();
        }
        let late = Late {
            helper,
            tenant: tenant.clone(),
            since,
            is_killed: !is_late,
            is_overdue: is_late,
        };
        self.put(at, Slot::Late(late), |inner| {
            inner.reported.failed += u64::from(!is_late);
            inner.sweep(self.deadline, Instant::now());
        });
        if is_late {
            return ReadError::Hung { tenant: tenant.clone(), since: since.elapsed() };
        }
        ReadError::Helper(error.to_string())
    }

    /// Ends idle helpers, kills late ones, and returns the status.
    pub(super) fn status(&self) -> PoolStatus {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        inner.sweep(self.deadline, now);
        let mut idle = Vec::new();
        for slot in &mut inner.slots {
            if matches!(slot, Slot::Idle(_, since) if now.duration_since(*since) >= IDLE)
                && let Slot::Idle(helper, _) = std::mem::take(slot)
            {
                idle.push(helper);
            }
        }
        let mut status = inner.reported.clone();
        status.helpers = inner.slots.iter().filter(|slot| !matches!(slot, Slot::Empty)).count();
        status.stuck = inner.slots.iter().filter(|slot| matches!(slot, Slot::Late(_))).count();
        status.hung = inner.hung(now);
        drop(inner);
        idle.into_iter().for_each(end);
        status
    }
}

impl Inner {
    /// The time for which the tenant's next request may run, or the refusal.
    fn admit(&mut self, tenant: &FileOwner, now: Instant) -> Result<Duration, ReadError> {
        let hung = |since: Instant| ReadError::Hung {
            tenant: tenant.clone(),
            since: now.saturating_duration_since(since),
        };
        let late = self.slots.iter().find_map(|slot| match slot {
            Slot::Late(late) if late.tenant == *tenant => Some(late.since),
            _ => None,
        });
        let record = self.tenants.get(tenant);
        let waits = record.filter(|record| now < record.refused_until);
        let left = CREDIT.saturating_sub(record.map_or(Duration::ZERO, |record| record.spent(now)));
        let refusal = match (late, waits) {
            (Some(since), _) => hung(since),
            (None, Some(record)) => hung(record.missed.unwrap_or(now)),
            _ if left < MIN_CREDIT => ReadError::Slow(tenant.clone()),
            _ => return Ok(left),
        };
        self.reported.refused += 1;
        Err(refusal)
    }

    /// A free slot: one with a running helper, otherwise an empty one, unless a helper is soon free.
    fn free(&self, now: Instant) -> Option<usize> {
        let place = |is: fn(&Slot) -> bool| self.slots.iter().position(is);
        let is_soon_free = |slot: &Slot| {
            let began = if let Slot::Busy(_, began) = slot { Some(*began) } else { None };
            began.is_some_and(|began| now.saturating_duration_since(began) < START_AFTER)
        };
        let is_any_soon = self.slots.iter().any(is_soon_free);
        place(|slot| matches!(slot, Slot::Idle(..)))
            .or_else(|| place(|slot| matches!(slot, Slot::Empty)).filter(|_| !is_any_soon))
    }

    /// Recovers helpers that have answered late, kills overdue ones, and empties the slots of ended
    /// ones.
    fn sweep(&mut self, deadline: Duration, now: Instant) {
        for (at, slot) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            let slot = match slot {
                Slot::Late(late) => self.resolve_late(late, deadline, now),
                slot => slot,
            };
            if let Some(place) = self.slots.get_mut(at) {
                *place = slot;
            }
        }
    }

    fn resolve_late(&mut self, mut late: Late, deadline: Duration, now: Instant) -> Slot {
        if !late.is_killed && late.helper.has_answer(Duration::ZERO) {
            // The caller has gone; an error shows at the next request.
            if late.helper.receive().is_ok() {
                self.spent(&late.tenant, now.saturating_duration_since(late.since));
                return Slot::Idle(late.helper, now);
            }
            late.helper.kill();
            late.is_killed = true;
        }
        if !late.is_killed && now.saturating_duration_since(late.since) >= deadline {
            late.helper.kill();
            late.is_killed = true;
            self.reported.misses += 1;
            let (tenant, helper) = (&late.tenant, late.helper.pid());
            tracing::warn!(%tenant, helper, "a file system of this tenant does not answer");
        }
        if !late.is_killed || !late.helper.has_ended() {
            return Slot::Late(late);
        }
        // The end of a helper that was not overdue is not the tenant's fault.
        if late.is_overdue {
            self.missed(&late.tenant, late.since, now);
        }
        Slot::Empty
    }

    /// Charges the time of a request beyond [`FAST`].
    fn spent(&mut self, tenant: &FileOwner, took: Duration) {
        let (now, took) = (Instant::now(), took.saturating_sub(FAST));
        if took.is_zero() {
            return;
        }
        let record = self.record(tenant, now);
        record.spent = record.spent(now) + took;
        record.at = now;
    }

    fn missed(&mut self, tenant: &FileOwner, since: Instant, now: Instant) {
        let record = self.record(tenant, now);
        let before = record.missed.replace(since);
        let is_again =
            before.is_some_and(|before| since.saturating_duration_since(before) < MAX_BACK_OFF * 2);
        record.misses = if is_again { record.misses.saturating_add(1) } else { 0 };
        let wait = BACK_OFF.saturating_mul(1 << record.misses.min(8)).min(MAX_BACK_OFF);
        record.refused_until = now + wait;
    }

    fn record(&mut self, tenant: &FileOwner, now: Instant) -> &mut Record {
        if self.tenants.len() >= MAX_TENANTS {
            self.tenants.retain(|_, record| record.is_of_use(now));
        }
        let new =
            Record { spent: Duration::ZERO, at: now, misses: 0, missed: None, refused_until: now };
        self.tenants.entry(tenant.clone()).or_insert(new)
    }

    fn hung(&self, now: Instant) -> Vec<(FileOwner, Duration)> {
        let late = self.slots.iter().filter_map(|slot| match slot {
            Slot::Late(late) => Some((&late.tenant, late.since)),
            _ => None,
        });
        let waiting = self.tenants.iter().filter(|(_, record)| now < record.refused_until);
        let waiting = waiting.map(|(tenant, record)| (tenant, record.missed.unwrap_or(now)));
        let all = late.chain(waiting);
        all.map(|(tenant, since)| (tenant.clone(), now.saturating_duration_since(since))).collect()
    }
}

impl Record {
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.at) / REFILL)
    }

    fn is_of_use(&self, now: Instant) -> bool {
        let is_remembered = self
            .missed
            .is_some_and(|missed| now.saturating_duration_since(missed) < MAX_BACK_OFF * 2);
        is_remembered || !self.spent(now).is_zero()
    }
}

/// Ends an idle helper; it is in no call that could hang.
fn end(mut helper: Helper) {
    helper.kill();
    helper.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_helper_starts_only_where_the_first_is_busy_for_long() {
        let (mut inner, now) = (Inner::default(), Instant::now());
        assert_eq!(inner.free(now), Some(0));
        inner.slots[0] = Slot::Busy(FileOwner::named("one"), now);
        assert_eq!(inner.free(now), None);
        assert_eq!(inner.free(now + START_AFTER), Some(1));
        inner.slots[1] = Slot::Busy(FileOwner::named("two"), now + START_AFTER);
        assert_eq!(inner.free(now + START_AFTER), None);
    }
}
