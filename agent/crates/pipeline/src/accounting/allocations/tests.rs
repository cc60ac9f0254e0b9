use crate::accounting::fixture::{Read, Rig, allocated, rows};
use gpuwho_model::catalog::share::GrantKind;
use gpuwho_model::ids::{GpuUuid, PodUid};
use gpuwho_owners::attribute::Workload;
use gpuwho_owners::attribute::allocations::{Allocation, AllocationDetails};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::inventory::DeviceName;
use std::sync::Arc;

const TIME: &str = "gpu.allocation.time";

fn index(index: u32) -> DeviceName {
    DeviceName::Index(index)
}

fn instance(minor: u32, gpu_instance: u32, compute_instance: Option<u32>) -> DeviceName {
    DeviceName::Instance { device: format!("nvidia{minor}").into(), gpu_instance, compute_instance }
}

fn placed(minor: u32, profile: &str, start: u32) -> DeviceName {
    DeviceName::Placed { minor, profile: profile.into(), start }
}

/// A device without processes.
fn quiet() -> Read {
    Read { busy: Some(0.0), used: Some(1000), ..Read::default() }
}

/// The seconds of the one allocation in each of the four states.
fn states(rig: &Rig, batch: &gpuwho_model::sample::Batch) -> [f64; 4] {
    let reported = rig.reported(batch, TIME);
    ["active", "idle", "unused", "unknown"]
        .map(|state| reported[&("job 7".to_owned(), state.to_owned())])
}

#[test]
fn an_allocation_binds_by_every_name_of_a_device() {
    for (name, bound) in [
        (DeviceName::Uuid(GpuUuid::new("GPU-0")), true),
        (DeviceName::Uuid(GpuUuid::new("MIG-0")), true),
        (DeviceName::Uuid(GpuUuid::new("GPU-9")), false),
        (DeviceName::Minor(7), true),
        (DeviceName::Minor(0), false),
        (DeviceName::Node("nvidia7".into()), true),
        (DeviceName::Node("nvidia0".into()), false),
        (DeviceName::Index(0), true),
        (DeviceName::Index(9), false),
        (DeviceName::IndexOf("nvidia", 0), true),
        (DeviceName::IndexOf("tpu", 0), false),
        (DeviceName::Pci(Arc::from("0000:10:00.0")), true),
        (DeviceName::Pci(Arc::from("00000000:10:00.0")), true),
        (DeviceName::Pci(Arc::from("0001:10:00.0")), false),
        (DeviceName::Number(0), true),
        (DeviceName::Number(7), true),
        (DeviceName::Number(9), false),
        (DeviceName::Part(0, 1), true),
        (DeviceName::Part(0, 2), false),
        (instance(7, 1, Some(0)), true),
        (instance(7, 1, None), true),
        (instance(7, 1, Some(1)), false),
        (instance(7, 2, Some(0)), false),
        (instance(6, 1, Some(0)), false),
    ] {
        let mut rig = Rig::new();
        rig.instance("MIG-0", rig.gpu(0), 1);
        rig.allocation(&[(name.clone(), 7)]);
        let batch = rig.read(0, &quiet());
        let info = rig.reported(&batch, "gpu.allocation.info");
        let expected = rows([("job 7", "slurm exclusive", 1.0)]);
        assert_eq!(info == expected, bound, "{name:?}: {info:?}");
        let unbound = rows([("", "", f64::from(u8::from(!bound)))]);
        assert_eq!(rig.reported(&batch, "gpuwho.allocations.unbound"), unbound, "{name:?}");
    }
}

#[test]
fn allocatable_parts_are_counted_by_device() {
    let mut rig = Rig::new();
    let parts = "gpu.allocatable";
    let batch = rig.read(0, &quiet());
    assert_eq!(rig.reported(&batch, parts), rows([]), "nothing is offered");
    rig.instance("MIG-0", rig.gpu(0), 1);
    let uuid = |uuid| DeviceName::Uuid(GpuUuid::new(uuid));
    for (offered, expected) in [
        (vec![uuid("GPU-0")], Some(1.0)),
        (vec![uuid("GPU-0"), uuid("GPU-0"), uuid("MIG-0")], Some(3.0)),
        // Only another device is offered: the plugin reports this one as unhealthy.
        (vec![uuid("GPU-1")], Some(0.0)),
        (vec![uuid("GPU-9")], None),
        (vec![], None),
    ] {
        rig.ownership.allocations().offer(offered.clone());
        let batch = rig.read(10, &quiet());
        let reported = rig.reported(&batch, parts).into_values().next();
        assert_eq!(reported, expected, "{offered:?}");
    }
}

