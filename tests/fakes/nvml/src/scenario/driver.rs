//! How driver and library change under whoever uses them.

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
    /// Whether the host has it at a time.
    pub fn is_there(&self, seconds: f64) -> bool {
        let group = self.group;
        seconds >= group.from && group.until.is_none_or(|until| seconds < until)
    }
}
