//! What one sink gets of what the agent has: metrics by name, points and events by attribute, events
//! by kind, and readings at a multiple of the interval.
//!
//! At a multiple each series has its latest point: one that is read less often than the interval is not
//! missed, and an end is not either. Holds one point of each live series then, which the series limit
//! bounds.

use super::{Report, Sink};
use gpuwho_model::catalog::attributes::{self, AttrKey, AttrValue};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::catalog::selection::matches;
use gpuwho_model::catalog::{self, MetricDef};
use gpuwho_model::config::{ConfigError, checks};
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_pipeline::cost::receipts;
use gpuwho_pipeline::event::record::Record;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most patterns in a list, and the longest one.
const MAX_PATTERNS: usize = 512;
const MAX_PATTERN_LEN: usize = 128;
/// Most attributes that are compared.
const MAX_ATTRIBUTES: usize = 16;
/// Half a day at the default interval.
const MAX_EVERY: u32 = 4320;

/// A filter as written.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct RawFilter {
    metrics: Option<Vec<String>>,
    exclude: Option<Vec<String>>,
    attributes: BTreeMap<String, Vec<String>>,
    events: Option<Vec<String>>,
    every: Option<u32>,
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// By the metric's place in the catalogue; `None` for all.
    metrics: Option<Box<[bool]>>,
    /// Names of attributes with the patterns of which one must fit.
    attributes: Vec<(String, Vec<String>)>,
    /// Names of kinds of events; `None` for all.
    events: Option<Vec<&'static str>>,
    every: u32,
}

impl Filter {
    /// Lets everything through.
    pub fn all() -> Self {
        Self { metrics: None, attributes: Vec::new(), events: None, every: 1 }
    }

    /// Checks a filter; `key` is its key in the configuration.
    pub fn resolve(key: &str, raw: Option<&RawFilter>) -> Result<Self, ConfigError> {
        let Some(raw) = raw else { return Ok(Self::all()) };
        let every = raw.every.unwrap_or(1);
        if !(1..=MAX_EVERY).contains(&every) {
            let problem = format!("{every} is no multiple of the interval");
            return Err(checks::wrong(&format!("{key}.every"), problem, "write 1 to 4320"));
        }
        let attributes: Vec<_> = raw.attributes.clone().into_iter().collect();
        let of_attributes = format!("{key}.attributes");
        if attributes.len() > MAX_ATTRIBUTES {
            let problem = format!("{} attributes are too many", attributes.len());
            return Err(checks::wrong(&of_attributes, problem, "write 16 or less"));
        }
        for (name, patterns) in &attributes {
            let is_known = attributes::ALL.iter().any(|known| known.name == name)
                || name.starts_with("k8s.pod.label.")
                || name.starts_with("k8s.pod.annotation.");
            if !is_known {
                let problem = format!("there is no attribute `{name}`");
                return Err(checks::wrong(&of_attributes, problem, "METRICS.md lists them"));
            }
            bounded(&of_attributes, patterns)?;
        }
        Ok(Self {
            metrics: metrics(key, raw)?,
            attributes,
            events: raw.events.as_deref().map(|events| kinds(key, events)).transpose()?,
            every,
        })
    }

    /// Whether any metric can pass.
    pub fn has_metrics(&self) -> bool {
        self.metrics.as_ref().is_none_or(|wanted| wanted.contains(&true))
    }

    /// Whether any event can pass.
    pub fn has_events(&self) -> bool {
        self.events.as_ref().is_none_or(|kinds| !kinds.is_empty())
    }

    /// Puts the filter in front of a sink.
    pub fn before(self, sink: Box<dyn Sink>, interval: Duration) -> Box<dyn Sink> {
        if self == Self::all() {
            return sink;
        }
        let latest = (self.every > 1).then(|| Latest::new(interval * self.every, interval));
        Box::new(Filtered { sink, filter: self, latest, out: EnrichedBatch::default() })
    }

    fn wants_metric(&self, metric: &'static MetricDef) -> bool {
        let Some(wanted) = &self.metrics else { return true };
        wanted.get(usize::from(catalog::index_of(metric))).is_some_and(|wanted| *wanted)
    }

    /// Whether it wants attributes, by their names.
    fn wants_attributes(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        self.attributes.iter().all(|(name, patterns)| {
            value(name).is_some_and(|value| patterns.iter().any(|pattern| matches(pattern, &value)))
        })
    }

    fn wants_event(&self, record: &Record) -> bool {
        let is_kind = self.events.as_ref().is_none_or(|kinds| kinds.contains(&record.name));
        is_kind && self.wants_attributes(|name| find(&mut record.attributes.iter(), name))
    }
}

