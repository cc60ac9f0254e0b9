//! The kubelet's local sockets, end to end: a fake kubelet, a staged pod, and the points that a
//! process of that pod gets.

use crate::fixture::{SEEN_WITHIN, TRAINER};
use fake_kubelet::{Allocation, Container, Devices, Kubelet, Owner, Pod};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Points that the agent writes after the kubelet is gone before the test believes it.
const ENOUGH: usize = 4;

struct Scene {
    // Ended and removed before the stage under them.
    agent: Agent,
    worker: Worker,
    kubelet: Kubelet,
    points: PathBuf,
    stage: Stage,
}

impl Scene {
    fn new(mut stage: Stage) -> Self {
        let group = stage.pod(&TRAINER).unwrap();
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
        let worker = Worker::on(&group, &[0]).unwrap();
        nvml.set_processes(0, &[Some(worker.pid())]).unwrap();

        let kubelet = Kubelet::start(&stage.folder().join("kubelet")).unwrap();
        let expected = &group.expected;
        let mut pod = Pod::new("research", "trainer-0", expected.pod_uid.as_deref().unwrap());
        pod.labels.insert("pod-template-hash".into(), "7d4b9c6f5d".into());
        pod.labels.insert("team".into(), "nlp".into());
        pod.labels.insert("kueue.x-k8s.io/queue-name".into(), "team-a".into());
        pod.owners.push(Owner {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "trainer-7d4b9c6f5d".into(),
            controller: true,
            ..Owner::default()
        });
        let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
        let mut container = Container::new("train", &id);
        let gpu = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000000";
        container.allocation.devices.push(Devices::of("nvidia.com/gpu", &[gpu]));
        pod.containers.push(container);
        kubelet.set_pod(pod);
        let devices = vec![Devices::of("nvidia.com/gpu", &[gpu, "GPU-other"])];
        kubelet.set_allocatable(Allocation { devices, ..Allocation::default() });

        let points = stage.folder().join("points.jsonl");
        let config = Config {
            interval: Some("500ms".to_owned()),
            file: Some(points.clone()),
            more: format!(
                "[kubernetes]\ncri = []\npods_api = \"{}\"\npod_resources = \"{}\"\n\
                 labels = [\"team\"]\n[containers]\ndocker = \"\"\npodman = \"\"\n",
                kubelet.pods_api().display(),
                kubelet.pod_resources().display()
            ),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { agent, worker, kubelet, points, stage }
    }

    /// What the points of the worker's memory say of its pod, oldest first.
    fn told(&self) -> Vec<Value> {
        let memory = "gpu.process.memory.usage";
        let points = points(&self.points);
        let own = points.iter().filter(|point| {
            point["metric"] == memory && point["attributes"]["process.pid"] == self.worker.pid()
        });
        own.map(|point| point["attributes"].clone()).collect()
    }

    /// How a source stands.
    fn source(&self, name: &str, words: &str) -> Option<()> {
        let who = self.agent.who().ok()?;
        let source = who["sources"].as_array()?.iter().find(|source| source["name"] == name)?;
        source["reason"].as_str()?.contains(words).then_some(())
    }
}

/// A line may be half written.
fn points(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What is owed to the Pods API alone.
fn is_whole(attributes: &Value) -> bool {
    let wanted = [
        ("k8s.namespace.name", "research"),
        ("k8s.pod.name", "trainer-0"),
        ("k8s.container.name", "train"),
        ("k8s.replicaset.name", "trainer-7d4b9c6f5d"),
        ("k8s.deployment.name", "trainer"),
        ("gpuwho.workload.kind", "Deployment"),
        ("gpuwho.workload.name", "trainer"),
        ("gpuwho.workload.queue", "team-a"),
    ];
    wanted.iter().all(|(key, value)| attributes[*key] == *value)
}

#[test]
fn the_kubelet_names_a_pods_processes_and_its_restart_takes_no_name_away() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let named = until(SEEN_WITHIN, || scene.told().iter().any(is_whole).then_some(()));
    let last = scene.told().pop();
    assert!(named.is_some(), "{last:#?}; agent: {:#?}", scene.agent.log());

    scene.kubelet.stop();
    let gone = until(SEEN_WITHIN, || scene.source("pods_api", "nobody listens"));
    assert!(gone.is_some(), "{:#}", scene.agent.who().unwrap());
    scene.kubelet.remove_sockets().unwrap();
    let before = scene.told().len();
    let more = until(SEEN_WITHIN, || (scene.told().len() >= before + ENOUGH).then_some(()));
    assert!(more.is_some(), "the agent has stopped: {:#?}", scene.agent.log());
    scene.kubelet.again().unwrap();
    let back = until(SEEN_WITHIN, || scene.source("pods_api", "is watched: 1 pods"));
    assert!(back.is_some(), "{:#}", scene.agent.who().unwrap());

    let told = scene.told();
    let first = told.iter().position(is_whole).unwrap();
    let blank: Vec<_> = told[first..].iter().filter(|attributes| !is_whole(attributes)).collect();
    assert!(blank.is_empty(), "{blank:#?}");
    assert!(scene.stage.folder().exists());
}

/// What points of a metric say of the pod, in the order they were written.
fn of_metric(file: &Path, metric: &str, pod: &str) -> Vec<Value> {
    let points = points(file)
        .into_iter()
        .filter(|point| point["metric"] == metric && point["attributes"]["k8s.pod.name"] == pod);
    points.collect()
}

#[test]
fn a_kubelet_that_lists_no_pods_ends_no_grant_and_no_name() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let info = |scene: &Scene| of_metric(&scene.points, "gpu.allocation.info", "trainer-0");
    let first = until(SEEN_WITHIN * 2, || (!info(&scene).is_empty()).then_some(()));
    assert!(first.is_some(), "{:#}", scene.agent.who().unwrap());
    scene.kubelet.start_without_api_server().unwrap();
    let kept = until(SEEN_WITHIN * 2, || scene.source("pod_resources", "leaves out 1 pods"));
    assert!(kept.is_some(), "{:#}", scene.agent.who().unwrap());
    let before = info(&scene).len();
    let more = until(SEEN_WITHIN, || (info(&scene).len() >= before + ENOUGH).then_some(()));
    assert!(more.is_some(), "the grant has ended: {:#}", scene.agent.who().unwrap());
    assert!(scene.told().last().is_some_and(is_whole), "{:#?}", scene.told().last());
    scene.kubelet.reach_api_server();
    let back = until(SEEN_WITHIN * 2, || {
        let leaves_out = scene.source("pod_resources", "leaves out").is_some();
        (!leaves_out).then(|| scene.source("pod_resources", "1 devices granted of 2")).flatten()
    });
    assert!(back.is_some(), "{:#}", scene.agent.who().unwrap());
    // None of its series ended in between, and its time was not begun anew.
    let ended = info(&scene).into_iter().filter(|point| point["value"].is_null()).count();
    assert_eq!(ended, 0, "{:#?}", info(&scene));
    let starts: BTreeSet<_> = of_metric(&scene.points, "gpu.allocation.time", "trainer-0")
        .iter()
        .map(|point| point["start"].to_string())
        .collect();
    assert_eq!(starts.len(), 1, "{starts:?}");
}

