//! An engine as a table: how it is recognised, and which of its series become which metric.

use gpuwho_model::catalog::attributes::AttrKey;
use gpuwho_model::catalog::{Metric, MetricDef, Number};
use gpuwho_model::ids::EngineId;
use gpuwho_model::sample::Histogram;

/// An inference engine.
#[derive(Debug)]
pub struct Engine {
    /// Its name in attributes and documents.
    pub name: &'static str,
    /// What its families begin with, `:` standing for `_` too. Empty for an engine that gives none.
    pub prefixes: &'static [&'static str],
    /// Families that together show an engine without prefixes, where no other engine's are.
    pub marks: &'static [&'static str],
    /// How its processes are recognised before a byte is sent.
    pub signs: Signs,
    /// Labels that are kept, and what they become. Series that differ in others only are added up
    /// (levels that do not add up: the greatest), unless one of them is their total: it has such a
    /// label too, and empty.
    pub labels: &'static [(&'static str, &'static AttrKey)],
    /// Which series become which metric.
    pub families: &'static [Family],
    /// Families that are known and not read, each name whole or up to a `*`.
    pub unread: &'static [&'static str],
}

impl Engine {
    /// Whether a family's name, `:` replaced by `_`, begins as this engine's do.
    pub(super) fn is_prefix_of(&self, family: &str) -> bool {
        self.prefixes.iter().any(|prefix| begins(family, prefix))
    }

    /// Whether a label is kept, or decides what a series becomes.
    pub(super) fn keeps(&self, label: &str) -> bool {
        let decides = |family: &Family| family.only.is_some_and(|(name, _)| name == label);
        self.labels.iter().any(|(name, _)| *name == label) || self.families.iter().any(decides)
    }

    /// Whether a family of that name is known and not read.
    pub(super) fn is_unread(&self, family: &str) -> bool {
        self.unread.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => begins(family, start),
            None => begins(family, name) && family.len() == name.len(),
        })
    }
}

/// Whether a name begins so, `:` standing for `_` in the beginning.
fn begins(name: &str, start: &str) -> bool {
    let start = start.bytes().map(|byte| if byte == b':' { b'_' } else { byte });
    let mut bytes = name.bytes();
    start.into_iter().all(|byte| bytes.next() == Some(byte))
}

/// How an engine's processes are recognised, and where they answer.
#[derive(Debug)]
pub struct Signs {
    /// File names of executables.
    pub programs: &'static [&'static str],
    /// What process titles begin with.
    pub titles: &'static [&'static str],
    /// Arguments: modules and scripts.
    pub arguments: &'static [&'static str],
    /// Ports unless set otherwise.
    pub ports: &'static [u16],
    /// Arguments that set the port, those of the page's own before those of the server.
    pub port_options: &'static [&'static str],
    /// Path of the JSON document with the version, and under which key; `None` where it does not, or
    /// not on the page's port.
    pub version: Option<(&'static str, &'static str)>,
    /// Paths of the page, the likeliest first.
    pub paths: &'static [&'static str],
}

/// A version's first two numbers, by which series come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// The first numbers of `0.32.0`, `v0.5.23`, `0.6.6.post1`; `None` for what does not begin with one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut numbers = text.split('.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part.get(..end).and_then(|digits| digits.parse().ok())
        });
        let first = numbers.next()??;
        let mut next = || numbers.next().flatten().unwrap_or(0);
        Some(Self(first, next(), next()))
    }
}

/// What of a family is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A counter, with or without `_total`.
    Counter,
    /// A gauge.
    Level,
    /// A histogram, with its buckets.
    Histogram,
    /// The sum of a histogram or a summary.
    Sum,
    /// A number in a label of an info series; where it has no such label, the product of two others.
    Label(&'static str, [&'static str; 2]),
    /// A number in a label of the newest of several info series, whose values are their times.
    NewestLabel(&'static str),
    /// How many names there are in a label of the newest of several info series.
    NewestNames(&'static str),
}

/// How the engine's unit becomes the catalogue's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// It is the same.
    Same,
    /// Divided by: 1000 of milliseconds.
    Divide(f64),
    /// Multiplied by: 2^30 of GiB.
    Multiply(f64),
}

impl Scale {
    /// A number in the catalogue's unit.
    pub fn of(self, value: f64) -> f64 {
        match self {
            Self::Same => value,
            Self::Divide(by) => value / by,
            Self::Multiply(by) => value * by,
        }
    }
}

