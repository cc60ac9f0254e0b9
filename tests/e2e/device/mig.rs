//! MIG and MPS end to end: instances and the work in them arrive at the real Collector, and a device
//! that is cut anew ends its series without a restart.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::worker::Worker;
use nvidia_ml::scenario::{Device, Instance};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

/// A few ticks of half a second, one start of the reader and the scenario's own course, on a machine
/// under load.
const WITHIN: Duration = Duration::from_secs(40);

/// Bytes.
const MIB: f64 = 1_048_576.0;

/// An agent on a scenario, sending to a collector.
fn agent(stage: &Stage, collector: &Collector, nvml: &FakeNvml) -> Agent {
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        ..Config::default()
    };
    Agent::start(stage.folder(), &config, Some(nvml)).unwrap()
}

#[test]
fn instances_and_the_work_in_them_arrive() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let pod = stage.pod(&TRAINER).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "a100-mig-3g20").unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    nvml.set_processes(0, &[None, Some(worker.pid())]).unwrap();
    let agent = agent(&stage, &collector, &nvml);
    let pid = worker.pid().to_string();
    let enough = |points: &[ReceivedPoint]| {
        let own = of(points, "gpu.process.memory.usage", &[("process.pid", &pid)]);
        let last = of(points, "gpu.instance.info", &[("gpu.index", "2")]);
        (own.len() >= 2 && last.len() >= 6).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, enough).unwrap();
    let points = points.unwrap_or_else(|| panic!("no points; agent: {:#?}", agent.log()));
    let scenario = nvml.truth().unwrap();
    for device in scenario.devices() {
        let mut seen = BTreeSet::new();
        for instance in device.instances(0.0) {
            every_value_arrived(&points, device, instance, seen.insert(instance.gpu_instance));
        }
        no_byte_is_counted_twice(&points, device);
    }
    let instance = &scenario.groups[0].instances[1];
    for point in of(&points, "gpu.process.memory.usage", &[("process.pid", &pid)]) {
        let mut expected = identity(scenario.device(0).unwrap(), instance);
        expected.insert("gpu.process.type", "compute".to_owned());
        expected.insert("k8s.pod.name", TRAINER.name.to_owned());
        let found: BTreeMap<&str, String> = expected
            .keys()
            .filter_map(|key| Some((*key, point.attrs.get(*key)?.clone())))
            .collect();
        assert_eq!(found, expected, "{point:#?}");
        assert_eq!(point.number(), Some(3072.0 * MIB));
    }
    who_shows_it(&agent, worker.pid(), &scenario.device(0).unwrap().text(&instance.uuid));
}

