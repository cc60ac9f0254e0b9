//! What an operator reads in the log: what was found, and why a signal changes nothing.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
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
    agent.who().unwrap();
}
