//! The links of a device: NVLink in total and per link, and the links to the CPU of its module.
//!
//! All values come with the batched fields. Totals are polled at every reading, per-link values
//! every sixth, speeds and the correction history every thirtieth; in between each counter keeps
//! its last value. Fields that a link does not support while it is down are queried again when it
//! is back up. 32=/// Errors of a link.

use super::caller::NvmlCaller;
use super::fields::{ALL_LINKS, DEVICE, Field, Fields};
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::link as metric;
use gpuwho_model::catalog::link::{
    BitErrors, ChipLink, ChipLinkError, Corrected, Direction, Link, LinkError, LinkState, Recovery,
    TotalError,
};
use std::collections::BTreeMap;

/// Bytes of a KiB.
const KIB: i64 = 1024;
/// `NVML_NVLINK_STATE_ACTIVE`.
const ACTIVE: i64 = 1;

/// Errors of all links of a device.
const TOTALS: &[(Field, TotalError)] = &[
    (Field::NvLinkFlits, TotalError::CrcFlit),
    (Field::NvLinkData, TotalError::CrcData),
    (Field::NvLinkEcc, TotalError::EccData),
    (Field::NvLinkReplays, TotalError::Replay),
    (Field::NvLinkRecoveries, TotalError::Recovery),
];

/// Errors of a link.
const ERRORS: &[(Field, LinkError)] = &[
    (Field::LinkCrc, LinkError::Crc),
    (Field::LinkReplays, LinkError::Replay),
    (Field::LinkRecoveries, LinkError::Recovery),
    (Field::LinkMalformed, LinkError::Malformed),
    (Field::LinkOverruns, LinkError::Overrun),
    (Field::LinkReceiveErrors, LinkError::Received),
    (Field::LinkRemoteErrors, LinkError::Remote),
    (Field::LinkGeneralErrors, LinkError::General),
    (Field::LinkIntegrity, LinkError::Integrity),
    (Field::LinkDiscards, LinkError::Discarded),
    (Field::LinkEffective, LinkError::Effective),
    (Field::LinkSymbols, LinkError::Symbol),
];

/// Link errors that are summed here, because the driver has no total.
const SUMMED: &[(Field, TotalError)] = &[
    (Field::LinkMalformed, TotalError::Malformed),
    (Field::LinkOverruns, TotalError::Overrun),
    (Field::LinkReceiveErrors, TotalError::Received),
    (Field::LinkRemoteErrors, TotalError::Remote),
    (Field::LinkGeneralErrors, TotalError::General),
    (Field::LinkIntegrity, TotalError::Integrity),
    (Field::LinkDiscards, TotalError::Discarded),
    (Field::LinkEffective, TotalError::Effective),
    (Field::LinkSymbols, TotalError::Symbol),
    (Field::LinkUnrecovered, TotalError::RecoveryFailed),
];

/// Link errors that are summed only if the driver has no total: the field of the total, and the
/// per-link fields, of which the first supported one is used.
const WITHOUT_SUM: &[(Field, &[Field], TotalError)] = &[
    (Field::NvLinkFlits, &[Field::LinkCrc], TotalError::Crc),
    (Field::NvLinkReplays, &[Field::LinkReplays], TotalError::Replay),
    (Field::NvLinkRecoveries, &[Field::LinkRecoveries, Field::LinkRecovered], TotalError::Recovery),
];

/// How recoveries of a link ended.
const RECOVERIES: &[(Field, Recovery)] =
    &[(Field::LinkRecovered, Recovery::Successful), (Field::LinkUnrecovered, Recovery::Failed)];

/// Bit error rates of a link.
const RATES: &[(Field, BitErrors)] =
    &[(Field::LinkEffectiveRate, BitErrors::Effective), (Field::LinkSymbolRate, BitErrors::Symbol)];

/// Traffic of a link: in KiB, and in bytes if there is no such counter.
const CARRIED: &[(Field, Field, Direction)] = &[
    (Field::LinkSent, Field::LinkSentBytes, Direction::Transmit),
    (Field::LinkReceived, Field::LinkReceivedBytes, Direction::Receive),
];

/// Codewords by number of corrected symbols.
const CORRECTED: [Field; 16] = [
    Field::LinkCorrected0,
    Field::LinkCorrected1,
    Field::LinkCorrected2,
    Field::LinkCorrected3,
    Field::LinkCorrected4,
    Field::LinkCorrected5,
    Field::LinkCorrected6,
    Field::LinkCorrected7,
    Field::LinkCorrected8,
    Field::LinkCorrected9,
    Field::LinkCorrected10,
    Field::LinkCorrected11,
    Field::LinkCorrected12,
    Field::LinkCorrected13,
    Field::LinkCorrected14,
    Field::LinkCorrected15,
];

