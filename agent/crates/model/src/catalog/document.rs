//! The catalogue as documents: `METRICS.md` and `gpuwho metrics --json`.

mod vendors;

pub use vendors::Column;

use super::level::{self, Level};
use super::{
    DOMAINS, MetricDef, attributes, dcgm, event, interconnect, l9gpu, link, profile, semconv,
};
use crate::sample::Subject;
use serde::Serialize;
use std::fmt::Write as _;

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

/// The text of `METRICS.md`.
pub fn markdown(columns: &[Column]) -> String {
    let mut out = String::from(HEAD);
    for (heading, metrics) in DOMAINS {
        // Writing to a String cannot fail.
        let _ = write!(out, "\n## {heading}\n");
        for def in *metrics {
            metric(&mut out, def);
        }
    }
    l9gpu::table(&mut out);
    semconv::table(&mut out);
    dcgm::table(&mut out);
    vendors::tables(columns, &mut out);
    series(&mut out);
    out.push_str(EVENTS);
    for &kind in event::EventKind::ALL {
        let _ = writeln!(out, "| `{}` | {} | {} |", kind.as_str(), kind.meaning(), kind.action());
    }
    out.push_str("\n## Attributes\n\n| attribute | holds |\n|---|---|\n");
    for key in attributes::ALL.iter().chain(profile::keys::ALL) {
        let _ = writeln!(out, "| `{}` | {} |", key.name, paragraph(key.description));
    }
    out
}

const HEAD: &str = "\
# Metrics

Generated from the catalogue in `agent/crates/model/src/catalog` by `cargo xtask docs`; CI fails when it is stale.
Names, units and kinds are those of the OTLP output. A value that could not be read is not sent: it
is never 0, -1 or the last one. A series that ends is closed with a no-recorded-value point.

Points about a device carry `gpu.uuid`, `gpu.index`, `gpu.model` and `gpu.vendor`; points about a
MIG instance carry those of its device and `gpu.mig.uuid`, `gpu.mig.gpu_instance.id`,
`gpu.mig.compute_instance.id` and `gpu.mig.profile`; points about a process on a device carry the
device's, the instance's where it is in one, and the owner's, as far as they are known.

Metrics of a device are about the whole device, also with MIG on. Metrics of an instance have names of
their own (`gpu.instance.*`), so that a sum over `gpu.memory.usage` counts every byte once.
";

const SERIES: &str = "
## How many series

`metrics.level` decides how much is exported: `basic`, `default` or `all`; `metrics.include` and
`metrics.exclude` add and remove metrics by pattern. Below `all`, sets of states have one series for each
state in which the subject was, here counted as one, and processes only their multiprocessor time.

These are upper bounds for a device that supports everything; unsupported metrics are not sent, so most
devices have fewer. The number of processes, owners and ranks is not bounded here, but all series together
never exceed `agent.series_limit`, not counting the agent's own. Series of NCCL's Inspector may use three
fifths of the limit, series of collectives in all four fifths, so that processes and owners always have
room. When room is short, the owner with the most series of collectives loses series, down to a fifth of
the limit. `metrics.limits` bounds families of metrics in the same way, without those fifths. Points that
are left out are counted in `gpuwho.dropped` as `series_limit` or `metric_limit` and by owner in
`gpuwho.owner.refused`; `gpuwho` and the log report it. `gpuwho config check FILE` prints the most that a
host's devices can have.

| of each | `basic` | `default` | `all` |
|---|---|---|---|
";

const EVENTS: &str = "
## Log records

Each event is an OTLP log record (and a line of the `stdout` and `file` sinks) with the event's name,
its own time, a severity (info 9, warning 13, critical 21) and the driver's line as its body. It
carries the device's identity. If owners were on the device at that moment, each of them has a record
with its identity; these records share `gpuwho.event.id`. At most ten events per device, code, severity
and owner are exported each minute, at most 240 ended processes per owner; the rest are summarised in one
record with `gpuwho.event.count`. A summary never mixes owners. The agent's table has the meanings and
actions of XIDs, with the source of each row; the severity and the action of XIDs 144 to 150 (NVLink) and
154 (recovery action) come from the line's text.

