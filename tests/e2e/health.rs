//! Whether a device is healthy: as scripts learn it by an exit code, and receivers by points and a
//! record that names the owner struck.

use crate::fixture::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::of;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::{or_skip, skip};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const WITHIN: Duration = Duration::from_mins(1);

/// `gpuwho health` of an agent: its exit code and what it prints.
fn health(socket: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program::gpuwho().unwrap());
    let output = command.arg("health").args(args).arg("--socket").arg(socket).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The devices of `h100x8` without their faults.
fn healed(scenario: String) -> String {
    [
        (
            "pending = 1, failure = 0, banks = [600, 30, 7, 2, 1]",
            "pending = 0, failure = 0, banks = [640, 0, 0, 0, 0]",
        ),
        ("exceeded = true", "exceeded = false"),
        ("generation = [4, 5]", "generation = [5, 5]"),
        ("width = [8, 16]", "width = [16, 16]"),
    ]
    .iter()
    .fold(scenario, |scenario, (sick, well)| scenario.replace(sick, well))
}

#[test]
fn a_fault_has_an_exit_code_points_and_a_record_that_names_its_owner() {
    let mut stage = or_skip!(Stage::new());
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(folder.path()));
    let pod = stage.pod(&TRAINER).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap().from_now();
    nvml.edit(healed).unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    nvml.set_processes(0, &[Some(worker.pid())]).unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        default_metrics: true,
        pod_logs: Some(stage.pod_logs()),
        otlp: Some(Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") }),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    wait_for_holder(&agent, worker.pid());
    let socket = agent.socket();
    let coded = |code| until(WITHIN, || (health(&socket, &[]).0 == Some(code)).then_some(()));
    coded(0).unwrap_or_else(|| panic!("{}", health(&socket, &["--json"]).1));

    nvml.edit(|scenario| scenario.replace("failure = 0", "failure = 1")).unwrap();
    coded(5).unwrap_or_else(|| panic!("{}", health(&socket, &["--json"]).1));
    let (_, text) = health(&socket, &["--gpu", "0", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let condition = &report["devices"][0]["conditions"][0];
    assert_eq!(condition["condition"], "memory_rows_failed", "{text}");
    assert_eq!(report["devices"][0]["score"], 40);
    let (_, brief) = health(&socket, &["--brief", "--gpu", "0"]);
    assert_eq!(brief, "GPU 0 memory_rows_failed\n");
    let attributes = [
        ("gpu.index", "0"),
        ("gpu.health.condition", "memory_rows_failed"),
        ("gpu.health.severity", "critical"),
    ];
    let point = collector.wait_for(WITHIN, |points| {
        of(points, "gpu.health.condition", &attributes).last()?.number().filter(|it| *it > 0.0)
    });
    assert_eq!(point.unwrap(), Some(1.0));
    let uid = pod.expected.pod_uid.clone().unwrap();
    let record = until(WITHIN, || {
        let records = collector.records().unwrap();
        records.into_iter().find(|one| {
            one.event == "gpu.health.started" && one.attrs.get("k8s.pod.uid") == Some(&uid)
        })
    });
    let record = record.unwrap();
    assert_eq!(
        (record.severity_text.as_str(), &*record.attrs["gpu.health.condition"]),
        ("critical", "memory_rows_failed")
    );

    drop(agent);
    assert_eq!(health(&socket, &[]).0, Some(7), "no agent answers");
}

/// A program in `folder` that writes its arguments to `NAME.log`, prints a line and exits.
fn stub(folder: &Path, name: &str, line: &str, code: i32) -> String {
    let path = folder.join(name);
    let log = folder.join(format!("{name}.log")).display().to_string();
    let text = format!("#!/bin/sh\necho \"$*\" >>'{log}'\necho '{line}'\nexit {code}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A script of `deploy`: its exit code and what it prints.
fn script(name: &str, args: &[String], context: &str) -> (Option<i32>, String) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/");
    let mut command = Command::new("/bin/sh");
    command.arg(format!("{path}{name}")).args(args).env("SLURMD_NODENAME", "n1");
    let output = command.env("SLURM_SCRIPT_CONTEXT", context).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn slurms_script_drains_for_a_critical_condition_alone_and_keeps_a_reason_that_is_there() {
    if !Path::new("/usr/bin/timeout").exists() {
        skip!("timeout (coreutils)");
    }
    for (code, state, context, expected) in [
        (5, "IDLE", "prolog_slurmd", (1, true)),
        (5, "IDLE", "epilog_slurmd", (0, true)),
        (5, "IDLE", "", (0, true)),
        (5, "IDLE+DRAIN", "", (0, false)),
        (0, "IDLE", "prolog_slurmd", (0, false)),
        (4, "IDLE", "prolog_slurmd", (0, false)),
        (6, "IDLE", "prolog_slurmd", (0, false)),
        (7, "IDLE", "prolog_slurmd", (0, false)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let gpuwho = stub(folder.path(), "gpuwho", "GPU 3 driver_lost", code);
        let scontrol = stub(folder.path(), "scontrol", &format!("NodeName=n1 State={state} "), 0);
        let (exit, _) = script("slurm/gpuwho-health.sh", &[gpuwho, scontrol], context);
        let log = fs::read_to_string(folder.path().join("scontrol.log")).unwrap_or_default();
        let drain = "update NodeName=n1 State=DRAIN Reason=gpuwho: GPU 3 driver_lost\n";
        assert_eq!(
            (exit, log.contains(drain)),
            (Some(expected.0), expected.1),
            "{code} {state}: {log}"
        );
    }
}

#[test]
fn node_problem_detectors_plugin_exits_as_that_expects() {
    for (code, expected) in [(0, 0), (3, 0), (4, 0), (5, 1), (6, 2), (7, 2), (1, 2), (2, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let gpuwho = stub(folder.path(), "gpuwho", "GPU 3 driver_lost", code);
        let said = script("kubernetes/gpuwho-npd.sh", &[gpuwho], "");
        assert_eq!(said, (Some(expected), "GPU 3 driver_lost\n".to_owned()), "{code}");
    }
    let text = include_str!("../../deploy/kubernetes/node-problem-detector.json");
    let config: Value = serde_json::from_str(text).unwrap();
    assert_eq!(config["rules"][0]["condition"], config["conditions"][0]["type"]);
}
