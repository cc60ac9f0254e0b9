//! MIG instances and AMD's partitions: their energy, memory and busy time go to the owners in them.

use super::fixture::{Read, Reported, Rig, rows};
use super::tests::{BUSY, ENERGY, MEMORY, interval, read};
use gpuwho_model::ids::{GpuUuid, InstanceId};
use gpuwho_owners::inventory::DeviceName;
use gpuwho_owners::inventory::{InstanceExtent, InstanceInfo};

#[test]
fn an_instance_s_slices_of_energy_and_its_bytes_are_its_owner_s() {
    let rig = || {
        let mut rig = Rig::new();
        rig.allocation(&[(DeviceName::Uuid(GpuUuid::new("MIG-1")), 9)]);
        let (read, _) = cut(&mut rig);
        (rig, read)
    };
    let (mut first, read) = rig();
    let energy = rows([
        ("job 7", "instance", 428.571_428),
        ("job 8", "instance", 285.714_286),
        ("job 9", "allocated", 142.857_143),
        ("unattributed", "none", 142.857_143),
    ]);
    is_nearly(&interval(&mut first, &read, ENERGY), &energy);
    let (mut second, read) = rig();
    let memory = rows([
        ("job 7", "instance", 5000.0),
        ("job 8", "instance", 1000.0),
        ("unattributed", "none", 4000.0),
    ]);
    assert_eq!(interval(&mut second, &read, MEMORY), memory);
    // The driver reports no utilisation in MIG mode, and there are no counters: nothing is
    // accounted.
    let batch = second.read(20, &read);
    assert_eq!(second.reported(&batch, "gpu.busy.time"), Reported::new());
    assert_eq!(second.reported(&batch, BUSY), Reported::new());
}

/// A device with GPU instances of three, two and one slices; the last has two compute instances.
/// One job each is in the first two.
fn cut(rig: &mut Rig) -> (Read, [InstanceId; 4]) {
    let gpu = rig.gpu(0);
    let instances = [("MIG-3", 3), ("MIG-2", 2), ("MIG-1", 1), ("MIG-0", 1)];
    let instances = instances.map(|(uuid, slices)| rig.instance(uuid, gpu, slices));
    let [a, b, ..] = instances;
    let processes = [(rig.process(1, 7), 500, 0.0), (rig.process(2, 8), 100, 0.0)];
    let read = Read {
        busy: None,
        joules: Some(7000.0),
        inside: vec![a, b],
        instances: instances.to_vec(),
        ..read(&processes)
    };
    (read, instances)
}

/// Asserts equality within 1e-6.
fn is_nearly(reported: &Reported, expected: &Reported) {
    assert_eq!(reported.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, value) in expected {
        assert!((reported[key] - value).abs() < 1e-6, "{key:?}: {} is not {value}", reported[key]);
    }
}

#[test]
fn an_instance_s_work_is_its_part_of_the_device_and_its_only_owner_s() {
    let mut rig = Rig::new();
    let (read, [a, b, c, _]) = cut(&mut rig);
    let counted = vec![(a, 0.7), (b, 0.35), (c, 0.14)];
    let read = Read { counted, ..read };
    let reported = interval(&mut rig, &read, BUSY);
    let expected = rows([
        ("job 7", "instance", 3.0),
        ("job 8", "instance", 1.0),
        ("unattributed", "none", 0.2),
    ]);
    is_nearly(&reported, &expected);
    let batch = rig.read(20, &read);
    is_nearly(&rig.reported(&batch, "gpu.busy.time"), &rows([("", "", 8.4)]));
}

#[test]
fn work_of_several_owners_in_one_instance_is_unsplittable() {
    let mut rig = Rig::new();
    let (mut read, [a, b, c, d]) = cut(&mut rig);
    for (pid, job, place) in [(3, 9, b), (4, 5, c), (5, 6, d)] {
        read.processes.push((rig.process(pid, job), Some(1), None));
        read.inside.push(place);
    }
    // The counters are on the first compute instance of a GPU instance, for both.
    let read = Read { counted: vec![(a, 0.7), (b, 0.35), (c, 0.14)], ..read };
    let reported = interval(&mut rig, &read, BUSY);
    is_nearly(
        &reported,
        &rows([("job 7", "instance", 3.0), ("unattributed", "unsplittable", 1.2)]),
    );
}

#[test]
fn an_instance_without_counters_is_accounted_only_if_no_process_can_be_in_it() {
    let mut rig = Rig::new();
    let (read, [a, b, ..]) = cut(&mut rig);
    let of_all = Read { counted: vec![(a, 0.7), (b, 0.35)], ..read.clone() };
    is_nearly(
        &interval(&mut rig, &of_all, BUSY),
        &rows([("job 7", "instance", 3.0), ("job 8", "instance", 1.0)]),
    );
    for read in [
        Read { counted: vec![(a, 0.7)], ..read.clone() },
        Read { counted: vec![(a, 0.7), (b, 0.35)], unidentified: 1, ..read },
    ] {
        let mut rig = Rig::new();
        cut(&mut rig);
        assert_eq!(interval(&mut rig, &read, BUSY), Reported::new(), "{read:?}");
    }
}

#[test]
fn a_process_without_an_instance_may_be_in_any() {
    let mut rig = Rig::new();
    let (mut read, [a, b, c, _]) = cut(&mut rig);
    // Processes without an instance come last.
    read.processes.push((rig.process(3, 9), Some(1), None));
    let read = Read { counted: vec![(a, 0.7), (b, 0.35), (c, 0.14)], ..read };
    let reported = interval(&mut rig, &read, BUSY);
    is_nearly(&reported, &rows([("unattributed", "unsplittable", 4.2)]));
    let mut rig = Rig::new();
    cut(&mut rig);
    rig.process(3, 9);
    let reported = interval(&mut rig, &read, ENERGY);
    is_nearly(&reported, &rows([("unattributed", "unsplittable", 1000.0)]));
}