/// A family of the engine's and the metric it becomes.
#[derive(Debug)]
pub struct Family {
    /// The engine's name, without `_total`, `_bucket`, `_sum` and `_count`.
    pub upstream: &'static str,
    /// What of it is read.
    pub read: Read,
    /// What it becomes.
    pub metric: &'static MetricDef,
    /// Whether the metric's values are whole numbers.
    pub whole: bool,
    /// Its unit.
    pub scale: Scale,
    /// A label that a series must have, with one of these values.
    pub only: Option<(&'static str, &'static [&'static str])>,
    /// Whether that label is dropped, so that the series are added up.
    pub adds_up: bool,
    /// Labels that all its series get.
    pub labels: &'static [(&'static AttrKey, &'static str)],
    /// A newer name: where the page has it, this one is the same once more.
    pub newer: Option<&'static str>,
    /// Whether a page has it from the first scrape on, so that it is missed.
    pub expected: bool,
    /// The first version that has it.
    pub since: Option<Version>,
    /// The first version that has it no longer.
    pub until: Option<Version>,
}

impl Family {
    const fn new(upstream: &'static str, read: Read, metric: &'static MetricDef) -> Self {
        Self {
            upstream,
            read,
            metric,
            whole: false,
            scale: Scale::Same,
            only: None,
            adds_up: false,
            labels: &[],
            newer: None,
            expected: false,
            since: None,
            until: None,
        }
    }

    /// In another unit.
    pub(super) const fn scaled(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// Of the series only whose label has one of these values.
    pub(super) const fn only(self, label: &'static str, values: &'static [&'static str]) -> Self {
        Self { only: Some((label, values)), ..self }
    }

    /// All series whose label has one of these values, added up.
    pub(super) const fn total(self, label: &'static str, values: &'static [&'static str]) -> Self {
        Self { adds_up: true, ..self.only(label, values) }
    }

    /// With labels of its own.
    pub(super) const fn labelled(
        self,
        labels: &'static [(&'static AttrKey, &'static str)],
    ) -> Self {
        Self { labels, ..self }
    }

    /// The old name of another family.
    pub(super) const fn renamed(self, newer: &'static str) -> Self {
        Self { newer: Some(newer), ..self }
    }

    /// On every page of the engine, from the first scrape on.
    pub(super) const fn expected(self) -> Self {
        Self { expected: true, ..self }
    }

    /// Not before this version.
    pub(super) const fn since(self, version: Version) -> Self {
        Self { since: Some(version), ..self }
    }

    /// Not from this version on.
    pub(super) const fn until(self, version: Version) -> Self {
        Self { until: Some(version), ..self }
    }

    /// Whether a version has it; of an unknown version only what all have.
    pub fn is_in(&self, version: Option<Version>) -> bool {
        match version {
            None => self.since.is_none() && self.until.is_none(),
            Some(version) => {
                self.since.is_none_or(|since| version >= since)
                    && self.until.is_none_or(|until| version < until)
            }
        }
    }
}

/// A number of an engine: no dimensions, the labels are open.
type Of<N> = Metric<EngineId, (), N>;

/// A counter.
pub(super) const fn counter<N: Number>(upstream: &'static str, metric: &'static Of<N>) -> Family {
    Family { whole: N::WHOLE, ..Family::new(upstream, Read::Counter, metric.def()) }
}

/// A gauge.
pub(super) const fn level<N: Number>(upstream: &'static str, metric: &'static Of<N>) -> Family {
    Family { whole: N::WHOLE, ..Family::new(upstream, Read::Level, metric.def()) }
}

/// A histogram.
pub(super) const fn histogram(upstream: &'static str, metric: &'static Of<Histogram>) -> Family {
    Family::new(upstream, Read::Histogram, metric.def())
}

/// The sum of a histogram or a summary, as a counter.
pub(super) const fn sum<N: Number>(upstream: &'static str, metric: &'static Of<N>) -> Family {
    Family { whole: N::WHOLE, ..Family::new(upstream, Read::Sum, metric.def()) }
}

/// What an info series says in its labels.
pub(super) const fn info(upstream: &'static str, read: Read, metric: &'static Of<i64>) -> Family {
    Family { whole: true, ..Family::new(upstream, read, metric.def()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        let parse = |text| Version::parse(text).unwrap();
        assert_eq!(parse("v0.6.6.post1"), Version(0, 6, 6));
        assert_eq!(parse("0.33.0rc1"), Version(0, 33, 0));
        assert_eq!(parse("3"), Version(3, 0, 0));
        assert!(parse("0.9.2") < parse("0.10.0"));
        assert_eq!([Version::parse("dev"), Version::parse("")], [None, None]);
    }
}
