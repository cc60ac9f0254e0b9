//! What must arrive of each vendor's two devices: the scenario's values, of every metric that METRICS.md
//! says the vendor has; and of what grows the values ten seconds later.

use super::arrived;
use crate::device::reader::amd;
use gpuwho::catalog;
use gpuwho_tests::collector::received::ReceivedPoint;
use std::collections::BTreeMap;

/// Metric, dimensions, and the value of the device of an index.
type Row = (&'static str, &'static [(&'static str, &'static str)], fn(f64) -> f64);

/// AMD's values are those of the reader's own test, but for these.
const AMD: &[Row] =
    &[("gpu.energy", &[], |i| 37_025.0 + 2050.0 * i), ("gpu.process.count", &[], |i| 1.0 - i)];

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
    ("gpu.energy", &[], |i| 17_600.0 + 3000.0 * i),
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

const ALL: [Truth; 6] = [
    ("amd", AMD, |index| format!("GPU-e3a98f4e6c9d010{index}")),
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
    ("amd", "gpu.unknown_code", "every bit is known: the reader's test of MI210's table"),
    ("amd", "gpu.process.memory.evicted", "the clients of DRM: unit test of `fdinfo`"),
    ("gaudi", "gpu.unknown_code", "every bit is known: unit test of the library's reader"),
    ("intel", "gpu.process.info", "the clients of DRM: unit test of `fdinfo`"),
    ("intel", "gpu.process.memory.usage", "the clients of DRM: unit test of `fdinfo`"),
];

/// What one device of a vendor has and not every: by the id of the device.
const OF_ONE: &[(&str, &str, &[Row])] = &[
    // What the process on the first TPU serves of it, by libtpu's own protocol.
    (
        "tpu",
        "TPU-0000:80:00.0",
        &[
            ("gpu.utilization", &[("gpu.task", "general")], |_| 0.55),
            ("gpu.memory.limit", &[], |_| 16384.0 * MIB),
            ("gpu.memory.usage", &[("gpu.memory.state", "used")], |_| 6144.0 * MIB),
            ("gpu.memory.usage", &[("gpu.memory.state", "free")], |_| 10240.0 * MIB),
        ],
    ),
    // The process on the first MI300X.
    (
        "amd",
        "GPU-e3a98f4e6c9d0100",
        &[
            ("gpu.process.memory.usage", &[("gpu.process.type", "compute")], |_| 32768.0 * MIB),
            ("gpu.process.occupancy", &[], |_| 0.5),
            ("gpu.process.evicted.time", &[], |_| 1.5),
        ],
    ),
    // A board of another kind.
    (
        "amd",
        "GPU-e3a98f4e6c9d0102",
        &[
            ("gpu.power", &[], |_| 180.5),
            ("gpu.power.average", &[], |_| 180.5),
            ("gpu.energy", &[], |_| 18_050.0),
            ("gpu.fan.speed_ratio", &[], |_| 0.4),
            ("gpu.temperature", &[("gpu.temperature.sensor", "gpu")], |_| 60.0),
            ("gpu.temperature", &[("gpu.temperature.sensor", "hotspot")], |_| 68.0),
            ("gpu.clock.limit", &[("gpu.clock.type", "graphics")], |_| 2.5e9),
            ("gpu.throttle.active", &[("gpu.throttle.reason", "power_cap")], |_| 1.0),
            ("gpu.throttle.active", &[("gpu.throttle.reason", "thermal")], |_| 0.0),
        ],
    ),
    // Two partitions.
    (
        "amd",
        "GPU-e3a98f4e6c9d0103",
        &[
            ("gpu.instance.info", &[("gpu.mig.gpu_instance.id", "0")], |_| 1.0),
            ("gpu.instance.info", &[("gpu.mig.gpu_instance.id", "1")], |_| 1.0),
            ("gpu.instance.utilization", &[("gpu.mig.gpu_instance.id", "1")], |_| 0.65),
        ],
    ),
];

