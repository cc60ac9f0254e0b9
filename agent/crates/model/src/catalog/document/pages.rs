//! `METRICS.md`, an index with one line a metric, and the pages below `agent/docs/metrics` that it leads to.

use super::super::level::Level;
use super::super::{DOMAINS, MetricDef, attributes, dcgm, event, l9gpu, profile, semconv};
use super::series;
use super::vendors::{self, Column};
use super::{about, paragraph};
use std::fmt::Write as _;

// Writing to a String cannot fail.

/// A page below `agent/docs/metrics`.
struct Page {
    file: &'static str,
    title: &'static str,
    /// What is there, for the index.
    about: &'static str,
    /// Anchors of `METRICS.md` from when it had this page's sections: links to them still land.
    anchors: &'static str,
}

/// File, title, what is there, old anchors.
const PAGES: &str = "\
devices | Devices | state, utilization, memory, power, temperature, clocks, errors, PCIe, health | devices wear-and-the-way-to-the-host boards health
links | Links | NVLink, NVLink fabric, XGMI, links to the CPU | links links-other-than-nvlink
counters | MIG instances and performance counters | multiprocessors, tensor cores, memory, links, by device and by MIG instance | mig-instances performance-counters-of-devices-and-mig-instances
owners | Owners and processes | use, time, energy and cost by pod, job, unit and user; processes; cgroups | processes-on-devices owners time-and-cost-of-owners owners-cgroups
nccl | Collective communication | communicators, ranks, collectives, NCCL Inspector | collective-communication completed-collectives-nccl-inspector
engines | Inference engines | tokens, latencies, queues and caches of vLLM, SGLang, TensorRT-LLM, Triton, TGI, llama.cpp, NIM, Dynamo | inference-engines reading-of-inference-engines
events | Events | XIDs, OOM kills and faults as counters and as log records | events log-records
agent | The agent and the host | what the agent costs and drops, its sources; CPU and memory of the host | the-agent-itself the-host
attributes | Attributes | every attribute of a point | attributes
series | How many series | series of each level, by device, process, owner, … | how-many-series
names | Names of other programs | profiles `dcgm`, `l9gpu` and `semconv`, name by name | names-of-l9gpu names-of-opentelemetrys-semantic-conventions names-of-dcgm-exporter
vendors | By vendor | which vendor's devices have which metric; throttle reasons | by-vendor throttle-reasons";

/// What people ask first, and the metrics that answer.
const QUESTIONS: &str = "\
Which GPUs are busy? | gpu.utilization gpu.sm.active gpu.pipe.active
Who is on which GPU? | gpu.process.info gpu.owner.utilization
Which GPUs are allocated, and idle? | gpu.allocation.info gpu.allocation.time
Who uses the memory? | gpu.memory.usage gpu.process.memory.usage gpu.owner.memory.usage
Who draws the power? | gpu.power gpu.owner.power gpu.owner.energy
What does it cost? | gpu.owner.cost gpu.cost
Is a GPU healthy? | gpu.up gpu.health.condition gpu.health.score
Does a GPU need a reset or a replacement? | gpu.recovery.action gpu.memory.remap.pending gpu.memory.remap.failed
Which errors were there? | gpu.xid.errors gpu.ecc.errors gpu.pcie.replays
Is a GPU throttled, and why? | gpu.throttle.active gpu.clock.speed gpu.temperature
Are all links up, and how busy are they? | gpu.nvlink.links gpu.nvlink.io gpu.fabric.status
Which rank is late, and which one hangs? | nccl.rank.lag nccl.rank.status
Is the inference fast enough? | gen_ai.server.time_to_first_token inference.requests.waiting inference.kv_cache.utilization
Is the agent well, and what does it cost? | gpuwho.source.status gpuwho.dropped gpuwho.cpu.time";

fn pages() -> impl Iterator<Item = Page> {
    PAGES.lines().filter_map(|line| {
        let mut cells = line.split(" | ");
        let mut cell = || cells.next();
        Some(Page { file: cell()?, title: cell()?, about: cell()?, anchors: cell()? })
    })
}

/// Each question with the links to its metrics; `None` for a name that no metric has.
fn questions() -> impl Iterator<Item = Option<(&'static str, Vec<&'static MetricDef>)>> {
    let of = |name| super::super::all().find(|def| def.name == name);
    QUESTIONS.lines().map(move |line| {
        let (question, names) = line.split_once(" | ")?;
        Some((question, names.split(' ').map(of).collect::<Option<_>>()?))
    })
}

