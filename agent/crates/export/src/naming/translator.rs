//! Makes the points of a naming profile from native ones, by the profile's table.
//!
//! Each native series feeds the outputs of the rows that name it; what it feeds is found when it
//! begins. One hash look-up a point of a metric that some row has, and no allocation for a series that
//! continues. Series and outputs are bounded by the native series that feed them.

use super::slot::Slot;
use super::window::Window;
use crate::resource::Resource;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use gpuwho_model::catalog::profile::{Input, Origin, Part, Per, Rename, Row, Table, keys};
use gpuwho_model::catalog::{self, Kind, MetricDef, attributes as attr};
use gpuwho_model::point::{EnrichedBatch, Labels, Point, Reading};
use gpuwho_model::sample::Histogram;
use std::collections::HashMap;
use std::sync::Arc;

/// Attributes of a device, which stay where a row is of each device.
const OF_DEVICE: [&AttrKey; 4] =
    [&attr::GPU_UUID, &attr::GPU_INDEX, &attr::GPU_MODEL, &attr::GPU_VENDOR];

/// The translator into one profile.
#[derive(Debug)]
pub(super) struct Translator {
    table: &'static Table,
    rules: Vec<Rule>,
    /// The inputs of rules, by the native metric's place in the catalogue.
    by_metric: Vec<Vec<(usize, Role)>>,
    /// Attributes of the host for every point.
    host: AttrSet,
    /// By metric and the address of the labels.
    series: HashMap<(usize, usize), Series>,
    outputs: HashMap<(usize, AttrSet), usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Outputs that this batch changes, by rule.
    touched: Vec<(usize, usize)>,
    generation: u64,
}

/// A row with its metric.
#[derive(Debug)]
struct Rule {
    row: &'static Row,
    metric: &'static MetricDef,
}

/// Which input of a row a series is: of the first origin or of its replacement, divided or divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Role {
    is_second: bool,
    is_divisor: bool,
}

impl Role {
    fn at(self) -> usize {
        usize::from(self.is_second) * 2 + usize::from(self.is_divisor)
    }

    fn origin(self, row: &'static Row) -> &'static Origin {
        if self.is_second { &row.or } else { &row.from }
    }
}

/// A native series.
#[derive(Debug)]
struct Series {
    /// Held, so that no other series has the address.
    _labels: Arc<Labels>,
    feeds: Vec<Feed>,
}

/// What a native series does to one output.
#[derive(Debug)]
struct Feed {
    slot: usize,
    rule: usize,
    role: Role,
    scale: f64,
    part: Part,
    number: Window<f64>,
    buckets: Window<Vec<u64>>,
}

impl Translator {
    /// A translator by a table. With the native names beside it, rows that have a native name are
    /// left out: the native series is there.
    pub(super) fn new(table: &'static Table, has_native: bool, host: &Resource) -> Self {
        let is_native = |name: &str| catalog::all().any(|metric| metric.name == name);
        let served = table.served().filter(|(row, _)| !(has_native && is_native(row.name)));
        let rules: Vec<_> = served.map(|(row, metric)| Rule { row, metric }).collect();
        let mut by_metric: Vec<Vec<_>> = catalog::all().map(|_| Vec::new()).collect();
        for (at, Rule { row, .. }) in rules.iter().enumerate() {
            for (is_second, origin) in [(false, &row.from), (true, &row.or)] {
                for (input, is_divisor) in origin.inputs().into_iter().zip([false, true]) {
                    let Some(input) = input else { continue };
                    let place = usize::from(catalog::index_of(input.metric));
                    if let Some(inputs) = by_metric.get_mut(place) {
                        inputs.push((at, Role { is_second, is_divisor }));
                    }
                }
            }
        }
        let mut of_host = AttrSet::new();
        for key in table.of_host {
            let value = host.iter().find(|(known, _)| *known == key.name);
            of_host.set_some(key, value.map(|(_, value)| value.clone()));
        }
        Self {
            table,
            rules,
            by_metric,
            host: of_host,
            series: HashMap::new(),
            outputs: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            generation: 0,
        }
    }

