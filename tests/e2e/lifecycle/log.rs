//! What an operator reads in the log: what was found, and why a signal changes nothing.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);

/// Lines of a start: the sentences about capabilities that are missing here are some of them.
const FEW: usize = 20;

#[test]
fn the_log_says_what_was_found_and_the_outcome_of_a_reload() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        file: Some(folder.path().join("points.jsonl")),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let mut lines: Vec<String> = Vec::new();
    let found = until(WITHIN, || {
        lines.extend(agent.log());
        let text = "found 8 NVIDIA H100 80GB HBM3, driver 580.95.05";
        lines.iter().any(|line| line.contains(text)).then_some(())
    });
    assert!(found.is_some(), "{lines:#?}");
    let is_about_absence = |line: &&String| line.contains(" is absent");
    assert_eq!(lines.iter().find(is_about_absence), None, "one line for all that is not here");
    assert!(lines.iter().any(|line| line.contains("exporting: file")), "{lines:#?}");
    let text = || fs::read_to_string(folder.path().join("points.jsonl")).unwrap_or_default();
    let is_told = || text().contains("gpu.driver.vulnerable").then_some(());
    assert!(until(WITHIN, is_told).is_some(), "that driver has known holes");
    assert!(lines.len() <= FEW, "{lines:#?}");
    let pid = Pid::from_raw(agent.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    agent.wait_for_log("the configuration was read again", WITHIN).unwrap();
    kill_process(pid, Signal::USR1).unwrap();
    agent.wait_for_log("ignored: SIGHUP reloads", WITHIN).unwrap();
    let mut release = Command::new(program::gpuwho().unwrap());
    release.args(["release", "--for", "1s", "--socket"]).arg(agent.socket());
    assert!(release.status().unwrap().success());
    let line = agent.wait_for_log("release: devices released", WITHIN).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert!(line.contains(&format!("uid={uid} pid=")), "who did it: {line}");
    agent.who().unwrap();
}

#[test]
fn a_log_in_json_has_an_object_a_line() {
    let mut command = Command::new(program::gpuwho().unwrap());
    command.args(["collect", "agent", "--once", "--log", "debug"]);
    let output = command.env("GPUWHO_AGENT_LOG_FORMAT", "json").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has =
        |line: &Value| ["timestamp", "level", "message"].iter().all(|key| line.get(key).is_some());
    assert!(!lines.is_empty() && lines.iter().all(has), "{text}");
}
