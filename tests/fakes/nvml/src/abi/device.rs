//! What a device is and what it reads.

use super::{Target, exports, on_device, on_target, put, put_text, whole, whole32};
use crate::curve::Curve;
use crate::runtime::Code;
use crate::scenario::{Device, Group};
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlClockId_enum_NVML_CLOCK_ID_APP_CLOCK_TARGET as APPLICATION_CLOCK,
    nvmlClockId_enum_NVML_CLOCK_ID_CURRENT as CURRENT_CLOCK, nvmlClockId_t, nvmlClockType_t,
    nvmlDevice_t, nvmlMarginTemperature_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlPerfPolicyType_t, nvmlPstates_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t, nvmlTemperature_t,
    nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t, nvmlUtilization_t, nvmlViolationTime_t,
};
use std::ffi::{c_char, c_uint, c_ulonglong};

/// Argument version mismatch; nvml-wrapper-sys 0.10 names it, but only as a C enum of its own.
pub(super) const ARGUMENT_VERSION: Code = 25;
/// The period the driver says its utilisation counters cover, in microseconds.
const SAMPLING_PERIOD_US: c_uint = 166_666;

/// Answers one value of a device; without a curve the device does not support it.
fn number(
    name: &str,
    handle: nvmlDevice_t,
    to: *mut c_uint,
    curve: impl FnOnce(&Group) -> Option<&Curve>,
) -> Result<(), Code> {
    on_device(name, handle, |call, device| {
        let curve = curve(device.group).ok_or(NOT_SUPPORTED)?;
        put(to, whole32(device.value(curve, call.seconds)))
    })
}

/// Answers one text of a device.
pub(super) fn text(
    name: &str,
    handle: nvmlDevice_t,
    (to, length): (*mut c_char, c_uint),
    template: impl FnOnce(&Group) -> Option<&String>,
) -> Result<(), Code> {
    on_device(name, handle, |_, device| {
        let template = template(device.group).ok_or(NOT_SUPPORTED)?;
        put_text(to, length, &device.text(template))
    })
}

/// Answers a power limit in milliwatts.
fn milliwatts(
    name: &str,
    handle: nvmlDevice_t,
    to: *mut c_uint,
    limit: impl FnOnce(&Group) -> Option<f64>,
) -> Result<(), Code> {
    on_device(name, handle, |_, device| {
        put(to, whole32(limit(device.group).ok_or(NOT_SUPPORTED)? * 1000.0))
    })
}

/// Answers a set of reasons: those the device knows and whose value passes.
fn reasons(
    name: &str,
    handle: nvmlDevice_t,
    to: *mut c_ulonglong,
    passes: impl Fn(f64) -> bool,
) -> Result<(), Code> {
    on_device(name, handle, |call, device| {
        let known = device.group.held.states();
        let known: Vec<_> =
            known.into_iter().filter_map(|(bit, _, curve)| Some((bit, curve?))).collect();
        if known.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        let passing = known.iter().filter(|(_, curve)| passes(device.value(curve, call.seconds)));
        put(to, passing.map(|(bit, _)| bit).sum())
    })
}

pub(super) fn pci(device: Device<'_>) -> nvmlPciInfo_t {
    // SAFETY: a C structure of integers and bytes, for which all zero is a value.
    let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    let address = device.text(&device.group.pci);
    let hex = |text: &str| c_uint::from_str_radix(text, 16).unwrap_or_default();
    let mut parts = address.split([':', '.']);
    info.domain = parts.next().map_or(0, hex);
    info.bus = parts.next().map_or(0, hex);
    info.device = parts.next().map_or(0, hex);
    fill(&mut info.busId, &address);
    fill(&mut info.busIdLegacy, address.get(4..).unwrap_or_default());
    info
}

/// Copies a text into a zeroed array, leaving at least one zero.
fn fill(to: &mut [c_char], text: &str) {
    let last = to.len() - 1;
    for (place, byte) in to[..last].iter_mut().zip(text.bytes()) {
        *place = byte.cast_signed();
    }
}

