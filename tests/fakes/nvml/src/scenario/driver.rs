//! How driver and library change under whoever uses them, and devices that are reset.

use super::{Device, Scenario};
use serde::Deserialize;

/// From a moment on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverChange {
    /// Second it happens; not before the changes above it.
    pub at: f64,
    /// Version of the kernel driver that is loaded from then on; empty for none.
    pub kernel: Option<String>,
    /// Version of the library that a process loads from then on.
    pub library: Option<String>,
    /// CUDA version of that library, as it encodes it.
    pub cuda: Option<i32>,
}

/// A reset of one device while everybody uses it. Every call about it says that it is lost until it is
/// back; after that a library that was loaded before is not initialised for it, and has to be loaded
/// anew. Its counters begin anew, those of its InfoROM go on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReset {
    /// The device's index.
    pub device: u32,
    /// Second it is lost.
    pub lost: f64,
    /// Second it is back.
    pub back: f64,
}

/// How a device in the course of a reset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amiss {
    /// It answers nobody.
    Lost,
    /// It answers those who loaded the library after it was back.
    Stale,
}

/// Whether a driver has the field numbers of CUDA 13.0 Update 1.
pub fn renumbered(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()] >= [580, 82]
}

impl Scenario {
    /// The version of the kernel driver at a time; `None` while none is loaded.
    pub fn kernel_at(&self, seconds: f64) -> Option<&str> {
        let mut kernels = self.changes_until(seconds).filter_map(|change| change.kernel.as_deref());
        Some(kernels.next_back().unwrap_or(&self.driver)).filter(|version| !version.is_empty())
    }

    /// The version of the library that a process loads at a time, and its CUDA version.
    pub fn library_at(&self, seconds: f64) -> (&str, i32) {
        let libraries = || self.changes_until(seconds).filter(|change| change.library.is_some());
        let version = libraries().next_back().and_then(|change| change.library.as_deref());
        let cuda = libraries().filter_map(|change| change.cuda).next_back();
        (version.unwrap_or(&self.driver), cuda.unwrap_or(self.cuda))
    }

    /// When the kernel driver was last loaded: its counters begin there.
    pub fn loaded_at(&self, seconds: f64) -> f64 {
        let mut loads = self.changes_until(seconds).filter(|change| change.kernel.is_some());
        loads.next_back().map_or(0.0, |change| change.at)
    }

    /// The devices the driver lists at a time.
    pub fn listed(&self, seconds: f64) -> impl Iterator<Item = Device<'_>> {
        self.devices().filter(move |device| device.is_there(seconds))
    }

    fn changes_until(&self, seconds: f64) -> impl DoubleEndedIterator<Item = &DriverChange> {
        self.changes.iter().filter(move |change| change.at <= seconds)
    }
}

impl Device<'_> {
    /// When it was last reset before a time.
    pub fn reset_before(&self, seconds: f64) -> Option<f64> {
        let own = self.resets.iter().filter(|reset| reset.device == self.index);
        own.map(|reset| reset.back).rfind(|back| *back <= seconds)
    }

    /// What is amiss with it at a time, for a library that was loaded at a time.
    pub fn amiss(&self, seconds: f64, loaded: f64) -> Option<Amiss> {
        let own = || self.resets.iter().filter(|reset| reset.device == self.index);
        if own().any(|reset| (reset.lost..reset.back).contains(&seconds)) {
            return Some(Amiss::Lost);
        }
        self.reset_before(seconds).filter(|back| loaded < *back).map(|_| Amiss::Stale)
    }

    /// Whether the host has it at a time.
    pub fn is_there(&self, seconds: f64) -> bool {
        let group = self.group;
        seconds >= group.from && group.until.is_none_or(|until| seconds < until)
    }
}
