//! Merges the two lines of a device that falls off the bus: `Xid (…): 79, … GPU has fallen off the
//! bus.` and `GPU …: GPU has fallen off the bus.` (`osHandleGpuLost`, 515.43 to 595.45). If the
//! driver suppresses the XID, only the second line is there.

use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Observation, Place};

/// The last such XID, to recognise the line that follows it.
#[derive(Debug, Default)]
pub(super) struct Fallen(Option<(Place, u64)>);

impl Fallen {
    /// One function writes both lines.
    const APART_US: u64 = 2_000_000;
    /// `ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS`.
    const CODE: u32 = 79;

    /// Whether the previous line already reported this.
    pub(super) fn is_reported(&mut self, what: &Observation, at_us: u64) -> bool {
        if what.kind == EventKind::Xid && what.code == Some(Self::CODE) {
            self.0 = Some((what.place, at_us));
        }
        what.kind == EventKind::Lost
            && self.0.is_some_and(|(place, then)| {
                place == what.place && at_us.saturating_sub(then) <= Self::APART_US
            })
    }
}
