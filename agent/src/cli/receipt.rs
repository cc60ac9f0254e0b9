//! `gpuwho receipt`: what a job, pod or unit had of the devices, what it used and what that cost.

use super::{Common, NO_RECEIPT, print, screen, who};
use crate::control::{Reply, Request};
use anyhow::{Context as _, bail};
use clap::Args;
use gpuwho_model::catalog::attributes::{self as attr, AttrKey};
use gpuwho_model::screen::{Screen, Style};
use gpuwho_pipeline::cost::receipts::view::{DeviceReceipt, GpuHours, Money};
use gpuwho_pipeline::cost::receipts::{Receipt, ReceiptReport};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Before the lines of a receipt.
const INDENT: usize = 2;

#[derive(Debug, Args)]
pub(super) struct ReceiptArgs {
    /// A Slurm job id, a pod (NAME, NAMESPACE/NAME or UID), a systemd unit, or a container id.
    #[arg(value_name = "JOB|POD|UNIT")]
    name: String,
    /// Print one line of KEY=VALUE for each receipt, for a job comment.
    #[arg(long, conflicts_with_all = ["json", "output"])]
    line: bool,
    /// The agent's socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn receipt(args: &ReceiptArgs, json: bool) -> anyhow::Result<ExitCode> {
    let request = Request::Receipt { name: args.name.clone() };
    let reply = match &args.socket {
        Some(socket) => who::ask_that(socket, &request),
        None => who::ask(&args.common.load(None)?.settings, &request),
    };
    let report = match reply? {
        Reply::Receipts { receipts } => *receipts,
        Reply::Refused { reason } => bail!("the agent keeps no receipts: {reason}"),
        other => bail!("the agent answered {other:?} to a question about receipts"),
    };
    if json {
        print(&format!("{}\n", report.json().context("cannot write JSON")?))?;
    } else if args.line {
        report.receipts.iter().try_for_each(|receipt| print(&format!("{}\n", receipt.line())))?;
    } else {
        screen::write(&render(&report, &args.name, screen::of_stdout()))?;
    }
    Ok(if report.receipts.is_empty() { ExitCode::from(NO_RECEIPT) } else { ExitCode::SUCCESS })
}

fn render(report: &ReceiptReport, name: &str, screen: Screen) -> String {
    let mut out = String::new();
    if report.receipts.is_empty() {
        let hidden =
            if report.others_hidden { ", or belongs to another user (run as root)" } else { "" };
        let text =
            format!("{}: no receipt for {name}: it used no device here{hidden}", report.host);
        out.push_str(&screen.wrap(0, &text));
    }
    for receipt in &report.receipts {
        one(receipt, screen, &mut out);
    }
    out
}

fn one(receipt: &Receipt, screen: Screen, out: &mut String) {
    let head = format!("{} on {}, {}", title(receipt), receipt.host, receipt.state);
    for line in screen.wrap(0, &head).lines() {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", screen.paint(Style::Plain, line));
    }
    let mut line = |name: &str, text: String| {
        if !text.is_empty() {
            out.push_str(&screen.wrap(INDENT, &format!("{name}: {text}")));
        }
    };
    let length = Duration::from_secs_f64(receipt.seconds.max(0.0).round());
    let length = humantime::format_duration(length);
    line("time", format!("{} to {} ({length})", receipt.began, receipt.until));
    line("team", receipt.team.clone().unwrap_or_default());
    line("GPU-hours", hours(receipt.gpu_hours));
    receipt.cost.iter().for_each(|money| line("cost", amount(money)));
    line("energy", energy(receipt));
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    line("utilization", levels("", receipt.utilization_mean, receipt.utilization_peak, percent));
    let gib = |bytes: f64| format!("{:.1} GiB", bytes / f64::from(1 << 30));
    let peak = receipt.memory_peak_bytes.map(|bytes| bytes as f64);
    line("memory", levels(" per GPU", receipt.memory_mean_bytes, peak, gib));
    let watts = |watts: f64| format!("{watts:.0} W");
    line("power", levels(" per GPU", receipt.power_mean_watts, receipt.power_peak_watts, watts));
    let reasons = receipt.throttled_seconds.iter();
    line("throttled", list(reasons.map(|(reason, seconds)| format!("{seconds:.0} s {reason}"))));
    line("collectives", collectives(receipt));
    if let Some(tokens) = &receipt.tokens {
        let (prompt, generated) = (tokens.prompt, tokens.generated);
        line("tokens", format!("{} prompt, {} generated", grouped(prompt), grouped(generated)));
    }
    line("events", list(receipt.events.iter().map(|(event, count)| format!("{count} x {event}"))));
    line("shares", receipt.shares.join(", "));
    receipt.unknown.iter().for_each(|text| line("unknown", text.clone()));
    receipt.would_fit.iter().for_each(|text| line("would fit", text.clone()));
    if receipt.devices.len() > 1 {
        receipt
            .devices
            .iter()
            .for_each(|device| line(&format!("GPU {}", device.index), of(device)));
    }
}

