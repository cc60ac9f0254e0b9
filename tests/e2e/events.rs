//! What the kernel says about a device arrives once, with whose work it struck, and is counted.

mod affected;
mod library;
mod readers;
mod scene;

use gpuwho_tests::agent::Otlp;
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{Attributes, ReceivedRecord, of};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use scene::{Scene, text};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A few ticks and one start of the reader, on a machine under load.
const WITHIN: Duration = Duration::from_secs(30);

/// The address of the first device of `h100x8`.
const PCI: &str = "0000:10:00";
/// Its UUID.
const UUID: &str = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000000";

#[test]
fn an_xid_arrives_at_the_collector_once_with_its_pod_and_its_action() {
    let stage = or_skip!(Stage::new());
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(folder.path()));
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let mut scene = Scene::new(stage, Some(otlp), |_, _| {});
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let line = format!("NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.");
    scene.kmsg.write_line(&line).unwrap();
    scene.wait_for_xids(79, 1);
    let uid = scene.expected.pod_uid.clone().unwrap();
    let mine = || {
        let mut records = collector.records().unwrap();
        records.retain(|record| record.attrs.get("k8s.pod.uid") == Some(&uid));
        records
    };
    let arrived = || Some(mine()).filter(|records| !records.is_empty());
    let records: Vec<ReceivedRecord> = until(WITHIN, arrived).unwrap();
    let [record] = &records[..] else { panic!("one record: {records:#?}") };
    assert_eq!((record.event.as_str(), record.severity), ("gpu.xid", 21));
    assert_eq!((record.severity_text.as_str(), &record.body), ("critical", &line));
    assert!(u128::from(record.time) >= before - 1_000_000, "{} {before}", record.time);
    assert!(record.observed >= record.time && record.observed - record.time < 20_000_000_000);
    let mut wanted: Attributes = [
        ("gpu.uuid", UUID),
        ("gpu.index", "0"),
        ("gpu.xid.code", "79"),
        ("gpuwho.event.source", "kmsg"),
        ("gpuwho.event.action", "drain the node and restart it; check power, seating and PCIe"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    wanted.extend(scene.of_the_pod().into_iter().map(|(key, value)| (key.to_owned(), value)));
    let found = record.attrs.iter().filter(|(key, _)| wanted.contains_key(*key));
    assert_eq!(found.map(|(k, v)| (k.clone(), v.clone())).collect::<Attributes>(), wanted);
    assert_eq!(record.resource["service.name"], "gpuwho");

    let counted = collector.wait_for(WITHIN, |points| {
        let points = of(points, "gpu.xid.errors", &[("gpu.xid.code", "79")]);
        let values = points.iter().filter_map(|point| point.number());
        let values: Vec<_> = values.map(|value| value.to_string()).collect();
        (values.len() >= 3).then_some(values)
    });
    let values = counted.unwrap().expect("the counter");
    assert!(values[0] == "0" && values[1..].iter().all(|value| value == "1"), "{values:?}");
    assert_eq!(mine().len(), 1);
}

#[test]
fn a_device_that_is_taken_from_its_driver_is_let_go_of_and_taken_again() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let line = "NVRM: Attempting to remove device 0000:10:00.0 with non-zero usage count!";
    scene.kmsg.write_line(line).unwrap();
    let state = |wanted: &'static str| {
        move |who: &Value| (who["devices"][0]["state"] == wanted).then_some(())
    };
    let agent = scene.agent.as_ref().unwrap();
    agent.wait_for("its release", WITHIN, state("released")).unwrap();
    assert_eq!(agent.reader(), None, "nothing holds it");
    assert_eq!(scene.wait_for_events(1)[0]["event"], "gpu.driver.unbind");
    let agent = scene.agent.as_ref().unwrap();
    agent.wait_for("the device again", 2 * WITHIN, state("ok")).unwrap();
}

#[test]
fn a_storm_is_told_in_ten_lines_and_counted_whole() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let pid = scene.worker.pid();
    for _ in 0..200 {
        let line = format!("NVRM: Xid (PCI:{PCI}): 94, pid={pid}, name=worker, Contained: SM.");
        scene.kmsg.write_line(&line).unwrap();
    }
    scene.wait_for_xids(94, 200);
    assert_eq!(scene.wait_for_events(10).len(), 10);
}

