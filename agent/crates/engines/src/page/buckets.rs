//! Histograms of a page: their buckets' lines, in whatever order they are, as one distribution.

use super::super::exposition::LineError;
use super::super::table::Family;
use super::shape::{Action, HistogramSeries, Shape};
use gpuwho_model::labels::LabelSet;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Bounds of a histogram that are kept. TGI's batch size has 1024; the others have 100 at most.
pub(super) const MAX_BOUNDS: usize = 128;

/// A histogram as the page has it: the labels that are dropped tell several apart.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) family: &'static Family,
    pub(super) labels: Option<LabelSet>,
    /// Bounds and their lines.
    pub(super) buckets: Vec<(f64, usize)>,
    pub(super) sum: Option<usize>,
    pub(super) count: Option<usize>,
}

impl Upstream {
    /// Bounds ascending, each once, the last infinite; without that one, all observations' line
    /// takes its place.
    fn complete(&mut self) -> bool {
        self.buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        self.buckets.dedup_by(|(a, _), (b, _)| a.total_cmp(b).is_eq());
        if self.buckets.last().is_none_or(|(bound, _)| *bound != f64::INFINITY) {
            let Some(count) = self.count else { return false };
            self.buckets.push((f64::INFINITY, count));
        }
        self.sum.is_some() && self.buckets.iter().all(|(bound, _)| !bound.is_nan())
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

/// The page's histograms as series, each line with what becomes of it.
pub(super) fn plan(upstream: Vec<Upstream>, shape: &mut Shape, actions: &mut Vec<(usize, Action)>) {
    let mut all_bounds: HashMap<Vec<u64>, Arc<[f64]>> = HashMap::new();
    let mut series: HashMap<(&'static str, Option<LabelSet>), u32> = HashMap::new();
    for mut one in upstream {
        let first = one.buckets.first().map_or(0, |(_, line)| *line);
        if !one.complete() {
            shape.notes.bad(first, LineError::Buckets);
            continue;
        }
        one.thin();
        let scale = one.family.scale;
        let bounds = one.buckets.iter().map(|(bound, _)| scale.of(*bound));
        let bounds: Vec<f64> = bounds.filter(|bound| *bound != f64::INFINITY).collect();
        let place = match series.entry((one.family.metric.name, one.labels.clone())) {
            Entry::Occupied(entry) => {
                let place = *entry.get();
                let known = shape.histograms.get(place as usize);
                if known.is_none_or(|known| *known.bounds() != *bounds) {
                    shape.notes.bad(first, LineError::Buckets);
                    continue;
                }
                place
            }
            Entry::Vacant(entry) => {
                let Ok(place) = u32::try_from(shape.histograms.len()) else { return };
                // Shared with a histogram that has the same ones.
                let bits = bounds.iter().map(|bound| bound.to_bits()).collect();
                let bounds = all_bounds.entry(bits).or_insert_with(|| Arc::from(bounds));
                let bounds = Arc::clone(bounds);
                shape.histograms.push(HistogramSeries::new(one.family, one.labels, bounds));
                *entry.insert(place)
            }
        };
        actions.extend(one.sum.map(|line| (line, Action::Sum(place))));
        let buckets = (0..).zip(&one.buckets);
        actions.extend(buckets.map(|(at, (_, line))| (*line, Action::Bucket(place, at))));
    }
}
