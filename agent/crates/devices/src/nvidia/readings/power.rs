//! Power, its limits, and energy.

use super::Of;
use crate::nvidia::caller::{Call, NvmlCaller};
use crate::nvidia::fields::{Field, MODULE};
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::Limit;
use std::ops::RangeInclusive;

/// Divides milliwatts and millijoules.
const MILLI: f64 = 1000.0;
/// Upper limit for a board; a whole rack has 120 kW.
const WATTS: RangeInclusive<f64> = 0.0..=20_000.0;

/// Reads power, energy and the limits.
pub(super) fn read((device, fields): Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let drawn = if fields.lacks(Field::PowerInstant, caller) {
        caller.call(Call::Power, || device.power_usage()).map(watts)
    } else {
        fields.base(Field::PowerInstant)
    };
    push(out, &metric::POWER, (), caller.in_range(drawn, WATTS));
    let average = caller.in_range(fields.base(Field::PowerAverage), WATTS);
    push(out, &metric::POWER_AVERAGE, (), average);
    let module = caller.in_range(fields.base_of(Field::PowerInstant, MODULE), WATTS);
    push(out, &metric::MODULE_POWER, (), module);
    let energy = if fields.lacks(Field::Energy, caller) {
        let millijoules = caller.call(Call::Energy, || device.total_energy_consumption());
        millijoules.filter(|millijoules| *millijoules != u64::MAX).map(|all| all as f64 / MILLI)
    } else {
        fields.base(Field::Energy)
    };
    push(out, &metric::ENERGY, (), energy);
    let limits = [
        (Field::PowerLimitRequested, Limit::Management),
        (Field::PowerLimitEnforced, Limit::Enforced),
        (Field::PowerLimitDefault, Limit::Default),
        (Field::PowerLimitMinimum, Limit::Minimum),
        (Field::PowerLimitMaximum, Limit::Maximum),
    ];
    for (field, limit) in limits {
        push(out, &metric::POWER_LIMIT, limit, caller.in_range(fields.base(field), WATTS));
    }
}

/// The limits, for drivers without the fields.
pub(super) fn old_limits(
    (device, fields): Of<'_>,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) {
    if fields.lacks(Field::PowerLimitRequested, caller) {
        let limit = caller.call(Call::PowerLimit, || device.power_management_limit()).map(watts);
        push(out, &metric::POWER_LIMIT, Limit::Management, caller.in_range(limit, WATTS));
    }
    if fields.lacks(Field::PowerLimitEnforced, caller) {
        let limit = caller.call(Call::EnforcedLimit, || device.enforced_power_limit()).map(watts);
        push(out, &metric::POWER_LIMIT, Limit::Enforced, caller.in_range(limit, WATTS));
    }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / MILLI
}
