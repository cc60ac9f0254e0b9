//! The local sockets of kubelet and runtime, end to end: a fake of both, a staged pod, and the points that a
//! process of that pod gets.

mod unkind;

use crate::fixture::{SEEN_WITHIN, TRAINER};
use fake_kubelet::{Allocation, Container, Devices, Kubelet, Pod};
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
use std::time::Duration;

/// For what the agent does every ten seconds, and every minute after failures, on a machine under load.
const WITHIN: Duration = Duration::from_mins(3);

/// The device that the trainer was granted.
const GPU: &str = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000000";

/// Points that the agent writes after the kubelet is gone before the test believes it.
const ENOUGH: usize = 4;

struct Scene {
    // Ended and removed before the stage under them.
    agent: Agent,
    worker: Worker,
    kubelet: Kubelet,
    nvml: FakeNvml,
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
        pod.labels.insert("controller-revision-hash".into(), "trainer-7d4b9c6f5d".into());
        pod.labels.insert("statefulset.kubernetes.io/pod-name".into(), "trainer-0".into());
        pod.labels.insert("team".into(), "nlp".into());
        pod.labels.insert("kueue.x-k8s.io/queue-name".into(), "team-a".into());
        let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
        let mut container = Container::new("train", &id);
        container.allocation.devices.push(Devices::of("nvidia.com/gpu", &[GPU]));
        pod.containers.push(container);
        kubelet.set_pod(pod);
        register(&kubelet);

        let points = stage.folder().join("points.jsonl");
        let config = Config {
            interval: Some("500ms".to_owned()),
            file: Some(points.clone()),
            more: format!(
                "[kubernetes]\ncri = [\"{}\"]\npod_resources = \"{}\"\n\
                 labels = [\"team\"]\n[containers]\ndocker = \"\"\npodman = \"\"\n",
                kubelet.cri().display(),
                kubelet.pod_resources().display()
            ),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { agent, worker, kubelet, nvml, points, stage }
    }

    /// What the points of the worker's memory say of its pod, oldest first.
    fn reported(&self) -> Vec<Value> {
        let memory = "gpu.process.memory.usage";
        let points = points(&self.points);
        let own = points.iter().filter(|point| {
            point["metric"] == memory && point["attributes"]["process.pid"] == self.worker.pid()
        });
        own.map(|point| point["attributes"].clone()).collect()
    }

    /// Waits until a source says something.
    fn wait_for_source(&self, name: &str, words: &str) {
        let said = until(WITHIN, || self.source(name, words));
        assert!(said.is_some(), "{name} does not say {words:?}: {:#}", self.agent.who().unwrap());
    }

    /// The points that say what a pod was granted.
    fn granted(&self, pod: &str) -> Vec<Value> {
        of_metric(&self.points, "gpu.allocation.info", pod)
    }

    /// Waits until the pod's grants are told, so often more.
    fn wait_for_grants(&self, pod: &str, more: usize) {
        let wanted = self.granted(pod).len() + more;
        let came = until(WITHIN, || (self.granted(pod).len() >= wanted).then_some(()));
        assert!(came.is_some(), "{pod}: {:#}", self.agent.who().unwrap());
    }

    /// Nothing that was granted to the trainer has ended or begun anew.
    fn assert_never_ended(&self) {
        let ended: Vec<_> = self
            .granted("trainer-0")
            .into_iter()
            .filter(|point| point["value"].is_null())
            .collect();
        assert_eq!(ended, Vec::<Value>::new());
        let starts: BTreeSet<_> = of_metric(&self.points, "gpu.allocation.time", "trainer-0")
            .iter()
            .map(|point| point["start"].to_string())
            .collect();
        assert_eq!(starts.len(), 1, "{starts:?}");
    }

    /// How a source stands.
    fn source(&self, name: &str, words: &str) -> Option<()> {
        let who = self.agent.who().ok()?;
        let source = who["sources"].as_array()?.iter().find(|source| source["name"] == name)?;
        source["reason"].as_str()?.contains(words).then_some(())
    }
}

