//! Clocks and their throttle reasons.

use super::Of;
use crate::nvidia::caller::{Call, NvmlCaller};
use crate::nvidia::fields::Field;
use crate::throttle;
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::{Clock, ThrottleReason};
use gpuwho_sys::nvml::clocks as raw;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock as NvmlClock, PerformancePolicy};
use nvml_wrapper_sys::bindings::{
    nvmlClocksEventReasonApplicationsClocksSetting, nvmlClocksEventReasonDisplayClockSetting,
    nvmlClocksEventReasonGpuIdle, nvmlClocksEventReasonSwPowerCap,
    nvmlClocksEventReasonSwThermalSlowdown, nvmlClocksEventReasonSyncBoost,
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown, nvmlClocksThrottleReasonHwSlowdown,
    nvmlClocksThrottleReasonHwThermalSlowdown,
};

/// Multiplies MHz.
const MEGA: f64 = 1e6;
/// Nanoseconds of a second.
const NANO: f64 = 1e9;
/// Upper limit of a clock in MHz.
const MAX_MHZ: u32 = 100_000;
/// `nvmlClocksEventReasonBoardLimit`, in `nvml.h` since CUDA 13.1.
const BOARD_LIMIT: u32 = 0x200;
/// `nvmlClocksEventReasonReliability`, likewise.
const RELIABILITY: u32 = 0x400;

/// The bits of the throttle reasons.
pub(crate) const REASONS: &[(u32, ThrottleReason)] = &[
    (nvmlClocksEventReasonGpuIdle.trailing_zeros(), ThrottleReason::Idle),
    (
        nvmlClocksEventReasonApplicationsClocksSetting.trailing_zeros(),
        ThrottleReason::ApplicationClocks,
    ),
    (nvmlClocksEventReasonSwPowerCap.trailing_zeros(), ThrottleReason::PowerCap),
    (nvmlClocksThrottleReasonHwSlowdown.trailing_zeros(), ThrottleReason::HardwareSlowdown),
    (nvmlClocksEventReasonSyncBoost.trailing_zeros(), ThrottleReason::SyncBoost),
    (nvmlClocksEventReasonSwThermalSlowdown.trailing_zeros(), ThrottleReason::SoftwareThermal),
    (nvmlClocksThrottleReasonHwThermalSlowdown.trailing_zeros(), ThrottleReason::HardwareThermal),
    (nvmlClocksThrottleReasonHwPowerBrakeSlowdown.trailing_zeros(), ThrottleReason::PowerBrake),
    (nvmlClocksEventReasonDisplayClockSetting.trailing_zeros(), ThrottleReason::DisplayClocks),
    (BOARD_LIMIT.trailing_zeros(), ThrottleReason::BoardLimit),
    (RELIABILITY.trailing_zeros(), ThrottleReason::Reliability),
];

/// Counters of throttled time.
const TIMES: &[(Field, ThrottleReason)] = &[
    (Field::HeldByPowerCap, ThrottleReason::PowerCap),
    (Field::HeldByThermal, ThrottleReason::Thermal),
    (Field::HeldBySyncBoost, ThrottleReason::SyncBoost),
    (Field::HeldByBoardLimit, ThrottleReason::BoardLimit),
    (Field::HeldByLowUtilization, ThrottleReason::LowUtilization),
    (Field::HeldByReliability, ThrottleReason::Reliability),
    (Field::HeldBySoftwareThermal, ThrottleReason::SoftwareThermal),
    (Field::HeldByHardwareThermal, ThrottleReason::HardwareThermal),
    (Field::HeldByPowerBrake, ThrottleReason::PowerBrake),
];

/// A counter of drivers that lack the field.
type OldTime = (Field, Call, PerformancePolicy, ThrottleReason);

/// The counters of drivers that lack the fields.
const OLD_TIMES: &[OldTime] = &[
    (Field::HeldByPowerCap, Call::HeldPower, PerformancePolicy::Power, ThrottleReason::PowerCap),
    (Field::HeldByThermal, Call::HeldThermal, PerformancePolicy::Thermal, ThrottleReason::Thermal),
    (
        Field::HeldBySyncBoost,
        Call::HeldSyncBoost,
        PerformancePolicy::SyncBoost,
        ThrottleReason::SyncBoost,
    ),
    (
        Field::HeldByBoardLimit,
        Call::HeldBoardLimit,
        PerformancePolicy::BoardLimit,
        ThrottleReason::BoardLimit,
    ),
    (
        Field::HeldByLowUtilization,
        Call::HeldLowUtilization,
        PerformancePolicy::LowUtilization,
        ThrottleReason::LowUtilization,
    ),
    (
        Field::HeldByReliability,
        Call::HeldReliability,
        PerformancePolicy::Reliability,
        ThrottleReason::Reliability,
    ),
];

