//! The series of a source, by subject: a list of each one's, in the order of its samples. A table by the
//! whole key would be half empty, and have the subject in every key.
//!
//! Cost: in the steady state a sample's series is the one after the last sample's; another is searched for
//! among its subject's.

use super::one::Series;
use super::subjects::Number;
use crate::catalog::{DimIndexes, MetricDef};
use crate::labels::LabelSet;
use crate::sample::Sample;

/// All series.
#[derive(Debug, Default)]
pub(super) struct SeriesStore(Vec<OfSubject>);

/// The series of a subject.
#[derive(Debug, Default)]
pub(super) struct OfSubject {
    series: Vec<(Key, Series)>,
    /// The place after the one that was found last.
    next: usize,
}

/// Identifies a series among its subject's.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) metric: &'static MetricDef,
    dims: DimIndexes,
    labels: Option<LabelSet>,
}

impl Key {
    fn is_of(&self, sample: &Sample) -> bool {
        *self.metric == *sample.metric && self.dims == sample.dims && self.labels == sample.labels
    }
}

impl SeriesStore {
    /// A subject's series, which may be none yet.
    pub(super) fn of(&mut self, subject: Number) -> Option<&mut OfSubject> {
        let place = subject as usize;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, OfSubject::default);
        }
        self.0.get_mut(place)
    }

    /// A sample's series, if its subject has it.
    pub(super) fn get(&self, subject: Number, sample: &Sample) -> Option<&Series> {
        let series = &self.0.get(subject as usize)?.series;
        series.iter().find(|(key, _)| key.is_of(sample)).map(|(_, series)| series)
    }

    /// Whether a subject has series.
    pub(super) fn has(&self, subject: Number) -> bool {
        self.0.get(subject as usize).is_some_and(|of| !of.series.is_empty())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|of| of.series.len()).sum()
    }

    /// All of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Series)> {
        self.0.iter_mut().flat_map(|of| of.series.iter_mut().map(|(key, series)| (&*key, series)))
    }

    /// Removes those that do not stay.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&Key, &mut Series) -> bool) {
        for of in &mut self.0 {
            of.series.retain_mut(|(key, series)| stays(key, series));
            if of.series.is_empty() {
                *of = OfSubject::default();
            }
        }
    }
}

impl OfSubject {
    /// The place of a sample's series.
    pub(super) fn find(&mut self, sample: &Sample) -> Option<usize> {
        let is_it = |(key, _): &(Key, Series)| key.is_of(sample);
        let place = match self.series.get(self.next) {
            Some(next) if is_it(next) => self.next,
            _ => self.series.iter().position(is_it)?,
        };
        self.next = place + 1;
        Some(place)
    }

    /// The series at a place.
    pub(super) fn at(&mut self, place: usize) -> Option<&mut Series> {
        self.series.get_mut(place).map(|(_, series)| series)
    }

    /// Adds a sample's series, after the one that was found last.
    pub(super) fn insert(&mut self, sample: &Sample, series: Series) -> Option<&mut Series> {
        let Sample { metric, dims, labels, .. } = sample;
        let key = Key { metric, dims: *dims, labels: labels.clone() };
        if self.series.len() == self.series.capacity() {
            // Most subjects have ten to twenty, and no more after their first samples.
            self.series.reserve_exact(self.series.len() / 8 + 1);
        }
        let place = self.next.min(self.series.len());
        self.next = place + 1;
        self.series.insert(place, (key, series));
        self.at(place)
    }

    /// Removes the series at a place.
    pub(super) fn remove(&mut self, place: usize) {
        if place < self.series.len() {
            self.series.remove(place);
            self.next = place;
        }
    }
}
