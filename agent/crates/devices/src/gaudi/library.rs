//! A device by `libhlml.so`: units are converted to base units here.

use super::Identity;
use super::calls::{Calls, Function};
use super::ports::Ports;
use crate::files::Files;
use crate::sysfs::{MEGA, MILLI, PERCENT};
use crate::throttle::{self, Bit};
use crate::wire::{Outcome, WireValue, push};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::{
    Clock, Limit, MemoryState, Sensor, Task, TemperatureLimit, ThrottleReason,
};
use gpuwho_model::catalog::wear::{self, EccCount, EccError, EccLocation, RetirementCause};
use gpuwho_sys::hlml::{Handle, Hlml, HlmlError};
use std::sync::Arc;

/// Readings between two of what seldom changes: a minute at 10 s, staggered over the devices.
const MEDIUM: u32 = 6;
/// Sensors: of the chip, of its memory (`hlml_temperature_sensors_t`).
const SENSORS: &[(u32, Sensor)] = &[(0, Sensor::Gpu), (3, Sensor::Memory)];
/// Thresholds (`hlml_temperature_thresholds_t`).
const THRESHOLDS: &[(u32, TemperatureLimit)] = &[
    (0, TemperatureLimit::Shutdown),
    (1, TemperatureLimit::Slowdown),
    (2, TemperatureLimit::MemoryOperating),
    (3, TemperatureLimit::Operating),
];
/// The clock of the chip (`HLML_CLOCK_SOC`), the only one that every generation has.
const SOC: u32 = 0;
/// Bits of what keeps the clocks down (`HLML_CLOCKS_THROTTLE_REASON_…`).
pub(crate) const REASONS: &[Bit] = &[(0, ThrottleReason::PowerCap), (1, ThrottleReason::Thermal)];
/// Kinds, counts and places of memory errors by the library's numbers.
const KINDS: [(u32, EccError); 2] = [(0, EccError::Corrected), (1, EccError::Uncorrected)];
const COUNTS: [(u32, EccCount); 2] = [(0, EccCount::Volatile), (1, EccCount::Aggregate)];
const PLACES: [(u32, EccLocation); 2] = [(0, EccLocation::Sram), (1, EccLocation::Dram)];

/// One device of the library.
pub(super) struct ByLibrary {
    hlml: &'static Hlml,
    ports: Arc<Ports>,
    handle: Option<Handle>,
    calls: Calls,
    /// Readings so far.
    turn: u32,
    /// What seldom changes, as last read.
    slow: Vec<WireValue>,
}

/// One reading of a device.
struct Ask<'a> {
    hlml: &'static Hlml,
    handle: Handle,
    calls: &'a mut Calls,
    files: &'a mut Files,
    out: &'a mut Vec<WireValue>,
}

impl ByLibrary {
    pub(super) fn new(hlml: &'static Hlml, ports: Arc<Ports>, index: u32) -> Self {
        let (calls, slow) = (Calls::default(), Vec::new());
        Self { hlml, ports, handle: None, calls, turn: index, slow }
    }

    pub(super) fn identity(&mut self, address: &str, files: &mut Files) -> Identity {
        self.calls.begin();
        let hlml = self.hlml;
        let Some(handle) = self.handle(address, files) else { return Identity::default() };
        let mut ask = |name, body: &dyn Fn() -> Result<String, HlmlError>| {
            self.calls.call(Function(name, 0), files, body)
        };
        Identity {
            uuid: ask("hlml_device_get_uuid", &|| hlml.uuid(handle)),
            model: ask("hlml_device_get_name", &|| hlml.name(handle)),
            serial: ask("hlml_device_get_serial", &|| hlml.serial(handle)),
            driver: ask("hlml_get_driver_version", &|| hlml.driver_version()),
        }
    }

    /// Reads the values; how it ended, unless it is good.
    pub(super) fn values(
        &mut self,
        address: &str,
        files: &mut Files,
        out: &mut Vec<WireValue>,
    ) -> Option<Outcome> {
        self.calls.begin();
        let Some(handle) = self.handle(address, files) else {
            let unlisted = || Outcome::Lost("the library does not list the device".to_owned());
            return Some(self.calls.end().unwrap_or_else(unlisted));
        };
        let is_first = self.slow.is_empty();
        self.turn = self.turn.wrapping_add(1);
        let is_due = is_first || self.turn.is_multiple_of(MEDIUM);
        let (hlml, calls) = (self.hlml, &mut self.calls);
        Ask { hlml, handle, calls, files, out }.fast();
        if is_due {
            self.slow.clear();
            let (calls, out) = (&mut self.calls, &mut self.slow);
            Ask { hlml, handle, calls, files, out }.slow();
        }
        let end = self.calls.end();
        if end.is_some() {
            // A device that comes back has another handle.
            self.handle = None;
            self.slow.clear();
        }
        out.extend(&self.slow);
        self.ports.values(address, out);
        end
    }

