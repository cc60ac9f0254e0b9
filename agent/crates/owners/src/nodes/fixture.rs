//! Vendors of device nodes, as tests of what is not about a vendor see them.

use super::{IdForm, VendorNodes, Vendors};
use crate::partitions::{Partition, PartitionNodes};
use gpuwho_model::ids::Place;
use gpuwho_model::paths::Paths;

/// Two partitions, of a board whose second one has the node behind its own.
fn halves(paths: &Paths) -> PartitionNodes {
    let is_divided = |render: &u32| {
        let device = paths.sys.join(format!("class/drm/renderD{}/device", render + 1));
        let target = std::fs::read_link(device).unwrap_or_default();
        target.file_name().is_some_and(|name| name.to_string_lossy().starts_with("amdgpu_xcp"))
    };
    let has_topology = paths.sys.join("class/kfd").exists();
    let boards = (128..144).filter(|render| has_topology && is_divided(render));
    let part = |render: u32, gpu_instance: u32| {
        let device = format!("dri/renderD{render}").into();
        let place = Place { gpu_instance, compute_instance: None };
        (format!("dri/renderD{}", render + gpu_instance), Partition { device, place })
    };
    boards.flat_map(|render| [0, 1].map(|number| part(render, number))).collect()
}

/// Two vendors that use the kernel's common nodes, one with nodes of its own, and one through VFIO.
pub static VENDORS: Vendors = &[
    VendorNodes {
        node_drivers: &["drm"],
        drivers: &["amdgpu"],
        is_device_node: |node| node.starts_with("dri/renderD") || node.starts_with("226:"),
        partition_nodes: halves,
        ..VendorNodes::NONE
    },
    VendorNodes { node_drivers: &["habanalabs"], drivers: &["habanalabs"], ..VendorNodes::NONE },
    VendorNodes { nodes: &["/dev/nvidia*"], node_drivers: &["nvidia"], ..VendorNodes::NONE },
    VendorNodes {
        is_through_vfio: Some(|vendor, device| (vendor, device) == ("0x1ae0", "0x0063")),
        resources: &[
            ("nvidia.com/", IdForm::Nvidia),
            ("amd.com/", IdForm::Amd),
            ("habana.ai/", IdForm::Serial),
            ("gpu.intel.com/", IdForm::DrmCard),
            ("google.com/tpu", IdForm::Index("tpu")),
            ("tenstorrent.com/", IdForm::Index("tenstorrent")),
            ("aws.amazon.com/neuroncore", IdForm::NeuronCore),
            ("aws.amazon.com/neuron", IdForm::Index("neuron")),
        ],
        claims: &[
            ("gpu.nvidia.com/", IdForm::NvidiaClaim),
            ("gpu.amd.com/", IdForm::DrmNodes),
            ("gpu.intel.com/", IdForm::PciAndModel),
            ("gaudi.intel.com/", IdForm::PciAndModel),
        ],
        ..VendorNodes::NONE
    },
];
