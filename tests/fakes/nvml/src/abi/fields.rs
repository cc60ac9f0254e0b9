//! Fields by number, in the numbering of the scenario's driver.

use super::{exports, links, on_device, whole, whole32};
use crate::chance;
use crate::curve::Curve;
use crate::runtime::{Call, Code};
use crate::scenario::Device;
use crate::scenario::driver::renumbered;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN as HELD_BY_POWER_BRAKE,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN as HELD_BY_HW_THERMAL,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP as HELD_BY_POWER_CAP,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN as HELD_BY_SW_THERMAL,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST as HELD_BY_SYNC_BOOST, NVML_FI_DEV_ENERGY as ENERGY,
    NVML_FI_DEV_MEMORY_TEMP as MEMORY_TEMPERATURE,
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT as HELD_BY_BOARD_LIMIT,
    NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION as HELD_BY_LOW_UTILIZATION,
    NVML_FI_DEV_PERF_POLICY_RELIABILITY as HELD_BY_RELIABILITY,
    NVML_FI_DEV_POWER_AVERAGE as POWER_AVERAGE, NVML_FI_DEV_POWER_CURRENT_LIMIT as POWER_ENFORCED,
    NVML_FI_DEV_POWER_DEFAULT_LIMIT as POWER_DEFAULT, NVML_FI_DEV_POWER_INSTANT as POWER_INSTANT,
    NVML_FI_DEV_POWER_MAX_LIMIT as POWER_MAXIMUM, NVML_FI_DEV_POWER_MIN_LIMIT as POWER_MINIMUM,
    NVML_FI_DEV_POWER_REQUESTED_LIMIT as POWER_REQUESTED, NVML_FI_DEV_REMAPPED_COR as REMAPPED_COR,
    NVML_FI_DEV_REMAPPED_FAILURE as REMAPPED_FAILURE,
    NVML_FI_DEV_REMAPPED_PENDING as REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC as REMAPPED_UNC,
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION as TOTAL_ENERGY,
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};
use std::ffi::{c_int, c_uint};

/// What the power smoothing fields say, so that who asks for one by a number of the other numbering
/// gets a value that is wrong.
const POWER_SMOOTHING: u32 = 4242;

/// A value and its type.
#[derive(Clone, Copy)]
pub(super) enum Typed {
    U32(u32),
    U64(u64),
}

/// The number that the bindings' header, which is older, has for a field of this driver.
fn bindings_number(id: c_uint, renumbered: bool) -> c_uint {
    match id {
        251..=268 if renumbered => id + 5,
        269..=273 if renumbered => id - 18,
        _ => id,
    }
}

/// A field of a device, by the bindings' number.
fn value(id: c_uint, scope: c_uint, device: Device<'_>, seconds: f64) -> Result<Typed, Code> {
    if let Some(answer) = links::answer((id, scope), device, seconds) {
        return answer;
    }
    let group = device.group;
    let milliwatts = |watts: f64| Typed::U32(whole32(watts * 1000.0));
    let power = match scope {
        0 => group.power.as_ref(),
        1 => group.module_power.as_ref(),
        _ => None,
    };
    let limits = group.power_limits.as_ref();
    let held = |curve: &Option<Curve>| {
        curve.as_ref().map(|curve| Typed::U64(whole(device.area(curve, seconds) * 1e9)))
    };
    let remapped = group.remapped.as_ref();
    let count = |curve: &Curve| Typed::U32(whole32(device.value(curve, seconds)));
    let found = match id {
        MEMORY_TEMPERATURE => group.memory_temperature.as_ref().map(count),
        ENERGY | TOTAL_ENERGY => device.energy_mj(seconds).map(|energy| Typed::U64(whole(energy))),
        POWER_AVERAGE => power.map(|curve| milliwatts(device.average(curve, seconds))),
        POWER_INSTANT => power.map(|curve| milliwatts(device.value(curve, seconds))),
        POWER_REQUESTED => group.power_limit.map(milliwatts),
        POWER_ENFORCED => group.enforced_limit().map(milliwatts),
        POWER_DEFAULT => limits.map(|limits| milliwatts(limits.default)),
        POWER_MINIMUM => limits.map(|limits| milliwatts(limits.minimum)),
        POWER_MAXIMUM => limits.map(|limits| milliwatts(limits.maximum)),
        HELD_BY_POWER_CAP => held(&group.held.power_cap),
        HELD_BY_SYNC_BOOST => held(&group.held.sync_boost),
        HELD_BY_BOARD_LIMIT => held(&group.held.board_limit),
        HELD_BY_LOW_UTILIZATION => held(&group.held.low_utilization),
        HELD_BY_RELIABILITY => held(&group.held.reliability),
        HELD_BY_SW_THERMAL => held(&group.held.software_thermal),
        HELD_BY_HW_THERMAL => held(&group.held.hardware_thermal),
        HELD_BY_POWER_BRAKE => held(&group.held.power_brake),
        REMAPPED_COR => remapped.map(|remapped| count(&remapped.corrected)),
        REMAPPED_UNC => remapped.map(|remapped| count(&remapped.uncorrected)),
        REMAPPED_PENDING => remapped.map(|remapped| count(&remapped.pending)),
        REMAPPED_FAILURE => remapped.map(|remapped| count(&remapped.failure)),
        256..=273 => Some(Typed::U32(POWER_SMOOTHING)),
        _ => None,
    };
    found.ok_or(NOT_SUPPORTED)
}

/// Answers one field in place; each has its own return code.
fn answer(field: &mut nvmlFieldValue_t, call: &Call, device: Device<'_>) {
    let id = bindings_number(field.fieldId, renumbered(&call.loaded.library));
    let failure = call.field_failure(field.fieldId, device.index);
    let found = failure.map_or_else(|| value(id, field.scopeId, device, call.seconds), Err);
    (field.nvmlReturn, field.valueType, field.value) = match found {
        Ok(Typed::U32(value)) => (0, UNSIGNED_INT, nvmlValue_t { uiVal: value }),
        Ok(Typed::U64(value)) => (0, UNSIGNED_LONG_LONG, nvmlValue_t { ullVal: value }),
        Err(code) => (code, UNSIGNED_INT, field.value),
    };
}

exports! {
    /// Fields by number.
    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) |name|
        on_device(name, device, |call, device| {
            let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
            if values.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and `count` fields long by the caller's promise.
            for field in unsafe { std::slice::from_raw_parts_mut(values, count) } {
                answer(field, call, device);
                let bytes = std::ptr::from_mut(field).cast::<u8>();
                // SAFETY: a field's own bytes; it is made of integers, of which any bytes are one.
                chance::spoil(unsafe { std::slice::from_raw_parts_mut(bytes, size_of_val(field)) });
            }
            Ok(())
        });
}
