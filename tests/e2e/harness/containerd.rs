//! The real containerd, as the tests of ownership use it.

use crate::fixture::{owner, wait_for_holder};
use fake_kubelet::Kubelet;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::containerd::{
    self, ContainerSpec, Containerd, ContainerdError, Pod, PodSpec, Run,
};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Driver, Expected, Qos};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::script::{Hold, Script};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Tells the copy of this program that [`a_later_start_removes_what_a_killed_owner_left`] kills
/// from the test itself.
const OWNER: &str = "GPUWHO_TEST_CONTAINERD_OWNER";

/// A worker that opens a GPU.
fn worker(gpu: u32) -> Run {
    Run::Worker(Script { gpus: vec![gpu], ..Script::default() })
}

/// The groups of a process, each once.
fn groups(pid: u32) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().map(|line| line.splitn(3, ':').nth(2).unwrap().to_owned()).collect()
}

/// The device nodes a process holds, as `/proc` names them.
fn nodes(pid: u32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let names = links.map(|link| link.display().to_string());
    names.filter(|name| name.contains("nvidia")).collect()
}

fn gpu_nodes(gpu: u32) -> BTreeSet<String> {
    ["nvidiactl".to_owned(), "nvidia-uvm".to_owned(), format!("nvidia{gpu}")]
        .map(|name| format!("/dev/{name}"))
        .into()
}

/// Whatever names something of a pod: its groups, mounts and runtime states.
fn traces(pod: &Pod, containerd_folder: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let folder = containerd_folder.display().to_string();
    let mounts = mounts.lines().filter(|line| line.contains(&folder)).map(str::to_owned);
    let points = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let points: Vec<_> = points.collect();
    let groups = points.iter().map(|point| point.join(pod.group.path.trim_start_matches('/')));
    let tops = points.iter().flat_map(fs::read_dir).flatten().map(|entry| entry.unwrap().path());
    let slice = pod.uid.replace('-', "_");
    let literal = tops.filter(|path| path.display().to_string().contains(&slice));
    let state = Path::new("/run/containerd/runc/k8s.io").join(&pod.sandbox);
    let paths = groups
        .chain(literal)
        .chain([state, containerd_folder.to_owned()])
        .filter(|path| path.exists());
    mounts.chain(paths.map(|path| path.display().to_string())).collect()
}

fn folder(containerd: &Containerd) -> PathBuf {
    containerd.socket().parent().unwrap().to_owned()
}

#[test]
fn a_container_is_in_its_pods_group_and_holds_its_device() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let spec = PodSpec { labels: &[("app", "vllm")], ..PodSpec::default() };
    let pod = containerd.pod(&spec).unwrap();
    let spec = ContainerSpec { run: worker(3), gpus: &[3], ..ContainerSpec::default() };
    let container = pod.container(&spec).unwrap();
    let group = format!("/kubepods/burstable/pod{}/{}", pod.uid, container.id);
    assert_eq!(groups(container.pid), BTreeSet::from([group]));
    assert_eq!(nodes(container.pid), gpu_nodes(3));
    let expected = Expected {
        namespace: Some("research".to_owned()),
        pod: Some("trainer-0".to_owned()),
        pod_uid: Some(pod.uid.clone()),
        container: Some("train".to_owned()),
        container_id: Some(container.id.clone()),
        ..Expected::default()
    };
    assert_eq!(container.expected, expected);
    let logs = containerd.pod_logs().join(format!("research_trainer-0_{}/train/0.log", pod.uid));
    assert_eq!(container.log, logs);
    assert!(fs::read_to_string(&logs).unwrap().contains(" stdout F ready "), "{logs:?}");
    assert_eq!(containerd.containers().unwrap(), [container.id]);
}

#[test]
fn a_container_that_was_not_granted_a_device_has_none() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let container = pod.container(&ContainerSpec::default()).unwrap();
    let found = container.exec(&["/bin/sh", "-c", "ls /dev/nvidia* | wc -l"]).unwrap();
    assert_eq!((found.code, found.stdout.as_str()), (0, "0\n"));
    assert_eq!(nodes(container.pid), BTreeSet::new());
}

#[test]
fn processes_come_and_go_in_a_container() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let run = Run::Worker(Script { forks: 2, ..Script::default() });
    let spec = ContainerSpec { run, gpus: &[0], ..ContainerSpec::default() };
    let container = pod.container(&spec).unwrap();
    assert_eq!(container.children.len(), 2);
    let second = Script { gpus: vec![0], forks: 1, comm: "vllm".to_owned(), ..Script::default() };
    let second = container.start(&second).unwrap();
    assert_eq!(nodes(second.pid), gpu_nodes(0));
    assert_eq!(nodes(second.children[0]), gpu_nodes(0));
    assert_eq!(groups(second.pid), groups(container.pid));
    let mut all = vec![container.pid, second.pid];
    all.extend(container.children.iter().chain(&second.children));
    assert_eq!(BTreeSet::from_iter(container.pids()), BTreeSet::from_iter(all));
    let flash = Hold::For(Duration::from_millis(30));
    let flash = Script { gpus: vec![0], hold: flash, ..Script::default() };
    let ended = container.exec_worker(&flash).unwrap();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let exec = Script { gpus: vec![0], exec: Some("trainer".to_owned()), ..Script::default() };
    let other = container.start(&exec).unwrap();
    let comm = fs::read_to_string(format!("/proc/{}/comm", other.pid)).unwrap();
    assert_eq!(comm, "trainer\n");
    assert_eq!(nodes(other.pid), gpu_nodes(0));
}

