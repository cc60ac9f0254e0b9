//! The points an agent has written to its file, read as they come.

use crate::fixture::SEEN_WITHIN;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Names take a look or two of the agent's after the process is there; grants up to ten seconds.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// What the agent does twice a second.
const INTERVAL: &str = "500ms";

/// Sources that are of no concern, so that the host's own do not get in.
pub(crate) const ALONE: &str = "[kubernetes]\ncri = []\npod_resources = \"\"\n\
    [containers]\ndocker = \"\"\npodman = \"\"\n";

/// An agent on a fake driver and everything it has told so far.
#[derive(Debug)]
pub(crate) struct WatchedAgent {
    pub(crate) agent: Agent,
    pub(crate) nvml: FakeNvml,
    folder: PathBuf,
    points: Vec<Value>,
    read: u64,
}

impl WatchedAgent {
    /// Starts it with its files in a folder; `config` says what is special.
    pub(crate) fn start(folder: &Path, scenario: &str, config: Config) -> Self {
        Self::start_with(folder, FakeNvml::install(folder, scenario).unwrap(), config)
    }

    /// The same on a driver that was changed before.
    pub(crate) fn start_with(folder: &Path, nvml: FakeNvml, config: Config) -> Self {
        let file = Some(folder.join("points.jsonl"));
        let interval = config.interval.or_else(|| Some(INTERVAL.to_owned()));
        let pod_logs = config.pod_logs.or_else(|| Some(folder.join("no-pod-logs")));
        let config = Config { interval, pod_logs, file, ..config };
        let agent = Agent::start(folder, &config, Some(&nvml)).unwrap();
        Self { agent, nvml, folder: folder.to_owned(), points: Vec::new(), read: 0 }
    }

    /// All points so far, in order.
    pub(crate) fn points(&mut self) -> &[Value] {
        let mut text = String::new();
        if let Ok(mut file) = File::open(self.folder.join("points.jsonl")) {
            file.seek(SeekFrom::Start(self.read)).unwrap();
            file.read_to_string(&mut text).unwrap();
        }
        // The last line may be half written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        self.points.extend(text[..whole].lines().map(|line| {
            let point: Value = serde_json::from_str(line).unwrap();
            point
        }));
        &self.points
    }

    /// Waits until `look` finds what it looks for in all points so far.
    pub(crate) fn wait<T>(&mut self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        let found = until(TOLD_WITHIN, || look(self.points()));
        found.unwrap_or_else(|| {
            let last = self.points.iter().rev().take(40).collect::<Vec<_>>();
            let log = self.agent.log();
            panic!("waited for {what}; agent: {log:#?}; {:#}; last {last:#?}", self.who())
        })
    }

    /// Waits for further readings of the devices; gives the place of the first point after now.
    pub(crate) fn wait_for_readings(&mut self, count: usize) -> usize {
        let before = self.points().len();
        self.wait("readings", |points| {
            let new = points.iter().skip(before).filter(|point| is(point, "gpu.energy", 0));
            (new.count() > count).then_some(before)
        })
    }

    /// What `gpuwho --json` says.
    pub(crate) fn who(&self) -> Value {
        self.agent.who().unwrap()
    }

    /// Waits until a source is in a state, for a reason with these words in it.
    pub(crate) fn wait_for_source(&self, name: &str, state: &str, words: &str) {
        let look = |who: &Value| {
            let source = who["sources"].as_array()?.iter().find(|source| source["name"] == name)?;
            let fits = source["state"] == state && source["reason"].as_str()?.contains(words);
            fits.then_some(())
        };
        self.agent.wait_for(&format!("{name}: {state}, {words}"), SEEN_WITHIN * 2, look).unwrap();
    }

    /// What `gpuwho doctor` says of the agent's sources: state and facts by name.
    pub(crate) fn doctor(&self) -> BTreeMap<String, (String, String)> {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(["doctor", "--json", "--config"]).arg(self.folder.join("gpuwho.toml"));
        let output = command.output().unwrap();
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let findings = findings.as_array().unwrap().iter().map(|finding| {
            (text(&finding["subject"]), (text(&finding["state"]), text(&finding["facts"])))
        });
        findings.collect()
    }
}

/// Whether a point is of this metric on this device.
pub(crate) fn is(point: &Value, metric: &str, gpu: u32) -> bool {
    let index = || point["attributes"]["gpu.index"].as_str()?.parse().ok();
    point["metric"] == metric && index() == Some(gpu)
}

/// The points of a metric about a process, oldest first.
pub(crate) fn of_process<'a>(points: &'a [Value], metric: &str, pid: u32) -> Vec<&'a Value> {
    let is_it =
        |point: &&Value| point["metric"] == metric && point["attributes"]["process.pid"] == pid;
    points.iter().filter(|point| is_it(point) && point["ended"] != true).collect()
}

/// The attributes of a point whose names begin with one of these, as words.
pub(crate) fn words(point: &Value, starts: &[&str]) -> BTreeMap<String, String> {
    let all = point["attributes"].as_object().unwrap().iter();
    let wanted = all.filter(|(key, _)| starts.iter().any(|start| key.starts_with(start)));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    wanted.map(|(key, value)| (key.clone(), text(value))).collect()
}

/// The same, as a test writes them.
pub(crate) fn expected<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// When a point was read, in nanoseconds since midnight or, after the next one, since that before.
pub(crate) fn time_ns(point: &Value, first: &Value) -> u64 {
    let of_day = |point: &Value| {
        let time = point["time"].as_str().unwrap().trim_end_matches('Z');
        let (_, time) = time.split_once('T').unwrap();
        let mut seconds = 0;
        let (whole, fraction) = time.split_once('.').unwrap();
        for part in whole.split(':') {
            seconds = seconds * 60 + part.parse::<u64>().unwrap();
        }
        seconds * 1_000_000_000 + fraction.parse::<u64>().unwrap()
    };
    let (time, first) = (of_day(point), of_day(first));
    if time < first { time + 86_400_000_000_000 } else { time }
}

/// The longest time between two readings of a device among these points.
pub(crate) fn longest_gap(points: &[Value]) -> Duration {
    let readings: Vec<_> = points.iter().filter(|point| is(point, "gpu.energy", 0)).collect();
    let times: Vec<_> = readings.iter().map(|point| time_ns(point, readings[0])).collect();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    Duration::from_nanos(gaps.max().expect("two readings"))
}
