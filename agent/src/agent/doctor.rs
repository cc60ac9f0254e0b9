//! The findings of `gpuwho doctor`: checks everything that the agent would use, without an agent.

use super::configuration::Configuration;
use super::diagnosis;
use super::read_once;
use crate::who::{Device, HostReport, Source};
use gpuwho_devices::DEVICES;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::health::Condition;
use gpuwho_model::finding::{Finding, Group, NOTICE};
use gpuwho_owners::attribute::providers;
use gpuwho_pipeline::health::rules::RULES;

/// Checks the host, each source, the metadata providers and each sink. What an agent has answered it has
/// checked itself; without one the devices are read.
pub fn diagnose(configuration: &Configuration, agent: Option<&HostReport>) -> Vec<Finding> {
    let settings = &configuration.settings;
    let mut findings = diagnosis::host(settings);
    let warnings = configuration.warnings().iter();
    findings.extend(
        warnings
            .map(|text| Finding::new("configuration", NOTICE, text.as_str(), "").of(Group::Agent)),
    );
    let is_asked = |name: &str| {
        // One that refers to these checks has not said why.
        let has_said = |one: &Source| one.name == name && !one.remedy.contains("gpuwho doctor");
        agent.is_some_and(|agent| agent.sources.iter().any(has_said))
    };
    for (def, row) in configuration.sources.iter().filter(|(def, _)| !is_asked(def.name)) {
        let found = row.diagnose(&settings.diagnosing()).into_iter();
        findings.extend(found.map(|finding| finding.of(group_of(def.name))));
    }
    let names = diagnosis::names(settings).into_iter();
    findings.extend(names.map(|finding| finding.of(Group::Metadata)));
    if agent.is_none() {
        let receivers = configuration.sinks.iter().flat_map(|(_, row)| row.diagnose());
        findings.extend(receivers.map(|finding| finding.of(Group::Receivers)));
        findings.extend(of_report(&read_once(configuration)));
    }
    findings
}

/// What a report says of its sources, receivers and devices.
pub fn of_report(report: &HostReport) -> Vec<Finding> {
    let sources = report.sources.iter().map(|one| of_source(one, group_of(&one.name)));
    let receivers = report.receivers.iter().map(|one| of_source(one, Group::Receivers));
    let devices = report.devices.iter().map(|device| of_device(device, &report.name(device)));
    sources.chain(receivers).chain(devices).collect()
}

/// How a source stands.
fn of_source(source: &Source, group: Group) -> Finding {
    let Source { name, state, reason, remedy, .. } = source;
    let (state, facts) = match &**state {
        "ready" if reason.is_empty() => ("ok", "works"),
        "ready" => ("ok", &**reason),
        state => (state, &**reason),
    };
    // The agent itself has a line of its own.
    let name = if name == "agent" { "own metrics" } else { name };
    Finding::new(name, state, facts, remedy).of(group)
}

/// How a device stands.
fn of_device(device: &Device, name: &str) -> Finding {
    let facts = format!("{} {} {}", device.model, device.uuid, device.reason);
    let facts = facts.trim_end().to_owned() + &unread(device);
    let subject = format!("device {name}");
    let (state, facts, remedy) = match device.health.first() {
        Some(worst) if device.state == "ok" => {
            let facts = format!("{facts}; {} ({})", worst.reason, worst.condition);
            (&worst.severity, facts, &*worst.advice)
        }
        _ => (&device.state, facts, remedy(&device.state)),
    };
    Finding::new(subject, state, facts.trim_end(), remedy).of(Group::Devices)
}

/// What to do about a device that does not answer: what the rule of its state says.
fn remedy(state: &str) -> &'static str {
    let condition = match state {
        "lost" | "missing" => Condition::DriverLost,
        "hung" => Condition::DriverHung,
        "failing" => Condition::DriverFailing,
        "no_driver" => Condition::DriverMissing,
        "released" => return "end the release: gpuwho resume",
        "replaced" => return "gpuwho forget UUID, where the other device stays",
        _ => return "",
    };
    let rule = RULES.iter().find(|rule| rule.about.condition == condition);
    rule.map_or("", |rule| rule.about.advice)
}

/// Which of the table's first two figures a device that answers has not, and where its vendor has them: the
/// words of METRICS.md.
fn unread(device: &Device) -> String {
    let vendor = DEVICES.iter().find(|vendor| vendor.name == device.vendor);
    let Some(vendor) = vendor.filter(|_| device.state == "ok" && device.instances.is_empty())
    else {
        return String::new();
    };
    let has_memory = device.memory_used_bytes.is_some();
    let figures = [
        ("utilization", device.utilization.is_some(), metric::UTILIZATION.def()),
        ("memory", has_memory, metric::MEMORY_USAGE.def()),
    ];
    let why = |(name, has, def)| {
        let text = match (vendor.source)(def) {
            _ if has => return None,
            // When there is one is worth knowing; which calls of a library have it is not.
            Ok(source) if source.contains(" while ") => {
                format!("; no {name} now, it comes from {source}")
            }
            Ok(_) => format!("; the driver gives no {name} now"),
            Err(reason) => format!("; no {name}: {reason}"),
        };
        Some(text.replace('`', ""))
    };
    figures.into_iter().filter_map(why).collect()
}

fn group_of(source: &str) -> Group {
    let is_vendors = DEVICES.iter().any(|vendor| vendor.name == source);
    if is_vendors || source == "nvml_events" {
        Group::Devices
    } else if source == "names" || providers::is_provider(source) {
        Group::Metadata
    } else if ["nccl", "collectives", "engine"].iter().any(|kind| source.starts_with(kind)) {
        Group::Engines
    } else if ["cgroups", "device_users", "host", "kmsg"].contains(&source) {
        Group::Kernel
    } else {
        Group::Agent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(vendor: &str, utilization: Option<f64>, memory_used_bytes: Option<i64>) -> String {
        let device: Device = serde_json::from_value(serde_json::json!({
            "uuid": "U", "index": 0, "vendor": vendor, "model": "M", "state": "ok", "reason": "",
            "read_age_seconds": 0.1, "utilization": utilization,
            "memory_used_bytes": memory_used_bytes, "memory_limit_bytes": null,
            "power_watts": null, "temperature_celsius": null, "processes": [],
        }))
        .unwrap();
        of_device(&device, "0").facts
    }

    #[test]
    fn a_device_without_use_says_where_its_vendor_has_it() {
        assert_eq!(facts("nvidia", Some(0.5), Some(1)), "M U");
        assert_eq!(
            facts("tenstorrent", None, None),
            "M U; no utilization: the driver has no counter of busy time; no memory: memory is given \
             out by the program itself"
        );
        assert_eq!(
            facts("tpu", None, Some(1)),
            "M U; no utilization now, it comes from libtpu's \
             tpu.runtime.tensorcore.dutycycle.percent, while a process uses the chip"
        );
        assert_eq!(facts("unheard-of", None, None), "M U");
        let of_nvidia = "M U; the driver gives no utilization now";
        assert_eq!(facts("nvidia", None, Some(1)), of_nvidia);
    }

    #[test]
    fn a_device_that_does_not_answer_has_a_remedy() {
        let states = ["lost", "hung", "failing", "missing", "replaced", "no_driver", "released"];
        assert!(states.iter().all(|state| !remedy(state).is_empty()));
        assert_eq!(remedy("ok"), "");
    }
}
