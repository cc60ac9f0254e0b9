//! `gpuwho health`: whether each device is healthy, for people and, by its exit code, for Slurm,
//! node-problem-detector and shells. It only asks the running agent.

use super::{Common, NO_DEVICE, print, screen, who};
use crate::control::{ControlError, Reply, Request};
use anyhow::{Context as _, bail};
use clap::Args;
use gpuwho_model::screen::Screen;
use gpuwho_model::text::device_name;
use gpuwho_pipeline::event::Severity;
use gpuwho_pipeline::health::report::{DeviceView, HealthReport, Verdict};
use gpuwho_pipeline::health::rules::{Figures, RULES, Rule};
use gpuwho_pipeline::health::settings::HealthSettings;
use humantime::format_duration;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER: &str = "\
Exit codes, of the worst device:
  0  no condition
  1  failed
  2  wrong usage or configuration
  3  no accelerator
  4  a warning
  5  a critical condition
  6  a device cannot be judged now
  7  no agent answers";

const WARNING: u8 = 4;
const CRITICAL: u8 = 5;
const UNKNOWN: u8 = 6;
const NO_AGENT: u8 = 7;

#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct HealthArgs {
    /// Only these devices: index, VENDOR:INDEX or UUID; may be repeated.
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Print one line, for a reason field.
    #[arg(long, conflicts_with_all = ["json", "output"])]
    brief: bool,
    /// Print the rules with their thresholds and sources; needs no agent.
    #[arg(long, conflicts_with_all = ["json", "output", "brief", "gpu"])]
    rules: bool,
    /// The agent's socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn health(args: &HealthArgs, json: bool) -> anyhow::Result<ExitCode> {
    if args.rules {
        let settings = args.common.load(None)?.settings;
        screen::write(&rules(&settings.health, screen::of_stdout()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = match &args.socket {
        Some(socket) => who::ask_that(socket, &Request::Health),
        None => who::ask(&args.common.load(None)?.settings, &Request::Health),
    };
    let report = match answer {
        Ok(Reply::Health { health }) => *health,
        Ok(Reply::Refused { reason }) => bail!("the agent does not judge health: {reason}"),
        Ok(other) => bail!("the agent answered {other:?} to a question about health"),
        Err(
            error @ (ControlError::Connect { .. }
            | ControlError::Denied { .. }
            | ControlError::Silent { .. }),
        ) => {
            screen::remark(&error.to_string());
            return Ok(ExitCode::from(NO_AGENT));
        }
        Err(error) => return Err(error.into()),
    };
    let report = selected(report, &args.gpu)?;
    if json {
        let text = serde_json::to_string_pretty(&report).context("cannot write JSON")?;
        print(&format!("{text}\n"))?;
    } else if args.brief {
        print(&format!("{}\n", report.brief()))?;
    } else {
        screen::write(&report.render(screen::of_stdout()))?;
    }
    Ok(code(&report))
}

/// The devices that were asked for.
fn selected(mut report: HealthReport, gpus: &[String]) -> anyhow::Result<HealthReport> {
    if !report.enabled {
        bail!("the agent judges no health: [health] switches every rule off");
    }
    if gpus.is_empty() {
        return Ok(report);
    }
    let is = |device: &DeviceView, asked: &String| {
        let names = [false, true].map(|named| device_name(&device.vendor, device.index, named));
        device.uuid == *asked || names.contains(asked)
    };
    for asked in gpus {
        if !report.devices.iter().any(|device| is(device, asked)) {
            let known: Vec<_> = report.devices.iter().map(|device| report.name(device)).collect();
            bail!("no device `{asked}` was judged; there are: {}", known.join(", "));
        }
    }
    report.devices.retain(|device| gpus.iter().any(|asked| is(device, asked)));
    Ok(report)
}

fn code(report: &HealthReport) -> ExitCode {
    match report.verdict() {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::Warning => ExitCode::from(WARNING),
        Verdict::Critical => ExitCode::from(CRITICAL),
        Verdict::Unknown if report.devices.is_empty() && report.has_read => {
            ExitCode::from(NO_DEVICE)
        }
        Verdict::Unknown => ExitCode::from(UNKNOWN),
    }
}

/// The rules as they are configured.
fn rules(settings: &HealthSettings, screen: Screen) -> String {
    let mut out = String::new();
    for (rule, figures) in RULES.iter().zip(&settings.figures) {
        let figures = figures.as_ref().map_or_else(|| "switched off".to_owned(), words);
        let Rule { about, citation, .. } = rule;
        out.push_str(&screen.wrap(0, &format!("{}: {}", about.condition.as_str(), about.meaning)));
        out.push_str(&screen.wrap(5, &figures));
        out.push_str(&screen.wrap(5, &format!("remedy: {}", about.advice)));
        out.push_str(&screen.wrap(5, &format!("source: {citation}")));
    }
    out
}

fn words(figures: &Figures) -> String {
    let time = |seconds: f64| match Duration::from_secs_f64(seconds) {
        Duration::ZERO => String::new(),
        time => format!(" for {}", format_duration(time)),
    };
    let Figures { start, end, after, clear, severity } = figures;
    let is_upper = end < start;
    let (from, to) = if is_upper { ("up", "below") } else { ("down", "above") };
    let severity = if *severity == Severity::Critical { "critical" } else { "warning" };
    let (after, clear) = (time(*after), time(*clear));
    format!("{severity} from {start} {from}{after}; ends at {end} or {to}{clear}")
}
