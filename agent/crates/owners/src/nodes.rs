//! The watched character devices: the numbers of the configured nodes that exist, and the majors of
//! the drivers in `/proc/devices`, so that a node that exists only inside a container is watched
//! too.
//!
//! Costs one directory listing per pattern and one read of `/proc/devices`, when a node appears and
//! at every rescan.

use crate::inventory::{DeviceName, node_name};
use crate::partitions::{Partition, PartitionNodes};
use gpuwho_common::device_users::{ANY_MINOR, NodeKey};
use gpuwho_model::paths::Paths;
use rustix::fs::{FileType, major, minor, stat};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// DRM's first render node minor (`DRM_MINOR_RENDER << 6`); lower ones are display nodes.
const FIRST_RENDER_MINOR: u32 = 128;

/// A character device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The driver's number.
    pub major: u32,
    /// The node's number in the driver.
    pub minor: u32,
}

/// What a vendor's driver makes, and how it is known.
#[derive(Clone, Copy, Debug)]
pub struct VendorNodes {
    /// Device nodes that its processes open; the last component may end in `*`.
    pub nodes: &'static [&'static str],
    /// Names of its drivers in `/proc/devices`.
    pub node_drivers: &'static [&'static str],
    /// Names of its kernel drivers on the PCI bus.
    pub drivers: &'static [&'static str],
    /// Whether a node (name below `/dev`, or `major:minor`) belongs to one device.
    pub is_device_node: fn(&str) -> bool,
    /// The nodes of the partitions of its devices.
    pub partition_nodes: fn(&Paths) -> PartitionNodes,
    /// Whether a PCI device with these numbers (vendor, device) is its device whatever the driver.
    pub is_through_vfio: Option<fn(&str, &str) -> bool>,
    /// Kubernetes' resources that are its devices, by prefix; the first that fits counts.
    pub resources: &'static [(&'static str, IdForm)],
    /// The same of drivers of dynamic resource allocation, as `DRIVER/DEVICE`.
    pub claims: &'static [(&'static str, IdForm)],
}

impl VendorNodes {
    /// One without any.
    pub const NONE: Self = Self {
        nodes: &[],
        node_drivers: &[],
        drivers: &[],
        is_device_node: |_| false,
        partition_nodes: |_| PartitionNodes::default(),
        is_through_vfio: None,
        resources: &[],
        claims: &[],
    };
}

/// How a device plugin, or a driver of dynamic resource allocation, names a device. The same text has
/// different meanings.
#[derive(Clone, Copy, Debug)]
pub enum IdForm {
    /// A UUID, a PCI address or an index: forms that are unambiguous.
    Plain,
    /// A number in the order of the driver of the vendor of this name.
    Index(&'static str),
    /// The serial number.
    Serial,
    /// `cardN-REPLICA`, by DRM's card.
    DrmCard,
    /// `0000-0f-00-0-0x56c0`: PCI address and model, of a claim.
    PciAndModel,
    /// `gpu-CARD-RENDER`, by DRM's nodes, of a claim.
    DrmNodes,
    /// NVIDIA's: a UUID of a GPU or a MIG device, or `nvidiaMINOR`; `/giN` for a MIG instance, `::N` or
    /// `/vgpuN` for a replica (time slicing and MPS).
    Nvidia,
    /// NVIDIA's of a claim: `gpu-MINOR`, `gpu-MINOR-mig-PROFILE-…`, `gpu-vfio-N`.
    NvidiaClaim,
    /// AMD's: the PCI address, which is also that of a device's first partition, or `amdgpu_xcp_N`, the
    /// platform device of another one.
    Amd,
    /// A core, counted through all Neuron devices.
    NeuronCore,
}

/// Those of every supported vendor.
pub type Vendors = &'static [VendorNodes];

impl PartitionNodes {
    /// The nodes of every vendor's partitions.
    pub fn of_all(vendors: Vendors, paths: &Paths) -> Self {
        vendors.iter().flat_map(|vendor| (vendor.partition_nodes)(paths).0).collect()
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

/// Which nodes are watched.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Device nodes; the last component may end in `*`.
    pub nodes: Vec<String>,
    /// Drivers as in `/proc/devices`: their nodes are watched wherever they are created.
    pub drivers: Vec<String>,
    /// The vendors whose devices count.
    pub vendors: Vendors,
}

impl Settings {
    /// All nodes of these vendors, each once: vendors share DRM's.
    pub fn of(vendors: Vendors) -> Self {
        let all = |of: fn(&VendorNodes) -> &'static [&'static str]| {
            let mut names: Vec<String> = Vec::new();
            for name in vendors.iter().flat_map(of) {
                if !names.iter().any(|known| known == name) {
                    names.push((*name).to_owned());
                }
            }
            names
        };
        Self {
            nodes: all(|vendor| vendor.nodes),
            drivers: all(|vendor| vendor.node_drivers),
            vendors,
        }
    }
}

/// The watched devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    paths: BTreeMap<Device, Arc<str>>,
    /// Watched majors of drivers, with the lowest watched minor.
    drivers: BTreeMap<u32, u32>,
}

