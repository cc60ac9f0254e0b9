//! Maps device nodes to partitions: a MIG instance's capability node, or a partition's own render
//! node. A process's open nodes identify its partition before the driver lists the process, and
//! where the driver's list does not name the partition.

use crate::attribute::allocations::DeviceName;
use crate::inventory::{GpuInfo, node_name};
use crate::nodes::Vendors;
use gpuwho_model::ids::Place;
use gpuwho_model::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The partition that a node opens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    /// The node of the whole device.
    pub device: Arc<str>,
    /// The partition.
    pub place: Place,
}

/// The nodes of the current partitions, by name below `/dev` and by `major:minor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionNodes(BTreeMap<String, Partition>);

impl FromIterator<(String, Partition)> for PartitionNodes {
    fn from_iter<I: IntoIterator<Item = (String, Partition)>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl PartitionNodes {
    /// The nodes of every vendor's partitions.
    pub fn of_all(vendors: Vendors, paths: &Paths) -> Self {
        vendors.iter().flat_map(|vendor| (vendor.partition_nodes)(paths).0).collect()
    }

    /// The partitions that these nodes open.
    pub fn opened_by(&self, nodes: &[Arc<str>]) -> Vec<&Partition> {
        nodes.iter().filter_map(|node| self.0.get(node_name(node))).collect()
    }

    /// The one partition of a device that the nodes open; `None` if there are several, because a
    /// process that opens all of them (a monitor, for example) does not thereby run in any.
    pub fn only_one_of(&self, nodes: &[Arc<str>], gpu: &GpuInfo) -> Option<Place> {
        let opened = self.opened_by(nodes);
        let here = || opened.iter().filter(|part| gpu.nodes.iter().any(|n| **n == *part.device));
        let gpu_instances: BTreeSet<_> = here().map(|part| part.place.gpu_instance).collect();
        let compute_instances: BTreeSet<_> =
            here().filter_map(|part| part.place.compute_instance).collect();
        if gpu_instances.len() != 1 || compute_instances.len() > 1 {
            return None;
        }
        let compute_instance = compute_instances.first().copied();
        Some(Place { gpu_instance: *gpu_instances.first()?, compute_instance })
    }

    /// The devices that the nodes open: the partitions of a partitioned device, else the whole
    /// device.
    pub fn devices_of(&self, nodes: &[Arc<str>], vendors: Vendors) -> Vec<DeviceName> {
        let opened = self.opened_by(nodes);
        let whole = nodes.iter().map(|node| node_name(node)).filter(|node| {
            let is_divided = opened.iter().any(|part| *part.device == **node);
            let is_part = self.0.contains_key(*node);
            !is_divided && !is_part && vendors.iter().any(|vendor| (vendor.is_device_node)(node))
        });
        let whole = whole.map(|node| DeviceName::Node(node.into()));
        // The node of a GPU instance gives no access beyond the compute instances inside it.
        let is_around = |outer: &Partition, inner: &Partition| {
            outer.place.compute_instance.is_none()
                && inner.place.compute_instance.is_some()
                && (&outer.device, outer.place.gpu_instance)
                    == (&inner.device, inner.place.gpu_instance)
        };
        let parts = opened.iter().filter(|part| !opened.iter().any(|in_it| is_around(part, in_it)));
        let parts = parts.map(|part| DeviceName::Instance {
            device: Arc::clone(&part.device),
            gpu_instance: part.place.gpu_instance,
            compute_instance: part.place.compute_instance,
        });
        whole.chain(parts).collect()
    }
}
