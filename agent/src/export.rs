//! The sinks of enriched batches. A sink renders points; it never names anything, and it counts
//! every point that it drops.

pub mod def;
mod file;
pub mod lines;
pub mod naming;
pub mod otlp;
pub mod prometheus;
pub mod stdout;

use crate::catalog::agent::{DropReason, ExportOutcome};
use crate::catalog::attributes::AttrSet;
use crate::catalog::{Kind, MetricDef};
use crate::event::record::Record;
use crate::sample::{Histogram, Value};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A series' complete attributes (subject, owner and dimensions), shared by all its points, with
/// the encoded form a sink may keep beside them.
#[derive(Debug)]
pub struct Labels {
    /// The attributes.
    pub set: AttrSet,
    /// The OTLP encoding of the attributes as `NumberDataPoint.attributes` (field 7, repeated),
    /// filled by the OTLP sink at first use. Histogram points copy it and change the tags, which
    /// have the same length.
    pub otlp: OnceLock<Box<[u8]>>,
    /// The attributes as Prometheus' labels, filled by the Prometheus sink at first use.
    pub prometheus: OnceLock<Box<str>>,
}

impl Labels {
    /// Labels not yet encoded.
    pub fn new(set: AttrSet) -> Self {
        Self { set, otlp: OnceLock::new(), prometheus: OnceLock::new() }
    }
}

/// One point of one series.
#[derive(Clone, Debug)]
pub struct Point {
    /// The metric.
    pub metric: &'static MetricDef,
    /// The series' attributes.
    pub labels: Arc<Labels>,
    /// The value; `None` marks the end of the series.
    pub value: Option<Value>,
    /// Start of a cumulative series in nanoseconds since the epoch; 0 for a gauge.
    pub start_ns: u64,
    /// When the value was read, in nanoseconds since the epoch.
    pub time_ns: u64,
}

/// What a point says, as far as it can be sent.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    /// The series has ended.
    Ended,
    /// A whole number.
    Int(i64),
    /// A finite number.
    Double(f64),
    /// A distribution.
    Histogram(&'a Histogram),
}

impl Point {
    /// What it says; `None` for a number that is not finite, and for a value of another shape than
    /// the metric's, which the catalogue's types rule out.
    pub fn reading(&self) -> Option<Reading<'_>> {
        let is_distribution = self.metric.kind == Kind::Histogram;
        match &self.value {
            None => Some(Reading::Ended),
            Some(Value::Int(number)) if !is_distribution => Some(Reading::Int(*number)),
            Some(Value::Double(number)) if !is_distribution && number.is_finite() => {
                Some(Reading::Double(*number))
            }
            Some(Value::Histogram(histogram))
                if is_distribution
                    && histogram.sum.is_finite()
                    && histogram.counts.len() == histogram.bounds.len() + 1 =>
            {
                Some(Reading::Histogram(histogram))
            }
            Some(_) => None,
        }
    }
}

/// The points of one tick.
#[derive(Clone, Debug, Default)]
pub struct EnrichedBatch {
    /// The points, grouped by metric.
    pub points: Vec<Point>,
}

/// A receiver of enriched batches.
pub trait Sink: Send {
    /// Exports a batch. Must not block on the receiver: the sink queues what it cannot send now,
    /// within bounds, and counts what falls out of the queue.
    fn export(&mut self, batch: &EnrichedBatch);

    /// Exports log records of events under the same rules. A sink of points only ignores them.
    fn export_events(&mut self, _records: &[Record]) {}

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
}

impl Report {
    /// The sum of both: of a sink and of the one before it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            refused: self.refused + other.refused,
            undelivered: self.undelivered + other.undelivered,
            queue_full: self.queue_full + other.queue_full,
            not_finite: self.not_finite + other.not_finite,
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
        }
    }

    /// What was added since an earlier report.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(earlier.accepted),
            refused: self.refused.saturating_sub(earlier.refused),
            undelivered: self.undelivered.saturating_sub(earlier.undelivered),
            queue_full: self.queue_full.saturating_sub(earlier.queue_full),
            not_finite: self.not_finite.saturating_sub(earlier.not_finite),
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }

    /// Points by outcome, for [`crate::catalog::agent::EXPORT_POINTS`].
    pub fn outcomes(&self) -> [(ExportOutcome, u64); 3] {
        [
            (ExportOutcome::Ok, self.accepted),
            (ExportOutcome::Refused, self.refused),
            (ExportOutcome::Failed, self.undelivered + self.queue_full),
        ]
    }

    /// Points lost by reason, for [`crate::catalog::agent::DROPPED`].
    pub fn dropped(&self) -> [(DropReason, u64); 4] {
        [
            (DropReason::QueueFull, self.queue_full),
            (DropReason::Rejected, self.refused),
            (DropReason::Undelivered, self.undelivered),
            (DropReason::NotFinite, self.not_finite),
        ]
    }
}
