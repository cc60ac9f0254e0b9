//! MIG: instances, their memory, and the processes in them.

use super::rig::{Rig, Values};
use super::truth;
use gpuwho_collect::Collector as _;
use gpuwho_collect::snapshot::InstanceSnapshot;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::ids::Place;
use gpuwho_owners::inventory::{InstanceExtent, InstanceInfo};
use nvidia_ml::scenario::Scenario;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

/// Denies a user other than root the list of all processes of a device with MIG.
const NO_LIST: &str = "[[failure]]\ncall = \"nvmlDeviceGetComputeRunningProcesses_v3\"\nwhole_device = true\ncode = 4\n";

#[test]
fn every_value_of_every_instance_and_process_is_exact() {
    let mut rig = Rig::new("a100-mig-3g20");
    let mut read = rig.tick();
    read.retain(|(name, ..), _| !["gpu.energy", "gpu.read.age"].contains(&name.as_str()));
    let expected = truth::of(&rig.scenario(), |device, slot| rig.pid(device, slot));
    assert_eq!(read, expected);
    let instances = expected.keys().filter(|(name, ..)| name == "gpu.instance.info").count();
    assert_eq!(instances, 9, "the scenario's");
}

#[test]
fn identity_of_an_instance_is_the_drivers() {
    let mut rig = Rig::new("a100-mig-3g20");
    rig.tick();
    let scenario = rig.scenario();
    let gpus = rig.inventory.all();
    let mut expected = Vec::new();
    for device in scenario.devices() {
        let (gpu, _) = gpus.iter().find(|(_, info)| info.index == device.index).unwrap();
        for instance in device.instances(0.0) {
            let mut info = InstanceInfo {
                uuid: GpuUuid::new(&device.text(&instance.uuid)),
                gpu: *gpu,
                gpu_instance: instance.gpu_instance,
                compute_instance: Some(instance.compute_instance),
                profile: Some(instance.profile.clone()),
                extent: InstanceExtent::default(),
            };
            info.extent.device_slices = Some(7);
            info.extent.gpu_slices = Some(instance.gpu_slices);
            info.extent.compute_slices = Some(instance.compute_slices);
            info.extent.multiprocessors = Some(instance.multiprocessors);
            info.extent.memory = Some(instance.memory.total);
            expected.push(info);
        }
    }
    let seen: Vec<_> = rig.inventory.instances().iter().map(|(_, info)| (**info).clone()).collect();
    assert_eq!(seen, expected);
    let modes: Vec<_> = gpus.iter().map(|(_, info)| info.mig).collect();
    assert_eq!(modes, [Some(true), Some(true), Some(true), Some(false)]);
}

#[test]
fn no_byte_of_memory_is_counted_twice() {
    let mut rig = Rig::new("a100-mig-3g20");
    let read = rig.tick();
    let scenario = rig.scenario();
    let of_devices = |value: fn(&nvidia_ml::scenario::Memory) -> f64| -> f64 {
        scenario.devices().map(|device| value(&device.group.memory)).sum()
    };
    assert_eq!(sum(&read, "gpu.memory.limit", ""), of_devices(|memory| memory.total as f64));
    assert_eq!(sum(&read, "gpu.memory.usage", ""), of_devices(|memory| memory.total as f64));
    // One entry a GPU instance, though one is cut into two compute instances.
    let gpu_instances: BTreeMap<_, _> = scenario
        .devices()
        .flat_map(|device| device.instances(0.0).map(move |i| ((device.index, i.gpu_instance), i)))
        .collect();
    let total: f64 = gpu_instances.values().map(|instance| instance.memory.total as f64).sum();
    assert_eq!(sum(&read, "gpu.instance.memory.limit", ""), total);
    assert_eq!(sum(&read, "gpu.instance.memory.usage", ""), total);
    let used = |index: u32| {
        let of = |((name, device, _, dim), value): (&super::rig::Key, &f64)| {
            let wanted = name == "gpu.instance.memory.usage" && dim.ends_with("used");
            (wanted && *device == index).then_some(*value)
        };
        read.iter().filter_map(of).sum::<f64>()
    };
    for device in scenario.devices() {
        let whole = read[&("gpu.memory.usage".to_owned(), device.index, 0, "used".to_owned())];
        assert!(used(device.index) <= whole, "{} of {whole}", used(device.index));
    }
    let in_processes: f64 = scenario
        .devices()
        .flat_map(|device| device.processes())
        .map(|process| process.value(process.group.memory.as_ref().unwrap(), 0.0))
        .sum();
    assert_eq!(sum(&read, "gpu.process.memory.usage", ""), in_processes);
}

