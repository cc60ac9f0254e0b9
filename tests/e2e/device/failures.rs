//! Drivers that misbehave, through the whole agent: the other devices' points go on at their
//! cadence, the sick one's series end, and the agent says why.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Room for a machine under load; the healthy case takes a few seconds.
const WITHIN: Duration = Duration::from_secs(40);

/// Ticks a healthy device must have had before a test looks.
const TICKS: usize = 8;

struct Sick {
    _agent: Agent,
    file: PathBuf,
    folder: TempDir,
}

impl Sick {
    fn new(scenario: &str) -> Self {
        Self::with(scenario, Config::default())
    }

    fn with(scenario: &str, config: Config) -> Self {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let file = folder.path().join("points.jsonl");
        let config =
            Config { interval: Some("500ms".to_owned()), file: Some(file.clone()), ..config };
        let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
        Self { _agent: agent, file, folder }
    }

    fn points(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until `done` says so of all points so far.
    fn wait(&self, what: &str, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let found = until(WITHIN, || Some(self.points()).filter(|points| done(points)));
        found.unwrap_or_else(|| panic!("{what} did not come: {:#?}", self.points().last()))
    }

    fn ask(&self, words: &[&str]) -> String {
        let file = self.folder.path().join("gpuwho.toml");
        let mut command = Command::new(program::gpuwho().unwrap());
        let output = command.args(words).arg("--config").arg(file).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn series<'a>(points: &'a [Value], metric: &str, gpu: &str) -> Vec<&'a Value> {
    let own = |p: &&Value| p["metric"] == metric && p["attributes"]["gpu.index"] == gpu;
    points.iter().filter(own).collect()
}

fn is_in_state(points: &[Value], gpu: &str, state: &str) -> bool {
    let status = series(points, "gpu.status", gpu);
    let last = status.iter().rev().find(|p| p["attributes"]["gpu.state"] == state);
    last.is_some_and(|point| point["value"] == 1)
}

/// Points of the board's power by device: one a tick where all is well.
fn power_points(points: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for point in points.iter().filter(|p| p["metric"] == "gpu.power" && p["value"].is_number()) {
        let index = point["attributes"]["gpu.index"].as_str().unwrap();
        *counts.entry(index.to_owned()).or_default() += 1;
    }
    counts
}

/// The healthy devices have a point for every tick, but for the one being written.
fn others_kept_their_cadence(points: &[Value], sick: &str) {
    let mut counts = power_points(points);
    counts.remove(sick);
    assert_eq!(counts.len(), 7);
    let most = counts.values().max().unwrap();
    assert!(counts.values().all(|count| count + 1 >= *most), "{counts:?}");
}

#[test]
fn a_lost_gpu_ends_its_own_series_and_no_other() {
    let sick = Sick::new("gpu-lost");
    let points = sick.wait("the loss", |points| {
        let others = power_points(points);
        is_in_state(points, "3", "lost") && others.get("0").is_some_and(|count| *count > TICKS)
    });
    others_kept_their_cadence(&points, "3");
    let power = series(&points, "gpu.power", "3");
    let ends = power.iter().filter(|point| point["ended"] == true).count();
    assert_eq!(ends, 1, "{power:#?}");
    assert_eq!(power.last().unwrap()["ended"], true);
    let ages: Vec<_> =
        series(&points, "gpu.read.age", "3").iter().filter_map(|p| p["value"].as_f64()).collect();
    assert!(ages.last() > ages.first(), "{ages:?}");
    let who: Value = serde_json::from_str(&sick.ask(&["--json"])).unwrap();
    assert_eq!(who["devices"][3]["state"], "lost");
    assert!(!who["devices"][3]["reason"].as_str().unwrap().is_empty(), "{who:#}");
}

#[test]
fn a_slow_gpu_is_hung_and_delays_no_other() {
    let sick = Sick::new("slow-driver");
    let points = sick.wait("the hang", |points| {
        power_points(points).get("0").is_some_and(|count| *count > TICKS)
            && is_in_state(points, "2", "hung")
    });
    others_kept_their_cadence(&points, "2");
    let who: Value = serde_json::from_str(&sick.ask(&["--json"])).unwrap();
    let nvidia = who["sources"].as_array().unwrap().iter().find(|s| s["name"] == "nvidia").unwrap();
    assert_ne!(nvidia["state"], "ready", "{who:#}");
    assert!(!nvidia["reason"].as_str().unwrap().is_empty(), "{who:#}");
}

#[test]
fn an_old_driver_sends_what_it_has_and_nothing_it_has_not() {
    let sick = Sick::new("old-driver");
    let points = sick.wait("a few ticks", |points| {
        power_points(points).values().filter(|count| **count > 2).count() == 2
    });
    let has = |metric: &str| points.iter().any(|point| point["metric"] == metric);
    assert!(has("gpu.utilization") && has("gpu.temperature"));
    assert!(!has("gpu.memory.usage") && !has("gpu.process.count"));
}

#[test]
fn no_more_series_are_sent_than_allowed_and_what_is_left_out_is_said() {
    const LIMIT: usize = 900;
    let limit = Some(u32::try_from(LIMIT).unwrap());
    let sick = Sick::with("h100x8", Config { series_limit: limit, ..Config::default() });
    let left_out = |point: &&Value| {
        point["metric"] == "gpuwho.dropped"
            && point["attributes"]["gpuwho.drop.reason"] == "series_limit"
    };
    let points =
        sick.wait("what was left out", |points| points.iter().filter(left_out).count() > 3);
    let lost: Vec<_> = points.iter().filter(left_out).filter_map(|p| p["value"].as_u64()).collect();
    assert!(lost[0] > 0 && lost.is_sorted_by(|one, next| one < next), "{lost:?}");
    let of_devices = |point: &&Value| {
        // Events have no metric.
        let metric = point["metric"].as_str().unwrap_or_default();
        metric.starts_with("gpu.") && point["ended"] != true
    };
    let series = points.iter().filter(of_devices);
    let series: BTreeSet<_> =
        series.map(|point| format!("{}{}", point["metric"], point["attributes"])).collect();
    assert!((LIMIT / 2..=LIMIT).contains(&series.len()), "{}", series.len());
    let who: Value = serde_json::from_str(&sick.ask(&["--json"])).unwrap();
    let ceiling = who["sources"].as_array().unwrap().iter().find(|s| s["name"] == "series");
    let reason = ceiling.unwrap()["reason"].as_str().unwrap();
    // Behind it is an owner, where another program of this host has most of them.
    assert!(reason.contains("(agent.series_limit)"), "{reason}");
}

#[test]
fn a_family_of_metrics_has_no_more_series_than_its_limit_and_the_others_have_theirs() {
    let more = "[metrics]\nlevel = \"all\"\nlimits = { \"gpu.throttle.*\" = 40 }\n".to_owned();
    let config = Config { default_metrics: true, more, ..Config::default() };
    let sick = Sick::with("h100x8", config);
    let left_out = |point: &&Value| {
        point["metric"] == "gpuwho.dropped"
            && point["attributes"]["gpuwho.drop.reason"] == "metric_limit"
    };
    let points =
        sick.wait("what was left out", |points| points.iter().filter(left_out).count() > 3);
    let series = |prefix: &str| {
        let of = points.iter().filter(|point| {
            let metric = point["metric"].as_str().unwrap_or_default();
            metric.starts_with(prefix) && point["ended"] != true
        });
        of.map(|point| format!("{}{}", point["metric"], point["attributes"]))
            .collect::<BTreeSet<_>>()
            .len()
    };
    assert_eq!((series("gpu.throttle."), series("gpu.temperature") >= 8), (40, true));
    let doctor = sick.ask(&["doctor"]);
    assert!(doctor.contains("40 exist and the limit is 40 (metrics.limits)"), "{doctor}");
}

#[test]
fn doctor_says_what_is_wrong_with_a_lost_gpu() {
    let sick = Sick::new("gpu-lost");
    sick.wait("the loss", |points| is_in_state(points, "3", "lost"));
    let findings: Value = serde_json::from_str(&sick.ask(&["doctor", "--json"])).unwrap();
    let agent = findings.as_array().unwrap().iter().find(|f| f["subject"] == "nvidia");
    let facts = agent.unwrap()["facts"].as_str().unwrap();
    assert!(facts.contains('3'), "the device is not named: {facts:?}");
}

#[test]
fn an_empty_scenario_is_a_driver_without_devices() {
    let sick = Sick::new("empty");
    let absent = |points: &[Value]| {
        points.iter().any(|point| {
            point["metric"] == "gpuwho.source.status"
                && point["attributes"]["gpuwho.source"] == "nvidia"
                && point["attributes"]["gpuwho.source.state"] == "absent"
                && point["value"] == 1
        })
    };
    sick.wait("the source's state", absent);
    let table = sick.ask(&[]);
    // Between them may be what other programs of this host have open.
    assert!(table.contains("no accelerator\n\n"), "{table}");
    assert!(table.contains("\nno driver found for: "), "{table}");
    let text = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("nvidia (the driver lists no device)"), "{table}");
}
