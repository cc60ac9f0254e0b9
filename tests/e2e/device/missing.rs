//! A device that vanished is missed, by the agent that saw it and by the next.

use super::lines;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);
/// The last device of `h100x8`.
const LAST: &str = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000007";
/// The device of `a10x1`.
const A10: &str = "GPU-9a1b7c44-2d3e-4f50-8a61-000000000000";

struct Host {
    agent: Option<Agent>,
    nvml: FakeNvml,
    folder: TempDir,
}

impl Host {
    fn new(scenario: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let mut host = Self { agent: None, nvml, folder };
        host.restart();
        host
    }

    /// Another agent after this one, with a file of its own.
    fn restart(&mut self) {
        drop(self.agent.take());
        let _none = fs::remove_file(self.file());
        let config = Config {
            interval: Some("300ms".to_owned()),
            retry: Some("1s"),
            file: Some(self.file()),
            ..Config::default()
        };
        self.agent = Some(Agent::start(self.folder.path(), &config, Some(&self.nvml)).unwrap());
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("points.jsonl")
    }

    /// Waits until a device is in a state; gives what the agent says of it.
    fn wait(&self, uuid: &str, state: &str) -> Value {
        let in_state = |who: &Value| {
            let devices = who["devices"].as_array()?;
            devices.iter().find(|one| one["uuid"] == uuid && one["state"] == state).cloned()
        };
        self.agent().wait_for(&format!("{uuid} {state}"), WITHIN, in_state).unwrap()
    }

    /// The last value of a metric of a device since this agent began; `None` once it has ended.
    fn last(&self, metric: &str, uuid: &str) -> Option<f64> {
        let lines = lines(&self.file());
        let of = |p: &&Value| p["metric"] == metric && p["attributes"]["gpu.uuid"] == uuid;
        lines.iter().rfind(of)?["value"].as_f64()
    }

    fn wait_for_last(&self, metric: &str, uuid: &str, value: Option<f64>) {
        let seen = until(WITHIN, || (self.last(metric, uuid) == value).then_some(()));
        assert!(seen.is_some(), "{metric} of {uuid}: {:?}", self.last(metric, uuid));
    }

    fn forget(&self, uuid: &str) -> Output {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(["forget", uuid]).arg("--socket").arg(self.agent().socket());
        command.output().unwrap()
    }
}

#[test]
fn a_device_that_vanished_is_down_also_for_the_next_agent_until_it_is_forgotten() {
    let mut host = Host::new("h100x8");
    host.wait(LAST, "ok");
    host.wait_for_last("gpu.up", LAST, Some(1.0));
    host.nvml.edit(|text| text.replacen("count = 8", "count = 7", 1)).unwrap();
    let seen = host.wait(LAST, "missing");
    assert!(seen["reason"].as_str().unwrap().contains("00000000:17:00.0"), "{seen:#}");
    host.wait_for_last("gpu.up", LAST, Some(0.0));
    host.wait_for_last("gpu.power", LAST, None);
    host.wait_for_last("gpu.up", &LAST.replace("007", "006"), Some(1.0));

    host.restart();
    let seen = host.wait(LAST, "missing");
    assert_eq!(seen["model"], "NVIDIA H100 80GB HBM3", "{seen:#}");
    assert!(seen["read_age_seconds"].as_f64().unwrap() > 0.0, "{seen:#}");
    host.wait_for_last("gpu.up", LAST, Some(0.0));
    let infos = lines(&host.file());
    let info =
        infos.iter().find(|p| p["metric"] == "gpu.info" && p["attributes"]["gpu.uuid"] == LAST);
    assert_eq!(info.unwrap()["attributes"]["gpu.serial_number"], "1650323000007");

    let other = host.forget(&LAST.replace("007", "006"));
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.success(), "it answers and stays: {said}");
    let done = host.forget(LAST);
    assert!(done.status.success(), "{done:?}");
    host.wait_for_last("gpu.up", LAST, None);
    host.restart();
    host.wait(&LAST.replace("007", "006"), "ok");
    assert!(!host.agent().who().unwrap().to_string().contains(LAST));
}

#[test]
fn a_device_that_is_put_in_while_the_agent_runs_is_read() {
    let mut host = Host::new("h100x8");
    host.nvml.edit(|text| text.replacen("count = 8", "count = 7", 1)).unwrap();
    host.restart();
    host.wait(&LAST.replace("007", "006"), "ok");
    let agent = host.agent().pid();
    host.nvml.edit(|text| text.replacen("count = 7", "count = 8", 1)).unwrap();
    host.wait(LAST, "ok");
    assert_eq!(host.agent().pid(), agent);
}

#[test]
fn a_device_in_anothers_place_replaces_it_and_nobody_is_alarmed() {
    let mut host = Host::new("a10x1");
    host.wait(A10, "ok");
    let new = A10.replace("8a61-000000", "8a61-111111");
    host.nvml.edit(|text| text.replace("8a61-000000", "8a61-111111")).unwrap();
    host.restart();
    let who = host.wait(A10, "replaced");
    assert!(who["reason"].as_str().unwrap().contains("is at its PCI address"), "{who:#}");
    host.wait_for_last("gpu.up", &new, Some(1.0));
    let is_aged = || host.last("gpu.read.age", A10).filter(|age| *age > 0.0);
    assert!(until(WITHIN, is_aged).is_some(), "{:?}", host.last("gpu.read.age", A10));
    assert_eq!(host.last("gpu.up", A10), None);
}

#[test]
fn a_spoilt_file_of_devices_is_said_and_begun_anew() {
    let mut host = Host::new("a10x1");
    host.wait(A10, "ok");
    drop(host.agent.take());
    let file = host.folder.path().join("state/devices.json");
    let kept = fs::read_to_string(&file).unwrap();
    assert!(kept.contains(A10), "{kept}");
    fs::write(&file, "{\"version\": 1, \"devi").unwrap();
    host.restart();
    let said = host.agent().wait_for_log("starting with none", WITHIN).unwrap();
    assert!(said.contains("devices.json"), "{said}");
    host.wait(A10, "ok");
    let again = until(WITHIN, || fs::read_to_string(&file).unwrap().contains(A10).then_some(()));
    assert!(again.is_some());
}
