//! Why the clocks are down: bits of the driver's table up to revision 1.3 and in those of APUs, times
//! that the firmware accounts from revision 1.6 on.
//!
//! The firmware counts its accounting cycles, and those with each reason. The length of a cycle is not
//! documented, so the time between two readings is divided as the cycles are. The times begin with 0
//! when the agent starts.

use super::gpu_metrics::{Field, Table};
use crate::throttle::{self, Bit};
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::device::ThrottleReason;

/// `SMU_THROTTLER_*_BIT` of `amdgpu_smu.h`: power, current, temperature, other.
pub(crate) const BITS: &[Bit] = &[
    (0, ThrottleReason::PowerCap),
    (1, ThrottleReason::PowerCap),
    (2, ThrottleReason::PowerCap),
    (3, ThrottleReason::PowerCap),
    (4, ThrottleReason::PowerCap),
    (5, ThrottleReason::PowerCap),
    (6, ThrottleReason::PowerCap),
    (7, ThrottleReason::PowerCap),
    (16, ThrottleReason::CurrentLimit),
    (17, ThrottleReason::CurrentLimit),
    (18, ThrottleReason::CurrentLimit),
    (19, ThrottleReason::CurrentLimit),
    (20, ThrottleReason::CurrentLimit),
    (21, ThrottleReason::CurrentLimit),
    (22, ThrottleReason::CurrentLimit),
    (23, ThrottleReason::CurrentLimit),
    (32, ThrottleReason::Thermal),
    (33, ThrottleReason::Thermal),
    (34, ThrottleReason::MemoryThermal),
    (35, ThrottleReason::Thermal),
    (36, ThrottleReason::Thermal),
    (37, ThrottleReason::Thermal),
    (38, ThrottleReason::RegulatorThermal),
    (39, ThrottleReason::RegulatorThermal),
    (40, ThrottleReason::RegulatorThermal),
    (41, ThrottleReason::RegulatorThermal),
    (42, ThrottleReason::Thermal),
    (43, ThrottleReason::Thermal),
    (44, ThrottleReason::RegulatorThermal),
    (45, ThrottleReason::RegulatorThermal),
    (46, ThrottleReason::HardwareSlowdown),
    (47, ThrottleReason::HardwareSlowdown),
    (56, ThrottleReason::PowerCap),
    (57, ThrottleReason::Reliability),
];

/// The accounted reasons.
const ACCOUNTED: [(Field, ThrottleReason); 5] = [
    (Field::Prochot, ThrottleReason::HardwareSlowdown),
    (Field::PowerLimited, ThrottleReason::PowerCap),
    (Field::SocketThermal, ThrottleReason::Thermal),
    (Field::RegulatorThermal, ThrottleReason::RegulatorThermal),
    (Field::MemoryThermal, ThrottleReason::MemoryThermal),
];

/// Nanoseconds of a second.
const NANO: f64 = 1e9;
/// The counters have 32 bits.
const HALF: u64 = 1 << 31;
const WHOLE: u64 = 1 << 32;

/// What was read last, and the times since the agent's start.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    last: Option<Counters>,
    seconds: [f64; 5],
}

#[derive(Clone, Copy, Debug)]
struct Counters {
    at_ns: u64,
    cycles: u64,
    held: [Option<u64>; 5],
}

impl Throttle {
    /// Reports the reasons in a table read at a time of the boot clock.
    pub(super) fn read(&mut self, table: &Table, at_ns: u64, out: &mut Vec<WireValue>) {
        if let Some(active) = table.one(Field::ThrottleStatus) {
            bits(active, out);
        }
        let Some(cycles) = table.one(Field::Accumulations) else { return };
        let held = ACCOUNTED.map(|(field, _)| table.one(field));
        let now = Counters { at_ns, cycles, held };
        let last = self.last.replace(now);
        for (n, (_, reason)) in ACCOUNTED.into_iter().enumerate() {
            let (Some(total), Some(Some(_))) = (self.seconds.get_mut(n), held.get(n)) else {
                continue;
            };
            let share = last.and_then(|last| now.share(&last, n));
            if let (Some(share), Some(last)) = (share, last) {
                let passed = at_ns.saturating_sub(last.at_ns);
                #[expect(clippy::cast_precision_loss, reason = "less than an hour")]
                let passed = passed as f64 / NANO;
                *total += share * passed;
                push(out, &metric::THROTTLE_ACTIVE, reason, Some(i64::from(share > 0.0)));
            }
            push(out, &metric::THROTTLE_TIME, reason, Some(*total));
        }
    }
}

impl Counters {
    /// The fraction of the cycles since an earlier reading that had a reason; `None` if there was none,
    /// or if the counters began again.
    fn share(&self, last: &Self, reason: usize) -> Option<f64> {
        let of = |counters: &Self| counters.held.get(reason).copied().flatten();
        let cycles = since(self.cycles, last.cycles).filter(|cycles| *cycles > 0)?;
        let held = since(of(self)?, of(last)?).filter(|held| *held <= cycles)?;
        #[expect(clippy::cast_precision_loss, reason = "counters of 32 bits")]
        Some(held as f64 / cycles as f64)
    }
}

/// The growth of a counter, over its end too; a counter that is smaller otherwise began again.
fn since(now: u64, last: u64) -> Option<u64> {
    let wrapped = || (last > HALF && last < WHOLE && now < HALF).then(|| now + WHOLE - last);
    now.checked_sub(last).or_else(wrapped)
}

fn bits(active: u64, out: &mut Vec<WireValue>) {
    let mut reported: Vec<ThrottleReason> = Vec::new();
    for (_, reason) in BITS {
        if reported.contains(reason) {
            continue;
        }
        reported.push(*reason);
        let is_active = BITS.iter().any(|(bit, of)| of == reason && active >> bit & 1 == 1);
        push(out, &metric::THROTTLE_ACTIVE, *reason, Some(i64::from(is_active)));
    }
    throttle::unknown(active, BITS, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(cycles: u64, held: u64) -> Counters {
        Counters { at_ns: 0, cycles, held: [Some(held), None, None, None, None] }
    }

    #[test]
    fn cycles_divide_the_time_and_a_restart_of_the_firmware_does_not() {
        let share = |last, now: Counters| now.share(&last, 0);
        assert_eq!(share(counters(1000, 10), counters(2000, 260)), Some(0.25));
        assert_eq!(share(counters(1000, 10), counters(1000, 10)), None, "no cycle has passed");
        assert_eq!(share(counters(9000, 70), counters(500, 0)), None, "it began again");
        assert_eq!(share(counters(1000, 10), counters(1010, 90)), None, "more than all of it");
        let wrapped = share(counters(WHOLE - 50, WHOLE - 10), counters(50, 15));
        assert_eq!(wrapped, Some(0.25), "the counters have 32 bits");
        assert_eq!(
            counters(2, 1).share(&counters(1, 0), 1),
            None,
            "the firmware does not count it"
        );
    }

    #[test]
    fn each_reason_of_a_word_of_bits_is_reported_once() {
        let mut out = Vec::new();
        bits(1 << 1 | 1 << 36 | 1 << 60, &mut out);
        let on = |reason| out.iter().filter_map(move |v| v.int(&metric::THROTTLE_ACTIVE, reason));
        assert!(on(ThrottleReason::PowerCap).eq([1]));
        assert!(on(ThrottleReason::Thermal).eq([1]));
        assert!(on(ThrottleReason::CurrentLimit).eq([0]));
        assert!(on(ThrottleReason::Other).eq([1]));
    }
}
