//! Counters of the points' outcomes. The tick's thread and the sender's thread write and read them.

use crate::export::Report;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters behind a [`Report`].
#[derive(Debug, Default)]
pub(super) struct SinkCounters {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) undelivered: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl SinkCounters {
    /// The counts are independent of each other, so no order is needed.
    pub(super) fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn report(&self, not_finite: u64) -> Report {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Report {
            accepted: read(&self.accepted),
            refused: read(&self.refused),
            undelivered: read(&self.undelivered),
            queue_full: read(&self.queue_full),
            not_finite,
            requests: read(&self.requests),
            bytes: read(&self.bytes),
        }
    }
}