fn find(
    attributes: &mut dyn Iterator<Item = (&'static AttrKey, &AttrValue)>,
    name: &str,
) -> Option<String> {
    let mut named = attributes.filter(|(key, _)| key.name == name);
    named.next().map(|(_, value)| value.to_string())
}

fn metrics(key: &str, raw: &RawFilter) -> Result<Option<Box<[bool]>>, ConfigError> {
    if raw.metrics.is_none() && raw.exclude.is_none() {
        return Ok(None);
    }
    let lists = [("metrics", raw.metrics.as_ref()), ("exclude", raw.exclude.as_ref())];
    for (list, patterns) in lists {
        let key = format!("{key}.{list}");
        let patterns = patterns.map(Vec::as_slice).unwrap_or_default();
        bounded(&key, patterns)?;
        let names = |pattern: &String| catalog::all().any(|metric| matches(pattern, metric.name));
        if let Some(wrong) = patterns.iter().find(|pattern| !names(pattern)) {
            let problem = format!("no metric is called `{wrong}`");
            return Err(checks::wrong(
                &key,
                problem,
                "`gpuwho metrics` lists the names; * stands for any text",
            ));
        }
    }
    let is_in = |list: &Option<Vec<String>>, name: &str| {
        list.as_ref().is_some_and(|list| list.iter().any(|pattern| matches(pattern, name)))
    };
    let is_wanted = |metric: &'static MetricDef| {
        (raw.metrics.is_none() || is_in(&raw.metrics, metric.name))
            && !is_in(&raw.exclude, metric.name)
    };
    Ok(Some(catalog::all().map(is_wanted).collect()))
}

fn kinds(key: &str, patterns: &[String]) -> Result<Vec<&'static str>, ConfigError> {
    let key = format!("{key}.events");
    bounded(&key, patterns)?;
    let mut kinds = Vec::new();
    for pattern in patterns {
        let before = kinds.len();
        // A receipt is no event of a device, but is sent as one.
        let all = EventKind::ALL.iter().map(|kind| kind.as_str()).chain([receipts::NAME]);
        kinds.extend(all.filter(|kind| matches(pattern, kind)));
        if kinds.len() == before {
            let problem = format!("no event is called `{pattern}`");
            return Err(checks::wrong(
                &key,
                problem,
                "METRICS.md lists them; * stands for any text",
            ));
        }
    }
    Ok(kinds)
}

fn bounded(key: &str, patterns: &[String]) -> Result<(), ConfigError> {
    let is_long = patterns.iter().any(|pattern| pattern.len() > MAX_PATTERN_LEN);
    if patterns.len() > MAX_PATTERNS || is_long {
        let problem = "more than 512 patterns, or one of more than 128 bytes".to_owned();
        return Err(checks::wrong(key, problem, "use * for what they have in common"));
    }
    Ok(())
}

/// A sink behind a filter.
struct Filtered {
    sink: Box<dyn Sink>,
    filter: Filter,
    latest: Option<Latest>,
    out: EnrichedBatch,
}

impl Sink for Filtered {
    fn export(&mut self, batch: &EnrichedBatch) {
        let Self { sink, filter, latest, out } = self;
        let wanted = batch.points.iter().filter(|point| {
            filter.wants_metric(point.metric)
                && filter.wants_attributes(|name| find(&mut point.labels.iter(), name))
        });
        out.points.clear();
        match latest {
            None => out.points.extend(wanted.cloned()),
            Some(latest) => {
                wanted.for_each(|point| latest.put(point));
                latest.take_due(Instant::now(), &mut out.points);
            }
        }
        if !out.points.is_empty() {
            sink.export(out);
        }
    }

    fn export_events(&mut self, records: &[Record]) {
        let wanted = records.iter().filter(|record| self.filter.wants_event(record));
        let wanted: Vec<Record> = wanted.cloned().collect();
        if !wanted.is_empty() {
            self.sink.export_events(&wanted);
        }
    }

    fn start_flush(&mut self, deadline: Instant) {
        self.export_held();
        self.sink.start_flush(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        self.export_held();
        self.sink.flush(deadline);
    }

    fn report(&self) -> Report {
        self.sink.report()
    }
}

impl Filtered {
    /// Sends what was held back for the next multiple of the interval.
    fn export_held(&mut self) {
        let Some(latest) = &mut self.latest else { return };
        self.out.points.clear();
        latest.take(&mut self.out.points);
        if !self.out.points.is_empty() {
            self.sink.export(&self.out);
        }
    }
}

/// The latest point of each series since the last request.
#[derive(Debug)]
struct Latest {
    points: Vec<Point>,
    /// Where each series is. The points hold their labels, so that no other series gets the address.
    places: HashMap<(&'static str, usize), usize>,
    every: Duration,
    /// How much sooner than that a tick may come.
    early: Duration,
    taken: Option<Instant>,
}

impl Latest {
    fn new(every: Duration, interval: Duration) -> Self {
        let (points, places) = (Vec::new(), HashMap::new());
        Self { points, places, every, early: interval / 2, taken: None }
    }

    fn put(&mut self, point: &Point) {
        let series = (point.metric.name, Arc::<Labels>::as_ptr(&point.labels).addr());
        let place = self.places.get(&series).and_then(|place| self.points.get_mut(*place));
        if let Some(place) = place {
            *place = point.clone();
        } else {
            self.places.insert(series, self.points.len());
            self.points.push(point.clone());
        }
    }

    fn take_due(&mut self, now: Instant, out: &mut Vec<Point>) {
        let is_due =
            self.taken.is_none_or(|taken| now.duration_since(taken) + self.early >= self.every);
        if is_due {
            self.taken = Some(now);
            self.take(out);
        }
    }

    fn take(&mut self, out: &mut Vec<Point>) {
        self.places.clear();
        out.append(&mut self.points);
        out.sort_by_key(|point| std::ptr::from_ref(point.metric).addr());
    }
}

#[cfg(test)]
mod tests;