/// Errors of a link to the CPU.
const CHIP_ERRORS: &[(Field, ChipLinkError)] = &[
    (Field::ChipLinkCrc, ChipLinkError::Crc),
    (Field::ChipLinkReplays, ChipLinkError::Replay),
    (Field::ChipLinkDoubleReplays, ChipLinkError::ReplayBackToBack),
];

/// State of one device's links.
#[derive(Debug)]
pub(super) struct Links {
    /// Whether to export each NVLink.
    by_link: bool,
    /// Whether each NVLink was active when last read; empty until the number of links is known.
    active: Vec<bool>,
    /// Number of links to the CPU.
    to_cpu: u32,
    /// Traffic of all links, if only the links report it.
    carried: Tally,
    /// Codewords of all links.
    corrected: Tally,
    /// Errors of all links.
    errors: Tally,
    /// Errors for which the driver lacks a total.
    unsummed: Tally,
}

impl Links {
    /// Starts with no links known.
    pub(super) fn new(by_link: bool) -> Self {
        let (active, tally) = (Vec::new(), Tally::default);
        let (carried, corrected) = (tally(), tally());
        let (errors, unsummed) = (tally(), tally());
        Self { by_link, active, to_cpu: 0, carried, corrected, errors, unsummed }
    }

    /// Exports the fields, and adds more fields once the number of links is known.
    pub(super) fn read(
        &mut self,
        fields: &mut Fields,
        caller: &NvmlCaller,
        out: &mut Vec<WireValue>,
    ) {
        if caller.renewed() {
            *self = Self::new(self.by_link);
        }
        self.want(fields);
        totals(fields, out);
        self.nvlinks(fields, out);
        self.sums(fields, out);
        let chip_links = ChipLink::all().zip(0..self.to_cpu);
        chip_links.for_each(|(link, scope)| chip_link(fields, link, scope, out));
    }

    /// The NVLink version, `4.0`.
    pub(super) fn version(fields: &Fields) -> Option<&'static str> {
        // `nvmlNvlinkVersion_t` of CUDA 13.
        let versions = ["1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"];
        let reported = usize::try_from(fields.whole_of(Field::LinkVersion, 0)?).ok()?;
        versions.get(reported.checked_sub(1)?).copied()
    }

    fn want(&mut self, fields: &mut Fields) {
        let count = |fields: &Fields, field, max: usize| {
            let reported = fields.whole(field).and_then(|count| u32::try_from(count).ok());
            reported.unwrap_or(0).min(u32::try_from(max).unwrap_or(u32::MAX))
        };
        if self.active.is_empty() {
            let links = count(fields, Field::NvLinks, usize::from(Link::COUNT));
            // The version of the first link stands for all.
            if links > 0 {
                fields.want(Field::LinkVersion, 0);
            }
            for scope in 0..links {
                self.active.push(true);
                for field in of_link(self.by_link, fields) {
                    fields.want(field, scope);
                }
                fields.want(Field::LinkState, scope);
            }
        }
        if self.to_cpu == 0 {
            self.to_cpu = count(fields, Field::ChipLinks, usize::from(ChipLink::COUNT));
            for scope in 0..self.to_cpu {
                let errors = CHIP_ERRORS.iter().map(|(field, _)| *field);
                let others = [Field::ChipLinkStatus, Field::ChipLinkSpeed, Field::ChipLinkPower];
                errors.chain(others).for_each(|field| fields.want(field, scope));
            }
        }
    }

    fn nvlinks(&mut self, fields: &mut Fields, out: &mut Vec<WireValue>) {
        let mut states = [0; LinkState::ALL.len()];
        let mut reported = false;
        for ((link, scope), was_active) in Link::all().zip(0..).zip(&mut self.active) {
            let Some(state) = fields.whole_of(Field::LinkState, scope) else { continue };
            reported = true;
            let active = state == ACTIVE;
            if active && !*was_active {
                for field in of_link(self.by_link, fields) {
                    fields.renew(field, scope);
                }
            }
            *was_active = active;
            let place = usize::from(state_of(state) as u8);
            states.iter_mut().skip(place).take(1).for_each(|count| *count += 1);
            if self.by_link {
                push(out, &metric::LINK_ACTIVE, link, Some(i64::from(active)));
                nvlink(fields, link, scope, out);
            }
        }
        for (state, count) in LinkState::ALL.iter().zip(states).filter(|_| reported) {
            push(out, &metric::NVLINKS, *state, Some(count));
        }
    }

    /// Exports values that only the links report, summed.
    fn sums(&mut self, fields: &Fields, out: &mut Vec<WireValue>) {
        let scopes = || (0..).zip(&self.active).map(|(scope, _)| scope);
        let by_link = fields.is_unsupported(Field::NvLinkSent, ALL_LINKS);
        for (bin, (kib, bytes, direction)) in (0_u8..).zip(CARRIED).filter(|_| by_link) {
            for scope in scopes() {
                self.carried.note(bin, scope, carried(fields, *kib, *bytes, scope));
            }
            push(out, &metric::NVLINK_IO, *direction, self.carried.sum(bin));
        }
        for ((bin, field), dim) in (0_u8..).zip(CORRECTED).zip(Corrected::ALL) {
            for scope in scopes() {
                self.corrected.note(bin, scope, fields.whole_of(field, scope));
            }
            push(out, &metric::NVLINK_FEC, *dim, self.corrected.sum(bin));
        }
        for (bin, (field, error)) in (0_u8..).zip(SUMMED) {
            for scope in scopes() {
                self.errors.note(bin, scope, fields.whole_of(*field, scope));
            }
            push(out, &metric::NVLINK_ERRORS, *error, self.errors.sum(bin));
        }
        for (bin, (sum, of_link, error)) in (0_u8..).zip(WITHOUT_SUM) {
            if !fields.is_unsupported(*sum, DEVICE) {
                continue;
            }
            for scope in scopes() {
                let known = of_link.iter().find(|field| !fields.is_unsupported(**field, scope));
                let reported = known.and_then(|field| fields.whole_of(*field, scope));
                self.unsummed.note(bin, scope, reported);
            }
            push(out, &metric::NVLINK_ERRORS, *error, self.unsummed.sum(bin));
        }
    }
}