/// State of a device's clocks between readings.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The throttle reasons that the device supports.
    possible: Option<u64>,
}

impl Clocks {
    /// Reads the current clocks and throttle reasons.
    pub(super) fn read(&mut self, of: Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
        let (device, _) = of;
        speeds(device, caller, out);
        let state = caller.call(Call::PowerState, || device.performance_state());
        // 32 is the library's value for "unknown".
        let state = state.map(|state| i64::from(state.as_c())).filter(|state| *state != 32);
        push(out, &metric::POWER_STATE, (), caller.in_range(state, 0..=15));
        self.reasons(device, caller, out);
        times(of, caller, out);
    }

    fn reasons(&mut self, device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
        if caller.renewed() {
            self.possible = None;
        }
        let query = || raw::supported_event_reasons(device);
        self.possible = self.possible.or_else(|| caller.call(Call::HeldByPossible, query));
        let active = caller.call(Call::HeldBy, || raw::event_reasons(device));
        // All ones would be all reasons at once.
        let Some(active) = caller.in_range(active, 0..=u64::from(u32::MAX >> 1)) else { return };
        // If the device does not report the supported reasons, only active ones are exported,
        // without zeros.
        let possible = self.possible.unwrap_or(active) | active;
        for (bit, reason) in REASONS {
            let bit = 1 << bit;
            if possible & bit != 0 {
                let on = i64::from(active & bit != 0);
                push(out, &metric::THROTTLE_ACTIVE, *reason, Some(on));
            }
        }
        throttle::unknown(active, REASONS, out);
    }
}

fn speeds(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let clocks = [
        (Call::ClockGraphics, NvmlClock::Graphics, Clock::Graphics),
        (Call::ClockSm, NvmlClock::SM, Clock::Sm),
        (Call::ClockMemory, NvmlClock::Memory, Clock::Memory),
        (Call::ClockVideo, NvmlClock::Video, Clock::Video),
    ];
    for (call, clock, dim) in clocks {
        let rate = caller.call(call, || device.clock_info(clock));
        push(out, &metric::CLOCK_SPEED, dim, hertz(caller, rate));
    }
}

fn times((device, fields): Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    for (field, reason) in TIMES {
        push(out, &metric::THROTTLE_TIME, *reason, fields.base(*field));
    }
    for (field, call, policy, reason) in OLD_TIMES {
        if fields.lacks(*field, caller) {
            let time = caller.call(*call, || device.violation_status(*policy));
            let time = time.map(|time| time.violation_time).filter(|time| *time != u64::MAX);
            push(out, &metric::THROTTLE_TIME, *reason, time.map(|time| time as f64 / NANO));
        }
    }
}

/// The maximum clocks.
pub(super) fn highest(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let clocks = [
        (Call::HighestGraphics, NvmlClock::Graphics, Clock::Graphics),
        (Call::HighestSm, NvmlClock::SM, Clock::Sm),
        (Call::HighestMemory, NvmlClock::Memory, Clock::Memory),
        (Call::HighestVideo, NvmlClock::Video, Clock::Video),
    ];
    for (call, clock, dim) in clocks {
        let rate = caller.call(call, || device.max_clock_info(clock));
        push(out, &metric::CLOCK_LIMIT, dim, hertz(caller, rate));
    }
}

/// The clocks set by a user.
pub(super) fn application(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let clocks = [
        (Call::ApplicationGraphics, NvmlClock::Graphics, Clock::Graphics),
        (Call::ApplicationMemory, NvmlClock::Memory, Clock::Memory),
    ];
    for (call, clock, dim) in clocks {
        let rate = caller.call(call, || device.applications_clock(clock));
        push(out, &metric::CLOCK_APPLICATION, dim, hertz(caller, rate));
    }
}

fn hertz(caller: &mut NvmlCaller, megahertz: Option<u32>) -> Option<f64> {
    caller.in_range(megahertz, 0..=MAX_MHZ).map(|rate| f64::from(rate) * MEGA)
}
