//! Temperatures and their limits.

use super::Of;
use crate::nvidia::caller::{Call, NvmlCaller};
use crate::nvidia::fields::Field;
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::{Sensor, TemperatureLimit};
use gpuwho_sys::nvml::clocks;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{TemperatureSensor, TemperatureThreshold};
use std::ops::RangeInclusive;

/// A running device is above the freezing point, and shuts down long before the upper bound.
const CELSIUS: RangeInclusive<f64> = 1.0..=200.0;
/// Plausible margins to a limit.
const MARGIN: RangeInclusive<f64> = -200.0..=200.0;

/// Reads the temperatures.
pub(super) fn read((device, fields): Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let die = caller.call(Call::Temperature, || device.temperature(TemperatureSensor::Gpu));
    let die = caller.in_range(die.map(f64::from), CELSIUS);
    push(out, &metric::TEMPERATURE, Sensor::Gpu, die);
    // Boards with GDDR memory answer 0 for a sensor they do not have.
    let memory = fields.base(Field::MemoryTemperature).filter(|degrees| *degrees > 0.0);
    push(out, &metric::TEMPERATURE, Sensor::Memory, caller.in_range(memory, CELSIUS));
    let margin = caller.call(Call::Margin, || clocks::margin_temperature(device));
    let margin = caller.in_range(margin.map(f64::from), MARGIN);
    push(out, &metric::TEMPERATURE_MARGIN, (), margin);
    let limits = [
        (Field::MarginShutdown, TemperatureLimit::Shutdown),
        (Field::MarginSlowdown, TemperatureLimit::Slowdown),
        (Field::MarginOperating, TemperatureLimit::Operating),
        (Field::MarginMemory, TemperatureLimit::MemoryOperating),
    ];
    for (field, limit) in limits {
        let margin = caller.in_range(fields.base(field), MARGIN);
        push(out, &metric::TEMPERATURE_MARGIN_LIMIT, limit, margin);
    }
}

/// The limits as temperatures.
pub(super) fn thresholds(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    use TemperatureThreshold as Threshold;
    let limits = [
        (Call::ThresholdShutdown, Threshold::Shutdown, TemperatureLimit::Shutdown),
        (Call::ThresholdSlowdown, Threshold::Slowdown, TemperatureLimit::Slowdown),
        (Call::ThresholdOperating, Threshold::GpuMax, TemperatureLimit::Operating),
        (Call::ThresholdMemory, Threshold::MemoryMax, TemperatureLimit::MemoryOperating),
    ];
    for (call, threshold, limit) in limits {
        let degrees = caller.call(call, || device.temperature_threshold(threshold));
        let degrees = caller.in_range(degrees.map(f64::from), CELSIUS);
        push(out, &metric::TEMPERATURE_LIMIT, limit, degrees);
    }
}
