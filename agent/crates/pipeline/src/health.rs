//! The health of each device: what is wrong with it, how badly, since when, and what to do.
//!
//! A pipeline stage. It judges the [`rules`] on the readings and events that the agent has anyway:
//! it calls no driver and reads no file. Its input is what the readers, the driver and the kernel
//! report; nothing that a tenant writes counts. It adds the conditions to the same batch, and
//! returns an observation where one starts or ends, so that the event names the owners on the
//! device. Trends outlive the agent (`store`).
//!
//! Cost: one table look-up for each sample of a device, and [`rules::RULES`] comparisons for each
//! device. Memory: a few points of history for each rule and device.

mod device;
mod history;
mod inputs;
mod peers;
pub mod report;
pub mod rules;
pub mod settings;
mod store;
#[cfg(test)]
mod tests;

use crate::event::{Event, EventSource, Observation, Place, Severity};
use device::{Change, DeviceHealth, How, Readings};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::catalog::health::{self as metric, HealthStatus};
use gpuwho_model::ids::{GpuId, GpuUuid};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Batch;
use gpuwho_owners::inventory::Inventory;
use humantime::format_rfc3339_seconds;
use inputs::{DeviceReadings, Index};
use report::{ConditionView, DeviceView, HealthReport};
use rules::RULES;
use settings::HealthSettings;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, SystemTime};
use store::Past;

/// Seconds between two writes in which only counters change.
const REFRESH: f64 = 300.0;
/// A device that was not judged for this many intervals is unknown.
const STALE_INTERVALS: u32 = 3;
/// And never before this time: a loaded machine delays a tick by seconds.
const MIN_STALE: Duration = Duration::from_secs(30);

/// Events that wait for the first reading of their device.
const MAX_EARLY: usize = 64;

/// The time of a tick: seconds of the boot clock, and the wall clock.
pub type Now = (f64, SystemTime);

/// The health of all devices.
#[derive(Debug)]
pub struct HealthMonitor {
    settings: HealthSettings,
    stale: Duration,
    index: Index,
    devices: BTreeMap<GpuId, (GpuUuid, DeviceHealth)>,
    past: Past,
    /// Events of devices that were not judged yet.
    early: Vec<(GpuId, Observation)>,
    boot_id: String,
    /// Whether the past is stored.
    stores: bool,
    written: f64,
    /// The sources of devices.
    vendors: Vec<&'static str>,
    /// Whether a batch of one has come in.
    has_read: bool,
    readings: Vec<DeviceReadings>,
    spare: Vec<DeviceReadings>,
    changes: Vec<Change>,
}