    fn handle(&mut self, address: &str, files: &mut Files) -> Option<Handle> {
        if self.handle.is_none() {
            let call = Function("hlml_device_get_handle_by_pci_bus_id", 0);
            self.handle = self.calls.call(call, files, || self.hlml.device(address));
        }
        self.handle
    }
}

impl Ask<'_> {
    fn ask<T>(
        &mut self,
        name: &'static str,
        which: u32,
        body: impl FnOnce(&Hlml, Handle) -> Result<T, HlmlError>,
    ) -> Option<T> {
        let (hlml, handle) = (self.hlml, self.handle);
        self.calls.call(Function(name, which), self.files, || body(hlml, handle))
    }

    /// A whole number that is not all ones.
    fn number(
        &mut self,
        name: &'static str,
        which: u32,
        body: impl FnOnce(&Hlml, Handle) -> Result<u32, HlmlError>,
    ) -> Option<f64> {
        let number = self.ask(name, which, body)?;
        self.files.count_implausible((number != u32::MAX).then(|| f64::from(number)))
    }

    /// A counter that is not all ones.
    fn counter(
        &mut self,
        name: &'static str,
        which: u32,
        body: impl FnOnce(&Hlml, Handle) -> Result<u64, HlmlError>,
    ) -> Option<i64> {
        let number = self.ask(name, which, body)?;
        let is_ones = [u64::MAX, u64::from(u32::MAX)].contains(&number);
        let number = i64::try_from(number).ok().filter(|_| !is_ones);
        self.files.count_implausible(number)
    }

    /// What changes all the time.
    fn fast(&mut self) {
        let busy = self.number("hlml_device_get_utilization_rates", 0, Hlml::utilization);
        let busy = busy.and_then(|percent| {
            self.files.count_implausible((percent <= PERCENT).then_some(percent / PERCENT))
        });
        push(self.out, &metric::UTILIZATION, Task::General, busy);
        self.memory();
        let power = self.number("hlml_device_get_power_usage", 0, Hlml::power);
        push(self.out, &metric::POWER, (), power.map(|milliwatts| milliwatts / MILLI));
        let energy = self.counter("hlml_device_get_total_energy_consumption", 0, Hlml::energy);
        #[expect(clippy::cast_precision_loss, reason = "a double has the joules of years")]
        let energy = energy.map(|millijoules| millijoules as f64 / MILLI);
        push(self.out, &metric::ENERGY, (), energy);
        for (number, sensor) in SENSORS {
            let degrees = self.number("hlml_device_get_temperature", *number, |hlml, device| {
                hlml.temperature(device, *number)
            });
            push(self.out, &metric::TEMPERATURE, *sensor, degrees);
        }
        let clock =
            self.number("hlml_device_get_clock_info", SOC, |hlml, device| hlml.clock(device, SOC));
        push(self.out, &metric::CLOCK_SPEED, Clock::Graphics, clock.map(|mhz| mhz * MEGA));
        let name = "hlml_device_get_current_clocks_throttle_reasons";
        if let Some(bits) = self.ask(name, 0, Hlml::throttle_reasons) {
            for (bit, reason) in REASONS {
                let is_active = i64::from(bits >> bit & 1 == 1);
                push(self.out, &metric::THROTTLE_ACTIVE, *reason, Some(is_active));
            }
            throttle::unknown(bits, REASONS, self.out);
        }
    }

    fn memory(&mut self) {
        let Some([free, total, used]) = self.ask("hlml_device_get_memory_info", 0, Hlml::memory)
        else {
            return;
        };
        let bytes = |count: u64| i64::try_from(count).ok();
        let total = bytes(total).filter(|total| *total > 0);
        push(self.out, &metric::MEMORY_LIMIT, (), self.files.count_implausible(total));
        // The states add up to the limit.
        let parts = total.zip(bytes(used)).and_then(|(total, used)| {
            let rest = total.checked_sub(used).filter(|rest| *rest >= 0)?;
            let reserved = bytes(free).and_then(|free| rest.checked_sub(free));
            Some((used, rest, reserved.filter(|reserved| *reserved >= 0)))
        });
        let Some((used, rest, reserved)) = self.files.count_implausible(parts) else { return };
        push(self.out, &metric::MEMORY_USAGE, MemoryState::Used, Some(used));
        let free = rest - reserved.unwrap_or_default();
        push(self.out, &metric::MEMORY_USAGE, MemoryState::Free, Some(free));
        let reserved = reserved.filter(|reserved| *reserved > 0);
        push(self.out, &metric::MEMORY_USAGE, MemoryState::Reserved, reserved);
    }

    /// What seldom changes.
    fn slow(&mut self) {
        let name = "hlml_device_get_power_management_limit";
        let limit = self.number(name, 0, Hlml::power_limit).filter(|limit| *limit > 0.0);
        push(self.out, &metric::POWER_LIMIT, Limit::Management, limit.map(|limit| limit / MILLI));
        let name = "hlml_device_get_power_management_default_limit";
        let limit = self.number(name, 0, Hlml::default_power_limit).filter(|limit| *limit > 0.0);
        push(self.out, &metric::POWER_LIMIT, Limit::Default, limit.map(|limit| limit / MILLI));
        let most = self.number("hlml_device_get_max_clock_info", SOC, |hlml, device| {
            hlml.highest_clock(device, SOC)
        });
        push(self.out, &metric::CLOCK_LIMIT, Clock::Graphics, most.map(|mhz| mhz * MEGA));
        for (number, limit) in THRESHOLDS {
            let name = "hlml_device_get_temperature_threshold";
            let degrees =
                self.number(name, *number, |hlml, device| hlml.threshold(device, *number));
            // 0: this device has no such threshold.
            let degrees = degrees.filter(|degrees| *degrees > 0.0);
            push(self.out, &metric::TEMPERATURE_LIMIT, *limit, degrees);
        }
        self.errors();
        for (number, cause) in [(0, RetirementCause::Corrected), (1, RetirementCause::Uncorrected)]
        {
            let rows = self.counter("hlml_device_get_replaced_rows", number, |hlml, device| {
                hlml.replaced_rows(device, number).map(u64::from)
            });
            push(self.out, &wear::REMAPPED_ROWS, cause, rows);
        }
        let name = "hlml_device_get_replaced_rows_pending_status";
        let pending = self.ask(name, 0, Hlml::rows_pending);
        push(self.out, &wear::REMAP_PENDING, (), pending.map(|word| i64::from(word != 0)));
        let name = "hlml_device_get_pcie_replay_counter";
        let replays = self.counter(name, 0, |hlml, device| hlml.replays(device).map(u64::from));
        push(self.out, &wear::PCIE_REPLAYS, (), replays);
    }

    fn errors(&mut self) {
        let mode = self.ask("hlml_device_get_ecc_mode", 0, Hlml::ecc_mode);
        let flag = |at: usize| mode.and_then(|mode| Some(i64::from(*mode.get(at)? != 0)));
        push(self.out, &wear::ECC_ENABLED, (), flag(0));
        push(self.out, &wear::ECC_ENABLED_NEXT, (), flag(1));
        for (count_number, count) in COUNTS {
            for (kind_number, kind) in KINDS {
                let which = [kind_number, count_number];
                let name = "hlml_device_get_total_ecc_errors";
                let bits = kind_number | count_number << 1;
                let errors =
                    self.counter(name, bits, |hlml, device| hlml.ecc_errors(device, which));
                push(self.out, &wear::ECC_ERRORS, (kind, count), errors);
                for (place_number, place) in PLACES {
                    let which = [kind_number, count_number, place_number];
                    let name = "hlml_device_get_memory_error_counter";
                    let errors = self.counter(name, bits | place_number << 2, |hlml, device| {
                        hlml.memory_errors(device, which)
                    });
                    let metric = match count {
                        EccCount::Volatile => &wear::ECC_VOLATILE,
                        EccCount::Aggregate => &wear::ECC_AGGREGATE,
                    };
                    push(self.out, metric, (kind, place), errors);
                }
            }
        }
    }
}
