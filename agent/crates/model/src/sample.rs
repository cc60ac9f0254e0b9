//! A collector's output: a metric of the catalogue, a value and a subject. A sample has no
//! attributes; the enrich stage derives them from the subject.

use crate::labels::LabelSet;
use crate::metric::{DimIndexes, Kind, MetricDef};
pub use crate::subject::{
    Agent, EngineGpu, GpuAllocation, GpuOwner, GpuProcess, GpuXid, Host, OwnerCgroup, Recent,
    Source, Subject,
};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Whole numbers: bytes, counts.
    Int(i64),
    /// Everything else.
    Double(f64),
    /// A distribution.
    Histogram(Box<Histogram>),
}

impl Value {
    /// Adds another value of the same form; histograms with other bounds are ignored.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Int(sum), Self::Int(more)) => *sum = sum.saturating_add(*more),
            (Self::Double(sum), Self::Double(more)) => *sum += more,
            (Self::Histogram(sum), Self::Histogram(more)) if sum.bounds == more.bounds => {
                sum.counts.iter_mut().zip(&more.counts).for_each(|(sum, more)| *sum += more);
                sum.sum += more.sum;
            }
            _ => {}
        }
    }
}

/// Upper bounds of a histogram's buckets.
#[derive(Clone, Debug)]
pub enum Bounds {
    /// From the catalogue.
    Fixed(&'static [f64]),
    /// From a source at run time; shared by all readings of the same form.
    Read(Arc<[f64]>),
}

impl Deref for Bounds {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        match self {
            Self::Fixed(bounds) => bounds,
            Self::Read(bounds) => bounds,
        }
    }
}

impl PartialEq for Bounds {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl From<&'static [f64]> for Bounds {
    fn from(bounds: &'static [f64]) -> Self {
        Self::Fixed(bounds)
    }
}

impl<const N: usize> From<&'static [f64; N]> for Bounds {
    fn from(bounds: &'static [f64; N]) -> Self {
        Self::Fixed(bounds)
    }
}

impl From<Arc<[f64]>> for Bounds {
    fn from(bounds: Arc<[f64]>) -> Self {
        Self::Read(bounds)
    }
}

/// A cumulative distribution over explicit bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending, without the last (infinite) one.
    pub bounds: Bounds,
    /// One count for each bucket; one longer than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// An empty distribution.
    pub fn new(bounds: impl Into<Bounds>) -> Self {
        let bounds = bounds.into();
        Self { counts: vec![0; bounds.len() + 1], bounds, sum: 0.0 }
    }

    /// Adds one observation.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    /// Observations so far.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// One reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric.
    pub metric: &'static MetricDef,
    /// The subject.
    pub subject: Subject,
    /// Values of the metric's closed dimensions.
    pub dims: DimIndexes,
    /// Labels with values known only at run time.
    pub labels: Option<LabelSet>,
    /// The value, in the catalogue's unit.
    pub value: Value,
}

impl Sample {
    /// The same sample with open labels.
    #[must_use]
    pub fn labelled(self, labels: LabelSet) -> Self {
        Self { labels: Some(labels), ..self }
    }
}

/// A part of a source: what one snapshot covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePart {
    /// The source's name in its table.
    pub source: &'static str,
    /// Which part; 0 for a source that has only one.
    pub part: u32,
}

/// A complete snapshot of a part of a source: a series of this part without a sample in it has
/// ended.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The part of a source it is of.
    pub of: SourcePart,
    /// When the readings were taken; a reading taken at another time has its own (see
    /// [`Batch::at`]).
    pub time: SystemTime,
    /// The readings, each with its time.
    pub samples: Vec<(SystemTime, Sample)>,
    /// Positions of the readings with folded labels.
    folded: HashMap<(&'static MetricDef, Subject, DimIndexes, LabelSet), usize>,
}

impl Batch {
    /// An empty batch of a source that has only one part.
    pub fn new(source: &'static str, time: SystemTime) -> Self {
        Self::of(SourcePart { source, part: 0 }, time)
    }

    /// An empty batch of a part of a source.
    pub fn of(of: SourcePart, time: SystemTime) -> Self {
        Self { of, time, samples: Vec::new(), folded: HashMap::new() }
    }

    /// Adds a reading taken at the batch's own time.
    pub fn push(&mut self, sample: Sample) {
        self.at(self.time, sample);
    }

    /// Adds a reading taken at another time. Readings with folded labels are one series: counters
    /// and histograms are added up; of gauges the first stays.
    pub fn at(&mut self, time: SystemTime, sample: Sample) {
        if let Some(labels) = sample.labels.as_ref().filter(|labels| labels.is_folded()) {
            let key = (sample.metric, sample.subject, sample.dims, labels.clone());
            let place = *self.folded.entry(key).or_insert(self.samples.len());
            if let Some((_, sum)) = self.samples.get_mut(place) {
                if sample.metric.kind != Kind::Gauge {
                    sum.value.add(&sample.value);
                }
                return;
            }
        }
        make_room(&mut self.samples);
        self.samples.push((time, sample));
    }
}

/// Makes room for one more, and a quarter: a list of samples or points that doubles is half empty, and they
/// are most of what a large batch takes.
pub fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 4 + 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::attributes as attr;
    use crate::catalog::{agent, device};
    use crate::ids::GpuId;
    use crate::labels::LabelSets;
    use std::time::UNIX_EPOCH;

    #[test]
    fn readings_of_folded_labels_are_one_series_with_the_right_total() {
        let mut sets = LabelSets::new(1);
        let mut labels = |model| sets.intern(&[(&attr::GPU_MODEL, model)]);
        let [first, b, c] = ["a", "b", "c"].map(&mut labels);
        let mut batch = Batch::new("engine", UNIX_EPOCH);
        let energy = |joules, labels: &LabelSet| {
            device::ENERGY.sample(GpuId(0), (), joules).labelled(labels.clone())
        };
        batch.push(energy(1.0, &first));
        batch.push(energy(2.0, &b));
        batch.push(energy(3.0, &c));
        let bounds: Arc<[f64]> = Arc::from([0.5, 2.0]);
        for (labels, value) in [(&b, 1.0), (&c, 3.0)] {
            let mut read = Histogram::new(Arc::clone(&bounds));
            read.observe(value);
            let sample = agent::SOURCE_DURATION.sample(Source("engine"), (), read);
            batch.push(sample.labelled(labels.clone()));
        }
        let values: Vec<_> = batch.samples.into_iter().map(|(_, sample)| sample.value).collect();
        let both = Histogram { bounds: bounds.into(), counts: vec![0, 1, 1], sum: 4.0 };
        let both = Value::Histogram(Box::new(both));
        assert_eq!(values, [Value::Double(1.0), Value::Double(5.0), both]);
    }
}
