//! The limit of all series of this host, and those of families of metrics (`[metrics] limits`).
//!
//! A series needs room in both. In a family the owners share as they do in the whole, but for one thing:
//! an owner's series are all of one class, so a family of collectives may fill its limit.
//!
//! Cost: that of one [`SeriesLimit`], twice for a series of a family.

use super::limit::{Needed, Place, SeriesLimit};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::catalog::selection::{Family, Selection};
use gpuwho_model::sample::SourcePart;
use gpuwho_model::status::Report;
use gpuwho_model::subject::SeriesClass;
use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::HashMap;

/// All limits.
#[derive(Debug)]
pub(super) struct SeriesLimits {
    host: Limit,
    families: Vec<(Family, Limit)>,
    /// Points that families before a reload have dropped.
    dropped_before: u64,
}

/// A limit, and what the last batches lacked.
#[derive(Debug)]
struct Limit {
    series: SeriesLimit,
    /// The sources whose last batch lost series: how many, and those entitled to room.
    short: HashMap<SourcePart, (usize, Needed)>,
}

impl Limit {
    fn new(limit: usize) -> Self {
        Self { series: SeriesLimit::new(limit), short: HashMap::new() }
    }

    fn begin(&mut self, samples: usize, of_devices: impl FnOnce() -> usize) {
        let mut needed = Needed::default();
        for (_, more) in self.short.values() {
            needed.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        self.series.begin(samples, needed, of_devices);
    }

    fn finish(&mut self, of: SourcePart) {
        match self.series.finish() {
            (0, _) => self.short.remove(&of),
            short => self.short.insert(of, short),
        };
    }

    /// Series dropped from the last batches of all sources.
    fn refused(&self) -> usize {
        self.short.values().map(|(refused, _)| refused).sum()
    }
}

impl SeriesLimits {
    /// Starts without series and families.
    pub(super) fn new(limit: usize) -> Self {
        Self { host: Limit::new(limit), families: Vec::new(), dropped_before: 0 }
    }

    /// Changes the limit of all series.
    pub(super) fn set(&mut self, limit: usize) {
        self.host.series.set(limit);
    }

    /// Changes the families; `alive` are the live series, counted in their new ones. Those that are
    /// there stay, also above a limit.
    pub(super) fn set_families(
        &mut self,
        selection: &Selection,
        alive: impl Iterator<Item = Place>,
    ) {
        self.dropped_before = self.dropped_by_families();
        let new = |family: &Family| (family.clone(), Limit::new(family.limit));
        self.families = selection.families().iter().map(new).collect();
        for place in alive {
            if let Some(family) = self.family(place) {
                family.series.count(in_family(place));
            }
        }
    }

    /// The weight of the live series.
    pub(super) fn alive(&self) -> usize {
        self.host.series.alive()
    }

    /// Starts a batch of `samples` samples. `of_devices` counts the batch's new series of devices, of one
    /// family or of all, and is called only where room may be short.
    pub(super) fn begin(&mut self, samples: usize, of_devices: impl Fn(Option<u8>) -> usize) {
        self.host.begin(samples, || of_devices(None));
        for (number, (_, family)) in (0..).zip(&mut self.families) {
            family.begin(samples, || of_devices(Some(number)));
        }
    }

    /// Ends a batch of a source.
    pub(super) fn finish(&mut self, of: SourcePart) {
        self.host.finish(of);
        self.families.iter_mut().for_each(|(_, family)| family.finish(of));
    }

    /// Ends a source.
    pub(super) fn end(&mut self, of: SourcePart) {
        self.host.short.remove(&of);
        self.families.iter_mut().for_each(|(_, family)| {
            family.short.remove(&of);
        });
    }

    /// Whether there is room for a new series; if so, counts it.
    pub(super) fn admit(&mut self, place: Place) -> bool {
        if self.family(place).is_some_and(|family| !family.series.admit(in_family(place))) {
            return false;
        }
        let fits = self.host.series.admit(place);
        if !fits && let Some(family) = self.family(place) {
            family.series.release(in_family(place));
        }
        fits
    }