#[test]
fn a_granted_pod_without_a_process_has_its_image_runtime_and_class_and_keeps_them() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let group = scene.stage.pod(&PodSpec { name: "idle-0", ..TRAINER }).unwrap();
    let expected = &group.expected;
    let mut pod = Pod::new("research", "idle-0", expected.pod_uid.as_deref().unwrap());
    let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
    let mut container = Container::new("train", &id);
    let gpu = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000001";
    container.allocation.devices.push(Devices::of("nvidia.com/gpu", &[gpu]));
    container.image = "registry.example/idle:1".into();
    pod.containers.push(container);
    scene.kubelet.set_pod(pod);
    let info = |scene: &Scene| of_metric(&scene.points, "gpu.allocation.info", "idle-0");
    let seen = until(SEEN_WITHIN * 2, || (!info(&scene).is_empty()).then_some(()));
    assert!(seen.is_some(), "{:#}", scene.agent.who().unwrap());
    let _worker = Worker::on(&group, &[1]).unwrap();
    let before = info(&scene).len();
    let more = until(SEEN_WITHIN, || (info(&scene).len() >= before + ENOUGH).then_some(()));
    assert!(more.is_some(), "{:#?}", scene.agent.log());
    let told: HashSet<String> =
        info(&scene).iter().map(|point| point["attributes"].to_string()).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    let attributes = info(&scene)[0]["attributes"].clone();
    for (key, value) in [
        ("container.image.name", "registry.example/idle:1"),
        ("container.runtime.name", "containerd"),
        ("k8s.pod.qos_class", "burstable"),
    ] {
        assert_eq!(attributes[key], value, "{attributes:#}");
    }
}

#[test]
fn the_kubelets_grants_are_bound_to_the_pod_and_outlive_its_restart() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let granted = until(SEEN_WITHIN, || scene.source("pod_resources", "1 devices granted of 2"));
    assert!(granted.is_some(), "{:#}", scene.agent.who().unwrap());
    scene.kubelet.stop();
    // The next list is due within ten seconds.
    let words = "the 1 devices of the last list stay granted";
    let kept = until(SEEN_WITHIN * 2, || scene.source("pod_resources", words));
    assert!(kept.is_some(), "{:#}", scene.agent.who().unwrap());
    scene.kubelet.again().unwrap();
    let back = until(SEEN_WITHIN * 2, || scene.source("pod_resources", "1 devices granted of 2"));
    assert!(back.is_some(), "{:#}", scene.agent.who().unwrap());
}