    /// Writes the profile's points of a batch to `out`, those of a metric together.
    pub(super) fn translate(&mut self, batch: &EnrichedBatch, out: &mut EnrichedBatch) {
        self.generation += 1;
        self.touched.clear();
        for point in &batch.points {
            let place = usize::from(catalog::index_of(point.metric));
            if self.by_metric.get(place).is_some_and(|inputs| !inputs.is_empty()) {
                self.take(point, place);
            }
        }
        self.touched.sort_unstable();
        for at in 0..self.touched.len() {
            let Some((rule, slot)) = self.touched.get(at).copied() else { continue };
            let Some(Rule { row, metric }) = self.rules.get(rule) else { continue };
            let Some(Some(output)) = self.slots.get_mut(slot) else { continue };
            if let Some(point) = output.point(row, metric) {
                out.points.push(point);
            }
            if output.feeds == 0 {
                self.outputs.remove(&(rule, output.labels.to_set()));
                if let Some(place) = self.slots.get_mut(slot) {
                    *place = None;
                }
                self.free.push(slot);
            }
        }
    }

    fn take(&mut self, point: &Point, place: usize) {
        let Some(reading) = point.reading() else { return };
        let key = (place, Arc::as_ptr(&point.labels).addr());
        if !self.series.contains_key(&key) {
            if point.value.is_none() {
                return;
            }
            let feeds = self.feeds(point, place);
            self.series.insert(key, Series { _labels: Arc::clone(&point.labels), feeds });
        }
        let Self { series, slots, touched, rules, generation, .. } = self;
        let Some(known) = series.get_mut(&key) else { return };
        for feed in &mut known.feeds {
            let Some(Some(slot)) = slots.get_mut(feed.slot) else { continue };
            let Some(Rule { row, .. }) = rules.get(feed.rule) else { continue };
            if slot.generation != *generation {
                slot.begin(*generation);
                touched.push((feed.rule, feed.slot));
            }
            slot.time_ns = slot.time_ns.max(point.time_ns);
            if matches!(reading, Reading::Ended) {
                slot.feeds = slot.feeds.saturating_sub(1);
            } else {
                slot.start_ns = slot.start_ns.max(point.start_ns);
                feed.take(row, point, reading, slot);
            }
        }
        if matches!(reading, Reading::Ended) {
            series.remove(&key);
        }
    }

    /// What a new series feeds. Makes the outputs that are not there yet.
    fn feeds(&mut self, point: &Point, place: usize) -> Vec<Feed> {
        let mut feeds = Vec::new();
        let set = &point.labels;
        for at in 0..self.by_metric.get(place).map_or(0, Vec::len) {
            let Some((rule, role)) = self.by_metric.get(place).and_then(|all| all.get(at)).copied()
            else {
                continue;
            };
            let Some(Rule { row, .. }) = self.rules.get(rule) else { continue };
            let origin = role.origin(row);
            let [first, second] = origin.inputs();
            let Some(input) = (if role.is_divisor { second } else { first }) else { continue };
            let Some(scale) = scale(origin, &input, set) else { continue };
            let labels = self.labels(row, &input, point.metric, set);
            let slot = self.slot(rule, labels);
            if let Some(Some(output)) = self.slots.get_mut(slot) {
                output.feeds += 1;
            }
            let (number, buckets) = <(Window<f64>, Window<Vec<u64>>)>::default();
            feeds.push(Feed { slot, rule, role, scale, part: input.part, number, buckets });
        }
        feeds
    }