impl HealthMonitor {
    /// A monitor without a past that stores nothing; `vendors` are the sources of devices.
    pub fn new(settings: HealthSettings, interval: Duration, vendors: Vec<&'static str>) -> Self {
        Self {
            settings,
            stale: (interval * STALE_INTERVALS).max(MIN_STALE),
            index: Index::new(),
            devices: BTreeMap::new(),
            past: Past::default(),
            early: Vec::new(),
            boot_id: String::new(),
            stores: false,
            written: 0.0,
            vendors,
            has_read: false,
            readings: Vec::new(),
            spare: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The same with what an earlier agent stored, and stores on.
    #[must_use]
    pub fn with_past(self, paths: &Paths, now: Now) -> Self {
        let boot_id = paths.proc.join("sys/kernel/random/boot_id");
        let boot_id = std::fs::read_to_string(boot_id).unwrap_or_default().trim().to_owned();
        let past = Past::read(&paths.state, &boot_id, now);
        Self { past, boot_id, stores: true, written: now.0, ..self }
    }

    /// Takes an event that the aggregator has accepted.
    pub fn take_event(&mut self, event: &Event) {
        if event.source == EventSource::Health {
            return;
        }
        match event.what.place {
            Place::Gpu(gpu) => {
                if let Some((_, health)) = self.devices.get_mut(&gpu) {
                    health.take(&event.what);
                } else if self.early.len() < MAX_EARLY {
                    self.early.push((gpu, event.what.clone()));
                }
            }
            // The whole driver was loaded again.
            Place::Host if event.what.kind == EventKind::DriverLoaded => {
                self.devices.values_mut().for_each(|(_, health)| health.take(&event.what));
            }
            _ => {}
        }
    }

    /// Judges the devices of a batch and adds their conditions to it. Returns what has started and
    /// ended.
    pub fn evaluate(
        &mut self,
        batch: &mut Batch,
        inventory: &Inventory,
        now: Now,
    ) -> Vec<Observation> {
        if !self.settings.is_enabled() {
            return Vec::new();
        }
        self.has_read |= self.vendors.contains(&batch.of.source);
        self.index.read(batch, [&mut self.readings, &mut self.spare]);
        if self.readings.is_empty() {
            return Vec::new();
        }
        peers::compare(&mut self.readings, inventory);
        peers::links(&mut self.readings, &self.index.places, inventory);
        let mut observations = Vec::new();
        for of in &self.readings {
            if of.vital.is_replaced {
                // Another device is in its place.
                self.devices.remove(&of.gpu);
                continue;
            }
            // Another source's batch says nothing of whether the device answers.
            if of.vital.answers.is_none() {
                continue;
            }
            let Some(health) = known(&mut self.devices, &mut self.past, of.gpu, inventory) else {
                continue;
            };
            self.early.retain(|(gpu, what)| {
                let is_its = *gpu == of.gpu;
                if is_its {
                    health.take(what);
                }
                !is_its
            });
            let readings =
                Readings { vital: &of.vital, values: &of.values, places: &self.index.places };
            health.evaluate(&self.settings.figures, &readings, now, &mut self.changes);
            let changes = self.changes.drain(..);
            observations.extend(changes.map(|change| change.observation(of.gpu, now.1)));
            push(batch, of.gpu, health, &self.settings);
        }
        if !observations.is_empty() || now.0 - self.written >= REFRESH {
            self.save(inventory, now);
        }
        observations
    }

    /// Stores the trends.
    fn save(&mut self, inventory: &Inventory, now: Now) {
        self.written = now.0;
        if let Some(text) = self.text(now).filter(|_| self.stores) {
            inventory.register().put_beside(store::FILE, text);
        }
    }

    /// The trends as they are stored.
    fn text(&self, now: Now) -> Option<Vec<u8>> {
        let devices = self.devices.values().map(|(uuid, health)| (uuid, health));
        self.past.text(devices, &self.boot_id, now)
    }

    /// Stores the trends when the agent ends.
    pub fn finish(&mut self, inventory: &Inventory, now: Now) {
        if self.settings.is_enabled() {
            self.save(inventory, now);
        }
    }

    /// Drops a device that was removed from the host.
    pub fn forget(&mut self, uuid: &GpuUuid) {
        self.devices.retain(|_, (known, _)| known != uuid);
        self.past.take(uuid);
    }

    /// The health of every device, by index.
    pub fn report(&self, host: &str, inventory: &Inventory, now: f64) -> HealthReport {
        let mut devices: Vec<DeviceView> = self
            .devices
            .iter()
            .filter_map(|(gpu, (_, health))| self.view(*gpu, health, inventory, now))
            .collect();
        devices.sort_by(|one, other| (&one.vendor, one.index).cmp(&(&other.vendor, other.index)));
        HealthReport {
            schema: report::SCHEMA,
            host: host.to_owned(),
            enabled: self.settings.is_enabled(),
            has_read: self.has_read,
            devices,
        }
    }

    /// What is wrong with a device, the worst first.
    pub fn conditions(&self, gpu: GpuId) -> Vec<ConditionView> {
        self.devices.get(&gpu).map_or_else(Vec::new, |(_, health)| self.views(health))
    }

    fn view(
        &self,
        gpu: GpuId,
        health: &DeviceHealth,
        inventory: &Inventory,
        now: f64,
    ) -> Option<DeviceView> {
        let info = inventory.get(gpu)?;
        let age = now - health.judged;
        let is_stale = age > self.stale.as_secs_f64();
        let (status, score) = verdict(health, &self.settings);
        let (status, score) =
            if is_stale { (HealthStatus::Unknown, None) } else { (status, score) };
        let enabled = RULES.iter().zip(&health.rules).zip(&self.settings.figures);
        let not_judged = enabled.filter(|((_, state), figures)| {
            figures.is_some() && !state.is_judged && state.active.is_none()
        });
        let name =
            |((rule, _), _): ((&rules::Rule, _), _)| rule.about.condition.as_str().to_owned();
        Some(DeviceView {
            uuid: info.uuid.to_string(),
            index: info.index,
            vendor: info.vendor.clone(),
            model: info.model.clone().unwrap_or_else(|| "?".into()),
            status: status.as_str().into(),
            score,
            age_seconds: age,
            conditions: self.views(health),
            not_judged: not_judged.map(name).collect(),
        })
    }

    fn views(&self, health: &DeviceHealth) -> Vec<ConditionView> {
        let all = RULES.iter().zip(&health.rules).zip(&self.settings.figures);
        let mut active: Vec<_> = all
            .filter_map(|((rule, state), figures)| Some((rule, state.active?, (*figures)?)))
            .collect();
        active.sort_by_key(|(_, _, figures)| std::cmp::Reverse(figures.severity));
        let view =
            |(rule, active, figures): &(&'static rules::Rule, device::Active, rules::Figures)| {
                ConditionView {
                    condition: rule.about.condition.as_str().into(),
                    severity: figures.severity.as_str().into(),
                    reason: rule.reason(active.value),
                    meaning: rule.about.meaning.into(),
                    advice: rule.about.advice.into(),
                    since: format_rfc3339_seconds(active.since).to_string(),
                    citation: rule.citation.into(),
                }
            };
        active.iter().map(view).collect()
    }
}

/// A device's health; of one that is new, with its past.
fn known<'a>(
    devices: &'a mut BTreeMap<GpuId, (GpuUuid, DeviceHealth)>,
    past: &mut Past,
    gpu: GpuId,
    inventory: &Inventory,
) -> Option<&'a mut DeviceHealth> {
    Some(match devices.entry(gpu) {
        Entry::Occupied(known) => &mut known.into_mut().1,
        Entry::Vacant(new) => {
            let uuid = inventory.get(gpu)?.uuid.clone();
            let health = past.take(&uuid);
            &mut new.insert((uuid, health)).1
        }
    })
}

