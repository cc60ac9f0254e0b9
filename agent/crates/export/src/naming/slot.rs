//! One output series of a naming profile: what its inputs add up to in a batch, and the point made of
//! it. Its buffers are reused.

use super::window::quantile;
use gpuwho_model::catalog::profile::{Origin, Row};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::point::{Labels, Point};
use gpuwho_model::sample::Value;
use std::sync::Arc;

/// An output series.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) labels: Arc<Labels>,
    /// Live native series that feed it.
    pub(super) feeds: usize,
    pub(super) generation: u64,
    pub(super) sums: [Sum; 4],
    pub(super) buckets: [Vec<u64>; 2],
    pub(super) bounds: [Vec<f64>; 2],
    pub(super) same: Option<Value>,
    pub(super) start_ns: u64,
    pub(super) time_ns: u64,
    /// Whether its last point had a value.
    is_shown: bool,
}

/// What the inputs of one role add up to in a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    total: f64,
    least: f64,
    greatest: f64,
    count: u32,
    is_whole: bool,
}

impl Sum {
    const NONE: Self = Self {
        total: 0.0,
        least: f64::INFINITY,
        greatest: f64::NEG_INFINITY,
        count: 0,
        is_whole: true,
    };

    pub(super) fn add(&mut self, number: f64, is_whole: bool) {
        self.total += number;
        self.least = self.least.min(number);
        self.greatest = self.greatest.max(number);
        self.count += 1;
        self.is_whole &= is_whole;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then_some(self.total)
    }
}

impl Slot {
    pub(super) fn new(labels: Arc<Labels>) -> Self {
        Self {
            labels,
            feeds: 0,
            generation: 0,
            sums: [Sum::NONE; 4],
            buckets: [Vec::new(), Vec::new()],
            bounds: [Vec::new(), Vec::new()],
            same: None,
            start_ns: 0,
            time_ns: 0,
            is_shown: false,
        }
    }

    pub(super) fn begin(&mut self, generation: u64) {
        self.generation = generation;
        self.sums = [Sum::NONE; 4];
        self.buckets.iter_mut().for_each(Vec::clear);
        self.same = None;
        (self.start_ns, self.time_ns) = (0, 0);
    }

    /// Its point of this batch: a value, or the end where there was one and is none now.
    pub(super) fn point(&mut self, row: &'static Row, metric: &'static MetricDef) -> Option<Point> {
        let value = if self.feeds == 0 {
            None
        } else {
            self.value(&row.from, 0).or_else(|| self.value(&row.or, 1))
        };
        let was_shown = std::mem::replace(&mut self.is_shown, value.is_some());
        if value.is_none() && !was_shown {
            return None;
        }
        let start_ns = if metric.kind == Kind::Gauge { 0 } else { self.start_ns };
        let labels = Arc::clone(&self.labels);
        Some(Point { metric, labels, value, start_ns, time_ns: self.time_ns })
    }

    fn value(&mut self, origin: &Origin, at: usize) -> Option<Value> {
        let (of, by) = (self.sums.get(at * 2)?, self.sums.get(at * 2 + 1)?);
        let divided = || Some(of.get()? / by.get().filter(|by| *by != 0.0)?);
        let number = match origin {
            Origin::None => None,
            Origin::Same(_) => return self.same.take(),
            Origin::Sum(_) | Origin::Bits(..) if of.is_whole => {
                return of.get().map(whole);
            }
            Origin::Sum(_) | Origin::Bits(..) | Origin::Rate(_) => of.get(),
            Origin::Ratio(..) => divided(),
            Origin::Increases(_, _, plus) => divided().map(|ratio| ratio + plus),
            Origin::Quantile(_, which) => {
                quantile(*which, self.bounds.get(at)?, self.buckets.get(at)?)
            }
            Origin::Greatest(_) => of.get().map(|_| of.greatest),
            Origin::Least(_) => of.get().map(|_| of.least),
            Origin::Mean(_) => of.get().map(|sum| sum / f64::from(of.count)),
            Origin::Below(_, limit) => {
                return of.get().map(|sum| Value::Int(i64::from(sum < *limit)));
            }
        };
        number.filter(|number| number.is_finite()).map(Value::Double)
    }
}

/// A sum of whole numbers.
#[expect(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
fn whole(sum: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if sum.abs() <= EXACT { Value::Int(sum as i64) } else { Value::Double(sum) }
}
