//! Inference engines, health with the last events, and the agent itself.

use super::{Page, Row, header, wrap};
use crate::top::Look;
use crate::top::screen::Mark;
use crate::who::engines::table;
use gpuwho_model::screen::Screen;
use gpuwho_model::text::device_name;

/// Inference engines: what they serve, for whom, and what waits; the table's own lines.
pub(super) fn engines(look: &Look, wide: usize) -> Page {
    let table = table(&look.who.engines, Screen::new(wide, false));
    let mut lines = table.lines().skip_while(|line| line.is_empty());
    let Some(header) = lines.next() else {
        let none = Row::text("no inference engine is read on this host", Mark::Plain);
        return Page { rows: vec![none], ..Page::default() };
    };
    let rows = lines.map(|line| Row::text(line, Mark::Plain)).collect();
    Page { header: header.to_owned(), rows }
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
            0,
            "health is judged by the agent, which does not run",
            wide,
            Mark::Plain,
        )),
        Some(health) if !health.enabled => {
            rows.extend(wrap(0, "health is switched off ([health] enabled)", wide, Mark::Plain));
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
                    rows.extend(wrap(6, &condition.advice, wide, Mark::Plain));
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
            rows.extend(wrap(6, &source.remedy, wide, Mark::Plain));
        }
    }
    if rows.is_empty() {
        rows.push(Row::text("no agent runs; the devices are read without one", Mark::Plain));
    }
    let header = header(&[("SOURCE", 20, false), ("STATE", 9, false), ("WHY", reason, false)]);
    Page { header, rows }
}
