//! The rows of the scenario: what each vendor's devices have at its hundredth second, and what has grown
//! ten seconds later.

/// Metric, dimensions, and the value of the device of an index.
pub(super) type Row = (&'static str, &'static [(&'static str, &'static str)], fn(f64) -> f64);

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
pub(super) type Truth = (&'static str, &'static [Row], fn(u32) -> String);

pub(super) const ALL: [Truth; 6] = [
    ("amd", AMD, |index| format!("GPU-e3a98f4e6c9d010{index}")),
    ("gaudi", GAUDI, |index| format!("01P4-HL3090A0-18-U4V193-22-07-0{index}")),
    ("tenstorrent", TENSTORRENT, |index| format!("TT-00112233aabbcc0{index}")),
    ("tpu", TPU, |index| format!("TPU-0000:8{index}:00.0")),
    ("intel", INTEL, |index| format!("GPU-0000:c{index}:00.0")),
    ("neuron", NEURON, |index| format!("NEURON-0123456789abcde{index}")),
];

/// What every vendor's devices have beside the scenario's values.
pub(super) const COMMON: [&str; 4] = ["gpu.info", "gpu.status", "gpu.up", "gpu.read.age"];

/// What vendors.md says a vendor has and this host has not, and why.
pub(super) const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("amd", "gpu.unknown_code", "every bit is known: the reader's test of MI210's table"),
    ("amd", "gpu.process.memory.evicted", "the clients of DRM: unit test of `fdinfo`"),
    ("gaudi", "gpu.unknown_code", "every bit is known: unit test of the library's reader"),
    ("intel", "gpu.process.info", "the clients of DRM: `device::vendors::intel`"),
    ("intel", "gpu.process.memory.usage", "the clients of DRM: `device::vendors::intel`"),
    ("intel", "gpu.process.utilization", "the clients of DRM: `device::vendors::intel`"),
    ("tenstorrent", "gpu.thermal.shutdowns", "of a Blackhole: the reader's test of models"),
];

/// What one device of a vendor has and not every: by the id of the device.
pub(super) const OF_ONE: &[(&str, &str, &[Row])] = &[
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
pub(super) const LATER: &[(&str, Row)] = &[
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
pub(super) const SERVED_GROWS: &str = "gpu.memory.bandwidth.utilization";