/// What has grown ten seconds later: vendor, metric, dimensions, the value of the device of an index.
const LATER: &[(&str, Row)] = &[
    ("amd", ("gpu.power", &[], |i| 430.25 + 20.5 * i)),
    ("amd", ("gpu.energy", &[], |i| 41_277.5 + 2255.0 * i)),
    (
        "amd",
        ("gpu.interconnect.io", &[("network.io.direction", "receive")], |i| {
            7.0 * (2_048_000.0 + 102_400.0 * i) * 110.0
        }),
    ),
    ("amd", ("gpu.throttle.active", &[("gpu.throttle.reason", "thermal")], |_| 0.0)),
    ("gaudi", ("gpu.power", &[], |i| 236.0 + 30.0 * i)),
    ("gaudi", ("gpu.energy", &[], |i| 19_910.0 + 3300.0 * i)),
    ("tenstorrent", ("gpu.power", &[], |i| 88.0 + 10.0 * i)),
    ("tenstorrent", ("gpu.pcie.io", &[("network.io.direction", "transmit")], |_| 32_000.0)),
    ("tenstorrent", ("gpu.pcie.io", &[("network.io.direction", "receive")], |_| 64_000.0)),
    ("intel", ("gpu.energy", &[], |i| 13_200.0 + 1100.0 * i)),
    ("intel", ("gpu.temperature", &[("gpu.temperature.sensor", "gpu")], |i| 52.0 + 2.0 * i)),
    (
        "neuron",
        ("gpu.memory.usage", &[("gpu.memory.state", "used")], |i| (8292.0 + 1024.0 * i) * MIB),
    ),
];

/// Of the first TPU, which its process serves: it grows from the process's start on.
const SERVED_GROWS: &str = "gpu.memory.bandwidth.utilization";

/// A row with its dimensions' names and its value.
struct Expected {
    name: &'static str,
    attrs: Vec<(&'static str, &'static str)>,
    value: f64,
}

/// The truth of a vendor's device of an index.
fn expected(vendor: &str, rows: &[Row], index: u32) -> Vec<Expected> {
    let i = f64::from(index);
    let own = rows.iter().map(|(name, attrs, truth)| Expected {
        name,
        attrs: attrs.to_vec(),
        value: truth(i),
    });
    let of_reader = if vendor == "amd" { amd::truth(i) } else { Vec::new() };
    let of_reader = of_reader.into_iter().filter(|row| rows.iter().all(|own| own.0 != row.0));
    let of_reader = of_reader.map(|(name, words, value)| {
        let metric = catalog::all().find(|metric| metric.name == name).unwrap();
        let dims = metric.dims.iter().map(|dim| dim.key.name);
        Expected { name, attrs: dims.zip(words.split(',')).collect(), value }
    });
    own.chain(of_reader).collect()
}

/// Whether a value is the expected one.
fn is_right(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected.abs() * 1e-9
}

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

/// Whether a metric of a vendor is of one device or elsewhere.
fn is_apart(vendor: &str, name: &str) -> bool {
    let mut of_one = OF_ONE.iter().filter(|(of, ..)| *of == vendor);
    of_one.any(|(_, _, rows)| rows.iter().any(|row| row.0 == name))
        || (vendor, name) == ("tpu", SERVED_GROWS)
        || ELSEWHERE.iter().any(|row| (row.0, row.1) == (vendor, name))
}