#[test]
fn a_device_cut_anew_ends_its_instances_and_begins_others_without_a_restart() {
    let mut rig = Rig::at("mig-reconfigure", 8.0);
    let scenario = rig.scenario();
    let first = between(&mut rig, 8.0, 10.0);
    assert_eq!(first, at(&rig, &scenario, 9.0));
    let child = rig.reader.control().snapshot().child;
    let before = rig.inventory.instances();
    let cut = between(&mut rig, 10.0, 11.0);
    assert_eq!(cut, at(&rig, &scenario, 10.5));
    assert!(!cut.keys().any(|(name, device, ..)| name == "gpu.instance.info" && *device == 0));
    let anew = between(&mut rig, 11.0, f64::INFINITY);
    assert_eq!(anew, at(&rig, &scenario, 12.0));
    let report = rig.reader.report();
    assert_eq!((rig.reader.control().snapshot().child, report.restarts), (child, 0), "{report:?}");
    let after = rig.inventory.instances();
    let profile = |all: &[(_, Arc<InstanceInfo>)]| all[0].1.profile.clone().unwrap();
    assert_eq!((before.len(), profile(&before)), (4, "3g.20gb".to_owned()));
    assert_eq!((after.len(), profile(&after)), (6, "4g.20gb".to_owned()), "of the same UUID");
    assert_eq!(after[0].1.extent.multiprocessors, Some(56));
}

#[test]
fn a_place_cut_anew_between_two_readings_is_seen_though_its_uuid_stays() {
    let mut rig = Rig::at("mig-reconfigure", 100.0);
    rig.tick();
    let of_first = |rig: &Rig| {
        let (_, first) = rig.inventory.instances().remove(0);
        (first.uuid.to_string(), first.profile.clone(), first.extent.multiprocessors)
    };
    let (uuid, profile, _) = of_first(&rig);
    assert_eq!(profile.as_deref(), Some("4g.20gb"));
    rig.edit(|text| text.replace("4g.20gb", "3g.20gb").replace("= 56", "= 42"));
    rig.tick();
    assert_eq!(of_first(&rig), (uuid, Some("3g.20gb".to_owned()), Some(42)));
}

#[test]
fn mig_turned_off_and_on_again_is_followed() {
    let mut rig = Rig::new("a100-mig-3g20");
    let with = levels(rig.tick());
    rig.edit(|text| text.replace("mig = true", "mig = false"));
    let without = levels(rig.tick());
    let scenario = rig.scenario();
    assert_eq!(
        without.keys().filter(|(name, ..)| name.starts_with("gpu.instance.")).count(),
        0,
        "{without:#?}"
    );
    for device in scenario.devices() {
        let key = ("gpu.utilization".to_owned(), device.index, 0, "general".to_owned());
        assert_eq!(without.get(&key), Some(&0.37), "unsupported before, supported now");
    }
    assert!(rig.inventory.all().iter().all(|(_, info)| info.mig == Some(false)));
    rig.edit(|text| text.replace("mig = false", "mig = true"));
    rig.edit(|text| replace_last(&text, "mig = true", "mig = false"));
    assert_eq!(levels(rig.tick()), with);
}

