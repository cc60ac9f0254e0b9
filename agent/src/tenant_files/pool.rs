//! The helpers, and who is refused: one request a tenant at a time, so that a tenant hangs one
//! helper at most; a tenant whose read did not come back waits out a back-off; one whose reads are
//! slow gets a tenth of the time.

use super::helper::{AskError, Helper};
use super::tenant::FileOwner;
use super::wire::{Reply, Request, WireError};
use super::{IDLE, MAX_HELPERS, ReadError};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first wait after a read that did not come back; each further one doubles it.
const BACK_OFF: Duration = Duration::from_secs(30);
/// And the longest. A tenant without a miss for so long begins anew.
const MAX_BACK_OFF: Duration = Duration::from_mins(10);
/// What a request may take without counting as slow: a healthy file system on a busy host.
const USUAL: Duration = Duration::from_millis(5);
/// What a tenant's slow requests may take at once; it comes back at a tenth of the time that
/// passes, so that a tenant costs those who wait for him a tenth of their time at most.
const CREDIT: Duration = Duration::from_secs(2);
const COMES_BACK: u32 = 10;
/// With less credit left nothing is asked.
const LEAST: Duration = Duration::from_millis(100);
/// Tenants that something is known of: more than there are pods and jobs on a host.
const MAX_TENANTS: usize = 4_096;

/// The helpers and their queue.
#[derive(Debug)]
pub(super) struct Pool {
    program: PathBuf,
    proc: PathBuf,
    /// After so long a helper is killed.
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
    Busy(FileOwner),
    /// It did not answer in time.
    Late(Late),
}

#[derive(Debug)]
struct Late {
    helper: Helper,
    tenant: FileOwner,
    since: Instant,
    is_killed: bool,
    /// It did not answer in time; else it ended, or said what is no answer.
    is_overdue: bool,
}

/// What is known of a tenant.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// What his slow requests took and that has not come back, at `at`.
    spent: Duration,
    at: Instant,
    misses: u32,
    missed: Option<Instant>,
    refused_until: Instant,
}

/// How the helpers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Processes that run, those that hang among them.
    pub helpers: usize,
    /// Those that hang.
    pub stuck: usize,
    /// Of whom nothing is read now, and how long ago a read of theirs began that did not come back.
    pub hung: Vec<(FileOwner, Duration)>,
    /// Reads that did not come back in time, since the start.
    pub misses: u64,
    /// Requests refused because their tenant's reads hang, or are slow, since the start.
    pub refused: u64,
    /// Requests refused because every helper hung or was busy, since the start.
    pub exhausted: u64,
    /// Helpers that could not be started or ended early, since the start.
    pub failed: u64,
}

impl Pool {
    pub(super) fn new(program: PathBuf, proc: &Path, deadline: Duration) -> Self {
        let proc = proc.to_owned();
        Self { program, proc, deadline, inner: Mutex::default(), changed: Condvar::new() }
    }

