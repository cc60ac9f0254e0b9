//! What the agent's processes take, and the processes that attack it.

use gpuwho_tests::agent::Agent;
use gpuwho_tests::attacker::Running;
use gpuwho_tests::footprint;
use rustix::fs::{CWD, FileType, Mode, chmod, mknodat};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// In which the kernel shows processor time: `USER_HZ` is 100 on each of our architectures.
const TICK_MS: u64 = 10;

/// A process that attacks; ended when dropped.
pub(super) struct Attacker {
    running: Running,
    lines: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Attacker {
    /// Starts it and waits until it has begun: for its first line.
    pub(super) fn start(command: &mut Command) -> Self {
        let mut running = Running::start(command).unwrap();
        let mut out = BufReader::new(running.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        assert!(!first.is_empty(), "{command:?} has ended");
        let lines = Arc::new(Mutex::new(BTreeMap::from([(first.trim_end().to_owned(), 1)])));
        let theirs = Arc::clone(&lines);
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                *theirs.lock().unwrap().entry(line).or_default() += 1;
            }
        });
        Self { running, lines }
    }

    /// Its number.
    pub(super) fn pid(&self) -> u32 {
        self.running.id()
    }

    /// How often it has written a line.
    pub(super) fn count(&self, line: &str) -> usize {
        self.lines.lock().unwrap().get(line).copied().unwrap_or(0)
    }
}

/// The last value of each series of a few metrics that an agent writes, and how often there was one.
#[derive(Clone, Debug)]
pub(super) struct Received(Arc<Mutex<BTreeMap<String, (f64, usize)>>>);

impl Received {
    /// A file for the agent to write to, and what comes of these metrics, read on a thread that ends
    /// with the test.
    pub(super) fn listen(folder: &Path, metrics: &'static [&str]) -> (PathBuf, Self) {
        let path = fifo(folder, "points");
        // Open for both: the agent's own opening does not wait, nor does this one.
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let received = Self(Arc::default());
        let theirs = received.clone();
        thread::spawn(move || {
            for line in BufReader::new(file).lines().map_while(Result::ok) {
                if metrics.iter().any(|metric| line.contains(metric)) {
                    theirs.take(&line, metrics);
                }
            }
        });
        (path, received)
    }

    fn take(&self, line: &str, metrics: &[&str]) -> Option<()> {
        let point = serde_json::from_str::<Value>(line).ok()?;
        let metric = point["metric"].as_str().filter(|metric| metrics.contains(metric))?;
        let value = point["value"].as_f64()?;
        let series = format!("{metric} {}", point["attributes"]);
        let mut all = self.0.lock().unwrap();
        let (last, count) = all.entry(series).or_default();
        (*last, *count) = (value, *count + 1);
        Some(())
    }

    /// Value and number of the points of the series that has all of these words.
    pub(super) fn of(&self, words: &[&str]) -> Option<(f64, usize)> {
        let all = self.0.lock().unwrap();
        let mut all = all.iter();
        let found = all.find(|(series, _)| words.iter().all(|word| series.contains(word)));
        found.map(|(_, found)| *found)
    }
}

/// A pipe that everybody may write to, in the place of a file.
pub(super) fn fifo(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0).unwrap();
    chmod(&path, Mode::from_raw_mode(0o666)).unwrap();
    path
}

/// The most memory that an agent's processes have had, in kB.
#[derive(Clone, Debug, Default)]
pub(super) struct Peaks {
    each: BTreeMap<u32, Peak>,
    largest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Peak {
    all: u64,
    /// Pages of files: nearly all of the program, which the agent's processes share.
    of_files: u64,
}

impl Peaks {
    /// Looks at a process and those that it started; gives what they have had together at most, with
    /// the pages that they share once.
    pub(super) fn measure(&mut self, pid: u32) -> u64 {
        let own = Peak::read(pid).unwrap();
        let of = |pid| Some((pid, Peak::read(pid)?)).filter(|(_, peak)| *peak != own);
        // A child with the same figures has not executed its program yet: its memory is its parent's.
        let each: BTreeMap<u32, Peak> = children(pid).filter_map(of).chain([(pid, own)]).collect();
        let last = std::mem::replace(&mut self.each, each);
        for (pid, peak) in &mut self.each {
            // The kernel takes pages of files back when memory is short; the peak has them.
            let before = last.get(pid).map_or(0, |last| last.of_files);
            peak.of_files = peak.of_files.max(before).min(peak.all);
        }
        let own = self.each.values().map(|peak| peak.all - peak.of_files).sum::<u64>();
        let together = own + self.each.values().map(|peak| peak.of_files).max().unwrap_or(0);
        self.largest = self.largest.max(together);
        self.largest
    }

    /// The most is from now on what the processes have now (`proc_pid_clear_refs(5)`).
    pub(super) fn forget(&mut self, pid: u32) {
        self.measure(pid);
        self.largest = 0;
        for pid in self.each.keys() {
            fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        }
    }
}

impl Peak {
    /// Of a process that has not ended.
    fn read(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let kb = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        Some(Self { all: kb("VmHWM:")?, of_files: kb("RssFile:")? })
    }
}

/// Processor time of an agent with the processes that it has started; of those with this command
/// alone.
pub(super) fn cpu_time(agent: &Agent, command: Option<&str>) -> Duration {
    let own = command.is_none().then(|| agent.pid());
    let children = agent.children().into_iter();
    let children = children.filter(|(name, _)| command.is_none_or(|command| name == command));
    let ticks = |pid: u32| -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        // `utime` to `cstime` (`proc_pid_stat(5)`), with those of threads and children that ended.
        rest.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
    };
    let all: u64 = own.into_iter().chain(children.map(|(_, pid)| pid)).map(ticks).sum();
    Duration::from_millis(all * TICK_MS)
}

/// Processor time of an agent's threads of this name.
pub(super) fn cpu_time_of_threads(agent: &Agent, name: &str) -> Duration {
    let all = footprint::of(agent).unwrap();
    Duration::from_nanos(all.iter().filter_map(|process| process.spent.get(name)).sum())
}

fn children(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).ok();
    let children: String = tasks.filter_map(of).collect();
    let pids: Vec<_> =
        children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.into_iter()
}
