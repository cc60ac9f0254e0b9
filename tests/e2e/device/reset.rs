//! A GPU is reset while it is read: lost, then back with the same UUID and counters that begin anew,
//! behind a library that has to be loaded anew to see it.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use std::collections::BTreeMap;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(90);
/// The seconds of `gpu-reset.toml` in which the device is lost.
const LOST: f64 = 5.0;
const BACK: f64 = 12.0;
/// Between readings.
const TICK: f64 = 0.5;
/// What a busy machine may add to what takes a tick.
const SOON: f64 = 2.0;
const RESET: &str = "3";

#[test]
fn a_gpu_that_is_reset_under_load_is_down_and_up_again_with_its_counters_anew() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let nvml = FakeNvml::install(folder.path(), "gpu-reset").unwrap().from_now();
    let epoch = nvml.epoch().unwrap();
    // The load: a process on each of the two devices looked at.
    let load = std::process::id();
    (2..4).for_each(|gpu| nvml.set_processes(gpu, &[Some(load)]).unwrap());
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let interval = Some(format!("{}ms", TICK * 1000.0));
    let config = Config { interval, otlp: Some(otlp), ..Config::default() };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let why = agent.wait_for("the loss", WITHIN, |who| {
        let device = &who["devices"][3];
        (device["state"] == "lost").then(|| device["reason"].as_str().unwrap().to_owned())
    });
    assert!(why.unwrap().contains("fell off the bus"));
    // What used it has ended with it.
    nvml.set_processes(3, &[]).unwrap();
    let over = |points: &[ReceivedPoint]| {
        let power = of(points, "gpu.power", &[("gpu.index", RESET)]);
        let over = power.last().is_some_and(|point| seconds(point, epoch) > BACK + 5.0);
        over.then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, over).unwrap().expect("readings after the reset");

    is_down_and_up_again(&points, epoch);
    others_are_never_down(&points);
    no_counter_falls(&points);
    energy_is_that_since_the_reset(&points, &nvml, epoch);
    errors_are_forgotten_but_for_those_of_the_board(&points);
    let load = load.to_string();
    let process = |gpu| {
        let attrs = [("gpu.index", gpu), ("process.pid", load.as_str())];
        of(&points, "gpu.process.memory.usage", &attrs).last().map(|point| point.ended())
    };
    assert_eq!([process("2"), process(RESET)], [Some(false), Some(true)]);
    let who = agent.who().unwrap();
    let nvidia = who["sources"].as_array().unwrap().iter().find(|one| one["name"] == "nvidia");
    assert_eq!(nvidia.unwrap()["restarts"], 1, "the library was loaded anew once: {who:#}");
}

fn seconds(point: &ReceivedPoint, epoch: f64) -> f64 {
    point.time as f64 / 1e9 - epoch
}

/// The values in the order of arrival, each of a row once.
fn course(points: &[ReceivedPoint], metric: &str, attrs: &[(&str, &str)]) -> Vec<f64> {
    let mut values: Vec<f64> =
        of(points, metric, attrs).iter().filter_map(|point| point.number()).collect();
    values.dedup();
    values
}

fn is_down_and_up_again(points: &[ReceivedPoint], epoch: f64) {
    let own = [("gpu.index", RESET)];
    assert_eq!(course(points, "gpu.up", &own), [1.0, 0.0, 1.0]);
    let lost = [("gpu.index", RESET), ("gpu.state", "lost")];
    assert_eq!(course(points, "gpu.status", &lost), [0.0, 1.0, 0.0]);
    let power = of(points, "gpu.power", &own);
    let alive = power.iter().filter(|point| !point.ended()).map(|point| seconds(point, epoch));
    let alive: Vec<f64> = alive.collect();
    let meanwhile = alive.iter().filter(|at| (LOST..BACK).contains(*at)).count();
    assert_eq!(meanwhile, 0, "no device, no value: {alive:?}");
    assert_eq!(power.iter().filter(|point| point.ended()).count(), 1, "its series ended once");
    let after = alive.iter().find(|at| **at > BACK).unwrap() - BACK;
    assert!(after < TICK + SOON, "read again {after} s after it was back");
    let uuids = power.iter().map(|point| point.attrs["gpu.uuid"].as_str());
    let mut uuids: Vec<&str> = uuids.collect();
    uuids.dedup();
    assert_eq!(uuids, ["GPU-4f6b1c1e-8f0a-4c55-9d10-000000000003"]);
}