/// The rows for which the driver has no total.
fn without_sum(
    fields: &Fields,
) -> impl Iterator<Item = &'static (Field, &'static [Field], TotalError)> {
    WITHOUT_SUM.iter().filter(|(sum, ..)| fields.is_unsupported(*sum, DEVICE))
}

/// Sums counters over links. A link that does not report for a while subtracts nothing, because a
/// falling sum would count as a reset.
#[derive(Debug, Default)]
struct Tally {
    last: BTreeMap<(u8, u32), i64>,
    sums: BTreeMap<u8, i64>,
}

impl Tally {
    /// Takes the current value of a link's counter.
    fn note(&mut self, bin: u8, scope: u32, reported: Option<i64>) {
        let Some(now) = reported else { return };
        let last = self.last.insert((bin, scope), now).unwrap_or(0);
        // A smaller value means that the counter was reset.
        let grown = if now < last { now } else { now - last };
        let sum = self.sums.entry(bin).or_default();
        *sum = sum.saturating_add(grown);
    }

    fn sum(&self, bin: u8) -> Option<i64> {
        self.sums.get(&bin).copied()
    }
}

/// Every field of a link except its state; without the fields that only per-link metrics use if
/// those are off.
fn of_link(by_link: bool, fields: &Fields) -> Vec<Field> {
    let summed = SUMMED.iter().map(|(field, _)| *field);
    let unsummed = without_sum(fields).flat_map(|(_, of_link, _)| of_link.iter().copied());
    let carried = CARRIED.iter().flat_map(|(kib, bytes, _)| [*kib, *bytes]);
    let errors = ERRORS.iter().map(|(field, _)| *field);
    let recoveries = RECOVERIES.iter().map(|(field, _)| *field);
    let rates = RATES.iter().map(|(field, _)| *field);
    let own = errors.chain(recoveries).chain(rates).chain([Field::LinkSpeed]);
    let own = own.filter(|_| by_link);
    summed.chain(unsummed).chain(carried).chain(CORRECTED).chain(own).collect()
}

fn state_of(state: i64) -> LinkState {
    match state {
        ACTIVE => LinkState::Active,
        2 => LinkState::Sleep,
        3 => LinkState::Disabled,
        _ => LinkState::Inactive,
    }
}

