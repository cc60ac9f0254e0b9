//! One series: its labels, its start time and its last value.

use super::identity::SubjectLookup;
use super::limit::Place;
use super::source::{NewPoint, Output, place};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::point::{Labels, Point};
use gpuwho_model::sample::{Sample, Value};
use std::sync::Arc;

/// A series.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) labels: Arc<Labels>,
    pub(super) place: Place,
    /// The version of the subject's identity that the labels are of.
    pub(super) version: u32,
    pub(super) start_ns: u64,
    pub(super) last_ns: u64,
    pub(super) last: Cumulative,
    pub(super) generation: u32,
    pub(super) ended: bool,
}

/// The last value of a cumulative series, to detect a restart.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Cumulative(f64);

impl Series {
    /// One without a point yet.
    pub(super) fn new(
        (place, version): (Place, u32),
        first: NewPoint,
        labels: Arc<Labels>,
    ) -> Self {
        let NewPoint { value: last, time_ns: last_ns, start_ns, .. } = first;
        Self { labels, place, version, start_ns, last_ns, last, generation: 0, ended: false }
    }

    /// Takes its subject's new identity; returns the end mark of the series' former labels if they
    /// changed.
    pub(super) fn identify(
        &mut self,
        (sample, time_ns): (&Sample, u64),
        lookup: &mut SubjectLookup<'_>,
        to: &mut Output<'_>,
    ) -> Option<Point> {
        let place = place(sample, (self.place.weight, self.place.family), lookup);
        if place != self.place {
            to.limit.moved(self.place, place);
            self.place = place;
        }
        let labels = lookup.labels(sample, to.parts);
        if labels == self.labels {
            return None;
        }
        let end = (!self.ended).then(|| self.end(sample.metric, time_ns));
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
