//! The driver is upgraded under the agent: unloaded, of the wrong version, and there again.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(90);
/// The seconds of `driver-upgrade.toml`: no driver that fits, and the new one.
const GONE: f64 = 10.0;
const BACK: f64 = 18.0;

#[test]
fn a_driver_upgrade_needs_no_restart_and_brings_no_wrong_value() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let nvml = FakeNvml::install(folder.path(), "driver-upgrade").unwrap().from_now();
    let epoch = nvml.epoch().unwrap();
    let seconds = |point: &ReceivedPoint| point.time as f64 / 1e9 - epoch;
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let config = Config {
        interval: Some("500ms".to_owned()),
        retry: Some("500ms"),
        otlp: Some(otlp),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let over = |points: &[ReceivedPoint]| {
        let power = of(points, "gpu.power", &[("gpu.index", "7")]);
        let done = power.iter().any(|point| seconds(point) > BACK + 4.0);
        done.then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, over).unwrap().expect("readings by the new driver");
    agent.who().unwrap();

    let truth = nvml.truth().unwrap();
    for device in truth.devices() {
        let index = device.index.to_string();
        let own = [("gpu.index", index.as_str())];
        let power = of(&points, "gpu.power", &own);
        let wanted = device.value(device.group.power.as_ref().unwrap(), 0.0);
        let alive: Vec<_> = power.iter().filter(|point| !point.ended()).collect();
        assert!(alive.iter().all(|point| point.number() == Some(wanted)), "{alive:#?}");
        let meanwhile = alive.iter().filter(|p| (GONE + 0.1..BACK).contains(&seconds(p))).count();
        assert_eq!(meanwhile, 0, "no driver, no value");
        let after = alive.iter().map(|p| seconds(p)).find(|at| *at > BACK).unwrap();
        assert!(after < BACK + 2.5, "read again {} s after the driver was back", after - BACK);
        assert_eq!(versions(&points, &index, seconds), ["575.57.08", "580.95.05"]);
        energy_only_grows(&points, &index);
    }
    let gone = of(&points, "gpu.status", &[("gpu.index", "0"), ("gpu.state", "no_driver")]);
    let reported = gone.iter().filter(|p| p.number() == Some(1.0)).map(|p| seconds(p));
    let reported: Vec<f64> = reported.filter(|at| *at < BACK).collect();
    assert!(reported.len() > 8, "{reported:?}");
    no_series_twice(&points);
    assert!(fs::exists(agent.socket()).unwrap(), "the same agent");
}

/// The driver's versions in the order of their first point; the one before must have ended by then.
fn versions(
    points: &[ReceivedPoint],
    index: &str,
    seconds: impl Fn(&ReceivedPoint) -> f64,
) -> Vec<String> {
    let infos = of(points, "gpu.info", &[("gpu.index", index)]);
    let mut versions: Vec<String> = Vec::new();
    for info in infos.iter().filter(|info| !info.ended()) {
        let Some(version) = info.attrs.get("gpu.driver.version") else { continue };
        if !versions.contains(version) {
            versions.push(version.clone());
        }
        assert_eq!(versions.last(), Some(version), "back to {version} at {}", seconds(info));
    }
    versions
}

/// A counter that began anew says so by its start.
fn energy_only_grows(points: &[ReceivedPoint], index: &str) {
    let mut last: BTreeMap<u64, f64> = BTreeMap::new();
    let energy = of(points, "gpu.energy", &[("gpu.index", index)]);
    for point in energy.iter().filter(|point| !point.ended()) {
        let joules = point.number().unwrap();
        let before = last.insert(point.start, joules).unwrap_or(0.0);
        assert!(joules >= before, "{joules} J after {before} J with the same start");
    }
    assert_eq!(last.len(), 2, "one start a driver: {last:?}");
}

/// No series has two points of one moment.
fn no_series_twice(points: &[ReceivedPoint]) {
    let mut seen = BTreeSet::new();
    for point in points.iter().filter(|point| point.metric.starts_with("gpu.")) {
        let key = (&point.metric, &point.attrs, point.time);
        assert!(seen.insert(key), "twice: {point:?}");
    }
}
