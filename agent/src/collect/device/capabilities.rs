//! Which MIG instance a capability node opens.
//!
//! A process without `CAP_SYS_ADMIN` may use an instance only by opening the nodes that grant it,
//! `/dev/nvidia-caps/nvidia-capN`: one for the GPU instance and one for the compute instance. The
//! driver says in `/proc/driver/nvidia/capabilities/gpuM/mig/gi1/access` and `…/gi1/ci0/access` which
//! `N` that is (`DeviceFileMinor: N`; `M` is the device's minor number). So what a process holds
//! tells its instance also before the driver lists it, and where the list does not say.
//!
//! Costs a listing and a small read for each instance, when the set of instances changes.

use super::wire::Place;
use crate::attribute::grants::DeviceName;
use crate::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder of the nodes, and the driver's name in `/proc/devices`.
const DRIVER: &str = "nvidia-caps";
/// What a node's name begins with.
const NODE: &str = "nvidia-cap";
/// The line of an `access` file that matters.
const MINOR: &str = "DeviceFileMinor:";

/// What a node grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// Minor number of the device.
    pub gpu_minor: u32,
    /// The instance; a GPU instance's own node names no compute instance.
    pub place: Place,
}

/// The nodes of the instances there are at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    major: Option<u32>,
    by_minor: BTreeMap<u32, Capability>,
}

impl Capabilities {
    /// Reads which nodes there are now.
    pub fn read(paths: &Paths) -> Self {
        let drivers = fs::read_to_string(paths.proc.join("devices")).unwrap_or_default();
        let mut found = Self { major: major(&drivers), by_minor: BTreeMap::new() };
        let root = paths.proc.join("driver/nvidia/capabilities");
        for (gpu_minor, gpu) in numbered(&root, "gpu") {
            for (gpu_instance, folder) in numbered(&gpu.join("mig"), "gi") {
                let place = Place { gpu_instance, compute_instance: None };
                found.put(&folder, Capability { gpu_minor, place });
                for (compute_instance, folder) in numbered(&folder, "ci") {
                    let compute_instance = Some(compute_instance);
                    let place = Place { compute_instance, ..place };
                    found.put(&folder, Capability { gpu_minor, place });
                }
            }
        }
        found
    }

    /// What the nodes grant, of those that grant an instance.
    pub fn instances_of(&self, nodes: &[Arc<str>]) -> Vec<Capability> {
        let minors = nodes.iter().filter_map(|node| self.minor(node));
        minors.filter_map(|minor| self.by_minor.get(&minor).copied()).collect()
    }

    /// The one instance of a device that the nodes grant; `None` if there are several, because a
    /// process that opened them all (a monitor, say) is not thereby in any.
    pub fn only_instance_of(&self, nodes: &[Arc<str>], gpu_minor: u32) -> Option<Place> {
        let granted = self.instances_of(nodes);
        let here = || granted.iter().filter(|granted| granted.gpu_minor == gpu_minor);
        let gpu_instances: BTreeSet<_> = here().map(|granted| granted.place.gpu_instance).collect();
        let compute_instances: BTreeSet<_> =
            here().filter_map(|granted| granted.place.compute_instance).collect();
        if gpu_instances.len() != 1 || compute_instances.len() > 1 {
            return None;
        }
        let compute_instance = compute_instances.first().copied();
        Some(Place { gpu_instance: *gpu_instances.first()?, compute_instance })
    }

    /// The devices that the nodes open: of one in MIG mode the instances, else the whole of it.
    pub fn devices_of(&self, nodes: &[Arc<str>]) -> Vec<DeviceName> {
        let granted = self.instances_of(nodes);
        let whole = nodes.iter().filter_map(|node| DeviceName::of_node(node));
        let whole = whole.filter(|device| {
            !granted.iter().any(|part| *device == DeviceName::Minor(part.gpu_minor))
        });
        // A GPU instance's own node grants nothing beside those of the compute instances in it.
        let is_around = |outer: &Capability, inner: &Capability| {
            outer.place.compute_instance.is_none()
                && inner.place.compute_instance.is_some()
                && (outer.gpu_minor, outer.place.gpu_instance)
                    == (inner.gpu_minor, inner.place.gpu_instance)
        };
        let parts =
            granted.iter().filter(|part| !granted.iter().any(|in_it| is_around(part, in_it)));
        let parts = parts.map(|part| DeviceName::Instance {
            minor: part.gpu_minor,
            gpu_instance: part.place.gpu_instance,
            compute_instance: part.place.compute_instance,
        });
        whole.chain(parts).collect()
    }

    fn put(&mut self, folder: &Path, capability: Capability) {
        // An instance that is destroyed at this moment has no file left.
        let text = fs::read_to_string(folder.join("access")).unwrap_or_default();
        let told = text.lines().find_map(|line| line.trim().strip_prefix(MINOR));
        if let Some(minor) = told.and_then(|number| number.trim().parse().ok()) {
            self.by_minor.insert(minor, capability);
        }
    }

    /// The minor number of a node as evidence names it: by its path, or by `major:minor` where the
    /// host has no such node.
    fn minor(&self, node: &str) -> Option<u32> {
        if let Some((folder, name)) = node.rsplit_once('/') {
            let number = name.strip_prefix(NODE)?.parse().ok()?;
            return Path::new(folder).ends_with(DRIVER).then_some(number);
        }
        let (major, minor) = node.split_once(':')?;
        (major.parse().ok() == self.major && self.major.is_some()).then(|| minor.parse().ok())?
    }
}

