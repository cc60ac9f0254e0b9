//! The links of a device: PCIe to the host, XGMI to other devices.
//!
//! The file `pcie_bw` is never read, because reading it takes a second.

use super::super::files::Files;
use super::gpu_metrics::{Field, Table};
use crate::catalog::interconnect::{self as metric, PeerLink};
use crate::catalog::link::{Direction, LinkState};
use crate::catalog::wear::{self, PcieError};
use crate::collect::device::wire::{WireValue, push};
use std::path::Path;

/// Largest number of lanes of a PCIe link.
const MAX_LANES: u64 = 32;
/// Generations by their speed, as the kernel prints it (`pci_speed_string`).
const GENERATIONS: &[(&str, i64)] = &[
    ("2.5 GT/s", 1),
    ("5.0 GT/s", 2),
    ("8.0 GT/s", 3),
    ("16.0 GT/s", 4),
    ("32.0 GT/s", 5),
    ("64.0 GT/s", 6),
];
/// Bits of a byte, and bytes of a KiB and a GB.
const BITS: f64 = 8.0;
const KIB: u64 = 1024;
const GIGA: f64 = 1e9;

/// Reads the files of the PCIe link.
pub(super) fn pcie(device: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    let lanes = |files: &mut Files, path: &Path| {
        let lanes = files.number(path).filter(|lanes| (1..=MAX_LANES).contains(lanes));
        lanes.and_then(|lanes| i64::try_from(lanes).ok())
    };
    let width = lanes(files, &device.join("current_link_width"));
    push(out, &wear::PCIE_WIDTH, (), width);
    let speed = generation(files, &device.join("current_link_speed"));
    push(out, &wear::PCIE_GENERATION, (), speed);
    // The slot is the end of the link at the parent of the device. The path names the folder itself:
    // a folder of the bus is a link to it.
    let slot = device.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let ends = [Some(device.to_owned()), slot];
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    let width = ends.iter().filter_map(|end| lanes(files, &end.join("max_link_width"))).min();
    push(out, &wear::PCIE_WIDTH_LIMIT, (), width);
    let speed = ends.iter().filter_map(|end| generation(files, &end.join("max_link_speed"))).min();
    push(out, &wear::PCIE_GENERATION_LIMIT, (), speed);
}

/// Parses `16.0 GT/s PCIe`; older kernels write `16 GT/s`.
fn generation(files: &mut Files, path: &Path) -> Option<i64> {
    let text = files.text(path)?;
    let speed = text.trim_end_matches(" PCIe");
    let is_same = |known: &str| speed == known || speed == known.replacen(".0", "", 1);
    let found = GENERATIONS.iter().find(|(known, _)| is_same(known)).map(|(_, number)| *number);
    // A link that is down has an unknown speed.
    found.or_else(|| (text != "Unknown").then(|| files.count_implausible(None))?)
}

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
