//! The sinks of enriched batches. A sink renders points; it never names anything, and it counts
//! every point that it drops.
//!
//! Owns the queue, the spool, retries and secrets, the spellings of names, and a file for each sink; and the
//! agent's own log over OTLP. May use `collect` and what is below it. Knows no source.
//!
//! Rooms, from below: `def`, `spool`, `file`, `held`, `delivery`, `filter`, `writer`, `stdout`,
//! `resource`, `naming`, `lines`, `otlp`, `prometheus`, `telemetry`, `webhook`.

#![forbid(unsafe_code)]

pub mod def;
pub mod delivery;
mod file;
pub mod filter;
mod held;
pub mod lines;
pub mod naming;
pub mod otlp;
pub mod prometheus;
pub mod resource;
#[cfg(test)]
mod small_disk;
pub mod spool;
pub mod stdout;
pub mod telemetry;
pub mod webhook;
mod writer;

use gpuwho_model::catalog::agent::{DropReason, ExportOutcome, SourceState};
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::status;
use gpuwho_pipeline::event::record::Record;
use std::time::Instant;

pub use held::Held;

/// A receiver of enriched batches.
pub trait Sink: Send {
    /// Exports a batch. Must not block on the receiver: the sink queues what it cannot send now,
    /// within bounds, and counts what falls out of the queue.
    fn export(&mut self, batch: &EnrichedBatch);

    /// Exports log records of events under the same rules. A sink of points only ignores them.
    fn export_events(&mut self, _records: &[Record]) {}

    /// Called before [`Self::flush`] of any sink: what is left is sent from now on, so that a sink that
    /// waits for its receiver takes no time from the others.
    fn start_flush(&mut self, _deadline: Instant) {}

    /// Called once before the agent ends: waits until everything is sent or `deadline` has passed.
    /// The sink then drops and counts the rest.
    fn flush(&mut self, deadline: Instant);

    /// The outcome of the points so far.
    fn report(&self) -> Report;
}

/// Outcomes of a sink's points since it was made. The numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Points the receiver accepted.
    pub accepted: u64,
    /// Points the receiver refused permanently.
    pub refused: u64,
    /// Points dropped at shutdown without an answer.
    pub undelivered: u64,
    /// Points that fell out of the full queue.
    pub queue_full: u64,
    /// Points that no request can carry: not a finite number.
    pub not_finite: u64,
    /// Attempts to send a request (or write a batch).
    pub requests: u64,
    /// Bytes in those attempts, as compressed.
    pub bytes: u64,
    /// Points handed to the sink, and found in its spool at the start.
    pub taken: u64,
    /// Of those, the ones found in the spool.
    pub restored: u64,
    /// Points that wait in memory, with those being sent from there.
    pub queued: u64,
    /// Points being sent that are not in the spool.
    pub in_flight: u64,
    /// Points that wait on disk, with those being sent from there.
    pub spooled: u64,
    /// Bytes of the spool's files.
    pub spool_bytes: u64,
    /// Points that fell out of the full spool.
    pub spool_full: u64,
    /// Points that became too old in the spool.
    pub expired: u64,
    /// Points of which the spool's files were damaged.
    pub damaged: u64,
    /// Whether there is a spool.
    pub has_spool: bool,
    /// Why the spool is not used as it should be.
    pub trouble: Option<spool::Trouble>,
    /// Why it does not send or serve until somebody acts.
    pub held: Option<Held>,
}

impl Report {
    /// What a closed sink leaves to its successor: what waits in its spool is that one's.
    #[must_use]
    pub fn closed(self) -> Self {
        let taken = self.taken.saturating_sub(self.spooled);
        Self { taken, ..self }.since(Self::default())
    }

    /// The counters of this closed sink with those of a later one, and the later one's levels.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        self.each_counter(later, |sum, more| sum + more, later)
    }

    /// What the counters have gained since an earlier report, without levels.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.each_counter(earlier, u64::saturating_sub, Self::default())
    }

    /// Each counter from those of two reports, beside the levels of a third.
    fn each_counter(self, other: Self, of: fn(u64, u64) -> u64, levels: Self) -> Self {
        Self {
            accepted: of(self.accepted, other.accepted),
            refused: of(self.refused, other.refused),
            undelivered: of(self.undelivered, other.undelivered),
            queue_full: of(self.queue_full, other.queue_full),
            not_finite: of(self.not_finite, other.not_finite),
            requests: of(self.requests, other.requests),
            bytes: of(self.bytes, other.bytes),
            taken: of(self.taken, other.taken),
            restored: of(self.restored, other.restored),
            spool_full: of(self.spool_full, other.spool_full),
            expired: of(self.expired, other.expired),
            damaged: of(self.damaged, other.damaged),
            ..levels
        }
    }

    /// Points by outcome, for [`gpuwho_model::catalog::agent::EXPORT_POINTS`].
    pub fn outcomes(&self) -> [(ExportOutcome, u64); 3] {
        [
            (ExportOutcome::Ok, self.accepted),
            (ExportOutcome::Refused, self.refused),
            (ExportOutcome::Failed, self.lost()),
        ]
    }

    /// Points that wait in memory and on disk.
    pub fn waiting(&self) -> u64 {
        self.queued + self.spooled
    }

    /// The state of a sink that is held back or has a spool, for the status registry.
    pub fn status(&self) -> Option<status::Report> {
        if let Some(held) = self.held {
            return Some(held.status());
        }
        let of = |trouble: spool::Trouble| {
            status::Report::of(SourceState::Degraded, trouble.as_str(), trouble.remedy())
        };
        self.has_spool.then(|| self.trouble.map_or_else(status::Report::ready, of))
    }

    fn lost(&self) -> u64 {
        self.undelivered + self.queue_full + self.spool_full + self.expired + self.damaged
    }

    /// Points lost by reason, for [`gpuwho_model::catalog::agent::DROPPED`].
    pub fn dropped(&self) -> [(DropReason, u64); 7] {
        [
            (DropReason::QueueFull, self.queue_full),
            (DropReason::SpoolFull, self.spool_full),
            (DropReason::Expired, self.expired),
            (DropReason::Damaged, self.damaged),
            (DropReason::Rejected, self.refused),
            (DropReason::Undelivered, self.undelivered),
            (DropReason::NotFinite, self.not_finite),
        ]
    }
}