/// Whose it is, in a few words.
fn title(receipt: &Receipt) -> String {
    let has = |key: &AttrKey| receipt.owner.get(key.name).map(String::as_str);
    let id = receipt.receipt.split_once('/').map_or("", |(_, id)| id);
    match &*receipt.kind {
        "slurm_job" => {
            let name =
                has(&attr::SLURM_JOB_NAME).map(|name| format!(" {name}")).unwrap_or_default();
            let user = has(&attr::PROCESS_OWNER).or_else(|| has(&attr::SLURM_JOB_USER));
            let user = user.map(|user| format!(" of {user}")).unwrap_or_default();
            format!("Slurm job {id}{name}{user}")
        }
        "pod" => match (has(&attr::K8S_NAMESPACE_NAME), has(&attr::K8S_POD_NAME)) {
            (Some(namespace), Some(pod)) => format!("pod {namespace}/{pod}"),
            _ => format!("pod {id}"),
        },
        kind => format!("{kind} {id}"),
    }
}

/// A mean and a peak of a device.
fn levels(of: &str, mean: Option<f64>, peak: Option<f64>, text: impl Fn(f64) -> String) -> String {
    let Some(mean) = mean.map(&text) else { return "not known".to_owned() };
    let peak = peak.map_or_else(|| "no peak".to_owned(), |peak| format!("{} peak", text(peak)));
    format!("{mean} average, {peak}{of}")
}

/// A whole number with its thousands apart.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(String::from_utf8_lossy).collect::<Vec<_>>().join(",")
}

fn hours(hours: GpuHours) -> String {
    let GpuHours { granted, used, idle, unknown } = hours;
    let granted = granted.map_or_else(
        || "allocated not known (no allocation from kubelet or Slurm)".to_owned(),
        |granted| format!("{granted:.4} allocated"),
    );
    let mut text = format!("{granted}, {used:.4} used, {idle:.4} idle");
    if unknown > 0.0 {
        let _ = write!(text, ", {unknown:.4} unknown");
    }
    text
}

fn amount(money: &Money) -> String {
    let Money { currency, total, used, idle, unknown, .. } = money;
    let mut text = format!("{total:.4} {currency} (used {used:.4}, idle {idle:.4}");
    if *unknown > 0.0 {
        let _ = write!(text, ", unknown {unknown:.4}");
    }
    text + ")"
}

fn energy(receipt: &Receipt) -> String {
    let Some(joules) = receipt.energy_joules else { return "not known".to_owned() };
    let mut text = format!("{:.4} kWh", joules / 3.6e6);
    for (currency, amount) in &receipt.energy_cost {
        let _ = write!(text, ", {amount:.4} {currency}");
    }
    if let Some(grams) = receipt.carbon_grams {
        let _ = write!(text, ", {grams:.1} g CO2");
    }
    text
}

fn collectives(receipt: &Receipt) -> String {
    let Some(known) = &receipt.collectives else { return String::new() };
    let inside = known.seconds.map(|seconds| format!("{seconds:.1} s inside"));
    let waiting = format!("{:.1} s waiting for the last rank", known.waiting_seconds);
    let slowest = known.slowest_rank.map(|rank| format!("slowest rank {rank}"));
    list(inside.into_iter().chain([waiting]).chain(slowest))
}

fn of(device: &DeviceReceipt) -> String {
    let GpuHours { granted, used, .. } = device.gpu_hours;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let parts = [
        granted.map(|granted| format!("{granted:.4} h allocated")),
        Some(format!("{used:.4} h used")),
        device.utilization_mean.map(|busy| format!("{:.0} % busy", busy * 100.0)),
        device.memory_peak_bytes.map(|bytes| format!("{:.1} GiB peak", gib(bytes))),
    ];
    list(parts.into_iter().flatten())
}

fn list(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}
