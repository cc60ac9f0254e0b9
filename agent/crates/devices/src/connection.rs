//! State of a running child, and the reasons why its connection ends.

use super::link::{Link, LinkError};
use super::wire::{OpenErrorKind, Stuck};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::device::DeviceState;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Instant;

/// A running child and its outstanding request.
pub(super) struct Connection {
    pub(super) link: Link,
    /// Number of devices, once the library is open.
    pub(super) devices: Option<u32>,
    /// The request that the child has not finished yet.
    pub(super) owed: Option<u64>,
    /// The child missed the deadline of the last tick.
    pub(super) late: bool,
    /// Calls that have not returned, by device; `None` is the call that opens the library.
    pub(super) stuck: BTreeMap<Option<u32>, Stuck>,
    /// Devices that reported in this tick that the driver is gone, with their messages.
    pub(super) gone: BTreeMap<u32, String>,
    /// The kernel driver's devices when the library was loaded.
    pub(super) driver_devices: BTreeSet<OsString>,
    /// When the devices were last counted.
    pub(super) counted: Instant,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Disconnect {
    /// The child crashed or sent a malformed frame.
    #[error(transparent)]
    Lost(#[from] LinkError),
    /// The library cannot be used.
    #[error("{text}")]
    Refused {
        /// The kind.
        refusal: OpenErrorKind,
        /// The library's message.
        text: String,
    },
    /// The library has no device.
    #[error("the driver lists no device")]
    NoDevice,
    /// The driver was unloaded or replaced.
    #[error("the driver went away: {0}")]
    DriverGone(String),
    /// Devices were added or removed: the library must be reloaded to list them.
    #[error("the devices changed: {0}")]
    Changed(String),
}

impl Connection {
    pub(super) fn new(link: Link, driver_devices: BTreeSet<OsString>) -> Self {
        Self {
            link,
            devices: None,
            owed: None,
            late: false,
            stuck: BTreeMap::new(),
            gone: BTreeMap::new(),
            driver_devices,
            counted: Instant::now(),
        }
    }

    /// Why a device, or the library, does not answer.
    pub(super) fn why_late(&self, slot: Option<u32>) -> String {
        let reported = self.stuck.get(&slot).map(|stuck| stuck.describe(self.link.pid()));
        let otherwise = || match slot {
            Some(_) => "a call into the driver has not returned".to_owned(),
            None => "its reader process does not answer".to_owned(),
        };
        reported.unwrap_or_else(otherwise)
    }
}

impl Disconnect {
    /// The state of the source after this disconnect, and what the operator can do.
    pub(super) fn source_state(&self) -> (SourceState, &'static str) {
        match self {
            Self::Refused { refusal: OpenErrorKind::Absent, .. } => {
                (SourceState::Absent, "load the kernel driver")
            }
            Self::Refused { refusal: OpenErrorKind::Unloadable, .. } => (
                SourceState::Failed,
                "install the library that is named here, or mount it into the container",
            ),
            Self::Refused { refusal: OpenErrorKind::Mismatch, .. } => (
                SourceState::Failed,
                "reload the kernel driver or reboot: the library is of another version",
            ),
            Self::Refused { refusal: OpenErrorKind::Forbidden, .. } => {
                (SourceState::Failed, "run as root or allow the device nodes")
            }
            Self::Refused { refusal: OpenErrorKind::Failed, .. } => {
                (SourceState::Failed, "check the driver with the vendor's tool")
            }
            Self::NoDevice => (SourceState::Absent, "check the devices with the vendor's tool"),
            Self::Lost(_) | Self::DriverGone(_) | Self::Changed(_) => (SourceState::Failed, ""),
        }
    }

    /// The state of every device after this disconnect.
    pub(super) fn devices(&self) -> DeviceState {
        match self {
            Self::DriverGone(_)
            | Self::Refused {
                refusal: OpenErrorKind::Absent | OpenErrorKind::Unloadable | OpenErrorKind::Mismatch,
                ..
            } => DeviceState::NoDriver,
            Self::NoDevice => DeviceState::Missing,
            Self::Lost(_) | Self::Changed(_) | Self::Refused { .. } => DeviceState::Failing,
        }
    }

    /// Whether a new child may succeed at once.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::DriverGone(_) | Self::Changed(_))
    }
}
