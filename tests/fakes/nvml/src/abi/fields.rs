//! Fields by number, in the numbering of the scenario's driver.

use super::wear::carried;
use super::{exports, links, on_device, whole, whole32};
use crate::chance;
use crate::curve::Curve;
use crate::runtime::{Call, Code};
use crate::scenario::Device;
use crate::scenario::driver::renumbered;
use crate::scenario::health::Errors;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN as HELD_BY_POWER_BRAKE,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN as HELD_BY_HW_THERMAL,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP as HELD_BY_POWER_CAP,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN as HELD_BY_SW_THERMAL,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST as HELD_BY_SYNC_BOOST, NVML_FI_DEV_ENERGY as ENERGY,
    NVML_FI_DEV_MEMORY_TEMP as MEMORY_TEMPERATURE, NVML_FI_DEV_PCIE_COUNT_RX_BYTES as PCIE_RX,
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES as PCIE_TX, NVML_FI_DEV_PCIE_REPLAY_COUNTER as PCIE_REPLAYS,
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT as HELD_BY_BOARD_LIMIT,
    NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION as HELD_BY_LOW_UTILIZATION,
    NVML_FI_DEV_PERF_POLICY_RELIABILITY as HELD_BY_RELIABILITY,
    NVML_FI_DEV_PERF_POLICY_THERMAL as HELD_BY_THERMAL, NVML_FI_DEV_POWER_AVERAGE as POWER_AVERAGE,
    NVML_FI_DEV_POWER_CURRENT_LIMIT as POWER_ENFORCED,
    NVML_FI_DEV_POWER_DEFAULT_LIMIT as POWER_DEFAULT, NVML_FI_DEV_POWER_INSTANT as POWER_INSTANT,
    NVML_FI_DEV_POWER_MAX_LIMIT as POWER_MAXIMUM, NVML_FI_DEV_POWER_MIN_LIMIT as POWER_MINIMUM,
    NVML_FI_DEV_POWER_REQUESTED_LIMIT as POWER_REQUESTED, NVML_FI_DEV_REMAPPED_COR as REMAPPED_COR,
    NVML_FI_DEV_REMAPPED_FAILURE as REMAPPED_FAILURE,
    NVML_FI_DEV_REMAPPED_PENDING as REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC as REMAPPED_UNC,
    NVML_FI_DEV_RETIRED_DBE as RETIRED_DBE, NVML_FI_DEV_RETIRED_PENDING as RETIRED_PENDING,
    NVML_FI_DEV_RETIRED_SBE as RETIRED_SBE,
    NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT as MARGIN_OPERATING,
    NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT as MARGIN_MEMORY,
    NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT as MARGIN_SHUTDOWN,
    NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT as MARGIN_SLOWDOWN,
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION as TOTAL_ENERGY,
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT as SIGNED_INT,
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
    I32(i32),
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
    let margin = |place: usize| {
        let margins = group.temperature_limits.margins?;
        Some(Typed::I32(*margins.get(place)?))
    };
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
        HELD_BY_THERMAL => held(&group.held.thermal),
        MARGIN_SHUTDOWN => margin(0),
        MARGIN_SLOWDOWN => margin(1),
        MARGIN_MEMORY => margin(2),
        MARGIN_OPERATING => margin(3),
        REMAPPED_COR => remapped.map(|remapped| count(&remapped.corrected)),
        REMAPPED_UNC => remapped.map(|remapped| count(&remapped.uncorrected)),
        REMAPPED_PENDING => remapped.map(|remapped| count(&remapped.pending)),
        REMAPPED_FAILURE => remapped.map(|remapped| count(&remapped.failure)),
        256..=273 => Some(Typed::U32(POWER_SMOOTHING)),
        _ => worn(id, device, seconds),
    };
    found.ok_or(NOT_SUPPORTED)
}

