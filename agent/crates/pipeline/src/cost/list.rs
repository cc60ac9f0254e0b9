//! List prices of instances with accelerators: a fallback for a host without a configured price, off by
//! default. Nobody pays exactly these; money of them carries the price source `list`.
//!
//! AWS, Linux on demand, us-east-1, as l9gpu's table of March 2026 has them; not compared with
//! <https://aws.amazon.com/ec2/pricing/on-demand/>. Other clouds bill devices in ways that an instance's type does not say, so they are not here.

/// The day of the prices.
pub(super) const DATE: &str = "2026-03-01";
/// Their currency.
pub(super) const CURRENCY: &str = "USD";

/// Instance type, its devices, and its price in billionths of a dollar an hour.
static PRICES: &[(&str, u64, u64)] = &[
    ("p5.48xlarge", 8, 55_040_000_000),
    ("p4d.24xlarge", 8, 21_960_000_000),
    ("g6.xlarge", 1, 804_800_000),
    ("g5.xlarge", 1, 1_006_000_000),
    ("g5.2xlarge", 1, 1_212_000_000),
    ("g5.4xlarge", 1, 1_624_000_000),
    ("g5.8xlarge", 1, 2_448_000_000),
    ("g5.12xlarge", 4, 5_672_000_000),
    ("g5.48xlarge", 8, 16_288_000_000),
    ("g4dn.xlarge", 1, 526_000_000),
    ("g4dn.2xlarge", 1, 752_000_000),
    ("g4dn.4xlarge", 1, 1_204_000_000),
    ("g4dn.12xlarge", 4, 3_912_000_000),
];

/// The list price of one device of an instance type, in billionths of a unit an hour.
pub(super) fn price(machine: &str) -> Option<u64> {
    let (_, devices, nano) = PRICES.iter().find(|(known, ..)| *known == machine)?;
    nano.checked_div(*devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_costs_its_part_of_the_instance() {
        assert_eq!(price("p5.48xlarge"), Some(6_880_000_000));
        assert_eq!(price("g5.12xlarge"), Some(1_418_000_000), "four devices");
        assert_eq!(price("m7g.large"), None);
        for (machine, devices, nano) in PRICES {
            assert!(nano % devices == 0, "{machine}");
        }
    }
}
