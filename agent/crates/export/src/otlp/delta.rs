//! Turns cumulative points into deltas for receivers that want them: of each counter and distribution
//! the increase since the point before. Levels stay as they are.
//!
//! Holds the last value of each live series, which the series limit bounds.

use gpuwho_model::catalog::Kind;
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::{Histogram, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// A series: its metric's name and its labels.
type Key = (&'static str, usize);

/// The last values.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    /// The labels are held, so that no other series gets their address.
    last: HashMap<Key, (Arc<Labels>, Last)>,
    out: EnrichedBatch,
}

#[derive(Debug)]
struct Last {
    value: Value,
    start_ns: u64,
    time_ns: u64,
}

impl Deltas {
    /// The batch with deltas in place of cumulative values.
    pub(super) fn of(&mut self, batch: &EnrichedBatch) -> &EnrichedBatch {
        self.out.points.clear();
        for point in &batch.points {
            if !matches!(point.metric.kind, Kind::Counter | Kind::Histogram) {
                self.out.points.push(point.clone());
            } else if let Some(delta) = self.delta(point) {
                self.out.points.push(delta);
            }
        }
        &self.out
    }

    fn delta(&mut self, point: &Point) -> Option<Point> {
        let key = (point.metric.name, Arc::as_ptr(&point.labels).addr());
        let Some(value) = &point.value else {
            self.last.remove(&key);
            return Some(point.clone());
        };
        let now = Last { value: value.clone(), start_ns: point.start_ns, time_ns: point.time_ns };
        let last = self.last.insert(key, (Arc::clone(&point.labels), now)).map(|(_, last)| last);
        let last = last.filter(|last| last.start_ns == point.start_ns);
        let difference =
            last.as_ref().and_then(|last| Some((last.time_ns, increase(&last.value, value)?)));
        match difference {
            Some((since, value)) => {
                Some(Point { value: Some(value), start_ns: since, ..point.clone() })
            }
            // The first value of a series that began before the agent is no increase.
            None if point.start_ns >= point.time_ns => None,
            // All of it since the start, which may be a new one.
            None => Some(point.clone()),
        }
    }
}

/// The increase; `None` where the value went back.
fn increase(last: &Value, now: &Value) -> Option<Value> {
    match (last, now) {
        (Value::Int(last), Value::Int(now)) => {
            now.checked_sub(*last).filter(|d| *d >= 0).map(Value::Int)
        }
        (Value::Double(last), Value::Double(now)) => {
            (now >= last).then_some(Value::Double(now - last))
        }
        (Value::Histogram(last), Value::Histogram(now)) if last.bounds == now.bounds => {
            let counts = now.counts.iter().zip(&last.counts);
            let counts = counts.map(|(now, last)| now.checked_sub(*last)).collect::<Option<_>>()?;
            let sum = now.sum - last.sum;
            Some(Value::Histogram(Box::new(Histogram { counts, sum, ..(**now).clone() })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes::AttrSet;
    use gpuwho_model::catalog::{MetricDef, agent, device};

    fn point(
        metric: &'static MetricDef,
        labels: &Arc<Labels>,
        value: Option<Value>,
        at: [u64; 2],
    ) -> Point {
        let [start_ns, time_ns] = at;
        Point { metric, labels: Arc::clone(labels), value, start_ns, time_ns }
    }

    fn energy(
        deltas: &mut Deltas,
        labels: &Arc<Labels>,
        joules: Option<f64>,
        at: [u64; 2],
    ) -> Vec<(u64, Option<Value>)> {
        let metric = device::ENERGY.def();
        let batch =
            EnrichedBatch { points: vec![point(metric, labels, joules.map(Value::Double), at)] };
        let out = deltas.of(&batch);
        out.points.iter().map(|point| (point.start_ns, point.value.clone())).collect()
    }

    #[test]
    fn a_counter_s_points_are_increases_that_add_up() {
        let (mut deltas, labels) = (Deltas::default(), Arc::new(Labels::new(AttrSet::new())));
        let double = |value| Some(Value::Double(value));
        // Read at the agent's start: what was before is nobody's increase.
        assert_eq!(energy(&mut deltas, &labels, Some(100.0), [5, 5]), []);
        assert_eq!(energy(&mut deltas, &labels, Some(130.0), [5, 10]), [(5, double(30.0))]);
        assert_eq!(energy(&mut deltas, &labels, Some(130.0), [5, 15]), [(10, double(0.0))]);
        // The driver was loaded again.
        assert_eq!(energy(&mut deltas, &labels, Some(7.0), [15, 20]), [(15, double(7.0))]);
        assert_eq!(energy(&mut deltas, &labels, None, [15, 25]), [(15, None)]);
        assert!(deltas.last.is_empty(), "an ended series is forgotten");
    }

    #[test]
    fn a_series_from_its_beginning_has_all_of_its_first_value() {
        let (mut deltas, labels) = (Deltas::default(), Arc::new(Labels::new(AttrSet::new())));
        assert_eq!(
            energy(&mut deltas, &labels, Some(4.0), [5, 9]),
            [(5, Some(Value::Double(4.0)))]
        );
    }

    #[test]
    fn distributions_are_subtracted_bucket_by_bucket_and_levels_are_not() {
        let (mut deltas, labels) = (Deltas::default(), Arc::new(Labels::new(AttrSet::new())));
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        histogram.observe(0.5);
        let metric = agent::SOURCE_DURATION.def();
        let of = |histogram: &Histogram| Some(Value::Histogram(Box::new(histogram.clone())));
        deltas.of(&EnrichedBatch { points: vec![point(metric, &labels, of(&histogram), [1, 2])] });
        histogram.observe(2.0);
        let level = point(device::POWER.def(), &labels, Some(Value::Double(3.0)), [0, 3]);
        let batch =
            EnrichedBatch { points: vec![point(metric, &labels, of(&histogram), [1, 3]), level] };
        let out = deltas.of(&batch);
        let Some(Value::Histogram(delta)) = &out.points[0].value else { panic!("{out:?}") };
        assert_eq!((&*delta.counts, delta.sum), (&[0, 0, 1][..], 2.0));
        assert_eq!(out.points[1].value, Some(Value::Double(3.0)));
    }
}
