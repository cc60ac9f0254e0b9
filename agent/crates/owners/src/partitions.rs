//! Maps device nodes to partitions: a MIG instance's capability node, or a partition's own render
//! node. A process's open nodes identify its partition before the driver lists the process, and
//! where the driver's list does not name the partition.

use crate::inventory::{GpuInfo, node_name};
use gpuwho_model::ids::Place;
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
pub struct PartitionNodes(pub(crate) BTreeMap<String, Partition>);

impl FromIterator<(String, Partition)> for PartitionNodes {
    fn from_iter<I: IntoIterator<Item = (String, Partition)>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl PartitionNodes {
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
}
