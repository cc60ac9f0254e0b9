//! Everything that names work hangs, or restarts, at once: readings come when they are due, and nobody who was
//! known is forgotten.

use crate::fixture::{TRAINER, wait_for_holder};
use crate::kubernetes::pods::{USAGE, names, wait_for_names, watch};
use crate::points::{WatchedAgent, is, longest_gap, of_process, words};
use crate::slurm::cluster;
use fake_kubelet::{Allocation, Devices, Kubelet};
use gpuwho_tests::containerd::{self, Container, ContainerSpec, Containerd, Pod, PodSpec, Run};
use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{JobSpec, Plugin, Setup, Slurm, Task};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// The agent's.
const INTERVAL: Duration = Duration::from_millis(500);

/// Readings while everything hangs: more than a source waits for an answer.
const READINGS: usize = 13;

/// The sources of names and their states, as `gpuwho` has them.
fn sources(watched: &WatchedAgent) -> BTreeSet<(String, String)> {
    let who = watched.who();
    let all = who["sources"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.map(|source| (text(&source["name"]), text(&source["state"]))).collect()
}

fn doctor_agrees(watched: &WatchedAgent) {
    let doctor = watched.doctor();
    for name in ["cri", "pod_resources"] {
        let said = &doctor[name];
        let state = if said.0 == "ok" { "ready" } else { &said.0 };
        let known = sources(watched);
        assert!(known.contains(&(name.to_owned(), state.to_owned())), "{said:?}: {known:?}");
        assert!(!said.1.is_empty(), "{name}: {said:?}");
    }
}

/// A container on the first device, which is granted the second, and a job's task on the first.
struct Scene {
    // Ended before what it asks.
    reported: WatchedAgent,
    container: Container,
    _pod: Pod,
    task: Task,
    kubelet: Kubelet,
    slurm: Slurm,
    containerd: Containerd,
}

impl Scene {
    /// When all of it is told.
    fn new(mut containerd: Containerd, slurm: Slurm) -> Self {
        let kubelet = Kubelet::start(&containerd.scratch().join("kubelet")).unwrap();
        let more = format!("[slurm]\njobs = \"{}\"\n", slurm.prolog_dir().display());
        let mut watched = watch(&containerd, kubelet.pod_resources().to_str().unwrap(), &more);
        let pod = containerd.pod(&PodSpec::default()).unwrap();
        let run = Run::Worker(Script { gpus: vec![0], ..Script::default() });
        let spec = ContainerSpec { run, gpus: &[0], ..ContainerSpec::default() };
        let container = pod.container(&spec).unwrap();
        let mut as_kubelets = pod.as_kubelets(&[&container]);
        let scenario = watched.nvml.truth().unwrap();
        let device = scenario.device(1).unwrap();
        let uuid = device.text(&device.group.uuid);
        let devices = vec![Devices::of("nvidia.com/gpu", &[&uuid])];
        as_kubelets.containers[0].allocation = Allocation { devices, ..Allocation::default() };
        kubelet.set_pod(as_kubelets);
        let job = slurm.sbatch(&JobSpec::default()).unwrap();
        let task = slurm.wait_started(&job, 1).unwrap().remove(0);
        watched.nvml.set_processes(0, &[Some(container.pid), Some(task.pid())]).unwrap();
        wait_for_names(&mut watched, "the container", container.pid, &container.expected);
        watched.wait("the job's account", |points| {
            let last = of_process(points, USAGE, task.pid()).pop()?;
            is_of_the_account(last).then_some(())
        });
        let scene =
            Self { reported: watched, container, _pod: pod, task, kubelet, slurm, containerd };
        scene.all_is_ready();
        scene
    }

    fn all_is_ready(&self) {
        self.reported.wait_for_source("cri", "ready", "is polled");
        self.reported.wait_for_source("pod_resources", "ready", "1 devices allocated");
        doctor_agrees(&self.reported);
    }

    /// From there on every reading came when it was due, and had every name.
    fn nothing_was_late_or_blank(&mut self, from: usize) {
        let points = &self.reported.points()[from..];
        let gap = longest_gap(points);
        assert!(gap < INTERVAL * 2, "{gap:?} between two readings");
        let wanted = names(&self.container.expected);
        let own = of_process(points, USAGE, self.container.pid);
        let blank = own.iter().find(|point| {
            let found = words(point, &["k8s.", "container.id"]);
            wanted.iter().any(|(key, value)| found.get(key) != Some(value))
        });
        assert_eq!(blank, None);
        let jobs = of_process(points, USAGE, self.task.pid());
        assert_eq!(jobs.iter().find(|point| !is_of_the_account(point)), None);
        assert!(own.len() >= READINGS && jobs.len() >= READINGS, "{} {}", own.len(), jobs.len());
        let grants = points.iter().filter(|point| is(point, "gpu.allocation.info", 1));
        let grants: Vec<_> = grants.collect();
        assert!(grants.len() >= READINGS && grants.iter().all(|point| point["ended"] != true));
    }
}

fn is_of_the_account(point: &Value) -> bool {
    point["attributes"]["slurm.job.account"] == "ml"
}

#[test]
fn readings_come_on_time_and_names_stay_while_runtime_kubelet_and_slurm_hang() {
    let containerd = or_skip!(containerd::available()).start().unwrap();
    let mut scene = Scene::new(containerd, or_skip!(cluster(Setup::of(Plugin::V2))));
    scene.containerd.pause().unwrap();
    scene.kubelet.go_deaf().unwrap();
    scene.slurm.pause_controller().unwrap();
    let stray = unknown(&mut scene.containerd, &scene.reported);
    let from = scene.reported.wait_for_readings(READINGS);
    scene.nothing_was_late_or_blank(from);
    let words = "the 1 devices of the last list stay allocated";
    scene.reported.wait_for_source("pod_resources", "hung", words);
    doctor_agrees(&scene.reported);
    drop(stray);
    scene.containerd.resume().unwrap();
    scene.slurm.resume_controller().unwrap();
}

#[test]
fn readings_come_on_time_and_names_stay_while_runtime_kubelet_and_slurmd_restart() {
    let containerd = or_skip!(containerd::available()).start().unwrap();
    let mut scene = Scene::new(containerd, or_skip!(cluster(Setup::of(Plugin::V2))));
    let from = scene.reported.points().len();
    scene.containerd.stop().unwrap();
    scene.kubelet.stop();
    scene.kubelet.remove_sockets().unwrap();
    scene.slurm.restart_slurmd().unwrap();
    // A container that nobody has heard of makes the agent ask, and nobody is there.
    let stray = unknown(&mut scene.containerd, &scene.reported);
    scene.reported.wait_for_readings(READINGS);
    drop(stray);
    scene.containerd.again().unwrap();
    scene.kubelet.again().unwrap();
    scene.all_is_ready();
    scene.reported.wait_for_readings(2);
    scene.nothing_was_late_or_blank(from);
}

/// A container that nobody has heard of makes the agent ask, and nobody answers.
fn unknown(containerd: &mut Containerd, watched: &WatchedAgent) -> Worker {
    let group = containerd.stage().pod(&TRAINER).unwrap();
    let stray = Worker::on(&group, &[1]).unwrap();
    wait_for_holder(&watched.agent, stray.pid());
    stray
}
