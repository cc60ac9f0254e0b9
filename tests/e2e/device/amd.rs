//! A node with AMD's devices, and one with AMD's and NVIDIA's: values and owners arrive at the real
//! OpenTelemetry Collector, and a vendor that is missing or hangs takes nothing from the other.

mod library;
mod partitions;

use crate::device::reader::rig::shipped;
use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd::{On, Tree, address};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::host_nodes;
use nvidia_ml::scenario::Scenario;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A few ticks and two starts of readers, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// The second of the scenario that the tree shows.
const NOW: f64 = 100.0;
/// Bytes that the worker has on its device.
const BYTES: u64 = 5 << 30;
/// Without a library on any machine.
const NO_NVIDIA: &str = "[nvidia]\nlibrary = \"/nonexistent/libnvidia-ml.so.1\"\n";
/// Added to a scenario: no reading of NVIDIA's memory returns.
const HANG: &str = "[[failure]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\nhang = true\n";

fn config(stage: &Stage, tree: &Tree) -> Config {
    let nvidia = host_nodes(stage.folder()).unwrap();
    let below = |name: &str| stage.folder().join("dev").join(name).display().to_string();
    Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(stage.pod_logs()),
        sys: Some(tree.sys()),
        nodes: Some(vec![nvidia, below("kfd"), below("dri/renderD*")]),
        more: "[amd]\ndeadline = \"5s\"\n".to_owned(),
        ..Config::default()
    }
}

fn tree(stage: &Stage, scenario: &Scenario) -> Tree {
    Tree::new(&stage.folder().join("amd"), scenario, NOW).unwrap()
}

/// The values of a metric of a device that have arrived.
fn arrived(points: &[ReceivedPoint], name: &str, attrs: &[(&str, &str)]) -> Vec<f64> {
    of(points, name, attrs).iter().filter_map(|point| point.number()).collect()
}

/// The line of `gpuwho doctor` about a source or a device.
fn line<'a>(doctor: &'a str, subject: &str) -> &'a str {
    let mut lines = doctor.lines().map(str::trim_start);
    lines
        .find(|line| line.starts_with(&format!("{subject} ")))
        .unwrap_or_else(|| panic!("{doctor}"))
}

fn devices_have_the_scenarios_values(points: &[ReceivedPoint], scenario: &Scenario) {
    for device in scenario.devices() {
        let (index, i) = (device.index, f64::from(device.index));
        let uuid = format!("GPU-e3a98f4e6c9d010{index}");
        let about = |dims: &[(&'static str, &'static str)]| {
            let own = [("gpu.uuid", uuid.as_str()), ("gpu.vendor", "amd")];
            own.into_iter().chain(dims.iter().copied()).collect::<Vec<_>>()
        };
        let used = 34_359_738_368.0 + i * 1_073_741_824.0;
        let corrected_in_memory = [("gpu.ecc.error_type", "corrected"), ("gpu.ecc.block", "umc")];
        for (name, dims, expected) in [
            ("gpu.utilization", vec![("gpu.task", "general")], (20.0 + 7.0 * i) / 100.0),
            ("gpu.memory.usage", vec![("gpu.memory.state", "used")], used),
            ("gpu.power", vec![], 420.25 + 20.5 * i),
            ("gpu.temperature", vec![("gpu.temperature.sensor", "hotspot")], 51.0 + 2.0 * i),
            ("gpu.clock.speed", vec![("gpu.clock.type", "memory")], 1.3e9),
            ("gpu.memory.host.usage", vec![("gpu.memory.state", "used")], 268_435_456.0),
            ("gpu.ecc.block.errors", corrected_in_memory.to_vec(), 3.0 + i),
            ("gpu.memory.retired_pages", vec![], 1.0 + i),
            ("gpu.pcie.errors", vec![("gpu.pcie.error", "recovery")], 2.0),
            ("gpu.interconnect.links", vec![("gpu.interconnect.state", "active")], 7.0),
        ] {
            let found = arrived(points, name, &about(&dims));
            let right = |found: &f64| (found - expected).abs() <= expected * 1e-9;
            assert!(!found.is_empty() && found.iter().all(right), "{name} {index}: {found:?}");
        }
    }
}

