//! The reader is killed at random, again and again, as a driver does that ends in a fault: no gap
//! longer than two ticks, nothing leaked. Twenty seconds of it in the suite; `cargo xtask soak` does
//! it for ten minutes, and prints the figures.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// How long, in seconds; a test that runs in the suite has a short one.
const LENGTH: &str = "SOAK_SECONDS";
/// Without the variable.
const SHORT: u64 = 20;
/// Between readings.
const TICK: Duration = Duration::from_secs(1);
/// Between two kills, in milliseconds: some ticks, or restarts that follow each other are put off.
const BETWEEN: std::ops::Range<u64> = 2_500..6_000;
/// Two ticks, and what a timer on a busy machine may add.
const MAX_GAP: Duration = Duration::from_millis(2_300);
/// The same in the short run, beside other tests: it is to find a reader that is not started again,
/// the long one is to prove the time.
const MAX_GAP_WITH_OTHERS: Duration = Duration::from_millis(5_300);
/// What the allocator and the register of series may keep more than at the beginning.
const MAX_GROWTH_KB: u64 = 6 * 1024;
/// For what takes a tick or two.
const WITHIN: Duration = Duration::from_secs(30);

/// What the agent's process holds.
#[derive(Debug)]
struct Holdings {
    /// How many of each kind: what they lead to, without numbers.
    files: BTreeMap<String, usize>,
    threads: usize,
    resident_kb: u64,
}

impl Holdings {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let mut files = BTreeMap::new();
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        // One that is closed meanwhile leads nowhere.
        for link in open.filter_map(|file| fs::read_link(file.path()).ok()) {
            let kind = link.display().to_string().replace(|letter: char| letter.is_numeric(), "");
            *files.entry(kind).or_default() += 1;
        }
        Self {
            files,
            threads: usize::try_from(number("Threads:")).unwrap(),
            resident_kb: number("VmRSS:"),
        }
    }

    /// Once no thread runs that ends when nothing more has come: each has files.
    fn at_rest(pid: u32) -> Self {
        let tasks = format!("/proc/{pid}/task");
        let at_rest = || {
            let all = fs::read_dir(&tasks).unwrap().flatten();
            let names = all.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
            let rests =
                |name: &String| !["control", "events:"].iter().any(|of| name.starts_with(of));
            names.into_iter().all(|name| rests(&name)).then(|| Self::of(pid))
        };
        until(WITHIN, at_rest).unwrap()
    }

    /// Open files.
    fn count(&self) -> usize {
        self.files.values().sum()
    }
}

