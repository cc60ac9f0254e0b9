//! What waits for a receiver: the queue in memory, and the spool on disk where there is one. The spool
//! has what is older. Requests go from memory to disk as soon as they come, also while one is sent.

use super::body::Encoding;
use super::counts::SinkCounters;
use super::queue::{Queue, Request};
use crate::spool::{SpoolFolder, Storing};
use bytes::Bytes;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The requests of one sender.
#[derive(Debug)]
pub(super) struct Backlog {
    queue: Arc<Queue>,
    spool: Option<SpoolFolder>,
    counts: Arc<SinkCounters>,
    /// The request in flight is the spool's.
    is_stored: bool,
    /// When the rate at which a backlog is sent allows the next request.
    next_at: Instant,
}

impl Backlog {
    pub(super) fn new(
        queue: Arc<Queue>,
        spool: Option<SpoolFolder>,
        counts: Arc<SinkCounters>,
    ) -> Self {
        Self { queue, spool, counts, is_stored: false, next_at: Instant::now() }
    }

    /// Moves what is in memory to the disk. Returns whether all of it is there.
    pub(super) fn store(&mut self) -> bool {
        let Some(spool) = &mut self.spool else { return false };
        let mut is_stored = true;
        while let Some(request) = self.queue.pop() {
            let number = request.encoding.number();
            match spool.store(number, request.points, &request.body) {
                Storing::Stored => {}
                Storing::NoRoom => self.counts.add(|report| report.queue_full += request.points),
                Storing::Failed => {
                    let lost = self.queue.put_back(request);
                    self.counts.add(|report| report.queue_full += lost);
                    is_stored = false;
                    break;
                }
            }
        }
        self.counts.spool(&spool.figures());
        is_stored
    }

    /// Takes the oldest request.
    pub(super) fn next(&mut self) -> Option<Request> {
        loop {
            let is_stored = self.store();
            if let Some(request) = self.next_stored() {
                return Some(request);
            }
            if !is_stored {
                break;
            }
            // What came since then goes to the disk first, or it would be out of order.
            if self.queue.points() == 0 {
                return None;
            }
        }
        self.is_stored = false;
        let request = self.queue.pop()?;
        self.counts.add(|report| report.in_flight = request.points);
        Some(request)
    }

    fn next_stored(&mut self) -> Option<Request> {
        let spool = self.spool.as_mut()?;
        let mut next = None;
        while let Some(taken) = spool.take() {
            if let Some(encoding) = Encoding::of_number(taken.encoding) {
                let (body, points) = (Bytes::from(taken.body), taken.points);
                next = Some(Request { body, points, encoding });
                break;
            }
            spool.discard();
        }
        self.is_stored = next.is_some();
        self.counts.spool(&spool.figures());
        next
    }

    /// Whether the spool does not work.
    pub(super) fn is_troubled(&self) -> bool {
        self.spool.as_ref().is_some_and(|spool| spool.figures().trouble.is_some())
    }

    /// How long the next attempt must wait, so that a long backlog is no burst for the receiver.
    pub(super) fn pause(&mut self, request: &Request, now: Instant) -> Duration {
        let Some(spool) = self.spool.as_ref().filter(|spool| self.is_stored && spool.has_backlog())
        else {
            return Duration::ZERO;
        };
        let wait = self.next_at.saturating_duration_since(now);
        self.next_at = self.next_at.max(now) + spool.drain_time(request.body.len());
        wait
    }

    /// The request is the next one again.
    pub(super) fn put_back(&mut self, request: Request) {
        if let Some(spool) = self.spool.as_mut().filter(|_| self.is_stored) {
            spool.put_back();
            return;
        }
        let lost = self.queue.put_back(request);
        self.counts.add(|report| {
            report.in_flight = 0;
            report.queue_full += lost;
        });
    }

    /// The request is over.
    pub(super) fn done(&mut self, accepted: u64, refused: u64) {
        if let Some(spool) = self.spool.as_mut().filter(|_| self.is_stored) {
            spool.done(accepted, refused);
            self.counts.spool(&spool.figures());
        }
        self.counts.add(|report| {
            report.in_flight = 0;
            report.accepted += accepted;
            report.refused += refused;
        });
    }

    /// The request is of another kind than this sender's.
    pub(super) fn discard(&mut self, request: &Request) {
        match self.spool.as_mut().filter(|_| self.is_stored) {
            Some(spool) => {
                spool.discard();
                self.counts.spool(&spool.figures());
            }
            None => self.done(0, request.points),
        }
    }

    /// Waits for `work`, and stores what comes meanwhile.
    pub(super) async fn while_storing<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let queue = Arc::clone(&self.queue);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = queue.pushed(), if self.spool.is_some() => {
                    self.store();
                },
            }
        }
    }

    /// The sender ends. What is stored waits for the next start, the rest is lost.
    pub(super) fn close(&mut self, current: Option<Request>) {
        if let Some(request) = current {
            self.put_back(request);
        }
        self.store();
        let left: u64 = std::iter::from_fn(|| self.queue.pop()).map(|left| left.points).sum();
        self.counts.add(|report| report.undelivered += left);
    }
}
