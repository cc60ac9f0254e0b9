//! A reload that names another receiver: what waits for the former one, in memory or on disk, arrives.

use super::receiver::{Answer, Receiver};
use super::{WITHIN, kill, spool};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// What each tick has once: the scene has one device.
const METRIC: &str = "gpu.power";

/// The times of all readings and of the series' end, of the file to which everything is written as well, in order.
fn all_times(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let nanoseconds = |line: Value| {
        let time = humantime::parse_rfc3339(line["time"].as_str()?).ok()?;
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos()).ok()
    };
    lines.filter(|line| line["metric"] == METRIC).filter_map(nanoseconds).collect()
}

/// The former receiver answers 503 until the reload names another one.
fn reload_while_points_wait(more: &str, folder: &Path) -> [Receiver; 2] {
    let nvml = FakeNvml::install(folder, "a10x1").unwrap();
    let former = Receiver::start(|_| Answer::Status(503));
    let next = Receiver::start(|_| Answer::Status(200));
    let file = folder.join("points.jsonl");
    let config = Config {
        interval: Some("200ms".to_owned()),
        otlp: Some(Otlp { endpoint: former.url(""), protocol: Some("http/json") }),
        file: Some(file.clone()),
        more: more.to_owned(),
        ..Config::default()
    };
    let mut agent = Agent::start(folder, &config, Some(&nvml)).unwrap();
    let readings = |at_least| {
        let some = || file.exists().then(|| all_times(&file).len()).filter(|n| *n >= at_least);
        until(WITHIN, some).expect("readings")
    };
    let before = readings(5);
    let written = folder.join("gpuwho.toml");
    let text = fs::read_to_string(&written).unwrap();
    fs::write(&written, text.replace(&former.url(""), &next.url(""))).unwrap();
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    until(WITHIN, || (next.count() >= 3).then_some(())).expect("the next one receives");
    former.answer_well();
    let came = || {
        let times = [&former, &next].map(|one| one.times(METRIC)).concat();
        (times.iter().min() == all_times(&file).first()).then_some(())
    };
    until(WITHIN, came).expect("what waited is sent");
    readings(before + 10);
    kill(&mut agent, Signal::TERM);
    let mut sent = [&former, &next].map(|one| one.times(METRIC)).concat();
    sent.sort_unstable();
    assert_eq!(sent, all_times(&file), "each reading once, {before} before the reload");
    [former, next]
}

#[test]
fn what_waits_in_memory_for_a_former_receiver_is_sent_to_that_one() {
    let folder = TempDir::new().unwrap();
    let [former, next] = reload_while_points_wait("", folder.path());
    let latest = former.times(METRIC).into_iter().max();
    assert!(latest.is_some() && latest < next.times(METRIC).into_iter().min());
}

#[test]
fn what_waits_on_disk_is_sent_to_the_next_receiver() {
    let folder = TempDir::new().unwrap();
    let [former, next] = reload_while_points_wait(&spool(folder.path()), folder.path());
    assert_eq!(former.times(METRIC), [0_u64; 0]);
    assert!(next.outcome().is_in_order);
}
