//! Points: samples with their attributes, as sinks get them.

mod labels;

pub use labels::{Labels, Part, SameParts};

use crate::catalog::{Kind, MetricDef};
use crate::sample::{Histogram, Value, make_room};
use std::sync::Arc;

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

impl EnrichedBatch {
    /// Adds a point.
    pub fn push(&mut self, point: Point) {
        make_room(&mut self.points);
        self.points.push(point);
    }
}
