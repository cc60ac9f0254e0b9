//! What must arrive of each vendor's two devices: the scenario's values, of every metric that METRICS.md
//! says the vendor has.

use super::arrived;
use gpuwho_tests::collector::received::ReceivedPoint;
use std::collections::BTreeMap;

/// Metric, dimensions, and the value of the device of an index.
type Row = (&'static str, &'static [(&'static str, &'static str)], fn(f64) -> f64);

const MIB: f64 = 1_048_576.0;

const GAUDI: &[Row] = &[
    ("gpu.utilization", &[("gpu.task", "general")], |i| (20.0 + 7.0 * i) / 100.0),
    ("gpu.memory.usage", &[("gpu.memory.state", "used")], |i| (32768.0 + 1024.0 * i) * MIB),
    ("gpu.memory.usage", &[("gpu.memory.state", "reserved")], |_| 672.0 * MIB),
    ("gpu.memory.usage", &[("gpu.memory.state", "free")], |i| {
        (131_072.0 - 672.0 - 32768.0 - 1024.0 * i) * MIB
    }),
    ("gpu.memory.limit", &[], |_| 131_072.0 * MIB),
    ("gpu.temperature", &[("gpu.temperature.sensor", "gpu")], |i| 36.0 + 2.0 * i),
    ("gpu.temperature", &[("gpu.temperature.sensor", "memory")], |i| 41.0 + 2.0 * i),
    ("gpu.temperature.limit", &[("gpu.limit.type", "shutdown")], |_| 105.0),
    ("gpu.temperature.limit", &[("gpu.limit.type", "slowdown")], |_| 100.0),
    ("gpu.temperature.limit", &[("gpu.limit.type", "memory_operating")], |_| 95.0),
    ("gpu.temperature.limit", &[("gpu.limit.type", "operating")], |_| 90.0),
    ("gpu.power", &[], |i| 226.0 + 30.0 * i),
    ("gpu.power.limit", &[("gpu.limit.type", "management")], |_| 800.0),
    ("gpu.power.limit", &[("gpu.limit.type", "default")], |_| 850.0),
    ("gpu.energy", &[], |i| 22_600.0 + 3000.0 * i),
    ("gpu.throttle.active", &[("gpu.throttle.reason", "power_cap")], |_| 1.0),
    ("gpu.throttle.active", &[("gpu.throttle.reason", "thermal")], |_| 0.0),
    ("gpu.clock.speed", &[("gpu.clock.type", "graphics")], |i| (1600.0 + 5.0 * i) * 1e6),
    ("gpu.clock.limit", &[("gpu.clock.type", "graphics")], |_| 1.65e9),
    ("gpu.process.count", &[], |i| 1.0 - i),
    ("gpu.ecc.enabled", &[], |_| 1.0),
    ("gpu.ecc.enabled.pending", &[], |_| 0.0),
    (
        "gpu.ecc.errors",
        &[("gpu.ecc.error_type", "corrected"), ("gpu.ecc.count_type", "volatile")],
        |i| 4.0 + i,
    ),
    (
        "gpu.ecc.errors",
        &[("gpu.ecc.error_type", "uncorrected"), ("gpu.ecc.count_type", "aggregate")],
        |_| 3.0,
    ),
    (
        "gpu.ecc.location.errors.volatile",
        &[("gpu.ecc.error_type", "uncorrected"), ("gpu.ecc.location", "sram")],
        |_| 2.0,
    ),
    (
        "gpu.ecc.location.errors.aggregate",
        &[("gpu.ecc.error_type", "corrected"), ("gpu.ecc.location", "dram")],
        |i| 13.0 + i,
    ),
    ("gpu.memory.remapped_rows", &[("gpu.memory.retirement.cause", "uncorrected")], |i| 2.0 + i),
    ("gpu.memory.remap.pending", &[], |_| 1.0),
    ("gpu.pcie.link.generation", &[], |_| 4.0),
    ("gpu.pcie.link.width", &[], |_| 8.0),
    ("gpu.pcie.link.generation.limit", &[], |_| 5.0),
    ("gpu.pcie.link.width.limit", &[], |_| 16.0),
    ("gpu.pcie.replays", &[], |i| 2.0 + i),
    ("gpu.interconnect.links", &[("gpu.interconnect.state", "active")], |_| 2.0),
    ("gpu.interconnect.links", &[("gpu.interconnect.state", "inactive")], |_| 1.0),
    ("gpu.interconnect.link.active", &[("gpu.interconnect.link_index", "2")], |_| 0.0),
    ("gpu.interconnect.io", &[("network.io.direction", "receive")], |_| 3003.0),
    ("gpu.interconnect.io", &[("network.io.direction", "transmit")], |_| 9003.0),
];