impl Nodes {
    /// Reads the host's nodes and drivers.
    pub fn read(settings: &Settings, paths: &Paths) -> Self {
        let mut nodes = Self::default();
        for pattern in settings.nodes.iter().map(|pattern| Pattern::parse(pattern, paths)) {
            nodes.paths.extend(pattern.devices());
        }
        let table = fs::read_to_string(paths.proc.join("devices")).unwrap_or_default();
        nodes.drivers = majors(&table, &settings.drivers);
        nodes.only_accelerators(settings.vendors, paths);
        nodes.add_groups(settings.vendors, paths);
        nodes
    }

    /// Drops the render nodes and the nodes of the class `accel` of other drivers, such as a display
    /// adapter's, a virtual machine's or those of the neural unit of a processor. sysfs lists every
    /// such node, also one that is inside a container only, so the whole driver need not be watched.
    /// The render node of a partition has no driver on the bus and stays.
    fn only_accelerators(&mut self, vendors: Vendors, paths: &Paths) {
        let class = |name: &str| fs::read_dir(paths.sys.join("class").join(name));
        let entries = ["drm", "accel"].into_iter().filter_map(|name| class(name).ok()).flatten();
        for folder in entries.flatten().map(|entry| entry.path()) {
            let Some(device) = accelerator_node(&folder) else { continue };
            self.drivers.remove(&device.major);
            let driver = fs::read_link(folder.join("device/driver"));
            let driver = driver.as_deref().ok().and_then(Path::file_name);
            let is_known = || is_through_vfio(vendors, &folder.join("device"));
            if driver.is_some_and(|driver| !is_accelerators(vendors, driver)) && !is_known() {
                self.paths.remove(&device);
            } else {
                let name = format!("{}:{}", device.major, device.minor);
                self.paths.entry(device).or_insert_with(|| name.into());
            }
        }
    }

    /// Adds the nodes of `/dev/vfio` through which processes use accelerators: those of groups with
    /// such a device. Virtual machines have theirs in the same directory.
    fn add_groups(&mut self, vendors: Vendors, paths: &Paths) {
        let groups = fs::read_dir(paths.sys.join("class/vfio")).into_iter().flatten().flatten();
        for group in groups.map(|entry| entry.file_name()) {
            let devices = paths.sys.join("kernel/iommu_groups").join(&group).join("devices");
            let devices = fs::read_dir(devices).into_iter().flatten().flatten();
            let has_one =
                devices.take(MAX_GROUP).any(|device| is_through_vfio(vendors, &device.path()));
            let device = number(&paths.sys.join("class/vfio").join(&group)).filter(|_| has_one);
            if let Some(device) = device {
                let path = paths.dev.join("vfio").join(&group);
                self.paths.insert(device, path.to_string_lossy().into());
            }
        }
    }

    /// Whether a device is watched.
    pub fn contains(&self, device: Device) -> bool {
        self.paths.contains_key(&device)
            || self.drivers.get(&device.major).is_some_and(|lowest| device.minor >= *lowest)
    }

    /// The host's path of a device, or its number if the host has no such node.
    pub fn name(&self, device: Device) -> Arc<str> {
        self.paths
            .get(&device)
            .map_or_else(|| Arc::from(format!("{}:{}", device.major, device.minor)), Arc::clone)
    }

