//! Inference engines, health with the last events, and the agent itself.

use super::{Page, Row, header, wrap};
use crate::top::Look;
use crate::top::screen::Mark;
use crate::who::table::row::names;
use gpuwho_model::text::device_name;

/// Inference engines: what they serve, for whom, and what waits.
pub(super) fn engines(look: &Look, wide: usize) -> Page {
    let numbers = 10 + 9 + 9;
    let names_room = wide.saturating_sub(numbers + 16);
    let (owner, model) = (names_room / 2, names_room - names_room / 2);
    let (owner, model) = (owner.saturating_sub(1), model.saturating_sub(1));
    let rows = look.who.engines.iter().map(|engine| {
        let [_, name] = names(&engine.owner);
        let name = if engine.owner.owner.is_some() {
            name
        } else {
            engine.address.clone().unwrap_or_else(|| "-".to_owned())
        };
        let what = format!("{}:{}", engine.engine.as_deref().unwrap_or("?"), engine.port);
        let number = |number: Option<i64>| number.map_or("-".to_owned(), |count| count.to_string());
        let waits = engine.waiting.is_some_and(|waiting| waiting > 0);
        Row::default()
            .left(&name, owner, Mark::Plain)
            .left(&what, 15, Mark::Plain)
            .left(&engine.models.join(" "), model, Mark::Plain)
            .right(
                &engine.tokens_per_second.map_or("-".into(), |rate| format!("{rate:.0}")),
                9,
                Mark::Plain,
            )
            .right(&number(engine.running), 8, Mark::Plain)
            .right(&number(engine.waiting), 8, if waits { Mark::Warning } else { Mark::Plain })
    });
    let mut rows: Vec<Row> = rows.collect();
    if rows.is_empty() {
        rows.push(Row::text("no inference engine is read on this host", Mark::Plain));
    }
    let header = header(&[
        ("OWNER", owner, false),
        ("ENGINE", 15, false),
        ("MODEL", model, false),
        ("TOKENS/S", 9, true),
        ("RUNNING", 8, true),
        ("WAITING", 8, true),
    ]);
    Page { header, rows }
}

fn mark(severity: &str) -> Mark {
    match severity {
        "critical" => Mark::Bad,
        "warning" => Mark::Warning,
        "ok" => Mark::Good,
        _ => Mark::Plain,
    }
}

/// What is wrong with each device and what to do, then the last events, the newest first.
pub(super) fn health(look: &Look, wide: usize) -> Page {
    let mut rows = Vec::new();
    let vendors = look.who.devices.iter().map(|device| device.vendor.as_str());
    let is_mixed = vendors.collect::<std::collections::BTreeSet<_>>().len() > 1;
    match &look.health {
        None => rows.extend(wrap(
            "health is judged by the agent, which does not run",
            wide,
            Mark::Plain,
        )),
        Some(health) if !health.enabled => {
            rows.extend(wrap("health is switched off ([health] enabled)", wide, Mark::Plain));
        }
        Some(health) => {
            for device in &health.devices {
                let name = device_name(&device.vendor, device.index, is_mixed);
                let score = device.score.map_or(String::new(), |score| format!("  score {score}"));
                let text = format!("GPU {name}  {}{score}", device.status);
                rows.push(Row::text(&text, mark(&device.status)));
                for condition in &device.conditions {
                    let text = format!("    {}: {}", condition.severity, condition.reason);
                    rows.push(Row::text(&text, mark(&condition.severity)));
                    rows.extend(indented(&condition.advice, wide));
                }
            }
        }
    }
    let events = look.events.iter().flat_map(|report| report.events.iter().rev());
    for (at, event) in events.enumerate() {
        if at == 0 {
            rows.push(Row::default());
            rows.push(Row::text("EVENTS, the newest first", Mark::Dim));
        }
        let gpu = match (&event.vendor, event.gpu) {
            (Some(vendor), Some(index)) => format!(" GPU {}", device_name(vendor, index, is_mixed)),
            (None, Some(index)) => format!(" GPU {index}"),
            _ => String::new(),
        };
        let times =
            if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
        let code = event.code.map_or(String::new(), |code| format!(" {code}"));
        let title = event.condition.clone().unwrap_or_else(|| format!("{}{code}", event.name));
        let text =
            format!("{} {}{gpu}  {title}: {}{times}", event.time, event.severity, event.meaning);
        rows.push(Row::text(&text, mark(&event.severity)));
    }
    Page { header: "HEALTH".to_owned(), rows }
}

fn indented(text: &str, wide: usize) -> impl Iterator<Item = Row> + use<> {
    wrap(text, wide.saturating_sub(6), Mark::Plain).into_iter().map(|mut row| {
        row.cells.insert(0, ("      ".to_owned(), Mark::Plain));
        row
    })
}

/// The agent's sources and receivers, those that fail first.
pub(super) fn agent(look: &Look, wide: usize) -> Page {
    let who = &look.who;
    let reason = wide.saturating_sub(22 + 10);
    let mut rows = Vec::new();
    let all = who.sources.iter().chain(&who.receivers);
    let mut all: Vec<_> = all.filter(|source| source.state != "absent").collect();
    all.sort_by_key(|source| !source.is_failing());
    for source in all {
        let kind = if source.is_failing() { Mark::Bad } else { Mark::Good };
        let row = Row::default().left(&source.name, 20, Mark::Plain).left(&source.state, 9, kind);
        rows.push(row.left(&source.reason, reason, Mark::Plain));
        if source.is_failing() {
            rows.extend(indented(&source.remedy, wide));
        }
    }
    if rows.is_empty() {
        rows.push(Row::text("no agent runs; the devices are read without one", Mark::Plain));
    }
    let header = header(&[("SOURCE", 20, false), ("STATE", 9, false), ("WHY", reason, false)]);
    Page { header, rows }
}