const TENSTORRENT: &[Row] = &[
    ("gpu.temperature", &[("gpu.temperature.sensor", "gpu")], |i| 47.0 + 2.0 * i),
    ("gpu.temperature.limit", &[("gpu.limit.type", "slowdown")], |_| 75.0),
    ("gpu.power", &[], |i| 83.0 + 10.0 * i),
    ("gpu.power.limit", &[("gpu.limit.type", "maximum")], |_| 160.0),
    ("gpu.clock.speed", &[("gpu.clock.type", "graphics")], |_| 1e9),
    ("gpu.process.count", &[], |i| 1.0 - i),
    ("gpu.pcie.link.generation", &[], |_| 3.0),
    ("gpu.pcie.link.width", &[], |_| 16.0),
    ("gpu.pcie.link.generation.limit", &[], |_| 4.0),
    ("gpu.pcie.link.width.limit", &[], |_| 16.0),
    // It begins with the first reading; that it grows is the reader's own test.
    ("gpu.pcie.io", &[("network.io.direction", "transmit")], |_| 0.0),
    ("gpu.pcie.io", &[("network.io.direction", "receive")], |_| 0.0),
];

const TPU: &[Row] = &[
    ("gpu.process.count", &[], |i| 1.0 - i),
    ("gpu.pcie.link.generation", &[], |_| 4.0),
    ("gpu.pcie.link.width", &[], |_| 16.0),
    ("gpu.pcie.link.generation.limit", &[], |_| 4.0),
    ("gpu.pcie.link.width.limit", &[], |_| 16.0),
];

const INTEL: &[Row] = &[
    ("gpu.memory.limit", &[], |_| 12288.0 * MIB),
    ("gpu.temperature", &[("gpu.temperature.sensor", "gpu")], |i| 51.0 + 2.0 * i),
    ("gpu.temperature", &[("gpu.temperature.sensor", "memory")], |i| 48.0 + 2.0 * i),
    ("gpu.power.limit", &[("gpu.limit.type", "management")], |_| 190.0),
    ("gpu.power.limit", &[("gpu.limit.type", "default")], |_| 200.0),
    ("gpu.energy", &[], |i| 12_000.0 + 1000.0 * i),
    ("gpu.throttle.active", &[("gpu.throttle.reason", "power_cap")], |_| 1.0),
    ("gpu.throttle.active", &[("gpu.throttle.reason", "thermal")], |_| 0.0),
    ("gpu.clock.speed", &[("gpu.clock.type", "graphics")], |i| (2400.0 + 50.0 * i) * 1e6),
    ("gpu.clock.limit", &[("gpu.clock.type", "graphics")], |_| 2.85e9),
    // Nobody computes.
    ("gpu.utilization", &[("gpu.task", "general")], |_| 0.0),
    ("gpu.utilization", &[("gpu.task", "video")], |_| 0.0),
    ("gpu.process.count", &[], |_| 0.0),
    ("gpu.pcie.link.generation", &[], |_| 4.0),
    ("gpu.pcie.link.width", &[], |_| 8.0),
    ("gpu.pcie.link.generation.limit", &[], |_| 4.0),
    ("gpu.pcie.link.width.limit", &[], |_| 8.0),
];

