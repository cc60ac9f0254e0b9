//! Performance counters end to end: what a Hopper device and its MIG instances count arrives at the
//! real Collector, and ends with an instance.

use crate::device::reader::rig::Key;
use crate::device::reader::truth;
use gpuwho_model::catalog::{self, gpm};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use nvidia_ml::scenario::Scenario;
use std::collections::BTreeSet;
use std::time::Duration;

/// A few ticks of half a second, one start of the reader and the scenario's own course, on a machine
/// under load.
const WITHIN: Duration = Duration::from_secs(40);

fn agent(stage: &Stage, collector: &Collector, nvml: &FakeNvml) -> Agent {
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        ..Config::default()
    };
    Agent::start(stage.folder(), &config, Some(nvml)).unwrap()
}

#[test]
fn what_devices_and_instances_count_arrives() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let nvml = FakeNvml::install(stage.folder(), "h100-mig").unwrap();
    let agent = agent(&stage, &collector, &nvml);
    let enough = |points: &[ReceivedPoint]| {
        let last = of(points, "gpu.sm.active", &[("gpu.index", "2")]);
        (last.len() >= 2).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, enough).unwrap();
    let points = points.unwrap_or_else(|| panic!("no points; agent: {:#?}", agent.log()));
    let scenario = nvml.truth().unwrap();
    let mut expected = truth::gpm::counters(&scenario, 0.0);
    // The second device is cut anew in the course of the scenario.
    expected.retain(|(_, device, ..), _| *device != 1);
    for (key, value) in &expected {
        let found = points_of(&points, &scenario, key);
        assert!(!found.is_empty(), "{key:?} did not arrive");
        for point in found {
            let number = point.number().unwrap();
            assert!((number - value).abs() <= value * 1e-9, "{key:?} is {number}, not {value}");
            let unit = if key.0.ends_with(".throughput") { "By/s" } else { "1" };
            assert_eq!((point.kind, point.unit.as_str()), (ReceivedKind::Gauge, unit), "{key:?}");
        }
    }
    let series: BTreeSet<_> = points
        .iter()
        .filter(|point| is_counted(point) && !point.has(&[("gpu.index", "1")]))
        .map(|point| (point.metric.clone(), point.attrs.clone()))
        .collect();
    assert_eq!(series.len(), expected.len(), "nothing but the truth: {series:#?}");
    let of_devices = series.iter().filter(|(name, _)| !name.starts_with("gpu.instance."));
    let placed = of_devices.filter(|(_, attrs)| attrs.contains_key("gpu.mig.uuid")).count();
    assert_eq!(placed, 0, "a sum over devices counts no instance");
    let well = [("gpu.index", "0"), ("gpu.counters.state", "ok")];
    let states = of(&points, "gpu.counters.status", &well);
    assert_eq!(states.last().and_then(|point| point.number()), Some(1.0), "{states:#?}");
}

#[test]
fn an_instance_made_at_anothers_place_never_tells_the_others_work() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let nvml = FakeNvml::install(stage.folder(), "h100-mig").unwrap();
    crate::device::mig::sooner(&nvml);
    let agent = agent(&stage, &collector, &nvml);
    let scenario = nvml.truth().unwrap();
    let device = scenario.device(1).unwrap();
    let uuid = device.text(&device.group.instances[0].uuid);
    let series = |points: &[ReceivedPoint], profile| {
        let wanted = [("gpu.mig.uuid", uuid.as_str()), ("gpu.mig.profile", profile)];
        let own = of(points, "gpu.instance.sm.active", &wanted);
        own.into_iter().cloned().collect::<Vec<ReceivedPoint>>()
    };
    let anew = |points: &[ReceivedPoint]| {
        let fresh = series(points, "4g.40gb");
        (fresh.len() >= 3).then(|| (series(points, "3g.40gb"), fresh))
    };
    let seen = collector.wait_for(WITHIN, anew).unwrap();
    let (before, after) = seen.unwrap_or_else(|| panic!("not cut anew: {:#?}", agent.log()));
    assert_eq!(before.iter().filter(|point| point.ended()).count(), 1, "{before:#?}");
    // The same UUID, cut as a half first and then as four sevenths.
    for (points, value) in [(before, 0.505), (after, 0.655)] {
        let reported: Vec<f64> = points.iter().filter_map(ReceivedPoint::number).collect();
        let wrong = reported.iter().find(|reported| (**reported - value).abs() > 1e-9);
        assert_eq!(wrong, None, "not {value}: {reported:?}");
    }
}

#[test]
fn a_device_without_counters_says_that_it_has_none() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let nvml = FakeNvml::install(stage.folder(), "a100-mig-3g20").unwrap();
    let agent = agent(&stage, &collector, &nvml);
    let enough = |points: &[ReceivedPoint]| {
        let last = of(points, "gpu.counters.status", &[("gpu.index", "3")]);
        (last.len() >= 3 * 6).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, enough).unwrap();
    let points = points.unwrap_or_else(|| panic!("no points; agent: {:#?}", agent.log()));
    for point in of(&points, "gpu.counters.status", &[]) {
        let expected = f64::from(u8::from(point.attrs["gpu.counters.state"] == "unsupported"));
        assert_eq!(point.number(), Some(expected), "{point:#?}");
    }
    assert_eq!(points.iter().filter(|point| is_counted(point)).count(), 0);
}

/// The points of a value of the truth.
fn points_of<'a>(
    points: &'a [ReceivedPoint],
    scenario: &Scenario,
    (name, index, _, dim): &Key,
) -> Vec<&'a ReceivedPoint> {
    let def = catalog::all().find(|def| def.name == name).unwrap();
    let device = scenario.device(*index).unwrap();
    let uuid = device.text(&device.group.uuid);
    let mut attrs = vec![("gpu.uuid", uuid.as_str())];
    let mut dims = dim.as_str();
    if let Some((place, rest)) = dim.split_once(' ') {
        let (gpu_instance, compute_instance) = place.split_once('/').unwrap();
        attrs.push(("gpu.mig.gpu_instance.id", gpu_instance));
        attrs.push(("gpu.mig.compute_instance.id", compute_instance));
        dims = rest;
    }
    for (dimension, value) in def.dims.iter().zip(dims.split(',')) {
        attrs.push((dimension.key.name, value));
    }
    of(points, name, &attrs)
}

/// Whether a point is of performance counters, and not their state.
fn is_counted(point: &ReceivedPoint) -> bool {
    let known = gpm::ALL.iter().any(|def| def.name == point.metric);
    known && point.metric != gpm::STATUS.def().name
}