/// A field of what wears out.
fn worn(id: c_uint, device: Device<'_>, seconds: f64) -> Option<Typed> {
    let group = device.group;
    let count = |curve: &Curve| Typed::U32(whole32(device.value(curve, seconds)));
    let retired = group.retired.as_ref();
    let pcie = group.pcie.as_ref();
    let bytes = |rate: Option<&Curve>| {
        let bytes = carried(device, seconds, rate?);
        // As a counter of 32 bits does.
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        Some(if pcie?.narrow { Typed::U32(bytes as u32) } else { Typed::U64(bytes) })
    };
    match id {
        1 => group.ecc.as_ref().map(|ecc| Typed::U32(u32::from(ecc.enabled[0]))),
        2 => group.ecc.as_ref().map(|ecc| Typed::U32(u32::from(ecc.enabled[1]))),
        3..=28 => errors(id, device, seconds).map(Typed::U64),
        RETIRED_SBE => retired.map(|retired| count(&retired.corrected)),
        RETIRED_DBE => retired.map(|retired| count(&retired.uncorrected)),
        RETIRED_PENDING => retired.map(|retired| count(&retired.pending)),
        PCIE_REPLAYS => pcie.and_then(|pcie| pcie.replays.as_ref()).map(count),
        PCIE_TX => bytes(pcie.and_then(|pcie| pcie.transmit.as_ref())),
        PCIE_RX => bytes(pcie.and_then(|pcie| pcie.receive.as_ref())),
        _ => {
            let (_, word) = PCIE_ERRORS.iter().find(|(number, _)| *number == id)?;
            pcie.and_then(|pcie| pcie.errors.get(*word)).map(count)
        }
    }
}

/// The PCIe errors' numbers and the scenario's words for them.
const PCIE_ERRORS: [(u32, &str); 13] = [
    (95, "replay_rollover"),
    (169, "recovery"),
    (173, "correctable"),
    (174, "nak_received"),
    (175, "receiver"),
    (176, "bad_tlp"),
    (177, "nak_sent"),
    (178, "bad_dllp"),
    (179, "non_fatal"),
    (180, "fatal"),
    (181, "unsupported_request"),
    (182, "lcrc"),
    (183, "lane"),
];

/// The ECC counters, 3 to 28 in the order of `nvml.h`.
fn errors(id: c_uint, device: Device<'_>, seconds: f64) -> Option<u64> {
    let ecc = device.group.ecc.as_ref()?;
    let of = |memory: &Option<Errors>, counter: usize, kind: usize| {
        Some(device.errors(memory.as_ref()?, seconds)[counter][kind])
    };
    let sum = |counter: usize, kind: usize| {
        let all = ecc.memories().map(|memory| device.errors(memory, seconds)[counter][kind]);
        Some(all.sum())
    };
    let memories = [&ecc.l1, &ecc.l2, &ecc.dram, &ecc.registers, &ecc.texture];
    let place = |first: u32| (((id - first) / 2) as usize, ((id - first) % 2) as usize);
    match id {
        3..=6 => sum(place(3).0, place(3).1),
        7..=16 => of(memories[place(7).0], 0, place(7).1),
        17 => of(&ecc.barrier, 0, 1),
        18..=27 => of(memories[place(18).0], 1, place(18).1),
        28 => of(&ecc.barrier, 1, 1),
        _ => None,
    }
}

/// Answers one field in place; each has its own return code.
fn answer(field: &mut nvmlFieldValue_t, call: &Call, device: Device<'_>) {
    let id = bindings_number(field.fieldId, renumbered(&call.loaded.library));
    let failure = call.field_failure(field.fieldId, device.index);
    let found = failure.map_or_else(|| value(id, field.scopeId, device, call.seconds), Err);
    (field.nvmlReturn, field.valueType, field.value) = match found {
        Ok(Typed::U32(value)) => (0, UNSIGNED_INT, nvmlValue_t { uiVal: value }),
        Ok(Typed::U64(value)) => (0, UNSIGNED_LONG_LONG, nvmlValue_t { ullVal: value }),
        Ok(Typed::I32(value)) => (0, SIGNED_INT, nvmlValue_t { siVal: value }),
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