/// Where the pages are, from `METRICS.md`.
const FOLDER: &str = "docs/metrics/";

/// What begins each file of [`files`], with its path from the repository's top folder.
const MARK: &str = "<!-- file: ";

/// `METRICS.md` and its pages in one text, each behind a line with its path.
pub fn markdown(columns: &[Column]) -> String {
    let mut out = String::new();
    let mut file = |path: &str, text: &str| {
        let _ = writeln!(out, "{MARK}{path} -->\n{}", text.trim_end());
    };
    file("agent/METRICS.md", &index(columns));
    for page in pages() {
        file(&format!("agent/{FOLDER}{}.md", page.file), &text(&page, columns));
    }
    for column in columns {
        file(&format!("agent/{FOLDER}vendor-{}.md", column.name), &vendors::vendor(column));
    }
    out
}

/// The text of a page.
fn text(page: &Page, columns: &[Column]) -> String {
    let mut out = format!("# {}\n\n{BACK}\n", page.title);
    for (_, heading, metrics) in DOMAINS.iter().filter(|(file, ..)| *file == page.file) {
        let _ = write!(out, "\n## {heading}\n");
        metrics.iter().for_each(|def| metric(&mut out, def));
    }
    match page.file {
        "names" => [l9gpu::table, semconv::table, dcgm::table].iter().for_each(|of| of(&mut out)),
        "vendors" => vendors::tables(columns, &mut out),
        "series" => series::table(&mut out),
        "attributes" => keys(&mut out),
        "events" => {
            out.push_str(EVENTS);
            for &kind in event::EventKind::ALL {
                let cells = [kind.as_str(), kind.meaning(), kind.action()];
                let _ = writeln!(out, "| `{}` | {} | {} |", cells[0], cells[1], cells[2]);
            }
        }
        _ => {}
    }
    out
}

fn keys(out: &mut String) {
    out.push_str(ATTRIBUTES);
    for key in attributes::ALL.iter().chain(profile::keys::ALL) {
        let _ = writeln!(out, "| `{}` | {} |", key.name, paragraph(key.description));
    }
}

/// The index: questions, the metrics of `basic`, and every other one by its page.
fn index(columns: &[Column]) -> String {
    let mut out = HEAD.to_owned();
    for (question, metrics) in questions().flatten() {
        let links: Vec<_> = metrics.into_iter().map(|def| link(def, "")).collect();
        let _ = writeln!(out, "| {question} | {} |", links.join(", "));
    }
    out.push_str(PAGES_HEAD);
    for Page { file, title, about, anchors } in pages() {
        let anchors: String = anchors.split(' ').map(target).collect();
        let _ = writeln!(out, "| {anchors}[{title}]({FOLDER}{file}.md) | {about} |");
    }
    let name = |Column { name, .. }: &Column| {
        format!("{}[{name}]({FOLDER}vendor-{name}.md)", target(&format!("what-is-read-{name}")))
    };
    let names: Vec<_> = columns.iter().map(name).collect();
    let _ = writeln!(
        out,
        "| A vendor: {} | what each metric is read from, and why one is missing |",
        names.join(", ")
    );
    out.push_str(BASIC);
    let of =
        |basic: bool| move |def: &&'static MetricDef| (Level::of(def) == Level::Basic) == basic;
    lines(&mut out, super::super::all().filter(of(true)));
    for page in pages() {
        let all = DOMAINS.iter().filter(|(file, ..)| *file == page.file);
        let mut rest =
            all.flat_map(|(.., metrics)| metrics.iter().copied()).filter(of(false)).peekable();
        if rest.peek().is_some() {
            let _ = write!(out, "\n## More: {}\n\n{COLUMNS}", page.title);
            lines(&mut out, rest);
        }
    }
    out
}

/// A line for each metric, at the anchor that its section had.
fn lines(out: &mut String, metrics: impl Iterator<Item = &'static MetricDef>) {
    for def in metrics {
        let name = link(def, &target(&anchor(def.name)));
        let (kind, of, level) = (def.kind.as_str(), about(def.subject), Level::of(def).as_str());
        let text = paragraph(def.description);
        let first = text.split_once(". ").map_or(text.trim_end_matches('.'), |(first, _)| first);
        let _ = writeln!(out, "| {name} | `{}` | {kind} | {of} | {level} | {first} |", def.unit);
    }
}

/// A metric's name as a link to its section.
fn link(def: &'static MetricDef, before: &str) -> String {
    let mut domains = DOMAINS.iter().filter(|(.., metrics)| metrics.contains(&def));
    let file = domains.next().map_or("", |(file, ..)| *file);
    format!("{before}[`{}`]({FOLDER}{file}.md#{})", def.name, anchor(def.name))
}