fn who_shows_it(agent: &Agent, pid: u32, uuid: &str) {
    let who = agent.who().unwrap();
    let device = &who["devices"][0];
    let instances = device["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 2, "{device:#}");
    assert_eq!(instances[1]["uuid"], uuid, "{device:#}");
    assert_eq!(instances[1]["profile"], "3g.20gb", "{device:#}");
    let process = device["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid);
    assert_eq!(process.unwrap()["instance"], uuid, "{device:#}");
}

/// What is on every point about an instance.
fn identity(device: Device<'_>, instance: &Instance) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("gpu.uuid", device.text(&device.group.uuid)),
        ("gpu.index", device.index.to_string()),
        ("gpu.model", device.group.name.clone()),
        ("gpu.vendor", "nvidia".to_owned()),
        ("gpu.mig.uuid", device.text(&instance.uuid)),
        ("gpu.mig.gpu_instance.id", instance.gpu_instance.to_string()),
        ("gpu.mig.compute_instance.id", instance.compute_instance.to_string()),
        ("gpu.mig.profile", instance.profile.clone()),
    ])
}

/// Value, unit, kind and attributes of every metric of an instance.
fn every_value_arrived(
    points: &[ReceivedPoint],
    device: Device<'_>,
    instance: &Instance,
    with_memory: bool,
) {
    let memory = &instance.memory;
    let (total, reserved) = (memory.total as f64, memory.reserved as f64);
    let used = device.value(&memory.used, 0.0);
    let usage = "gpu.instance.memory.usage";
    let mut expected = vec![("gpu.instance.info", None, 1.0)];
    if with_memory {
        expected.extend([
            (usage, Some("used"), used),
            (usage, Some("reserved"), reserved),
            (usage, Some("free"), total - reserved - used),
            ("gpu.instance.memory.limit", None, total),
        ]);
    }
    let own = device.text(&instance.uuid);
    let about = points.iter().filter(|point| {
        point.metric.starts_with("gpu.instance.") && point.has(&[("gpu.mig.uuid", &own)])
    });
    let found: BTreeSet<String> = about.map(shape).collect();
    let expected: BTreeSet<String> = expected
        .into_iter()
        .map(|(metric, state, value)| {
            let mut attrs = identity(device, instance);
            attrs.extend(state.map(|state| ("gpu.memory.state", state.to_owned())));
            let gauge = metric == "gpu.instance.info";
            let kind = if gauge { ReceivedKind::Gauge } else { ReceivedKind::UpDownCounter };
            let unit = if gauge { "{info}" } else { "By" };
            format!("{metric} {unit} {kind:?} {:?} {attrs:?}", Some(value))
        })
        .collect();
    assert_eq!(found, expected);
}

fn shape(point: &ReceivedPoint) -> String {
    let ReceivedPoint { metric, unit, kind, attrs, .. } = point;
    format!("{metric} {unit} {kind:?} {:?} {attrs:?}", point.number())
}

/// A sum over the series of a device's memory is the device's memory, with instances or without.
fn no_byte_is_counted_twice(points: &[ReceivedPoint], device: Device<'_>) {
    let index = device.index.to_string();
    for metric in ["gpu.memory.usage", "gpu.memory.limit"] {
        let on = of(points, metric, &[("gpu.index", &index)]);
        let series: BTreeMap<_, _> = on.iter().map(|p| (p.attrs.clone(), p.number())).collect();
        let sum: f64 = series.values().flatten().sum();
        assert_eq!(sum.to_bits(), (device.group.memory.total as f64).to_bits(), "{series:#?}");
        assert!(series.keys().all(|attrs| !attrs.contains_key("gpu.mig.uuid")), "{series:#?}");
    }
}

/// The scenario's course, sooner: the reader starts within a second.
pub(crate) fn sooner(nvml: &FakeNvml) {
    let hasten = |text: String| {
        let sooner = text.replace("until = 10", "until = 4").replace("from = 11", "from = 5");
        assert_ne!(text, sooner);
        sooner
    };
    nvml.edit(hasten).unwrap();
}

#[test]
fn a_device_cut_anew_ends_its_series_and_begins_others_without_a_restart() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let nvml = FakeNvml::install(stage.folder(), "mig-reconfigure").unwrap();
    sooner(&nvml);
    let agent = agent(&stage, &collector, &nvml);
    let scenario = nvml.truth().unwrap();
    let device = scenario.device(0).unwrap();
    let uuid = |place: usize| device.text(&device.group.instances[place].uuid);
    let (first, second, fresh) = (uuid(0), uuid(1), uuid(3));
    let cut = |points: &[ReceivedPoint]| {
        let fresh = of(points, "gpu.instance.memory.limit", &[("gpu.mig.uuid", &fresh)]);
        (fresh.len() >= 3).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, cut).unwrap();
    let points = points.unwrap_or_else(|| panic!("not cut anew; agent: {:#?}", agent.log()));
    let info = |uuid: &str, profile: &str| {
        let wanted = [("gpu.mig.uuid", uuid), ("gpu.mig.profile", profile)];
        let all = of(&points, "gpu.instance.info", &wanted);
        let ends = all.iter().filter(|point| point.ended()).count();
        let begun = all.iter().map(|point| point.time).min().unwrap_or_default();
        let last = all.iter().map(|point| point.time).max().unwrap_or_default();
        assert_eq!(
            all.iter().find(|p| p.ended()).map(|p| p.time == last),
            (ends > 0).then_some(true)
        );
        (ends, begun, last)
    };
    let (ends, _, gone) = info(&second, "3g.20gb");
    assert_eq!(ends, 1, "an instance that was destroyed");
    let (ends, _, ended) = info(&first, "3g.20gb");
    assert_eq!(ends, 1, "one of the same UUID and another profile");
    let (ends, begun, _) = info(&first, "4g.20gb");
    assert!(ends == 0 && begun > ended, "{begun} after {ended}");
    let (ends, begun, _) = info(&fresh, "2g.10gb");
    assert!(ends == 0 && begun > gone, "{begun} after {gone}");
    let elsewhere: Vec<_> = points
        .iter()
        .filter(|p| p.metric.starts_with("gpu.instance.") && p.has(&[("gpu.index", "1")]))
        .collect();
    assert!(!elsewhere.is_empty() && !elsewhere.iter().any(|point| point.ended()));
    let restarts = of(&points, "gpuwho.source.restarts", &[("gpuwho.source", "nvidia")]);
    assert!(!restarts.is_empty() && restarts.iter().all(|point| point.number() == Some(0.0)));
}

#[test]
fn an_mps_client_is_counted_once_and_its_server_is_marked() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let pod = stage.pod(&TRAINER).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "mps").unwrap();
    let client = Worker::on(&pod, &[0]).unwrap();
    let server = Server::start(&stage);
    nvml.set_processes(0, &[Some(server.0.id()), Some(client.pid())]).unwrap();
    let agent = agent(&stage, &collector, &nvml);
    let (client, server) = (client.pid().to_string(), server.0.id().to_string());
    let memory = |points: &[ReceivedPoint], pid: &str| -> Vec<(String, Option<f64>)> {
        let own = of(points, "gpu.process.memory.usage", &[("process.pid", pid)]);
        let seen: BTreeMap<_, _> =
            own.iter().map(|p| (p.attrs["gpu.process.type"].clone(), p.number())).collect();
        seen.into_iter().collect()
    };
    let both = |points: &[ReceivedPoint]| {
        let seen = [memory(points, &client), memory(points, &server)];
        seen.iter().all(|rows| !rows.is_empty()).then_some(seen)
    };
    let seen = collector.wait_for(WITHIN, both).unwrap();
    let seen = seen.unwrap_or_else(|| panic!("no points; agent: {:#?}", agent.log()));
    let expected = [
        vec![("mps".to_owned(), Some(1152.0 * MIB))],
        vec![("mps_server".to_owned(), Some(30.0 * MIB))],
    ];
    // The first client has the second slot of the device.
    assert_eq!(seen, expected);
}

/// A process by the name of the MPS server; ended when dropped.
struct Server(Child);

impl Server {
    fn start(stage: &Stage) -> Self {
        let program = stage.folder().join("nvidia-cuda-mps-server");
        fs::copy("/bin/sleep", &program).unwrap();
        Self(Command::new(&program).arg("600").spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