#[test]
fn an_amd_nodes_values_and_owners_arrive() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let scenario = Scenario::load(&shipped("mi300x8")).unwrap();
    let tree = tree(&stage, &scenario);
    let pod = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&pod, &[129]).unwrap();
    tree.compute(&On { pid: worker.pid(), render: 129, bytes: BYTES }).unwrap();
    let otlp = Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    let more = format!("{}{NO_NVIDIA}", config(&stage, &tree).more);
    let config = Config { otlp, more, ..config(&stage, &tree) };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let pid = worker.pid().to_string();
    let on = [("gpu.uuid", "GPU-e3a98f4e6c9d0101"), ("k8s.pod.name", "trainer-0")];
    let opened = [on[0], on[1], ("gpuwho.presence", "opened")];
    let ready = |points: &[ReceivedPoint]| {
        let last = arrived(points, "gpu.energy", &[("gpu.uuid", "GPU-e3a98f4e6c9d0107")]);
        let own = of(points, "gpu.process.memory.usage", &[("process.pid", &pid)]);
        let named = own.iter().any(|point| point.has(&[("k8s.pod.name", "trainer-0")]));
        // The kernel's report of its node comes on another thread than the device's reading.
        let opened = arrived(points, "gpu.owner.processes", &opened);
        (last.len() >= 2 && named && !opened.is_empty()).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| panic!("{:#?} {:#?}", agent.who(), agent.log()));
    devices_have_the_scenarios_values(&points, &scenario);
    let bytes = arrived(&points, "gpu.process.memory.usage", &on);
    assert_eq!(bytes.last(), Some(&5_368_709_120.0), "{bytes:?}");
    let opened = arrived(&points, "gpu.owner.processes", &opened);
    assert_eq!(
        opened.last(),
        Some(&1.0),
        "by its node: {:#?}",
        of(&points, "gpu.owner.processes", &[])
    );
    let table = gpuwho(&agent, &[]);
    assert!(table.contains("AMD Instinct MI300X") && table.contains("trainer-0"), "{table}");
    drop(agent);
    let file = stage.folder().join("gpuwho.toml").display().to_string();
    let doctor = run(&["doctor", "--all", "--config", &file]);
    assert!(line(&doctor, "amd").contains(" ok"), "{doctor}");
    assert!(line(&doctor, "nvidia").contains(" absent "), "{doctor}");
}

fn gpuwho(agent: &Agent, words: &[&str]) -> String {
    let socket = agent.socket().display().to_string();
    run(&[words, &["--socket", &socket]].concat())
}

fn run(words: &[&str]) -> String {
    let output = Command::new(program::gpuwho().unwrap()).args(words).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// How many devices of a vendor's are in each state, by their models.
fn states(who: &Value, model: &str) -> Vec<String> {
    let devices = who["devices"].as_array().into_iter().flatten();
    let own =
        devices.filter(|device| device["model"].as_str().is_some_and(|m| m.starts_with(model)));
    own.filter_map(|device| device["state"].as_str().map(str::to_owned)).collect()
}

fn source<'a>(who: &'a Value, name: &str) -> Option<&'a str> {
    let mut sources = who["sources"].as_array()?.iter();
    sources.find(|source| source["name"] == name)?["state"].as_str()
}

#[test]
fn a_vendor_that_hangs_or_is_gone_takes_nothing_from_the_other() {
    let mut stage = or_skip!(Stage::new());
    let scenario = Scenario::load(&shipped("mi300x8")).unwrap();
    let tree = tree(&stage, &scenario);
    let pod = stage.pod(&TRAINER).unwrap();
    let workers = [3, 128].map(|gpu| Worker::on(&pod, &[gpu]).unwrap());
    tree.compute(&On { pid: workers[1].pid(), render: 128, bytes: BYTES }).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    nvml.set_processes(3, &[Some(workers[0].pid())]).unwrap();
    // A device that hangs is to be late soon.
    let config = Config { deadline: Some("1s"), ..config(&stage, &tree) };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let all = |state: &str| vec![state.to_owned(); 8];
    let owned = |who: &Value, model: &str, pid: u32| {
        let devices = who["devices"].as_array().into_iter().flatten();
        let mut on = devices.filter(|device| device["model"].as_str().unwrap().starts_with(model));
        on.any(|device| {
            let mut processes = device["processes"].as_array().into_iter().flatten();
            processes.any(|process| process["pid"] == pid && process["pod"] == "trainer-0")
        })
    };
    let both = agent.wait_for("both vendors' devices with their owners", WITHIN, |who| {
        let well = ["NVIDIA", "AMD"].iter().all(|model| states(who, model) == all("ok"));
        let [nvidia, amd] = [("NVIDIA", 0), ("AMD", 1)];
        let owned = [nvidia, amd].iter().all(|(model, n)| owned(who, model, workers[*n].pid()));
        (well && owned).then_some(())
    });
    both.unwrap();
    nvml.edit(|text| format!("{text}\n{HANG}")).unwrap();
    let hung = agent.wait_for("NVIDIA's devices to hang alone", WITHIN, |who| {
        (states(who, "NVIDIA") == all("hung")).then(|| who.clone())
    });
    let hung = hung.unwrap();
    assert_eq!(
        (states(&hung, "AMD"), source(&hung, "amd")),
        (all("ok"), Some("ready")),
        "{hung:#}"
    );
    let gone = address(&scenario.device(2).unwrap());
    std::fs::remove_file(tree.folder(&gone).join("driver")).unwrap();
    let lost = agent.wait_for("one of AMD's devices to be lost", WITHIN, |who| {
        let lost = states(who, "AMD").iter().filter(|state| *state == "lost").count();
        (lost == 1).then_some(source(who, "amd") == Some("degraded"))
    });
    assert!(lost.unwrap());
}
