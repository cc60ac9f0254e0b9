//! The names that allocators have for devices.

use gpuwho_model::ids::GpuUuid;
use std::sync::Arc;

/// A device as an allocator names it; bound to a device of the inventory on use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceName {
    /// The vendor's UUID of a device or of a part of one (`GPU-…`, `MIG-…`).
    Uuid(GpuUuid),
    /// Minor number of its device node (Slurm's device program).
    Minor(u32),
    /// Index in the driver's order, of whatever vendor's driver.
    Index(u32),
    /// Index in the order of this vendor's driver: a host may have devices of two.
    IndexOf(&'static str, u32),
    /// PCI address, lower case.
    Pci(Arc<str>),
    /// Serial number.
    Serial(Arc<str>),
    /// A number that may be an index or a node's minor (a site's mapping files): it names a device
    /// only if both readings match no other device.
    Number(u32),
    /// A device's MIG instance: the device's number as above, and the GPU instance's id.
    Part(u32, u32),
    /// The device of a node, by the node's name below `/dev` or its number (Slurm's device
    /// program).
    Node(Arc<str>),
    /// A partition with nodes of its own (Slurm's device program).
    Instance {
        /// The node of the whole device.
        device: Arc<str>,
        /// GPU instance id.
        gpu_instance: u32,
        /// Compute instance id, if its node is allowed too.
        compute_instance: Option<u32>,
    },
    /// A MIG instance by its place (NVIDIA's claims): the only one of its profile on the device.
    Placed {
        /// Minor number of the device's node.
        minor: u32,
        /// `1g10gb`, `1g10gb-me`: as a name of DNS.
        profile: Arc<str>,
        /// The first memory slice.
        start: u32,
    },
}

impl DeviceName {
    /// The device that a mapping file's name denotes: `0`, `0.3` for a MIG instance, or a UUID.
    pub fn of_map(name: &str) -> Option<Self> {
        if name.starts_with("GPU-") || name.starts_with("MIG-") {
            return Some(Self::Uuid(GpuUuid::new(name)));
        }
        match name.split_once('.') {
            Some((device, part)) => Some(Self::Part(device.parse().ok()?, part.parse().ok()?)),
            None => name.parse().ok().map(Self::Number),
        }
    }

    /// Whether it names a MIG instance.
    pub fn is_part(&self) -> bool {
        match self {
            Self::Uuid(uuid) => uuid.as_str().starts_with("MIG-"),
            Self::Part(..) | Self::Instance { .. } | Self::Placed { .. } => true,
            _ => false,
        }
    }
}
