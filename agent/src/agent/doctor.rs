//! The findings of `gpuwho doctor`: checks everything that the agent would use, without an agent.

use super::configuration::Configuration;
use super::diagnosis;
use super::read_once;
use crate::who::{Device, Source};
use gpuwho_devices::DEVICES;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::finding::{Finding, Group, NOTICE};
use gpuwho_owners::attribute::providers;

/// Checks the host, each source, the metadata providers, each sink, and, without an agent, the
/// devices.
pub fn diagnose(configuration: &Configuration, reads_devices: bool) -> Vec<Finding> {
    let settings = &configuration.settings;
    let mut findings = diagnosis::host(settings);
    let warnings = configuration.warnings().iter();
    findings.extend(
        warnings
            .map(|text| Finding::new("configuration", NOTICE, text.as_str(), "").of(Group::Agent)),
    );
    for (def, row) in &configuration.sources {
        let found = row.diagnose(&settings.diagnosing()).into_iter();
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
    let facts = facts.trim_end().to_owned() + &unread(device);
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
            Ok(source) => format!("; no {name} now, it comes from {source}"),
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
    } else if providers::is_provider(source) {
        Group::Metadata
    } else if ["nccl", "collectives", "engine"].iter().any(|kind| source.starts_with(kind)) {
        Group::Engines
    } else {
        Group::Kernel
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
        of_device(&device).facts
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
    }
}