#[test]
fn an_instance_s_energy_is_unattributed_with_two_owners_or_an_unidentified_process() {
    let reported = |unidentified| {
        let mut rig = Rig::new();
        let gpu = rig.gpu(0);
        let instances = [("MIG-3", 3), ("MIG-2", 2)];
        let [a, b] = instances.map(|(uuid, slices)| rig.instance(uuid, gpu, slices));
        let processes =
            [(1, 7), (2, 8), (3, 9)].map(|(pid, job)| (rig.process(pid, job), 100, 0.0));
        let (inside, instances) = (vec![a, a, b], vec![a, b]);
        let read = Read { inside, instances, unidentified, ..read(&processes) };
        interval(&mut rig, &Read { busy: None, joules: Some(5000.0), ..read }, ENERGY)
    };
    let split = [("job 9", "instance", 400.0), ("unattributed", "unsplittable", 600.0)];
    assert_eq!(reported(0), rows(split));
    assert_eq!(reported(1), rows([("unattributed", "unsplittable", 1000.0)]));
}

/// AMD's CPX: eight partitions of a slice each, with the device's own utilisation beside theirs, and
/// one job each in the first two.
fn cpx(rig: &mut Rig) -> (Read, Vec<InstanceId>) {
    let gpu = rig.gpu(0);
    let part = |number: u32| {
        rig.inventory.put_instance(InstanceInfo {
            uuid: GpuUuid::new(&format!("GPU-0-xcp{number}")),
            gpu,
            gpu_instance: number,
            compute_instance: None,
            profile: Some("cpx".to_owned()),
            extent: InstanceExtent {
                device_slices: Some(8),
                gpu_slices: Some(1),
                compute_slices: Some(1),
                ..InstanceExtent::default()
            },
        })
    };
    let parts: Vec<_> = (0..8).map(part).collect();
    let processes = [(rig.process(1, 7), 500, 0.0), (rig.process(2, 8), 100, 0.0)];
    let read = Read {
        busy: Some(0.2),
        joules: Some(8000.0),
        inside: parts[..2].to_vec(),
        utilized: [0.8, 0.4, 0.16, 0.0, 0.0, 0.0, 0.0, 0.0]
            .into_iter()
            .enumerate()
            .map(|(n, busy)| (parts[n], busy))
            .collect(),
        instances: parts.clone(),
        ..read(&processes)
    };
    (read, parts)
}

#[test]
fn an_amd_partition_s_work_energy_and_state_are_its_owner_s_beside_the_device_s_own_value() {
    let rig = || {
        let mut rig = Rig::new();
        rig.allocation(&[
            (DeviceName::Uuid(GpuUuid::new("GPU-0-xcp0")), 7),
            (DeviceName::Uuid(GpuUuid::new("GPU-0-xcp1")), 8),
            (DeviceName::Uuid(GpuUuid::new("GPU-0-xcp2")), 9),
        ]);
        let (read, _) = cpx(&mut rig);
        (rig, read)
    };
    let (mut first, read) = rig();
    let busy = rows([
        ("job 7", "instance", 1.0),
        ("job 8", "instance", 0.5),
        ("unattributed", "none", 0.2),
    ]);
    is_nearly(&interval(&mut first, &read, BUSY), &busy);
    let batch = first.read(20, &read);
    is_nearly(&first.reported(&batch, "gpu.busy.time"), &rows([("", "", 3.4)]));
    let states = first.reported(&batch, "gpu.allocation.time");
    let active: Vec<_> = states.iter().filter(|(_, seconds)| **seconds > 0.0).collect();
    let expected = [("job 7", "active"), ("job 8", "active"), ("job 9", "unused")];
    let expected = expected.map(|(job, state)| (job.to_owned(), state.to_owned()));
    assert_eq!(active.iter().map(|(key, _)| (*key).clone()).collect::<Vec<_>>(), expected);
    let (mut second, read) = rig();
    let energy = rows([
        ("job 7", "instance", 125.0),
        ("job 8", "instance", 125.0),
        ("job 9", "allocated", 125.0),
        ("unattributed", "none", 625.0),
    ]);
    is_nearly(&interval(&mut second, &read, ENERGY), &energy);
}

#[test]
fn partitions_without_values_leave_the_device_s_own_which_several_owners_do_not_split() {
    for left in [0, 1] {
        let mut rig = Rig::new();
        let (mut read, _) = cpx(&mut rig);
        // A table of the driver that has none, and one that lacks an idle partition.
        let lacks = if left == 0 { 0..8 } else { 7..8 };
        read.utilized.drain(lacks);
        let reported = interval(&mut rig, &read, BUSY);
        assert_eq!(reported, rows([("unattributed", "unsplittable", 2.0)]), "{left}");
        let mut rig = Rig::new();
        let (mut read, _) = cpx(&mut rig);
        read.utilized.clear();
        read.processes.pop();
        assert_eq!(interval(&mut rig, &read, BUSY), rows([("job 7", "exclusive", 2.0)]));
    }
}

#[test]
fn a_process_that_no_partition_is_known_of_hides_nothing_from_its_own_owner() {
    let mut rig = Rig::new();
    let (mut read, _) = cpx(&mut rig);
    // A process of the first job that has opened the nodes of all partitions; the second job is gone.
    read.processes[1] = (rig.process(3, 7), Some(1), None);
    read.inside.truncate(1);
    let reported = interval(&mut rig, &read, BUSY);
    is_nearly(&reported, &rows([("job 7", "instance", 1.7)]));
}
