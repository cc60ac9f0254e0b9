//! Maps capability nodes to MIG instances.
//!
//! A process without `CAP_SYS_ADMIN` can use an instance only by opening its capability nodes,
//! `/dev/nvidia-caps/nvidia-capN`: one for the GPU instance and one for the compute instance. The
//! driver reports `N` in `/proc/driver/nvidia/capabilities/gpuM/mig/gi1/access` and
//! `…/gi1/ci0/access` (`DeviceFileMinor: N`; `M` is the device's minor number). So a process's open
//! nodes identify its instance before the driver lists the process, and where the list does not
//! name the instance.
//!
//! Costs one directory listing and one small read for each instance, when the set of instances
//! changes.

use gpuwho_model::ids::Place;
use gpuwho_model::paths::Paths;
use gpuwho_owners::partitions::{Partition, PartitionNodes};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of the nodes, and the driver's name in `/proc/devices`.
const DRIVER: &str = "nvidia-caps";
/// The relevant line of an `access` file.
const MINOR: &str = "DeviceFileMinor:";

/// Reads the current nodes.
pub(super) fn partition_nodes(paths: &Paths) -> PartitionNodes {
    let drivers = fs::read_to_string(paths.proc.join("devices")).unwrap_or_default();
    let major = major(&drivers);
    let root = paths.proc.join("driver/nvidia/capabilities");
    let mut found = Vec::new();
    let mut put = |folder: &Path, device: &Arc<str>, place| {
        let Some(minor) = minor(folder) else { return };
        let partition = Partition { device: Arc::clone(device), place };
        let by_number = major.map(|major| (format!("{major}:{minor}"), partition.clone()));
        found.extend(by_number);
        found.push((format!("{DRIVER}/nvidia-cap{minor}"), partition));
    };
    for (gpu, folder) in numbered(&root, "gpu") {
        let device = Arc::from(super::node(gpu));
        for (gpu_instance, folder) in numbered(&folder.join("mig"), "gi") {
            put(&folder, &device, Place { gpu_instance, compute_instance: None });
            for (compute_instance, folder) in numbered(&folder, "ci") {
                let compute_instance = Some(compute_instance);
                put(&folder, &device, Place { gpu_instance, compute_instance });
            }
        }
    }
    found.into_iter().collect()
}

/// The minor number in an instance's `access` file; `None` if the instance is being destroyed.
fn minor(folder: &Path) -> Option<u32> {
    let text = fs::read_to_string(folder.join("access")).ok()?;
    let reported = text.lines().find_map(|line| line.trim().strip_prefix(MINOR));
    reported?.trim().parse().ok()
}

/// Directory entries named prefix and number. Without MIG the directory does not exist.
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
    use crate::nvidia::node;
    use gpuwho_model::ids::GpuUuid;
    use gpuwho_owners::inventory::DeviceName;
    use gpuwho_owners::inventory::GpuInfo;
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

    fn gpu_info(minor: u32) -> GpuInfo {
        GpuInfo { nodes: vec![node(minor)], ..GpuInfo::new(GpuUuid::new("GPU-0"), "nvidia", 0) }
    }

    fn partition(gpu: u32, place: Place) -> Partition {
        Partition { device: node(gpu).into(), place }
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
    fn a_node_maps_to_the_instance_in_its_access_file() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = partition_nodes(&paths);
        let open = nodes(&[
            "/dev/nvidia0",
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-caps/nvidia-cap23",
            "237:148",
            "195:13",
            "/dev/nvidia-caps/nvidia-cap999",
            "/dev/elsewhere/nvidia-cap12",
        ]);
        let found = [
            partition(0, place(2, None)),
            partition(0, place(2, Some(1))),
            partition(1, place(1, Some(0))),
        ];
        assert_eq!(capabilities.opened_by(&open), found.iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_mig_device_is_opened_by_instance_and_any_other_as_a_whole() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = partition_nodes(&paths);
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
            device: node(0).into(),
            gpu_instance,
            compute_instance,
        };
        let expected = [
            DeviceName::Node("nvidia2".into()),
            instance(1, None),
            instance(2, Some(0)),
            instance(2, Some(1)),
        ];
        assert_eq!(capabilities.devices_of(&opened, crate::nodes()), expected);
        // Without a capability node.
        assert_eq!(
            PartitionNodes::default().devices_of(&opened, crate::nodes()),
            [0, 2].map(|gpu| DeviceName::Node(node(gpu).into()))
        );
    }

    #[test]
    fn one_open_instance_places_a_process_and_several_do_not() {
        let (_root, paths) = proc(TWO_GPUS);
        let capabilities = partition_nodes(&paths);
        let only = |names: &[&str], gpu| {
            let names: Vec<_> = names.iter().map(|n| format!("/dev/nvidia-caps/{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            capabilities.only_one_of(&nodes(&names), &gpu_info(gpu))
        };
        assert_eq!(only(&["nvidia-cap12", "nvidia-cap13"], 0), Some(place(1, Some(0))));
        assert_eq!(only(&["nvidia-cap21"], 0), Some(place(2, None)));
        assert_eq!(only(&["nvidia-cap13", "nvidia-cap148"], 1), Some(place(1, Some(0))));
        assert_eq!(only(&["nvidia-cap13", "nvidia-cap22"], 0), None, "two instances");
        assert_eq!(only(&["nvidia-cap21", "nvidia-cap22", "nvidia-cap23"], 0), None, "two parts");
        assert_eq!(only(&["nvidia-cap13"], 1), None, "of another device");
    }

    #[test]
    fn a_later_reading_has_new_instances_and_no_destroyed_ones() {
        let (_root, paths) = proc(&TWO_GPUS[..2]);
        let open = nodes(&["/dev/nvidia-caps/nvidia-cap13", "/dev/nvidia-caps/nvidia-cap31"]);
        let opened = || partition_nodes(&paths).opened_by(&open).into_iter().cloned().collect();
        let there: Vec<Partition> = opened();
        assert_eq!(there, [partition(0, place(1, Some(0)))]);
        fs::remove_dir_all(paths.proc.join("driver/nvidia/capabilities/gpu0/mig/gi1")).unwrap();
        write(&paths, &[("gpu0/mig/gi5", 30), ("gpu0/mig/gi5/ci0", 31)]);
        let there: Vec<Partition> = opened();
        assert_eq!(there, [partition(0, place(5, Some(0)))]);
    }

    #[test]
    fn a_host_without_mig_has_no_instance_nodes() {
        let root = TempDir::new().unwrap();
        let capabilities = partition_nodes(&Paths::under(root.path()));
        let open = nodes(&["/dev/nvidia-caps/nvidia-cap1", "0:13"]);
        assert_eq!(capabilities.opened_by(&open), Vec::<&Partition>::new());
    }
}
