//! SIGHUP: what changes while the agent runs, what is refused, and what stays.

use crate::points::{ALONE, WatchedAgent};
use gpuwho_tests::agent::Config;
use gpuwho_tests::prometheus::{free_address, get};
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Some ticks of half a second, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// An agent with a file sink and a configuration that can change.
struct Reloaded {
    watched: WatchedAgent,
    file: PathBuf,
}

impl Reloaded {
    fn start(folder: &Path, more: &str) -> Self {
        let more = format!("{ALONE}{more}");
        let watched = WatchedAgent::start(folder, "h100x8", Config { more, ..Config::default() });
        Self { watched, file: folder.join("gpuwho.toml") }
    }

    /// Changes the file and asks the agent to read it again.
    fn reload(&self, from: &str, to: &str) {
        let text = fs::read_to_string(&self.file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&self.file, text.replace(from, to)).unwrap();
        self.ask();
    }

    fn ask(&self) {
        let pid = Pid::from_raw(i32::try_from(self.watched.agent.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
    }

    /// How many reloads had an outcome, as the agent's own metric has it.
    fn wait_for_count(&mut self, outcome: &str, count: i64) {
        self.watched.wait(&format!("{count} {outcome}"), |points| {
            let is_it = |point: &&Value| {
                point["metric"] == "gpuwho.config.reloads"
                    && point["attributes"]["gpuwho.config.reload.outcome"] == outcome
            };
            (points.iter().rfind(is_it)?["value"] == count).then_some(())
        });
    }
}

/// The values of a metric's series, of the first device where it is of devices.
fn of<'a>(points: &'a [Value], metric: &str) -> Vec<&'a Value> {
    let is_it = |point: &&Value| {
        let index = &point["attributes"]["gpu.index"];
        point["metric"] == metric && (index.is_null() || index == "0") && point["ended"] != true
    };
    points.iter().filter(is_it).collect()
}

#[test]
fn a_reload_selects_other_metrics_and_keeps_counters_and_their_starts() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address(folder.path()).unwrap();
    let mut agent = Reloaded::start(
        folder.path(),
        &format!(
            "[prometheus]\nlisten = {address:?}\n[cost]\nprices = [{{ per_hour = 3600.0 }}]\n"
        ),
    );
    let page = || get(&address, "/metrics").unwrap_or_default();
    let has = |text: &str| until(WITHIN, || page().contains(text).then_some(()));
    assert!(has("\ngpu_power_watts{").is_some());
    agent.watched.wait("money", |points| (of(points, "gpu.cost").len() > 3).then_some(()));
    agent.reload("level = \"all\"", "level = \"all\"\nexclude = [\"gpu.power\"]");
    agent.wait_for_count("applied", 1);
    let gone = until(WITHIN, || (!page().contains("\ngpu_power_watts{")).then_some(()));
    assert!(gone.is_some(), "{}", page());
    // Prices, the limit and the endpoint's names at once.
    agent.reload(
        &format!("listen = {address:?}\n"),
        &format!("listen = {address:?}\nnames = [\"l9gpu\"]\n"),
    );
    agent.wait_for_count("applied", 2);
    assert!(
        has("\ngpu_utilization_ratio{gpu_uuid").is_some()
            && has("gpu_task_type=\"compute\"").is_some()
    );
    assert!(!page().contains("gpu_info{"));
    agent.reload("per_hour = 3600.0", "per_hour = 7200.0");
    agent.wait_for_count("applied", 3);
    let before = agent.watched.points().len();
    agent.watched.wait("more readings", |points| {
        (of(&points[before..], "gpu.cost").len() > 4).then_some(())
    });
    let points = agent.watched.points();
    for metric in ["gpu.energy", "gpu.cost", "gpuwho.config.reloads"] {
        let all = of(points, metric);
        let starts: std::collections::BTreeSet<_> =
            all.iter().map(|point| point["start"].to_string()).collect();
        assert_eq!(starts.len(), 1, "{metric} began again: {starts:?}");
    }
    let money: Vec<f64> =
        of(points, "gpu.cost").iter().map(|point| point["value"].as_f64().unwrap()).collect();
    assert!(money.windows(2).all(|pair| pair[0] <= pair[1]), "{money:?}");
    assert_eq!(agent.watched.doctor()["configuration"].0, "ok");
}

#[test]
fn a_broken_file_changes_nothing_and_the_source_configuration_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Reloaded::start(folder.path(), "");
    agent.watched.wait_for_readings(2);
    agent.reload("[metrics]", "[metrics]\nlevle = \"basic\"");
    agent.watched.agent.wait_for_log("did you mean `level`", WITHIN).unwrap();
    agent.wait_for_count("refused", 1);
    agent.watched.wait_for_source("configuration", "degraded", "unknown key `levle`");
    let before = agent.watched.wait_for_readings(4);
    let points = &agent.watched.points()[before..];
    assert!(!of(points, "gpu.power.limit").is_empty(), "still everything");
    // Put right, the same file is applied.
    agent.reload("levle = \"basic\"", "");
    agent.wait_for_count("applied", 1);
    assert_eq!(agent.watched.doctor()["configuration"].0, "ok");
}

#[test]
fn what_needs_a_restart_is_refused_whole_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Reloaded::start(folder.path(), "");
    agent.watched.wait_for_readings(2);
    agent.reload("interval = \"500ms\"", "interval = \"5s\"");
    agent.wait_for_count("refused", 1);
    let (_, facts) = agent.watched.doctor()["configuration"].clone();
    assert!(facts.contains("`agent.interval` can only change with a restart"), "{facts}");
    // The other change of the same file is not applied either.
    agent.reload("[metrics]\nlevel = \"all\"", "[metrics]\nlevel = \"basic\"");
    agent.wait_for_count("refused", 2);
    let before = agent.watched.wait_for_readings(3);
    assert!(!of(&agent.watched.points()[before..], "gpu.power.limit").is_empty());
}

#[test]
fn an_endpoint_whose_new_port_is_taken_serves_there_once_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address(folder.path()).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = taken.local_addr().unwrap().to_string();
    let mut agent =
        Reloaded::start(folder.path(), &format!("[prometheus]\nlisten = {address:?}\n"));
    let serves = || get(&address, "/metrics").is_ok_and(|page| page.contains("\ngpu_power_watts{"));
    assert!(until(WITHIN, || serves().then_some(())).is_some());
    agent.reload(&address, &other);
    agent.wait_for_count("applied", 1);
    let taken_words = format!("cannot listen on {other}");
    agent.watched.wait_for_source("sink:prometheus", "degraded", &taken_words);
    drop(taken);
    let serves = || get(&other, "/metrics").is_ok_and(|page| page.contains("\ngpu_power_watts{"));
    assert!(until(WITHIN * 2, || serves().then_some(())).is_some(), "the new address answers");
}
