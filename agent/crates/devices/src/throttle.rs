//! Bits by which vendors report why the clocks are down. docs/metrics/vendors.md prints them; a bit in no table
//! is reported as `other` with its number.

use super::wire::{WireValue, push};
use super::{amd, gaudi, intel, nvidia};
use gpuwho_model::catalog::device::{self as metric, CodeKind, ThrottleReason};

/// A bit's position and its reason.
pub type Bit = (u32, ThrottleReason);

/// The bits of each vendor that reports any.
pub static BITS: &[(&str, &[Bit])] = &[
    ("nvidia", nvidia::readings::clocks::REASONS),
    ("amd", amd::THROTTLE_BITS),
    ("gaudi", gaudi::THROTTLE_BITS),
];

/// The names of each vendor whose driver has a file for each reason.
static NAMES: &[(&str, &[(&str, ThrottleReason)])] = &[("intel", intel::THROTTLE)];

/// The names of a vendor.
pub fn names_of(vendor: &str) -> &'static [(&'static str, ThrottleReason)] {
    NAMES.iter().find(|(name, _)| *name == vendor).map_or(&[], |(_, names)| names)
}

/// The bits of a vendor.
pub fn bits_of(vendor: &str) -> &'static [Bit] {
    BITS.iter().find(|(name, _)| *name == vendor).map_or(&[], |(_, bits)| bits)
}

/// Reports the active bits that are not in a vendor's table.
pub(super) fn unknown(active: u64, known: &[Bit], out: &mut Vec<WireValue>) {
    let mask = known.iter().fold(0_u64, |mask, (bit, _)| mask | 1 << bit);
    // As a signed number; no driver uses the highest bit.
    let number = i64::try_from(active & !mask).ok().filter(|number| *number != 0);
    push(out, &metric::THROTTLE_ACTIVE, ThrottleReason::Other, number.map(|_| 1));
    push(out, &metric::UNKNOWN_CODE, CodeKind::Throttle, number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_without_a_name_is_other_with_its_number() {
        for (vendor, bits) in BITS {
            let all = bits.iter().fold(0_u64, |mask, (bit, _)| mask | 1 << bit);
            let mut out = Vec::new();
            unknown(all, bits, &mut out);
            assert_eq!(out, [], "{vendor}: every bit has a name");
            unknown(all | 1 << 62, bits, &mut out);
            let number = out.iter().find_map(|v| v.int(&metric::UNKNOWN_CODE, CodeKind::Throttle));
            let other =
                out.iter().find_map(|v| v.int(&metric::THROTTLE_ACTIVE, ThrottleReason::Other));
            assert_eq!((number, other), (Some(1 << 62), Some(1)), "{vendor}");
        }
    }

    #[test]
    fn a_vendors_bit_has_one_reason() {
        for (vendor, bits) in BITS {
            let mut positions: Vec<_> = bits.iter().map(|(bit, _)| *bit).collect();
            positions.sort_unstable();
            assert!(positions.windows(2).all(|two| two[0] < two[1]), "{vendor}: {positions:?}");
            assert!(positions.iter().all(|bit| *bit < 63), "{vendor}: {positions:?}");
        }
    }
}
