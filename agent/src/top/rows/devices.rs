//! Devices: a line each, with what it did before; its processes where it is opened; the owners below.

use super::{Page, Row, gib, header, owners, percent};
use crate::top::Look;
use crate::top::screen::Mark;
use crate::top::state::State;
use crate::who::table::row::names;
use crate::who::{Device, HostReport, Process};
use gpuwho_model::screen::width;
use gpuwho_model::text::{plural, ranges};
use gpuwho_pipeline::health::report::ConditionView;
use std::collections::BTreeSet;

/// Columns of a device, by what the screen has room for.
struct Columns {
    gpu: usize,
    model: usize,
    past: usize,
    bar: usize,
    owners: usize,
}

/// Utilisation, memory, power, temperature, and their spaces.
const NUMBERS: usize = 6 + 15 + 7 + 6;
/// The narrowest names that are of use.
const MIN_OWNERS: usize = 16;
/// A part of the limit from which a value is high: a temperature in °C.
const HOT: f64 = 85.0;
/// Memory that is nearly full.
const FULL: f64 = 0.95;

impl Columns {
    fn of(report: &HostReport, wide: usize) -> Self {
        let names = report.devices.iter().map(|device| width(&report.name(device)));
        let gpu = names.max().unwrap_or(0).max(3);
        let room = wide.saturating_sub(gpu + 1 + NUMBERS + MIN_OWNERS);
        let longest = report.devices.iter().map(|device| width(&device.model)).max().unwrap_or(0);
        let model = if room > longest + 50 { longest.min(32) } else { 0 };
        let room = room.saturating_sub(model + 1);
        let past = if room < 6 { 0 } else { (room / 2).clamp(5, 60) };
        let bar = if room > 40 { 12 } else { 0 };
        let taken = [gpu, model, past, bar].into_iter().filter(|one| *one > 0).map(|one| one + 1);
        let owners = wide.saturating_sub(taken.sum::<usize>() + NUMBERS);
        Self { gpu, model, past, bar, owners }
    }
}

/// The page of devices, with the owners of what there is room for.
pub(super) fn page(state: &State, look: &Look, wide: usize) -> Page {
    let report = &look.who;
    let columns = Columns::of(report, wide);
    let shown = report.devices.iter().filter(|device| state.filter.has_device(report, device));
    let mut rows: Vec<Row> = Vec::new();
    for device in shown {
        rows.push(line(state, report, device, &columns));
        if state.toggled.contains(&device.uuid) {
            rows.extend(processes(state, report, device, wide));
        }
    }
    rows.extend(conditions(state, report));
    if report.devices.is_empty() {
        rows.push(Row::text("no accelerator; `gpuwho doctor` says why", Mark::Plain));
    } else if rows.is_empty() {
        let text = format!("none of {} devices matches the filter", report.devices.len());
        rows.push(Row::text(&text, Mark::Plain));
    }
    let below = owners::page(state, wide);
    if !below.rows.is_empty() {
        rows.push(Row::default());
        rows.push(Row::text(&below.header, Mark::Dim));
        rows.extend(below.rows);
    }
    Page { header: titles(&columns), rows }
}

/// What is wrong, a line for all devices of which it is true.
fn conditions(state: &State, report: &HostReport) -> Vec<Row> {
    let found = report.conditions(|device| state.filter.has_device(report, device));
    let line = |(condition, names): &(&ConditionView, Vec<String>)| {
        let mark = if condition.severity == "critical" { Mark::Bad } else { Mark::Warning };
        let text = format!("{} on GPU {}: {}", condition.severity, ranges(names), condition.reason);
        Row::text(&text, mark)
    };
    found.iter().map(line).collect()
}

fn titles(columns: &Columns) -> String {
    header(&[
        ("GPU", columns.gpu, false),
        ("MODEL", columns.model, false),
        ("UTIL", 5, true),
        ("", columns.past, false),
        ("MEMORY", 14, true),
        ("", columns.bar, false),
        ("POWER", 6, true),
        ("TEMP", 5, true),
        ("OWNERS", columns.owners, false),
    ])
}