`gpuwho.event.affected` says why an owner has a record. XIDs of a program's work (13, 31, 43, 45, 94,
…) affect the process that the line names, if it held the device at that moment or had just ended
(`named`); where no line names a process, each owner on the device is a `candidate`. All other faults
affect every owner on the device (`device`), or in the MIG instance. Processes of the agent itself, and
known monitors (`nv-hostengine`, `dcgm-exporter`, `nvidia-smi`, …) without a context on the device, are
never affected. A named process that did not hold the device appears in the record's body only.

`gpuwho.receipt` is no event of a device: it says what a job, pod or unit that has ended had of the devices
(`docs/cost.md`), as attributes and, in the body, as JSON.

| event name | means | what to do |
|---|---|---|
";

/// Writes the largest number of series of each kind of subject, computed from the closed
/// dimensions.
fn series(out: &mut String) {
    out.push_str(SERIES);
    let mut counts: Vec<(&str, [usize; 3])> = Vec::new();
    for def in super::all() {
        let (of, all) = series_of(def);
        let is_one = level::is_sparse(def) || level::is_detailed(def);
        let unused = if is_one { all - all.min(1) } else { 0 };
        let count = Level::ALL.map(|level| match level {
            level if Level::of(def) > level => 0,
            Level::All => all,
            Level::Basic | Level::Default => all - unused,
        });
        match counts.iter_mut().find(|(known, _)| *known == of) {
            Some((_, sums)) => sums.iter_mut().zip(count).for_each(|(sum, more)| *sum += more),
            None => counts.push((of, count)),
        }
    }
    for (of, [basic, default, all]) in counts {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {of} | {basic} | {default} | {all} |");
    }
}

/// The subject of a metric's series in the table, and the largest number of series of one subject.
fn series_of(def: &MetricDef) -> (&'static str, usize) {
    let all = def.series_per_subject();
    match def.dims.first().filter(|dim| dim.key.name == attributes::GPU_LINK_INDEX.name) {
        Some(links) => {
            let count = |dim: &super::Dim| dim.values.len();
            let of = match links.values.len() {
                many if many == count(<link::Link as super::OneDim>::DIM) => {
                    "an NVLink of a device (none with `nvidia.by_link = false`)"
                }
                many if many == count(<interconnect::PeerLink as super::OneDim>::DIM) => {
                    "another link of a device to a device"
                }
                _ => "a link of a device to the CPU of its module",
            };
            (of, all / links.values.len().max(1))
        }
        None => (about(def.subject), all),
    }
}

fn about(subject: &str) -> &'static str {
    let kind = Subject::KINDS.iter().find(|kind| kind.word == subject);
    kind.map_or("the agent", |kind| kind.about)
}

fn metric(out: &mut String, def: &'static MetricDef) {
    let _ = write!(
        out,
        "\n### `{}`\n\n{} Unit `{}`, {}, about {}, level {}.\n",
        def.name,
        paragraph(def.description),
        def.unit,
        def.kind.as_str(),
        about(def.subject),
        Level::of(def).as_str(),
    );
    for dim in def.dims {
        let values: Vec<_> = dim.values.iter().map(|value| format!("`{value}`")).collect();
        let _ = write!(out, "\n- `{}`: {}", dim.key.name, values.join(", "));
    }
    if !def.dims.is_empty() {
        out.push('\n');
    }
    let _ = write!(out, "\nSource: {}.\n", def.source);
}

/// A doc comment's lines as one paragraph.
pub fn paragraph(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;
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
        let listed: usize = DOMAINS.iter().map(|(_, metrics)| metrics.len()).sum();
        assert_eq!(listed, all().count());
    }

    #[test]
    fn the_table_of_series_counts_every_metric() {
        let mut table = String::new();
        series(&mut table);
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let count =
            |row: &&str| row.rsplit('|').nth(1).and_then(|cell| cell.trim().parse::<usize>().ok());
        let nvlink = rows.iter().find(|row| row.starts_with("| an NVLink")).and_then(count);
        let link = |def: &MetricDef| def.name.starts_with("gpu.nvlink.link.");
        let all: usize = all().filter(|def| link(def)).map(MetricDef::series_per_subject).sum();
        assert_eq!(nvlink.map(|each| each * 36), Some(all));
        assert_eq!(rows.iter().filter_map(count).count(), rows.len(), "{rows:#?}");
        assert_eq!(rows.len(), 18, "{rows:#?}");
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
