//! Processes that only the driver's list names, by number: whose they are at that very reading.

use crate::fixture::{
    TRAINER, free_pid, hand_over, holder, owner, wait_for_holder, without_kernel,
};
use crate::kubernetes::pods::{USAGE, wait_for_names};
use crate::points::{ALONE, WatchedAgent, of_process, time_ns, words};
use gpuwho_tests::agent::Config;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Opener, Script};
use serde_json::Value;
use std::time::SystemTime;

/// The number goes from one pod to the other so often: a scan comes every two seconds, a reading
/// twice a second.
const TURNS: usize = 6;

const DAY_NS: u64 = 86_400_000_000_000;

fn watch(stage: &Stage, bpf: bool) -> WatchedAgent {
    let (pod_logs, more) = (Some(stage.pod_logs()), ALONE.to_owned());
    let config = Config { bpf: Some(bpf), pod_logs, more, ..Config::default() };
    WatchedAgent::start(stage.folder(), "h100x8", config)
}

/// Nanoseconds since midnight, as points are timed.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos() % u128::from(DAY_NS)).unwrap()
}

/// The pods that points of a process name from a moment on.
fn reported_since(points: &[Value], pid: u32, since_ns: u64) -> Vec<String> {
    let is_later = |point: &&Value| match time_ns(point, point) {
        // After the next midnight.
        time if time + DAY_NS / 2 < since_ns => true,
        time => time >= since_ns,
    };
    let later = of_process(points, USAGE, pid).into_iter().filter(is_later);
    later.filter_map(|point| words(point, &["k8s.pod.name"]).into_values().next()).collect()
}

#[test]
fn without_bpf_a_number_used_again_is_the_later_processs_after_the_next_scan_and_nobody_elses_before()
 {
    let mut stage = or_skip!(Stage::new());
    let pods = ["trainer-0", "trainer-1"].map(|name| {
        let group = stage.pod(&PodSpec { name, ..TRAINER }).unwrap();
        (name, group)
    });
    let mut reported = watch(&stage, false);
    let pid = free_pid(30_000..32_000);
    reported.nvml.set_processes(0, &[Some(pid)]).unwrap();
    for (name, group) in pods.iter().cycle().take(TURNS) {
        let script = Script { gpus: vec![0], opener: Opener::Number(pid), ..Script::default() };
        let worker = Worker::start(Some(group), &script).unwrap();
        let since_ns = now_ns();
        reported.wait(&format!("{name}'s points"), |points| {
            reported_since(points, pid, since_ns).iter().any(|pod| pod == name).then_some(())
        });
        let named = reported_since(reported.points(), pid, since_ns);
        assert!(named.iter().all(|pod| pod == name), "{named:?} since {name} has {pid}");
        worker.stop();
    }
}

#[test]
fn a_node_handed_over_is_its_takers_once_the_driver_lists_it() {
    let mut stage = or_skip!(Stage::new());
    let broker = stage.service("broker").unwrap();
    let pod = stage.pod(&TRAINER).unwrap();
    let mut reported = watch(&stage, true);
    let (giver, taker) = hand_over(&stage, &broker, &pod, 0);
    assert_eq!(owner(&wait_for_holder(&reported.agent, giver.pid())), broker.expected);
    // No hook sees it, and the next scan is minutes away.
    reported.wait_for_readings(2);
    let seen = reported.who();
    if without_kernel(&reported.agent).is_none() {
        assert_eq!(holder(&seen, taker.pid()), None, "{seen:#}");
    }
    reported.nvml.set_processes(0, &[Some(taker.pid())]).unwrap();
    wait_for_names(&mut reported, "who was given the node", taker.pid(), &pod.expected);
}
