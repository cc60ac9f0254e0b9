//! Drops values that no device can have: a driver that returns nonsense has failed, and a missing
//! value is better than a wrong one. The bounds are by quantity, and for power by vendor: beyond any real
//! hardware, and below what a torn table or a unit of a thousand times another gives. What a device says of
//! itself is a bound too: its power limit, its memory, its counter of energy that jumps or stands still.

use super::wire::{Outcome, Reading, WireValue};
use gpuwho_model::catalog::device::{self as metric, Limit};
use gpuwho_model::catalog::process::{self, ProcessType};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::sample::Value;
use gpuwho_model::status::Report;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Bounds of gauges by unit, for those without a row below. Fractions may be slightly over one, because two
/// clocks are involved. GDDR7 of 32 Gbit/s has the fastest clock, told as 16 GHz.
const LEVELS: &[(&str, RangeInclusive<f64>)] =
    &[("1", 0.0..=2.0), ("Cel", -200.0..=200.0), ("Hz", 0.0..=4e10), ("By", 0.0..=1e16)];
/// Bounds of a quantity. Of temperatures: chips, memories and regulators shut down below 150 °C (the limits
/// that NVIDIA, AMD and tt-kmd tell are 90 to 120, a regulator's own protection is 160). Of memory: 16 TiB, of
/// which the largest devices have a sixteenth with the host's (GB300: 0.8 TB).
static BOUNDS: &[(&MetricDef, RangeInclusive<f64>)] = &[
    (metric::TEMPERATURE.def(), -50.0..=200.0),
    (metric::TEMPERATURE_LIMIT.def(), -50.0..=200.0),
    (metric::MEMORY_USAGE.def(), 0.0..=1.8e13),
    (metric::MEMORY_LIMIT.def(), 0.0..=1.8e13),
    (process::MEMORY_USAGE.def(), 0.0..=1.8e13),
    (metric::MODULE_POWER.def(), 0.0..=10_000.0),
];
/// The most that a device of a vendor draws, in watts: at least twice the most of any board that its data
/// sheets name (Intel Max 1550: 600, Gaudi HL-325L: 900, Tenstorrent p300: 600).
const POWERS: &[(&str, f64)] = &[("intel", 1500.0), ("gaudi", 2500.0), ("tenstorrent", 1500.0)];
/// The same of the others (NVIDIA GB300 and AMD MI355X: 1,400).
const ANY_POWER: f64 = 5000.0;
/// Peaks of milliseconds are less than twice the limit of a board.
const OVER_LIMIT: f64 = 3.0;
/// A counter of energy that has not moved for so long counts nothing: no device draws less than a joule.
const STILL_NS: u64 = 60_000_000_000;
/// How late a step of such a counter may come, in seconds.
const LATE: f64 = 2.0;

/// The checks of one reader's devices.
#[derive(Debug)]
pub(super) struct Checks {
    /// The most that a device draws.
    watts: f64,
    /// By position in the library's order.
    counters: BTreeMap<u32, EnergyCounter>,
}

/// What is known of a device's counter of energy, in joules and nanoseconds of the boot clock.
#[derive(Debug, Default)]
struct EnergyCounter {
    last: Option<(f64, u64)>,
    /// Since when it is what it was last.
    still_since: u64,
    /// A value that did not follow from the last one: if the next one follows from it, it was none.
    unlikely: Option<(f64, u64)>,
}

impl Checks {
    /// Of the devices of a vendor.
    pub(super) fn of(vendor: &str) -> Self {
        let row = POWERS.iter().find(|(known, _)| *known == vendor);
        Self { watts: row.map_or(ANY_POWER, |(_, watts)| *watts), counters: BTreeMap::new() }
    }

