//! Writes the text formats of Prometheus (0.0.4) and OpenMetrics (1.0).

use super::names::{Family, label_name};
use gpuwho_model::catalog::attributes::{
    AttrKey, AttrValue, CLOUD_ZONE, HOST_NAME, K8S_CLUSTER_NAME,
};
use gpuwho_model::sample::{Histogram, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Format {
    /// Prometheus' own, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page under construction. Writing to a `String` cannot fail.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) format: Format,
    pub(super) text: String,
    /// Labels behind those of every series; empty or beginning with a comma.
    pub(super) more_labels: String,
}

impl Page {
    /// Writes the lines before a family's samples.
    pub(super) fn head(&mut self, family: &Family) {
        let name = match self.format {
            Format::Text => &family.name,
            Format::OpenMetrics => &family.base,
        };
        let out = &mut self.text;
        let _ = writeln!(out, "# TYPE {name} {}", family.kind);
        if let (Format::OpenMetrics, Some(unit)) = (self.format, &family.unit) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        let _ = write!(out, "# HELP {name} ");
        escape(out, &family.help, self.format == Format::OpenMetrics);
        out.push('\n');
    }

    /// Writes the samples of one series; `labels` as [`labels`] gives them.
    pub(super) fn series(&mut self, name: &str, labels: &str, value: &Value) {
        match value {
            Value::Int(number) => self.line([name, ""], [labels, ""], Number::Int(*number)),
            Value::Double(number) => self.line([name, ""], [labels, ""], Number::Double(*number)),
            Value::Histogram(histogram) => self.histogram(name, labels, histogram),
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let mut count = 0;
        let mut bound = String::new();
        for (at, in_bucket) in histogram.counts.iter().enumerate() {
            count += in_bucket;
            let upper = histogram.bounds.get(at).copied().unwrap_or(f64::INFINITY);
            bound.clear();
            bound.push_str("le=\"");
            self.put_bound(&mut bound, upper);
            bound.push('"');
            self.line([name, "_bucket"], [labels, &bound], Number::Whole(count));
        }
        self.line([name, "_sum"], [labels, ""], Number::Double(histogram.sum));
        self.line([name, "_count"], [labels, ""], Number::Whole(count));
    }

    /// OpenMetrics has one spelling of a bound, with a point; Prometheus' own client writes it
    /// without in the older format.
    fn put_bound(&self, out: &mut String, bound: f64) {
        let from = out.len();
        put_float(out, bound);
        let is_whole = out.get(from..).is_some_and(|text| !text.contains(['.', 'e', 'I']));
        if self.format == Format::OpenMetrics && is_whole {
            out.push_str(".0");
        }
    }

    /// Writes one sample; the parts of the name are joined, those of the labels by a comma.
    pub(super) fn line(&mut self, name: [&str; 2], labels: [&str; 2], value: Number) {
        let Self { text: out, more_labels, .. } = self;
        out.extend(name);
        let more =
            if labels[0].is_empty() { more_labels.trim_start_matches(',') } else { more_labels };
        if !labels[0].is_empty() || !labels[1].is_empty() || !more.is_empty() {
            out.extend(["{", labels[0], more]);
            if !(labels[1].is_empty() || labels[0].is_empty() && more.is_empty()) {
                out.push(',');
            }
            out.extend([labels[1], "}"]);
        }
        out.push(' ');
        match value {
            Number::Int(number) => {
                let _ = write!(out, "{number}");
            }
            Number::Whole(number) => {
                let _ = write!(out, "{number}");
            }
            Number::Double(number) => put_float(out, number),
        }
        out.push('\n');
    }
}

/// A sample's number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i64),
    Whole(u64),
    Double(f64),
}

/// Attributes as labels without braces: `gpu_uuid="GPU-1",gpu_index="0"`.
pub(super) fn labels(
    attributes: &mut dyn Iterator<Item = (&'static AttrKey, &AttrValue)>,
) -> Box<str> {
    named(attributes.map(|(AttrKey { name, .. }, value)| (*name, value)))
}

/// The same from names and values. Values of attributes whose names become one label are joined
/// with `;`, as the specification of the translation has it.
pub(super) fn named<'a>(attributes: impl Iterator<Item = (&'a str, &'a AttrValue)>) -> Box<str> {
    let mut order = Vec::new();
    let mut by_label: BTreeMap<String, BTreeMap<&str, String>> = BTreeMap::new();
    for (name, value) in attributes {
        let label = label_name(name);
        let values = by_label.entry(label.clone()).or_default();
        if values.is_empty() {
            order.push(label);
        }
        values.insert(name, value.to_string());
    }
    let mut out = String::new();
    for label in order {
        if !out.is_empty() {
            out.push(',');
        }
        out.extend([label.as_str(), "=\""]);
        let values = by_label.remove(&label).unwrap_or_default();
        escape(&mut out, &values.into_values().collect::<Vec<_>>().join(";"), true);
        out.push('"');
    }
    out.into()
}

/// The labels that a pushed point gets from the resource where the receiver promotes them, as the documents
/// advise: without them no series of a scrape says of which node it is. Each begins with a comma.
pub(super) fn of_host<'a>(resource: impl Iterator<Item = (&'a str, &'a AttrValue)>) -> Box<str> {
    let promoted = [&HOST_NAME, &K8S_CLUSTER_NAME, &CLOUD_ZONE].map(|key| key.name);
    let labels = named(resource.filter(|(key, _)| promoted.contains(key)));
    if labels.is_empty() { labels } else { format!(",{labels}").into() }
}

