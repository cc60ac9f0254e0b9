//! The links of a device as the driver's table has them: PCIe to the host, XGMI to other devices.
//!
//! The file `pcie_bw` is never read, because reading it takes a second.

use super::gpu_metrics::{Field, Table};
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::interconnect as metric;
use gpuwho_model::catalog::interconnect::PeerLink;
use gpuwho_model::catalog::link::{Direction, LinkState};
use gpuwho_model::catalog::wear::{self, PcieError};

/// Bits of a byte, and bytes of a KiB and a GB.
const BITS: f64 = 8.0;
const KIB: u64 = 1024;
const GIGA: f64 = 1e9;

/// Counters of the PCIe link in the driver's table. `replays` are those of the file, if it has any.
pub(super) fn pcie_counters(table: &Table, replays: Option<i64>, out: &mut Vec<WireValue>) {
    let count = |field| table.one(field).and_then(|count| i64::try_from(count).ok());
    push(out, &wear::PCIE_REPLAYS, (), replays.or_else(|| count(Field::PcieReplays)));
    for (error, field) in [
        (PcieError::Recovery, Field::PcieRecoveries),
        (PcieError::ReplayRollover, Field::PcieRollovers),
        (PcieError::NakSent, Field::NaksSent),
        (PcieError::NakReceived, Field::NaksReceived),
    ] {
        push(out, &wear::PCIE_ERRORS, error, count(field));
    }
}

/// Reports the XGMI links.
pub(super) fn xgmi(table: &Table, out: &mut Vec<WireValue>) {
    let mut states = [0; LinkState::ALL.len()];
    let mut is_reported = false;
    let speed = speed(table);
    for (link, status) in PeerLink::all().zip(table.each(Field::LinkStatus)) {
        let state = match status {
            Some(0) => LinkState::Inactive,
            Some(1) => LinkState::Active,
            Some(2) => LinkState::Disabled,
            _ => continue,
        };
        is_reported = true;
        if let Some(count) = states.get_mut(state as usize) {
            *count += 1;
        }
        let is_active = state == LinkState::Active;
        push(out, &metric::LINK_ACTIVE, link, Some(i64::from(is_active)));
        push(out, &metric::LINK_SPEED, link, speed.filter(|_| is_active));
    }
    for (state, count) in LinkState::ALL.iter().zip(states).filter(|_| is_reported) {
        push(out, &metric::LINKS, *state, Some(count));
    }
    // What the device reads comes in.
    for (direction, field) in
        [(Direction::Receive, Field::LinkRead), (Direction::Transmit, Field::LinkWritten)]
    {
        let mut sum = None;
        for (link, kib) in PeerLink::all().zip(table.each(field)) {
            let bytes = kib.and_then(|kib| i64::try_from(kib.checked_mul(KIB)?).ok());
            push(out, &metric::LINK_IO, (link, direction), bytes);
            sum = bytes.map(|bytes| bytes.saturating_add(sum.unwrap_or(0))).or(sum);
        }
        push(out, &metric::IO, direction, sum);
    }
}

/// Bytes a second of a link in each direction.
fn speed(table: &Table) -> Option<f64> {
    let small = |field| table.one(field).and_then(|number| u16::try_from(number).ok());
    let (lanes, rate) = (small(Field::LinkWidth)?, small(Field::LinkSpeed)?);
    (lanes > 0 && rate > 0).then(|| f64::from(lanes) * f64::from(rate) * GIGA / BITS)
}
