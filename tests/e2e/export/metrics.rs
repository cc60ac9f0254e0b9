//! The whole path: what the driver says of every device and process arrives at the real
//! OpenTelemetry Collector with its value, unit, kind, start time and owner, over HTTP and gRPC.

use crate::device::reader::truth;
use crate::fixture::TRAINER;
use gpuwho_model::catalog::{self, Kind, MetricDef};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Expected, Group, Stage};
use gpuwho_tests::worker::Worker;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A few ticks of half a second and one start of the reader, on a machine under load.
const WITHIN: Duration = Duration::from_secs(30);

/// What an H100 does not have: boards of this form have no fan and no CPU, and remap rows where older
/// ones retire pages.
const NOT_ON_H100: &[&str] = &[
    // AMD's.
    "gpu.memory.host.usage",
    "gpu.memory.host.limit",
    "gpu.module.power",
    // Only where a driver reports what no table has.
    "gpu.unknown_code",
    "gpu.fan.speed_ratio",
    // Tenstorrent's.
    "gpu.thermal.shutdowns",
    "gpu.ecc.block.errors",
    "gpu.memory.retired_pages",
    "gpu.memory.retirement.pending",
    "gpu.interconnect.links",
    "gpu.interconnect.io",
    "gpu.interconnect.link.active",
    "gpu.interconnect.link.speed",
    "gpu.interconnect.link.io",
    // Only of boards without performance counters, where the configuration asks for it.
    "gpu.pcie.throughput.sampled",
    // Told where accounting is on.
    "gpu.process.memory.peak",
    "gpu.process.lifetime.utilization",
    "gpu.process.occupancy",
    "gpu.process.evicted.time",
    "gpu.process.memory.evicted",
    // Told where there is a kubelet.
    "gpu.allocatable",
    // Only where a price is configured.
    "gpu.price",
    "gpu.cost",
    "gpu.xid.last",
];

/// Real workers in real groups, each alone on the first slot of its GPU.
struct Scene {
    // Ended and removed before the stage under them.
    agent: Agent,
    workers: Vec<(u32, Worker, Expected)>,
    nvml: FakeNvml,
    stage: Stage,
}

impl Scene {
    fn new(mut stage: Stage, otlp: Otlp) -> Self {
        let groups: Vec<Group> = vec![
            stage.pod(&TRAINER).unwrap(),
            stage.slurm_task(0, None, 1).unwrap(),
            stage.service("ollama.service").unwrap(),
        ];
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
        let mut workers = Vec::new();
        for (gpu, group) in (0..).zip(groups) {
            let worker = Worker::on(&group, &[gpu]).unwrap();
            nvml.set_processes(gpu, &[Some(worker.pid())]).unwrap();
            workers.push((gpu, worker, group.expected));
        }
        let config = Config {
            interval: Some("500ms".to_owned()),
            // On a busy machine half an interval is soon over, and no device here is slow.
            deadline: Some("5s"),
            pod_logs: Some(stage.pod_logs()),
            otlp: Some(otlp),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { agent, workers, nvml, stage }
    }

    fn pid_on(&self, gpu: u32) -> Option<u32> {
        self.workers.iter().find(|(of, ..)| *of == gpu).map(|(_, worker, _)| worker.pid())
    }
}

#[test]
fn everything_arrives_over_http() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let otlp = Otlp { endpoint: collector.http_endpoint(), protocol: None };
    let mut scene = Scene::new(stage, otlp);
    arrives(&scene, &collector);
    ends(&mut scene, &collector);
    assert!(scene.stage.folder().is_dir());
}

#[test]
fn everything_arrives_over_grpc() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let scene = Scene::new(stage, otlp);
    arrives(&scene, &collector);
}

