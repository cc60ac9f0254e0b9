//! What the agent holds and does stays within the budgets of `agent/docs/budgets.json`, part `guard`:
//! those of its figures that depend neither on optimisation nor on the machine's load.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::budget::{self, Figures};
use gpuwho_tests::footprint::{self, Process};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::worker::nodes::open_to_all;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Processes that hold the device.
const PROCESSES: usize = 32;
/// Ticks before the figures are taken, and those in between. A tick is a second: a process that is new
/// is looked at more often, which takes as long however often the agent reads.
const START: usize = 8;
const TICKS: usize = 10;
const TIMEOUT: Duration = Duration::from_mins(2);

/// Ends with the test.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_agent_stays_within_its_budgets() {
    let stage = or_skip!(Stage::new());
    let folder = stage.folder().join("open");
    fs::create_dir(&folder).unwrap();
    // Of its own, so that no other test's processes are among the holders.
    open_to_all(&folder, "device", 6).unwrap();
    let node = folder.join("device");
    let sleepers: Vec<Sleeper> = (0..PROCESSES).map(|_| sleeper(&node)).collect();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let pids: Vec<Option<u32>> = sleepers.iter().map(|one| Some(one.0.id())).collect();
    for (gpu, pids) in (0..).zip(pids.chunks(PROCESSES / 8)) {
        nvml.set_processes(gpu, pids).unwrap();
    }
    let points = stage.folder().join("points");
    let config = Config {
        nodes: Some(vec![node.display().to_string()]),
        file: Some(points.clone()),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    wait_for_ticks(&points, START);
    let (began, before) = (Instant::now(), footprint::of(&agent).unwrap());
    wait_for_ticks(&points, START + TICKS);
    let figures = figures(&before, &footprint::of(&agent).unwrap(), began.elapsed());
    println!("{figures:#?}");
    let broken = budget::broken("guard", &figures);
    assert!(broken.is_empty(), "{broken:#?} of {figures:#?}");
}

fn sleeper(node: &Path) -> Sleeper {
    let device = File::open(node).unwrap();
    Sleeper(Command::new("sleep").arg("1000").stdin(device).spawn().unwrap())
}

/// Waits until the file has the points of so many ticks: of each the agent's own series count once.
fn wait_for_ticks(points: &Path, count: usize) {
    let end = Instant::now() + TIMEOUT;
    let ticks = || fs::read_to_string(points).unwrap_or_default().matches("gpuwho.series").count();
    while ticks() < count {
        assert!(Instant::now() < end, "{} ticks of {count} within {TIMEOUT:?}", ticks());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn figures(before: &[Process], after: &[Process], took: Duration) -> Figures {
    let sum = |of: fn(&Process) -> u64| after.iter().map(of).sum::<u64>() as f64;
    let gained = |of: fn(&Process) -> u64| {
        let since = |process: &Process| {
            let was = before.iter().find(|was| was.pid == process.pid).map_or(0, of);
            of(process).saturating_sub(was)
        };
        after.iter().map(since).sum::<u64>() as f64
    };
    let threads = |name: &str| {
        let of = after.iter().filter(|one| one.name == name);
        of.map(|one| one.threads).sum::<usize>() as f64
    };
    Figures::from([
        ("anonymous_mb", sum(|one| one.memory.anonymous) / 1e6),
        ("bpf_maps_mb", sum(|one| one.map_bytes) / 1e6),
        ("descriptors", sum(|one| one.descriptors as u64)),
        ("processes", after.len() as f64),
        ("reads_a_tick", gained(|one| one.reads) / TICKS as f64),
        ("threads_of_the_agent", threads("agent")),
        ("threads_of_the_reader", threads("device-reader")),
        ("wakes_a_second", gained(|one| one.wakes) / took.as_secs_f64()),
    ])
}