    /// Drops implausible values from a device's reading and counts them with those that the child dropped.
    pub(super) fn keep(&mut self, slot: u32, reading: &mut Reading, report: &mut Report) {
        let limit = |value: &WireValue| {
            Limit::ALL.iter().find_map(|kind| value.double(&metric::POWER_LIMIT, *kind))
        };
        let limits = reading.values.iter().filter_map(limit);
        let limit = limits.filter(|watts| (1.0..=self.watts).contains(watts)).reduce(f64::max);
        let most = limit.map_or(self.watts, |limit| self.watts.min(limit * OVER_LIMIT));
        let mut removed = 0_u32;
        let mut can_be = |value: &WireValue| {
            let can_be = is_plausible(value, most);
            removed += u32::from(!can_be);
            can_be
        };
        reading.values.retain(&mut can_be);
        for instance in &mut reading.instances {
            instance.values.retain(&mut can_be);
        }
        reading.processes.retain(|process| can_be(&process.value));
        removed += larger_than_the_device(reading);
        removed += self.energy(slot, reading);
        report.count(0, removed);
    }

    /// Drops a value of the counter of energy that nothing could have drawn, and one of a counter that stands
    /// still.
    fn energy(&mut self, slot: u32, reading: &mut Reading) -> u32 {
        let value = reading.values.iter().find_map(|value| value.double(&metric::ENERGY, ()));
        let Some(joules) = value.filter(|_| reading.outcome == Outcome::Ok) else { return 0 };
        let counter = self.counters.entry(slot).or_default();
        let Err(is_still) = counter.take(joules, reading.asked_ns, self.watts) else { return 0 };
        reading.values.retain(|value| value.double(&metric::ENERGY, ()).is_none());
        if is_still {
            let text = format!("device {slot}'s energy counter stands still: no energy");
            add_note(&mut reading.note, &text);
        }
        u32::from(!is_still)
    }
}

impl EnergyCounter {
    /// Takes a value; an error if it cannot be, or (true) if the counter stands still.
    fn take(&mut self, joules: f64, now_ns: u64, watts: f64) -> Result<(), bool> {
        let since = |then_ns| now_ns.saturating_sub(then_ns);
        let follows = |(then, then_ns): (f64, u64)| {
            let seconds = Duration::from_nanos(since(then_ns)).as_secs_f64();
            (then..=then + watts * (seconds + LATE)).contains(&joules)
        };
        let now = (joules, now_ns);
        let is_likely = self.last.is_none_or(follows) || self.unlikely.is_some_and(follows);
        self.unlikely = (!is_likely).then_some(now);
        if !is_likely {
            return Err(false);
        }
        // A device that slept counted nothing.
        #[expect(clippy::float_cmp, reason = "whether the file or the call said the same")]
        let is_same = |(then, at): (f64, u64)| then == joules && since(at) <= 2 * STILL_NS;
        if !self.last.replace(now).is_some_and(is_same) {
            self.still_since = now_ns;
        }
        if since(self.still_since) < STILL_NS { Ok(()) } else { Err(true) }
    }
}

/// Processes that are said to hold more than the device has are on it, with as much as nobody knows. Returns
/// how many there are. The note names none of them: every user may read it.
fn larger_than_the_device(reading: &mut Reading) -> u32 {
    let limit = reading.values.iter().find_map(|value| value.int(&metric::MEMORY_LIMIT, ()));
    let Some(limit) = limit else { return 0 };
    let mut removed = 0;
    for process in &mut reading.processes {
        let held = |kind: &ProcessType| process.value.int(&process::MEMORY_USAGE, *kind);
        let is_larger = ProcessType::ALL.iter().find_map(held).is_some_and(|bytes| bytes > limit);
        if let Some(info) = WireValue::new(&process::INFO, (), 1).filter(|_| is_larger) {
            process.value = info;
            removed += 1;
        }
    }
    if removed > 0 {
        add_note(&mut reading.note, "a process holds more than its device has: left out");
    }
    removed
}

fn add_note(note: &mut String, text: &str) {
    if !note.is_empty() {
        note.push_str("; ");
    }
    note.push_str(text);
}

