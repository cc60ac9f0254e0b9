//! The whole path of what connects devices and how boards are: every link, fabric and mode of two
//! machines arrives at the real OpenTelemetry Collector with its value, unit and kind.

use crate::device::reader::truth::links::{at, grows, is_ours};
use gpuwho_model::catalog::{self, Kind, MetricDef, board, link};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use std::collections::BTreeSet;
use std::time::Duration;

/// A registration that ends in second 5 and is asked about every sixth reading.
const WITHIN: Duration = Duration::from_secs(45);
/// Later than anything that changes in these scenarios.
const AT_REST: f64 = 1000.0;

#[test]
fn every_link_and_mode_arrives() {
    let mut seen = BTreeSet::new();
    for (scenario, last) in [("h200x8-nvlink", 7), ("gb200", 3)] {
        let folder = tempfile::tempdir().unwrap();
        let collector = or_skip!(Collector::start(&folder.path().join("collector")));
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let config = Config {
            interval: Some("500ms".to_owned()),
            deadline: Some("5s"),
            bpf: Some(false),
            otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
            ..Config::default()
        };
        let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
        let points = collector.wait_for(WITHIN, |points| at_rest(points, last)).unwrap();
        let points =
            points.unwrap_or_else(|| panic!("the points did not come; agent: {:#?}", agent.log()));
        values_are_the_scenario_s(&nvml, &points);
        metrics_are_as_declared(&points, &mut seen);
        if scenario == "h200x8-nvlink" {
            bytes_grow_as_the_links_carry(&points);
        } else {
            facts_are_on_the_info(&points);
        }
    }
    let declared = board::ALL.iter().chain(link::ALL).map(|def| def.name);
    let missing: Vec<_> = declared.filter(|name| !seen.contains(*name)).collect();
    assert_eq!(missing, [""; 0], "of the catalogue, but of neither machine");
}

/// The points, when the last device's registration is over and everything was told thrice.
fn at_rest(points: &[ReceivedPoint], last: u32) -> Option<Vec<ReceivedPoint>> {
    let last = last.to_string();
    let completed = [("gpu.index", last.as_str()), ("gpu.fabric.state", "completed")];
    let reported = of(points, "gpu.fabric.status", &completed);
    let over = reported.iter().filter(|point| point.number() == Some(1.0)).count();
    (over >= 5).then(|| points.to_vec())
}

fn values_are_the_scenario_s(nvml: &FakeNvml, points: &[ReceivedPoint]) {
    let expected = at(&nvml.truth().unwrap(), AT_REST);
    assert!(expected.len() > 150, "{}", expected.len());
    for ((name, gpu, _, dims), value) in &expected {
        let def = catalog::all().find(|def| def.name == name).unwrap();
        let index = gpu.to_string();
        let mut attrs = vec![("gpu.index", index.as_str())];
        let words = dims.split(',').filter(|word| !word.is_empty());
        attrs.extend(def.dims.iter().map(|dim| dim.key.name).zip(words));
        let found = of(points, name, &attrs).last().and_then(|point| point.number());
        let found = found.unwrap_or_else(|| panic!("{name} {attrs:?} did not arrive"));
        if !grows(name) {
            assert!(
                (found - value).abs() <= value.abs() * 1e-9,
                "{attrs:?} {name}: {found}, not {value}"
            );
        }
    }
}

fn metrics_are_as_declared(points: &[ReceivedPoint], seen: &mut BTreeSet<String>) {
    let kind = |def: &MetricDef| match def.kind {
        Kind::Gauge => ReceivedKind::Gauge,
        Kind::Counter => ReceivedKind::Counter,
        Kind::UpDownCounter => ReceivedKind::UpDownCounter,
        Kind::Histogram => ReceivedKind::Histogram,
    };
    for point in points.iter().filter(|point| is_ours(&point.metric)) {
        let def = catalog::all().find(|def| def.name == point.metric).unwrap();
        assert_eq!((point.unit.as_str(), point.kind), (def.unit, kind(def)), "{}", point.metric);
        seen.insert(point.metric.clone());
    }
}

/// The rate between two points is the scenario's: 18 links of 1 GB/s on the first device, each with
/// 10 MB/s more than the one before, and 100 MB/s more on each device.
fn bytes_grow_as_the_links_carry(points: &[ReceivedPoint]) {
    for gpu in 0..8_u32 {
        let index = gpu.to_string();
        let attrs = [("gpu.index", index.as_str()), ("network.io.direction", "transmit")];
        let reported = of(points, "gpu.nvlink.io", &attrs);
        let (first, last) = (reported[0], reported[reported.len() - 1]);
        let bytes = last.number().unwrap() - first.number().unwrap();
        let seconds = (last.time - first.time) as f64 / 1e9;
        let rate = 18.0 * (1e9 + f64::from(gpu) * 1e8) + 153.0 * 1e7;
        let found = bytes / seconds;
        assert!((found / rate - 1.0).abs() < 0.1, "{found} bytes a second, not {rate}");
    }
}

fn facts_are_on_the_info(points: &[ReceivedPoint]) {
    let known = [
        ("gpu.index", "0"),
        ("gpu.fabric.cluster.uuid", "5bd1e995-6b2f-4c0e-9c3f-7a1d20467b11"),
        ("gpu.fabric.clique.id", "32766"),
        ("gpu.platform.chassis.serial_number", "1820224020034"),
        ("gpu.nvlink.version", "5.0"),
        ("gpu.vbios.version", "97.00.B9.00.00"),
    ];
    assert!(!of(points, "gpu.info", &known).is_empty());
    let elsewhere = points.iter().filter(|point| point.metric != "gpu.info");
    let reported = elsewhere.filter(|point| point.attrs.contains_key("gpu.vbios.version"));
    assert_eq!(reported.count(), 0, "on the info series only");
}