const NEURON: &[Row] = &[
    (
        "gpu.ecc.errors",
        &[("gpu.ecc.error_type", "uncorrected"), ("gpu.ecc.count_type", "volatile")],
        |i| 3.0 + 2.0 * i,
    ),
    ("gpu.memory.remap.pending", &[], |_| 0.0),
    ("gpu.memory.usage", &[("gpu.memory.state", "used")], |i| (8192.0 + 1024.0 * i) * MIB),
    ("gpu.process.count", &[], |i| 1.0 - i),
    (
        "gpu.ecc.location.errors.volatile",
        &[("gpu.ecc.error_type", "uncorrected"), ("gpu.ecc.location", "dram")],
        |i| 2.0 + i,
    ),
    (
        "gpu.ecc.location.errors.volatile",
        &[("gpu.ecc.error_type", "uncorrected"), ("gpu.ecc.location", "sram")],
        |i| 1.0 + i,
    ),
];

/// A vendor's truth, and how its device of an index is named.
type Truth = (&'static str, &'static [Row], fn(u32) -> String);

const ALL: [Truth; 5] = [
    ("gaudi", GAUDI, |index| format!("01P4-HL3090A0-18-U4V193-22-07-0{index}")),
    ("tenstorrent", TENSTORRENT, |index| format!("TT-00112233aabbcc0{index}")),
    ("tpu", TPU, |index| format!("TPU-0000:8{index}:00.0")),
    ("intel", INTEL, |index| format!("GPU-0000:c{index}:00.0")),
    ("neuron", NEURON, |index| format!("NEURON-0123456789abcde{index}")),
];

/// What every vendor's devices have beside the scenario's values.
const COMMON: [&str; 4] = ["gpu.info", "gpu.status", "gpu.up", "gpu.read.age"];

/// What METRICS.md says a vendor has and this host has not, and why.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("gaudi", "gpu.unknown_code", "every bit is known: unit test of the library's reader"),
    ("intel", "gpu.process.info", "the clients of DRM: `device::vendors::intel`"),
    ("intel", "gpu.process.memory.usage", "the clients of DRM: `device::vendors::intel`"),
    ("intel", "gpu.process.utilization", "the clients of DRM: `device::vendors::intel`"),
    ("tenstorrent", "gpu.thermal.shutdowns", "of a Blackhole: unit test of the reader"),
    ("tpu", "gpu.utilization", "of the chip with a process: `SERVED`"),
    ("tpu", "gpu.memory.bandwidth.utilization", "of the chip with a process: `SERVED`"),
    ("tpu", "gpu.memory.usage", "of the chip with a process: `SERVED`"),
    ("tpu", "gpu.memory.limit", "of the chip with a process: `SERVED`"),
];

/// What the process on the first TPU serves of it, by libtpu's own protocol.
const SERVED: &[Row] = &[
    ("gpu.utilization", &[("gpu.task", "general")], |_| 0.55),
    ("gpu.memory.bandwidth.utilization", &[], |_| 0.3),
    ("gpu.memory.limit", &[], |_| 16384.0 * MIB),
    ("gpu.memory.usage", &[("gpu.memory.state", "used")], |_| 6144.0 * MIB),
    ("gpu.memory.usage", &[("gpu.memory.state", "free")], |_| 10240.0 * MIB),
];

/// The metrics that METRICS.md says each vendor has.
fn documented() -> BTreeMap<&'static str, Vec<&'static str>> {
    let text = include_str!("../../../../agent/METRICS.md");
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let head = text.lines().find(|line| line.starts_with("| metric | nvidia | amd |")).unwrap();
    let names = cells(head);
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in
        text.lines().skip_while(|line| *line != head).take_while(|line| line.starts_with('|'))
    {
        let row = cells(line);
        for (vendor, _) in names.iter().zip(&row).filter(|(_, cell)| **cell == "yes") {
            all.entry(*vendor).or_default().push(row[1].trim_matches('`'));
        }
    }
    all
}