fn line(state: &State, report: &HostReport, device: &Device, columns: &Columns) -> Row {
    let name = report.name(device);
    let row = Row::new(Some(&device.uuid)).left(&name, columns.gpu, Mark::Heading);
    let row = row.left(&device.model, columns.model, Mark::Plain);
    if device.state != "ok" {
        let text = [device.state.as_str(), device.reason.as_str()];
        let text = text.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
        let rest = columns.past + columns.bar + columns.owners + NUMBERS + 2;
        return row.left(&text, rest, Mark::Bad);
    }
    let used = device.memory_used_bytes.zip(device.memory_limit_bytes.filter(|limit| *limit > 0));
    let part = used.map(|(used, limit)| used as f64 / limit as f64);
    let memory = match device.memory_limit_bytes {
        Some(limit) => format!("{}/{}", gib(device.memory_used_bytes), gib(Some(limit))),
        None => gib(device.memory_used_bytes),
    };
    let memory_mark =
        if part.is_some_and(|part| part > FULL) { Mark::Warning } else { Mark::Plain };
    let is_hot = device.temperature_celsius.is_some_and(|degrees| degrees >= HOT);
    let watts = device.power_watts.map_or("-".into(), |watts| format!("{watts:.0} W"));
    let degrees =
        device.temperature_celsius.map_or("-".into(), |degrees| format!("{degrees:.0} C"));
    row.right(&percent(device.utilization), 5, Mark::Plain)
        .left(&state.past(&device.uuid, columns.past), columns.past, Mark::Bar)
        .right(&memory, 14, memory_mark)
        .left(&bar(part, columns.bar, state.options.is_ascii), columns.bar, Mark::Bar)
        .right(&watts, 6, Mark::Plain)
        .right(&degrees, 5, if is_hot { Mark::Warning } else { Mark::Plain })
        .left(&owners_of(device, columns.owners), columns.owners, Mark::Plain)
}

/// A part of a width, filled.
fn bar(part: Option<f64>, wide: usize, is_ascii: bool) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the width"
    )]
    let full = part.map_or(0, |part| (part.clamp(0.0, 1.0) * wide as f64).round() as usize);
    let (full_one, empty) = if is_ascii { ("#", ".") } else { ("━", "─") };
    format!("{}{}", full_one.repeat(full), empty.repeat(wide.saturating_sub(full)))
}

/// Whose processes are on it, as many owners as there is room for and how many more; no name is cut.
fn owners_of(device: &Device, room: usize) -> String {
    let name = |process: &Process| {
        let [_, short] = names(&process.owner);
        if process.owner.owner.is_some() { short } else { process.owner.user.clone() }
    };
    let owners: BTreeSet<String> = device.processes.iter().map(name).collect();
    let others = device.others.as_ref().map(|others| format!("{} hidden", others.processes));
    let names: Vec<String> = owners.into_iter().chain(others).collect();
    let Some(first) = names.first() else { return "-".to_owned() };
    let fits = |text: &String| width(text) <= room;
    let some = (1..=names.len()).rev().map(|count| {
        let shown = names.iter().take(count).cloned().collect::<Vec<_>>().join(", ");
        if count < names.len() { format!("{shown} +{}", names.len() - count) } else { shown }
    });
    // Without its namespace, or as a number alone.
    let pod = first.rsplit_once('/').map(|(_, pod)| match names.len() {
        1 => pod.to_owned(),
        many => format!("{pod} +{}", many - 1),
    });
    let count = plural(names.len(), "owner", "owners");
    some.chain(pod).find(fits).unwrap_or(count)
}

/// The processes on a device, one a line.
fn processes<'a>(
    state: &'a State,
    report: &'a HostReport,
    device: &'a Device,
    wide: usize,
) -> impl Iterator<Item = Row> + use<'a> {
    let shown = device.processes.iter().filter(|process| state.filter.has(report, device, process));
    shown.map(move |process| {
        let [whole, _] = names(&process.owner);
        let fixed = 4 + 8 + 11 + 7 + 8 + 16;
        Row::new(None)
            .left("", 3, Mark::Plain)
            .right(&process.owner.pid.to_string(), 7, Mark::Dim)
            .left(&process.owner.user, 10, Mark::Plain)
            .right(&percent(process.utilization), 6, Mark::Plain)
            .right(&gib(process.memory_bytes), 7, Mark::Plain)
            .left(&process.owner.comm, 15, Mark::Plain)
            .left(&whole, wide.saturating_sub(fixed), Mark::Plain)
    })
}
