//! Reads Google Cloud TPUs: the kernel's files for the chips, and for what they do the metrics that
//! libtpu serves inside the process that uses them ([`runtime`]).
//!
//! A chip is a PCI device of Google's with the number of a TPU, whatever its driver: chips before v5
//! have one of their own, the others are `vfio-pci`'s. A reading is a few small files; without a
//! process on a chip there is nothing to read of its load. Numbers and nodes are those of Google's
//! tpu-info 0.14 (`device.py`); not tried on hardware.

mod runtime;

use super::files::Files;
use super::sysfs::{self, FileDevice, Link, ReadFiles, Source};
use super::wire::{Outcome, Reading, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::ids::{GpuUuid, PciAddress};
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

const SAMPLE: &str = r#"#: enabled = true
# There is no library to name. Utilisation and memory come from the metrics that libtpu serves on a
# loopback port (8431 and up) of the process that uses a chip; the agent enters that process's network
# namespace for the connection, and believes what it says of its own chips only.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "tpu",
    remedy: "check that the machine has its TPU: lspci -d 1ae0:",
    nodes: VendorNodes {
        // Those of `/dev/vfio` are watched one by one: virtual machines have theirs there.
        nodes: &["/dev/accel*"],
        is_device_node: |node| number(node).is_some(),
        is_through_vfio: Some(is_chip),
        resources: &[("google.com/tpu", IdForm::Index("tpu"))],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    listed,
    source: |def| sysfs::source_of(&sources(), &[], def, "neither a file nor libtpu has it"),
    served: Some(runtime::served),
    open,
    ..Vendor::DEFAULT
};

/// Google's number on the PCI bus.
const GOOGLE: &str = "0x1ae0";

/// A kind of chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chip {
    /// Its number on the PCI bus.
    device: &'static str,
    /// The number of its board, where two kinds share the other.
    subsystem: Option<&'static str>,
    /// `v5e`.
    name: &'static str,
    /// Its memory in GiB.
    memory: i64,
}

const fn chip(device: &'static str, name: &'static str, memory: i64) -> Chip {
    Chip { device, subsystem: None, name, memory }
}

const CHIPS: &[Chip] = &[
    Chip { subsystem: Some("0x004e"), ..chip("0x0027", "v2", 16) },
    Chip { subsystem: Some("0x004f"), ..chip("0x0027", "v3", 32) },
    chip("0x005e", "v4", 32),
    chip("0x0062", "v5p", 95),
    chip("0x0063", "v5e", 16),
    chip("0x006f", "v6e", 32),
    chip("0x0076", "7x", 192),
];

/// Whether a PCI device with these numbers is a TPU.
fn is_chip(vendor: &str, device: &str) -> bool {
    vendor == GOOGLE && CHIPS.iter().any(|chip| chip.device == device)
}

/// The number of a chip's node: `/dev/vfio/12`, `/dev/accel3`.
fn number(node: &str) -> Option<u32> {
    let number = node.strip_prefix("vfio/").or_else(|| node.strip_prefix("accel"))?;
    number.parse().ok()
}

/// The chip in a PCI device's folder.
fn chip_at(folder: &Path, files: &mut Files) -> Option<Chip> {
    let mut text = |file: &str| files.text(&folder.join(file));
    if text("vendor")? != GOOGLE {
        return None;
    }
    let device = text("device")?;
    let board = text("subsystem_device");
    let is_it = |chip: &&Chip| {
        chip.device == device && chip.subsystem.is_none_or(|known| board.as_deref() == Some(known))
    };
    CHIPS.iter().find(is_it).copied()
}

