//! `gpuwho events`: what has happened to the devices lately, what it means and what to do.

use super::{Common, print, screen, who};
use crate::control::{Reply, Request};
use anyhow::{Context as _, bail};
use clap::Args;
use gpuwho_model::screen::{Screen, Style};
use gpuwho_pipeline::event::recent::{EventReport, EventView};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Before what belongs to the event above.
const INDENT: usize = 4;

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Only what happened in this time until now, like 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// The agent's socket; default: gpuwho.sock in paths.run.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn events(args: &EventsArgs) -> anyhow::Result<ExitCode> {
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
    if args.json {
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
    report.events.iter().for_each(|event| out.push_str(&one(event, screen)));
    if report.hidden > 0 {
        let text = format!("{} about processes of others; root sees all", report.hidden);
        out.push_str(&screen.wrap(0, &text));
    }
    out
}

fn one(event: &EventView, screen: Screen) -> String {
    let style = match &*event.severity {
        "critical" => Style::Bad,
        "warning" => Style::Warning,
        _ => Style::Plain,
    };
    let count = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
    let head = format!("{} {} {}{count}", event.time, event.severity, event.title());
    let head = screen.wrap(0, &head);
    let mut out = head.lines().fold(String::new(), |mut out, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", screen.paint(style, line));
        out
    });
    let affected = event.affected_words();
    let details = [
        ("meaning", &*event.meaning),
        ("remedy", &event.remedy),
        ("affected", &affected),
        ("driver", event.message.as_deref().unwrap_or_default()),
    ];
    for (name, text) in details.into_iter().filter(|(_, text)| !text.is_empty()) {
        out.push_str(&screen.wrap(INDENT, &format!("{name}: {text}")));
    }
    out
}