/// What a link to an anchor lands on.
fn target(anchor: &str) -> String {
    format!("<a id=\"{anchor}\"></a>")
}

/// A heading's anchor, as GitHub makes it of a metric's name.
fn anchor(name: &str) -> String {
    name.replace('.', "")
}

const BACK: &str = "Generated by `cargo xtask docs`. [All metrics](../../METRICS.md)";

const HEAD: &str = "\
# Metrics

Generated from the catalogue in `agent/crates/model/src/catalog` by `cargo xtask docs`; CI fails when it is stale.
Names, units and kinds are those of the OTLP output. Prometheus has underscores, the unit and `_total` in its
names: `gpu.power` is `gpu_power_watts`, `gpu.energy` is `gpu_energy_joules_total`. On a host, `gpuwho metrics PART`
prints the same.

A value that could not be read is not sent: it is never 0, -1 or the last one. A series that ends is closed with
a no-recorded-value point. `metrics.level` chooses what is exported: `basic`, `default` or `all`.

## Questions

Queries for them are in [queries.md](docs/queries.md).

| question | metrics |
|---|---|
";

const PAGES_HEAD: &str = "
## Pages

| page | what is there |
|---|---|
";

const COLUMNS: &str = "\
| metric | unit | kind | about | level | what it is |
|---|---|---|---|---|---|
";

const BASIC: &str = "
## Level `basic`

What a first dashboard and the critical alerts need. The other levels contain it.

| metric | unit | kind | about | level | what it is |
|---|---|---|---|---|---|
";

const ATTRIBUTES: &str = "
Points about a device carry `gpu.uuid`, `gpu.index`, `gpu.model` and `gpu.vendor`; points about a
MIG instance carry those of its device and `gpu.mig.uuid`, `gpu.mig.gpu_instance.id`,
`gpu.mig.compute_instance.id` and `gpu.mig.profile`; points about a process on a device carry the
device's, the instance's where it is in one, and the owner's, as far as they are known.

Metrics of a device are about the whole device, also with MIG on. Metrics of an instance have names of
their own (`gpu.instance.*`), so that a sum over `gpu.memory.usage` counts every byte once.

| attribute | holds |
|---|---|
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
([cost](../cost.md)), as attributes and, in the body, as JSON.

| event name | means | what to do |
|---|---|---|
";

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The index without columns of vendors.
    fn index() -> String {
        super::index(&[])
    }

    #[test]
    fn the_index_has_a_line_a_metric_and_few_beside_them() {
        let index = index();
        let metrics = super::super::super::all().count();
        for def in super::super::super::all() {
            let anchor = format!("<a id=\"{}\"></a>", anchor(def.name));
            assert_eq!(index.matches(&anchor).count(), 1, "{}", def.name);
        }
        let beside = index.lines().count() - metrics;
        assert!(beside <= 150, "{beside} lines beside the metrics");
    }

    #[test]
    fn each_domain_has_its_page_and_each_link_of_the_index_its_heading() {
        let files: HashSet<_> = pages().map(|page| page.file).collect();
        assert!(DOMAINS.iter().all(|(file, ..)| files.contains(file)));
        let texts: Vec<_> = pages().map(|page| (page.file, text(&page, &[]))).collect();
        for def in super::super::super::all() {
            let heading = format!("\n### `{}`\n", def.name);
            let on: Vec<_> = texts.iter().filter(|(_, text)| text.contains(&heading)).collect();
            assert!(
                matches!(on[..], [(file, _)] if link(def, "").contains(&format!("/{file}.md#"))),
                "{}",
                def.name
            );
        }
    }

    #[test]
    fn what_answers_a_question_is_exported_by_default() {
        for question in questions() {
            let (question, metrics) = question.expect("a metric of each name");
            assert!(metrics.iter().all(|def| Level::of(def) <= Level::Default), "{question}");
        }
    }

    /// What other pages linked before the sections moved.
    #[test]
    fn anchors_of_the_old_page_are_in_the_index_once() {
        let index = index();
        let anchors: Vec<_> = pages().flat_map(|page| page.anchors.split(' ')).collect();
        for anchor in &anchors {
            assert_eq!(index.matches(&target(anchor)).count(), 1, "{anchor}");
        }
        assert!(
            ["how-many-series", "names-of-l9gpu", "by-vendor"]
                .iter()
                .all(|old| anchors.contains(old))
        );
    }
}