#[test]
fn a_reader_killed_at_random_leaves_no_gap_and_leaks_nothing() {
    let length = env::var(LENGTH).ok().and_then(|text| text.parse().ok()).unwrap_or(SHORT);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("points.jsonl");
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let interval = Some("1s".to_owned());
    // Whoever else opens devices on this machine meanwhile is no part of what is measured: for each such
    // process the agent holds files.
    let nodes = Some(vec![folder.path().join("none").display().to_string()]);
    // Nor are the kernel's lines about them.
    let kmsg = Some(Kmsg::new(folder.path()).unwrap().path());
    let config = Config { interval, nodes, kmsg, file: Some(file.clone()), ..Config::default() };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    // With the thread that hears the library's events, which starts a moment later.
    let whole = |who: &Value| {
        let hears = |one: &Value| one["name"] == "nvml_events" && one["state"] == "ready";
        let hears = who["sources"].as_array()?.iter().any(hears);
        (hears && who["devices"][7]["state"] == "ok").then_some(())
    };
    agent.wait_for("a reading", WITHIN, whole).unwrap();
    // What is made once, on the first restarts, is no leak.
    (0..3).for_each(|_| kill(&agent));
    agent.wait_for("a reading", WITHIN, whole).unwrap();
    let before = Holdings::at_rest(agent.pid());
    // The kills in a row above were not to be without a gap.
    let begun = SystemTime::now();

    let end = Instant::now() + Duration::from_secs(length);
    let (mut kills, mut random) = (0, length);
    while Instant::now() < end {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pause = BETWEEN.start + (random >> 33) % (BETWEEN.end - BETWEEN.start);
        // The kills are what is tested: nothing is waited for.
        thread::sleep(Duration::from_millis(pause));
        kill(&agent);
        kills += 1;
    }
    agent.wait_for("a reading", WITHIN, whole).unwrap();
    let settled = || {
        let now = Holdings::at_rest(agent.pid());
        (now.files == before.files && now.threads == before.threads).then_some(now)
    };
    let after = until(WITHIN, settled).unwrap_or_else(|| Holdings::at_rest(agent.pid()));
    let who = agent.who().unwrap();
    let source = who["sources"].as_array().unwrap().iter().find(|one| one["name"] == "nvidia");
    let restarts = source.unwrap()["restarts"].as_u64().unwrap();
    let gaps = gaps(&file, begun);
    println!(
        "soak: {length} s, {kills} kills, {restarts} restarts; longest gap {:?}, points {}; \
         {} and {} open files, {} and {} kB resident",
        gaps.values().map(|(gap, _)| gap).max().unwrap(),
        gaps.values().map(|(_, points)| points).sum::<usize>(),
        before.count(),
        after.count(),
        before.resident_kb,
        after.resident_kb,
    );
    assert!(restarts >= kills, "{restarts} restarts of {kills} kills");
    assert_eq!((&after.files, after.threads), (&before.files, before.threads));
    let growth = after.resident_kb.saturating_sub(before.resident_kb);
    assert!(growth < MAX_GROWTH_KB, "{growth} kB more: {before:?}, {after:?}");
    assert_eq!(gaps.len(), 8, "{gaps:?}");
    let longest = if length == SHORT { MAX_GAP_WITH_OTHERS } else { MAX_GAP };
    assert!(gaps.values().all(|(gap, _)| *gap <= longest), "{TICK:?} a tick: {gaps:?}");
}

/// Ends the reader as a stray pointer does: again and again, because the first signal that is not
/// its own fault only takes away the handler that Rust's runtime has for its stacks.
fn kill(agent: &Agent) {
    let Some(reader) = until(WITHIN, || agent.reader()) else { panic!("no reader") };
    let pid = Pid::from_raw(i32::try_from(reader).unwrap()).unwrap();
    let ended = until(WITHIN, || {
        let sent = kill_process(pid, Signal::SEGV);
        (sent.is_err() || agent.reader() != Some(reader)).then_some(())
    });
    assert!(ended.is_some(), "{reader} has not ended");
}

/// For each device the longest time between two of its readings of power since a moment, and how
/// many there were.
fn gaps(file: &Path, since: SystemTime) -> BTreeMap<String, (Duration, usize)> {
    let mut last: BTreeMap<String, (Duration, Duration, usize)> = BTreeMap::new();
    for line in BufReader::new(fs::File::open(file).unwrap()).lines() {
        let line = line.unwrap();
        // Most lines are of other metrics.
        let Some(point) = Some(&line).filter(|line| line.contains("\"gpu.power\"")) else {
            continue;
        };
        // The last line may be half written.
        let Ok(point) = serde_json::from_str::<Value>(point) else { continue };
        if !point["value"].is_number() {
            continue;
        }
        let at = humantime::parse_rfc3339(point["time"].as_str().unwrap()).unwrap();
        if at < since {
            continue;
        }
        let at = at.duration_since(std::time::UNIX_EPOCH).unwrap();
        let gpu = point["attributes"]["gpu.index"].as_str().unwrap().to_owned();
        let (before, longest, points) = last.get(&gpu).copied().unwrap_or((at, Duration::ZERO, 0));
        let gap = at.saturating_sub(before);
        last.insert(gpu, (at, longest.max(gap), points + 1));
    }
    last.into_iter().map(|(gpu, (_, longest, points))| (gpu, (longest, points))).collect()
}