#[test]
fn an_instance_is_identified_once_and_its_absence_is_no_failure() {
    let mut rig = Rig::new("a100-mig-3g20");
    (0..3).for_each(|_| drop(rig.tick()));
    let calls = |name: &str| rig.calls(name);
    let (devices, places, instances, ticks) = (3, 7, 9, 3);
    assert_eq!(calls("nvmlDeviceGetMigDeviceHandleByIndex"), devices * places * ticks);
    assert_eq!(calls("nvmlDeviceGetMaxMigDeviceCount"), devices);
    assert_eq!(calls("nvmlDeviceGetUUID"), 4 + instances * ticks);
    assert_eq!(calls("nvmlDeviceGetGpuInstanceId"), instances);
    assert_eq!(calls("nvmlDeviceGetAttributes_v2"), instances);
    assert_eq!(calls("nvmlDeviceGetMemoryInfo_v2"), (4 + 8) * ticks, "one for each GPU instance");
    assert_eq!(calls("nvmlDeviceGetMigMode"), 4 * ticks);
    assert_eq!(rig.reader.report().errors, 0);
}

#[test]
fn processes_come_from_the_instances_where_the_device_does_not_list_them() {
    let mut rig = Rig::new("a100-mig-3g20");
    let expected = of_processes(&rig.tick(), &[0, 1, 2]);
    rig.play_with("a100-mig-3g20", NO_LIST);
    assert_eq!(of_processes(&rig.tick(), &[0, 1, 2]), expected);
}