/// The chips in the order of their nodes, which is libtpu's.
fn chips(paths: &Paths) -> Vec<(PathBuf, Chip)> {
    let entries = fs::read_dir(paths.sys.join("bus/pci/devices")).into_iter().flatten().flatten();
    let is_device = |path: &PathBuf| {
        path.file_name().and_then(|name| PciAddress::parse(name.to_str()?)).is_some()
    };
    let folders = entries.map(|entry| entry.path()).filter(is_device).take(MAX_PCI);
    let mut files = Files::default();
    let mut chips: Vec<_> = folders
        .filter_map(|folder| chip_at(&folder, &mut files).map(|chip| (folder, chip)))
        .take(sysfs::MAX_DEVICES)
        .collect();
    chips.sort_by_key(|(folder, _)| {
        let node = node(folder);
        (
            node.as_deref().and_then(number).is_none(),
            node.as_deref().and_then(number),
            folder.clone(),
        )
    });
    chips
}

/// More devices than a bus has.
const MAX_PCI: usize = 4096;

/// The name of a chip's node below `/dev`.
fn node(folder: &Path) -> Option<String> {
    let accel = fs::read_dir(folder.join("accel")).into_iter().flatten().flatten();
    let accel = accel.filter_map(|entry| entry.file_name().into_string().ok());
    let accel = accel.filter(|name| number(name).is_some()).min();
    accel.or_else(|| {
        let group = fs::read_link(folder.join("iommu_group")).ok()?;
        let group: u32 = group.file_name()?.to_str()?.parse().ok()?;
        Some(format!("vfio/{group}"))
    })
}

fn listed(paths: &Paths) -> BTreeSet<OsString> {
    chips(paths).iter().filter_map(|(folder, _)| folder.file_name().map(Into::into)).collect()
}

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let device = |(index, (folder, chip)): (u32, (PathBuf, Chip))| {
        let (paths, link) = (paths.clone(), Link::default());
        FileDevice::boxed(Tpu { paths, folder, chip, index, link })
    };
    let devices = (0..).zip(chips(&paths)).map(device).collect();
    sysfs::library(devices, &paths, listed, "there is no TPU on the PCI bus")
}

/// One chip.
struct Tpu {
    paths: Paths,
    folder: PathBuf,
    chip: Chip,
    index: u32,
    link: Link,
}

impl Tpu {
    fn address(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().to_ascii_lowercase()
    }
}

impl ReadFiles for Tpu {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        let nodes = node(&self.folder).map_or_else(Vec::new, |name| {
            let class = match name.strip_prefix("vfio/") {
                Some(group) => self.paths.sys.join("class/vfio").join(group),
                None => self.folder.join("accel").join(&name),
            };
            sysfs::nodes(name, &class, files)
        });
        let driver = sysfs::driver(&self.folder);
        GpuInfo {
            nodes,
            model: Some(format!("Google TPU {}", self.chip.name)),
            pci_address: Some(self.address()),
            driver_version: driver
                .and_then(|driver| sysfs::version(&self.paths, &driver.replace('-', "_"), files)),
            ..GpuInfo::new(
                GpuUuid::new(&format!("TPU-{}", self.address())),
                VENDOR.name,
                self.index,
            )
        }
    }

    fn is_lost(&mut self, files: &mut Files) -> Option<String> {
        let is_here = chip_at(&self.folder, files).is_some();
        (!is_here).then(|| format!("there is no TPU at {}", self.address()))
    }

    fn values(&mut self, files: &mut Files, _: &[u32], reading: &mut Reading) -> Outcome {
        push(&mut reading.values, &metric::INFO, (), Some(1));
        // vfio-pci lets a chip that no process uses suspend; reading its link would wake it.
        if sysfs::is_suspended(&self.folder, files) {
            return Outcome::Ok;
        }
        self.link.read(&self.folder, files, &mut reading.values);
        self.link.limits(&self.folder, files, &mut reading.values);
        Outcome::Ok
    }
}

