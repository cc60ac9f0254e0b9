//! The commands of the README print what it shows.

use crate::fixture::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::{or_skip, program};
use std::process::Command;
use std::time::Duration;

const README: &str = include_str!("../../../README.md");
const WITHIN: Duration = Duration::from_mins(1);

/// Each command of the README's block, and what stands in front of the colons below it, cut by the table's
/// columns: numbers and times are those of a run.
fn shown() -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let (_, block) = README.split_once("## Commands\n\n```\n").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let of = |sample: &'static str| {
        let (command, output) = sample.split_once('\n').unwrap();
        let command = command.split('#').next().unwrap_or_default();
        let head = |line: &'static str| {
            let line = line.split("2026-").next().unwrap_or_default();
            line.split([':', '/']).next().unwrap_or_default().trim()
        };
        let of_time = |line: &&str| !line.starts_with("2026-");
        (
            command.split_whitespace().skip(1).collect(),
            output.lines().filter(of_time).map(head).collect(),
        )
    };
    block.split("$ ").skip(1).map(of).collect()
}

#[test]
fn the_commands_of_the_readme_print_what_it_shows() {
    let mut stage = or_skip!(Stage::new());
    let pod =
        PodSpec { namespace: "vision", name: "resnet-train-0", container: "trainer", ..TRAINER };
    let group = stage.pod(&pod).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "xid79-falls-off").unwrap().from_now();
    let worker = Worker::on(&group, &[3]).unwrap();
    nvml.set_processes(3, &[Some(worker.pid())]).unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    wait_for_holder(&agent, worker.pid());
    let run = |args: &[&str]| {
        let mut command = Command::new(program::gpuwho().unwrap());
        let output = command.args(args).arg("--socket").arg(agent.socket()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(shown().len(), 4, "health, events, receipt and doctor");
    for (args, heads) in shown() {
        let (mut last, mut missing) = (String::new(), Vec::new());
        let found = until(WITHIN, || {
            last = run(&args);
            missing = heads.iter().filter(|head| !last.contains(**head)).collect();
            missing.is_empty().then_some(())
        });
        assert!(found.is_some(), "{args:?} lacks {missing:?}: {last}");
    }
    let table = run(&[]);
    assert!(table.contains("vision/resnet-train-0"), "{table}");
}
