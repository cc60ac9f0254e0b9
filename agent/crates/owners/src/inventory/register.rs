//! The known devices of this host. A missing device is reported until it returns or an operator
//! removes it, also by an agent that starts later.
//!
//! Stored in `devices.json` in the state directory, a few hundred bytes a device. A thread (`register`)
//! writes the file, because a file system may hang like a driver: at once when a
//! device is new, changed or removed, else every few minutes to update the last-seen times. If the
//! file cannot be written, devices are known until the agent ends.

use crate::inventory::GpuInfo;
use gpuwho_model::ids::{GpuUuid, PciAddress};
use gpuwho_model::state_file::{self, StateWriter};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file's name.
const FILE: &str = "devices.json";
/// The format version; a file of another version is not read.
const VERSION: u32 = 1;
/// Upper bound of stored devices: a host has sixteen, but a machine image that moves between hosts
/// collects them. The device seen longest ago is removed first.
const MAX_DEVICES: usize = 256;
/// A larger file is not the agent's.
const MAX_FILE_LEN: u64 = 1 << 20;
/// Time between two writes in which only last-seen times change.
const REFRESH: Duration = Duration::from_mins(5);
/// How long a replaced device is reported as replaced; then it is removed.
const REPLACED: Duration = Duration::from_hours(24);

/// A device that was on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDevice {
    /// The driver's name of it.
    pub uuid: GpuUuid,
    /// `nvidia`, ….
    pub vendor: String,
    /// Its index when last seen.
    pub index: u32,
    /// Product name.
    #[serde(default)]
    pub model: Option<String>,
    /// PCI address when last seen.
    #[serde(default)]
    pub pci_address: Option<String>,
    /// Board serial number.
    #[serde(default)]
    pub serial: Option<String>,
    /// When it last answered, in seconds since the epoch.
    pub last_seen: u64,
    /// The device found at its PCI address since then.
    #[serde(default)]
    pub replaced_by: Option<GpuUuid>,
    /// The best link that this device has had in this slot.
    #[serde(default)]
    pub best_link: BestLink,
}

/// The most of a PCIe link that was ever read: lanes and generation.
pub type BestLink = [Option<i64>; 2];

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    devices: Vec<KnownDevice>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("not a device file of the agent: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("its format version is {0}; this agent reads version {VERSION}")]
    Version(u32),
}

/// All known devices of this host. Without a file they are known until the agent ends.
#[derive(Debug, Default)]
pub struct DeviceStore {
    state: Mutex<State>,
    writer: Option<StateWriter>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<GpuUuid, KnownDevice>,
    /// Increases with every change of the set of devices or their identity.
    generation: u64,
    /// Whether anything except a last-seen time changed since the last write.
    changed: bool,
    written: Option<Instant>,
}

impl DeviceStore {
    /// Reads the devices stored in a folder and writes changes there.
    pub fn open(folder: &Path) -> Self {
        let mut register = Self::read_only(folder);
        register.writer = Some(StateWriter::new(folder, "register"));
        register
    }

