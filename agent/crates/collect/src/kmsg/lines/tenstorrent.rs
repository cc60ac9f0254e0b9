//! Parses the lines of Tenstorrent's driver: firmware that does not answer. The driver prints nothing about
//! a reset that works.
//!
//! Taken from tt-kmd of July 2026 (`wormhole_reset`, `blackhole_reset`, `msgqueue.c`,
//! `tenstorrent_pci_probe`). None has text of a tenant.

use super::grammar::Words as _;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Observation, Place, Severity};

const LINES: [(&str, EventKind); 5] = [
    ("Device is unresponsive, cannot reset.", EventKind::Unavailable),
    ("Watchdog is disabled and device is unresponsive, cannot reset.", EventKind::Unavailable),
    ("Couldn't communicate with firmware; NOC is likely hung.", EventKind::Unavailable),
    ("Timeout waiting for ARC response", EventKind::DriverTimeout),
    ("Device initialization failed", EventKind::InitFailed),
];

/// Parses what follows driver and address.
pub(super) fn read(rest: &str, place: Place, text: &str) -> Option<Observation> {
    let (_, kind) = LINES.iter().find(|(words, _)| rest.is(words))?;
    Some(Observation::new(*kind, place, Severity::Critical, text))
}
