//! The findings of `gpuwho doctor`: checks everything that the agent would use, without an agent.

use super::configuration::Configuration;
use super::read_once;
use crate::attribute::providers;
use crate::collect::device::DEVICES;
use crate::diagnosis::{self, Finding, Group};
use crate::who::{Device, Source};

/// Checks the host, each source, the metadata providers, each sink, and, without an agent, the
/// devices.
pub fn diagnose(configuration: &Configuration, reads_devices: bool) -> Vec<Finding> {
    let settings = &configuration.settings;
    let mut findings = diagnosis::host(settings);
    for (def, row) in &configuration.sources {
        let found = row.diagnose(settings).into_iter();
        findings.extend(found.map(|finding| finding.of(group_of(def.name))));
    }
    let names = diagnosis::names(settings).into_iter();
    findings.extend(names.map(|finding| finding.of(Group::Metadata)));
    let receivers = configuration.sinks.iter().flat_map(|(_, row)| row.diagnose());
    findings.extend(receivers.map(|finding| finding.of(Group::Receivers)));
    if reads_devices {
        let who = read_once(configuration);
        findings.extend(who.sources.into_iter().map(|source| of_source("", source)));
        findings.extend(who.devices.iter().map(of_device));
    }
    findings
}

/// How a source stands; `whose` is before its name.
pub fn of_source(whose: &str, source: Source) -> Finding {
    let state = if source.state == "ready" { "ok" } else { &source.state };
    let subject = format!("{whose}{}", source.name);
    Finding::new(subject, state, source.reason, source.remedy).of(group_of(&source.name))
}

/// How a device stands.
pub fn of_device(device: &Device) -> Finding {
    let facts = format!("{} {} {}", device.model, device.uuid, device.reason);
    let subject = format!("device {}", device.index);
    let (state, facts, remedy) = match device.health.first() {
        Some(worst) if device.state == "ok" => {
            let facts = format!("{facts} {} ({})", worst.reason, worst.condition);
            (&worst.severity, facts, &*worst.advice)
        }
        _ => (&device.state, facts, ""),
    };
    Finding::new(subject, state, facts.trim_end(), remedy).of(Group::Devices)
}

fn group_of(source: &str) -> Group {
    let is_vendors = DEVICES.iter().any(|vendor| vendor.name == source);
    if is_vendors || source == "nvml_events" {
        Group::Devices
    } else if providers::is_provider(source) {
        Group::Metadata
    } else if ["nccl", "collectives", "engine"].iter().any(|kind| source.starts_with(kind)) {
        Group::Engines
    } else {
        Group::Kernel
    }
}