    /// Reads the devices stored in a folder and never writes there.
    pub fn read_only(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let known = read(&path).unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read known devices; starting with none");
            Vec::new()
        });
        let mut known: Vec<_> = known.into_iter().map(|one| (one.uuid.clone(), one)).collect();
        known.truncate(MAX_DEVICES);
        let state = State { known: known.into_iter().collect(), ..State::default() };
        Self { state: Mutex::new(state), writer: None }
    }

    /// The known devices of a vendor.
    pub fn known(&self, vendor: &str) -> Vec<KnownDevice> {
        let state = self.state();
        state.known.values().filter(|known| known.vendor == vendor).cloned().collect()
    }

    /// Whether a device is known.
    pub fn knows(&self, uuid: &GpuUuid) -> bool {
        self.state().known.contains_key(uuid)
    }

    /// Changes whenever the result of [`DeviceStore::known`] may change.
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// The identity under the id by which its device is known: a device whose own id can be read at one time and
    /// not at another is one device, unless it has another serial number.
    pub fn same(&self, info: GpuInfo) -> GpuInfo {
        let Some(placed) = info.placed.clone() else { return info };
        let place = info.pci_address.as_deref().and_then(PciAddress::parse);
        let state = self.state();
        let is_same = |known: &&KnownDevice| {
            let is_here =
                if place.is_some() { pci(known) == place } else { known.index == info.index };
            let is_there = is_here && known.replaced_by.is_none();
            known.vendor == info.vendor && is_there && has_its_serial(known, &info)
        };
        let by_place = state.known.get(&placed).filter(is_same);
        let here = || state.known.values().find(is_same).filter(|_| info.uuid == placed);
        match by_place.or_else(here) {
            Some(known) => GpuInfo { uuid: known.uuid.clone(), ..info },
            None => info,
        }
    }

    /// Records a device that reported its identity; another device at its PCI address is replaced
    /// by it.
    pub fn identified(&self, info: &GpuInfo, at: SystemTime) {
        let mut state = self.state();
        let fresh = KnownDevice {
            uuid: info.uuid.clone(),
            vendor: info.vendor.clone(),
            index: info.index,
            model: info.model.clone(),
            pci_address: info.pci_address.clone(),
            serial: info.serial.clone(),
            last_seen: seconds(at),
            replaced_by: None,
            // Another slot, or another board whose id is made of the slot, has shown nothing yet.
            best_link: state.known.get(&info.uuid).map_or([None; 2], |known| {
                let is_here = known.pci_address == info.pci_address;
                if is_here && has_its_serial(known, info) { known.best_link } else { [None; 2] }
            }),
        };
        let place = pci(&fresh);
        for other in state.known.values_mut() {
            if other.uuid != fresh.uuid && place.is_some() && pci(other) == place {
                other.replaced_by = Some(fresh.uuid.clone());
            }
        }
        let previous = state.known.insert(fresh.uuid.clone(), fresh.clone());
        let same = previous.map(|known| KnownDevice { last_seen: fresh.last_seen, ..known });
        if same != Some(fresh) {
            state.generation += 1;
            state.changed = true;
        }
        state.bound(seconds(at));
    }

    /// Writes another small file of state beside the store's own, if there is a folder for it.
    pub fn put_beside(&self, name: &'static str, text: Vec<u8>) {
        if let Some(writer) = &self.writer {
            writer.put(name, text);
        }
    }

    /// Records that a device answered.
    pub fn seen(&self, uuid: &GpuUuid, at: SystemTime) {
        if let Some(known) = self.state().known.get_mut(uuid) {
            known.last_seen = seconds(at);
        }
    }

    /// Records a link that was read.
    pub fn linked(&self, uuid: &GpuUuid, now: BestLink) {
        let mut state = self.state();
        let Some(known) = state.known.get_mut(uuid) else { return };
        let [lanes, generation] = known.best_link;
        let best = [lanes.max(now[0]), generation.max(now[1])];
        let is_better = std::mem::replace(&mut known.best_link, best) != best;
        state.changed |= is_better;
    }

    /// The best link that a device has had in its slot.
    pub fn best_link(&self, uuid: &GpuUuid) -> BestLink {
        self.state().known.get(uuid).map_or([None; 2], |known| known.best_link)
    }

    /// Forgets what a device's slot has shown; false if it is not known.
    pub fn forget_link(&self, uuid: &str) -> bool {
        let mut state = self.state();
        state.changed = true;
        let known = state.known.get_mut(&GpuUuid::new(uuid));
        known.map(|known| known.best_link = [None; 2]).is_some()
    }

    /// Removes a device and returns its entry.
    pub fn remove(&self, uuid: &str) -> Option<KnownDevice> {
        let mut state = self.state();
        let removed = state.known.remove(&GpuUuid::new(uuid))?;
        state.generation += 1;
        state.changed = true;
        drop(state);
        self.save(Instant::now());
        Some(removed)
    }

    /// Writes the file if that is due; call it regularly.
    pub fn save(&self, now: Instant) {
        let Some(writer) = &self.writer else { return };
        let mut state = self.state();
        let is_old = state.written.is_none_or(|written| now.duration_since(written) >= REFRESH);
        if !state.changed && !is_old {
            return;
        }
        state.bound(seconds(SystemTime::now()));
        if let Some(text) = state.text() {
            writer.put(FILE, text);
            state.changed = false;
            state.written = Some(now);
        }
    }

    /// Writes the last-seen times, and waits for a bounded time until all files are written.
    pub fn flush(&self) {
        let Some(writer) = &self.writer else { return };
        if let Some(text) = self.state().text() {
            writer.put(FILE, text);
        }
        writer.flush();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for DeviceStore {
    fn drop(&mut self) {
        self.flush();
    }
}

impl State {
    /// Removes what exceeds the bounds of count and time.
    fn bound(&mut self, now: u64) {
        let before = self.known.len();
        let is_expired = |known: &KnownDevice| {
            let absence = Duration::from_secs(now.saturating_sub(known.last_seen));
            known.replaced_by.is_some() && absence > REPLACED
        };
        self.known.retain(|_, known| !is_expired(known));
        while self.known.len() > MAX_DEVICES {
            let oldest = self.known.values().min_by_key(|known| known.last_seen);
            let Some(oldest) = oldest.map(|known| known.uuid.clone()) else { break };
            self.known.remove(&oldest);
        }
        if self.known.len() != before {
            self.generation += 1;
            self.changed = true;
        }
    }

    fn text(&self) -> Option<Vec<u8>> {
        let devices = self.known.values().cloned().collect();
        serde_json::to_vec_pretty(&Content { version: VERSION, devices }).ok()
    }
}

/// Whether nothing says that another board has its place.
fn has_its_serial(known: &KnownDevice, now: &GpuInfo) -> bool {
    let serials = known.serial.as_ref().zip(now.serial.as_ref());
    serials.is_none_or(|(known, now)| known == now)
}

fn pci(known: &KnownDevice) -> Option<PciAddress> {
    known.pci_address.as_deref().and_then(PciAddress::parse)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(path: &Path) -> Result<Vec<KnownDevice>, Unusable> {
    let Some(text) = state_file::read(path, MAX_FILE_LEN)? else { return Ok(Vec::new()) };
    let content: Content = serde_json::from_slice(&text)?;
    if content.version != VERSION {
        return Err(Unusable::Version(content.version));
    }
    Ok(content.devices)
}

#[cfg(test)]
mod tests;
