//! The PCIe link.

use super::Of;
use crate::nvidia::caller::{Call, NvmlCaller};
use crate::nvidia::fields::Field;
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::link::Direction;
use gpuwho_model::catalog::wear::{self as metric, PcieError};
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::BusType;
use std::ops::RangeInclusive;

/// Plausible PCIe generations.
const GENERATIONS: RangeInclusive<u32> = 1..=16;
/// Plausible lane counts.
const WIDTHS: RangeInclusive<u32> = 1..=32;

/// Error counters.
const ERRORS: &[(Field, PcieError)] = &[
    (Field::PcieCorrectable, PcieError::Correctable),
    (Field::PcieNonFatal, PcieError::NonFatal),
    (Field::PcieFatal, PcieError::Fatal),
    (Field::PcieUnsupportedRequests, PcieError::UnsupportedRequest),
    (Field::PcieReceiverErrors, PcieError::Receiver),
    (Field::PcieBadTlps, PcieError::BadTlp),
    (Field::PcieBadDllps, PcieError::BadDllp),
    (Field::PcieLcrc, PcieError::Lcrc),
    (Field::PcieLaneErrors, PcieError::Lane),
    (Field::PcieNaksReceived, PcieError::NakReceived),
    (Field::PcieNaksSent, PcieError::NakSent),
    (Field::PcieRollovers, PcieError::ReplayRollover),
    (Field::PcieRecoveries, PcieError::Recovery),
];

/// Reads the current link, if there is one, and its counters.
pub(super) fn read(
    (device, fields): Of<'_>,
    has_link: bool,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) {
    if has_link {
        let generation = caller.call(Call::PcieGeneration, || device.current_pcie_link_gen());
        let generation = caller.in_range(generation, GENERATIONS).map(i64::from);
        push(out, &metric::PCIE_GENERATION, (), generation);
        let width = caller.call(Call::PcieWidth, || device.current_pcie_link_width());
        push(out, &metric::PCIE_WIDTH, (), caller.in_range(width, WIDTHS).map(i64::from));
    }
    let replays = if fields.lacks(Field::PcieReplays, caller) {
        let replays = caller.call(Call::PcieReplays, || device.pcie_replay_counter());
        replays.filter(|replays| *replays != u32::MAX).map(i64::from)
    } else {
        fields.whole(Field::PcieReplays)
    };
    push(out, &metric::PCIE_REPLAYS, (), replays);
    for (field, error) in ERRORS {
        push(out, &metric::PCIE_ERRORS, *error, fields.whole(*field));
    }
    push(out, &metric::PCIE_IO, Direction::Transmit, fields.wide(Field::PcieSent));
    push(out, &metric::PCIE_IO, Direction::Receive, fields.wide(Field::PcieReceived));
}

/// The maximum that device and slot support together; false where there is no such link. The driver says so by
/// the type of the bus, or by a placeholder: a part on a chip-to-chip link (GB10) has one lane of the first
/// generation at most, as no board on PCIe has (`Syllo/nvtop` 426).
pub(super) fn highest(
    device: &Device<'_>,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) -> bool {
    let bus = caller.call(Call::BusType, || device.bus_type());
    let generation = caller.call(Call::HighestPcieGeneration, || device.max_pcie_link_gen());
    let width = caller.call(Call::HighestPcieWidth, || device.max_pcie_link_width());
    let is_other = bus.is_some_and(|bus| !matches!(bus, BusType::Pcie | BusType::Unknown));
    if is_other || (generation, width) == (Some(1), Some(1)) {
        return false;
    }
    let generation = caller.in_range(generation, GENERATIONS).map(i64::from);
    push(out, &metric::PCIE_GENERATION_LIMIT, (), generation);
    push(out, &metric::PCIE_WIDTH_LIMIT, (), caller.in_range(width, WIDTHS).map(i64::from));
    true
}
