//! Receipts of a pod and of a job, against the fake driver's truth, over an agent that is killed.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Some ticks and two starts of the agent, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// The price of a device for an hour.
const PRICE: f64 = 3600.0;

/// The latest receipt of a name.
fn receipt(agent: &Agent, name: &str) -> Option<Value> {
    let mut command = Command::new(program::gpuwho().unwrap());
    let output = command.args(["receipt", name, "--json", "--socket"]).arg(agent.socket()).output();
    let report: Value = serde_json::from_slice(&output.unwrap().stdout).ok()?;
    report["receipts"].get(0).cloned()
}

/// Waits for a receipt of which something holds.
fn wait(agent: &Agent, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = None;
    let found = until(WITHIN, || {
        last = receipt(agent, name);
        last.clone().filter(|receipt| holds(receipt))
    });
    found.unwrap_or_else(|| panic!("last of {name}: {last:#?}; agent: {:#?}", agent.log()))
}

fn number(receipt: &Value, path: &str) -> f64 {
    receipt.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {receipt:#}"))
}

/// Seconds of devices that the owner had.
fn seconds(receipt: &Value) -> f64 {
    ["used", "idle", "unknown"]
        .map(|part| number(receipt, &format!("/gpu_hours/{part}")) * 3600.0)
        .iter()
        .sum()
}

#[test]
fn receipts_are_the_drivers_truth_and_go_on_after_a_kill() {
    let mut stage = or_skip!(Stage::new());
    let groups = [stage.pod(&TRAINER).unwrap(), stage.slurm_task(0, None, 1).unwrap()];
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let workers = [0, 1].map(|gpu: u32| Worker::on(&groups[gpu as usize], &[gpu]).unwrap());
    for (gpu, worker) in (0..).zip(&workers) {
        nvml.set_processes(gpu, &[Some(worker.pid())]).unwrap();
    }
    let files = stage.folder().join("receipts");
    let config = Config {
        interval: Some("200ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        more: format!(
            "[cost]\nprices = [{{ per_hour = {PRICE} }}]\n[receipts]\ndirectory = \"{}\"\n",
            files.display()
        ),
        ..Config::default()
    };
    let began = Instant::now();
    let mut agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let pod = groups[0].expected.pod.clone().unwrap();
    let job = groups[1].expected.slurm_job.clone().unwrap();
    wait(&agent, &pod, |receipt| seconds(receipt) >= 2.0);
    let before = wait(&agent, &job, |receipt| seconds(receipt) >= 2.0);
    let until_killed = began.elapsed().as_secs_f64();
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    agent.wait(WITHIN).unwrap();
    drop(agent);
    let again = Instant::now();
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let known = wait(&agent, &job, |_| true);
    assert!(seconds(&known) <= until_killed, "{known:#}");
    // It was there before the kill: the state file is written once a second.
    assert!(seconds(&known) > 0.0, "{known:#} {before:#}");
    for name in [&pod, &job] {
        let receipt = wait(&agent, name, |receipt| seconds(receipt) >= seconds(&known) + 1.0);
        let most = until_killed + again.elapsed().as_secs_f64();
        assert!(seconds(&receipt) <= most, "more than {most} s: {receipt:#}");
        let cost = number(&receipt, "/cost/0/total");
        // A unit of money a second.
        let error = (cost - seconds(&receipt)).abs();
        assert!(error <= cost * 1e-8, "{cost} for {} s", seconds(&receipt));
        let restarts = receipt.pointer("/unknown").unwrap().to_string();
        assert!(restarts.contains("the agent restarted 1 time; "), "{receipt:#}");
    }
    job_has_the_drivers_truth(&agent, &job, &nvml);
    for worker in workers {
        worker.stop();
    }
    stage.end();
    nvml.set_processes(0, &[]).unwrap();
    nvml.set_processes(1, &[]).unwrap();
    ends_in_a_file(&agent, &job, &files);
}

/// The job's receipt ends, and the same is in a file.
fn ends_in_a_file(agent: &Agent, job: &str, files: &Path) {
    let ended = wait(agent, job, |receipt| receipt["state"] == "ended");
    let named = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
    let file = until(WITHIN, || {
        let mut all = std::fs::read_dir(files).ok()?.map(named);
        all.find(|path| path.display().to_string().contains(&format!("slurm_job_{job}")))
    });
    let text = std::fs::read(file.expect("no file of the job's receipt")).unwrap();
    let written: Value = serde_json::from_slice(&text).unwrap();
    for key in ["receipt", "state", "owner", "began", "until"] {
        assert_eq!(written[key], ended[key], "{key}");
    }
}

/// The second device is the job's alone: its busy time is the driver's.
fn job_has_the_drivers_truth(agent: &Agent, job: &str, nvml: &FakeNvml) {
    let scenario = nvml.truth().unwrap();
    let truth = scenario.devices().nth(1).unwrap();
    let receipt = receipt(agent, job).unwrap();
    let busy = number(&receipt, "/utilization_mean");
    let expected = truth.value(truth.group.utilization.as_ref().unwrap(), 0.0) / 100.0;
    // A part of the time the owner of a new process is not found yet.
    assert!(busy > expected / 2.0 && busy < expected * 1.01, "{busy}, not {expected}: {receipt:#}");
    assert_eq!(receipt["shares"], serde_json::json!(["exclusive"]));
}
