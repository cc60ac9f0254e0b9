//! `gpuwho doctor`: what works on this host, what does not, why, and what to do about it.

use super::{Common, print, screen, who};
use crate::agent;
use crate::agent::configuration::Configuration;
use crate::control::{self, ControlError, Reply, Request};
use anyhow::Context as _;
use clap::Args;
use gpuwho_model::finding::{Finding, Group, NOT_RUNNING};
use gpuwho_model::screen::{Screen, Style};
use gpuwho_model::status::brief;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where the facts begin: behind a subject and a state.
const SUBJECT: usize = 24;
const STATE: usize = 12;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Also show checks that do not apply to this host.
    #[arg(long)]
    all: bool,
    /// Print the kernel's messages in full.
    #[arg(short, long)]
    verbose: bool,
    /// Check only the agent of this socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn doctor(args: &DoctorArgs, json: bool) -> anyhow::Result<ExitCode> {
    let findings = findings(args, &args.common.load(None)?);
    if json {
        let text = serde_json::to_string_pretty(&findings).context("cannot write JSON")?;
        print(&format!("{text}\n"))?;
    } else {
        screen::write(&render(&findings, args, screen::of_stdout()))?;
    }
    let is_well = !findings.iter().any(Finding::is_fault);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn findings(args: &DoctorArgs, configuration: &Configuration) -> Vec<Finding> {
    let run = &configuration.settings.paths.run;
    let socket = args.socket.clone().unwrap_or_else(|| run.join(control::SOCKET));
    let answer = match &args.socket {
        Some(socket) => who::ask_that(socket, &Request::Who),
        None => who::ask(&configuration.settings, &Request::Who),
    };
    let of_agent =
        |state, facts, remedy| Finding::new("agent", state, facts, remedy).of(Group::Agent);
    let mut findings = match (&answer, &args.socket) {
        // Of an agent elsewhere, this command's own rights and configuration say nothing.
        (Ok(Reply::Who { .. }), Some(_)) => Vec::new(),
        (Ok(Reply::Who { who }), None) => agent::diagnose(configuration, Some(who)),
        _ => agent::diagnose(configuration, None),
    };
    match answer {
        Ok(Reply::Who { who: report }) => {
            let facts = format!("version {} answers on {}", report.version, socket.display());
            findings.push(of_agent("ok", facts, ""));
            findings.extend(agent::of_report(&report));
        }
        Err(ControlError::Connect { .. }) if args.socket.is_none() => {
            let facts = format!("none answers on {}", socket.display());
            findings.push(of_agent(NOT_RUNNING, facts, "start one: gpuwho agent"));
        }
        Ok(other) => findings.push(of_agent("failed", format!("it answered {other:?}"), "")),
        Err(error) => findings.push(of_agent("failed", error.to_string(), "")),
    }
    findings.sort_by_key(|finding| finding.group);
    findings
}

/// What people call the sources that have other names in `gpuwho collect` and in metrics.
const TITLES: &[(&str, &str)] = &[
    ("cgroups", "owners' cgroups"),
    ("device_users", "open hook"),
    ("engines", "inference engines"),
    ("events", "event counters"),
    ("host", "host CPU and memory"),
    ("kmsg", "kernel log"),
    ("names", "owner names"),
    ("nccl", "NCCL probes"),
    ("nccl-ras", "NCCL status socket"),
    ("nccl:watch", "NCCL libraries"),
    ("nccl_inspector", "NCCL Inspector"),
    ("nvml_events", "driver events"),
    ("pipeline", "pipeline"),
    ("pod_resources", "kubelet"),
    ("tenant_files", "file reader"),
    ("upkeep", "housekeeping"),
];

fn render(findings: &[Finding], args: &DoctorArgs, screen: Screen) -> String {
    let mut out = String::new();
    let mut group = None;
    for finding in findings.iter().filter(|finding| args.all || !finding.is_absent()) {
        if group.replace(finding.group) != Some(finding.group) {
            out.push_str(&screen.paint(Style::Heading, finding.group.as_str()));
            out.push('\n');
        }
        out.push_str(&line(finding, args.verbose, screen));
    }
    out.push_str(&verdict(findings, args.all, screen));
    out
}

/// State first, then the reason, then the remedy.
fn line(finding: &Finding, is_verbose: bool, screen: Screen) -> String {
    let style = match (&*finding.state, finding.is_fault()) {
        ("ok", _) => Style::Good,
        (_, true) => Style::Bad,
        _ => Style::Plain,
    };
    let facts = if is_verbose { &*finding.facts } else { brief(&finding.facts) };
    let remedy = Some(&finding.remedy).filter(|remedy| !remedy.is_empty());
    let remedy = remedy.map(|remedy| format!("remedy: {remedy}"));
    let indent = 2 + SUBJECT + STATE;
    let wrapped = |text: &str| screen.wrap(indent, text);
    let text = [Some(wrapped(facts)), remedy.map(|remedy| wrapped(&remedy))];
    let text: String = text.into_iter().flatten().collect();
    let title = TITLES.iter().find(|(name, _)| *name == finding.subject);
    let subject = title.map_or(&*finding.subject, |(_, title)| title);
    let subject = format!("{subject:<SUBJECT$}");
    let state = screen.paint(style, &format!("{:<STATE$}", finding.state));
    let head = format!("  {subject}{state}");
    let rest = text.get(indent..).unwrap_or("\n");
    format!("{}\n", format!("{head}{rest}").trim_end())
}

fn verdict(findings: &[Finding], shows_all: bool, screen: Screen) -> String {
    let count = |is: fn(&Finding) -> bool| findings.iter().filter(|finding| is(finding)).count();
    let (faults, absent) = (count(Finding::is_fault), count(Finding::is_absent));
    let fine = count(|finding| finding.state == "ok");
    let style = if faults == 0 { Style::Good } else { Style::Bad };
    let faults = if faults == 0 { String::new() } else { format!("{faults} failed, ") };
    let all = if shows_all || absent == 0 { "" } else { " (--all shows them)" };
    let text = format!("checks: {faults}{fine} passed, {absent} not applicable{all}");
    format!("\n{}", screen.wrap_painted(style, 0, &text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DoctorArgs,
    }

    fn rendered(words: &[&str]) -> String {
        let refused = "no fexit: refused (os error 1). Verifier output: : 0: R1=ctx() R10=fp0";
        let findings = [
            Finding::new("nvidia", "ok", "", "").of(Group::Devices),
            Finding::new("device 3", "lost", "NVIDIA H100", "").of(Group::Devices),
            Finding::new("amd", "absent", "no device", "install it").of(Group::Devices),
            Finding::new("open hook", "degraded", refused, "run it with sudo"),
        ];
        let line = Line::try_parse_from(["doctor"].iter().chain(words)).unwrap();
        render(&findings, &line.args, Screen::new(80, false))
    }

    #[test]
    fn what_does_not_apply_is_counted_and_not_shown() {
        let expected = "\
devices
  nvidia                  ok
  device 3                lost        NVIDIA H100
kernel
  open hook               degraded    no fexit: refused (os error 1)
                                      remedy: run it with sudo

checks: 2 failed, 1 passed, 1 not applicable (--all shows them)
";
        let text = rendered(&[]);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn everything_is_shown_to_who_asks_for_it() {
        let text = rendered(&["--all"]);
        assert!(text.contains("amd") && text.contains("remedy: install it"), "{text}");
        assert!(!text.contains("--all") && !text.contains("R10"), "{text}");
        assert!(rendered(&["-v"]).contains("R10=fp0"));
    }
}