    fn slot(&mut self, rule: usize, labels: AttrSet) -> usize {
        if let Some(slot) = self.outputs.get(&(rule, labels.clone())) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Slot::new(Arc::new(Labels::new(labels.clone()))));
        }
        self.outputs.insert((rule, labels), slot);
        slot
    }

    /// The attributes of an output that a series feeds.
    fn labels(
        &self,
        row: &'static Row,
        input: &Input,
        metric: &'static MetricDef,
        set: &Labels,
    ) -> AttrSet {
        let mut out = AttrSet::new();
        let is = |a: &AttrKey, b: &AttrKey| a.name == b.name;
        for (key, value) in set.iter().filter(|_| row.per != Per::Host) {
            if let Some((_, kept)) = input.keep.iter().find(|(from, _)| is(from, key)) {
                out.set(kept, value.clone());
            } else if !metric.dims.iter().any(|dim| is(dim.key, key))
                && (row.per != Per::Device || OF_DEVICE.iter().any(|of| is(of, key)))
            {
                match self.table.renames.iter().find(|rename| is(rename.from, key)) {
                    None => out.set(key, value.clone()),
                    Some(Rename { to, stays, .. }) => {
                        out.set_some(key, stays.then(|| value.clone()));
                        if let Some(to) = to {
                            out.set(to, value.clone());
                        }
                    }
                }
            }
        }
        for (key, value) in row.with {
            out.set(key, *value);
        }
        if let (Per::Part(dim, prefix), Some(device)) = (row.per, set.get(&attr::GPU_UUID)) {
            let part = set.get(dim).map(ToString::to_string).unwrap_or_default();
            out.set(&keys::HW_PARENT, device.clone());
            out.set(&keys::HW_ID, format!("{device}/{prefix}{part}").as_str());
        }
        out.extend(&self.host);
        out
    }
}

/// What a series' number is multiplied by; `None` where the row does not want it.
fn scale(origin: &Origin, input: &Input, set: &Labels) -> Option<f64> {
    let text = |key: &AttrKey| set.get(key).and_then(|value| value.as_text());
    let is_one = |(key, values): &(&AttrKey, &[&str])| {
        text(key).is_some_and(|value| values.contains(&value))
    };
    if !input.only.iter().all(is_one) {
        return None;
    }
    match origin {
        Origin::Bits(_, key, bits) => {
            let value = text(key)?;
            bits.iter().find(|(known, _)| *known == value).map(|(_, bit)| f64::from(*bit))
        }
        _ => Some(input.scale),
    }
}

impl Feed {
    /// Adds a value to its output.
    fn take(&mut self, row: &'static Row, point: &Point, reading: Reading<'_>, slot: &mut Slot) {
        let origin = self.role.origin(row);
        if let (Origin::Quantile(..), Reading::Histogram(histogram)) = (origin, reading) {
            return self.observe(point, histogram, slot);
        }
        if let Origin::Same(_) = origin {
            slot.same.clone_from(&point.value);
            return;
        }
        let (number, is_whole) = match reading {
            Reading::Ended => return,
            Reading::Int(number) => (number as f64, true),
            Reading::Double(number) => (number, false),
            Reading::Histogram(histogram) if self.part == Part::Sum => (histogram.sum, false),
            Reading::Histogram(histogram) => (histogram.count() as f64, true),
        };
        let (scale, is_whole) = (self.scale, is_whole && self.scale.fract() == 0.0);
        let Some(sum) = slot.sums.get_mut(self.role.at()) else { return };
        if !matches!(origin, Origin::Rate(_) | Origin::Increases(..)) {
            return sum.add(number * scale, is_whole);
        }
        let may_decrease = matches!(point.metric.kind, Kind::Gauge | Kind::UpDownCounter);
        let increase = self.number.add(point.start_ns, point.time_ns, number, may_decrease);
        let Some((increase, ns)) = increase else { return };
        match origin {
            Origin::Rate(_) => sum.add(increase * scale / (ns as f64 / 1e9), false),
            _ => sum.add(increase * scale, false),
        }
    }

    fn observe(&mut self, point: &Point, histogram: &Histogram, slot: &mut Slot) {
        let at = usize::from(self.role.is_second);
        let (Some(sums), Some(bounds)) = (slot.buckets.get_mut(at), slot.bounds.get_mut(at)) else {
            return;
        };
        if bounds.as_slice() != &*histogram.bounds {
            // Several series of other bounds cannot be added; the first of a batch is shown.
            if sums.iter().any(|count| *count > 0) {
                return;
            }
            bounds.clear();
            bounds.extend_from_slice(&histogram.bounds);
            sums.clear();
        }
        self.buckets.add(point.start_ns, point.time_ns, &histogram.counts, sums);
    }
}

#[cfg(test)]
mod tests;