#[test]
fn allocated_time_is_the_sum_of_four_states() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    rig.read(0, &quiet());
    let batch = rig.read(10, &quiet());
    assert_eq!(states(&rig, &batch), [0.0, 0.0, 10.0, 0.0], "no process is on it");

    let process = rig.process(1, 7);
    let held = Read { processes: vec![(process, Some(10), None)], ..quiet() };
    let batch = rig.read(20, &held);
    assert_eq!(states(&rig, &batch), [0.0, 10.0, 10.0, 0.0], "held, and not busy");

    let batch = rig.read(30, &Read { busy: Some(0.01), ..held.clone() });
    assert_eq!(states(&rig, &batch), [10.0, 10.0, 10.0, 0.0], "busy");

    let batch = rig.miss(40);
    assert_eq!(states(&rig, &batch), [10.0, 10.0, 10.0, 10.0], "not read");
    let batch = rig.read(50, &Read { busy: None, ..held });
    assert_eq!(states(&rig, &batch), [10.0, 10.0, 10.0, 20.0], "the device reports no busy time");
}

#[test]
fn no_allocated_time_is_counted_through_a_pause() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    rig.read(0, &quiet());
    rig.read(10, &quiet());
    let batch = rig.read(100, &quiet());
    assert_eq!(states(&rig, &batch), [0.0, 0.0, 10.0, 0.0]);
}

#[test]
fn a_process_that_opened_the_device_and_has_no_context_leaves_it_idle_not_unused() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    let process = rig.process(1, 7);
    rig.opens(process, "/dev/nvidia7");
    rig.read(0, &quiet());
    let batch = rig.read(10, &quiet());
    assert_eq!(states(&rig, &batch), [0.0, 10.0, 0.0, 0.0]);
}

#[test]
fn one_of_several_owners_is_active_only_with_evidence() {
    for (samples, expected) in [
        ([Some(0.2), Some(0.1)], [10.0, 0.0, 0.0, 0.0]),
        ([None, Some(0.1)], [0.0, 10.0, 0.0, 0.0]),
        ([None, None], [0.0, 0.0, 0.0, 10.0]),
    ] {
        let mut rig = Rig::new();
        rig.allocation(&[(index(0), 7), (index(0), 8)]);
        let (a, b) = (rig.process(1, 7), rig.process(2, 8));
        let [of_a, of_b] = samples;
        let processes = vec![(a, Some(10), of_a), (b, Some(10), of_b)];
        let read = Read { busy: Some(0.4), processes, ..quiet() };
        rig.read(0, &read);
        let batch = rig.read(10, &read);
        assert_eq!(states(&rig, &batch), expected, "{samples:?}");
    }
}

#[test]
fn in_mig_mode_the_owner_s_instances_decide_whether_it_is_active() {
    for (busy, beside, expected) in [
        ([0.5, 0.0], 1, [10.0, 0.0, 0.0, 0.0]),
        ([0.0, 0.5], 1, [0.0, 10.0, 0.0, 0.0]),
        // Another owner in the same instance: nothing shows the owner of the work.
        ([0.5, 0.0], 0, [0.0, 0.0, 0.0, 10.0]),
        ([0.0, 0.5], 0, [0.0, 10.0, 0.0, 0.0]),
    ] {
        let mut rig = Rig::new();
        let instances = [("MIG-3", 3), ("MIG-2", 2)];
        let instances = instances.map(|(uuid, slices)| rig.instance(uuid, rig.gpu(0), slices));
        rig.allocation(&[(DeviceName::Uuid(GpuUuid::new("MIG-3")), 7)]);
        let processes = [(rig.process(1, 7)), rig.process(2, 8)].map(|on| (on, Some(10), None));
        let read = Read {
            busy: None,
            processes: processes.to_vec(),
            inside: vec![instances[0], instances[beside]],
            instances: instances.to_vec(),
            counted: instances.into_iter().zip(busy).collect(),
            ..quiet()
        };
        rig.read(0, &read);
        let batch = rig.read(10, &read);
        assert_eq!(states(&rig, &batch), expected, "{busy:?} {beside}");
    }
}

#[test]
fn a_device_with_an_unidentified_process_is_not_unused() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    let read = Read { unidentified: 1, ..quiet() };
    rig.read(0, &read);
    let batch = rig.read(10, &read);
    assert_eq!(states(&rig, &batch), [0.0, 0.0, 0.0, 10.0]);
}

