//! What performance counters must tell.

use super::prefix;
use crate::device::reader::rig::Values;
use nvidia_ml::scenario::Scenario;
use nvidia_ml::scenario::gpm::Gpm;
use std::collections::BTreeSet;

/// A metric of performance counters: the library's number of it, its name, of an instance its name,
/// and the dimension.
type Counted = (u32, &'static str, &'static str, &'static str);

/// Every metric of performance counters. The numbers are those of `nvml.h`.
const COUNTED: &[Counted] = &[
    (1, "gpu.gr_engine.active", "gpu.instance.gr_engine.active", ""),
    (2, "gpu.sm.active", "gpu.instance.sm.active", ""),
    (3, "gpu.sm.occupancy", "gpu.instance.sm.occupancy", ""),
    (4, "gpu.pipe.active", "gpu.instance.pipe.active", "int"),
    (5, "gpu.pipe.active", "gpu.instance.pipe.active", "tensor"),
    (6, "gpu.pipe.active", "gpu.instance.pipe.active", "tensor_dfma"),
    (7, "gpu.pipe.active", "gpu.instance.pipe.active", "tensor_hmma"),
    (8, "gpu.pipe.active", "gpu.instance.pipe.active", "tensor_dmma"),
    (9, "gpu.pipe.active", "gpu.instance.pipe.active", "tensor_imma"),
    (10, "gpu.dram.active", "gpu.instance.dram.active", ""),
    (11, "gpu.pipe.active", "gpu.instance.pipe.active", "fp64"),
    (12, "gpu.pipe.active", "gpu.instance.pipe.active", "fp32"),
    (13, "gpu.pipe.active", "gpu.instance.pipe.active", "fp16"),
    (20, "gpu.pcie.throughput", "gpu.instance.pcie.throughput", "transmit"),
    (21, "gpu.pcie.throughput", "gpu.instance.pcie.throughput", "receive"),
    (30, "gpu.media.active", "gpu.instance.media.active", "nvdec0"),
    (31, "gpu.media.active", "gpu.instance.media.active", "nvdec1"),
    (32, "gpu.media.active", "gpu.instance.media.active", "nvdec2"),
    (33, "gpu.media.active", "gpu.instance.media.active", "nvdec3"),
    (34, "gpu.media.active", "gpu.instance.media.active", "nvdec4"),
    (35, "gpu.media.active", "gpu.instance.media.active", "nvdec5"),
    (36, "gpu.media.active", "gpu.instance.media.active", "nvdec6"),
    (37, "gpu.media.active", "gpu.instance.media.active", "nvdec7"),
    (40, "gpu.media.active", "gpu.instance.media.active", "nvjpg0"),
    (41, "gpu.media.active", "gpu.instance.media.active", "nvjpg1"),
    (42, "gpu.media.active", "gpu.instance.media.active", "nvjpg2"),
    (43, "gpu.media.active", "gpu.instance.media.active", "nvjpg3"),
    (44, "gpu.media.active", "gpu.instance.media.active", "nvjpg4"),
    (45, "gpu.media.active", "gpu.instance.media.active", "nvjpg5"),
    (46, "gpu.media.active", "gpu.instance.media.active", "nvjpg6"),
    (47, "gpu.media.active", "gpu.instance.media.active", "nvjpg7"),
    (50, "gpu.media.active", "gpu.instance.media.active", "ofa0"),
    (51, "gpu.media.active", "gpu.instance.media.active", "ofa1"),
    (60, "gpu.nvlink.throughput", "", "receive"),
    (61, "gpu.nvlink.throughput", "", "transmit"),
    (100, "gpu.c2c.throughput", "", "transmit"),
    (101, "gpu.c2c.throughput", "", "receive"),
    (166, "gpu.media.active", "gpu.instance.media.active", "nvenc0"),
    (167, "gpu.media.active", "gpu.instance.media.active", "nvenc1"),
    (168, "gpu.media.active", "gpu.instance.media.active", "nvenc2"),
    (169, "gpu.media.active", "gpu.instance.media.active", "nvenc3"),
];

/// Every value of performance counters between two readings after a time. The state is not among
/// them.
pub(crate) fn counters(scenario: &Scenario, seconds: f64) -> Values {
    let mut values = Values::new();
    for device in scenario.devices() {
        let mut put = |gpm: &Gpm, place: Option<[u32; 2]>| {
            for (number, of_device, of_instance, dim) in COUNTED {
                let name = if place.is_some() { of_instance } else { of_device };
                let Some(curve) = gpm.curve(*number).filter(|_| !name.is_empty()) else { continue };
                let is_rate = name.ends_with(".throughput");
                let factor = if is_rate { 1_048_576.0 } else { 0.01 };
                let dim = place.map_or_else(String::new, prefix) + dim;
                let value = device.value(curve, seconds) * factor;
                values.insert(((*name).to_owned(), device.index, 0, dim), value);
            }
        };
        if let Some(gpm) = &device.group.gpm {
            put(gpm, None);
        }
        // Counters are the GPU instance's, and on the first of its compute instances.
        let mut first = BTreeSet::new();
        for instance in device.instances(seconds) {
            if first.insert(instance.gpu_instance)
                && let Some(gpm) = &instance.gpm
            {
                put(gpm, Some(instance.place()));
            }
        }
    }
    values
}