    /// Whether there is nothing that a process could hold.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.drivers.is_empty()
    }

    /// Describes how many nodes and drivers are watched.
    pub fn count(&self) -> String {
        format!("{} nodes and {} drivers", self.paths.len(), self.drivers.len())
    }

    /// The entries of the programs' map: key and lowest minor.
    pub fn entries(&self) -> impl Iterator<Item = (NodeKey, u32)> + '_ {
        let nodes = self
            .paths
            .keys()
            .map(|device| (NodeKey { major: device.major, minor: device.minor }, device.minor));
        let drivers = self
            .drivers
            .iter()
            .map(|(major, lowest)| (NodeKey { major: *major, minor: ANY_MINOR }, *lowest));
        nodes.chain(drivers)
    }
}

/// Devices of a group that are looked at.
const MAX_GROUP: usize = 64;

/// The number of a render node, or of a node of the class `accel`, from its directory in sysfs.
fn accelerator_node(folder: &Path) -> Option<Device> {
    let name = folder.file_name()?.to_str()?;
    let rest = name.strip_prefix("renderD").or_else(|| name.strip_prefix("accel"))?;
    rest.parse::<u32>().ok()?;
    number(folder)
}

/// Whether a PCI device is an accelerator that processes use whatever its driver is.
fn is_through_vfio(vendors: Vendors, device: &Path) -> bool {
    let text = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
    let (vendor, number) = (text("vendor"), text("device"));
    let is_its = |of: fn(&str, &str) -> bool| of(vendor.trim(), number.trim());
    vendors.iter().filter_map(|vendor| vendor.is_through_vfio).any(is_its)
}

/// The number in a node's directory in sysfs.
fn number(folder: &Path) -> Option<Device> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

fn is_accelerators(vendors: Vendors, driver: &OsStr) -> bool {
    vendors.iter().any(|vendor| vendor.drivers.iter().any(|known| driver == *known))
}

/// The directories to watch for new nodes: that of each pattern, and those whose nodes are added.
pub fn folders(settings: &Settings, paths: &Paths) -> Vec<PathBuf> {
    let mut folders = vec![paths.dev.clone(), paths.dev.join("vfio")];
    folders.extend(settings.nodes.iter().map(|pattern| Pattern::parse(pattern, paths).folder));
    folders.sort();
    folders.dedup();
    folders
}

/// A path whose last component may end in `*`.
struct Pattern {
    folder: PathBuf,
    name: String,
    open_ended: bool,
}

impl Pattern {
    fn parse(text: &str, paths: &Paths) -> Self {
        let path = text
            .strip_prefix("/dev/")
            .map_or_else(|| PathBuf::from(text), |below| paths.dev.join(below));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let open_ended = name.ends_with('*');
        Self {
            folder: path.parent().unwrap_or(Path::new("/")).to_path_buf(),
            name: name.trim_end_matches('*').to_owned(),
            open_ended,
        }
    }

    fn matches(&self, name: &str) -> bool {
        if self.open_ended { name.starts_with(&self.name) } else { name == self.name }
    }

    fn devices(&self) -> Vec<(Device, Arc<str>)> {
        // A missing directory has no nodes: the driver is not loaded.
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| self.matches(name)))
            .filter_map(|entry| {
                let path = entry.path();
                let node = stat(&path).ok()?;
                (FileType::from_raw_mode(node.st_mode) == FileType::CharacterDevice).then(|| {
                    let device = Device { major: major(node.st_rdev), minor: minor(node.st_rdev) };
                    (device, Arc::from(path.to_string_lossy()))
                })
            })
            .collect()
    }
}

