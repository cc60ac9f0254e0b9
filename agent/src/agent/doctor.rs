//! The findings of `gpuwho doctor`: checks everything that the agent would use, without an agent.

use super::configuration::Configuration;
use super::read_once;
use crate::diagnosis::{self, Finding};

/// Checks the host, each source, the metadata providers, each sink, and the devices.
pub fn diagnose(configuration: &Configuration) -> Vec<Finding> {
    let settings = &configuration.settings;
    let mut findings = diagnosis::host(settings);
    findings.extend(configuration.sources.iter().flat_map(|(_, row)| row.diagnose(settings)));
    findings.extend(diagnosis::names(settings));
    findings.extend(configuration.sinks.iter().flat_map(|(_, row)| row.diagnose()));
    let who = read_once(configuration);
    for source in who.sources {
        let state = if source.state == "ready" { "ok" } else { &source.state };
        findings.push(Finding::new(source.name, state, source.reason, source.remedy));
    }
    for device in who.devices {
        let facts = format!("{} {} {}", device.model, device.uuid, device.reason);
        let subject = format!("device {}", device.index);
        findings.push(Finding::new(subject, &device.state, facts.trim_end(), ""));
    }
    findings
}