/// What has not arrived of what METRICS.md says, by vendor.
pub(super) fn missing(points: &[ReceivedPoint]) -> Vec<(&'static str, &'static str)> {
    let documented = documented();
    let mut missing = Vec::new();
    for (vendor, rows, uuid) in ALL {
        for name in documented.get(vendor).into_iter().flatten() {
            let of_both = (0..2).all(|index| {
                // Processes are on the first device only.
                let uuid = uuid(if *name == "gpu.process.info" { 0 } else { index });
                !arrived(points, name, &[("gpu.uuid", &uuid)]).is_empty()
            });
            if !is_apart(vendor, name) && !of_both {
                missing.push((vendor, *name));
            }
        }
        let uuid = uuid(1);
        for row in expected(vendor, rows, 1) {
            let attrs = [&[("gpu.uuid", uuid.as_str())], &*row.attrs].concat();
            if arrived(points, row.name, &attrs).is_empty() {
                missing.push((vendor, row.name));
            }
        }
    }
    for (vendor, uuid, rows) in OF_ONE {
        let of = |row: &&Row| arrived(points, row.0, &[&[("gpu.uuid", *uuid)], row.1].concat());
        missing.extend(rows.iter().filter(|row| of(row).is_empty()).map(|row| (*vendor, row.0)));
    }
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

/// Every value that has arrived is the scenario's, and every metric has a row.
pub(super) fn holds(points: &[ReceivedPoint]) {
    let documented = documented();
    for (vendor, uuid, rows) in OF_ONE {
        for (name, dims, truth) in *rows {
            let attrs = [&[("gpu.uuid", *uuid), ("gpu.vendor", *vendor)], *dims].concat();
            let found = arrived(points, name, &attrs);
            let right = found.iter().all(|found| is_right(*found, truth(0.0)));
            assert!(right, "{vendor} {uuid} {name} {dims:?}: {found:?}");
        }
    }
    let idle = arrived(points, "gpu.utilization", &[("gpu.uuid", "TPU-0000:81:00.0")]);
    assert!(idle.is_empty(), "a chip without a process: {idle:?}");
    for (vendor, rows, uuid) in ALL {
        let of_first = expected(vendor, rows, 0);
        for name in &documented[vendor] {
            let is_here = of_first.iter().any(|row| row.name == *name) || COMMON.contains(name);
            let is_owners = *name == "gpu.process.info";
            assert!(is_here || is_apart(vendor, name) || is_owners, "{vendor} {name} has no truth");
        }
        for (index, row) in
            (0..2).flat_map(|i| expected(vendor, rows, i).into_iter().map(move |row| (i, row)))
        {
            let uuid = uuid(index);
            let own = [("gpu.uuid", uuid.as_str()), ("gpu.vendor", vendor)];
            let found = arrived(points, row.name, &[&own[..], &*row.attrs].concat());
            let right = |found: &f64| is_right(*found, row.value);
            // Processes come one after the other.
            let is_right = match row.name {
                "gpu.process.count" => found.last().is_some_and(right),
                _ => !found.is_empty() && found.iter().all(right),
            };
            let Expected { name, attrs, value } = row;
            assert!(is_right, "{vendor} {index} {name} {attrs:?}: {value} and not {found:?}");
        }
    }
}

/// What is not yet as it is ten seconds later, with its last value.
pub(super) fn stale(points: &[ReceivedPoint]) -> Vec<String> {
    let mut stale = Vec::new();
    for (vendor, (name, dims, truth)) in LATER {
        let (_, _, uuid) = ALL.iter().find(|(known, ..)| known == vendor).unwrap();
        for index in 0..2 {
            let uuid = uuid(index);
            let attrs = [&[("gpu.uuid", uuid.as_str())], *dims].concat();
            let last = arrived(points, name, &attrs).last().copied();
            if !last.is_some_and(|last| is_right(last, truth(f64::from(index)))) {
                stale.push(format!("{vendor} {index} {name} {dims:?}: {last:?}"));
            }
        }
    }
    let served = arrived(points, SERVED_GROWS, &[("gpu.vendor", "tpu")]);
    // A process that is slow to answer has its last value once more.
    let grows = served.windows(2).filter(|two| two[0] < two[1]).count();
    if grows < 3 || served.windows(2).any(|two| two[0] > two[1]) {
        stale.push(format!("tpu {SERVED_GROWS}: {served:?}"));
    }
    stale
}