/// Majors of the named drivers in the text of `/proc/devices`.
fn majors(table: &str, drivers: &[String]) -> BTreeMap<u32, u32> {
    table
        .lines()
        .take_while(|line| !line.starts_with("Block"))
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(_, name)| drivers.iter().any(|driver| driver == name))
        .filter_map(|(major, name)| {
            let lowest = if name == "drm" { FIRST_RENDER_MINOR } else { 0 };
            Some((major.parse().ok()?, lowest))
        })
        .collect()
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests only"
)]
pub mod fixture;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_nodes_count_and_display_nodes_do_not() {
        let table = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n\nBlock devices:\n226 drm\n";
        let drivers = ["drm".to_owned(), "nvidia".to_owned()];
        let nodes = Nodes { paths: BTreeMap::new(), drivers: majors(table, &drivers) };
        assert_eq!(nodes.drivers, BTreeMap::from([(195, 0), (226, 128)]));
        assert!(nodes.contains(Device { major: 226, minor: 128 }));
        assert!(!nodes.contains(Device { major: 226, minor: 0 }));
        assert!(!nodes.contains(Device { major: 1, minor: 0 }));
    }

    #[test]
    fn pattern_takes_devices_only() {
        let mut paths = Paths::default();
        let dev = tempfile::tempdir().unwrap();
        fs::write(dev.path().join("nvidia0"), "not a device").unwrap();
        fs::create_dir(dev.path().join("nvidia-caps")).unwrap();
        std::os::unix::fs::symlink("/dev/full", dev.path().join("nvidia1")).unwrap();
        paths.dev = dev.path().to_path_buf();
        let found = Pattern::parse("/dev/nvidia*", &paths).devices();
        let link: Arc<str> = Arc::from(dev.path().join("nvidia1").to_string_lossy());
        assert_eq!(found, vec![(Device { major: 1, minor: 7 }, link)]);
    }

    #[test]
    fn device_without_a_node_here_is_named_by_its_number() {
        let nodes = Nodes::default();
        assert_eq!(&*nodes.name(Device { major: 195, minor: 3 }), "195:3");
    }

    #[test]
    fn a_node_of_vfio_or_accel_counts_by_its_device_and_not_by_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::under(root.path());
        let link = |to: &Path, place: &Path| {
            fs::create_dir_all(to).unwrap();
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, place).unwrap();
        };
        // A TPU, and a network card that a virtual machine has.
        for (group, vendor, device) in [(3, "0x1ae0", "0x0063"), (4, "0x8086", "0x1572")] {
            let pci = paths.sys.join(format!("devices/0000:00:0{group}.0"));
            let groups = paths.sys.join(format!("kernel/iommu_groups/{group}/devices"));
            link(&pci, &groups.join(pci.file_name().unwrap()));
            fs::write(pci.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(pci.join("device"), format!("{device}\n")).unwrap();
            let class = paths.sys.join(format!("class/vfio/{group}"));
            fs::create_dir_all(&class).unwrap();
            fs::write(class.join("dev"), format!("243:{group}\n")).unwrap();
        }
        // A Gaudi, and the neural unit of a processor.
        for (minor, driver) in [(0, "habanalabs"), (1, "intel_vpu")] {
            let class = paths.sys.join(format!("class/accel/accel{minor}"));
            fs::create_dir_all(&class).unwrap();
            fs::write(class.join("dev"), format!("261:{minor}\n")).unwrap();
            let driver = paths.sys.join("bus/pci/drivers").join(driver);
            link(&driver, &class.join("device/driver"));
        }
        let settings = Settings { nodes: Vec::new(), ..Settings::of(fixture::VENDORS) };
        let nodes = Nodes::read(&settings, &paths);
        let found = [(243, 3), (243, 4), (261, 0), (261, 1)]
            .map(|(major, minor)| nodes.contains(Device { major, minor }));
        assert_eq!(found, [true, false, true, false]);
        let name = nodes.name(Device { major: 243, minor: 3 });
        assert!(name.ends_with("/dev/vfio/3"), "{name}");
        assert!(folders(&settings, &paths).contains(&paths.dev.join("vfio")));
    }

    #[test]
    fn a_render_node_counts_by_the_driver_of_its_device() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::under(root.path());
        fs::create_dir_all(&paths.proc).unwrap();
        fs::write(paths.proc.join("devices"), "Character devices:\n226 drm\n").unwrap();
        let settings = Settings { nodes: Vec::new(), ..Settings::of(fixture::VENDORS) };
        let counts = |minor| Nodes::read(&settings, &paths).contains(Device { major: 226, minor });
        assert!(counts(128), "sysfs does not tell");
        for (minor, driver) in [(128, Some("amdgpu")), (129, Some("virtio-pci")), (130, None)] {
            let device = paths.sys.join(format!("class/drm/renderD{minor}/device"));
            fs::create_dir_all(&device).unwrap();
            fs::write(device.with_file_name("dev"), format!("226:{minor}\n")).unwrap();
            if let Some(driver) = driver {
                let driver = Path::new("../../../../bus/pci/drivers").join(driver);
                std::os::unix::fs::symlink(driver, device.join("driver")).unwrap();
            }
        }
        assert_eq!([128, 129, 130, 131].map(counts), [true, false, true, false]);
    }
}
