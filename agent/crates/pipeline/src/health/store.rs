//! What is known of each device's past, in `health.json` in the state directory: counters, the best
//! there was, and the conditions that last, so that a restarted agent neither forgets a trend nor
//! reports a condition again. Times in it are ages; a clock that was set does not move them.
//!
//! Bounds: [`MAX_DEVICES`] devices, [`MAX_FILE_LEN`] bytes, and of each rule the points of a window.

use super::device::{Active, DeviceHealth};
use super::history::{Counter, History};
use super::rules::{RULES, Rule, Signal};
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::state_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The file's name.
pub(super) const FILE: &str = "health.json";
/// The format version; a file of another version is not read.
const VERSION: u32 = 1;
/// A larger file is not the agent's.
const MAX_FILE_LEN: u64 = 4 << 20;
/// Devices that are stored; those that were judged longest ago are dropped first.
const MAX_DEVICES: usize = 256;
/// A shorter window is filled again soon.
const MIN_WINDOW: f64 = 3600.0;
/// A longer absence is none of an agent's.
const MAX_ABSENCE: Duration = Duration::from_hours(24 * 365);

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    boot_id: String,
    saved: SystemTime,
    devices: BTreeMap<GpuUuid, StoredDevice>,
}

/// A device's past.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredDevice {
    /// Seconds since it was judged.
    age: f64,
    energy: Counter,
    rules: BTreeMap<String, StoredRule>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct StoredRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active: Option<Active>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counter: Option<(Counter, History)>,
}

/// The stored past of all devices that were not seen since the start.
#[derive(Debug, Default)]
pub(super) struct Past {
    devices: BTreeMap<GpuUuid, StoredDevice>,
    /// What to add to a stored age's negative to get a time of this agent's clock.
    now: f64,
    /// Whether the host has started again since.
    is_new_boot: bool,
}

impl Past {
    /// Reads the file. `now` is the boot clock in seconds.
    pub(super) fn read(folder: &Path, boot_id: &str, (now, time): (f64, SystemTime)) -> Self {
        let path = folder.join(FILE);
        let content = state_file::read(&path, MAX_FILE_LEN).and_then(|text| {
            text.map(|text| serde_json::from_slice::<Content>(&text))
                .transpose()
                .map_err(Into::into)
        });
        match content {
            Ok(Some(content)) if content.version == VERSION => {
                let absence = time.duration_since(content.saved).unwrap_or_default();
                let is_new_boot = content.boot_id != boot_id;
                let mut devices = content.devices;
                while devices.len() > MAX_DEVICES {
                    devices.pop_last();
                }
                Self { devices, now: now - absence.min(MAX_ABSENCE).as_secs_f64(), is_new_boot }
            }
            Ok(None) => Self::default(),
            Ok(Some(content)) => {
                let (path, version) = (path.display(), content.version);
                tracing::warn!(%path, version, "trends of device health are of another version; starting with none");
                Self::default()
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot read trends of device health; starting with none");
                Self::default()
            }
        }
    }

    /// A device's past, once.
    pub(super) fn take(&mut self, uuid: &GpuUuid) -> DeviceHealth {
        let mut health = DeviceHealth::new();
        let Some(stored) = self.devices.remove(uuid) else { return health };
        if stored.energy.is_sound() {
            health.energy = stored.energy;
        }
        for (rule, state) in RULES.iter().zip(&mut health.rules) {
            let Some(stored) = stored.rules.get(rule.about.condition.as_str()) else { continue };
            state.best = stored.best.filter(|best| best.is_finite());
            if let Some((counter, history)) = &stored.counter
                && counter.is_sound()
            {
                (state.counter, state.history) = (counter.clone(), history.shifted(self.now));
            }
            let is_event = matches!(rule.signal, Signal::Event(_));
            // A restart of the host resets its devices.
            state.active = stored.active.filter(|_| !(is_event && self.is_new_boot));
            if let Some(active) = &mut state.active {
                active.back = active.back.map(|back| back + self.now);
            }
        }
        health
    }

    /// The text of the file: the devices that are judged, and those of the past.
    pub(super) fn text<'a>(
        &self,
        judged: impl Iterator<Item = (&'a GpuUuid, &'a DeviceHealth)>,
        boot_id: &str,
        (now, time): (f64, SystemTime),
    ) -> Option<Vec<u8>> {
        let known = judged.map(|(uuid, health)| (uuid.clone(), StoredDevice::of(health, now)));
        let mut devices: Vec<_> = known.collect();
        let gone = now - self.now;
        devices
            .extend(self.devices.iter().map(|(uuid, stored)| (uuid.clone(), stored.older(gone))));
        devices.sort_by(|(_, a), (_, b)| a.age.total_cmp(&b.age));
        devices.truncate(MAX_DEVICES);
        let devices = devices.into_iter().collect();
        let content =
            Content { version: VERSION, boot_id: boot_id.to_owned(), saved: time, devices };
        serde_json::to_vec(&content).ok()
    }
}

impl StoredDevice {
    fn of(health: &DeviceHealth, now: f64) -> Self {
        let mut rules = BTreeMap::new();
        for (rule, state) in RULES.iter().zip(&health.rules) {
            let back =
                |active: Active| Active { back: active.back.map(|back| back - now), ..active };
            let stored = StoredRule {
                active: state.active.map(back),
                best: state.best,
                counter: has_trend(rule)
                    .then(|| (state.counter.clone(), state.history.shifted(-now))),
            };
            if stored.active.is_some() || stored.best.is_some() || stored.counter.is_some() {
                rules.insert(rule.about.condition.as_str().to_owned(), stored);
            }
        }
        Self { age: now - health.judged, energy: health.energy.clone(), rules }
    }

    /// The same, so many seconds later.
    fn older(&self, by: f64) -> Self {
        let mut stored = self.clone();
        stored.age += by;
        for rule in stored.rules.values_mut() {
            if let Some(active) = &mut rule.active {
                active.back = active.back.map(|back| back - by);
            }
            if let Some((_, history)) = &mut rule.counter {
                *history = history.shifted(-by);
            }
        }
        stored
    }
}

fn has_trend(rule: &Rule) -> bool {
    matches!(rule.signal, Signal::Increase(_, window) if window >= MIN_WINDOW)
}
