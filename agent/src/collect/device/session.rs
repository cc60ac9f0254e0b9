//! What a reader remembers of its running child, and the ways in which that ends.

use super::link::{Link, LinkError};
use super::wire::Refusal;
use crate::catalog::agent::SourceState;

/// A running child and what it owes.
pub(super) struct Session {
    pub(super) link: Link,
    /// Number of devices, once the library is open.
    pub(super) devices: Option<u32>,
    /// The request it has not ended yet.
    pub(super) owed: Option<u64>,
    /// It missed a deadline altogether.
    pub(super) late: bool,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ending {
    /// The child crashed or talks nonsense.
    #[error(transparent)]
    Lost(#[from] LinkError),
    /// The library cannot be used.
    #[error("{text}")]
    Refused {
        /// Of which kind.
        refusal: Refusal,
        /// What the library said.
        text: String,
    },
    /// There is nothing to read.
    #[error("the driver lists no device")]
    NoDevice,
    /// The driver was unloaded or replaced.
    #[error("the driver went away: {0}")]
    DriverGone(String),
}

impl Session {
    pub(super) fn new(link: Link) -> Self {
        Self { link, devices: None, owed: None, late: false }
    }
}

impl Ending {
    /// The source's state after it, and what the operator can do.
    pub(super) fn verdict(&self) -> (SourceState, &'static str) {
        match self {
            Self::Refused { refusal: Refusal::Absent, .. } => {
                (SourceState::Absent, "load the kernel driver")
            }
            Self::Refused { refusal: Refusal::Mismatch, .. } => (
                SourceState::Failed,
                "reload the kernel driver or reboot: the library is of another version",
            ),
            Self::Refused { refusal: Refusal::Forbidden, .. } => {
                (SourceState::Failed, "run as root or allow the device nodes")
            }
            Self::Refused { refusal: Refusal::Failed, .. } => {
                (SourceState::Failed, "check the driver with the vendor's tool")
            }
            Self::NoDevice => (SourceState::Absent, "check the devices with the vendor's tool"),
            Self::Lost(_) | Self::DriverGone(_) => (SourceState::Failed, ""),
        }
    }
}
