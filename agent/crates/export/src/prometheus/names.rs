//! The Prometheus names of the catalogue's metrics and attributes, by the rules of OpenTelemetry's
//! translation with suffixes (Prometheus' `UnderscoreEscapingWithSuffixes`, otlptranslator 1.0), so
//! that a scraped series has the name that the same OTLP point gets at a receiver. The translation
//! is computed once for the whole catalogue.

use gpuwho_model::catalog::{self, Kind, MetricDef, profile};
use std::sync::LazyLock;

/// A metric family of the exposition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Family {
    /// The name of its samples; of a histogram, without `_bucket`, `_sum` and `_count`.
    pub(super) name: String,
    /// The name without `_total`, which is the family's name in OpenMetrics.
    pub(super) base: String,
    /// The unit, where the base name ends in it.
    pub(super) unit: Option<String>,
    /// `gauge`, `counter` or `histogram`.
    pub(super) kind: &'static str,
    /// The description, in one line, not escaped.
    pub(super) help: String,
}

/// The families of all metrics, in the order of the catalogue, and those of the naming profiles.
pub(super) static FAMILIES: LazyLock<Vec<Family>> =
    LazyLock::new(|| catalog::with_profiles().map(family).collect());

/// How many of them are the catalogue's own.
pub(super) static OWN: LazyLock<usize> = LazyLock::new(|| catalog::all().count());

fn family(metric: &MetricDef) -> Family {
    let name = metric_name(metric.name, metric.unit, metric.kind);
    let base = match metric.kind {
        Kind::Counter => name.strip_suffix("_total").unwrap_or(&name).to_owned(),
        _ => name.clone(),
    };
    let [main, per] = unit_suffixes(metric.unit);
    let unit = [main, per].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let unit = Some(unit.join("_")).filter(|unit| {
        !unit.is_empty() && base.strip_suffix(unit.as_str()).is_some_and(|rest| rest.ends_with('_'))
    });
    let kind = match metric.kind {
        Kind::Gauge | Kind::UpDownCounter => "gauge",
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
    };
    let help = if profile::is_of_profile(metric) {
        format!("See METRICS.md: {} in {}.", metric.name, metric.unit)
    } else {
        metric.description.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    Family { name, base, unit, kind, help }
}

/// The name of a metric.
pub(super) fn metric_name(name: &str, unit: &str, kind: Kind) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == ':';
    let parts = name.split(|c| !is_part(c)).filter(|part| !part.is_empty());
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    let [main, per] = unit_suffixes(unit);
    for suffix in [main, per] {
        if !suffix.is_empty() && !parts.contains(&suffix) {
            parts.push(suffix);
        }
    }
    match kind {
        Kind::Counter => move_to_end(&mut parts, "total"),
        Kind::Gauge if unit == "1" => move_to_end(&mut parts, "ratio"),
        Kind::Gauge | Kind::UpDownCounter | Kind::Histogram => {}
    }
    let name = parts.join("_");
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// The name of a label.
pub(super) fn label_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    if key.starts_with(|c: char| c.is_ascii_digit()) {
        name.push_str("key_");
    }
    for c in key.chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    name
}

fn move_to_end(parts: &mut Vec<String>, word: &str) {
    parts.retain(|part| part != word);
    parts.push(word.to_owned());
}

/// The words of a unit and of what it is divided by, each empty where there is none.
fn unit_suffixes(unit: &str) -> [String; 2] {
    let (main, per) = unit.split_once('/').unwrap_or((unit, ""));
    let [main, per] = [main, per].map(|unit| {
        let unit = unit.trim();
        if unit.contains(['{', '}']) { "" } else { unit }
    });
    let per = clean(per_unit(per));
    [clean(main_unit(main)), if per.is_empty() { per } else { format!("per_{per}") }]
}

/// A unit as a part of a name.
fn clean(unit: &str) -> String {
    let parts = unit.split(|c: char| !c.is_ascii_alphanumeric() && c != ':');
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_")
}

/// otlptranslator's table of units.
fn main_unit(unit: &str) -> &str {
    match unit {
        "1" => "",
        "d" => "days",
        "h" => "hours",
        "min" => "minutes",
        "s" => "seconds",
        "ms" => "milliseconds",
        "us" => "microseconds",
        "ns" => "nanoseconds",
        "By" => "bytes",
        "KiBy" => "kibibytes",
        "MiBy" => "mebibytes",
        "GiBy" => "gibibytes",
        "TiBy" => "tibibytes",
        "KBy" => "kilobytes",
        "MBy" => "megabytes",
        "GBy" => "gigabytes",
        "TBy" => "terabytes",
        "m" => "meters",
        "V" => "volts",
        "A" => "amperes",
        "J" => "joules",
        "W" => "watts",
        "g" => "grams",
        "Cel" => "celsius",
        "Hz" => "hertz",
        "%" => "percent",
        other => other,
    }
}

/// Its table of the units behind the slash.
fn per_unit(unit: &str) -> &str {
    match unit {
        "s" => "second",
        "m" => "minute",
        "h" => "hour",
        "d" => "day",
        "w" => "week",
        "mo" => "month",
        "y" => "year",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_those_of_otlptranslator() {
        // Recorded from github.com/prometheus/otlptranslator v1.0.0. The end-to-end test of the
        // endpoint asks it for every name of the catalogue.
        let recorded =
            include_str!("../../../../../tests/fixtures/exposition/otlptranslator-1.0.0.tsv");
        for line in recorded.lines() {
            let [name, unit, kind, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let kind = match kind {
                "gauge" => Kind::Gauge,
                "updowncounter" => Kind::UpDownCounter,
                "counter" => Kind::Counter,
                _ => Kind::Histogram,
            };
            assert_eq!(metric_name(name, unit, kind), expected, "{line}");
        }
        assert!(recorded.lines().count() > 20);
    }

    #[test]
    fn labels_have_underscores_for_what_is_not_allowed() {
        assert_eq!(label_name("gpu.uuid"), "gpu_uuid");
        assert_eq!(
            label_name("k8s.pod.label.app.kubernetes.io/name"),
            "k8s_pod_label_app_kubernetes_io_name"
        );
        assert_eq!(label_name("a..-b"), "a_b");
        assert_eq!(label_name("9a"), "key_9a");
    }

    #[test]
    fn no_two_metrics_share_a_series_name() {
        let mut names = HashSet::new();
        for family in FAMILIES.iter().take(*OWN) {
            let suffixes: &[&str] = match family.kind {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            for suffix in suffixes {
                let name = format!("{}{suffix}", family.name);
                assert!(names.insert(name.clone()), "{name}");
            }
            assert_ne!(family.name, "target_info");
        }
    }

    #[test]
    fn a_unit_is_named_only_where_the_name_ends_in_it() {
        let of = |name| FAMILIES.iter().find(|family| family.name == name).unwrap();
        assert_eq!(of("gpu_energy_joules_total").unit.as_deref(), Some("joules"));
        assert_eq!(of("gpu_energy_joules_total").base, "gpu_energy_joules");
        for family in FAMILIES.iter() {
            let unit = family.unit.as_deref().unwrap_or_default();
            assert!(family.base.ends_with(unit), "{family:?}");
        }
    }
}
