//! What pods are allocated: by several of their containers, by several claims, in parts.

use crate::accounting::Amount;
use crate::accounting::fixture::{Read, Rig, allocated, rows};
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::{ContainerId, GpuUuid, OwnerId, PodUid, ProcKey};
use gpuwho_owners::attribute::Workload;
use gpuwho_owners::attribute::allocations::{Allocation, AllocationDetails, Claim, Disputes};
use gpuwho_owners::attribute::names::{ContainerFacts, Provider};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::inventory::DeviceName;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const POD: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const OTHER: &str = "aaaaaaaa-0000-4000-8000-000000000002";

fn quiet() -> Read {
    Read { busy: Some(0.0), used: Some(1000), ..Read::default() }
}

fn index(index: u32) -> DeviceName {
    DeviceName::Index(index)
}

fn mig(uuid: &str) -> DeviceName {
    DeviceName::Uuid(GpuUuid::new(uuid))
}

/// A container of a pod, or the pod as a whole.
fn pod(rig: &Rig, uid: &str, container: Option<&str>) -> OwnerId {
    let container = container.map(Into::into);
    let owner_id = Owner::Pod { uid: PodUid::new(uid), container, within: None };
    rig.ownership.allocation_owner(owner_id, &Workload::default())
}

/// A device that a container of a pod has, or several of its containers.
fn of_pod(rig: &Rig, device: &DeviceName, uid: &str, container: Option<&str>) -> Allocation {
    Allocation {
        holder: pod(rig, uid, None),
        source: GrantSource::Kubelet,
        ..allocated(device, pod(rig, uid, container))
    }
}

/// A device of a claim that is a pod's.
fn claim(rig: &Rig, name: &str, device: u32, is_of_daemon_set: bool) -> Allocation {
    let claim = Claim { name: format!("ns/{name}"), is_of_daemon_set };
    Allocation {
        kind: GrantKind::Claim,
        claim: Some(Arc::new(claim)),
        ..of_pod(rig, &index(device), name, Some("main"))
    }
}

/// The owners that have the first device, and the disputes.
fn settled(rig: &mut Rig, allocations: Vec<Allocation>) -> (Vec<String>, Disputes) {
    rig.ownership.allocations().replace("kubelet", allocations);
    let batch = rig.read(0, &quiet());
    let owners = rig.reported(&batch, "gpu.allocation.info").into_keys().map(|(owner, _)| owner);
    (owners.collect(), rig.ownership.allocations().disputes())
}

/// A process of a pod's container.
fn process(rig: &Rig, pid: u32, uid: &str, container: &str) -> ProcKey {
    let id = format!("{pid:064}");
    rig.ownership.put_container(
        Provider::Cri,
        ContainerFacts {
            id: ContainerId::new(&id),
            name: Some(container.into()),
            image: None,
            runtime: "containerd",
            pod: Some(PodUid::new(uid)),
            cgroup: None,
            details: <_>::default(),
        },
    );
    rig.process_at(pid, &format!("/kubepods/pod{uid}/{id}"))
}

/// Seconds by owner and use; what was granted is a use of its own.
fn had(rig: &Rig) -> BTreeMap<(OwnerId, &'static str), f64> {
    let mut had = BTreeMap::new();
    for increment in rig.accounting.increments() {
        let (what, ns) = match increment.what {
            Amount::Time(state, ns) => (state.as_str(), ns),
            Amount::Granted(ns) => ("granted", ns),
            _ => continue,
        };
        *had.entry((increment.owner, what)).or_default() += ns as f64 / 1e9;
    }
    had.retain(|_, seconds| *seconds > 0.0);
    had
}

#[test]
fn a_monitor_s_claim_of_all_devices_is_no_allocation_once_somebody_has_one_of_them() {
    let mut rig = Rig::new();
    let monitor =
        |rig: &Rig| (0..2).map(|gpu| claim(rig, "monitor", gpu, true)).collect::<Vec<_>>();
    let alone = (vec!["monitor/main".to_owned()], Disputes::default());
    let all = monitor(&rig);
    assert_eq!(settled(&mut rig, all), alone, "nothing shows what it is");
    let mut all = monitor(&rig);
    all.push(claim(&rig, "train", 0, false));
    let found = Disputes { administrative: 2, ..Disputes::default() };
    assert_eq!(settled(&mut rig, all), (vec!["train/main".to_owned()], found));
    // It stays what it is.
    let all = monitor(&rig);
    assert_eq!(settled(&mut rig, all), (vec![], found));
    assert_eq!(settled(&mut rig, vec![]), (vec![], Disputes::default()));
    // A device plugin's device, which has another name.
    let mut all = monitor(&rig);
    all.push(of_pod(&rig, &DeviceName::Minor(7), "train", Some("main")));
    assert_eq!(settled(&mut rig, all), (vec!["train/main".to_owned()], found));
}