/// The worst of a device's conditions, and the score.
fn verdict(health: &DeviceHealth, settings: &HealthSettings) -> (HealthStatus, Option<i64>) {
    let all = health.rules.iter().zip(&settings.figures);
    let active = all.filter_map(|(state, figures)| state.active.and(figures.as_ref()));
    let (mut critical, mut warnings) = (0, 0);
    for figures in active {
        if figures.severity == Severity::Critical { critical += 1 } else { warnings += 1 }
    }
    let status = match (critical, warnings) {
        (1.., _) => HealthStatus::Critical,
        (0, 1..) if health.answers => HealthStatus::Warning,
        (0, 0) if health.answers => HealthStatus::Ok,
        _ => HealthStatus::Unknown,
    };
    let score = match status {
        HealthStatus::Unknown => None,
        _ if !health.answers => Some(0),
        _ => Some(report::score(critical, warnings)),
    };
    (status, score)
}

/// Adds a device's conditions to a batch.
fn push(batch: &mut Batch, gpu: GpuId, health: &DeviceHealth, settings: &HealthSettings) {
    for ((rule, state), figures) in RULES.iter().zip(&health.rules).zip(&settings.figures) {
        let Some(figures) = figures else { continue };
        if state.is_judged || state.active.is_some() {
            let dims = (rule.about.condition, report::dim(figures.severity));
            let value = i64::from(state.active.is_some());
            batch.push(metric::CONDITION.sample(gpu, dims, value));
        }
    }
    let (status, score) = verdict(health, settings);
    for &state in HealthStatus::ALL {
        batch.push(metric::STATUS.sample(gpu, state, i64::from(state == status)));
    }
    if let Some(score) = score {
        batch.push(metric::SCORE.sample(gpu, (), score));
    }
}

impl rules::Rule {
    /// A value in words.
    fn reason(&self, value: f64) -> String {
        let number = match self.signal {
            rules::Signal::Link(..) | rules::Signal::Peers => {
                format!("{:.0} %", value * 100.0)
            }
            _ if value.fract().abs() < 0.05 => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        };
        self.says.replace("{}", &number)
    }
}

impl Change {
    fn observation(&self, gpu: GpuId, time: SystemTime) -> Observation {
        let name = self.condition().as_str();
        let (kind, severity, message) = match self.how {
            How::Started(value) => {
                let message = format!("{name}: {}", self.rule.reason(value));
                (EventKind::HealthStarted, self.figures.severity, message)
            }
            How::Ended(since) => {
                let lasted = time.duration_since(since).unwrap_or_default();
                let lasted = humantime::format_duration(Duration::from_secs(lasted.as_secs()));
                (EventKind::HealthEnded, Severity::Info, format!("{name}: ended after {lasted}"))
            }
        };
        let observation = Observation::new(kind, Place::Gpu(gpu), severity, message);
        Observation { condition: Some(&self.rule.about), ..observation }
    }
}
