//! The devices of this host as they are remembered: one that is gone is missed, also by the agent
//! after this one, until it is back or an operator forgets it.
//!
//! Kept in `devices.json` in the state directory, a few hundred bytes a device. A thread of its own
//! (`register`) writes it, because a file system may hang like a driver: at once when a device is
//! new, changed or gone, else every few minutes for the time it was last seen. Where it cannot be
//! written, devices are remembered until the agent ends.

use crate::ids::{GpuUuid, PciAddress};
use crate::inventory::GpuInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file.
const FILE: &str = "devices.json";
/// The shape of the file; one of another shape is not read.
const VERSION: u32 = 1;
/// Devices remembered; a host has sixteen, and a machine image that moves between hosts collects
/// them. The one not seen for longest goes first.
const MAX_DEVICES: usize = 256;
/// A larger file is not ours.
const LARGEST: u64 = 1 << 20;
/// Between two writings where nothing but the time has changed.
const REFRESH: Duration = Duration::from_mins(5);
/// How long a device that was replaced is told as such; then it is forgotten by itself.
const REPLACED: Duration = Duration::from_hours(24);
/// How long the agent's end waits for the last writing.
const LAST: Duration = Duration::from_secs(1);

/// A device that was on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDevice {
    /// The driver's name of it.
    pub uuid: GpuUuid,
    /// `nvidia`, ….
    pub vendor: String,
    /// Its index when it was last seen.
    pub index: u32,
    /// Product name.
    #[serde(default)]
    pub model: Option<String>,
    /// PCI address when it was last seen.
    #[serde(default)]
    pub pci_address: Option<String>,
    /// Board serial number.
    #[serde(default)]
    pub serial: Option<String>,
    /// When it last answered, in seconds since the epoch.
    pub last_seen: u64,
    /// The device that was found at its PCI address since.
    #[serde(default)]
    pub replaced_by: Option<GpuUuid>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    devices: Vec<KnownDevice>,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("not what the agent writes: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("it is of version {0}, and this agent knows version {VERSION}")]
    Version(u32),
    #[error("it is larger than {LARGEST} bytes")]
    TooLarge,
}

/// Every device that was on this host. Without a file it lasts as long as the agent.
#[derive(Debug, Default)]
pub struct DeviceStore {
    state: Mutex<State>,
    writer: Option<Writer>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<GpuUuid, KnownDevice>,
    /// Grows with every change of which devices there are.
    generation: u64,
    /// Something other than a time has changed since the last writing.
    changed: bool,
    written: Option<Instant>,
}

/// The thread that writes.
#[derive(Debug)]
struct Writer {
    /// What is to be written next; a newer text takes the place of one that waits.
    latest: Arc<Mutex<Option<Vec<u8>>>>,
    wake: SyncSender<()>,
    ended: Mutex<Receiver<()>>,
}

impl DeviceStore {
    /// Reads what was remembered in a folder and writes there from now on.
    pub fn open(folder: &Path) -> Self {
        let mut register = Self::read_only(folder);
        match start_writer(folder.to_owned()) {
            Ok(writer) => register.writer = Some(writer),
            Err(error) => tracing::warn!(%error, "no thread to write the devices of this host"),
        }
        register
    }

