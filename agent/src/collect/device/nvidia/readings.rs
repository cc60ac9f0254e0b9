//! What a device reads, call by call, in the catalogue's units.

use super::ask::{Ask, Call, Pace};
use super::fields::{Field, Fields};
use super::kept::Kept;
use crate::catalog::device::{
    self as metric, Clock, Limit, MemoryState, RetirementCause, Sensor, Task, ThrottleReason,
};
use crate::catalog::{Dims, Metric, Number};
use crate::collect::device::wire::WireValue;
use crate::sample::Subject;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock as NvmlClock, TemperatureSensor};

/// Divides a percentage into a fraction.
const PERCENT: f64 = 100.0;
/// Divides milliwatts and millijoules.
const MILLI: f64 = 1000.0;
/// Multiplies MHz.
const MEGA: f64 = 1e6;

/// What is kept of one device between readings.
#[derive(Debug)]
pub(super) struct Readings {
    limits: Kept,
    highest_clocks: Kept,
}

impl Default for Readings {
    fn default() -> Self {
        Self { limits: Kept::new(Pace::Slow), highest_clocks: Kept::new(Pace::Once) }
    }
}

impl Readings {
    /// Reads everything about a device but its processes. Its fields are read already.
    pub(super) fn read(
        &mut self,
        (device, fields): (&Device<'_>, &Fields),
        ask: &mut Ask,
        out: &mut Vec<WireValue>,
    ) {
        push(out, &metric::INFO, (), Some(1));
        utilization(device, ask, out);
        memory(device, ask, out);
        temperature((device, fields), ask, out);
        power((device, fields), ask, out);
        power_limits(fields, out);
        self.limits.read(ask, out, |ask, out| old_power_limits((device, fields), ask, out));
        clocks(device, ask, out);
        self.highest_clocks.read(ask, out, |ask, out| highest_clocks(device, ask, out));
        throttle(fields, out);
        remapped_rows(fields, out);
        let state = ask.ask(Call::PowerState, || device.performance_state());
        // 32 is the library's word for "unknown".
        let state = state.map(|state| i64::from(state.as_c())).filter(|state| *state < 32);
        push(out, &metric::POWER_STATE, (), state);
        let fan = ask.ask(Call::Fan, || device.fan_speed(0));
        push(out, &metric::FAN_SPEED, (), fan.map(fraction));
    }
}

/// Adds a reading, if there is one.
pub(super) fn push<S, D, N>(
    out: &mut Vec<WireValue>,
    metric: &'static Metric<S, D, N>,
    dims: D,
    value: Option<N>,
) where
    S: Into<Subject>,
    D: Dims,
    N: Number,
{
    out.extend(value.and_then(|value| WireValue::new(metric, dims, value)));
}

/// A percentage as a fraction.
pub(super) fn fraction(percent: u32) -> f64 {
    f64::from(percent) / PERCENT
}

/// Bytes as the catalogue's signed number; no device has 8 EiB.
pub(super) fn bytes(count: u64) -> Option<i64> {
    i64::try_from(count).ok()
}

fn utilization(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let rates = ask.ask(Call::Utilization, || device.utilization_rates());
    let gpu = rates.as_ref().map(|rates| fraction(rates.gpu));
    push(out, &metric::UTILIZATION, Task::General, gpu);
    let memory = rates.map(|rates| fraction(rates.memory));
    push(out, &metric::MEMORY_BANDWIDTH_UTILIZATION, (), memory);
    let encoder = ask.ask(Call::Encoder, || device.encoder_utilization());
    push(out, &metric::UTILIZATION, Task::Encoder, encoder.map(|busy| fraction(busy.utilization)));
    let decoder = ask.ask(Call::Decoder, || device.decoder_utilization());
    push(out, &metric::UTILIZATION, Task::Decoder, decoder.map(|busy| fraction(busy.utilization)));
}

fn memory(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let Some(memory) = ask.ask(Call::Memory, || device.memory_info()) else { return };
    push(out, &metric::MEMORY_USAGE, MemoryState::Used, bytes(memory.used));
    push(out, &metric::MEMORY_USAGE, MemoryState::Free, bytes(memory.free));
    push(out, &metric::MEMORY_USAGE, MemoryState::Reserved, bytes(memory.reserved));
    push(out, &metric::MEMORY_LIMIT, (), bytes(memory.total));
}

fn temperature((device, fields): (&Device<'_>, &Fields), ask: &mut Ask, out: &mut Vec<WireValue>) {
    let die = ask.ask(Call::Temperature, || device.temperature(TemperatureSensor::Gpu));
    push(out, &metric::TEMPERATURE, Sensor::Gpu, die.map(f64::from));
    // Boards with GDDR memory answer 0 for a sensor they do not have.
    let memory = fields.base(Field::MemoryTemperature).filter(|degrees| *degrees > 0.0);
    push(out, &metric::TEMPERATURE, Sensor::Memory, memory);
}

fn power((device, fields): (&Device<'_>, &Fields), ask: &mut Ask, out: &mut Vec<WireValue>) {
    let watts = |milliwatts: u32| f64::from(milliwatts) / MILLI;
    let drawn = match fields.lacks(Field::PowerInstant, ask) {
        true => ask.ask(Call::Power, || device.power_usage()).map(watts),
        false => fields.base(Field::PowerInstant),
    };
    push(out, &metric::POWER, (), drawn);
    let energy = match fields.lacks(Field::Energy, ask) {
        true => ask
            .ask(Call::Energy, || device.total_energy_consumption())
            .map(|millijoules| millijoules as f64 / MILLI),
        false => fields.base(Field::Energy),
    };
    push(out, &metric::ENERGY, (), energy);
}

fn power_limits(fields: &Fields, out: &mut Vec<WireValue>) {
    let limits = [
        (Field::PowerLimitRequested, Limit::Management),
        (Field::PowerLimitEnforced, Limit::Enforced),
        (Field::PowerLimitDefault, Limit::Default),
        (Field::PowerLimitMinimum, Limit::Minimum),
        (Field::PowerLimitMaximum, Limit::Maximum),
    ];
    for (field, limit) in limits {
        push(out, &metric::POWER_LIMIT, limit, fields.base(field));
    }
}

/// Of drivers without fields for them.
fn old_power_limits(
    (device, fields): (&Device<'_>, &Fields),
    ask: &mut Ask,
    out: &mut Vec<WireValue>,
) {
    let watts = |milliwatts: u32| f64::from(milliwatts) / MILLI;
    if fields.lacks(Field::PowerLimitRequested, ask) {
        let limit = ask.ask(Call::PowerLimit, || device.power_management_limit());
        push(out, &metric::POWER_LIMIT, Limit::Management, limit.map(watts));
    }
    if fields.lacks(Field::PowerLimitEnforced, ask) {
        let limit = ask.ask(Call::EnforcedLimit, || device.enforced_power_limit());
        push(out, &metric::POWER_LIMIT, Limit::Enforced, limit.map(watts));
    }
}

fn clocks(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let clocks = [
        (Call::ClockGraphics, NvmlClock::Graphics, Clock::Graphics),
        (Call::ClockSm, NvmlClock::SM, Clock::Sm),
        (Call::ClockMemory, NvmlClock::Memory, Clock::Memory),
        (Call::ClockVideo, NvmlClock::Video, Clock::Video),
    ];
    for (call, clock, dim) in clocks {
        let rate = ask.ask(call, || device.clock_info(clock));
        push(out, &metric::CLOCK_SPEED, dim, rate.map(|megahertz| f64::from(megahertz) * MEGA));
    }
}

fn highest_clocks(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let clocks = [
        (Call::HighestGraphics, NvmlClock::Graphics, Clock::Graphics),
        (Call::HighestSm, NvmlClock::SM, Clock::Sm),
        (Call::HighestMemory, NvmlClock::Memory, Clock::Memory),
        (Call::HighestVideo, NvmlClock::Video, Clock::Video),
    ];
    for (call, clock, dim) in clocks {
        let rate = ask.ask(call, || device.max_clock_info(clock));
        push(out, &metric::CLOCK_LIMIT, dim, rate.map(|megahertz| f64::from(megahertz) * MEGA));
    }
}

fn remapped_rows(fields: &Fields, out: &mut Vec<WireValue>) {
    let rows = fields.whole(Field::RemappedCorrected);
    push(out, &metric::REMAPPED_ROWS, RetirementCause::Corrected, rows);
    let rows = fields.whole(Field::RemappedUncorrected);
    push(out, &metric::REMAPPED_ROWS, RetirementCause::Uncorrected, rows);
    push(out, &metric::REMAP_PENDING, (), fields.whole(Field::RemapPending));
    push(out, &metric::REMAP_FAILED, (), fields.whole(Field::RemapFailure));
}

fn throttle(fields: &Fields, out: &mut Vec<WireValue>) {
    let times = [
        (Field::HeldByPowerCap, ThrottleReason::PowerCap),
        (Field::HeldBySyncBoost, ThrottleReason::SyncBoost),
        (Field::HeldByBoardLimit, ThrottleReason::BoardLimit),
        (Field::HeldByLowUtilization, ThrottleReason::LowUtilization),
        (Field::HeldByReliability, ThrottleReason::Reliability),
        (Field::HeldBySoftwareThermal, ThrottleReason::SoftwareThermal),
        (Field::HeldByHardwareThermal, ThrottleReason::HardwareThermal),
        (Field::HeldByPowerBrake, ThrottleReason::PowerBrake),
    ];
    for (field, reason) in times {
        push(out, &metric::THROTTLE_TIME, reason, fields.base(field));
    }
}
