//! Drops values that no device can have: a driver that returns nonsense has failed, and a missing
//! value is better than a wrong one. The bounds are far beyond any real hardware, so that they
//! never drop a real value.

use super::wire::{Reading, WireValue};
use gpuwho_model::catalog::Kind;
use gpuwho_model::sample::Value;
use gpuwho_model::status::Report;
use std::ops::RangeInclusive;

/// Bounds of a gauge by unit. Fractions may be slightly over one, because two clocks are involved.
const LEVELS: &[(&str, RangeInclusive<f64>)] = &[
    ("1", 0.0..=2.0),
    ("Cel", -273.0..=1000.0),
    ("W", 0.0..=1e6),
    ("Hz", 0.0..=1e12),
    ("By", 0.0..=1e16),
];

/// Drops implausible values from a reading and counts them with those that the child dropped.
pub(super) fn keep(reading: &mut Reading, report: &mut Report) {
    let mut removed = 0_u32;
    let mut can_be = |value: &WireValue| {
        let can_be = is_plausible(value);
        removed += u32::from(!can_be);
        can_be
    };
    reading.values.retain(&mut can_be);
    for instance in &mut reading.instances {
        instance.values.retain(&mut can_be);
    }
    reading.processes.retain(|process| can_be(&process.value));
    report.count(0, removed);
}

fn is_plausible(value: &WireValue) -> bool {
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
    let bounds = LEVELS.iter().find(|row| row.0 == metric.unit);
    number.is_finite() && bounds.is_none_or(|(_, bounds)| bounds.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::keep;
    use crate::wire::{Reading, WireValue};
    use gpuwho_model::catalog::agent::DropReason;
    use gpuwho_model::catalog::device::{self, MemoryState, Sensor, Task};
    use gpuwho_model::status::Report;

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
        keep(&mut reading, &mut report);
        let six = [(DropReason::Implausible, 6)];
        assert_eq!((report.errors, &report.dropped[..]), (1, &six[..]), "beside the child's two");
        assert_eq!(reading.values, good);
    }
}
