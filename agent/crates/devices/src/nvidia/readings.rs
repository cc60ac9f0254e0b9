//! The readings of a device, call by call, in the catalogue's units.
//!
//! Implausible values (all ones, more than 100 %, 300 °C) are counted and left out: drivers return
//! them from registers that do not answer.

pub(crate) mod clocks;
mod ecc;
mod pcie;
mod power;
mod thermal;

use super::cached::CachedReadings;
use super::caller::{Call, NvmlCaller, PollEvery};
use super::fields::Fields;
use crate::wire::{WireValue, push};
use clocks::Clocks;
use gpuwho_model::catalog::device::{self as metric, ApertureState, Fan, MemoryState, Task};
use gpuwho_sys::nvml::engines;
use nvml_wrapper::Device;

/// Divides a percentage into a fraction.
const PERCENT: f64 = 100.0;
/// No device has a pebibyte.
const MAX_BYTES: i64 = 1 << 50;
/// Fans may run above their nominal speed.
const MAX_FAN_PERCENT: u32 = 200;

/// The sources of readings: calls about the device, and its fields, which are already read.
type Of<'a> = (&'a Device<'a>, &'a Fields);

/// State of one device between readings.
#[derive(Debug)]
pub(super) struct Readings {
    clocks: Clocks,
    /// Number of fans, if the driver reports it.
    fans: Option<u32>,
    /// Whether its bus is a PCIe link.
    has_link: bool,
    /// Values that never change.
    once: CachedReadings,
    /// Values that rarely change.
    slow: CachedReadings,
    /// Counters that may be a minute late.
    medium: CachedReadings,
}

impl Default for Readings {
    fn default() -> Self {
        Self {
            clocks: Clocks::default(),
            fans: None,
            has_link: true,
            once: CachedReadings::new(PollEvery::Once),
            slow: CachedReadings::new(PollEvery::Slow),
            medium: CachedReadings::new(PollEvery::Medium),
        }
    }
}

impl Readings {
    /// Reads everything about a device except its processes.
    pub(super) fn read(&mut self, of: Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
        let device = of.0;
        push(out, &metric::INFO, (), Some(1));
        utilization(device, caller, out);
        memory(device, caller, out);
        thermal::read(of, caller, out);
        power::read(of, caller, out);
        self.clocks.read(of, caller, out);
        let has_link = &mut self.has_link;
        self.once.read(caller, out, |caller, out| {
            clocks::highest(device, caller, out);
            *has_link = pcie::highest(device, caller, out);
        });
        pcie::read(of, self.has_link, caller, out);
        ecc::read(of, caller, out);
        self.slow.read(caller, out, |caller, out| {
            power::old_limits(of, caller, out);
            thermal::thresholds(device, caller, out);
            clocks::application(device, caller, out);
            aperture(device, caller, out);
            ecc::old_mode(of, caller, out);
            ecc::spare_rows(device, caller, out);
        });
        self.medium.read(caller, out, |caller, out| ecc::sram(device, caller, out));
        self.fans(device, caller, out);
    }

    /// Each fan; only the first if the driver does not report how many there are.
    fn fans(&mut self, device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
        if self.fans.is_none() {
            self.fans = caller.call(Call::Fans, || device.num_fans());
        }
        for (number, &fan) in (0..self.fans.unwrap_or(1)).zip(Fan::ALL) {
            let speed = caller.call(Call::Fan, || device.fan_speed(number));
            push(
                out,
                &metric::FAN_SPEED,
                fan,
                caller.in_range(speed, 0..=MAX_FAN_PERCENT).map(fraction),
            );
        }
    }
}

/// A percentage as a fraction.
pub(super) fn fraction(percent: u32) -> f64 {
    f64::from(percent) / PERCENT
}

/// Bytes as the catalogue's signed number; no device has 8 EiB.
pub(super) fn bytes(count: u64) -> Option<i64> {
    i64::try_from(count).ok()
}

/// A percentage as a fraction, if it is at most 100.
fn percentage(caller: &mut NvmlCaller, percent: Option<u32>) -> Option<f64> {
    caller.in_range(percent, 0..=100).map(fraction)
}

fn utilization(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let rates = caller.call(Call::Utilization, || device.utilization_rates());
    let memory = percentage(caller, rates.as_ref().map(|rates| rates.memory));
    push(out, &metric::MEMORY_BANDWIDTH_UTILIZATION, (), memory);
    let encoder = caller.call(Call::Encoder, || device.encoder_utilization());
    let decoder = caller.call(Call::Decoder, || device.decoder_utilization());
    let engines = [
        (Task::General, rates.map(|rates| rates.gpu)),
        (Task::Encoder, encoder.map(|busy| busy.utilization)),
        (Task::Decoder, decoder.map(|busy| busy.utilization)),
        (Task::Jpeg, caller.call(Call::Jpeg, || engines::jpeg_utilization(device))),
        (Task::OpticalFlow, caller.call(Call::OpticalFlow, || engines::ofa_utilization(device))),
    ];
    for (task, percent) in engines {
        push(out, &metric::UTILIZATION, task, percentage(caller, percent));
    }
}

fn memory(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let memory = caller.call(Call::Memory, || device.memory_info());
    let total =
        caller.in_range(memory.as_ref().and_then(|memory| bytes(memory.total)), 1..=MAX_BYTES);
    let (Some(memory), Some(total)) = (memory, total) else { return };
    let parts = [
        (MemoryState::Used, memory.used),
        (MemoryState::Free, memory.free),
        (MemoryState::Reserved, memory.reserved),
    ];
    for (state, part) in parts {
        push(out, &metric::MEMORY_USAGE, state, caller.in_range(bytes(part), 0..=total));
    }
    push(out, &metric::MEMORY_LIMIT, (), Some(total));
}

fn aperture(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let Some(aperture) = caller.call(Call::Aperture, || device.bar1_memory_info()) else { return };
    let Some(total) = caller.in_range(bytes(aperture.total), 1..=MAX_BYTES) else { return };
    for (state, part) in
        [(ApertureState::Used, aperture.used), (ApertureState::Free, aperture.free)]
    {
        push(out, &metric::APERTURE_USAGE, state, caller.in_range(bytes(part), 0..=total));
    }
    push(out, &metric::APERTURE_LIMIT, (), Some(total));
}
