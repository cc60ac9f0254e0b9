//! Where enriched batches go. A sink renders; it never names anything and never drops without
//! counting.

pub mod otlp;
pub mod stdout;

use crate::catalog::MetricDef;
use crate::catalog::attributes::AttrSet;
use crate::sample::Value;
use std::sync::{Arc, OnceLock};

/// A series' complete attributes (subject, owner and dimensions), shared by all its points, with
/// the encoded form a sink may keep beside them.
#[derive(Debug)]
pub struct Labels {
    /// The attributes.
    pub set: AttrSet,
    /// The OTLP encoding of the attributes as `NumberDataPoint.attributes` (field 7, repeated) or
    /// `HistogramDataPoint.attributes` (field 9), filled by the OTLP sink at first use.
    pub otlp: OnceLock<Box<[u8]>>,
}

impl Labels {
    /// Labels not yet encoded.
    pub fn new(set: AttrSet) -> Self {
        Self { set, otlp: OnceLock::new() }
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

/// What one tick has to send.
#[derive(Clone, Debug, Default)]
pub struct EnrichedBatch {
    /// The points, those of one metric side by side.
    pub points: Vec<Point>,
}

/// A receiver of enriched batches.
pub trait Sink: Send {
    /// Takes a batch. Must not block on the receiver: what cannot be sent now is queued within
    /// bounds, and what falls out of the queue is counted.
    fn accept(&mut self, batch: &EnrichedBatch);
}
