//! What differs between AMD's boards in the files of their drivers: `aldebaran_ppt.c`,
//! `smu_v13_0_6_ppt.c`, `smu_v13_0_0_ppt.c` and `amdgpu_pm.c` of Linux 6.12, and for KFD's numbers
//! `kfd_device.c`. MI300X and MI210 are recorded (ROCm/k8s-device-plugin `testdata`); MI325X and the
//! Radeon are made from these sources.

use nvidia_ml::scenario::Device;

/// A board.
#[derive(Debug)]
pub(super) struct Model {
    /// How a scenario names it.
    name: &'static str,
    /// Number on the PCI bus.
    pub(super) device: u32,
    pub(super) vbios: &'static str,
    /// Compute units, and vector units of each.
    pub(super) units: u32,
    pub(super) simd_per_unit: u32,
    /// Dies with compute units.
    pub(super) dies: u32,
    /// `gfx_target_version` of KFD.
    pub(super) target: u32,
    /// The old table of readings, `power1_average` and the sensor `edge`; else revision 1.7,
    /// `power1_input`, partitions and no `edge`.
    pub(super) is_before_mi300: bool,
}

const MI300X: Model = Model {
    name: "MI300X",
    device: 0x74a1,
    vbios: "113-M3000100-103",
    units: 304,
    simd_per_unit: 4,
    dies: 8,
    target: 90402,
    is_before_mi300: false,
};

const OTHERS: [Model; 3] = [
    Model { name: "MI325X", device: 0x74a5, vbios: "113-M3250100-100", ..MI300X },
    Model {
        name: "MI210",
        device: 0x740f,
        vbios: "113-D67301-063",
        units: 104,
        dies: 1,
        target: 90010,
        is_before_mi300: true,
        ..MI300X
    },
    Model {
        name: "W7900",
        device: 0x7448,
        vbios: "113-D7070100-138",
        units: 96,
        simd_per_unit: 2,
        dies: 1,
        target: 110_000,
        is_before_mi300: true,
    },
];

/// The board of a device of a scenario.
pub(super) fn of(device: &Device<'_>) -> &'static Model {
    let known = OTHERS.iter().find(|model| device.group.name.contains(model.name));
    known.unwrap_or(&MI300X)
}
