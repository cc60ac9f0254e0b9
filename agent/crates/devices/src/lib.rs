//! Device readers: one vendor each. Each runs in a child process, so that a driver that hangs or
//! crashes does not affect the agent.
//!
//! [`DEVICES`] lists the vendors. In the agent, a [`reader::DeviceReader`] starts the child, sends
//! it one request a tick and turns the answers into samples. In the child, [`child::serve`] opens
//! the vendor's library, or its files in sysfs, and reads the devices one after the other. [`wire`]
//! defines the frames between them.
//!
//! Owns every vendor's file and table row. May use `collect` and what is below it. Knows no BPF, no NCCL, no
//! engine and no sink.
//!
//! Rooms, from below: `in_flight`, `wire`, `cached`, `files`, `sysfs`, `states`, `plausible`,
//! `link`, `events`, `child`, `library`, `connection`, `reader`, `fdinfo`, `intel`, (`nvidia`,
//! `gaudi`, `throttle`, `amd`), `neuron`, `source`, `stuck`, `tenstorrent`, `tpu`, `fuzz`.

#![forbid(unsafe_code)]

mod amd;
mod cached;
pub mod child;
mod connection;
pub mod events;
mod fdinfo;
mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod gaudi;
mod in_flight;
mod intel;
mod library;
mod link;
mod neuron;
mod nvidia;
mod plausible;
pub mod reader;
pub mod source;
mod states;
mod stuck;
mod sysfs;
mod tenstorrent;
pub mod throttle;
mod tpu;
pub mod wire;

use events::Watch;
use gpuwho_collect::source::Context;
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::catalog::document::Column;
use gpuwho_model::paths::Paths;
use gpuwho_owners::nodes::{VendorNodes, Vendors};
use gpuwho_pipeline::event::EventSource;
use library::Library;
use reader::{CompleteIdentity, ServedValues};
use rustix::thread::CapabilitySet;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use wire::{OpenErrorKind, Reading};

/// Every supported vendor.
pub static DEVICES: &[Vendor] = &[
    nvidia::VENDOR,
    amd::VENDOR,
    gaudi::VENDOR,
    tenstorrent::VENDOR,
    tpu::VENDOR,
    intel::VENDOR,
    neuron::VENDOR,
];

/// A vendor.
#[derive(Debug)]
pub struct Vendor {
    /// Name of the collector and of the configuration section, and the child's argument.
    pub name: &'static str,
    /// The library that reads the devices; `None` if the vendor needs only kernel files.
    pub library: Option<Library>,
    /// A library that a process of its own asks for what the files do not have.
    pub supplement: Option<Supplement>,
    /// What makes its devices readable where there is none.
    pub remedy: &'static str,
    /// What its driver makes, and its devices' names in Kubernetes.
    pub nodes: VendorNodes,
    /// The lines of its configuration section in the sample.
    pub sample: &'static str,
    /// The on/off keys of its configuration section.
    pub switches: &'static [Switch],
    /// Capabilities that the confined child retains: none if it loads vendor code.
    pub keeps: CapabilitySet,
    /// Lists the devices of the kernel driver; empty if the driver is not loaded or has no such
    /// list.
    pub listed: fn(&Paths) -> BTreeSet<OsString>,
    /// The library's event stream; `None` if events come only from the kernel log.
    pub events: Option<EventStream>,
    /// The source of a metric, or the reason why it has none, for the documentation.
    pub source: fn(&'static MetricDef) -> Result<&'static str, &'static str>,
    /// Maps the reader's name of a call to the vendor's function name.
    pub function: fn(&str) -> &str,
    /// Whether readings list the processes on a device. Otherwise they are those that have its node
    /// open.
    pub lists_processes: bool,
    /// Values that the processes on a device serve themselves: read by the agent, whose privileges
    /// the child does not have.
    pub served: Option<fn(&Context) -> ServedValues>,
    /// Loads and initialises the library, or finds the files.
    pub open: fn(&OpenOptions<'_>) -> Result<OpenLibrary, OpenError>,
}

impl Vendor {
    /// One that files of the kernel have, without what is each one's own.
    const DEFAULT: Self = Self {
        name: "",
        library: None,
        supplement: None,
        remedy: "",
        nodes: VendorNodes::NONE,
        sample: "",
        switches: &[],
        keeps: CapabilitySet::empty(),
        listed: |_| BTreeSet::new(),
        events: None,
        source: |_| Err("no file of the driver has it"),
        function: |file| file,
        lists_processes: false,
        served: None,
        open: |_| Err(OpenError { refusal: OpenErrorKind::Failed, text: String::new() }),
    };

    /// Its column and page of metrics.
    pub fn column(&self) -> Column {
        let (bits, names) = (throttle::bits_of(self.name), throttle::names_of(self.name));
        Column { name: self.name, source: self.source, bits, names }
    }
}

/// A library beside a vendor's files.
#[derive(Debug)]
pub struct Supplement {
    /// The library.
    pub library: Library,
    /// Returns what completes the identities of devices, and adds the handle that closes its process.
    pub start: fn(&Context, &reader::Settings) -> CompleteIdentity,
}

/// An on/off key of a vendor's configuration section.
#[derive(Debug)]
pub struct Switch {
    /// The key.
    pub key: &'static str,
    /// Whether it is on unless set.
    pub default: bool,
}

/// The switches of all vendors that are off unless set.
fn off_by_default() -> impl Iterator<Item = &'static str> {
    let switches = DEVICES.iter().flat_map(|vendor| vendor.switches);
    switches.filter(|switch| !switch.default).map(|switch| switch.key)
}

/// The event stream of a vendor's library.
#[derive(Debug)]
pub struct EventStream {
    /// Its name in the table of sources.
    pub name: &'static str,
    /// The `source` of its events.
    pub source: EventSource,
}

/// Arguments of [`Vendor::open`].
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
    /// Returns the current number of devices; may hang like any call.
    pub count: Count,
    /// Opens the event stream, or returns why the library has none. Called only if events are
    /// enabled.
    pub events: Box<dyn FnOnce() -> Result<Box<dyn Watch>, String> + Send>,
    /// Closes every handle.
    pub close: Box<dyn FnOnce() + Send>,
}

