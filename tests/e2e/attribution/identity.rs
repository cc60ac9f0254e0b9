//! Who a process is cannot be mistaken: numbers used again, other namespaces, threads, daemons,
//! nodes that were handed over, and names that are made to look like another's.

use crate::fixture::{
    TRAINER, free_pid, hand_over, holder, owner, wait_for_holder, watch, watch_with, without_kernel,
};
use gpuwho_tests::agent::Config;
use gpuwho_tests::stage::{Expected, Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Opener, Script};
use gpuwho_tests::{or_skip, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Pods and jobs in a storm, half of each.
const GROUPS: u32 = 50;
/// Processes of one number, one after another, in each of them.
const LIVES: u32 = 40;

fn by(opener: Opener) -> Script {
    Script { gpus: vec![0], opener, ..Script::default() }
}

#[test]
fn the_first_process_of_a_pid_namespace_has_its_number_on_the_host() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let worker = Worker::start(Some(&pod), &by(Opener::PidNamespace)).unwrap();
    let [child] = worker.children() else { panic!("one child: {:?}", worker.children()) };
    assert!(*child > 1);
    assert_eq!(owner(&wait_for_holder(&agent, *child)), pod.expected);
    assert_eq!(holder(&agent.who().unwrap(), 1), None);
}

#[test]
fn a_thread_that_opens_a_device_is_its_process() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let worker = Worker::start(Some(&pod), &by(Opener::Thread)).unwrap();
    assert_eq!(owner(&wait_for_holder(&agent, worker.pid())), pod.expected);
}

#[test]
fn a_daemon_belongs_to_the_job_that_left_it() {
    let mut stage = or_skip!(Stage::new());
    let task = stage.slurm_task(1001, None, 0).unwrap();
    let agent = watch(&stage);
    let worker = Worker::start(Some(&task), &by(Opener::Daemon)).unwrap();
    let [daemon] = worker.children() else { panic!("one child: {:?}", worker.children()) };
    assert_eq!(owner(&wait_for_holder(&agent, *daemon)), task.expected);
}

#[test]
fn directories_named_like_another_pod_inside_a_container_do_not_change_its_owner() {
    let mut stage = or_skip!(Stage::new());
    let victim = stage.pod(&TRAINER).unwrap();
    forges(stage, &victim.path);
}

#[test]
fn directories_named_like_a_job_inside_a_container_do_not_make_one() {
    let stage = or_skip!(Stage::new());
    forges(stage, "/slurm/uid_0/job_1/step_0/task_0");
}

/// A container moves to a path of its own making and stays whose it was.
fn forges(mut stage: Stage, path: &str) {
    let pod = stage.pod(&PodSpec { namespace: "mallory", name: "miner-0", ..TRAINER }).unwrap();
    let agent = watch(&stage);
    let nest = Some(path.trim_start_matches('/').to_owned());
    let script = Script { nest, gpus: vec![0], ..Script::default() };
    let worker = Worker::start(Some(&pod), &script).unwrap();
    let lines = std::fs::read_to_string(format!("/proc/{}/cgroup", worker.pid())).unwrap();
    assert!(lines.contains(&format!("{}{path}\n", pod.path)), "{lines}");
    assert_eq!(owner(&wait_for_holder(&agent, worker.pid())), pod.expected);
}

#[test]
fn a_node_handed_over_is_found_with_the_one_who_has_it_now() {
    let mut stage = or_skip!(Stage::new());
    let broker = stage.service("broker").unwrap();
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch_with(&stage, Config { rescan_interval: Some("4s"), ..Config::default() });
    let (giver, taker) = hand_over(&stage, &broker, &pod, 0);
    let taken = Instant::now();
    assert_eq!(owner(&wait_for_holder(&agent, taker.pid())), pod.expected);
    // A second for whatever else this machine does.
    assert!(taken.elapsed() < Duration::from_secs(5), "{:?}", taken.elapsed());
    assert_eq!(owner(&wait_for_holder(&agent, giver.pid())), broker.expected);
}

/// Ticks since boot, as process start times are counted.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 100 + now.tv_nsec / 10_000_000).unwrap()
}

#[test]
fn one_number_in_50_pods_and_jobs_is_never_taken_for_another() {
    let mut stage = or_skip!(Stage::new());
    let groups: Vec<Group> = (0..GROUPS)
        .map(|number| match number % 2 {
            0 => stage.pod(&PodSpec { name: &format!("trainer-{number}"), ..TRAINER }).unwrap(),
            _ => stage.slurm_task(1001, None, number).unwrap(),
        })
        .collect();
    let agent = watch(&stage);
    if let Some(reason) = without_kernel(&agent) {
        skip!("{reason}");
    }
    let pid = free_pid(20_000..30_000);
    // Whose the number was from when on.
    let mut times: BTreeMap<u64, &Expected> = BTreeMap::new();
    for group in &groups {
        let hold = Hold::Storm { count: LIVES, per_second: 0 };
        times.insert(now_ticks(), &group.expected);
        let storm =
            Worker::start(Some(group), &Script { hold, ..by(Opener::Number(pid)) }).unwrap();
        assert_eq!(storm.children(), vec![pid; LIVES as usize]);
        // Two lives within one tick of the clock of start times would be one to anybody.
        let last = now_ticks();
        until(Duration::from_secs(1), || (now_ticks() > last).then_some(())).unwrap();
    }
    let last = Worker::on(groups.last().unwrap(), &[1]).unwrap();
    wait_for_holder(&agent, last.pid());

    let who = agent.who().unwrap();
    let holders = ["holders", "ended"].map(|key| who[key].as_array().unwrap());
    let all: Vec<&Value> =
        holders.into_iter().flatten().filter(|holder| holder["pid"] == pid).collect();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for found in &all {
        let start = found["start_ticks"].as_u64().unwrap();
        let (_, expected) = times.range(..=start).next_back().unwrap();
        assert_eq!(&owner(found), *expected, "{found:#}");
        *seen.entry(format!("{expected:?}")).or_default() += 1;
    }
    assert_eq!(seen.len(), groups.len(), "a group of which no process was seen");
    println!("{} lives of number {pid} told apart in {} groups", all.len(), seen.len());
}
