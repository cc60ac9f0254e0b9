//! One source's series: finds or adds a sample's, and ends those without one.

use super::REMEMBER_NS;
use super::identity::SubjectLookup;
use super::limit::Place;
use super::limits::SeriesLimits;
use super::one::{Cumulative, Series};
use super::parts::PartStore;
use super::subjects::{Number, Subjects};
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::catalog::{DimIndexes, Kind, MetricDef};
use gpuwho_model::labels::LabelSet;
use gpuwho_model::point::{EnrichedBatch, Point};
use gpuwho_model::sample::{Batch, Sample};
use gpuwho_model::subject::SeriesClass;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The series of a part of a source.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) generation: u32,
    /// Of the source's last batch.
    pub(super) epoch: u64,
    pub(super) subjects: Subjects,
    pub(super) series: HashMap<Key, Series, foldhash::quality::RandomState>,
}

/// Identifies a series of a source, apart from its subject's current attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) metric: &'static MetricDef,
    subject: Number,
    dims: DimIndexes,
    labels: Option<LabelSet>,
}

impl Key {
    fn of(sample: &Sample, subject: Number) -> Self {
        let Sample { metric, dims, labels, .. } = sample;
        Self { metric, subject, dims: *dims, labels: labels.clone() }
    }
}

/// The place of a sample's series of a family, by its weight.
pub(super) fn place(
    sample: &Sample,
    (weight, family): (u32, Option<u8>),
    lookup: &mut SubjectLookup<'_>,
) -> Place {
    let owner = lookup.owner(sample.subject);
    Place { family, ..Place::new(sample.subject.class(sample.metric), weight, owner) }
}

/// A sample's value and time, and the start time of its series if the series is new.
#[derive(Clone, Copy)]
pub(super) struct NewPoint {
    pub(super) value: Cumulative,
    pub(super) time_ns: u64,
    pub(super) start_ns: u64,
    /// How many series it counts as at the limit, and the family of its metric.
    pub(super) counts: (u32, Option<u8>),
}

/// Where a source's points go.
pub(super) struct Output<'a> {
    pub(super) limit: &'a mut SeriesLimits,
    pub(super) parts: &'a mut PartStore,
    pub(super) batch: &'a mut EnrichedBatch,
}

impl Source {
    /// Adds a sample; `known` is its subject's number and version, if it has series.
    pub(super) fn add(
        &mut self,
        (sample, known): (&Sample, &mut Option<(Number, u32)>),
        point: NewPoint,
        lookup: &mut SubjectLookup<'_>,
        to: &mut Output<'_>,
    ) {
        let NewPoint { value, time_ns, .. } = point;
        let generation = self.generation;
        let Some((series, version)) = self.admit((sample, known), point, lookup, to) else {
            return;
        };
        if series.version != version {
            series.version = version;
            if let Some(end) = series.identify((sample, time_ns), lookup, to) {
                to.batch.push(end);
            }
        }
        let metric = sample.metric;
        let restarted = metric.kind != Kind::UpDownCounter && value < series.last;
        if restarted {
            series.start_ns = series.last_ns;
        }
        if time_ns < series.last_ns {
            // The clock was set back: a series must not start after its own point.
            series.start_ns = time_ns;
        }
        series.last = value;
        series.last_ns = time_ns;
        series.generation = generation;
        series.ended = false;
        to.batch.push(Point {
            metric,
            labels: Arc::clone(&series.labels),
            value: Some(sample.value.clone()),
            start_ns: if metric.kind == Kind::Gauge { 0 } else { series.start_ns },
            time_ns,
        });
    }

    /// The series of a sample, added if it is new, and the version of its subject's identity; `None`
    /// if the limit drops it.
    fn admit(
        &mut self,
        (sample, known): (&Sample, &mut Option<(Number, u32)>),
        point: NewPoint,
        lookup: &mut SubjectLookup<'_>,
        to: &mut Output<'_>,
    ) -> Option<(&mut Series, u32)> {
        let Some((subject, version)) = *known else {
            let place = place(sample, point.counts, lookup);
            if !to.limit.admit(place) {
                return None;
            }
            let identity = lookup.identity(sample.subject).clone();
            let (subject, version) = self.subjects.add(sample.subject, self.epoch, identity);
            *known = Some((subject, version));
            let series = Series::new((place, version), point, lookup.labels(sample, to.parts));
            let entry = self.series.entry(Key::of(sample, subject)).insert_entry(series);
            return Some((entry.into_mut(), version));
        };
        let series = match self.series.entry(Key::of(sample, subject)) {
            Entry::Occupied(entry) if entry.get().ended => {
                let series = entry.into_mut();
                series.place = place(sample, point.counts, lookup);
                if !to.limit.admit(series.place) {
                    return None;
                }
                to.limit.forget();
                series
            }
            Entry::Occupied(entry) => {
                if to.limit.evicts(entry.get().place) {
                    to.batch.push(entry.remove().end(sample.metric, point.time_ns));
                    return None;
                }
                entry.into_mut()
            }
            Entry::Vacant(entry) => {
                let place = place(sample, point.counts, lookup);
                if !to.limit.admit(place) {
                    return None;
                }
                let labels = lookup.labels(sample, to.parts);
                entry.insert(Series::new((place, version), point, labels))
            }
        };
        Some((series, version))
    }

    /// A sample's series, alive or remembered.
    pub(super) fn known(&self, sample: &Sample) -> Option<&Series> {
        let subject = self.subjects.number(sample.subject)?;
        self.series.get(&Key::of(sample, subject))
    }

    /// How many new series of devices a batch has, of a family or of all.
    pub(super) fn new_of_devices(
        &self,
        batch: &Batch,
        selection: &Selection,
        family: Option<u8>,
    ) -> usize {
        let is_new = |sample: &Sample| {
            sample.subject.class(sample.metric) == SeriesClass::Device
                && (family.is_none() || selection.family(sample.metric) == family)
                && self.known(sample).is_none_or(|series| series.ended)
        };
        batch.samples.iter().filter(|(_, sample)| is_new(sample)).count()
    }

    pub(super) fn end_missing(
        &mut self,
        now_ns: u64,
        limit: &mut SeriesLimits,
        out: &mut EnrichedBatch,
    ) {
        let generation = self.generation;
        let before = self.series.len();
        self.series.retain(|key, series| {
            if series.generation == generation {
                return true;
            }
            if !series.ended {
                series.ended = true;
                limit.release(series.place);
                out.push(series.end(key.metric, now_ns.max(series.last_ns)));
                // Only cumulative metrics have a start time to store.
                let counts = matches!(key.metric.kind, Kind::Counter | Kind::Histogram);
                return counts && limit.remember(series.place);
            }
            let stays = now_ns.saturating_sub(series.last_ns) < REMEMBER_NS;
            if !stays {
                limit.forget();
            }
            stays
        });
        if self.series.len() < before {
            self.subjects.retain(self.series.keys().map(|key| key.subject));
        }
    }
}