#[test]
fn old_records_are_told_once_with_their_own_time_and_not_by_the_next_agent() {
    let line = |code| format!("NVRM: Xid (PCI:{PCI}): {code}, Ch 00000008");
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |kmsg, _| {
        kmsg.write_line_of(&line(31), Duration::from_hours(1)).unwrap();
        kmsg.write_line_of(&line(43), Duration::from_mins(5)).unwrap();
    });
    let reported = scene.wait_for_events(1);
    assert_eq!(reported[0]["attributes"]["gpu.xid.code"], 43, "an hour ago is history");
    let told_at = text(&reported[0]["time"]);
    assert!(told_at < text(&reported[0]["observed"]), "{reported:#?}");
    scene.restart();
    scene.kmsg.write_line(&line(13)).unwrap();
    let codes = |events: &[Value]| {
        let codes = events.iter().map(|event| event["attributes"]["gpu.xid.code"].clone());
        codes.filter_map(|code| code.as_u64()).collect::<Vec<_>>()
    };
    let reported =
        until(WITHIN, || Some(scene.events()).filter(|reported| codes(reported).contains(&13)));
    let reported = reported.expect("the new record");
    assert_eq!(codes(&reported), [43, 13], "{reported:#?}");
}

#[test]
fn a_killed_process_on_a_device_is_told_with_its_pod_and_others_are_not() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let pid = scene.worker.pid();
    let killed = |pid: u32| {
        format!(
            "Memory cgroup out of memory: Killed process {pid} (worker) total-vm:1kB, anon-rss:1kB"
        )
    };
    // This one holds no device, the other does and goes on: neither was killed.
    scene.kmsg.write_line(&killed(std::process::id())).unwrap();
    scene.kmsg.write_line(&killed(pid)).unwrap();
    scene
        .kmsg
        .write_line(&format!("NVRM: Xid (PCI:{PCI}): 63, Row Remapper: New row marked"))
        .unwrap();
    let reported = scene.wait_for_events(1);
    assert_eq!(
        (reported.len(), &reported[0]["event"]),
        (1, &Value::from("gpu.xid")),
        "{reported:#?}"
    );
    let worker = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    scene.kmsg.write_line(&killed(pid)).unwrap();
    let kills = |reported: Vec<Value>| {
        let kills = reported.into_iter().filter(|event| event["event"] == "gpu.process.oom_kill");
        Some(kills.collect::<Vec<_>>()).filter(|kills| !kills.is_empty())
    };
    let reported = until(WITHIN, || kills(scene.events())).unwrap();
    let [event] = &reported[..] else { panic!("one event: {reported:#?}") };
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&event["attributes"][key]), value, "{event:#}");
    }
}

#[test]
fn a_killed_process_that_the_agent_never_saw_is_told_with_the_pod_whose_cgroup_the_kernel_names() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    // No process can have these numbers.
    let (stranger, loader) = (4_194_305, 4_194_306);
    let mut killed = |pid: u32, cgroup: &str| {
        let summary = format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg={cgroup},task_memcg={cgroup},task=loader,pid={pid},uid=0"
        );
        scene.kmsg.write_line(&summary).unwrap();
        let killed = format!(
            "Memory cgroup out of memory: Killed process {pid} (loader) total-vm:1kB, anon-rss:1kB, \
             file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0"
        );
        scene.kmsg.write_line(&killed).unwrap();
    };
    killed(stranger, "/system.slice/other.service");
    killed(loader, &scene.cgroup.clone());
    let reported = scene.wait_for_events(1);
    let [event] = &reported[..] else { panic!("one event: {reported:#?}") };
    let attributes = &event["attributes"];
    assert_eq!(event["event"], "gpu.process.oom_kill");
    assert_eq!(attributes["process.pid"], loader, "{event:#}");
    assert_eq!(attributes["process.executable.name"], "loader", "{event:#}");
    for (key, value) in scene.of_the_pod().into_iter().filter(|(key, _)| *key != "process.pid") {
        assert_eq!(text(&attributes[key]), value, "{event:#}");
    }
}