#[test]
fn a_pod_process_without_a_known_container_may_be_the_allocated_container_s() {
    let mut rig = Rig::new();
    let uid = "aaaaaaaa-0000-4000-8000-000000000001";
    let process = rig.process_at(1, &format!("/kubepods/pod{uid}/{}", "a".repeat(64)));
    let pod =
        Owner::Pod { uid: PodUid::new(uid), container: Some(Arc::from("main")), within: None };
    let owner_id = rig.ownership.allocation_owner(pod, &Workload::default());
    let mut allocation = {
        rig.allocation(&[(index(0), 7)]);
        rig.ownership.allocations().all()[0][0].clone()
    };
    allocation.owner = owner_id;
    rig.ownership.allocations().replace("slurm", vec![allocation]);
    let read = Read { processes: vec![(process, Some(10), None)], ..quiet() };
    rig.read(0, &read);
    let batch = rig.read(10, &read);
    let reported = rig.reported(&batch, TIME);
    assert_eq!(reported[&(format!("{uid}/main"), "unknown".to_owned())], 10.0, "{reported:?}");
}

#[test]
fn replicas_of_one_owner_are_one_series_and_idle_energy_is_by_replica() {
    let mut rig = Rig::new();
    let replicas = [(7, 2), (8, 1)].map(|(job, count)| Allocation {
        kind: GrantKind::Replica,
        details: AllocationDetails { replicas: Some(count), ..AllocationDetails::default() },
        ..allocated(&index(0), rig.job(job))
    });
    rig.ownership.allocations().replace("slurm", replicas.to_vec());
    rig.read(0, &Read { joules: Some(0.0), ..quiet() });
    let batch = rig.read(10, &Read { joules: Some(900.0), ..quiet() });
    let info = rows([("job 7", "slurm replica", 1.0), ("job 8", "slurm replica", 1.0)]);
    assert_eq!(rig.reported(&batch, "gpu.allocation.info"), info);
    assert_eq!(states(&rig, &batch), [0.0, 0.0, 10.0, 0.0]);
    let energy = rows([("job 7", "allocated", 600.0), ("job 8", "allocated", 300.0)]);
    assert_eq!(rig.reported(&batch, "gpu.owner.energy"), energy);
}

#[test]
fn a_withdrawn_allocation_ends_and_starts_from_zero_when_it_returns() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    rig.read(0, &quiet());
    rig.read(10, &quiet());
    rig.allocation(&[]);
    let batch = rig.read(20, &quiet());
    assert_eq!(rig.reported(&batch, TIME), rows([]));
    rig.allocation(&[(index(0), 7)]);
    let batch = rig.read(30, &quiet());
    assert_eq!(states(&rig, &batch), [0.0; 4]);
}

#[test]
fn a_device_by_two_of_its_names_is_one_allocation() {
    let mut rig = Rig::new();
    // Slurm's device program allows the device's own node and DRM's.
    rig.allocation(&[(index(0), 7), (DeviceName::Node("nvidia7".into()), 7), (index(0), 8)]);
    rig.read(0, &Read { joules: Some(0.0), ..quiet() });
    let batch = rig.read(10, &Read { joules: Some(900.0), ..quiet() });
    let energy = rows([("job 7", "allocated", 450.0), ("job 8", "allocated", 450.0)]);
    assert_eq!(rig.reported(&batch, "gpu.owner.energy"), energy);
}

#[test]
fn an_instance_s_place_names_the_only_one_of_its_profile_that_is_on_the_device() {
    for (names, live, bound) in [
        (vec![placed(7, "1g10gb-me", 0)], 1, 1),
        // No such profile, no such device.
        (vec![placed(7, "1g10gb", 0)], 1, 0),
        (vec![placed(0, "1g10gb-me", 0)], 1, 0),
        // Several of it: on the device, or by what is allocated there.
        (vec![placed(7, "1g10gb-me", 0)], 2, 0),
        (vec![placed(7, "1g10gb-me", 0), placed(7, "1g10gb-me", 1)], 1, 0),
        (vec![placed(7, "1g10gb-me", 0), placed(7, "1g10gb-me", 0)], 1, 2),
        // Not read yet.
        (vec![placed(7, "1g10gb-me", 0)], 0, 0),
    ] {
        let mut rig = Rig::new();
        let all = ["MIG-0", "MIG-1"].map(|uuid| rig.instance(uuid, rig.gpu(0), 1));
        let named: Vec<_> = names.iter().cloned().zip(7..).collect();
        rig.allocation(&named);
        // The other one was destroyed.
        rig.read(0, &Read { instances: all.to_vec(), ..quiet() });
        let batch = rig.read(10, &Read { instances: all[..live].to_vec(), ..quiet() });
        let info = rig.reported(&batch, "gpu.allocation.info");
        assert_eq!(info.len(), bound, "{names:?} {live}: {info:?}");
        let unbound = rig.ownership.allocations().disputes().unbound;
        assert_eq!(unbound, names.len() - bound, "{names:?} {live}");
    }
}