fn memory(target: Target<'_>, seconds: f64, version: c_uint) -> nvmlMemory_v2_t {
    let Target { device, instance } = target;
    let memory = instance.map_or(&device.group.memory, |instance| &instance.memory);
    let used = whole(device.value(&memory.used, seconds));
    nvmlMemory_v2_t {
        version,
        total: memory.total,
        reserved: memory.reserved,
        free: memory.total.saturating_sub(memory.reserved + used),
        used,
    }
}

/// A clock rate of now.
fn clock(group: &Group, clock: nvmlClockType_t) -> Option<&Curve> {
    match clock {
        0 => group.clocks.graphics.as_ref(),
        1 => group.clocks.sm.as_ref(),
        2 => group.clocks.memory.as_ref(),
        3 => group.clocks.video.as_ref(),
        _ => None,
    }
}

/// A clock rate that a user set.
fn application_clock(group: &Group, clock: nvmlClockType_t) -> Result<c_uint, Code> {
    let [graphics, memory] = group.clocks.application.ok_or(NOT_SUPPORTED)?;
    match clock {
        0 => Ok(whole32(graphics)),
        2 => Ok(whole32(memory)),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The version word of a structure: its size and its version in one number.
pub(super) fn version_word<T>(version: c_uint) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or_default() | version << 24
}

exports! {
    /// Name; an instance's ends in its profile.
    fn nvmlDeviceGetName(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        on_target(name, device, |_, Target { device, instance }| {
            let profile = instance.map_or(String::new(), |instance| format!(" MIG {}", instance.profile));
            put_text(to, length, &(device.text(&device.group.name) + &profile))
        });
    /// UUID.
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        on_target(name, device, |_, Target { device, instance }| {
            let own = instance.map_or(&device.group.uuid, |instance| &instance.uuid);
            put_text(to, length, &device.text(own))
        });
    /// Serial number.
    fn nvmlDeviceGetSerial(device: nvmlDevice_t, to: *mut c_char, length: c_uint) |name|
        text(name, device, (to, length), |group| group.serial.as_ref());
    /// Index.
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, device.index));
    /// Minor number of the device node: the index.
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, device.index));
    /// PCI address.
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, to: *mut nvmlPciInfo_t) |name|
        on_device(name, device, |_, device| put(to, pci(device)));
    /// Busy percentages of device and memory controller; not with MIG on.
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, to: *mut nvmlUtilization_t) |name|
        on_device(name, device, |call, device| {
            let group = device.group;
            if device.mig() {
                return Err(NOT_SUPPORTED);
            }
            let percent = |curve: &Curve| whole32(device.value(curve, call.seconds));
            let gpu = percent(group.utilization.as_ref().ok_or(NOT_SUPPORTED)?);
            put(to, nvmlUtilization_t { gpu, memory: group.memory_utilization.as_ref().map_or(0, percent) })
        });
    /// Busy percentage of the encoder; not with MIG on.
    fn nvmlDeviceGetEncoderUtilization(device: nvmlDevice_t, to: *mut c_uint, period: *mut c_uint) |name| {
        number(name, device, to, |group| group.encoder.as_ref().filter(|_| group.mig != Some(true)))?;
        put(period, SAMPLING_PERIOD_US)
    };
    /// Busy percentage of the decoder; not with MIG on.
    fn nvmlDeviceGetDecoderUtilization(device: nvmlDevice_t, to: *mut c_uint, period: *mut c_uint) |name| {
        number(name, device, to, |group| group.decoder.as_ref().filter(|_| group.mig != Some(true)))?;
        put(period, SAMPLING_PERIOD_US)
    };
    /// Busy percentage of the JPEG decoder.
    fn nvmlDeviceGetJpgUtilization(device: nvmlDevice_t, to: *mut c_uint, period: *mut c_uint) |name| {
        number(name, device, to, |group| group.jpeg.as_ref().filter(|_| group.mig != Some(true)))?;
        put(period, SAMPLING_PERIOD_US)
    };
    /// Busy percentage of the optical flow accelerator.
    fn nvmlDeviceGetOfaUtilization(device: nvmlDevice_t, to: *mut c_uint, period: *mut c_uint) |name| {
        number(name, device, to, |group| group.optical_flow.as_ref().filter(|_| group.mig != Some(true)))?;
        put(period, SAMPLING_PERIOD_US)
    };
    /// The aperture to device memory.
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, to: *mut nvmlBAR1Memory_t) |name|
        on_device(name, device, |_, device| {
            let [total, used] = device.group.aperture.ok_or(NOT_SUPPORTED)?;
            put(to, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
        });
    /// Degrees left until the device slows down.
    fn nvmlDeviceGetMarginTemperature(device: nvmlDevice_t, to: *mut nvmlMarginTemperature_t) |name|
        on_device(name, device, |call, device| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and by the caller's promise a structure whose version word is set.
            let version = unsafe { (*to).version };
            if version != version_word::<nvmlMarginTemperature_t>(1) {
                return Err(ARGUMENT_VERSION);
            }
            let margin = device.value(device.group.margin.as_ref().ok_or(NOT_SUPPORTED)?, call.seconds);
            #[expect(clippy::cast_possible_truncation, reason = "saturates; margins are small")]
            put(to, nvmlMarginTemperature_t { version, marginTemperature: margin.round() as i32 })
        });
    /// A temperature at which something happens.
    fn nvmlDeviceGetTemperatureThreshold(device: nvmlDevice_t, kind: nvmlTemperatureThresholds_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let limits = device.group.temperature_limits.degrees.ok_or(NOT_SUPPORTED)?;
            put(to, *limits.get(kind as usize).ok_or(NOT_SUPPORTED)?)
        });
    /// The clock rate in MHz that a user set.
    fn nvmlDeviceGetApplicationsClock(device: nvmlDevice_t, clock: nvmlClockType_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| put(to, application_clock(device.group, clock)?));
    /// What holds the clocks down.
    fn nvmlDeviceGetCurrentClocksEventReasons(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        reasons(name, device, to, |value| value > 0.0);
    /// What can hold the clocks down.
    fn nvmlDeviceGetSupportedClocksEventReasons(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        reasons(name, device, to, |_| true);
    /// The first of the two by its old name.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        reasons(name, device, to, |value| value > 0.0);
    /// The second of the two by its old name.
    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        reasons(name, device, to, |_| true);
    /// Time a policy held the clocks down, in nanoseconds.
    fn nvmlDeviceGetViolationStatus(device: nvmlDevice_t, policy: nvmlPerfPolicyType_t, to: *mut nvmlViolationTime_t) |name|
        on_device(name, device, |call, device| {
            let held = &device.group.held;
            let curve = match policy {
                0 => &held.power_cap,
                1 => &held.thermal,
                2 => &held.sync_boost,
                3 => &held.board_limit,
                4 => &held.low_utilization,
                5 => &held.reliability,
                _ => &None,
            };
            let seconds = device.area(curve.as_ref().ok_or(NOT_SUPPORTED)?, call.seconds);
            let reference = whole(call.seconds * 1e6);
            put(to, nvmlViolationTime_t { referenceTime: reference, violationTime: whole(seconds * 1e9) })
        });
    /// Memory: of an instance its own, of a device all.
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut nvmlMemory_v2_t) |name|
        on_target(name, device, |call, target| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and by the caller's promise a structure whose version word is set.
            let version = unsafe { (*to).version };
            if version != version_word::<nvmlMemory_v2_t>(2) {
                return Err(ARGUMENT_VERSION);
            }
            put(to, memory(target, call.seconds, version))
        });
    /// Memory of the first version, in which what is reserved is used.
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, to: *mut nvmlMemory_t) |name|
        on_target(name, device, |call, target| {
            let nvmlMemory_v2_t { total, reserved, free, used, .. } = memory(target, call.seconds, 2);
            put(to, nvmlMemory_t { total, free, used: reserved + used })
        });
    /// Temperature of the die, the only sensor of this call.
    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, to: *mut c_uint) |name| {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        number(name, device, to, |group| group.temperature.as_ref())
    };
    /// The same by its newer name.
    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, to: *mut nvmlTemperature_t) |name|
        on_device(name, device, |call, device| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and by the caller's promise a structure whose first members are set.
            let (version, sensor) = unsafe { ((*to).version, (*to).sensorType) };
            if version != version_word::<nvmlTemperature_t>(1) {
                return Err(ARGUMENT_VERSION);
            }
            if sensor != 0 {
                return Err(INVALID_ARGUMENT);
            }
            let curve = device.group.temperature.as_ref().ok_or(NOT_SUPPORTED)?;
            let degrees = whole32(device.value(curve, call.seconds)).cast_signed();
            put(to, nvmlTemperature_t { version, sensorType: sensor, temperature: degrees })
        });
    /// Power over the last second in milliwatts.
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |call, device| {
            let power = device.group.power.as_ref().ok_or(NOT_SUPPORTED)?;
            put(to, whole32(device.average(power, call.seconds) * 1000.0))
        });
    /// Of boards with one fan, which no scenario has; other exporters call it.
    fn nvmlDeviceGetFanSpeed(device: nvmlDevice_t, _to: *mut c_uint) |name|
        on_device(name, device, |_, _| Err(NOT_SUPPORTED));
    /// The operator's power limit in milliwatts.
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, to: *mut c_uint) |name|
        milliwatts(name, device, to, |group| group.power_limit);
    /// The power limit at the start in milliwatts.
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, to: *mut c_uint) |name|
        milliwatts(name, device, to, |group| Some(group.power_limits.as_ref()?.default));
    /// The lowest and the highest power limit that an operator can set, in milliwatts.
    fn nvmlDeviceGetPowerManagementLimitConstraints(device: nvmlDevice_t, lowest: *mut c_uint, highest: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let limits = device.group.power_limits.as_ref().ok_or(NOT_SUPPORTED)?;
            put(lowest, whole32(limits.minimum * 1000.0))?;
            put(highest, whole32(limits.maximum * 1000.0))
        });
    /// The lowest power limit in milliwatts.
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, to: *mut c_uint) |name|
        milliwatts(name, device, to, Group::enforced_limit);
    /// Energy in millijoules.
    fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, to: *mut c_ulonglong) |name|
        on_device(name, device, |call, device| {
            put(to, whole(device.energy_mj(call.seconds).ok_or(NOT_SUPPORTED)?))
        });
    /// Clock rate in MHz.
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, to: *mut c_uint) |name|
        number(name, device, to, |group| clock(group, kind));
    /// Clock rate in MHz, now or as a user set it; no scenario has the others.
    fn nvmlDeviceGetClock(device: nvmlDevice_t, kind: nvmlClockType_t, id: nvmlClockId_t, to: *mut c_uint) |name|
        on_device(name, device, |call, device| match id {
            CURRENT_CLOCK => {
                let curve = clock(device.group, kind).ok_or(NOT_SUPPORTED)?;
                put(to, whole32(device.value(curve, call.seconds)))
            }
            APPLICATION_CLOCK => put(to, application_clock(device.group, kind)?),
            _ => Err(NOT_SUPPORTED),
        });
    /// The highest clock rate that boost reaches, which no scenario has.
    fn nvmlDeviceGetMaxCustomerBoostClock(device: nvmlDevice_t, _clock: nvmlClockType_t, _to: *mut c_uint) |name|
        on_device(name, device, |_, _| Err(NOT_SUPPORTED));
    /// The highest clock rate in MHz.
    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, clock: nvmlClockType_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| {
            let highest = device.group.clocks.highest.ok_or(NOT_SUPPORTED)?;
            put(to, whole32(*highest.get(clock as usize).ok_or(INVALID_ARGUMENT)?))
        });
    /// Performance state.
    fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, to: *mut nvmlPstates_t) |name|
        on_device(name, device, |_, device| put(to, device.group.power_state.ok_or(NOT_SUPPORTED)?));
    /// How many fans there are.
    fn nvmlDeviceGetNumFans(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |_, device| match device.group.fans.len() {
            0 => Err(NOT_SUPPORTED),
            fans => put(to, u32::try_from(fans).unwrap_or(c_uint::MAX)),
        });
    /// Percentage of a fan.
    fn nvmlDeviceGetFanSpeed_v2(device: nvmlDevice_t, fan: c_uint, to: *mut c_uint) |name|
        on_device(name, device, |call, device| {
            let fans = &device.group.fans;
            let missing = if fans.is_empty() { NOT_SUPPORTED } else { INVALID_ARGUMENT };
            let curve = fans.get(fan as usize).ok_or(missing)?;
            put(to, whole32(device.value(curve, call.seconds)))
        });
}
