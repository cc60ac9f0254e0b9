//! The compute driver's view (KFD): one node for each device, or for each of its partitions, and
//! one directory for each process with a context.

use super::super::files::{Files, numbered};
use super::super::partitions::{Partition, PartitionNodes};
use super::super::sysfs::{self, MILLI};
use super::super::wire::{ProcessValue, WireValue, push};
use super::place;
use crate::catalog::process::{self as metric, ProcessType};
use crate::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// DRM's major number.
const DRM: u32 = 226;

/// A device, or a partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// KFD's id, if it has one.
    id: Option<u64>,
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

fn root(paths: &Paths) -> PathBuf {
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

/// The parts of a device in KFD's order: one if it is not partitioned. Partitions have the device's
/// PCI address, except that on some kernels the function is the partition's number, and they have
/// its unique id.
pub(super) fn parts(paths: &Paths, folder: &Path, address: &str) -> Vec<Part> {
    let unique = unique_id(folder);
    let mut files = Files::default();
    let mut parts = Vec::new();
    for (_, node) in numbered(&root(paths).join("topology/nodes"), "") {
        let keys = properties(&mut files, &node.join("properties"));
        let key = |name: &str| keys.get(name).copied().filter(|number| *number > 0);
        let Some(id) = files.number(&node.join("gpu_id")).filter(|id| *id > 0) else { continue };
        let location = key("location_id").unwrap_or_default();
        let domain = key("domain").unwrap_or_default();
        let [bus, slot, function] = [location >> 8 & 0xff, location >> 3 & 0x1f, location & 7];
        let is_here = format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}") == address;
        let is_part = unique.is_some() && key("unique_id") == unique;
        let render = key("drm_render_minor").and_then(|minor| u32::try_from(minor).ok());
        let (true, Some(render)) = (is_here || is_part, render) else { continue };
        let units = key("simd_count").zip(key("simd_per_cu")).map(|(all, per)| all / per);
        let bank = properties(&mut files, &node.join("mem_banks/0/properties"));
        parts.push(Part {
            id: Some(id),
            render,
            units: units.and_then(|units| u32::try_from(units).ok()),
            memory: bank.get("size_in_bytes").copied().filter(|size| *size > 0),
        });
    }
    if parts.is_empty() {
        // KFD is not built, or does not list the device: graphics only.
        let nodes = numbered(&folder.join("drm"), "renderD");
        let part = |(render, _)| Part { id: None, render, units: None, memory: None };
        parts.extend(nodes.into_iter().map(part).take(1));
    }
    parts
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
    for address in sysfs::bound(paths, &[super::DRIVER]) {
        let address = address.to_string_lossy();
        let folder = sysfs::pci_folder(paths, &address);
        let parts = parts(paths, &folder, &address);
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

/// Adds the processes on the parts of a device with their memory there. KFD has a file for each
/// device that a process could use: a process without memory on a device counts only if it has a
/// queue there.
pub(super) fn processes(
    paths: &Paths,
    parts: &[Part],
    files: &mut Files,
    out: &mut Vec<ProcessValue>,
) {
    for (pid, folder) in numbered(&root(paths).join("proc"), "") {
        let mut queues = None;
        for (number, part) in (0..).zip(parts) {
            let Some(id) = part.id else { continue };
            let Some(bytes) = files.number(&folder.join(format!("vram_{id}"))) else { continue };
            if bytes == 0
                && !queues.get_or_insert_with(|| devices_of_queues(&folder, files)).contains(&id)
            {
                continue;
            }
            let mut values = Vec::new();
            let bytes = i64::try_from(bytes).ok();
            push(&mut values, &metric::MEMORY_USAGE, ProcessType::Compute, bytes);
            statistics(&folder.join(format!("stats_{id}")), part, files, &mut values);
            let place = (parts.len() > 1).then(|| place(number));
            out.extend(values.into_iter().map(|value| ProcessValue { pid, place, value }));
        }
    }
}

/// What KFD counts of a process on a part. The driver looks at the compute units when `cu_occupancy` is
/// read.
fn statistics(folder: &Path, part: &Part, files: &mut Files, out: &mut Vec<WireValue>) {
    let occupied = part.units.zip(files.number(&folder.join("cu_occupancy")));
    let occupied = occupied.and_then(|(units, occupied)| {
        let occupied = u32::try_from(occupied).ok().filter(|occupied| *occupied <= units);
        files.count_implausible(occupied).map(|occupied| f64::from(occupied) / f64::from(units))
    });
    push(out, &metric::OCCUPANCY, (), occupied);
    let evicted = files.number(&folder.join("evicted_ms"));
    #[expect(clippy::cast_precision_loss, reason = "a double has the milliseconds of years")]
    push(out, &metric::EVICTED_TIME, (), evicted.map(|ms| ms as f64 / MILLI));
}

/// The ids of the devices on which a process has queues.
fn devices_of_queues(folder: &Path, files: &mut Files) -> BTreeSet<u64> {
    let queues = numbered(&folder.join("queues"), "").into_iter();
    queues.filter_map(|(_, queue)| files.number(&queue.join("gpuid"))).collect()
}
