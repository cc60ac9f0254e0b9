//! What the agent says of the host and of an owner's cgroup is what the kernel's files say, read
//! before and after.

use crate::fixture::TRAINER;
use crate::points::{ALONE, TOLD_WITHIN, WatchedAgent};
use gpuwho_tests::agent::Config;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::fs;

/// The points of a metric with these attributes, oldest first.
fn all<'a>(points: &'a [Value], metric: &str, with: &[(&str, &str)]) -> Vec<&'a Value> {
    let has = |point: &Value| with.iter().all(|(key, value)| point["attributes"][*key] == *value);
    points.iter().filter(|point| point["metric"] == metric && has(point)).collect()
}

/// The values of these.
fn values(points: &[Value], metric: &str, with: &[(&str, &str)]) -> Vec<f64> {
    let points = all(points, metric, with).into_iter().filter(|point| point["ended"] != true);
    points.map(|point| point["value"].as_f64().unwrap()).collect()
}

/// A value that was read after now.
fn next(reported: &mut WatchedAgent, metric: &str, with: &[(&str, &str)]) -> f64 {
    let before = values(reported.points(), metric, with).len();
    reported.wait(metric, |points| {
        // The first may have been read before and told now.
        values(points, metric, with).get(before + 1..)?.last().copied()
    })
}

/// A counter: what the agent says is between two readings of the kernel's file.
fn grows(
    reported: &mut WatchedAgent,
    metric: &str,
    with: &[(&str, &str)],
    kernel: impl Fn() -> f64,
) -> f64 {
    let before = kernel();
    let said = next(reported, metric, with);
    let after = kernel();
    assert!(before <= said && said <= after, "{metric}: {before} {said} {after}");
    said
}

/// A level: where two readings of the kernel's file are the same, so is what the agent says.
fn stays(
    reported: &mut WatchedAgent,
    metric: &str,
    with: &[(&str, &str)],
    kernel: impl Fn() -> f64,
) {
    let found = until(TOLD_WITHIN, || {
        let before = kernel();
        let said = next(reported, metric, with);
        (before.to_bits() == kernel().to_bits()).then_some((before, said))
    });
    let (is, said) = found.expect("a level that stays for a reading");
    assert_eq!(is.to_bits(), said.to_bits(), "{metric}: {is} {said}");
}

/// A number in one of a cgroup's files: its only one, or the one behind a word.
fn of_group(group: &Group, file: &str, key: Option<&str>) -> Option<f64> {
    let text = group.directories.iter().find_map(|one| fs::read_to_string(one.join(file)).ok())?;
    let number = match key {
        Some(key) => text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?,
        None => text.trim(),
    };
    number.parse().ok()
}

fn user_seconds(group: &Group) -> f64 {
    let v1 = of_group(group, "cpuacct.usage_user", None).map(|time| time / 1e9);
    v1.or_else(|| Some(of_group(group, "cpu.stat", Some("user_usec"))? / 1e6)).unwrap()
}

fn memory(group: &Group) -> f64 {
    let v1 = of_group(group, "memory.usage_in_bytes", None);
    v1.or_else(|| of_group(group, "memory.current", None)).unwrap()
}

/// Of `/proc/stat`'s first line.
fn host_user_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.split_ascii_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 100.0
}

fn host_memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    text.split_ascii_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[test]
fn the_hosts_and_an_owners_cpu_and_memory_are_the_kernels_own() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    let config =
        Config { pod_logs: Some(stage.pod_logs()), more: ALONE.to_owned(), ..Config::default() };
    let mut reported = WatchedAgent::start(stage.folder(), "h100x8", config);

    grows(&mut reported, "system.cpu.time", &[("cpu.mode", "user")], host_user_seconds);
    stays(&mut reported, "system.memory.limit", &[], host_memory);

    let owner = [
        ("gpuwho.owner.kind", "pod"),
        ("k8s.pod.name", TRAINER.name),
        ("k8s.container.name", TRAINER.container),
    ];
    let user = [&owner[..], &[("cpu.mode", "user")]].concat();
    let before = grows(&mut reported, "container.cpu.time", &user, || user_seconds(&pod));
    // More of the same container, which works and ends, until the kernel has seen it at work.
    let works = || {
        Worker::on(&pod, &[0]).unwrap().stop();
        (user_seconds(&pod) > before).then_some(())
    };
    until(TOLD_WITHIN, works).expect("CPU time of the container grows");
    let after = grows(&mut reported, "container.cpu.time", &user, || user_seconds(&pod));
    assert!(after > before, "{before} {after}");
    stays(&mut reported, "container.memory.usage", &owner, || memory(&pod));

    // Who holds no device any more is not read, and a group that is gone says nothing.
    worker.stop();
    stage.remove(&pod).unwrap();
    let last = |points: &[Value]| values(points, "container.memory.usage", &owner).len();
    reported.wait("the end of the owner's series", |points| {
        let last = all(points, "container.memory.usage", &owner).pop()?;
        (last["ended"] == true).then_some(())
    });
    let count = last(reported.points());
    reported.wait_for_readings(3);
    assert_eq!(last(reported.points()), count);
}
