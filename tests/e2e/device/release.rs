//! `gpuwho release` before a driver upgrade or a GPU reset: nothing of the agent's holds a device,
//! whatever its reader is doing.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::skip;
use gpuwho_tests::until::until;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);
/// A second, and the start of the command on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// A reading of one device that does not come back; `HOW` is how.
const STUCK: &str =
    "\n[[failure]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ndevice = 5\nHOW = true\n";

struct Host {
    agent: Agent,
    nvml: FakeNvml,
    _folder: TempDir,
}

impl Host {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
        let interval = Some("500ms".to_owned());
        let config = Config { interval, ..Config::default() };
        let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
        let host = Self { agent, nvml, _folder: folder };
        host.wait(7, "ok");
        host
    }

    /// One whose sixth device does not come back from the driver.
    fn stuck(how: &str) -> Self {
        let host = Self::new();
        host.nvml.edit(|text| text + &STUCK.replace("HOW", how)).unwrap();
        host.wait(5, "hung");
        host
    }

    fn wait(&self, device: usize, state: &str) -> String {
        let said = self.agent.wait_for(&format!("device {device} {state}"), WITHIN, |who| {
            let device = &who["devices"][device];
            (device["state"] == state).then(|| device["reason"].as_str().unwrap().to_owned())
        });
        said.unwrap()
    }

    /// What the agent and every process below it hold of the library and the device nodes.
    fn held(&self) -> Vec<PathBuf> {
        let mut held = Vec::new();
        // Threads, because a process whose first has ended shows no files of the others.
        let threads = below(self.agent.pid())
            .into_iter()
            .flat_map(|process| fs::read_dir(process.join("task")).into_iter().flatten().flatten());
        for thread in threads.map(|thread| thread.path()) {
            let files = fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
            let links = files.filter_map(|file| fs::read_link(file.path()).ok());
            held.extend(links.filter(|link| link.starts_with(self.nvml.nodes())));
            let maps = fs::read_to_string(thread.join("maps")).unwrap_or_default();
            let mapped = maps.lines().filter(|line| line.contains("libnvidia-ml"));
            held.extend(mapped.map(|line| PathBuf::from(line.rsplit(' ').next().unwrap())));
        }
        held.sort();
        held.dedup();
        held
    }

    /// `gpuwho release` and what it said.
    fn release(&self, length: &str) -> String {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(["release", "--for", length, "--socket"]).arg(self.agent.socket());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The processes of a tree, as folders of procfs.
pub(super) fn below(root: u32) -> Vec<PathBuf> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(&parent) = tree.get(at) {
        tree.extend(parents.iter().filter(|row| row.1 == parent).map(|row| row.0));
        at += 1;
    }
    tree.iter().map(|pid| Path::new("/proc").join(pid.to_string())).collect()
}

#[test]
fn nothing_holds_a_device_within_a_second_and_the_agent_comes_back_by_itself() {
    let host = Host::new();
    let held = host.held();
    let nodes =
        |held: &[PathBuf]| held.iter().filter(|one| one.starts_with(host.nvml.nodes())).count();
    assert!(nodes(&held) == 9 && nodes(&held) < held.len(), "nodes and library: {held:?}");
    let begun = Instant::now();
    let said = host.release("3s");
    let took = begun.elapsed();
    assert_eq!(host.held(), Vec::<PathBuf>::new());
    assert!(said.contains("devices released") && took < SOON, "{took:?}: {said}");
    host.wait(0, "released");
    assert_eq!(host.held(), Vec::<PathBuf>::new(), "released means that it stays so");
    host.wait(0, "ok");
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert_eq!(nodes(&host.held()), nodes(&held));
}

#[test]
fn a_call_that_hangs_keeps_no_device() {
    let host = Host::stuck("hang");
    let begun = Instant::now();
    host.release("10m");
    assert_eq!(host.held(), Vec::<PathBuf>::new());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_thread_that_sleeps_uninterruptibly_is_told_with_its_call_and_keeps_no_device() {
    let host = Host::stuck("uninterruptible");
    let reported = until(WITHIN, || {
        let said = host.wait(5, "hung");
        said.contains("uninterruptible").then_some(said)
    });
    let reported = reported.unwrap_or_else(|| host.wait(5, "hung"));
    assert!(reported.starts_with("nvmlDeviceGetMemoryInfo_v2 has not returned for "), "{reported}");
    assert!(reported.contains("is in uninterruptible sleep in "), "{reported}");
    host.release("10m");
    assert_eq!(host.held(), Vec::<PathBuf>::new());
}

/// A thread that not even SIGKILL ends, as one that waits in a driver: frozen by the v1 freezer.
struct Frozen(PathBuf);

impl Frozen {
    fn new(thread: &str) -> Option<Self> {
        let group =
            Path::new("/sys/fs/cgroup/freezer").join(format!("gpuwho-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let frozen = Self(group);
        fs::write(frozen.0.join("tasks"), thread).ok()?;
        fs::write(frozen.0.join("freezer.state"), "FROZEN").ok()?;
        let state = || fs::read_to_string(frozen.0.join("freezer.state")).ok();
        until(WITHIN, || (state()? == "FROZEN\n").then_some(()))?;
        Some(frozen)
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // A test that failed leaves no frozen process behind, and the group goes when it is empty.
        let _thawed = fs::write(self.0.join("freezer.state"), "THAWED");
        until(WITHIN, || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn a_thread_that_nothing_ends_is_said_and_no_second_reader_is_started_beside_it() {
    let host = Host::stuck("hang");
    let reader = host.agent.reader().unwrap();
    let threads = fs::read_dir(format!("/proc/{reader}/task")).unwrap().flatten();
    // The older of two workers: the younger reads the other devices.
    let workers = threads.filter(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.starts_with("reader:worker")
    });
    let stuck = workers.map(|thread| thread.file_name().into_string().unwrap()).min().unwrap();
    let Some(frozen) = Frozen::new(&stuck) else { skip!("the v1 freezer") };
    let said = host.release("1s");
    assert!(said.contains("still blocked in a driver call"), "{said}");
    let why = format!("reader process {reader} is still inside");
    let reported = until(WITHIN, || host.wait(5, "hung").contains(&why).then_some(()));
    assert!(reported.is_some(), "{}", host.wait(5, "hung"));
    assert!(!host.held().is_empty());
    frozen.thaw();
    host.wait(0, "ok");
    assert_ne!(host.agent.reader(), Some(reader));
}
