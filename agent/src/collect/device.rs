//! Device readers: one vendor each, in a child process of its own, so that a driver that hangs or
//! crashes takes nothing else with it.
//!
//! [`DEVICES`] names the vendors. In the agent, a [`reader::DeviceReader`] starts the child, asks
//! it once a tick and turns its answers into samples; in the child, [`child::serve`] opens the
//! vendor's library, or its files in sysfs, and reads one device after the other; [`wire`] is what
//! they say to each other.

mod amd;
pub mod child;
mod connection;
pub mod events;
mod fdinfo;
mod files;
mod in_flight;
mod library;
mod link;
mod nvidia;
pub mod partitions;
mod plausible;
pub mod reader;
pub mod snapshot;
pub mod source;
mod states;
mod stuck;
pub mod wire;

use crate::catalog::MetricDef;
use crate::event::EventSource;
use crate::paths::Paths;
use events::Watch;
use library::Library;
use partitions::PartitionNodes;
use rustix::thread::CapabilitySet;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use wire::{OpenErrorKind, Reading};

/// Every vendor that a child can read.
pub static DEVICES: &[Vendor] = &[nvidia::VENDOR, amd::VENDOR];

/// A vendor.
#[derive(Debug)]
pub struct Vendor {
    /// Name of the collector and of the configuration section, and the child's argument.
    pub name: &'static str,
    /// The library that the devices are read through; `None` where the kernel's files suffice.
    pub library: Option<Library>,
    /// The kernel drivers of its devices, as the bus names them.
    pub drivers: &'static [&'static str],
    /// Device nodes that its processes open; the last component may end in `*`.
    pub nodes: &'static [&'static str],
    /// Its drivers of device nodes, as `/proc/devices` names them.
    pub node_drivers: &'static [&'static str],
    /// The lines of its configuration section in the sample.
    pub sample: &'static str,
    /// What can be switched in its configuration section.
    pub switches: &'static [Switch],
    /// Capabilities that its confined child keeps: none where it loads code of the vendor's.
    pub keeps: CapabilitySet,
    /// The kernel driver's devices; empty where it is not loaded or has no such list.
    pub listed: fn(&Paths) -> BTreeSet<OsString>,
    /// Whether a node, by its name below `/dev` or its number, is of one device.
    pub is_device_node: fn(&str) -> bool,
    /// The nodes of the partitions of its devices.
    pub partition_nodes: fn(&Paths) -> PartitionNodes,
    /// Its events; `None` where they come from the kernel log only.
    pub events: Option<EventStream>,
    /// Where a metric comes from, or why there is none, for the documentation.
    pub source: fn(&'static MetricDef) -> Result<&'static str, &'static str>,
    /// The vendor's function behind a reader's word for a call.
    pub function: fn(&str) -> &str,
    /// Loads and initialises the library, or finds the files.
    pub open: fn(&OpenOptions<'_>) -> Result<OpenLibrary, OpenError>,
}

/// A key of a vendor's configuration section that is on or off.
#[derive(Debug)]
pub struct Switch {
    /// The key.
    pub key: &'static str,
    /// Whether it is on unless set.
    pub default: bool,
}

/// The stream of events that a vendor's library offers.
#[derive(Debug)]
pub struct EventStream {
    /// Its name among the sources.
    pub name: &'static str,
    /// Its name on the events.
    pub source: EventSource,
}

/// What a vendor is opened with.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions<'a> {
    /// The library; empty for a vendor without one.
    pub library: &'a Path,
    /// The host's directories.
    pub paths: &'a Paths,
    /// The switches that are off.
    pub off: &'a [String],
}

impl OpenOptions<'_> {
    /// Whether a switch is on.
    pub fn is_on(&self, key: &str) -> bool {
        !self.off.iter().any(|off| off == key)
    }
}

/// An initialised library.
pub struct OpenLibrary {
    /// Its devices, in its order.
    pub devices: Vec<Box<dyn DeviceRead>>,
    /// Asks how many it has now; may hang like any call.
    pub count: Count,
    /// What happens to them, or why the library cannot tell; asked for only where it is wanted.
    pub events: Box<dyn FnOnce() -> Result<Box<dyn Watch>, String> + Send>,
    /// Closes every handle.
    pub close: Box<dyn FnOnce() + Send>,
}

/// Asks a library how many devices it has now, if it answers.
pub type Count = Box<dyn FnMut() -> Option<u32> + Send>;

/// One device. Every call may hang.
pub trait DeviceRead: Send {
    /// Reads everything once. `holders` are the processes that hold nodes of the vendor's, as far as
    /// the agent knows them.
    fn read(&mut self, holders: &[u32]) -> Reading;

    /// Keeps, from now on, how long each function of the library takes.
    fn time_calls(&mut self) {}

    /// What was kept, by function; nothing where times are not kept.
    fn times(&self) -> Vec<CallTimes> {
        Vec::new()
    }
}

/// How long the calls of one function took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// As the library's header calls it.
    pub function: String,
    /// Calls.
    pub calls: u32,
    /// All of them together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Why a library did not open.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct OpenError {
    /// The kind, which decides what the agent does next.
    pub refusal: OpenErrorKind,
    /// What the library said.
    pub text: String,
}

/// The vendor of a name.
pub fn vendor(name: &str) -> Option<&'static Vendor> {
    DEVICES.iter().find(|vendor| vendor.name == name)
}
