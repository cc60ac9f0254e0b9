//! `gpuwho doctor`: what works on this host, what does not, why, and what to do about it.

use super::{DoctorArgs, print, show};
use crate::agent;
use crate::agent::configuration::Configuration;
use crate::control::{self, Reply};
use crate::diagnosis::Finding;
use anyhow::Context as _;
use std::fmt::Write as _;
use std::process::ExitCode;

pub(super) fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let findings = findings(&args.common.load(None)?);
    if args.json {
        let text = serde_json::to_string_pretty(&findings).context("cannot write JSON")?;
        print(&format!("{text}\n"))?;
    } else {
        print(&render(&findings))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn findings(configuration: &Configuration) -> Vec<Finding> {
    let settings = &configuration.settings;
    let socket = settings.paths.run.join(control::SOCKET);
    let mut findings = agent::diagnose(configuration);
    let Ok(Reply::Who { who }) = show::ask_who(settings) else {
        let facts = format!("none answers on {}", socket.display());
        findings.push(Finding::new("agent", "absent", facts, "start one: gpuwho agent"));
        return findings;
    };
    let facts = format!("version {} answers on {}", who.version, socket.display());
    findings.push(Finding::new("agent", "ok", facts, ""));
    for source in who.sources {
        let state = if source.state == "ready" { "ok" } else { &source.state };
        let subject = format!("agent: {}", source.name);
        findings.push(Finding::new(subject, state, source.reason, source.remedy));
    }
    findings
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "{:<width$}  {:<9} {}", finding.subject, finding.state, finding.facts);
        if !finding.remedy.is_empty() {
            let _ = writeln!(out, "{:<width$}  remedy:   {}", "", finding.remedy);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_the_state_first_then_the_reason_then_the_remedy() {
        let finding = Finding::new("nvidia", "absent", "no driver", "install it");
        assert_eq!(
            render(&[finding]),
            "nvidia  absent    no driver\n        remedy:   install it\n"
        );
    }
}
