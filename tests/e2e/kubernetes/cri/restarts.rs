//! A real containerd that goes away, comes back and is upgraded in place, while its pods run on.

use super::{Scene, start};
use crate::fixture::TRAINER;
use fake_kubelet::{Allocation, Devices, Kubelet};
use gpuwho_tests::containerd::{self, Pod};
use gpuwho_tests::stage::{Expected, PodSpec};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::{or_skip, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// For what takes seconds at most, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// Points that come before the test believes that a grant goes on.
const ENOUGH: usize = 6;

impl Scene {
    /// Waits until a source says something.
    fn wait_for_source(&self, name: &str, words: &str) {
        let says = |who: &Value| {
            let source = who["sources"].as_array()?.iter().find(|source| source["name"] == name)?;
            source["reason"].as_str()?.contains(words).then_some(())
        };
        self.agent.wait_for(words, WITHIN, says).unwrap();
    }

    /// The points of a metric about a pod.
    fn of_pod(&self, metric: &str, pod: &Pod) -> Vec<Value> {
        let is_it = |point: &Value| {
            point["metric"] == metric && point["attributes"]["k8s.pod.uid"] == *pod.uid
        };
        self.points().into_iter().filter(is_it).collect()
    }

    /// Waits for further points that say what a pod was granted.
    fn wait_for_grants(&self, pod: &Pod, more: usize) {
        let count = || self.of_pod("gpu.allocation.info", pod).len();
        let wanted = count() + more;
        let came = until(WITHIN, || (count() >= wanted).then_some(()));
        assert!(came.is_some(), "{:#}", self.agent.who().unwrap());
    }

    /// A container of which nobody told the agent makes it ask.
    fn stranger(&mut self) -> Worker {
        let group = self.containerd.stage().pod(&PodSpec { name: "stranger", ..TRAINER }).unwrap();
        Worker::on(&group, &[1]).unwrap()
    }

    /// Every point about a process, from the first with its names on, has them.
    fn assert_never_unnamed(&self, pid: u32, expected: &Expected) {
        let points = self.points().into_iter().filter(|point| {
            point["metric"] == "gpu.process.memory.usage"
                && point["attributes"]["process.pid"] == pid
        });
        let pods: Vec<_> =
            points.map(|point| point["attributes"]["k8s.pod.name"].clone()).collect();
        let named = pods.iter().skip_while(|pod| pod.is_null());
        let others: Vec<_> = named.filter(|pod| pod.as_str() != expected.pod.as_deref()).collect();
        assert_eq!(others, Vec::<&Value>::new());
    }
}

#[test]
fn a_containerd_that_restarts_ends_no_grant_and_no_name() {
    let containerd = or_skip!(containerd::available()).start().unwrap();
    let kubelet = Kubelet::start(&containerd.scratch().join("kubelet")).unwrap();
    let mut scene = Scene::with(containerd, &kubelet.pod_resources().display().to_string());
    let pod = scene.pod("trainer-0");
    let container = start(&pod, "train", 0);
    scene.nvml.set_processes(0, &[Some(container.pid)]).unwrap();
    let mut reported = pod.as_kubelets(&[&container]);
    let gpu = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000000";
    let devices = vec![Devices::of("nvidia.com/gpu", &[gpu])];
    reported.containers[0].allocation = Allocation { devices, ..Allocation::default() };
    kubelet.set_pod(reported);
    scene.wait_for_grants(&pod, 1);
    scene.wait_for_attributes("gpu.process.memory.usage", container.pid);

    scene.containerd.stop().unwrap();
    let _stranger = scene.stranger();
    scene.wait_for_source("cri", "not answering");
    // The kubelet goes on listing, and its pods cannot be asked for.
    let lists = kubelet.lists();
    let listed = until(WITHIN, || (kubelet.lists() > lists).then_some(()));
    assert!(listed.is_some(), "{lists} lists");
    scene.wait_for_grants(&pod, ENOUGH);
    scene.containerd.again().unwrap();
    scene.wait_until_ready();
    scene.wait_for_grants(&pod, ENOUGH);

    let info = scene.of_pod("gpu.allocation.info", &pod);
    assert!(info.iter().all(|point| !point["value"].is_null()), "{info:#?}");
    let times = scene.of_pod("gpu.allocation.time", &pod);
    let starts: BTreeSet<_> = times.iter().map(|point| point["start"].to_string()).collect();
    assert_eq!(starts.len(), 1, "{starts:?}");
    scene.assert_never_unnamed(container.pid, &container.expected);
}

#[test]
fn a_containerd_that_was_upgraded_in_place_is_asked_for_events() {
    let newer = or_skip!(containerd::available_with_events());
    let older = or_skip!(containerd::available());
    if older.has_events() {
        skip!("a containerd of the system's that is older than 1.7");
    }
    let mut scene = Scene::new(older.start().unwrap());
    scene.wait_for_source("cri", "is polled");
    let pod = scene.pod("trainer-0");
    scene.containerd.upgrade(newer).unwrap();
    let container = start(&pod, "train", 0);
    scene.wait_for_names(container.pid, &container.expected);
    scene.wait_for_source("cri", "sends events");
}