/// What has not arrived of what METRICS.md says, by vendor.
pub(super) fn missing(points: &[ReceivedPoint]) -> Vec<(&'static str, &'static str)> {
    let documented = documented();
    let mut missing = Vec::new();
    for (vendor, rows, uuid) in ALL {
        for name in documented.get(vendor).into_iter().flatten() {
            let is_elsewhere = ELSEWHERE.iter().any(|row| (row.0, row.1) == (vendor, *name));
            let of_both = (0..2).all(|index| {
                // Processes are on the first device only.
                let uuid = uuid(if *name == "gpu.process.info" { 0 } else { index });
                !arrived(points, name, &[("gpu.uuid", &uuid)]).is_empty()
            });
            if !is_elsewhere && !of_both {
                missing.push((vendor, *name));
            }
        }
        for (name, dims, _) in rows {
            let uuid = uuid(1);
            let attrs = [&[("gpu.uuid", uuid.as_str())], *dims].concat();
            if arrived(points, name, &attrs).is_empty() {
                missing.push((vendor, *name));
            }
        }
    }
    missing.extend(
        SERVED.iter().filter(|row| served(points, row).is_empty()).map(|row| ("tpu", row.0)),
    );
    missing
}

pub(super) fn is_complete(points: &[ReceivedPoint]) -> bool {
    missing(points).is_empty() && are_counted(points)
}

/// Whether each device's last count of processes is right: a process that was just started counts
/// until it has become another program.
fn are_counted(points: &[ReceivedPoint]) -> bool {
    let of = |(_, rows, uuid): &Truth| {
        let count = rows.iter().find(|row| row.0 == "gpu.process.count");
        count.is_none_or(|(name, _, truth)| {
            (0..2).all(|index| {
                let uuid = uuid(index);
                let found = arrived(points, name, &[("gpu.uuid", &uuid)]);
                found.last() == Some(&truth(f64::from(index)))
            })
        })
    };
    ALL.iter().all(of)
}

/// The values of a metric that libtpu serves; of the second chip there are none.
fn served(points: &[ReceivedPoint], (name, dims, _): &Row) -> Vec<f64> {
    let [first, second] = [0, 1].map(|index| {
        let uuid = format!("TPU-0000:8{index}:00.0");
        arrived(points, name, &[&[("gpu.uuid", uuid.as_str())], *dims].concat())
    });
    assert!(second.is_empty(), "{name} of a chip without a process: {second:?}");
    first
}

/// Every value that has arrived is the scenario's, and every metric has a row.
pub(super) fn holds(points: &[ReceivedPoint]) {
    let documented = documented();
    for row in SERVED {
        let found = served(points, row);
        assert!(
            found.iter().all(|value| (value - row.2(0.0)).abs() <= row.2(0.0) * 1e-9),
            "{}: {found:?}",
            row.0
        );
    }
    for (vendor, rows, uuid) in ALL {
        for name in &documented[vendor] {
            let is_here = rows.iter().any(|row| row.0 == *name) || COMMON.contains(name);
            let is_elsewhere = ELSEWHERE.iter().any(|row| (row.0, row.1) == (vendor, *name));
            let is_owners = *name == "gpu.process.info";
            assert!(is_here || is_elsewhere || is_owners, "{vendor} {name} has no truth");
        }
        for (index, (name, dims, truth)) in
            (0..2).flat_map(|i| rows.iter().map(move |row| (i, row)))
        {
            let uuid = uuid(index);
            let own = [("gpu.uuid", uuid.as_str()), ("gpu.vendor", vendor)];
            let attrs = [&own[..], *dims].concat();
            let found = arrived(points, name, &attrs);
            let expected = truth(f64::from(index));
            let right = |found: &f64| (found - expected).abs() <= expected.abs() * 1e-9;
            // Processes come one after the other.
            let is_right = match *name {
                "gpu.process.count" => found.last().is_some_and(right),
                _ => !found.is_empty() && found.iter().all(right),
            };
            assert!(is_right, "{vendor} {index} {name} {dims:?}: {expected} and not {found:?}");
        }
    }
}
