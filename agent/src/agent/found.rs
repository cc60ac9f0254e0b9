//! What the agent has found when it has read everything once: a few lines of the log, in place of one
//! for each source that has nothing to read here.

use super::configuration::Configuration;
use super::core::Core;
use crate::advisories;
use gpuwho_bpf::device_users;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::finding::{Finding, NOTICE};
use gpuwho_model::sample::SourcePart;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_pipeline::event::{EventSource, Moment, Observation, Place, Severity};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Ticks after which it is said whatever has not been read: a driver may hang.
const MAX_TICKS: u32 = 3;

/// Waits for the first reading of each source.
#[derive(Debug, Default)]
pub(super) struct FirstReadings {
    read: HashSet<SourcePart>,
    ticks: u32,
    is_said: bool,
}

impl FirstReadings {
    /// A source was read.
    pub(super) fn take(&mut self, part: SourcePart) {
        if !self.is_said {
            self.read.insert(part);
        }
    }

    /// Whether everything of `expected` was read, or has had its time; true once.
    pub(super) fn are_complete(&mut self, expected: &HashSet<SourcePart>) -> bool {
        if self.is_said || self.read.is_empty() {
            return false;
        }
        self.ticks += 1;
        self.is_said = self.ticks >= MAX_TICKS || expected.is_subset(&self.read);
        self.is_said
    }
}

/// Logs devices, drivers, how processes are found, and what is not here.
pub(super) fn log(core: &Core) {
    let context = &core.context;
    let all = context.inventory.all().into_iter().map(|(_, info)| info);
    let found = devices(&all.collect::<Vec<_>>());
    if found.is_empty() {
        tracing::warn!("no accelerator was found; `gpuwho doctor` says why");
    }
    for words in found {
        tracing::info!("found {words}");
    }
    if core.advisories {
        report_holes(core);
    }
    let statuses = context.board.all();
    // Where it has no BPF, its own line has said why.
    let hook = statuses.get(device_users::NAME).map(|status| status.report.state);
    if hook == Some(SourceState::Ready) {
        tracing::info!("BPF probes follow the processes on the devices");
    }
    let is_absent = |state| state == SourceState::Absent;
    let absent = statuses.iter().filter(|(_, status)| is_absent(status.report.state));
    let absent: Vec<&str> = absent.map(|(name, _)| *name).collect();
    if !absent.is_empty() {
        let absent = absent.join(", ");
        tracing::debug!("not present, will keep checking: {absent}");
    }
}

/// One event for NVIDIA's driver, if its version has known holes.
fn report_holes(core: &Core) {
    let context = &core.context;
    let devices = context.inventory.all();
    let version = devices.iter().find(|(_, info)| info.vendor == advisories::VENDOR);
    let Some(version) = version.and_then(|(_, info)| info.driver_version.as_deref()) else {
        return;
    };
    if let Some(known) = advisories::of_nvidia(version) {
        let message = advisories::sentence(version, &known);
        let kind = EventKind::DriverVulnerable;
        let what = Observation::new(kind, Place::Host, Severity::Info, message);
        let at = Moment { time: SystemTime::now(), boot_ns: boot_time_ns() };
        context.aggregator.take(what, at, EventSource::Health, Instant::now());
    }
}

/// The number of devices of each model with each driver.
fn devices(all: &[Arc<GpuInfo>]) -> Vec<String> {
    let mut count: BTreeMap<String, u32> = BTreeMap::new();
    for info in all {
        let model = info.model.as_deref().unwrap_or("accelerator of an unknown model");
        let driver = info.driver_version.as_deref();
        let driver = driver.map(|version| format!(", driver {version}")).unwrap_or_default();
        *count.entry(format!("{model}{driver}")).or_default() += 1;
    }
    count.into_iter().map(|(words, count)| format!("{count} {words}")).collect()
}

/// Logs where the points go, a line each.
pub(super) fn log_receivers(configuration: &Configuration, open: &[&'static str]) {
    let findings: Vec<Finding> =
        configuration.sinks.iter().flat_map(|(_, sink)| sink.diagnose()).collect();
    for Finding { subject, state, facts, remedy, .. } in &findings {
        match &**state {
            "ok" => tracing::info!("exporting: {subject} {facts}"),
            NOTICE => tracing::warn!(remedy, "exporting: {subject} {facts}"),
            _ => {}
        }
    }
    let of_finding = |name: &str| findings.iter().any(|finding| name.contains(&*finding.subject));
    for name in open.iter().filter(|name| !of_finding(name)) {
        tracing::info!("exporting: {}", name.trim_start_matches("sink:"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::ids::GpuUuid;

    #[test]
    fn devices_are_counted_by_model_and_driver() {
        let device = |index, model: Option<&str>| {
            let mut info = GpuInfo::new(GpuUuid::new("GPU-1"), "nvidia", index);
            info.model = model.map(str::to_owned);
            info.driver_version = Some("580.95.05".into());
            Arc::new(info)
        };
        let all = [device(0, Some("NVIDIA H100")), device(1, Some("NVIDIA H100")), device(2, None)];
        assert_eq!(
            devices(&all),
            [
                "2 NVIDIA H100, driver 580.95.05",
                "1 accelerator of an unknown model, driver 580.95.05",
            ]
        );
        assert_eq!(devices(&[]), Vec::<String>::new());
    }

    #[test]
    fn it_is_said_once_when_all_was_read_or_has_had_its_time() {
        let part = |source| SourcePart { source, part: 0 };
        let expected = HashSet::from([part("nvidia"), part("host")]);
        let mut first = FirstReadings::default();
        assert!(!first.are_complete(&expected), "nothing was read");
        first.take(part("host"));
        assert!(!first.are_complete(&expected));
        first.take(part("nvidia"));
        assert!(first.are_complete(&expected));
        assert!(!first.are_complete(&expected), "once");
        let mut hung = FirstReadings::default();
        hung.take(part("host"));
        let said: Vec<bool> = (0..4).map(|_| hung.are_complete(&expected)).collect();
        assert_eq!(said, [false, false, true, false]);
    }
}