/// Returns the library's current number of devices, if it answers.
pub type Count = Box<dyn FnMut() -> Option<u32> + Send>;

/// One device. Every call may hang.
pub trait DeviceRead: Send {
    /// Reads everything once. `openers` are the processes that the agent knows to have the vendor's
    /// nodes open.
    fn read(&mut self, openers: &[u32]) -> Reading;

    /// Starts to time each library function.
    fn time_calls(&mut self) {}

    /// The collected times by function; empty if timing is off.
    fn times(&self) -> Vec<CallTimes> {
        Vec::new()
    }
}

/// Time spent in one library function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Its name in the library's header.
    pub function: String,
    /// Number of calls.
    pub calls: u32,
    /// Total time of all calls.
    pub total: Duration,
    /// The longest call.
    pub longest: Duration,
}

/// Why a library did not open.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct OpenError {
    /// The kind; it decides what the agent does next.
    pub refusal: OpenErrorKind,
    /// The library's message.
    pub text: String,
}

/// What every vendor's driver makes.
pub fn nodes() -> Vendors {
    static ALL: LazyLock<Vec<VendorNodes>> =
        LazyLock::new(|| DEVICES.iter().map(|vendor| vendor.nodes).collect());
    &ALL
}

/// Finds a vendor by name.
pub fn vendor(name: &str) -> Option<&'static Vendor> {
    DEVICES.iter().find(|vendor| vendor.name == name)
}

/// Finds what a reader process is to read: a vendor, or the library beside a vendor's files.
pub fn readable(name: &str) -> Option<&'static Vendor> {
    vendor(name).or_else(|| Some(&amd::smi::SMI).filter(|beside| beside.name == name))
}

#[cfg(test)]
mod tests {
    use super::DEVICES;
    use gpuwho_model::{attributes, catalog};

    #[test]
    fn the_attribute_of_vendors_names_each_as_it_is_sent() {
        let text = attributes::GPU_VENDOR.description;
        let named: Vec<_> = text.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, DEVICES.iter().map(|vendor| vendor.name).collect::<Vec<_>>());
    }

    /// METRICS.md has a cell for each.
    #[test]
    fn every_vendor_has_a_source_or_a_reason_for_every_metric() {
        for vendor in DEVICES {
            for def in catalog::all() {
                let (Ok(text) | Err(text)) = (vendor.source)(def);
                assert!(text.len() > 3, "{} says nothing of {}", vendor.name, def.name);
                assert!(!text.contains('|'), "{}: {text} breaks the table", vendor.name);
            }
        }
    }
}
