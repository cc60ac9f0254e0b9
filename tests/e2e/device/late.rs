//! The agent is there before the driver: first there is no library, then one whose kernel driver is not
//! loaded, then a driver with eight devices.

use gpuwho_model::catalog::{self, Kind};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_mins(1);
/// A look for the driver each second, a tick, and what a busy machine may add.
const SOON: f64 = 4.0;
/// Added to a scenario: the kernel driver is not loaded.
const UNLOADED: &str = "\n[[driver_change]]\nat = 0\nkernel = \"\"\n";

/// Waits until the reader gives a reason with a text in it.
fn wait_for_reason(agent: &Agent, text: &str) {
    let reported = agent.wait_for(text, WITHIN, |who| {
        let sources = who["sources"].as_array()?;
        let nvidia = sources.iter().find(|source| source["name"] == "nvidia")?;
        let is_so = nvidia["state"] == "absent" && nvidia["reason"].as_str()?.contains(text);
        is_so.then_some(())
    });
    reported.unwrap();
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The states of the reader in their order.
fn states(points: &[ReceivedPoint]) -> Vec<&str> {
    let all = of(points, "gpuwho.source.status", &[("gpuwho.source", "nvidia")]);
    let held = all.iter().filter(|point| point.number() == Some(1.0));
    let mut states: Vec<&str> =
        held.map(|point| point.attrs["gpuwho.source.state"].as_str()).collect();
    states.dedup();
    states
}

#[test]
fn a_driver_that_is_installed_and_loaded_later_is_read_from_then_on() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap().from_now();
    nvml.edit(|text| text + UNLOADED).unwrap();
    nvml.take_away().unwrap();
    let otlp = Otlp { endpoint: collector.http_endpoint(), protocol: None };
    let config = Config {
        interval: Some("500ms".to_owned()),
        retry: Some("1s"),
        deadline: Some("5s"),
        otlp: Some(otlp),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    wait_for_reason(&agent, "libnvidia-ml.so.1 does not exist");
    nvml.bring_back().unwrap();
    wait_for_reason(&agent, "driver");
    let arrived = |points: &[ReceivedPoint]| (states(points) == ["absent"]).then_some(());
    assert_eq!(collector.wait_for(WITHIN, arrived).unwrap(), Some(()), "absent is a state");
    let before = collector.points().unwrap();
    let reported: Vec<_> = before.iter().filter(|point| point.metric.starts_with("gpu.")).collect();
    assert_eq!(reported, [] as [&ReceivedPoint; 0], "no driver, no device");

    let loaded = now();
    nvml.play("h100x8").unwrap();
    let read = |points: &[ReceivedPoint]| {
        let last = of(points, "gpu.energy", &[("gpu.index", "7")]).len() > 4;
        (last && states(points).last() == Some(&"ready")).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, read).unwrap().expect("eight devices");
    assert_eq!(states(&points), ["absent", "ready"]);
    let truth = nvml.truth().unwrap();
    for device in truth.devices() {
        let index = device.index.to_string();
        let power = of(&points, "gpu.power", &[("gpu.index", index.as_str())]);
        let watts = device.value(device.group.power.as_ref().unwrap(), 0.0);
        assert!(power.iter().all(|point| point.number() == Some(watts)), "{power:#?}");
        let after = power[0].time as f64 / 1e9 - loaded;
        assert!((0.0..SOON).contains(&after), "device {index} came {after} s after the driver");
        let up = of(&points, "gpu.up", &[("gpu.index", index.as_str())]);
        assert!(up.iter().all(|point| point.number() == Some(1.0)), "{up:#?}");
    }
    what_was_counted_before_is_no_increase(&points);
    let hears = agent.wait_for("the library's events", WITHIN, |who| {
        let mut sources = who["sources"].as_array()?.iter();
        let events = sources.find(|source| source["name"] == "nvml_events")?;
        (events["state"] == "ready").then_some(())
    });
    hears.unwrap();
}

/// A driver's counters are older than what the agent first sees of them: they start with that point.
fn what_was_counted_before_is_no_increase(points: &[ReceivedPoint]) {
    let of_devices = catalog::all().filter(|def| (def.kind, def.subject) == (Kind::Counter, "gpu"));
    let names: BTreeSet<&str> = of_devices.map(|def| def.name).collect();
    let mut seen = BTreeSet::new();
    for point in points.iter().filter(|point| names.contains(point.metric.as_str())) {
        let first = seen.insert((&point.metric, &point.attrs));
        assert!(!first || point.start == point.time, "{point:?}");
    }
    assert!(seen.len() > 8 * 10, "{}", seen.len());
}