#[test]
fn a_process_without_an_instance_on_the_list_is_placed_by_the_node_it_holds() {
    let mut rig = Rig::new("a100-mig-3g20");
    write_nodes(&rig);
    let expected = of_processes(&rig.tick(), &[0]);
    rig.edit(|text| text.replace("instance = [1, 0]\n", "").replace("instance = [2, 0]\n", ""));
    let unplaced = of_processes(&rig.tick(), &[0]);
    assert!(!unplaced.is_empty());
    assert!(unplaced.keys().all(|(_, _, _, dim)| dim == "compute"), "{unplaced:#?}");
    let node = |number: u32| format!("/dev/nvidia-caps/nvidia-cap{number}");
    let open = |slot, numbers: &[u32]| {
        let nodes: Vec<String> = numbers.iter().map(|number| node(*number)).collect();
        rig.open_nodes(rig.pid(0, slot), &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    };
    open(0, &[12, 13]);
    open(1, &[21]);
    open(2, &[21, 22]);
    let held = [Arc::from(node(22).as_str())];
    let granted = rig.reader.control().snapshot().granted(&held, &rig.inventory);
    let second = rig.inventory.instances()[1].0;
    assert_eq!(granted, [second], "also of a process that the driver does not list");
    assert_eq!(of_processes(&rig.tick(), &[0]), expected);
    let rig_all = [12, 13, 21, 22];
    rig.open_nodes(
        rig.pid(0, 0),
        &rig_all.map(node).iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let monitor = of_processes(&rig.tick(), &[0]);
    let key = |dim: &str| ("gpu.process.memory.usage".to_owned(), 0, rig.pid(0, 0), dim.to_owned());
    let seen = ["compute", "1/0 compute"].map(|dim| monitor.contains_key(&key(dim)));
    assert_eq!(seen, [true, false], "one that holds every node is in none");
}

#[test]
fn an_instance_whose_size_the_driver_does_not_tell_is_read_all_the_same() {
    let mut rig = Rig::new("a100-mig-3g20");
    let expected = levels(rig.tick());
    let mut rig = Rig::new("a100-mig-3g20");
    rig.play_with("a100-mig-3g20", &super::failing("nvmlDeviceGetAttributes_v2", 3));
    (0..2).for_each(|_| assert_eq!(levels(rig.tick()), expected));
    assert_eq!(rig.calls("nvmlDeviceGetAttributes_v2"), 3, "once a device with MIG");
    let reported = |(_, info): &(_, Arc<InstanceInfo>)| info.extent != InstanceExtent::default();
    assert!(!rig.inventory.instances().iter().any(reported));
}

#[test]
fn a_device_lost_and_found_tells_its_instances_again() {
    let mut rig = Rig::new("a100-mig-3g20");
    let before = levels(rig.tick());
    rig.play_with("a100-mig-3g20", "[[failure]]\ncall = \"*\"\ndevice = 0\ncode = 15\n");
    let lost = rig.tick();
    assert!(!lost.keys().any(|(name, device, ..)| name == "gpu.instance.info" && *device == 0));
    rig.play("a100-mig-3g20");
    assert_eq!(levels(rig.tick()), before);
}

#[test]
fn the_snapshot_has_the_instances_and_their_processes() {
    let mut rig = Rig::new("a100-mig-3g20");
    rig.tick();
    let device = rig.reader.control().snapshot().devices.remove(0);
    let ids: Vec<_> = rig.inventory.instances().iter().map(|(id, _)| *id).collect();
    let (mib, total) = (1 << 20, Some(20096 << 20));
    let rows = [(ids[0], 1, 3001), (ids[1], 2, 5003)];
    let expected = rows.map(|(instance, gpu_instance, used)| InstanceSnapshot {
        instance,
        place: Place { gpu_instance, compute_instance: Some(0) },
        memory_used: Some(used * mib),
        memory_limit: total,
    });
    assert_eq!(device.instances, expected);
    let placed: Vec<_> = device.processes.iter().map(|p| (p.pid, p.instance)).collect();
    let at = |slot, instance| (rig.pid(0, slot), Some(instance));
    assert_eq!(placed, [at(0, ids[0]), at(1, ids[1]), at(2, ids[1])]);
}

/// Values without those that depend on time, and without the utilisation of processes: ticks that
/// follow each other at once find no new sample of it.
fn levels(mut read: Values) -> Values {
    let moving = ["gpu.energy", "gpu.read.age", "gpu.process.utilization"];
    read.retain(|(name, ..), _| !moving.contains(&name.as_str()));
    read
}

fn at(rig: &Rig, scenario: &Scenario, seconds: f64) -> Values {
    truth::at(scenario, seconds, |device, slot| rig.pid(device, slot))
}

/// A reading that lies between two times of the scenario.
fn between(rig: &mut Rig, from: f64, to: f64) -> Values {
    loop {
        let begun = rig.seconds();
        let read = levels(rig.tick());
        if begun >= from {
            assert!(rig.seconds() < to, "this machine is too slow: {begun} to {}", rig.seconds());
            return read;
        }
        super::breathe();
    }
}

fn sum(read: &Values, name: &str, dim: &str) -> f64 {
    let of = |(metric, _, _, at): &super::rig::Key| metric == name && at.ends_with(dim);
    read.iter().filter(|(key, _)| of(key)).map(|(_, value)| value).sum()
}

/// Memory of the processes of some devices.
fn of_processes(read: &Values, devices: &[u32]) -> Values {
    let wanted = |(name, device, ..): &super::rig::Key| {
        name == "gpu.process.memory.usage" && devices.contains(device)
    };
    read.iter().filter(|(key, _)| wanted(key)).map(|(key, value)| (key.clone(), *value)).collect()
}

/// The nodes of the first device's two instances, as the driver tells them in `/proc`.
fn write_nodes(rig: &Rig) {
    let access = [("gi1", 12), ("gi1/ci0", 13), ("gi2", 21), ("gi2/ci0", 22)];
    for (place, minor) in access {
        let folder = rig.proc().join("driver/nvidia/capabilities/gpu0/mig").join(place);
        fs::create_dir_all(&folder).unwrap();
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
        fs::write(folder.join("access"), text).unwrap();
    }
}

fn replace_last(text: &str, from: &str, to: &str) -> String {
    let (before, after) = text.rsplit_once(from).unwrap();
    format!("{before}{to}{after}")
}
