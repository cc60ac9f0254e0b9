//! What a device reads, call by call, in the catalogue's units.

use super::ask::{Ask, Call};
use crate::catalog::device::{self as metric, Clock, Limit, MemoryState, Sensor, Task};
use crate::catalog::{Dims, Metric, Number};
use crate::collect::device::wire::WireValue;
use crate::sample::Subject;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock as NvmlClock, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

/// `NVML_FI_DEV_MEMORY_TEMP`; below the numbers that driver 580.82 gave new meanings.
const FIELD_MEMORY_TEMPERATURE: FieldId = FieldId(82);
/// Divides a percentage into a fraction.
const PERCENT: f64 = 100.0;
/// Divides milliwatts and millijoules.
const MILLI: f64 = 1000.0;
/// Multiplies MHz.
const MEGA: f64 = 1e6;

/// Reads everything about a device but its processes.
pub(super) fn read(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    push(out, &metric::INFO, (), Some(1));
    utilization(device, ask, out);
    memory(device, ask, out);
    temperature(device, ask, out);
    power(device, ask, out);
    clocks(device, ask, out);
    let state = ask.ask(Call::PowerState, || device.performance_state());
    // 32 is the library's word for "unknown".
    let state = state.map(|state| i64::from(state.as_c())).filter(|state| *state < 32);
    push(out, &metric::POWER_STATE, (), state);
    let fan = ask.ask(Call::Fan, || device.fan_speed(0));
    push(out, &metric::FAN_SPEED, (), fan.map(fraction));
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

fn temperature(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let die = ask.ask(Call::Temperature, || device.temperature(TemperatureSensor::Gpu));
    push(out, &metric::TEMPERATURE, Sensor::Gpu, die.map(f64::from));
    let memory = ask.ask(Call::MemoryTemperature, || memory_temperature(device));
    // Boards with GDDR memory answer 0 for a sensor they do not have.
    let memory = memory.filter(|degrees| *degrees > 0.0);
    push(out, &metric::TEMPERATURE, Sensor::Memory, memory);
}

fn memory_temperature(device: &Device<'_>) -> Result<f64, NvmlError> {
    let fields = device.field_values_for(&[FIELD_MEMORY_TEMPERATURE])?;
    let field = fields.into_iter().next().ok_or(NvmlError::NoData)??;
    match field.value? {
        SampleValue::U32(degrees) => Ok(f64::from(degrees)),
        _ => Err(NvmlError::NotSupported),
    }
}

fn power(device: &Device<'_>, ask: &mut Ask, out: &mut Vec<WireValue>) {
    let watts = |milliwatts: u32| f64::from(milliwatts) / MILLI;
    let drawn = ask.ask(Call::Power, || device.power_usage());
    push(out, &metric::POWER, (), drawn.map(watts));
    let limit = ask.ask(Call::PowerLimit, || device.power_management_limit());
    push(out, &metric::POWER_LIMIT, Limit::Management, limit.map(watts));
    let limit = ask.ask(Call::EnforcedLimit, || device.enforced_power_limit());
    push(out, &metric::POWER_LIMIT, Limit::Enforced, limit.map(watts));
    let energy = ask.ask(Call::Energy, || device.total_energy_consumption());
    push(out, &metric::ENERGY, (), energy.map(|millijoules| millijoules as f64 / MILLI));
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
