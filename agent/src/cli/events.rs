//! `gpuwho events`: what has happened to the devices lately, what it means and what to do.

use super::{Common, print, screen, who};
use crate::control::{Reply, Request};
use anyhow::{Context as _, bail};
use clap::Args;
use gpuwho_model::screen::{Screen, Style};
use gpuwho_model::text::{are, device_name, plural, ranges};
use gpuwho_pipeline::event::recent::{EventReport, EventView};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Before what belongs to the event above.
const INDENT: usize = 4;
/// Devices of one cause whose owners are named; `--json` has all.
const MAX_AFFECTED: usize = 4;
/// Equal events of several devices within this time have one cause.
const TOGETHER: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Only events of the last TIME, like 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = who::time)]
    since: Option<Duration>,
    /// The agent's socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn events(args: &EventsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let reply = match &args.socket {
        Some(socket) => who::ask_that(socket, &Request::Events),
        None => who::ask(&args.common.load(None)?.settings, &Request::Events),
    };
    let mut report = match reply? {
        Reply::Events { events } => *events,
        Reply::Refused { reason } => bail!("the agent keeps no events: {reason}"),
        other => bail!("the agent answered {other:?} to a question about events"),
    };
    if let Some(since) = args.since.and_then(|since| SystemTime::now().checked_sub(since)) {
        report = report.since(since);
    }
    if json {
        let text = serde_json::to_string_pretty(&report).context("cannot write JSON")?;
        print(&format!("{text}\n"))?;
    } else {
        screen::write(&render(&report, screen::of_stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(report: &EventReport, screen: Screen) -> String {
    let mut out = String::new();
    if report.events.is_empty() {
        out.push_str(&screen.wrap(0, &format!("{}: no events", report.host)));
    }
    let vendors: BTreeSet<_> = report.events.iter().filter_map(|one| one.vendor.as_ref()).collect();
    for alike in folded(&report.events) {
        out.push_str(&one(&alike, vendors.len() > 1, screen));
    }
    if report.hidden > 0 {
        let (events, are) = (plural(report.hidden, "event", "events"), are(report.hidden));
        let text = format!("{events} about processes of other users {are} hidden; run as root");
        out.push_str(&screen.wrap(0, &text));
    }
    out
}

/// Events of one cause on several devices, which came together, in the order of the first of each.
fn folded(events: &[EventView]) -> Vec<Vec<&EventView>> {
    let words = |event: &EventView| {
        let EventView { name, severity, code, condition, message, remedy, .. } = event.clone();
        (name, severity, code, condition, message, remedy)
    };
    let time = |event: &EventView| humantime::parse_rfc3339(&event.time).ok();
    let mut all: Vec<Vec<&EventView>> = Vec::new();
    for event in events {
        let is_alike = |known: &&mut Vec<&EventView>| {
            let Some(first) = known.first() else { return false };
            let apart = time(event).zip(time(first));
            let apart = apart.and_then(|(event, first)| event.duration_since(first).ok());
            let is_close = apart.is_some_and(|apart| apart <= TOGETHER);
            is_close && event.gpu.is_some() && first.gpu.is_some() && words(first) == words(event)
        };
        match all.iter_mut().find(is_alike) {
            Some(known) => known.push(event),
            None => all.push(vec![event]),
        }
    }
    all
}

/// One cause: what happened on which devices, what it means, what to do, whom it affects.
fn one(alike: &[&EventView], is_mixed: bool, screen: Screen) -> String {
    let Some(event) = alike.first() else { return String::new() };
    let style = match &*event.severity {
        "critical" => Style::Bad,
        "warning" => Style::Warning,
        _ => Style::Plain,
    };
    let name = |event: &&EventView| {
        Some(device_name(event.vendor.as_deref().unwrap_or("?"), event.gpu?, is_mixed))
    };
    let mut devices: Vec<String> = alike.iter().filter_map(name).collect();
    devices.dedup();
    let times = alike.iter().map(|event| event.count).sum::<u64>();
    let count = match usize::try_from(times) {
        Ok(times) if times <= devices.len().max(1) => String::new(),
        _ => format!(" ({times} times)"),
    };
    let title = event.title_on(&ranges(&devices));
    let head = format!("{} {} {title}{count}", event.time, event.severity);
    let mut out = screen.wrap_painted(style, 0, &head);
    let mut affected: Vec<String> = alike.iter().map(|event| event.affected_words()).collect();
    affected.dedup();
    if let more @ 1.. = affected.len().saturating_sub(MAX_AFFECTED) {
        affected.truncate(MAX_AFFECTED);
        affected.push(format!("and those on {more} devices more"));
    }
    let affected = affected.join(", ");
    let (from, message) = event.message_words().unwrap_or_default();
    let details = [
        ("meaning", &*event.meaning),
        ("remedy", &event.remedy),
        ("affected", &affected),
        (from, message),
    ];
    for (name, text) in details.into_iter().filter(|(_, text)| !text.is_empty()) {
        out.push_str(&screen.wrap(INDENT, &format!("{name}: {text}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: &str, gpu: u32, condition: &str) -> EventView {
        EventView {
            time: format!("2026-11-26T23:09:{time}Z"),
            name: "gpu.health.started".into(),
            severity: "warning".into(),
            source: "health".into(),
            condition: Some(condition.into()),
            gpu: Some(gpu),
            message: Some(format!("{condition}: so it is")),
            count: 1,
            ..EventView::default()
        }
    }

    #[test]
    fn a_condition_is_the_title_and_one_cause_on_many_devices_is_one_entry() {
        let mut late = event("59", 0, "bus_fault");
        late.time = "2026-11-26T23:19:59Z".into();
        let events = vec![
            event("50", 0, "bus_fault"),
            event("51", 1, "bus_fault"),
            event("51", 1, "hot"),
            late,
        ];
        let report = EventReport { events, hidden: 1, ..EventReport::default() };
        let expected = "\
2026-11-26T23:09:50Z warning bus_fault on GPU 0,1
    reason: so it is
2026-11-26T23:09:51Z warning hot on GPU 1
    reason: so it is
2026-11-26T23:19:59Z warning bus_fault on GPU 0
    reason: so it is
1 event about processes of other users is hidden; run as root
";
        let text = render(&report, Screen::new(80, false));
        assert_eq!(text, expected, "\n{text}");
    }
}
