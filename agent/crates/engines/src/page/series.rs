//! The series of a page and what is to be said of it beside its samples.

use super::super::exposition::{LineError, MAX_NAME};
use super::super::table::{Family, Scale};
use super::{MAX_MODELS, PageSummary};
use gpuwho_model::catalog::{Kind, MetricDef, NO_DIM};
use gpuwho_model::ids::EngineId;
use gpuwho_model::labels::LabelSet;
use gpuwho_model::sample::{Batch, Bounds, Histogram, Sample, Value};
use std::sync::Arc;

/// The series of a page, filled with its values.
#[derive(Debug, Default)]
pub(super) struct PageSeries {
    pub(super) numbers: Vec<NumberSeries>,
    pub(super) histograms: Vec<HistogramSeries>,
    pub(super) notes: Notes,
}

/// What is to be said of a page beside its samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    pub(super) engine: &'static str,
    pub(super) models: Vec<Box<str>>,
    pub(super) unknown: Vec<Box<str>>,
    pub(super) unknown_count: usize,
    pub(super) missing: Vec<&'static str>,
    pub(super) bad_lines: usize,
    pub(super) first_bad: Option<(usize, LineError)>,
    /// Lines of series beyond those that are read.
    pub(super) left_out: usize,
    /// When the process began.
    pub(super) started: Option<f64>,
}

impl Notes {
    /// Remembers a model's name, or its beginning.
    pub(super) fn note_model(&mut self, name: &str) {
        let name = name.get(..name.floor_char_boundary(MAX_NAME)).unwrap_or(name);
        let is_known = self.models.iter().any(|known| **known == *name);
        if !is_known && self.models.len() < MAX_MODELS {
            self.models.push(name.into());
        }
    }

    /// Counts a line, from 0, that is not read.
    pub(super) fn bad(&mut self, line: usize, cause: LineError) {
        self.bad_lines += 1;
        if self.first_bad.is_none_or(|(first, _)| line + 1 < first) {
            self.first_bad = Some((line + 1, cause));
        }
    }
}

/// Series of one number.
#[derive(Clone, Debug)]
pub(super) struct NumberSeries {
    metric: &'static MetricDef,
    labels: Option<LabelSet>,
    whole: bool,
    scale: Scale,
    value: Option<f64>,
    /// The greatest value of the info series read so far.
    newest: f64,
}

/// A histogram.
#[derive(Clone, Debug)]
pub(super) struct HistogramSeries {
    metric: &'static MetricDef,
    labels: Option<LabelSet>,
    bounds: Arc<[f64]>,
    scale: Scale,
    /// Observations up to each bound, and all.
    up_to: Vec<f64>,
    sum: f64,
}

impl NumberSeries {
    pub(super) fn new(family: &Family, labels: Option<LabelSet>) -> Self {
        let Family { metric, whole, scale, .. } = *family;
        Self { metric, labels, whole, scale, value: None, newest: f64::NEG_INFINITY }
    }

    /// Takes the value of one of the page's series. What cannot be is left out: nothing that an engine
    /// says is below 0, and -1 is some engines' word for what they do not know.
    pub(super) fn take(&mut self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        let value = self.scale.of(value);
        self.value = Some(match (self.value, self.metric.kind) {
            (None, _) => value,
            (Some(known), Kind::Gauge) => known.max(value),
            (Some(known), _) => known + value,
        });
    }

    /// Takes a value of the newest of several info series.
    pub(super) fn take_newest(&mut self, value: f64, time: f64) {
        if time > self.newest {
            self.newest = time;
            self.value = Some(value);
        }
    }

    fn sample(&self, subject: EngineId) -> Option<Sample> {
        let value = self.value?;
        let value = if self.whole { Value::Int(whole(value)) } else { Value::Double(value) };
        Some(sample(self.metric, subject, self.labels.clone(), value))
    }
}

impl HistogramSeries {
    pub(super) fn new(family: &Family, labels: Option<LabelSet>, bounds: Arc<[f64]>) -> Self {
        let up_to = vec![0.0; bounds.len() + 1];
        let Family { metric, scale, .. } = *family;
        Self { metric, labels, bounds, scale, up_to, sum: 0.0 }
    }

    pub(super) fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// Adds one of the page's histograms with these bounds: observations up to each of them, and all.
    pub(super) fn add(&mut self, up_to: impl Iterator<Item = f64>, sum: f64) {
        self.up_to.iter_mut().zip(up_to).for_each(|(all, one)| *all += one);
        self.sum += sum;
    }

    /// The histogram; `None` where its counts fall from one bound to the next, or are none.
    fn sample(&self, subject: EngineId) -> Option<Sample> {
        let mut counts = Vec::with_capacity(self.up_to.len());
        let mut before = 0;
        for up_to in &self.up_to {
            let up_to = count(*up_to)?;
            counts.push(up_to.checked_sub(before)?);
            before = up_to;
        }
        let sum = Some(self.scale.of(self.sum)).filter(|sum| sum.is_finite())?;
        let bounds = Bounds::Read(Arc::clone(&self.bounds));
        let value = Value::Histogram(Box::new(Histogram { bounds, counts, sum }));
        Some(sample(self.metric, subject, self.labels.clone(), value))
    }
}

fn sample(
    metric: &'static MetricDef,
    subject: EngineId,
    labels: Option<LabelSet>,
    value: Value,
) -> Sample {
    Sample { metric, subject: subject.into(), dims: [NO_DIM; 2], labels, value }
}

impl PageSeries {
    /// Pushes the samples; how many histograms made no sense.
    pub(super) fn push(&self, subject: EngineId, out: &mut Batch) -> usize {
        self.numbers.iter().filter_map(|series| series.sample(subject)).for_each(|s| out.push(s));
        let mut unsound = 0;
        for series in &self.histograms {
            match series.sample(subject) {
                Some(sample) => out.push(sample),
                None => unsound += 1,
            }
        }
        unsound
    }
}

impl Notes {
    pub(super) fn summary(&self, samples: usize, unsound: usize, folded: usize) -> PageSummary<'_> {
        PageSummary {
            engine: self.engine,
            models: &self.models,
            started: self.started,
            samples,
            unknown: &self.unknown,
            unknown_count: self.unknown_count,
            missing: &self.missing,
            bad_lines: self.bad_lines,
            first_bad: self.first_bad,
            unsound,
            left_out: self.left_out,
            folded,
        }
    }
}

/// The nearest whole number; the greatest there is for what is greater.
#[expect(clippy::cast_possible_truncation, reason = "rounded, and it saturates")]
fn whole(value: f64) -> i64 {
    value.round() as i64
}

/// A count; `None` for what counts nothing.
fn count(value: f64) -> Option<u64> {
    Some(whole(value)).filter(|_| value.is_finite()).and_then(|value| value.try_into().ok())
}