/// `most`: watts that the device can draw.
fn is_plausible(value: &WireValue, most: f64) -> bool {
    let Some(metric) = value.metric() else { return false };
    let number = match value.value() {
        // Precise enough: the bounds are round and far away.
        #[expect(clippy::cast_precision_loss, reason = "compared with bounds far away")]
        Value::Int(number) => number as f64,
        Value::Double(number) => number,
        Value::Histogram(_) => return true,
    };
    if metric.kind == Kind::Counter {
        return number >= 0.0;
    }
    let own = BOUNDS.iter().find(|row| std::ptr::eq(row.0, metric)).map(|row| &row.1);
    let of_unit = || LEVELS.iter().find(|row| row.0 == metric.unit).map(|row| &row.1);
    let watts = 0.0..=most;
    let bounds = own.or_else(of_unit).or((metric.unit == "W").then_some(&watts));
    number.is_finite() && bounds.is_none_or(|bounds| bounds.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::{Checks, EnergyCounter};
    use crate::wire::{ProcessValue, Reading, WireValue};
    use gpuwho_model::catalog::agent::DropReason;
    use gpuwho_model::catalog::device::{self, Clock, Limit, MemoryState, Sensor, Task};
    use gpuwho_model::catalog::process::{self, ProcessType};
    use gpuwho_model::status::Report;

    fn double<S, D>(
        metric: &'static gpuwho_model::catalog::Metric<S, D, f64>,
        dims: D,
        value: f64,
    ) -> WireValue
    where
        S: Into<gpuwho_model::sample::Subject>,
        D: gpuwho_model::catalog::Dims,
    {
        WireValue::new(metric, dims, value).unwrap()
    }

    /// What is left of the values of a vendor's device, and how many are counted.
    fn kept(vendor: &str, values: Vec<WireValue>) -> (Vec<WireValue>, u64) {
        let mut reading = Reading { values, ..Reading::default() };
        let mut report = Report::ready();
        Checks::of(vendor).keep(0, &mut reading, &mut report);
        (reading.values, report.dropped.iter().map(|(_, count)| *count).sum())
    }

    #[test]
    fn implausible_values_are_dropped_and_counted() {
        let busy = |value| WireValue::new(&device::UTILIZATION, Task::General, value);
        let hot = |value| WireValue::new(&device::TEMPERATURE, Sensor::Gpu, value);
        let used = |value| WireValue::new(&device::MEMORY_USAGE, MemoryState::Used, value);
        let good = [busy(1.0), hot(91.0), used(85_520_809_984)].map(Option::unwrap);
        let bad = [busy(42_949_672.95), hot(4_294_967_295.0), used(i64::MAX), busy(f64::NAN)];
        let values = good.iter().copied().chain(bad.map(Option::unwrap)).collect();
        let mut reading = Reading { values, ..Reading::default() };
        let mut report = Report::ready();
        report.count(1, 2);
        Checks::of("nvidia").keep(0, &mut reading, &mut report);
        let six = [(DropReason::Implausible, 6)];
        assert_eq!((report.errors, &report.dropped[..]), (1, &six[..]), "beside the child's two");
        assert_eq!(reading.values, good);
    }

    #[test]
    fn each_quantity_has_its_bounds() {
        let hot = |degrees| double(&device::TEMPERATURE, Sensor::Memory, degrees);
        let power = |watts| double(&device::POWER, (), watts);
        let clock = |hertz| double(&device::CLOCK_SPEED, Clock::Memory, hertz);
        let at_most = |kind, watts| double(&device::POWER_LIMIT, kind, watts);
        for (vendor, values, left) in [
            // A table that was read while it was written (ROCm/rocm-systems #6931).
            ("amd", vec![hot(640.0)], 0),
            ("amd", vec![hot(2112.0)], 0),
            ("amd", vec![hot(105.0), hot(-12.0)], 2),
            // tt-kmd 2.7.0-rc1 (#213), also where it says no limit.
            ("tenstorrent", vec![power(4080.0)], 0),
            ("tenstorrent", vec![power(4080.0), at_most(Limit::Maximum, 300.0)], 1),
            ("tenstorrent", vec![power(4080.0), at_most(Limit::Maximum, 300_000.0)], 0),
            ("tenstorrent", vec![power(290.0), at_most(Limit::Maximum, 300.0)], 2),
            // A unit that is a thousand times another.
            ("nvidia", vec![power(700_000.0)], 0),
            (
                "nvidia",
                vec![
                    power(2100.0),
                    at_most(Limit::Enforced, 300.0),
                    at_most(Limit::Maximum, 700.0),
                ],
                3,
            ),
            ("nvidia", vec![power(2101.0), at_most(Limit::Maximum, 700.0)], 1),
            ("nvidia", vec![power(1400.0)], 1),
            ("gaudi", vec![power(900.0)], 1),
            ("gaudi", vec![power(9000.0)], 0),
            ("nvidia", vec![clock(1.6e10), clock(1.6e13)], 1),
        ] {
            let given = values.len();
            let (values, counted) = kept(vendor, values);
            let dropped = u64::try_from(given - left).unwrap();
            assert_eq!((values.len(), counted), (left, dropped), "{vendor} {values:?}");
        }
    }

    #[test]
    fn a_process_larger_than_its_device_is_there_without_its_memory() {
        let of = |bytes: i64, kind| {
            let value = WireValue::new(&process::MEMORY_USAGE, kind, bytes).unwrap();
            ProcessValue { pid: 7, place: None, value }
        };
        let limit = WireValue::new(&device::MEMORY_LIMIT, (), 512 << 20).unwrap();
        let processes =
            vec![of(512 << 20, ProcessType::Compute), of(60 << 30, ProcessType::Graphics)];
        let mut reading = Reading { values: vec![limit], processes, ..Reading::default() };
        let mut report = Report::ready();
        Checks::of("amd").keep(0, &mut reading, &mut report);
        assert_eq!(report.dropped, [(DropReason::Implausible, 1)]);
        assert_eq!(reading.note, "a process holds more than its device has: left out");
        let info = WireValue::new(&process::INFO, (), 1).unwrap();
        let left: Vec<_> = reading.processes.iter().map(|on| on.value).collect();
        assert_eq!(left, [of(512 << 20, ProcessType::Compute).value, info]);
        // Without a memory of its own a device has no bound (GB10).
        let processes = vec![of(60 << 30, ProcessType::Compute)];
        let mut reading = Reading { processes: processes.clone(), ..Reading::default() };
        Checks::of("nvidia").keep(0, &mut reading, &mut Report::ready());
        assert_eq!((reading.processes, &*reading.note), (processes, ""));
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_counter_of_energy_that_stands_still_has_no_value_and_says_so() {
        let mut checks = Checks::of("amd");
        let mut read = |second: u64, joules: f64| {
            let values = vec![double(&device::ENERGY, (), joules)];
            let mut reading = Reading { values, asked_ns: second * SECOND, ..Reading::default() };
            let mut report = Report::ready();
            checks.keep(3, &mut reading, &mut report);
            (reading.values.len(), reading.note, report.dropped[0].1)
        };
        let good = || (1, String::new(), 0);
        assert_eq!([read(100, 5e6), read(110, 5e6), read(159, 5e6)], [good(), good(), good()]);
        let text = "device 3's energy counter stands still: no energy";
        assert_eq!(read(160, 5e6), (0, text.to_owned(), 0));
        assert_eq!(
            [read(170, 5e6 + 900.0), read(180, 5e6 + 1800.0)],
            [good(), good()],
            "it counts"
        );
        assert_eq!(read(7180, 5e6 + 1800.0), good(), "it was asleep");
    }

    #[test]
    fn a_value_of_energy_that_nothing_could_have_drawn_is_none_unless_the_next_follows_from_it() {
        let mut counter = EnergyCounter::default();
        let mut take = |second: u64, joules: f64| counter.take(joules, second * SECOND, 5000.0);
        assert_eq!([take(0, 1e6), take(10, 1.007e6)], [Ok(()), Ok(())]);
        assert_eq!(take(20, 9e12), Err(false), "a torn reading");
        assert_eq!(take(30, 1.02e6), Ok(()));
        assert_eq!(take(40, 3.0), Err(false));
        assert_eq!(take(50, 1.03e6), Ok(()), "another");
        assert_eq!(take(60, 3.0), Err(false));
        assert_eq!([take(70, 7000.0), take(80, 14_000.0)], [Ok(()), Ok(())], "it began anew");
    }
}