#[test]
fn a_restarted_container_is_another_one_of_the_same_pod() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let first = pod.container(&ContainerSpec::default()).unwrap();
    first.crash().unwrap();
    let again = ContainerSpec { attempt: 1, ..ContainerSpec::default() };
    let second = pod.container(&again).unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(first.expected.pod_uid, second.expected.pod_uid);
    assert!(second.log.ends_with("train/1.log"), "{:?}", second.log);
    assert_eq!(groups(second.pid), BTreeSet::from([format!("{}/{}", pod.group.path, second.id)]));
    let listed = BTreeSet::from_iter(containerd.containers().unwrap());
    assert_eq!(listed, BTreeSet::from([first.id.clone(), second.id.clone()]));
    first.remove().unwrap();
    assert_eq!(containerd.containers().unwrap(), [second.id]);
    let (group, logs) = (pod.group.clone(), pod.logs().to_owned());
    pod.remove().unwrap();
    assert_eq!(containerd.containers().unwrap(), [] as [String; 0]);
    let left = group.directories.iter().chain([&logs]).filter(|path| path.exists());
    assert_eq!(left.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
}

#[test]
fn other_shapes_of_pods_are_where_such_kubelets_put_them() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let mut run = |spec: &PodSpec<'_>| {
        let pod = containerd.pod(spec).unwrap();
        let container = pod.container(&ContainerSpec::default()).unwrap();
        (pod.uid.clone(), container)
    };
    let (uid, besteffort) = run(&PodSpec { qos: Qos::BestEffort, ..PodSpec::default() });
    let group = format!("/kubepods/besteffort/pod{uid}/{}", besteffort.id);
    assert_eq!(groups(besteffort.pid), BTreeSet::from([group]));

    // A static pod, whose UID is a digest, and which sees every process of the node.
    let uid = "9f1a3a5a1b1f4a4c9f1a3a5a1b1f4a4c";
    let spec =
        PodSpec { uid: Some(uid), qos: Qos::Guaranteed, host_pid: true, ..PodSpec::default() };
    let (_, host_pid) = run(&spec);
    let group = format!("/kubepods/pod{uid}/{}", host_pid.id);
    assert_eq!(groups(host_pid.pid), BTreeSet::from([group]));
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(of(&host_pid.pid.to_string()), of("self"));

    // The runtime takes the systemd driver's notation for a name, below its own group.
    let (uid, literal) = run(&PodSpec { driver: Driver::Systemd, ..PodSpec::default() });
    let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
    let name = format!("/{slice}:cri-containerd:{}", literal.id);
    let elsewhere: Vec<_> =
        groups(literal.pid).into_iter().filter(|path| !path.ends_with(&name)).collect();
    assert_eq!(elsewhere, Vec::<String>::new());
}

#[test]
fn an_ephemeral_container_sees_the_processes_of_its_target() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let target = pod.container(&ContainerSpec::default()).unwrap();
    let spec =
        ContainerSpec { name: "debugger", target: Some(&target), ..ContainerSpec::default() };
    let debugger = pod.container(&spec).unwrap();
    let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(namespace(debugger.pid), namespace(target.pid));
    assert_ne!(groups(debugger.pid), groups(target.pid));
}

#[test]
fn pods_outlive_a_restart_of_the_runtime_and_a_paused_one_does_not_answer() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let container = pod.container(&ContainerSpec::default()).unwrap();
    let before = containerd.pid();
    containerd.stop().unwrap();
    let error = containerd.containers().unwrap_err();
    assert!(matches!(error, ContainerdError::Call { .. }), "{error}");
    containerd.again().unwrap();
    assert_ne!(containerd.pid(), before);
    assert!(container.runs().unwrap());
    assert_eq!(container.exec(&["/bin/echo", "here"]).unwrap().stdout, "here\n");

    containerd.pause().unwrap();
    let state = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let stopped =
        until(Duration::from_secs(5), || state(containerd.pid()).contains(") T ").then_some(()));
    assert_eq!(stopped, Some(()));
    containerd.resume().unwrap();
    assert_eq!(containerd.containers().unwrap(), [container.id]);
}

