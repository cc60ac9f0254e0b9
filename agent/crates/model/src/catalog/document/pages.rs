//! `METRICS.md`, an index with one line a metric, and the pages below `agent/docs/metrics` that it leads to.

use super::super::level::Level;
use super::super::{
    DOMAINS, MetricDef, agent, attributes, board, cost, dcgm, device, engine, event, gpm, health,
    l9gpu, link, nccl, process, profile, semconv, share, wear,
};
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
    anchors: &'static [&'static str],
}

const fn page(
    file: &'static str,
    title: &'static str,
    about: &'static str,
    anchors: &'static [&'static str],
) -> Page {
    Page { file, title, about, anchors }
}

static PAGES: &[Page] = &[
    page(
        "devices",
        "Devices",
        "state, utilization, memory, power, temperature, clocks, errors, PCIe, health",
        &["devices", "wear-and-the-way-to-the-host", "boards", "health"],
    ),
    page(
        "links",
        "Links",
        "NVLink, NVLink fabric, XGMI, links to the CPU",
        &["links", "links-other-than-nvlink"],
    ),
    page(
        "counters",
        "MIG instances and performance counters",
        "multiprocessors, tensor cores, memory, links, by device and by MIG instance",
        &["mig-instances", "performance-counters-of-devices-and-mig-instances"],
    ),
    page(
        "owners",
        "Owners and processes",
        "use, time, energy and cost by pod, job, unit and user; processes; cgroups",
        &["processes-on-devices", "owners", "time-and-cost-of-owners", "owners-cgroups"],
    ),
    page(
        "nccl",
        "Collective communication",
        "communicators, ranks, collectives, NCCL Inspector",
        &["collective-communication", "completed-collectives-nccl-inspector"],
    ),
    page(
        "engines",
        "Inference engines",
        "tokens, latencies, queues and caches of vLLM, SGLang, TensorRT-LLM, Triton, TGI, llama.cpp, NIM, Dynamo",
        &["inference-engines", "reading-of-inference-engines"],
    ),
    page(
        "events",
        "Events",
        "XIDs, OOM kills and faults as counters and as log records",
        &["events", "log-records"],
    ),
    page(
        "agent",
        "The agent and the host",
        "what the agent costs and drops, its sources; CPU and memory of the host",
        &["the-agent-itself", "the-host"],
    ),
    page("attributes", "Attributes", "every attribute of a point", &["attributes"]),
    page(
        "series",
        "How many series",
        "series of each level, by device, process, owner, …",
        &["how-many-series"],
    ),
    page(
        "names",
        "Names of other programs",
        "profiles `dcgm`, `l9gpu` and `semconv`, name by name",
        &[
            "names-of-l9gpu",
            "names-of-opentelemetrys-semantic-conventions",
            "names-of-dcgm-exporter",
        ],
    ),
    page(
        "vendors",
        "By vendor",
        "which vendor's devices have which metric; throttle reasons",
        &["by-vendor", "throttle-reasons"],
    ),
];

/// What people ask first, and the metrics that answer.
static QUESTIONS: &[(&str, &[&MetricDef])] = &[
    (
        "Which GPUs are busy?",
        &[device::UTILIZATION.def(), gpm::SM_ACTIVE.def(), gpm::PIPE_ACTIVE.def()],
    ),
    ("Who is on which GPU?", &[process::INFO.def(), share::OWNER_BUSY_TIME.def()]),
    (
        "Which GPUs are allocated, and idle?",
        &[share::ALLOCATION_INFO.def(), share::ALLOCATION_TIME.def()],
    ),
    (
        "Who uses the memory?",
        &[device::MEMORY_USAGE.def(), process::MEMORY_USAGE.def(), share::OWNER_MEMORY_TIME.def()],
    ),
    (
        "Who draws the power?",
        &[device::POWER.def(), device::ENERGY.def(), share::OWNER_ENERGY.def()],
    ),
    ("What does it cost?", &[cost::OWNER_COST.def(), cost::DEVICE_COST.def()]),
    ("Is a GPU healthy?", &[device::UP.def(), health::CONDITION.def(), health::SCORE.def()]),
    (
        "Does a GPU need a reset or a replacement?",
        &[board::RECOVERY_ACTION.def(), wear::REMAP_PENDING.def(), wear::REMAP_FAILED.def()],
    ),
    (
        "Which errors were there?",
        &[event::XID_ERRORS.def(), wear::ECC_ERRORS.def(), wear::PCIE_REPLAYS.def()],
    ),
    (
        "Is a GPU throttled, and why?",
        &[device::THROTTLE_ACTIVE.def(), device::CLOCK_SPEED.def(), device::TEMPERATURE.def()],
    ),
    (
        "Are all links up, and how busy are they?",
        &[link::NVLINKS.def(), link::NVLINK_IO.def(), link::FABRIC_STATE.def()],
    ),
    ("Which rank is late, and which one hangs?", &[nccl::LAG.def(), nccl::STATE.def()]),
    (
        "Is the inference fast enough?",
        &[
            engine::TIME_TO_FIRST_TOKEN.def(),
            engine::WAITING.def(),
            engine::KV_CACHE_UTILIZATION.def(),
        ],
    ),
    (
        "Is the agent well, and what does it cost?",
        &[agent::SOURCE_STATE.def(), agent::DROPPED.def(), agent::CPU.def()],
    ),
];

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
    for page in PAGES {
        file(&format!("agent/{FOLDER}{}.md", page.file), &text(page, columns));
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
    for (question, metrics) in QUESTIONS {
        let links: Vec<_> = metrics.iter().map(|def| link(def, "")).collect();
        let _ = writeln!(out, "| {question} | {} |", links.join(", "));
    }
    let row = |out: &mut String, page: &Page| {
        let anchors: String =
            page.anchors.iter().map(|old| format!("<a id=\"{old}\"></a>")).collect();
        let _ = writeln!(
            out,
            "| {anchors}[{}]({FOLDER}{}.md) | {} |",
            page.title, page.file, page.about
        );
    };
    out.push_str(PAGES_HEAD);
    PAGES.iter().for_each(|page| row(&mut out, page));
    let name = |column: &Column| {
        let Column { name, .. } = column;
        format!("<a id=\"what-is-read-{name}\"></a>[{name}]({FOLDER}vendor-{name}.md)")
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
    for page in PAGES {
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
        let name = link(def, &format!("<a id=\"{}\"></a>", anchor(def.name)));
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
        let files: HashSet<_> = PAGES.iter().map(|page| page.file).collect();
        assert!(DOMAINS.iter().all(|(file, ..)| files.contains(file)));
        let texts: Vec<_> = PAGES.iter().map(|page| (page.file, text(page, &[]))).collect();
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
        for (question, metrics) in QUESTIONS {
            assert!(metrics.iter().all(|def| Level::of(def) <= Level::Default), "{question}");
        }
    }

    /// What other pages linked before the sections moved.
    #[test]
    fn anchors_of_the_old_page_are_in_the_index_once() {
        let index = index();
        let anchors: Vec<_> = PAGES.iter().flat_map(|page| page.anchors).collect();
        for anchor in &anchors {
            assert_eq!(index.matches(&format!("<a id=\"{anchor}\"></a>")).count(), 1, "{anchor}");
        }
        assert!(
            ["how-many-series", "names-of-l9gpu", "by-vendor"]
                .iter()
                .all(|old| anchors.contains(&old))
        );
    }
}
