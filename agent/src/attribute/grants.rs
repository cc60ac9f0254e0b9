//! What was granted to whom: the devices that the kubelet or Slurm has allocated on this node, used
//! or not. Each source replaces its own list as a whole; one that is down leaves its last.

use super::party::PartyId;
use crate::catalog::share::{GrantKind, GrantSource};
use crate::ids::GpuUuid;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A device as an allocator names it; it is bound to a device of the inventory where it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceName {
    /// The vendor's UUID of a device or of a part of one (`GPU-…`, `MIG-…`).
    Uuid(GpuUuid),
    /// Minor number of its device node (Slurm's device program).
    Minor(u32),
    /// Index in the driver's order.
    Index(u32),
    /// PCI address, lower case.
    Pci(Arc<str>),
    /// Serial number.
    Serial(Arc<str>),
    /// A number that may be its index or its node's minor (a site's mapping files): it names a
    /// device only where both readings of it name no other.
    Number(u32),
    /// The MIG part of a device: the device's number as above, and the GPU instance's id.
    Part(u32, u32),
}

/// Its node's name before the minor number.
const NVIDIA_NODE: &str = "nvidia";
/// Its number before the minor, where the host has no such node.
const NVIDIA_MAJOR: &str = "195:";
/// Minors of the driver's own nodes: mode setting and control (`nv-linux.h`).
const NVIDIA_OWN: [u32; 2] = [254, 255];

impl DeviceName {
    /// The device behind a node's path or number (`major:minor`); `None` for a node that is of no
    /// one device.
    pub fn of_node(node: &str) -> Option<Self> {
        let number = match node.strip_prefix(NVIDIA_MAJOR) {
            Some(minor) => minor,
            None => node.rsplit('/').next()?.strip_prefix(NVIDIA_NODE)?,
        };
        let minor = number.parse().ok()?;
        (!NVIDIA_OWN.contains(&minor)).then_some(Self::Minor(minor))
    }

    /// The device after which a mapping file is named: `0`, `0.3` for a MIG instance, or a UUID.
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
            Self::Part(..) => true,
            _ => false,
        }
    }
}

/// One device granted to one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What.
    pub device: DeviceName,
    /// To whom.
    pub party: PartyId,
    /// By whom.
    pub source: GrantSource,
    /// Alone or with others.
    pub kind: GrantKind,
    /// The name it was asked for by: `nvidia.com/gpu`, a claim, a gres.
    pub resource: Option<Arc<str>>,
    /// Which part, where several owners were granted the same device: the replica's number.
    pub replica: Option<Arc<str>>,
}

/// Every grant, by source.
#[derive(Clone, Debug, Default)]
pub struct Grants(Arc<Mutex<BySource>>);

type BySource = BTreeMap<&'static str, Arc<[Grant]>>;

impl Grants {
    /// A source's whole list, in place of its last.
    pub fn replace(&self, source: &'static str, grants: Vec<Grant>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(source, grants.into());
    }

    /// How many a source has listed.
    pub fn count(&self, source: &str) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(source).map_or(0, |list| list.len())
    }

    /// Every source's list.
    pub fn all(&self) -> Vec<Arc<[Grant]>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(Arc::clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_s_own_node_has_its_minor() {
        for (node, expected) in [
            ("/dev/nvidia0", Some(0)),
            ("/host/dev/nvidia12", Some(12)),
            ("195:3", Some(3)),
            ("195:255", None),
            ("/dev/nvidiactl", None),
            ("/dev/nvidia-uvm", None),
            ("/dev/nvidia-caps/nvidia-cap1", None),
            ("235:3", None),
            ("/dev/dri/renderD128", None),
        ] {
            assert_eq!(DeviceName::of_node(node), expected.map(DeviceName::Minor), "{node}");
        }
    }

    #[test]
    fn a_mapping_file_is_named_after_its_device() {
        let uuid = |text| DeviceName::Uuid(GpuUuid::new(text));
        for (name, expected) in [
            ("10", Some(DeviceName::Number(10))),
            ("0.3", Some(DeviceName::Part(0, 3))),
            ("GPU-4e1a", Some(uuid("GPU-4e1a"))),
            ("MIG-4e1a", Some(uuid("MIG-4e1a"))),
            ("-1", None),
            ("0.", None),
            ("0.3.1", None),
            ("README", None),
        ] {
            assert_eq!(DeviceName::of_map(name), expected, "{name}");
        }
    }

    #[test]
    fn a_source_replaces_its_own_list_only() {
        let grant = |index| Grant {
            device: DeviceName::Index(index),
            party: PartyId::UNATTRIBUTED,
            source: GrantSource::Slurm,
            kind: GrantKind::Exclusive,
            resource: None,
            replica: None,
        };
        let grants = Grants::default();
        grants.replace("kubelet", vec![grant(0)]);
        grants.replace("slurm", vec![grant(1), grant(2)]);
        grants.replace("slurm", vec![grant(3)]);
        let all: Vec<Grant> = grants.all().iter().flat_map(|list| list.to_vec()).collect();
        assert_eq!(all, [grant(0), grant(3)]);
    }
}