    /// Asks a helper for a tenant.
    pub(super) fn ask(
        &self,
        tenant: &FileOwner,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Reply, ReadError> {
        let deadline = Instant::now() + patience;
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
                // An idle one may have been killed by somebody; it was not this tenant's read.
                Err(AskError::Wire(WireError::Closed)) if !is_fresh => end(running),
                Err(error) => return Err(self.lose(at, running, (tenant, began), &error)),
            }
        }
    }

    fn start(&self) -> std::io::Result<Helper> {
        Helper::start(&self.program, &self.proc)
    }

    /// A place for the tenant, the helper in it if one runs, and until when to wait for it.
    fn take(
        &self,
        tenant: &FileOwner,
        deadline: Instant,
    ) -> Result<(usize, Option<Helper>, Instant), ReadError> {
        let mut inner = self.lock();
        loop {
            let now = Instant::now();
            inner.sweep(self.deadline, now);
            let left = inner.admit(tenant, now)?;
            let is_anybodys =
                !inner.slots.iter().any(|slot| matches!(slot, Slot::Busy(busy) if busy == tenant));
            if is_anybodys && let Some(at) = inner.free() {
                let slot = inner
                    .slots
                    .get_mut(at)
                    .map(|slot| std::mem::replace(slot, Slot::Busy(tenant.clone())));
                let helper = match slot {
                    Some(Slot::Idle(helper, _)) => Some(helper),
                    _ => None,
                };
                return Ok((at, helper, deadline.min(now + left)));
            }
            let all_hang = inner.slots.iter().all(|slot| matches!(slot, Slot::Late(_)));
            let patience = deadline.saturating_duration_since(now);
            if all_hang || patience.is_zero() {
                inner.reported.exhausted += 1;
                return Err(ReadError::Exhausted);
            }
            let waited = self.changed.wait_timeout(inner, patience);
            (inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a place back.
    fn put(&self, at: usize, slot: Slot, note: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        if let Some(place) = inner.slots.get_mut(at) {
            *place = slot;
        }
        note(&mut inner);
        drop(inner);
        self.changed.notify_all();
    }

    /// A helper that did not answer stays with its tenant until it has, or has ended.
    fn lose(
        &self,
        at: usize,
        mut helper: Helper,
        (tenant, since): (&FileOwner, Instant),
        error: &AskError,
    ) -> ReadError {
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

    /// Ends what is idle, kills what is late, and says how it is.
    pub(super) fn status(&self) -> PoolStatus {
        let mut inner = self.lock();
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
        let mut told = inner.reported.clone();
        told.helpers = inner.slots.iter().filter(|slot| !matches!(slot, Slot::Empty)).count();
        told.stuck = inner.slots.iter().filter(|slot| matches!(slot, Slot::Late(_))).count();
        told.hung = inner.hung(now);
        drop(inner);
        idle.into_iter().for_each(end);
        told
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// How long the tenant may be waited for; refused if not at all.
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
            _ if left < LEAST => ReadError::Slow(tenant.clone()),
            _ => return Ok(left),
        };
        self.reported.refused += 1;
        Err(refusal)
    }

    /// One that runs before one that must be started.
    fn free(&self) -> Option<usize> {
        let place = |is: fn(&Slot) -> bool| self.slots.iter().position(is);
        place(|slot| matches!(slot, Slot::Idle(..)))
            .or_else(|| place(|slot| matches!(slot, Slot::Empty)))
    }

    /// Takes back what has answered late, kills what will not, and forgets what has ended.
    fn sweep(&mut self, deadline: Duration, now: Instant) {
        for (at, slot) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            let slot = match slot {
                Slot::Late(late) => self.settle(late, deadline, now),
                slot => slot,
            };
            if let Some(place) = self.slots.get_mut(at) {
                *place = slot;
            }
        }
    }

    fn settle(&mut self, mut late: Late, deadline: Duration, now: Instant) -> Slot {
        if !late.is_killed && late.helper.has_answer(Duration::ZERO) {
            // Nobody waits for it any more; an error shows at the next request.
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
        // One that ended by itself says nothing of the tenant.
        if late.is_overdue {
            self.missed(&late.tenant, late.since, now);
        }
        Slot::Empty
    }

    /// Charges what a request took beyond the usual.
    fn spent(&mut self, tenant: &FileOwner, took: Duration) {
        let (now, took) = (Instant::now(), took.saturating_sub(USUAL));
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
        self.spent.saturating_sub(now.saturating_duration_since(self.at) / COMES_BACK)
    }

    fn is_of_use(&self, now: Instant) -> bool {
        let is_remembered = self
            .missed
            .is_some_and(|missed| now.saturating_duration_since(missed) < MAX_BACK_OFF * 2);
        is_remembered || !self.spent(now).is_zero()
    }
}

/// Ends a helper that does nothing: it is in no call that could keep it.
fn end(mut helper: Helper) {
    helper.kill();
    helper.wait();
}