/// The file behind each metric.
fn sources() -> Vec<Source> {
    let own = [
        (metric::INFO.def(), "PCI address, `device`, `subsystem_device`"),
        (metric::STATE.def(), "the PCI bus, the reader's deadline"),
        (
            metric::UTILIZATION.def(),
            "libtpu's `tpu.runtime.tensorcore.dutycycle.percent`, while a process uses the chip",
        ),
        (
            metric::MEMORY_BANDWIDTH_UTILIZATION.def(),
            "libtpu's `tpu.runtime.hbm.utilization.percent`, while a process uses the chip",
        ),
        (
            metric::MEMORY_USAGE.def(),
            "libtpu's `tpu.runtime.hbm.memory.usage.bytes`, while a process uses the chip",
        ),
        (
            metric::MEMORY_LIMIT.def(),
            "libtpu's `tpu.runtime.hbm.memory.total.bytes`, while a process uses the chip",
        ),
    ];
    own.into_iter().chain(sysfs::link_sources()).chain(sysfs::opener_sources()).collect()
}

#[cfg(test)]
mod tests {
    use super::VENDOR;
    use crate::sysfs::fake::{Tree, expected, values};
    use crate::wire::Outcome;

    /// Four chips of v5e, whose groups are in another order than their addresses.
    fn v5e(tree: &Tree) {
        for (slot, group) in [(4, 10), (5, 3), (6, 1), (7, 0)] {
            let folder = tree.pci(&format!("0000:00:0{slot}.0"), "vfio-pci");
            tree.put_all(&folder, &[("vendor", "0x1ae0"), ("device", "0x0063")]);
            let groups = format!("sys/kernel/iommu_groups/{group}");
            tree.put(&format!("{groups}/type"), "DMA");
            tree.link(&groups, &format!("{folder}/iommu_group"));
            tree.put(&format!("sys/class/vfio/{group}/dev"), &format!("243:{group}"));
        }
        // A network card of a virtual machine's, and Google's own.
        for (address, vendor, device) in
            [("0000:00:08.0", "0x8086", "0x0063"), ("0000:00:09.0", "0x1ae0", "0x0042")]
        {
            let folder = tree.pci(address, "vfio-pci");
            tree.put_all(&folder, &[("vendor", vendor), ("device", device)]);
        }
    }

    #[test]
    fn chips_are_found_by_their_numbers_and_ordered_by_their_nodes() {
        let tree = Tree::new();
        v5e(&tree);
        let readings = tree.read(&VENDOR);
        let found = readings.iter().map(|reading| {
            let info = reading.identity.as_ref().unwrap();
            (info.index, info.uuid.as_str(), info.nodes.join(" "))
        });
        let expected_chips = [
            (0, "TPU-0000:00:07.0", "vfio/0 243:0".to_owned()),
            (1, "TPU-0000:00:06.0", "vfio/1 243:1".to_owned()),
            (2, "TPU-0000:00:05.0", "vfio/3 243:3".to_owned()),
            (3, "TPU-0000:00:04.0", "vfio/10 243:10".to_owned()),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected_chips);
        assert_eq!(readings[0].outcome, Outcome::Ok);
        assert_eq!(values(&readings[0].values), expected(&[]));
        let model = readings[0].identity.as_ref().unwrap().model.as_deref();
        assert_eq!(model, Some("Google TPU v5e"));
    }

    #[test]
    fn a_suspended_chip_is_not_woken() {
        let tree = Tree::new();
        v5e(&tree);
        tree.put("sys/devices/pci0000:00/0000:00:07.0/power/runtime_status", "suspended");
        let readings = tree.read(&VENDOR);
        let names = |index: usize| values(&readings[index].values).into_keys().collect::<Vec<_>>();
        assert_eq!((&readings[0].outcome, names(0)), (&Outcome::Ok, vec!["gpu.info".to_owned()]));
        assert_eq!(names(1).len(), 5, "the others have their link");
    }

    #[test]
    fn a_chip_that_leaves_the_bus_is_lost() {
        let tree = Tree::new();
        v5e(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        std::fs::remove_dir_all(tree.at("sys/devices/pci0000:00/0000:00:07.0")).unwrap();
        assert!(matches!(device.read(&[]).outcome, Outcome::Lost(_)));
    }
}
