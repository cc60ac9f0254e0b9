//! Histograms of a page: their buckets, in whatever order they are, as one distribution.

use super::super::exposition::LineError;
use super::super::table::Family;
use super::series::{HistogramSeries, PageSeries};
use gpuwho_model::labels::LabelSet;
use std::collections::HashMap;
use std::sync::Arc;

/// Bounds of a histogram that are kept. TGI's batch size has 1024; the others have 100 at most.
pub(super) const MAX_BOUNDS: usize = 128;

/// A histogram as the page has it: the labels that are dropped tell several apart.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) family: &'static Family,
    pub(super) labels: Option<LabelSet>,
    /// Its first line, from 0.
    pub(super) line: usize,
    /// Bounds, and the observations up to each.
    pub(super) buckets: Vec<(f64, f64)>,
    pub(super) sum: Option<f64>,
    pub(super) count: Option<f64>,
}

impl Upstream {
    /// The sum, with bounds ascending, each once, the last infinite; without that one, all observations
    /// take its place.
    fn complete(&mut self) -> Option<f64> {
        self.buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        self.buckets.dedup_by(|(a, _), (b, _)| a.total_cmp(b).is_eq());
        if self.buckets.last().is_none_or(|(bound, _)| *bound != f64::INFINITY) {
            let count = self.count?;
            self.buckets.push((f64::INFINITY, count));
        }
        self.sum.filter(|_| self.buckets.iter().all(|(bound, _)| !bound.is_nan()))
    }

    /// Leaves out so many buckets that few stay. Each holds all observations up to its bound, so
    /// what stays is exact.
    fn thin(&mut self) {
        let many = self.buckets.len() > MAX_BOUNDS;
        let mut last = f64::NEG_INFINITY;
        self.buckets.retain(|(bound, _)| {
            let stays = !many || *bound <= 0.0 || *bound >= last * 1.05;
            if stays {
                last = *bound;
            }
            stays
        });
        let every = self.buckets.len().div_ceil(MAX_BOUNDS);
        let mut from_end = self.buckets.len();
        self.buckets.retain(|_| {
            from_end -= 1;
            from_end.is_multiple_of(every)
        });
    }
}

/// The page's histograms as series.
pub(super) fn fill(upstream: Vec<Upstream>, page: &mut PageSeries) {
    let mut all_bounds: HashMap<Vec<u64>, Arc<[f64]>> = HashMap::new();
    let mut series: HashMap<(&'static str, Option<LabelSet>), usize> = HashMap::new();
    for mut one in upstream {
        let Some(sum) = one.complete() else {
            page.notes.bad(one.line, LineError::Buckets);
            continue;
        };
        one.thin();
        let scale = one.family.scale;
        let bounds = one.buckets.iter().map(|(bound, _)| scale.of(*bound));
        let bounds: Vec<f64> = bounds.filter(|bound| *bound != f64::INFINITY).collect();
        let key = (one.family.metric.name, one.labels.clone());
        let place = *series.entry(key).or_insert_with(|| {
            // Shared with a histogram that has the same ones.
            let bits = bounds.iter().map(|bound| bound.to_bits()).collect();
            let bounds = all_bounds.entry(bits).or_insert_with(|| Arc::from(&*bounds));
            let bounds = Arc::clone(bounds);
            page.histograms.push(HistogramSeries::new(one.family, one.labels, bounds));
            page.histograms.len() - 1
        });
        let known = page.histograms.get_mut(place);
        match known.filter(|known| *known.bounds() == *bounds) {
            Some(known) => known.add(one.buckets.into_iter().map(|(_, up_to)| up_to), sum),
            None => page.notes.bad(one.line, LineError::Buckets),
        }
    }
}