/// The node's device plugin registers.
fn register(kubelet: &Kubelet) {
    let devices = vec![Devices::of("nvidia.com/gpu", &[GPU, "GPU-other"])];
    kubelet.set_allocatable(Allocation { devices, ..Allocation::default() });
}

/// A line may be half written.
fn points(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What is owed to the runtime alone.
fn is_whole(attributes: &Value) -> bool {
    let wanted = [
        ("k8s.namespace.name", "research"),
        ("k8s.pod.name", "trainer-0"),
        ("k8s.container.name", "train"),
        ("k8s.statefulset.name", "trainer"),
        ("gpuwho.workload.kind", "StatefulSet"),
        ("gpuwho.workload.name", "trainer"),
        ("gpuwho.workload.queue", "team-a"),
    ];
    wanted.iter().all(|(key, value)| attributes[*key] == *value)
}

#[test]
fn the_runtime_names_a_pods_processes_and_its_restart_takes_no_name_away() {
    let mut scene = Scene::new(or_skip!(Stage::new()));
    let named = until(SEEN_WITHIN, || scene.reported().iter().any(is_whole).then_some(()));
    let last = scene.reported().pop();
    assert!(named.is_some(), "{last:#?}; agent: {:#?}", scene.agent.log());

    scene.kubelet.stop();
    let gone = until(SEEN_WITHIN, || scene.source("cri", "no process listens"));
    assert!(gone.is_some(), "{:#}", scene.agent.who().unwrap());
    scene.kubelet.remove_sockets().unwrap();
    let before = scene.reported().len();
    let more = until(SEEN_WITHIN, || (scene.reported().len() >= before + ENOUGH).then_some(()));
    assert!(more.is_some(), "the agent has stopped: {:#?}", scene.agent.log());
    scene.kubelet.again().unwrap();
    let back =
        until(SEEN_WITHIN, || scene.source("cri", "sends events: 2 containers and sandboxes"));
    assert!(back.is_some(), "{:#}", scene.agent.who().unwrap());

    let reported = scene.reported();
    let first = reported.iter().position(is_whole).unwrap();
    let blank: Vec<_> =
        reported[first..].iter().filter(|attributes| !is_whole(attributes)).collect();
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
    scene.wait_for_grants("trainer-0", 1);
    scene.kubelet.start_without_api_server().unwrap();
    scene.wait_for_source("pod_resources", "leaves out 1 running pods");
    scene.wait_for_grants("trainer-0", ENOUGH);
    assert!(scene.reported().last().is_some_and(is_whole), "{:#?}", scene.reported().last());
    scene.kubelet.reach_api_server();
    register(&scene.kubelet);
    let back = until(WITHIN, || {
        let leaves_out = scene.source("pod_resources", "leaves out").is_some();
        (!leaves_out).then(|| scene.source("pod_resources", "1 devices allocated of 2")).flatten()
    });
    assert!(back.is_some(), "{:#}", scene.agent.who().unwrap());
    // None of its series ended in between, and its time was not begun anew.
    scene.assert_never_ended();
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
    let reported: HashSet<String> =
        info(&scene).iter().map(|point| point["attributes"].to_string()).collect();
    assert_eq!(reported.len(), 1, "{reported:#?}");
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
    scene.wait_for_source("pod_resources", "1 devices allocated of 2");
    // Its socket stays, and refuses.
    scene.kubelet.stop();
    let words = "not answering (no process listens); the 1 devices of the last list stay allocated";
    scene.wait_for_source("pod_resources", words);
    scene.wait_for_grants("trainer-0", ENOUGH);
    scene.kubelet.again().unwrap();
    register(&scene.kubelet);
    scene.wait_for_source("pod_resources", "1 devices allocated of 2");
    scene.assert_never_ended();
}
