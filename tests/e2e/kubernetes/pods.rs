//! Containers of every kind on a real containerd: whose their processes' points are.

use crate::points::{WatchedAgent, expected, of_process, words};
use gpuwho_tests::agent::Config;
use gpuwho_tests::containerd::{self, Container, ContainerSpec, Containerd, Pod, PodSpec, Run};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Driver, Expected, Group};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Script};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// What a process says of its memory has the small identity.
pub(crate) const USAGE: &str = "gpu.process.memory.usage";

/// Long enough to be listed by the driver once or twice.
const INIT_RUNS: Duration = Duration::from_secs(2);

/// An agent that asks a containerd, and nobody else unless `more` says so.
pub(crate) fn watch(containerd: &Containerd, pod_resources: &str, more: &str) -> WatchedAgent {
    let more = format!(
        "[kubernetes]\ncri = [\"{}\"]\n\
         pod_resources = \"{pod_resources}\"\n[containers]\ndocker = \"\"\npodman = \"\"\n{more}",
        containerd.socket().display()
    );
    WatchedAgent::start(containerd.scratch(), "h100x8", Config { more, ..Config::default() })
}

/// What is said of a container on points of its processes.
pub(crate) fn names(of: &Expected) -> BTreeMap<String, String> {
    let all = [
        ("k8s.namespace.name", &of.namespace),
        ("k8s.pod.name", &of.pod),
        ("k8s.pod.uid", &of.pod_uid),
        ("k8s.container.name", &of.container),
        ("container.id", &of.container_id),
    ];
    expected(all.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))))
}

/// Waits until a process's last point has the names of a container, and none of Slurm's.
pub(crate) fn wait_for_names(reported: &mut WatchedAgent, what: &str, pid: u32, of: &Expected) {
    let wanted = names(of);
    let starts = ["k8s.namespace", "k8s.pod.name", "k8s.pod.uid", "k8s.container", "container.id"];
    reported.wait(&format!("{what} ({pid}): {wanted:#?}"), |points| {
        let own = of_process(points, USAGE, pid);
        (words(own.last()?, &starts) == wanted).then_some(())
    });
    // No other owner's before that either.
    let other = of_process(reported.points(), USAGE, pid).into_iter().find(|point| {
        let found = words(point, &["k8s.", "container.id", "slurm."]);
        found.iter().any(|(key, value)| wanted.get(key).is_some_and(|name| name != value))
            || found.keys().any(|key| key.starts_with("slurm."))
    });
    assert_eq!(other, None, "{what}");
}

fn start(pod: &Pod, gpu: u32, spec: &ContainerSpec<'_>) -> Container {
    let run = Run::Worker(Script { gpus: vec![gpu], ..Script::default() });
    pod.container(&ContainerSpec { run, gpus: &[gpu], ..spec.clone() }).unwrap()
}

#[test]
fn init_main_and_debugging_containers_are_told_apart() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let mut reported = watch(&containerd, "", "");
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let script = Script { gpus: vec![0], hold: Hold::For(INIT_RUNS), ..Script::default() };
    let run = Run::Worker(script);
    let init = ContainerSpec { name: "fetch", run, gpus: &[0], ..ContainerSpec::default() };
    let init = pod.container(&init).unwrap();
    reported.nvml.set_processes(0, &[Some(init.pid)]).unwrap();
    wait_for_names(&mut reported, "an init container", init.pid, &init.expected);
    let ended = until(INIT_RUNS * 5, || (!init.runs().unwrap()).then_some(()));
    assert_eq!(ended, Some(()), "the init container runs on");

    let main = start(&pod, 0, &ContainerSpec::default());
    // As `kubectl debug --target` does it: it sees the other's processes.
    let spec = ContainerSpec { name: "debugger", target: Some(&main), ..ContainerSpec::default() };
    let debugger = start(&pod, 1, &spec);
    reported.nvml.set_processes(0, &[Some(main.pid)]).unwrap();
    reported.nvml.set_processes(1, &[Some(debugger.pid)]).unwrap();
    wait_for_names(&mut reported, "a container", main.pid, &main.expected);
    wait_for_names(&mut reported, "an ephemeral container", debugger.pid, &debugger.expected);
    let inside = debugger.start(&Script { gpus: vec![1], ..Script::default() }).unwrap();
    reported.nvml.set_processes(1, &[Some(debugger.pid), Some(inside.pid)]).unwrap();
    wait_for_names(&mut reported, "what runs beside it", inside.pid, &debugger.expected);
}

#[test]
fn pods_in_the_nodes_pid_namespace_and_clusters_in_pods_are_the_outer_pods() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let mut reported = watch(&containerd, "", "");
    let spec = PodSpec { name: "profiler", host_pid: true, ..PodSpec::default() };
    let host_pid = containerd.pod(&spec).unwrap();
    let profiler = start(&host_pid, 0, &ContainerSpec::default());
    let victim = containerd.pod(&PodSpec { name: "victim", ..PodSpec::default() }).unwrap();
    let real = start(&victim, 1, &ContainerSpec::default());
    let spec = PodSpec { name: "kind", namespace: "mallory", ..PodSpec::default() };
    let kind = containerd.pod(&spec).unwrap();
    let node = ContainerSpec { gpus: &[2], ..ContainerSpec::default() };
    let node = kind.container(&node).unwrap();
    // A cluster inside a container has directories like the host's; these are a real pod's names,
    // which the runtime of the host knows.
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", real.pid)).unwrap();
    let path = groups.lines().find_map(|line| Some(&line[line.find("/kubepods")?..])).unwrap();
    let nest = Some(path.trim_start_matches('/').to_owned());
    let directories = kind.group.directories.iter().map(|directory| directory.join(&node.id));
    let inside = Group {
        path: format!("{}/{}", kind.group.path, node.id),
        directories: directories.filter(|directory| directory.is_dir()).collect(),
        expected: node.expected.clone(),
    };
    assert!(!inside.directories.is_empty());
    let script = Script { nest, gpus: vec![2], ..Script::default() };
    let nested = Worker::start(Some(&inside), &script).unwrap();
    let text = fs::read_to_string(format!("/proc/{}/cgroup", nested.pid())).unwrap();
    assert!(text.contains(&format!("{}{path}\n", inside.path)), "{text}");
    reported.nvml.set_processes(0, &[Some(profiler.pid)]).unwrap();
    reported.nvml.set_processes(1, &[Some(real.pid)]).unwrap();
    reported.nvml.set_processes(2, &[Some(nested.pid())]).unwrap();
    wait_for_names(
        &mut reported,
        "a pod without a PID namespace",
        profiler.pid,
        &profiler.expected,
    );
    wait_for_names(&mut reported, "a pod", real.pid, &real.expected);
    wait_for_names(&mut reported, "a nested pod", nested.pid(), &node.expected);
}

#[test]
fn a_pod_of_the_systemd_driver_is_named_where_containerd_puts_it() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let mut reported = watch(&containerd, "", "");
    let spec = PodSpec { driver: Driver::Systemd, ..PodSpec::default() };
    let pod = containerd.pod(&spec).unwrap();
    let container = start(&pod, 0, &ContainerSpec::default());
    reported.nvml.set_processes(0, &[Some(container.pid)]).unwrap();
    wait_for_names(&mut reported, "its container", container.pid, &container.expected);
    // Asked for one by one, and counted as they come.
    reported.wait_for_source("cri", "ready", "2 containers and sandboxes");
}