/// Entries of a folder whose name is a prefix and a number. Without MIG there is no such folder.
fn numbered(folder: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((number, entry.path()))
    });
    numbered.collect()
}

/// The nodes' major number in the text of `/proc/devices`.
fn major(drivers: &str) -> Option<u32> {
    let entries = drivers.lines().filter_map(|line| line.trim().split_once(' '));
    entries.filter(|(_, name)| *name == DRIVER).find_map(|(major, _)| major.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A proc tree with the nodes of some instances: path below `capabilities` and minor.
    fn proc(access: &[(&str, u32)]) -> (TempDir, Paths) {
        let root = TempDir::new().unwrap();
        let paths = Paths::under(root.path());
        fs::create_dir_all(&paths.proc).unwrap();
        let drivers = "Character devices:\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n";
        fs::write(paths.proc.join("devices"), drivers).unwrap();
        write(&paths, access);
        (root, paths)
    }

    fn write(paths: &Paths, access: &[(&str, u32)]) {
        for (path, minor) in access {
            let folder = paths.proc.join("driver/nvidia/capabilities").join(path);
            fs::create_dir_all(&folder).unwrap();
            let text =
                format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
            fs::write(folder.join("access"), text).unwrap();
        }
    }

    fn nodes(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn place(gpu_instance: u32, compute_instance: Option<u32>) -> Place {
        Place { gpu_instance, compute_instance }
    }

    const TWO_GPUS: &[(&str, u32)] = &[
        ("gpu0/mig/gi1", 12),
        ("gpu0/mig/gi1/ci0", 13),
        ("gpu0/mig/gi2", 21),
        ("gpu0/mig/gi2/ci0", 22),
        ("gpu0/mig/gi2/ci1", 23),
        ("gpu1/mig/gi1", 147),
        ("gpu1/mig/gi1/ci0", 148),
    ];

    #[test]
    fn a_node_is_the_instance_the_driver_says() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = Capabilities::read(&paths);
        let held = nodes(&[
            "/dev/nvidia0",
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-caps/nvidia-cap23",
            "237:148",
            "195:13",
            "/dev/nvidia-caps/nvidia-cap999",
            "/dev/elsewhere/nvidia-cap12",
        ]);
        let found = [
            Capability { gpu_minor: 0, place: place(2, None) },
            Capability { gpu_minor: 0, place: place(2, Some(1)) },
            Capability { gpu_minor: 1, place: place(1, Some(0)) },
        ];
        assert_eq!(capabilities.instances_of(&held), found);
    }

    #[test]
    fn of_a_device_in_mig_mode_its_instances_are_opened_and_of_others_the_whole() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = Capabilities::read(&paths);
        let opened = nodes(&[
            "/dev/nvidia0",
            "/dev/nvidia2",
            "/dev/nvidiactl",
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-caps/nvidia-cap22",
            "237:23",
        ]);
        let instance = |gpu_instance, compute_instance| DeviceName::Instance {
            minor: 0,
            gpu_instance,
            compute_instance,
        };
        let expected =
            [DeviceName::Minor(2), instance(1, None), instance(2, Some(0)), instance(2, Some(1))];
        assert_eq!(capabilities.devices_of(&opened), expected);
        // Without the driver's word on the nodes.
        assert_eq!(
            Capabilities::default().devices_of(&opened),
            [DeviceName::Minor(0), DeviceName::Minor(2)]
        );
    }

    #[test]
    fn a_process_that_holds_one_instance_is_in_it_and_one_that_holds_several_in_none() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = Capabilities::read(&paths);
        let only = |names: &[&str], gpu| {
            let names: Vec<_> = names.iter().map(|n| format!("/dev/nvidia-caps/{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            capabilities.only_instance_of(&nodes(&names), gpu)
        };
        assert_eq!(only(&["nvidia-cap12", "nvidia-cap13"], 0), Some(place(1, Some(0))));
        assert_eq!(only(&["nvidia-cap21"], 0), Some(place(2, None)));
        assert_eq!(only(&["nvidia-cap13", "nvidia-cap148"], 1), Some(place(1, Some(0))));
        assert_eq!(only(&["nvidia-cap13", "nvidia-cap22"], 0), None, "two instances");
        assert_eq!(only(&["nvidia-cap21", "nvidia-cap22", "nvidia-cap23"], 0), None, "two parts");
        assert_eq!(only(&["nvidia-cap13"], 1), None, "of another device");
    }

    #[test]
    fn a_later_reading_knows_new_instances_and_no_destroyed_ones() {
        let (_root, paths) = proc(&TWO_GPUS[..2]);
        let held = nodes(&["/dev/nvidia-caps/nvidia-cap13", "/dev/nvidia-caps/nvidia-cap31"]);
        let place = |gi| Capability { gpu_minor: 0, place: place(gi, Some(0)) };
        assert_eq!(Capabilities::read(&paths).instances_of(&held), [place(1)]);
        fs::remove_dir_all(paths.proc.join("driver/nvidia/capabilities/gpu0/mig/gi1")).unwrap();
        write(&paths, &[("gpu0/mig/gi5", 30), ("gpu0/mig/gi5/ci0", 31)]);
        assert_eq!(Capabilities::read(&paths).instances_of(&held), [place(5)]);
    }

    #[test]
    fn a_host_without_mig_has_no_instance_nodes() {
        let root = TempDir::new().unwrap();
        let capabilities = Capabilities::read(&Paths::under(root.path()));
        let held = nodes(&["/dev/nvidia-caps/nvidia-cap1", "0:13"]);
        assert_eq!(capabilities.instances_of(&held), []);
    }
}
