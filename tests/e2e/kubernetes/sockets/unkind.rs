//! What a real kubelet does to whoever believes it at once: plugins that register late, a limit that
//! is shared with others, init containers that are in no list, devices in no order.

use super::{ENOUGH, Scene, WITHIN, of_metric, register};
use crate::fixture::TRAINER;
use fake_kubelet::{Allocation, Container, ContainerKind, Devices, Fault, Pod};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::collections::BTreeSet;
use tonic::Code;

/// Lists over which nothing may change.
const LISTS: usize = 3;

fn devices(gpus: &[u32]) -> Vec<Devices> {
    let uuid = |gpu: &u32| format!("GPU-4f6b1c1e-8f0a-4c55-9d10-00000000000{gpu}");
    let ids: Vec<_> = gpus.iter().map(uuid).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    vec![Devices::of("nvidia.com/gpu", &ids)]
}

/// A pod whose container is a group's.
fn pod(name: &str, group: &Group, gpus: &[u32]) -> Pod {
    let expected = &group.expected;
    let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
    let mut container = Container::new("train", &id);
    container.allocation = Allocation { devices: devices(gpus), ..Allocation::default() };
    let uid = expected.pod_uid.as_deref().unwrap();
    Pod { containers: vec![container], ..Pod::new("research", name, uid) }
}

/// The devices and containers that a pod's grants name.
fn grants(points: &[Value]) -> BTreeSet<[String; 2]> {
    let text = |point: &Value, key: &str| point["attributes"][key].as_str().unwrap().to_owned();
    points
        .iter()
        .map(|point| ["gpu.index", "k8s.container.name"].map(|key| text(point, key)))
        .collect()
}

#[test]
fn device_plugins_that_register_late_are_counted_when_they_have() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    scene.wait_for_source("pod_resources", "1 devices allocated of 2");
    scene.kubelet.again().unwrap();
    scene.wait_for_source("pod_resources", "1 devices allocated of 0");
    // No pod comes or goes: nobody tells of a plugin.
    register(&scene.kubelet);
    scene.wait_for_source("pod_resources", "1 devices allocated of 2");
    let allocatable = || {
        let points = super::points(&scene.points);
        let is_it = |point: &&Value| {
            point["metric"] == "gpu.allocatable" && point["attributes"]["gpu.index"] == "0"
        };
        points.iter().rfind(is_it).and_then(|point| point["value"].as_i64())
    };
    let reported = until(WITHIN, || (allocatable() == Some(1)).then_some(()));
    assert!(reported.is_some(), "{:?}", allocatable());
    scene.assert_never_ended();
}

#[test]
fn over_the_limit_of_all_its_clients_grants_stay_and_new_ones_come_after_it() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    scene.wait_for_grants("trainer-0", 1);
    let refused = Fault::Refuse(Code::ResourceExhausted, "rejected by rate limit".to_owned());
    scene.kubelet.set_fault(Some(refused));
    let group = scene.stage.pod(&PodSpec { name: "late-0", ..TRAINER }).unwrap();
    scene.kubelet.set_pod(pod("late-0", &group, &[1]));
    let words = "rejected by rate limit; the 1 devices of the last list stay allocated";
    scene.wait_for_source("pod_resources", words);
    scene.wait_for_grants("trainer-0", ENOUGH);
    assert_eq!(scene.granted("late-0"), Vec::<Value>::new());
    scene.kubelet.set_fault(None);
    scene.wait_for_grants("late-0", 1);
    scene.wait_for_source("pod_resources", "2 devices allocated");
    scene.assert_never_ended();
}

#[test]
fn an_init_container_is_named_though_only_the_next_container_is_listed_for_its_device() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let spec = PodSpec { name: "staged-0", container: "fetch", ..TRAINER };
    let group = scene.stage.pod(&spec).unwrap();
    let mut staged = pod("staged-0", &group, &[1]);
    let main = Container { id: String::new(), ..staged.containers[0].clone() };
    staged.containers[0].name = "fetch".into();
    staged.containers[0].kind = ContainerKind::Init;
    staged.containers.push(main);
    scene.kubelet.set_pod(staged);
    let fetch = Worker::on(&group, &[1]).unwrap();
    scene.nvml.set_processes(1, &[Some(fetch.pid())]).unwrap();
    scene.wait_for_grants("staged-0", 1);
    let named = until(WITHIN, || {
        let points = of_metric(&scene.points, "gpu.process.memory.usage", "staged-0");
        let is_named = |point: &Value| {
            point["attributes"]["process.pid"] == fetch.pid()
                && point["attributes"]["k8s.container.name"] == "fetch"
        };
        points.iter().any(is_named).then_some(())
    });
    assert!(named.is_some(), "{:#}", scene.agent.who().unwrap());
    let granted = grants(&scene.granted("staged-0"));
    assert_eq!(granted, [["1".to_owned(), "train".to_owned()]].into());
}

#[test]
fn lists_in_another_order_each_time_change_no_grant() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let group = scene.stage.pod(&PodSpec { name: "wide-0", ..TRAINER }).unwrap();
    scene.kubelet.set_pod(pod("wide-0", &group, &[1, 2, 3]));
    scene.wait_for_source("pod_resources", "4 devices allocated");
    let first = scene.kubelet.lists();
    for list in 0..LISTS {
        // News of a pod brings the next list forward.
        let uid = format!("cccccccc-0000-4000-8000-00000000000{list}");
        scene.kubelet.set_pod(Pod::new("research", &format!("other-{list}"), &uid));
        let listed = until(WITHIN, || (scene.kubelet.lists() > first + list).then_some(()));
        assert!(listed.is_some(), "{} of {first}", scene.kubelet.lists());
    }
    scene.wait_for_grants("wide-0", ENOUGH);
    let granted = scene.granted("wide-0");
    let row = |gpu: &str| [gpu.to_owned(), "train".to_owned()];
    assert_eq!(grants(&granted), ["1", "2", "3"].map(row).into());
    assert!(granted.iter().all(|point| !point["value"].is_null()), "{granted:#?}");
    scene.assert_never_ended();
}
