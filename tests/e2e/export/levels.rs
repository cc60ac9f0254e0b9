//! How many series each level of metrics has on a full host.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(40);

/// Processes on each device: one and those it forks.
const FORKS: u32 = 7;

#[test]
fn the_default_level_has_half_of_all_series_and_basic_some_forty_a_device() {
    let mut stage = or_skip!(Stage::new());
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let mut workers = Vec::new();
    for gpu in 0..8 {
        let group = stage.pod(&TRAINER).unwrap();
        let script = Script { gpus: vec![gpu], forks: FORKS, ..Script::default() };
        let worker = Worker::start(Some(&group), &script).unwrap();
        let pids = [&[worker.pid()], worker.children()].concat();
        nvml.set_processes(gpu, &pids.into_iter().map(Some).collect::<Vec<_>>()).unwrap();
        workers.push(worker);
    }
    let [basic, default, all] = ["basic", "default", "all"].map(|level| {
        let file = stage.folder().join(format!("{level}.jsonl"));
        let config = Config {
            interval: Some("1s".to_owned()),
            default_metrics: true,
            file: Some(file.clone()),
            more: format!("[metrics]\nlevel = \"{level}\"\n"),
            ..Config::default()
        };
        let _agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        series_of_complete_ticks(&file)
    });
    println!("series: basic {basic}, default {default}, all {all}");
    // Half, and some room for what differs from host to host.
    assert!(default * 100 <= all * 52, "default {default}, all {all}");
    assert!(basic <= 8 * 45 + 64 * 3 + 150, "{basic}");
}

/// The series of a file in which every process was seen in two readings.
fn series_of_complete_ticks(file: &Path) -> usize {
    let mut last = 0;
    let series = until(WITHIN, || {
        let text = fs::read_to_string(file).ok()?;
        let points: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let utilization =
            points.iter().filter(|point| point["metric"] == "gpu.process.utilization");
        let pids: BTreeSet<String> =
            utilization.map(|point| point["attributes"]["process.pid"].to_string()).collect();
        let ticks: BTreeSet<&str> = points
            .iter()
            .filter(|point| point["metric"] == "gpu.energy")
            .filter_map(|point| point["time"].as_str())
            .collect();
        let series: BTreeSet<String> = points
            .iter()
            .filter(|point| !point["value"].is_null())
            .map(|point| format!("{}{}", point["metric"], point["attributes"]))
            .collect();
        last = series.len();
        (pids.len() == 64 && ticks.len() > 8).then_some(last)
    });
    series.unwrap_or_else(|| panic!("not all processes came; {last} series"))
}
