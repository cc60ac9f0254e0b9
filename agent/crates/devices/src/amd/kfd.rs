//! The compute driver's view (KFD): one node for each device, or for each of its partitions.

use super::super::files::{Files, numbered};
use super::super::sysfs;
use super::place;
use gpuwho_model::paths::Paths;
use gpuwho_owners::partitions::{Partition, PartitionNodes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// DRM's major number.
const DRM: u32 = 226;

/// A device, or a partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// KFD's id, if it has one.
    pub(super) id: Option<u64>,
    /// Minor number of its render node.
    render: u32,
    /// Compute units.
    pub(super) units: Option<u32>,
    /// Bytes of memory.
    pub(super) memory: Option<u64>,
}

impl Part {
    /// The names of its render node: by name and by `major:minor`.
    pub(super) fn nodes(&self) -> [String; 2] {
        [format!("dri/renderD{}", self.render), format!("{DRM}:{}", self.render)]
    }
}

pub(super) fn root(paths: &Paths) -> PathBuf {
    paths.sys.join("class/kfd/kfd")
}

/// The file with the topology's generation number.
pub(super) fn generation(paths: &Paths) -> PathBuf {
    root(paths).join("topology/generation_id")
}

/// The board's unique id: hexadecimal in the device's directory.
pub(super) fn unique_id(folder: &Path) -> Option<u64> {
    let text = Files::default().text(&folder.join("unique_id"))?;
    u64::from_str_radix(&text, 16).ok().filter(|id| ![0, u64::MAX].contains(id))
}

/// A node of KFD's topology: its folder and what it says.
type Node = (PathBuf, BTreeMap<String, u64>);

fn topology(paths: &Paths) -> Vec<Node> {
    let mut files = Files::default();
    let nodes = numbered(&root(paths).join("topology/nodes"), "").into_iter();
    nodes
        .map(|(_, node)| (node.clone(), properties(&mut files, &node.join("properties"))))
        .collect()
}

/// The parts of a device in KFD's order: one if it is not partitioned.
pub(super) fn parts(paths: &Paths, folder: &Path, address: &str) -> Vec<Part> {
    let mut parts = parts_in(&topology(paths), folder, address);
    if parts.is_empty() {
        // KFD is not built, or does not list the device: graphics only.
        let nodes = numbered(&folder.join("drm"), "renderD");
        let part = |(render, _)| Part { id: None, render, units: None, memory: None };
        parts.extend(nodes.into_iter().map(part).take(1));
    }
    parts
}

/// The nodes of a device. Partitions have the device's PCI address, except that on some kernels the
/// function is the partition's number, and they have its unique id.
fn parts_in(topology: &[Node], folder: &Path, address: &str) -> Vec<Part> {
    let unique = unique_id(folder);
    let mut files = Files::default();
    let part = |(node, keys): &Node| {
        let key = |name: &str| keys.get(name).copied().filter(|number| *number > 0);
        let location = key("location_id").unwrap_or_default();
        let domain = key("domain").unwrap_or_default();
        let [bus, slot, function] = [location >> 8 & 0xff, location >> 3 & 0x1f, location & 7];
        let is_here = format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}") == address;
        let is_part = unique.is_some() && key("unique_id") == unique;
        let render = key("drm_render_minor").and_then(|minor| u32::try_from(minor).ok());
        let (true, Some(render)) = (is_here || is_part, render) else { return None };
        let id = files.number(&node.join("gpu_id")).filter(|id| *id > 0)?;
        let units = key("simd_count").zip(key("simd_per_cu")).map(|(all, per)| all / per);
        let bank = properties(&mut files, &node.join("mem_banks/0/properties"));
        Some(Part {
            id: Some(id),
            render,
            units: units.and_then(|units| u32::try_from(units).ok()),
            memory: bank.get("size_in_bytes").copied().filter(|size| *size > 0),
        })
    };
    topology.iter().filter_map(part).collect()
}

/// Parses lines of a name and a number.
fn properties(files: &mut Files, path: &Path) -> BTreeMap<String, u64> {
    let text = files.text(path).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(key, value)| Some((key.to_owned(), value.trim().parse().ok()?))).collect()
}

/// The render nodes of the partitions of every partitioned device.
pub(super) fn partition_nodes(paths: &Paths) -> PartitionNodes {
    let mut nodes = Vec::new();
    let topology = topology(paths);
    for address in sysfs::bound(paths, &[super::DRIVER]) {
        let address = address.to_string_lossy();
        let folder = sysfs::pci_folder(paths, &address);
        let parts = parts_in(&topology, &folder, &address);
        let [first, _, ..] = parts.as_slice() else { continue };
        let [device, _] = first.nodes();
        let device: Arc<str> = device.into();
        for (number, part) in (0..).zip(&parts) {
            let partition = Partition { device: Arc::clone(&device), place: place(number) };
            nodes.extend(part.nodes().map(|node| (node, partition.clone())));
        }
    }
    nodes.into_iter().collect()
}
