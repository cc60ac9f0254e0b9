//! One series: its labels, its start time and its last value.

use super::Key;
use super::identity::SubjectLookup;
use super::limit::Place;
use super::limits::SeriesLimits;
use crate::catalog::{Kind, MetricDef};
use crate::export::{Labels, Point};
use crate::sample::{Sample, Value};
use crate::subject::Identity;
use std::sync::Arc;

/// A series.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) labels: Arc<Labels>,
    pub(super) identity: Identity,
    pub(super) place: Place,
    /// When the identity was last looked up.
    pub(super) epoch: u64,
    pub(super) start_ns: u64,
    pub(super) last_ns: u64,
    pub(super) last: Cumulative,
    pub(super) generation: u64,
    pub(super) ended: bool,
}

/// The last value of a cumulative series, to detect a restart.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Cumulative(f64);

impl Series {
    /// Updates the identity; returns the end mark of the series' former labels if they changed.
    pub(super) fn identify(
        &mut self,
        key: &Key,
        lookup: &mut SubjectLookup<'_>,
        time_ns: u64,
        limit: &mut SeriesLimits,
    ) -> Option<Point> {
        if self.identity.same(lookup.identity(key.subject)) {
            return None;
        }
        let place = key.place((self.place.weight, self.place.family), lookup);
        if place != self.place {
            limit.moved(self.place, place);
            self.place = place;
        }
        let labels = lookup.labels(key);
        self.identity = lookup.identity(key.subject).clone();
        if labels.set == self.labels.set {
            return None;
        }
        let end = (!self.ended).then(|| self.end(key.metric, time_ns));
        self.labels = labels;
        // The value so far was counted under the former labels.
        self.start_ns = time_ns;
        end
    }

    /// Its end mark.
    pub(super) fn end(&self, metric: &'static MetricDef, time_ns: u64) -> Point {
        Point {
            metric,
            labels: Arc::clone(&self.labels),
            value: None,
            start_ns: if metric.kind == Kind::Gauge { 0 } else { self.start_ns },
            time_ns,
        }
    }
}

impl Cumulative {
    /// The number that must not decrease in a cumulative series.
    pub(super) fn of(value: &Value) -> Self {
        Self(match value {
            Value::Int(number) => *number as f64,
            Value::Double(number) => *number,
            Value::Histogram(histogram) => histogram.count() as f64,
        })
    }
}

/// The start time of a new series. The agent's own counters start at zero with the agent. Counters
/// that existed before start, for the receiver, with their first point, so that their past does not
/// count as an increase.
pub(super) fn first_start(sample: &Sample, time_ns: u64, agent_start_ns: u64) -> u64 {
    if sample.subject.begins_with_agent() {
        // A counter's 0 may be sampled shortly before the pipeline starts.
        agent_start_ns.min(time_ns)
    } else {
        time_ns
    }
}