/// Not while it is lost, and not while the library is loaded anew for it.
fn others_are_never_down(points: &[ReceivedPoint]) {
    for device in ["0", "1", "2", "4", "5", "6", "7"] {
        let own = [("gpu.index", device)];
        assert_eq!(course(points, "gpu.up", &own), [1.0], "device {device}");
        let power = of(points, "gpu.power", &own);
        assert!(power.iter().all(|point| !point.ended()), "device {device}");
        let times: Vec<f64> = power.iter().map(|point| seconds(point, 0.0)).collect();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
        assert!(longest < TICK + SOON, "device {device}: {longest} s without a reading");
    }
}

/// With the same start.
fn no_counter_falls(points: &[ReceivedPoint]) {
    let mut last: BTreeMap<_, (u64, f64)> = BTreeMap::new();
    let counters = points.iter().filter(|point| point.kind == ReceivedKind::Counter);
    let mut seen = 0;
    for point in counters.filter(|point| point.metric.starts_with("gpu.")) {
        let Some(value) = point.number() else { continue };
        assert!(point.start <= point.time, "starts after its own time: {point:?}");
        seen += 1;
        let before = last.insert((&point.metric, &point.attrs), (point.start, value));
        let Some((start, before)) = before else { continue };
        assert!(point.start >= start, "starts before the one before: {point:?}");
        assert!(point.start > start || value >= before, "{before}, and then {point:?}");
    }
    assert!(seen > 1000, "{seen}");
}

/// The receiver's increase over the reset is what the device has used since it was back.
fn energy_is_that_since_the_reset(points: &[ReceivedPoint], nvml: &FakeNvml, epoch: f64) {
    let own = [("gpu.index", RESET)];
    let energy = of(points, "gpu.energy", &own);
    let alive: Vec<_> = energy.iter().filter(|point| !point.ended()).collect();
    let mut starts: Vec<u64> = alive.iter().map(|point| point.start).collect();
    starts.dedup();
    assert_eq!(starts.len(), 2, "one start before the reset, one after it: {starts:?}");
    let last = alive.iter().rfind(|point| point.start == starts[0]).unwrap();
    assert_eq!(starts[1], last.time, "counted anew from the last point before");
    let truth = nvml.truth().unwrap();
    let device = truth.device(3).unwrap();
    let watts = device.value(device.group.power.as_ref().unwrap(), 0.0);
    for point in alive.iter().filter(|point| point.start == starts[1]) {
        let (at, joules) = (seconds(point, epoch), point.number().unwrap());
        // Read a moment before the end of the reading, which is the point's time.
        let most = watts * (at - BACK);
        assert!((most - watts * 0.3..=most).contains(&joules), "{joules} J at {at} s, not {most}");
    }
}

fn errors_are_forgotten_but_for_those_of_the_board(points: &[ReceivedPoint]) {
    let since = |count: &str| {
        let attrs = [
            ("gpu.index", RESET),
            ("gpu.ecc.error_type", "uncorrected"),
            ("gpu.ecc.count_type", count),
        ];
        course(points, "gpu.ecc.errors", &attrs)
    };
    // 4 of the memory and 68 of the caches; before the driver was loaded there were 7 and 16.
    assert_eq!([since("volatile"), since("aggregate")], [vec![72.0, 0.0], vec![95.0]]);
}