fn arrives(scene: &Scene, collector: &Collector) {
    let ready = |points: &[ReceivedPoint]| {
        let last = of(points, "gpu.energy", &[("gpu.index", "7")]);
        let sampled = scene.workers.iter().all(|(_, worker, _)| {
            let pid = worker.pid().to_string();
            !of(points, "gpu.process.utilization", &[("process.pid", &pid)]).is_empty()
        });
        let sent = of(points, "gpuwho.export.points", &[]).len() > 3;
        (last.len() >= 3 && sampled && sent).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let log = scene.agent.log();
    let points = points.unwrap_or_else(|| panic!("the points did not come; agent: {log:#?}"));
    every_value_is_the_driver_s(scene, &points);
    every_metric_is_as_declared(&points);
    counters_start_with_their_first_point(&points);
    owners_are_on_every_point(scene, &points);
    nothing_was_lost(&points);
}

fn every_value_is_the_driver_s(scene: &Scene, points: &[ReceivedPoint]) {
    let scenario = scene.nvml.truth().unwrap();
    let bound = |gpu, slot| if slot == 0 { scene.pid_on(gpu).unwrap_or(0) } else { 0 };
    let mut expected = truth::of(&scenario, bound);
    expected.extend(truth::gpm::counters(&scenario, 0.0));
    // Slots that no process is bound to are not on the driver's list.
    expected.retain(|(name, _, pid, _), _| !name.starts_with("gpu.process.") || *pid != 0);
    for ((name, gpu, pid, dim), value) in expected {
        if pid == 0 && name == "gpu.process.count" {
            continue;
        }
        let def = catalog::all().find(|def| def.name == name).unwrap();
        let (index, pid_text) = (gpu.to_string(), pid.to_string());
        let mut attrs = vec![("gpu.index", index.as_str())];
        if pid != 0 {
            attrs.push(("process.pid", &pid_text));
        }
        for (dimension, value) in def.dims.iter().zip(dim.split(',')) {
            attrs.push((dimension.key.name, value));
        }
        let found: Vec<_> = of(points, &name, &attrs).iter().filter_map(|p| p.number()).collect();
        assert!(!found.is_empty(), "{name} {attrs:?} did not arrive");
        let wrong = found.iter().find(|found| (**found - value).abs() > value.abs() * 1e-9);
        assert_eq!(wrong, None, "{name} {attrs:?} is {value}");
    }
}

fn every_metric_is_as_declared(points: &[ReceivedPoint]) {
    let kind = |def: &MetricDef| match def.kind {
        Kind::Gauge => ReceivedKind::Gauge,
        Kind::Counter => ReceivedKind::Counter,
        Kind::UpDownCounter => ReceivedKind::UpDownCounter,
        Kind::Histogram => ReceivedKind::Histogram,
    };
    let declared: BTreeMap<_, _> =
        catalog::all().map(|def| (def.name, (def.unit.to_owned(), kind(def)))).collect();
    let mut seen = BTreeSet::new();
    for point in points {
        let arrived = (point.unit.clone(), point.kind);
        assert_eq!(declared.get(point.metric.as_str()), Some(&arrived), "{}", point.metric);
        assert_ne!(point.time, 0, "{point:?}");
        assert_eq!(point.resource.get("service.name").map(String::as_str), Some("gpuwho"));
        seen.insert(point.metric.as_str());
    }
    let about_devices = catalog::all().filter(|def| ["gpu", "process"].contains(&def.subject));
    // What connects devices and how boards are is in other scenarios.
    let about_devices = about_devices.filter(|def| !truth::links::is_ours(def.name));
    let missing: Vec<_> = about_devices.map(|def| def.name).filter(|n| !seen.contains(n)).collect();
    assert_eq!(missing, NOT_ON_H100);
}

fn counters_start_with_their_first_point(points: &[ReceivedPoint]) {
    for gpu in 0..8 {
        let index = gpu.to_string();
        let energy = of(points, "gpu.energy", &[("gpu.index", &index)]);
        let first = energy[0];
        assert_eq!(first.start, first.time, "the past is not an increase");
        assert!(energy.iter().all(|point| point.start == first.start), "{energy:#?}");
        let joules: Vec<_> = energy.iter().filter_map(|point| point.number()).collect();
        assert!(joules.is_sorted_by(|a, b| a < b), "{joules:?}");
    }
}

fn owners_are_on_every_point(scene: &Scene, points: &[ReceivedPoint]) {
    for (gpu, worker, expected) in &scene.workers {
        let (gpu, pid) = (gpu.to_string(), worker.pid().to_string());
        let on = [("gpu.index", gpu.as_str()), ("process.pid", pid.as_str())];
        let own = of(points, "gpu.process.memory.usage", &on);
        assert!(!own.is_empty(), "{expected:?}");
        for point in own {
            let text = |key: &str| point.attrs.get(key).cloned();
            let found = Expected {
                namespace: text("k8s.namespace.name"),
                pod: text("k8s.pod.name"),
                pod_uid: text("k8s.pod.uid"),
                container: text("k8s.container.name"),
                container_id: text("container.id"),
                slurm_job: text("slurm.job.id"),
                slurm_step: text("slurm.step.id"),
                slurm_task: text("slurm.task.id"),
                unit: text("systemd.unit"),
            };
            assert_eq!(&found, expected, "{point:#?}");
            assert_eq!(text("process.owner").as_deref(), Some("root"));
        }
    }
}

fn nothing_was_lost(points: &[ReceivedPoint]) {
    let dropped = of(points, "gpuwho.dropped", &[]);
    assert!(!dropped.is_empty(), "what is dropped is counted");
    for lost in dropped {
        assert_eq!(lost.number(), Some(0.0), "{lost:#?}");
    }
    for outcome in ["refused", "failed"] {
        let bad = of(points, "gpuwho.export.points", &[("gpuwho.export.outcome", outcome)]);
        assert!(!bad.is_empty(), "{outcome} points are counted");
        assert!(bad.iter().all(|point| point.number() == Some(0.0)), "{bad:#?}");
    }
}

/// A dead process's series end, once, and nothing comes after.
fn ends(scene: &mut Scene, collector: &Collector) {
    let (gpu, worker, _) = scene.workers.remove(0);
    let pid = worker.pid().to_string();
    worker.stop();
    scene.nvml.set_processes(gpu, &[None]).unwrap();
    let ended = |points: &[ReceivedPoint]| {
        let own = of(points, "gpu.process.memory.usage", &[("process.pid", &pid)]);
        own.last().filter(|last| last.ended()).map(|last| last.time)
    };
    let at = collector.wait_for(WITHIN, ended).unwrap().expect("the end of the series");
    let later = |points: &[ReceivedPoint]| {
        let after = of(points, "gpu.energy", &[]).iter().filter(|p| p.time > at).count();
        (after >= 3 * 8).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, later).unwrap().expect("three more ticks");
    let own: Vec<_> = points.iter().filter(|p| p.has(&[("process.pid", &pid)])).collect();
    let ends = own.iter().filter(|p| p.ended() && p.metric == "gpu.process.memory.usage").count();
    assert_eq!(ends, 1);
    assert!(own.iter().all(|p| p.time <= at), "a point after the end");
}
