//! Pods of a real containerd, named through its CRI socket and nothing else: the agent of these
//! tests sees no pod logs.

mod restarts;

use crate::fixture::{SEEN_WITHIN, TRAINER, ended, holder, owner, wait_for_holder, without_kernel};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::containerd::{self, Container, ContainerSpec, Containerd, Pod, PodSpec, Run};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::Expected;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Script};
use gpuwho_tests::{or_skip, skip};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Shorter than any scan of `/proc` could be.
const FLASH: Duration = Duration::from_millis(40);

/// Ticks of half a second that must come while containerd is stopped: ones that waited for its answers
/// would take five seconds each, together longer than the test waits.
const TICKS: usize = 12;

/// A containerd, an agent that asks it, and the agent's points.
struct Scene {
    // Ended before the containerd under it.
    agent: Agent,
    nvml: FakeNvml,
    points: PathBuf,
    containerd: Containerd,
}

impl Scene {
    fn new(containerd: Containerd) -> Self {
        Self::with(containerd, "")
    }

    /// The same with a kubelet that says what it has granted.
    fn with(containerd: Containerd, pod_resources: &str) -> Self {
        let folder = containerd.scratch().to_owned();
        let nvml = FakeNvml::install(&folder, "h100x8").unwrap();
        let points = folder.join("points.jsonl");
        let socket = containerd.socket().display();
        let more = format!(
            "[kubernetes]\ncri = [\"{socket}\"]\n\
             pod_resources = \"{pod_resources}\"\nlabels = [\"app\"]\n\
             [containers]\ndocker = \"\"\npodman = \"\"\n"
        );
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(folder.join("no-pod-logs")),
            file: Some(points.clone()),
            more,
            ..Config::default()
        };
        let agent = Agent::start(&folder, &config, Some(&nvml)).unwrap();
        let scene = Self { agent, nvml, points, containerd };
        scene.wait_until_ready();
        scene
    }

    fn wait_until_ready(&self) {
        let ready = |who: &Value| {
            let sources = who["sources"].as_array()?;
            let cri = sources.iter().find(|source| source["name"] == "cri")?;
            (cri["state"] == "ready").then_some(())
        };
        self.agent.wait_for("the CRI socket's answer", SEEN_WITHIN, ready).unwrap();
    }

    fn pod(&mut self, name: &str) -> Pod {
        let labels = &[("batch.kubernetes.io/job-name", "finetune"), ("app", "vllm")];
        self.containerd.pod(&PodSpec { name, labels, ..PodSpec::default() }).unwrap()
    }

    /// Waits until a process has the names of a container.
    fn wait_for_names(&self, pid: u32, expected: &Expected) {
        let look = |who: &Value| holder(who, pid).filter(|held| owner(held) == *expected).cloned();
        let found = self.agent.wait_for("the names", SEEN_WITHIN, look);
        assert_eq!(owner(&found.unwrap()), *expected);
    }

    fn points(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.points).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The latest attributes of a metric's points about a process.
    fn wait_for_attributes(&self, metric: &str, pid: u32) -> Value {
        let is_it = |p: &Value| p["metric"] == metric && p["attributes"]["process.pid"] == pid;
        let find = || self.points().into_iter().rev().find(is_it);
        let found = until(SEEN_WITHIN, || {
            find().filter(|point| point["attributes"]["k8s.pod.name"].is_string())
        });
        found.unwrap_or_else(|| panic!("no named point of {metric}: {:#?}", find()))["attributes"]
            .clone()
    }

    /// How many readings of the first device there were.
    fn readings(&self) -> usize {
        let is_reading =
            |p: &&Value| p["metric"] == "gpu.power" && p["attributes"]["gpu.index"] == "0";
        self.points().iter().filter(is_reading).count()
    }

    /// Waits for further readings.
    fn wait_for_readings(&self, readings: usize) {
        let before = self.readings();
        let came = until(SEEN_WITHIN, || (self.readings() >= before + readings).then_some(()));
        came.unwrap_or_else(|| panic!("no readings: {:?}", self.agent.log()));
    }
}

fn worker(gpu: u32) -> Script {
    Script { gpus: vec![gpu], ..Script::default() }
}

fn start(pod: &Pod, name: &str, gpu: u32) -> Container {
    let run = Run::Worker(worker(gpu));
    let spec = ContainerSpec { name, run, gpus: &[gpu], ..ContainerSpec::default() };
    pod.container(&spec).unwrap()
}

#[test]
fn two_containers_of_a_pod_are_told_apart() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    let pod = scene.pod("trainer-0");
    let main = start(&pod, "train", 0);
    scene.wait_for_names(main.pid, &main.expected);
    let side = start(&pod, "logger", 1);
    scene.wait_for_names(side.pid, &side.expected);
    assert_eq!(main.expected.container.as_deref(), Some("train"));
    assert_eq!(side.expected.container.as_deref(), Some("logger"));
}