/// Writes `label="value"`.
pub(super) fn put_label(out: &mut String, label: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.extend([label, "=\""]);
    escape(out, value, true);
    out.push('"');
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

/// Sizes that zmij writes without an exponent, as the standard library does in five times the time.
const FAST: Range<f64> = 1e-4..1e15;

/// Writes a number as Go's `strconv` does in its shortest form.
fn put_float(out: &mut String, number: f64) {
    if number.is_infinite() {
        out.push_str(if number > 0.0 { "+Inf" } else { "-Inf" });
        return;
    }
    if number.is_nan() {
        out.push_str("NaN");
        return;
    }
    let size = number.abs();
    if FAST.contains(&size) {
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(number);
        out.push_str(text.strip_suffix(".0").unwrap_or(text));
    } else if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let _ =
            write!(out, "{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    } else {
        let _ = write!(out, "{number}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
    use proptest::prelude::*;

    proptest! {
        // Of two equally short and near ones each library may take another.
        #[test]
        fn each_number_is_as_short_as_the_standard_library_has_it(number in -1e16..1e16_f64, small in -2.0..2.0_f64) {
            for number in [number, small, number.trunc(), small * 1e-3, 976_963_948_554_749.3] {
                let mut text = String::new();
                put_float(&mut text, number);
                prop_assert_eq!(text.parse::<f64>(), Ok(number));
                if number == 0.0 || number.abs() >= 1e-4 {
                    prop_assert_eq!(text.len(), number.to_string().len(), "{}", text);
                    prop_assert!(!text.contains('e'), "{}", text);
                }
            }
        }
    }

    fn float(number: f64) -> String {
        let mut out = String::new();
        put_float(&mut out, number);
        out
    }

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        let expected = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1e6, "1000000"),
            (1e-7, "1e-07"),
            (1.5e300, "1.5e+300"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (number, text) in expected {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn a_value_cannot_leave_its_quotes() {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_MODEL, "a\"} 1\\");
        set.set(&attr::GPU_INDEX, "0");
        assert_eq!(&*labels(&mut set.iter()), r#"gpu_model="a\"} 1\\",gpu_index="0""#);
    }

    #[test]
    fn attributes_with_one_label_are_joined() {
        let (b, a) = (AttrValue::from("2"), AttrValue::from("1"));
        let joined = named([("x_y", &b), ("x.y", &a)].into_iter());
        assert_eq!(&*joined, r#"x_y="1;2""#);
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_sum_and_count() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.1, 0.7, 9.0] {
            histogram.observe(value);
        }
        let written = |format, more: &str| {
            let mut page = Page { format, text: String::new(), more_labels: more.into() };
            page.series("a_seconds", r#"x="1""#, &Value::Histogram(Box::new(histogram.clone())));
            page.text
        };
        let text = "a_seconds_bucket{x=\"1\",le=\"0.5\"} 1\na_seconds_bucket{x=\"1\",le=\"1\"} 2\n\
                    a_seconds_bucket{x=\"1\",le=\"+Inf\"} 3\na_seconds_sum{x=\"1\"} 9.8\n\
                    a_seconds_count{x=\"1\"} 3\n";
        assert_eq!(written(Format::Text, ""), text);
        assert_eq!(written(Format::OpenMetrics, ""), text.replace("\"1\"} 2", "\"1.0\"} 2"));
        assert!(written(Format::Text, ",s=\"2\"").contains("{x=\"1\",s=\"2\",le=\"0.5\"}"));
    }

    #[test]
    fn a_series_without_labels_has_no_braces() {
        let mut page =
            Page { format: Format::Text, text: String::new(), more_labels: String::new() };
        page.series("a", "", &Value::Int(-3));
        page.more_labels = ",s=\"2\"".into();
        page.series("a", "", &Value::Double(1.5));
        assert_eq!(page.text, "a -3\na{s=\"2\"} 1.5\n");
    }
}