#[test]
fn a_monitor_s_claim_of_a_divided_device_is_no_allocation_beside_an_instance_s() {
    let mut rig = Rig::new();
    rig.instance("MIG-3", rig.gpu(0), 3);
    let mut all: Vec<_> = (0..2).map(|gpu| claim(&rig, "monitor", gpu, true)).collect();
    all.push(Allocation { device: mig("MIG-3"), ..claim(&rig, "train", 0, false) });
    let found = Disputes { administrative: 2, ..Disputes::default() };
    assert_eq!(settled(&mut rig, all), (vec!["train/main".to_owned()], found));
}

#[test]
fn a_slurm_job_in_the_pod_of_a_claim_is_no_dispute() {
    let mut rig = Rig::new();
    rig.allocation(&[(index(0), 7)]);
    let owners = vec!["job 7".to_owned(), "slurmd/main".to_owned()];
    let all = vec![claim(&rig, "slurmd", 0, false)];
    assert_eq!(settled(&mut rig, all), (owners, Disputes::default()));
}

#[test]
fn a_device_of_several_claims_is_nobody_s_if_nothing_shows_which_is_for_use() {
    for (what, claims) in [
        ("no DaemonSet", vec![("debug", 0, false), ("debug", 1, false), ("train", 0, false)]),
        ("a DaemonSet with one device", vec![("node", 0, true), ("train", 0, false)]),
        ("two DaemonSets", vec![("a", 0, true), ("a", 1, true), ("b", 0, true), ("b", 1, true)]),
        (
            "two others",
            vec![("m", 0, true), ("m", 1, true), ("debug", 0, false), ("train", 0, false)],
        ),
    ] {
        let mut rig = Rig::new();
        let all = claims.iter().map(|(name, gpu, set)| claim(&rig, name, *gpu, *set)).collect();
        let on_first = claims.iter().filter(|(_, gpu, _)| *gpu == 0).count();
        let (owners, disputes) = settled(&mut rig, all);
        assert!(owners.is_empty(), "{what}: {owners:?}");
        assert_eq!(disputes.administrative, 0, "{what}");
        assert!(disputes.contested >= on_first, "{what}: {disputes:?}");
    }
}

#[test]
fn one_claim_of_several_pods_and_shares_of_a_device_are_no_dispute() {
    let mut rig = Rig::new();
    let both = || vec!["a/main".to_owned(), "b/main".to_owned()];
    let mut one = [claim(&rig, "a", 0, false), claim(&rig, "b", 0, false)];
    one[1].claim = one[0].claim.clone();
    assert_eq!(settled(&mut rig, one.to_vec()), (both(), Disputes::default()));
    let shares = one.map(|share| Allocation { claim: None, ..share });
    assert_eq!(settled(&mut rig, shares.to_vec()), (both(), Disputes::default()));
}

#[test]
fn idle_time_is_not_half_a_monitor_s() {
    let mut rig = Rig::new();
    let all = vec![
        claim(&rig, "monitor", 0, true),
        claim(&rig, "monitor", 1, true),
        claim(&rig, "train", 0, false),
    ];
    rig.ownership.allocations().replace("kubelet", all);
    rig.read(0, &quiet());
    rig.read(10, &quiet());
    let train = pod(&rig, "train", Some("main"));
    assert_eq!(had(&rig), BTreeMap::from([((train, "granted"), 10.0), ((train, "idle"), 10.0)]));
}

#[test]
fn a_device_of_two_containers_is_their_pod_s_once_and_so_is_their_use() {
    let mut rig = Rig::new();
    let (a, other) = (process(&rig, 1, POD, "a"), process(&rig, 2, OTHER, "main"));
    let all =
        vec![of_pod(&rig, &index(0), POD, None), of_pod(&rig, &index(0), OTHER, Some("main"))];
    rig.ownership.allocations().replace("kubelet", all);
    let processes = vec![(a, Some(10), Some(0.8)), (other, Some(10), Some(0.0))];
    let read = Read { busy: Some(0.8), processes, ..quiet() };
    rig.read(0, &read);
    let batch = rig.read(10, &read);
    let [a, whole] = [Some("a"), None].map(|container| pod(&rig, POD, container));
    let other = pod(&rig, OTHER, Some("main"));
    let expected = [
        ((a, "used"), 8.0),
        ((whole, "granted"), 5.0),
        ((other, "granted"), 5.0),
        ((other, "idle"), 2.0),
    ];
    assert_eq!(had(&rig), BTreeMap::from(expected), "the pod used its part");
    let time = rig.reported(&batch, "gpu.allocation.time");
    let spent = time.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect::<BTreeMap<_, _>>();
    let other = format!("{OTHER}/main");
    assert_eq!(spent, rows([(&format!("{POD}/-"), "active", 10.0), (&other, "idle", 10.0)]));
}

