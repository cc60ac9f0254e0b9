//! Which series the registry keeps: the selection, and the limit of their number.

use super::SeriesRegistry;
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::sample::{Batch, Sample};

impl SeriesRegistry {
    /// Exports these metrics from now on. Series of others end with the next batch of their source.
    pub fn set_selection(&mut self, selection: Selection) {
        if self.selection.families() != selection.families() {
            let all = self.sources.values_mut().flat_map(|source| &mut source.series);
            let alive = all.filter_map(|(key, series)| {
                series.place.family = selection.family(key.metric);
                (!series.ended).then_some(series.place)
            });
            self.limit.set_families(&selection, alive);
        }
        self.selection = selection;
    }

    /// Changes the limit of the number of series. Below the number of live ones, those that are there
    /// stay, and new ones find no room.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit.set(limit);
    }

    /// Removes the samples that are not exported. One hash lookup for each 0 that may say nothing.
    pub fn select(&self, batch: &mut Batch) {
        let known = self.sources.get(&batch.of);
        let has_begun =
            |sample: &Sample| known.is_some_and(|source| source.known(sample).is_some());
        batch.samples.retain(|(_, sample)| {
            self.selection.wants(sample.metric)
                && !self.selection.is_detail(sample)
                && (!self.selection.is_unused(sample) || has_begun(sample))
        });
    }
}