#[test]
fn a_process_s_points_have_its_pod_container_workload_and_image() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    let pod = scene.pod("trainer-0");
    let container = start(&pod, "train", 2);
    scene.nvml.set_processes(2, &[Some(container.pid)]).unwrap();
    let usage = scene.wait_for_attributes("gpu.process.memory.usage", container.pid);
    let reported = |attributes: &Value, keys: &[&str]| {
        let text = |key: &&str| attributes[*key].as_str().unwrap_or("-").to_owned();
        keys.iter().map(text).collect::<Vec<_>>()
    };
    let keys = [
        "k8s.namespace.name",
        "k8s.pod.name",
        "k8s.pod.uid",
        "k8s.container.name",
        "container.id",
        "k8s.job.name",
    ];
    let names = ["research", "trainer-0", &pod.uid, "train", &container.id, "finetune"];
    assert_eq!(reported(&usage, &keys), names);
    let info = scene.wait_for_attributes("gpu.process.info", container.pid);
    assert_eq!(reported(&info, &keys), names);
    let details = ["container.image.name", "container.runtime.name", "k8s.pod.label.app"];
    assert_eq!(reported(&info, &details), [scene.containerd.image(), "containerd", "vllm"]);
}

#[test]
fn an_executed_process_and_a_restarted_container_have_their_container_s_names() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    let pod = scene.pod("trainer-0");
    let first = start(&pod, "train", 0);
    let second = first.start(&worker(0)).unwrap();
    scene.wait_for_names(second.pid, &first.expected);
    first.crash().unwrap();
    let (run, attempt) = (Run::Worker(worker(0)), 1);
    let again = ContainerSpec { run, attempt, gpus: &[0], ..ContainerSpec::default() };
    let again = pod.container(&again).unwrap();
    assert_ne!(first.id, again.id);
    scene.wait_for_names(again.pid, &again.expected);
}

#[test]
fn a_pod_that_is_deleted_keeps_its_names_and_the_next_of_its_name_has_its_own() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    let pod = scene.pod("trainer-0");
    let first = start(&pod, "train", 0);
    scene.nvml.set_processes(0, &[Some(first.pid)]).unwrap();
    scene.wait_for_names(first.pid, &first.expected);
    let (pid, expected) = (first.pid, first.expected.clone());
    // As a StatefulSet's is replaced. The driver still lists the process for a while.
    drop(first);
    pod.remove().unwrap();
    let again = scene.pod("trainer-0");
    let second = start(&again, "train", 1);
    assert_ne!(second.expected.pod_uid, expected.pod_uid);
    scene.wait_for_names(second.pid, &second.expected);
    scene.wait_for_readings(TICKS / 2);
    let look = |who: &Value| ended(who, pid).map(owner);
    assert_eq!(scene.agent.wait_for("its end", SEEN_WITHIN, look).unwrap(), expected);
    let uid = &second.expected.pod_uid.clone().unwrap();
    let of_both = scene.points().into_iter().filter(|point| {
        point["attributes"]["process.pid"] == pid && point["attributes"]["k8s.pod.uid"] == **uid
    });
    assert_eq!(of_both.collect::<Vec<_>>(), Vec::<Value>::new());
    scene.wait_for_names(second.pid, &second.expected);
}

#[test]
fn a_process_that_lives_40_ms_is_named() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    if let Some(reason) = without_kernel(&scene.agent) {
        skip!("{reason}");
    }
    let pod = scene.pod("trainer-0");
    let container = start(&pod, "train", 0);
    let (comm, hold) = ("flash".to_owned(), Hold::For(FLASH));
    let flash = Script { comm, hold, ..worker(0) };
    assert_eq!(container.exec_worker(&flash).unwrap().code, 0);
    let look = |who: &Value| {
        let flash = who["ended"].as_array()?.iter().find(|held| held["comm"] == "flash")?;
        Some(flash.clone()).filter(|held| owner(held) == container.expected)
    };
    let found = scene.agent.wait_for("the short process's names", SEEN_WITHIN, look).unwrap();
    assert_eq!(owner(&found), container.expected);
}

#[test]
fn a_pod_of_before_the_agent_is_named() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let container = start(&pod, "train", 0);
    let scene = Scene::new(containerd);
    scene.wait_for_names(container.pid, &container.expected);
}

#[test]
fn a_containerd_that_stops_and_restarts_blanks_nobody_and_delays_no_reading() {
    let mut scene = Scene::new(or_skip!(containerd::available()).start().unwrap());
    let pod = scene.pod("trainer-0");
    let container = start(&pod, "train", 0);
    scene.wait_for_names(container.pid, &container.expected);
    scene.containerd.pause().unwrap();
    // A container that nobody knows makes the agent ask while nobody answers.
    let stray = Worker::on(&scene.containerd.stage().pod(&TRAINER).unwrap(), &[1]).unwrap();
    wait_for_holder(&scene.agent, stray.pid());
    scene.wait_for_readings(TICKS);
    assert_eq!(owner(&wait_for_holder(&scene.agent, container.pid)), container.expected);
    scene.containerd.resume().unwrap();
    scene.containerd.restart().unwrap();
    scene.wait_for_readings(TICKS);
    assert_eq!(owner(&wait_for_holder(&scene.agent, container.pid)), container.expected);
    let young = start(&pod, "again", 1);
    scene.wait_for_names(young.pid, &young.expected);
}