fn totals(fields: &Fields, out: &mut Vec<WireValue>) {
    let bytes = |field| fields.whole_of(field, ALL_LINKS)?.checked_mul(KIB);
    push(out, &metric::NVLINK_IO, Direction::Transmit, bytes(Field::NvLinkSent));
    push(out, &metric::NVLINK_IO, Direction::Receive, bytes(Field::NvLinkReceived));
    push(out, &metric::NVLINK_RAW_IO, Direction::Transmit, bytes(Field::NvLinkRawSent));
    push(out, &metric::NVLINK_RAW_IO, Direction::Receive, bytes(Field::NvLinkRawReceived));
    for (field, error) in TOTALS {
        push(out, &metric::NVLINK_ERRORS, *error, fields.whole_of(*field, DEVICE));
    }
}

/// Traffic of a link. The two are separate counters: bytes are used only if the link lacks the KiB
/// counter.
fn carried(fields: &Fields, kib: Field, bytes: Field, scope: u32) -> Option<i64> {
    if fields.is_unsupported(kib, scope) {
        fields.whole_of(bytes, scope)
    } else {
        fields.whole_of(kib, scope)?.checked_mul(KIB)
    }
}

fn nvlink(fields: &Fields, link: Link, scope: u32, out: &mut Vec<WireValue>) {
    // A link that is down has no speed.
    let speed = fields.base_of(Field::LinkSpeed, scope).filter(|speed| *speed > 0.0);
    push(out, &metric::LINK_SPEED, link, speed);
    for (kib, bytes, direction) in CARRIED {
        push(out, &metric::LINK_IO, (link, *direction), carried(fields, *kib, *bytes, scope));
    }
    for (field, error) in ERRORS {
        push(out, &metric::LINK_ERRORS, (link, *error), fields.whole_of(*field, scope));
    }
    for (field, end) in RECOVERIES {
        push(out, &metric::LINK_RECOVERIES, (link, *end), fields.whole_of(*field, scope));
    }
    for (field, rate) in RATES {
        let packed = fields.whole_of(*field, scope);
        push(out, &metric::LINK_BIT_ERRORS, (link, *rate), packed.and_then(bit_error_rate));
    }
}

/// Unpacks four bits of mantissa above eight bits of negated decimal exponent.
fn bit_error_rate(packed: i64) -> Option<f64> {
    let mantissa = u8::try_from(packed >> 8 & 0xf).ok()?;
    let exponent = i32::try_from(packed & 0xff).ok()?;
    Some(f64::from(mantissa) * 10_f64.powi(-exponent))
}

fn chip_link(fields: &Fields, link: ChipLink, scope: u32, out: &mut Vec<WireValue>) {
    let flag = |field| fields.whole_of(field, scope).map(|reported| i64::from(reported != 0));
    let Some(active) = flag(Field::ChipLinkStatus) else { return };
    push(out, &metric::C2C_ACTIVE, link, Some(active));
    let speed = fields.base_of(Field::ChipLinkSpeed, scope).filter(|speed| *speed > 0.0);
    push(out, &metric::C2C_SPEED, link, speed);
    push(out, &metric::C2C_LOW_POWER, link, flag(Field::ChipLinkPower));
    for (field, error) in CHIP_ERRORS {
        push(out, &metric::C2C_ERRORS, (link, *error), fields.whole_of(*field, scope));
    }
}

#[cfg(test)]
mod tests {
    use super::{Tally, bit_error_rate};

    #[test]
    fn a_bit_error_rate_is_unpacked_as_nvml_h_packs_it() {
        let close = |packed: i64, rate: f64| {
            let found = bit_error_rate(packed).unwrap();
            assert!((found / rate - 1.0).abs() < 1e-12, "{found} is not {rate}");
        };
        close(0x30d, 3e-13);
        close(0xfff, 15e-255);
        close(0xf01, 1.5);
        assert_eq!(bit_error_rate(0), Some(0.0));
    }

    #[test]
    fn a_sum_over_links_never_falls() {
        let mut tally = Tally::default();
        let mut sum_of = |reported: [Option<i64>; 2]| {
            (0..).zip(reported).for_each(|(scope, reported)| tally.note(0, scope, reported));
            tally.sum(0)
        };
        assert_eq!(sum_of([None, None]), None);
        assert_eq!(sum_of([Some(5), Some(7)]), Some(12));
        assert_eq!(sum_of([Some(6), None]), Some(13), "one does not tell");
        assert_eq!(sum_of([Some(6), Some(9)]), Some(15), "it goes on where it was");
        assert_eq!(sum_of([Some(2), Some(9)]), Some(17), "one began anew");
    }
}
