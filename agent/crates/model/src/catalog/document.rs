//! The catalogue as documents: `METRICS.md` with its pages, and `gpuwho metrics --json`.

mod pages;
mod series;
mod vendors;

pub use pages::markdown;
pub use vendors::Column;

use super::level::Level;
use crate::sample::Subject;
use serde::Serialize;

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    unit: &'static str,
    kind: &'static str,
    subject: &'static str,
    level: &'static str,
    dimensions: Vec<Dimension>,
    series_per_subject: usize,
    description: String,
    source: &'static str,
}

#[derive(Serialize)]
struct Dimension {
    attribute: &'static str,
    values: &'static [&'static str],
}

/// The metrics with a part in their names as JSON, for packagers and dashboards.
pub fn json(part: &str) -> Result<String, serde_json::Error> {
    let entries: Vec<Entry> = super::all()
        .filter(|def| def.name.contains(part))
        .map(|def| Entry {
            name: def.name,
            unit: def.unit,
            kind: def.kind.as_str(),
            subject: def.subject,
            level: Level::of(def).as_str(),
            dimensions: def
                .dims
                .iter()
                .map(|dim| Dimension { attribute: dim.key.name, values: dim.values })
                .collect(),
            series_per_subject: def.series_per_subject(),
            description: paragraph(def.description),
            source: def.source,
        })
        .collect();
    serde_json::to_string_pretty(&entries)
}

fn about(subject: &str) -> &'static str {
    let kind = Subject::KINDS.iter().find(|kind| kind.word == subject);
    kind.map_or("the agent", |kind| kind.about)
}

/// A doc comment's lines as one paragraph.
pub fn paragraph(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::{DOMAINS, MetricDef, all, attributes, interconnect, link};
    use super::paragraph;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = HashSet::new();
        for def in all() {
            let well_formed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' || c == '_';
            assert!(def.name.chars().all(well_formed), "{}", def.name);
            assert!(seen.insert(def.name), "{} is declared twice", def.name);
            assert!(!def.name.ends_with("total"), "{}: a sink adds `_total`", def.name);
        }
    }

    #[test]
    fn units_are_known_ucum_units() {
        // Those that Prometheus' translation has a word for.
        let known = ["1", "s", "By", "By/s", "W", "J", "Hz", "Cel", "g"];
        for def in all() {
            let is_rate = |per: &str| def.unit.strip_suffix(per);
            let counted = is_rate("/s").or_else(|| is_rate("/h")).unwrap_or(def.unit);
            let annotation = counted.starts_with('{') && counted.ends_with('}');
            assert!(annotation || known.contains(&def.unit), "{}: unit {}", def.name, def.unit);
        }
    }

    #[test]
    fn every_metric_has_a_description_and_a_source() {
        for def in all() {
            assert!(paragraph(def.description).ends_with('.'), "{}", def.name);
            assert!(def.source.len() > 8, "{}", def.name);
        }
    }

    #[test]
    fn the_domains_hold_every_metric() {
        let listed: usize = DOMAINS.iter().map(|(.., metrics)| metrics.len()).sum();
        assert_eq!(listed, all().count());
    }

    #[test]
    fn every_attribute_is_declared_once() {
        let names: HashSet<_> = attributes::ALL.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), attributes::ALL.len());
    }

    #[test]
    fn the_worst_case_series_of_a_device_stay_few() {
        let series = |defs: &mut dyn Iterator<Item = &'static MetricDef>| -> usize {
            defs.map(MetricDef::series_per_subject).sum()
        };
        let is_link =
            |def: &&'static MetricDef| link::ALL.contains(def) || interconnect::ALL.contains(def);
        let of_device = || all().filter(|def| def.subject == "gpu");
        let per_device = series(&mut of_device().filter(|def| !is_link(def)));
        // No vendor has all of them.
        assert!(per_device <= 410, "{per_device} series a device without its links");
        let per_link = series(&mut of_device().filter(|def| link::ALL.contains(def)));
        assert!(per_link <= 36 * 24 + 64, "{per_link} series of 36 links");
        let per_instance = series(&mut all().filter(|def| def.subject == "instance"));
        assert!(per_instance <= 48, "{per_instance} series a MIG instance, seven a device");
    }
}