    /// Whether a live series is evicted for other owners' series; it has then ended.
    pub(super) fn evicts(&mut self, place: Place) -> bool {
        if self.family(place).is_some_and(|family| family.series.evicts(in_family(place))) {
            self.host.series.release(place);
            return true;
        }
        let leaves = self.host.series.evicts(place);
        if leaves && let Some(family) = self.family(place) {
            family.series.release(in_family(place));
        }
        leaves
    }

    /// Counts a series that ended.
    pub(super) fn release(&mut self, place: Place) {
        self.host.series.release(place);
        if let Some(family) = self.family(place) {
            family.series.release(in_family(place));
        }
    }

    /// Counts a series that another owner has now.
    pub(super) fn moved(&mut self, from: Place, to: Place) {
        self.release(from);
        self.host.series.count(to);
        if let Some(family) = self.family(to) {
            family.series.count(in_family(to));
        }
    }

    /// Whether to store an ended counter's start.
    pub(super) fn remember(&mut self, place: Place) -> bool {
        self.host.series.remember(place)
    }

    /// Counts a stored start that was removed or is used again.
    pub(super) fn forget(&mut self) {
        self.host.series.forget();
    }

    /// Returns the points dropped for each owner since the last call.
    pub(super) fn take_refused(&mut self) -> Vec<(QuotaKey, u64)> {
        let mut refused: HashMap<QuotaKey, u64> = HashMap::new();
        let families = self.families.iter_mut().map(|(_, family)| family);
        for limit in std::iter::once(&mut self.host).chain(families) {
            for (owner, count) in limit.series.take_refused() {
                *refused.entry(owner).or_default() += count;
            }
        }
        refused.into_iter().collect()
    }

    /// The limits' status. `worst` is the owner of most dropped points; `None` if nothing was ever
    /// dropped.
    pub(super) fn report(&self, worst: Option<(String, u64)>) -> Option<Report> {
        let dropped = [
            (DropReason::SeriesLimit, self.host.series.lost()),
            (DropReason::MetricLimit, self.dropped_by_families()),
        ];
        if dropped.iter().all(|(_, count)| *count == 0) {
            return None;
        }
        let sentence = |limit: &Limit, of: &str, key: &str| {
            let (refused, alive, most) =
                (limit.refused(), limit.series.alive(), limit.series.limit());
            (refused > 0).then(|| {
                format!("{refused} series{of} are dropped: {alive} exist and the limit is {most} ({key})")
            })
        };
        let whole = sentence(&self.host, "", "agent.series_limit");
        let families = self.families.iter().filter_map(|(family, limit)| {
            sentence(limit, &format!(" of {}", family.pattern), "metrics.limits")
        });
        let raise = if whole.is_some() { "agent.series_limit" } else { "metrics.limits" };
        let mut reasons: Vec<String> = whole.into_iter().chain(families).collect();
        let mut report = Report::ready();
        if !reasons.is_empty() {
            reasons.extend(
                worst.map(|(owner, count)| format!("most of them ({count}) are of {owner}")),
            );
            let remedy = format!("raise {raise}, or send less: metrics.level and metrics.exclude");
            report = Report::of(SourceState::Degraded, reasons.join("; "), remedy);
        }
        report.dropped = dropped.into_iter().filter(|(_, count)| *count > 0).collect();
        Some(report)
    }

    fn dropped_by_families(&self) -> u64 {
        let now = self.families.iter().map(|(_, family)| family.series.lost());
        self.dropped_before + now.sum::<u64>()
    }

    fn family(&mut self, place: Place) -> Option<&mut Limit> {
        Some(&mut self.families.get_mut(usize::from(place.family?))?.1)
    }
}

/// A place in its family, in which an owner's series are all of one class.
fn in_family(place: Place) -> Place {
    Place { rank: place.rank.max(SeriesClass::Basic), ..place }
}

#[cfg(test)]
mod tests;
