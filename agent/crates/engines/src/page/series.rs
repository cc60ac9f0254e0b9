//! What each line of a page is for: read once, then matched by position.

use super::super::exposition::{LineError, MAX_NAME, value_and_rest};
use super::super::table::{Family, Scale};
use super::{MAX_MODELS, PageSummary};
use gpuwho_model::catalog::{Kind, MetricDef, NO_DIM};
use gpuwho_model::ids::EngineId;
use gpuwho_model::labels::LabelSet;
use gpuwho_model::sample::{Batch, Bounds, Histogram, Sample, Value};
use std::sync::Arc;

/// The lines of a page, in order, and the series that they fill.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// What each line begins with, one after the other.
    pub(super) keys: Vec<u8>,
    pub(super) lines: Vec<PlannedLine>,
    /// Of each line, one after the other.
    pub(super) actions: Vec<Action>,
    pub(super) numbers: Vec<NumberSeries>,
    pub(super) histograms: Vec<HistogramSeries>,
    pub(super) notes: Notes,
    /// Whether lines and keys are there, for the next page.
    pub(super) is_kept: bool,
    /// Of the last page.
    started: Option<f64>,
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

/// A line of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedLine {
    /// Where its key ends in [`Shape::keys`].
    pub(super) key_end: u32,
    /// Where its actions end in [`Shape::actions`].
    pub(super) actions_end: u32,
    /// Whether a value follows the key; else the key is the whole line with its end.
    pub(super) has_value: bool,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    /// Of the number series of this place.
    Number(u32),
    /// What stands in a label, where the value is not 0.
    Label(u32, f64),
    /// What stands in a label, where the value is the greatest.
    Newest(u32, f64),
    /// The observations up to a bound of a histogram.
    Bucket(u32, u32),
    /// The sum of a histogram.
    Sum(u32),
    /// When the process began.
    Started,
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

    /// Takes the value of one of the page's series. What cannot be is left out.
    fn take(&mut self, value: f64) {
        let can_fall = matches!(self.metric.kind, Kind::Gauge | Kind::UpDownCounter);
        if !value.is_finite() || (value < 0.0 && !can_fall) {
            return;
        }
        let value = self.scale.of(value);
        self.value = Some(match (self.value, self.metric.kind) {
            (None, _) => value,
            (Some(known), Kind::Gauge) => known.max(value),
            (Some(known), _) => known + value,
        });
    }

    fn take_newest(&mut self, value: f64, time: f64) {
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

impl Shape {
    /// Takes the values of a page of the same shape; whether it is one.
    pub(super) fn read(&mut self, page: &[u8]) -> bool {
        if !self.is_kept {
            return false;
        }
        self.clear();
        let (mut page, mut key, mut action) = (page, 0, 0);
        for at in 0..self.lines.len() {
            let Some(&line) = self.lines.get(at) else { return false };
            let key_end = line.key_end as usize;
            let Some(rest) = self.keys.get(key..key_end).and_then(|key| page.strip_prefix(key))
            else {
                return false;
            };
            key = key_end;
            page = rest;
            let end = line.actions_end as usize;
            if line.has_value {
                let Some(end_of_line) = page.iter().position(|byte| *byte == b'\n') else {
                    return false;
                };
                let (value, rest) = page.split_at(end_of_line);
                let Ok(value) = value_and_rest(value) else { return false };
                page = rest.get(1..).unwrap_or_default();
                for at in action..end {
                    if let Some(&action) = self.actions.get(at) {
                        self.act(action, value);
                    }
                }
            }
            action = end;
        }
        page.is_empty()
    }

    fn clear(&mut self) {
        self.started = None;
        for series in &mut self.numbers {
            (series.value, series.newest) = (None, f64::NEG_INFINITY);
        }
        for series in &mut self.histograms {
            series.up_to.fill(0.0);
            series.sum = 0.0;
        }
    }

    /// Takes a value of the page.
    pub(super) fn act(&mut self, action: Action, value: f64) {
        match action {
            Action::Started => self.started = Some(value),
            Action::Number(series) => {
                if let Some(series) = self.numbers.get_mut(series as usize) {
                    series.take(value);
                }
            }
            Action::Label(series, number) => {
                if let Some(series) = self.numbers.get_mut(series as usize).filter(|_| value != 0.0)
                {
                    series.take(number);
                }
            }
            Action::Newest(series, number) => {
                if let Some(series) = self.numbers.get_mut(series as usize) {
                    series.take_newest(number, value);
                }
            }
            Action::Bucket(series, bucket) => {
                let series = self.histograms.get_mut(series as usize);
                if let Some(up_to) = series.and_then(|s| s.up_to.get_mut(bucket as usize)) {
                    *up_to += value;
                }
            }
            Action::Sum(series) => {
                if let Some(series) = self.histograms.get_mut(series as usize) {
                    series.sum += value;
                }
            }
        }
    }

    /// Pushes what the last page filled; how many histograms made no sense.
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

    /// Keeps what is to be said of the page only.
    pub(super) fn forget(&mut self) {
        *self = Self {
            notes: std::mem::take(&mut self.notes),
            started: self.started,
            ..Self::default()
        };
    }

    pub(super) fn summary(&self, samples: usize, unsound: usize) -> PageSummary<'_> {
        let notes = &self.notes;
        PageSummary {
            engine: notes.engine,
            models: &notes.models,
            started: self.started,
            samples,
            unknown: &notes.unknown,
            unknown_count: notes.unknown_count,
            missing: &notes.missing,
            bad_lines: notes.bad_lines,
            first_bad: notes.first_bad,
            unsound,
            left_out: notes.left_out,
            folded: 0,
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