#[test]
fn a_pod_s_time_of_a_device_is_the_clock_s_also_where_its_containers_have_instances_of_their_own() {
    let mut rig = Rig::new();
    let instances = [("MIG-3", 3), ("MIG-2", 2)];
    let instances = instances.map(|(uuid, slices)| rig.instance(uuid, rig.gpu(0), slices));
    let all = vec![
        of_pod(&rig, &mig("MIG-3"), POD, Some("a")),
        of_pod(&rig, &mig("MIG-2"), POD, Some("b")),
    ];
    rig.ownership.allocations().replace("kubelet", all);
    let b = process(&rig, 1, POD, "b");
    let read = Read {
        busy: None,
        processes: vec![(b, Some(10), None)],
        inside: vec![instances[1]],
        instances: instances.to_vec(),
        counted: instances.into_iter().zip([0.0, 0.5]).collect(),
        ..quiet()
    };
    rig.read(0, &read);
    let batch = rig.read(10, &read);
    let time = rig.reported(&batch, "gpu.allocation.time");
    let spent = time.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect::<BTreeMap<_, _>>();
    assert_eq!(spent, rows([(&format!("{POD}/-"), "active", 10.0)]));
    let owners = rig.reported(&batch, "gpu.allocation.info").into_keys().map(|(owner, _)| owner);
    assert_eq!(owners.collect::<Vec<_>>(), [format!("{POD}/a"), format!("{POD}/b")]);
}

/// An allocation of a pod: device, container, kind, replicas.
fn any() -> impl Strategy<Value = (usize, usize, Option<usize>, usize, usize)> {
    (0_usize..5, 0_usize..3, prop::option::of(0_usize..3), 0_usize..4, 1_usize..5000)
}

proptest! {
    #[test]
    fn whatever_is_listed_no_pod_has_a_device_for_longer_than_the_clock(
        listed in prop::collection::vec(any(), 0..12),
        users in prop::collection::vec((0_usize..3, 0_usize..3), 0..4),
        busy in prop::option::of(0.0..=1.0),
    ) {
        let (pods, containers) = ([POD, OTHER, "c"], ["a", "b", "main"]);
        let mut rig = Rig::new();
        let instances = [("MIG-3", 3), ("MIG-2", 2)];
        let instances = instances.map(|(uuid, slices)| rig.instance(uuid, rig.gpu(0), slices));
        let names = [index(0), DeviceName::Minor(7), mig("MIG-3"), mig("MIG-2"), index(1)];
        let all = listed.iter().map(|&(device, pod, container, kind, replicas)| Allocation {
            kind: GrantKind::ALL[kind],
            details: AllocationDetails { replicas: Some(replicas), ..<_>::default() },
            ..of_pod(&rig, &names[device], pods[pod], container.map(|at| containers[at]))
        });
        let all = all.collect();
        rig.ownership.allocations().replace("kubelet", all);
        let users = users.iter().zip(1..).map(|(&(pod, container), pid)| {
            (process(&rig, pid, pods[pod], containers[container]), Some(10), Some(0.1))
        });
        let processes: Vec<_> = users.collect();
        for is_cut in [false, true] {
            let read = Read {
                busy: busy.filter(|_| !is_cut),
                inside: processes.iter().filter(|_| is_cut).map(|_| instances[0]).collect(),
                processes: processes.clone(),
                instances: instances.into_iter().filter(|_| is_cut).collect(),
                counted: instances.into_iter().zip([0.3, 0.6]).filter(|_| is_cut).collect(),
                ..quiet()
            };
            let start = if is_cut { 100 } else { 0 };
            rig.read(start, &read);
            let batch = rig.read(start + 10, &read);
            let (mut granted, mut time) = (0.0, 0.0);
            for ((_, what), seconds) in had(&rig) {
                *if what == "granted" { &mut granted } else { &mut time } += seconds;
            }
            prop_assert!((time - 10.0_f64).abs() < 1e-9, "{time}");
            prop_assert!(granted < 10.0 + 1e-6, "{granted}");
            let mut by_pod: BTreeMap<String, f64> = BTreeMap::new();
            for ((owner, _), seconds) in rig.reported(&batch, "gpu.allocation.time") {
                let (pod, _) = owner.split_once('/').unwrap();
                *by_pod.entry(pod.to_owned()).or_default() += seconds;
            }
            let clock = if is_cut { 20.0 } else { 10.0 };
            prop_assert!(by_pod.values().all(|seconds| *seconds <= clock), "{by_pod:?}");
        }
    }
}