#[test]
fn a_containerd_with_events_runs_pods_as_well() {
    let mut containerd = or_skip!(containerd::available_with_events()).start().unwrap();
    let version = containerd.version().unwrap();
    let numbers: Vec<u32> =
        version.trim_start_matches('v').split('.').map_while(|word| word.parse().ok()).collect();
    assert!(numbers >= vec![1, 7], "{version}");
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let spec = ContainerSpec { run: worker(3), gpus: &[3], ..ContainerSpec::default() };
    let container = pod.container(&spec).unwrap();
    let group = format!("{}/{}", pod.group.path, container.id);
    assert_eq!(groups(container.pid), BTreeSet::from([group]));
    assert_eq!(nodes(container.pid), gpu_nodes(3));
}

#[test]
fn a_kubelet_can_be_told_what_the_runtime_made() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let spec = PodSpec { labels: &[("app", "vllm")], qos: Qos::BestEffort, ..PodSpec::default() };
    let pod = containerd.pod(&spec).unwrap();
    let container = pod.container(&ContainerSpec { attempt: 2, ..ContainerSpec::default() });
    let container = container.unwrap();
    let seen = ("kubernetes.io/config.seen", "2026-11-21T01:00:00.000000000Z");
    let source = ("kubernetes.io/config.source", "api");
    let words = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let expected = fake_kubelet::Pod {
        labels: [("app", "vllm")].map(words).into(),
        annotations: [seen, source].map(words).into(),
        containers: vec![fake_kubelet::Container {
            image: containerd.image().to_owned(),
            ..fake_kubelet::Container::new("train", &format!("containerd://{}", container.id))
        }],
        ..fake_kubelet::Pod::new("research", "trainer-0", &pod.uid)
    };
    let reported = pod.as_kubelets(&[&container]);
    assert_eq!(reported, expected);
    let kubelet = Kubelet::start(containerd.scratch()).unwrap();
    kubelet.set_pod(reported.clone());
    assert_eq!(kubelet.remove_pod(&pod.uid), Some(reported));
}

#[test]
fn the_agent_knows_whose_a_container_is() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let config = Config {
        pod_logs: Some(containerd.pod_logs()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(containerd.scratch(), &config, None).unwrap();
    let spec = ContainerSpec { run: worker(1), gpus: &[1], ..ContainerSpec::default() };
    let container = pod.container(&spec).unwrap();
    let found = wait_for_holder(&agent, container.pid);
    assert_eq!(owner(&found), container.expected, "{found:#}");
}

#[test]
fn nothing_is_left_after_a_drop_or_a_panic() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let systemd = PodSpec { driver: Driver::Systemd, ..PodSpec::default() };
    let systemd = containerd.pod(&systemd).unwrap();
    let containers = [&pod, &systemd].map(|pod| {
        let spec = ContainerSpec { run: worker(0), gpus: &[0], ..ContainerSpec::default() };
        pod.container(&spec).unwrap()
    });
    let (daemon, folder) = (containerd.pid(), folder(&containerd));
    assert_ne!(traces(&pod, &folder), Vec::<String>::new());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _containerd = containerd;
        panic!("a failing test");
    }));
    assert!(result.is_err());
    assert_eq!(traces(&pod, &folder), Vec::<String>::new());
    assert_eq!(traces(&systemd, &folder), Vec::<String>::new());
    let pids = containers.iter().map(|container| container.pid).chain([daemon]);
    assert_eq!(pids.filter(|pid| lives(*pid)).collect::<Vec<_>>(), Vec::<u32>::new());
    assert!(containers.iter().all(|container| container.pids().is_empty()));
}

/// A killed process may be a zombie until whoever is its parent by then reaps it.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_later_start_removes_what_a_killed_owner_left() {
    if env::var_os(OWNER).is_some() {
        return own_until_killed();
    }
    drop(or_skip!(containerd::available()));
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "harness::containerd::a_later_start_removes_what_a_killed_owner_left"])
        .arg("--nocapture")
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let mut words = lines.filter_map(|line| line.unwrap().strip_prefix("made ").map(str::to_owned));
    let made = words.next().unwrap();
    let made: Vec<_> = made.split(' ').collect();
    let [folder, group, pid] = made[..] else { panic!("{made:?}") };
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(Path::new(folder).is_dir(), "{folder}");
    // Another test's start may have come first: what counts is that it is gone.
    containerd::sweep().unwrap();
    assert!(!Path::new(folder).exists(), "{folder}");
    assert!(!Path::new(group).exists(), "{group}");
    assert!(!lives(pid.parse().unwrap()), "{pid}");
}

fn own_until_killed() {
    let mut containerd = containerd::available().unwrap().start().unwrap();
    let pod = containerd.pod(&PodSpec::default()).unwrap();
    let container = pod.container(&ContainerSpec::default()).unwrap();
    let points = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let group = format!("{}/{}", pod.group.path.trim_start_matches('/'), container.id);
    let mut groups = points.map(|point| point.join(&group));
    let group = groups.find(|path| path.is_dir()).unwrap();
    println!("made {} {} {}", folder(&containerd).display(), group.display(), container.pid);
    std::thread::park();
}