    /// Reads what was remembered in a folder and leaves it alone.
    pub fn read_only(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let known = read(&path).unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the remembered devices cannot be read: starting anew");
            Vec::new()
        });
        let mut known: Vec<_> = known.into_iter().map(|one| (one.uuid.clone(), one)).collect();
        known.truncate(MAX_DEVICES);
        let state = State { known: known.into_iter().collect(), ..State::default() };
        Self { state: Mutex::new(state), writer: None }
    }

    /// A vendor's devices, as they are remembered.
    pub fn known(&self, vendor: &str) -> Vec<KnownDevice> {
        let state = self.state();
        state.known.values().filter(|known| known.vendor == vendor).cloned().collect()
    }

    /// Whether a device is remembered.
    pub fn knows(&self, uuid: &GpuUuid) -> bool {
        self.state().known.contains_key(uuid)
    }

    /// Changes when [`Register::known`] may have.
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// A device told who it is: it is on this host, and whatever else was at its place is not.
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
        };
        let place = pci(&fresh);
        for other in state.known.values_mut() {
            if other.uuid != fresh.uuid && place.is_some() && pci(other) == place {
                other.replaced_by = Some(fresh.uuid.clone());
            }
        }
        let before = state.known.insert(fresh.uuid.clone(), fresh.clone());
        let same = before.map(|before| KnownDevice { last_seen: fresh.last_seen, ..before });
        if same != Some(fresh) {
            state.generation += 1;
            state.changed = true;
        }
        state.bound(seconds(at));
    }

    /// A device answered.
    pub fn seen(&self, uuid: &GpuUuid, at: SystemTime) {
        if let Some(known) = self.state().known.get_mut(uuid) {
            known.last_seen = seconds(at);
        }
    }

    /// Remembers a device no longer; gives what was remembered.
    pub fn remove(&self, uuid: &str) -> Option<KnownDevice> {
        let mut state = self.state();
        let forgotten = state.known.remove(&GpuUuid::new(uuid))?;
        state.generation += 1;
        state.changed = true;
        drop(state);
        self.save(Instant::now());
        Some(forgotten)
    }

    /// Has it written if that is due; call it now and then.
    pub fn save(&self, now: Instant) {
        let Some(writer) = &self.writer else { return };
        let mut state = self.state();
        let is_old = state.written.is_none_or(|written| now.duration_since(written) >= REFRESH);
        if !state.changed && !is_old {
            return;
        }
        state.bound(seconds(SystemTime::now()));
        if let Some(text) = state.text() {
            writer.put(text);
            state.changed = false;
            state.written = Some(now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceStore {
    /// Writes when everything was last seen.
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if let Some(text) = self.state().text() {
            writer.put(text);
        }
        let Writer { wake, ended, .. } = writer;
        drop(wake);
        // A disk that hangs does not hold up the agent's end.
        let _ = ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LAST);
    }
}

impl Writer {
    fn put(&self, text: Vec<u8>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        // Full where it is awake or will wake: it takes the latest.
        let _ = self.wake.try_send(());
    }
}

impl State {
    /// Keeps within the bounds of number and of time.
    fn bound(&mut self, now: u64) {
        let before = self.known.len();
        let over = |known: &KnownDevice| {
            let gone = Duration::from_secs(now.saturating_sub(known.last_seen));
            known.replaced_by.is_some() && gone > REPLACED
        };
        self.known.retain(|_, known| !over(known));
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

fn pci(known: &KnownDevice) -> Option<PciAddress> {
    known.pci_address.as_deref().and_then(PciAddress::parse)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(path: &Path) -> Result<Vec<KnownDevice>, Unusable> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LARGEST {
        return Err(Unusable::TooLarge);
    }
    let content: Content = serde_json::from_slice(&text)?;
    if content.version != VERSION {
        return Err(Unusable::Version(content.version));
    }
    Ok(content.devices)
}

fn start_writer(folder: PathBuf) -> io::Result<Writer> {
    let latest = Arc::new(Mutex::new(None::<Vec<u8>>));
    let (wake, woken) = sync_channel(1);
    let (end, ended) = sync_channel(1);
    let texts = Arc::clone(&latest);
    thread::Builder::new().name("register".to_owned()).spawn(move || {
        let mut complained = false;
        for () in woken {
            let text = texts.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(text) = text else { continue };
            let written = write(&folder, &text);
            if let Err(error) = &written
                && !std::mem::replace(&mut complained, true)
            {
                let (folder, remedy) = (folder.display(), "make it writable, or set paths.state");
                tracing::warn!(%folder, %error, remedy, "devices that vanish are missed by this agent only, not by the next");
            }
        }
        // The agent's end waits a moment for this and no longer.
        let _ = end.send(());
    })?;
    Ok(Writer { latest, wake, ended: Mutex::new(ended) })
}

/// Renamed into its place, so that a crash leaves the old or the new one.
fn write(folder: &Path, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!("{FILE}.new"));
    let mut file = File::create(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, folder.join(FILE))
}

#[cfg(test)]
mod tests;
