//! Device readers: one vendor library each, in a child process of its own, so that a driver that
//! hangs or crashes takes nothing else with it.
//!
//! [`DEVICES`] names the vendors. In the agent, a [`reader::DeviceReader`] starts the child, asks
//! it once a tick and turns its answers into samples; in the child, [`child::serve`] opens the
//! library and reads one device after the other; [`wire`] is what they say to each other.

pub mod capabilities;
pub mod child;
pub mod events;
mod inside;
mod library;
mod link;
mod nvidia;
mod plausible;
pub mod reader;
mod rows;
mod session;
pub mod snapshot;
pub mod source;
mod stuck;
pub mod wire;

use events::Watch;
use std::path::Path;
use std::time::Duration;
use wire::{Reading, Refusal};

/// Every vendor whose library a child can hold.
pub static DEVICES: &[Vendor] = &[nvidia::VENDOR];

/// A vendor's library.
#[derive(Debug)]
pub struct Vendor {
    /// Name of the collector, and the child's argument.
    pub name: &'static str,
    /// What the loader calls the library.
    pub library: &'static str,
    /// A device node that exists when the kernel driver is loaded.
    pub node: &'static str,
    /// A folder of procfs in which the kernel driver has an entry for each of its devices.
    pub roster: &'static str,
    /// The library's function behind a reader's word for a call.
    pub function: fn(&str) -> &str,
    /// Loads and initialises the library.
    pub open: fn(&Opening<'_>) -> Result<Opened, OpenError>,
}

/// What a library is opened for.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The library.
    pub library: &'a Path,
    /// Whether to read the devices' performance counters.
    pub gpm: bool,
    /// Whether to tell of each link, and not only of all links of a device together.
    pub by_link: bool,
}

/// An initialised library.
pub struct Opened {
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

/// One device of a library. Every call may hang.
pub trait DeviceRead: Send {
    /// Reads everything once.
    fn read(&mut self) -> Reading;

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
    pub refusal: Refusal,
    /// What the library said.
    pub text: String,
}

/// The vendor of a name.
pub fn vendor(name: &str) -> Option<&'static Vendor> {
    DEVICES.iter().find(|vendor| vendor.name == name)
}
