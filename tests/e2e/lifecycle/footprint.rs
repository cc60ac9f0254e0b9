//! What the agent holds and does stays within the budgets of `agent/docs/budgets.json`, parts `guard` and those after
//! it: those of its figures that depend neither on optimisation nor on the machine's load.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::budget::{self, Figures};
use gpuwho_tests::footprint::{self, Process};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Driver, PodSpec, Qos, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::open_to_all;
use gpuwho_tests::worker::script::Script;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Processes that hold the device.
const PROCESSES: usize = 32;
/// Pods of a full node, with four processes each.
const OWNERS: u32 = 250;
/// What can be switched off, and the thread that it has to itself.
const SWITCHES: [(&str, &str, &str); 9] = [
    ("nccl", "enabled = false", "nccl:watch"),
    ("nccl", "inspector = false", ""),
    ("nccl", "ras = \"off\"", ""),
    ("host", "enabled = false", ""),
    ("host", "cgroups = false", ""),
    ("engines", "enabled = false", "collect:engines"),
    ("health", "enabled = false", ""),
    ("receipts", "enabled = false", ""),
    ("nvidia", "enabled = false", "collect:nvidia"),
];
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
    let scene = Scene::start(&stage);
    scene.within("guard", &scene.config(""));
    // The same figures, of fewer series: nobody receives those of the host and of cgroups.
    scene.within(
        "guard",
        &Config { default_metrics: true, ..scene.config("[metrics]\nlevel = \"basic\"\n") },
    );
}

#[test]
fn an_agent_without_a_device_stays_within_its_budgets() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { nodes: Some(vec!["/dev/gpuwho-none".to_owned()]), ..Config::default() };
    within("guard_no_device", &measure(folder.path(), &config, None).0);
}

/// A full node: every owner's cgroup stays open, and costs a tick what those of sixteen owners cost it.
#[test]
fn an_agent_with_250_owners_stays_within_its_budgets() {
    let mut stage = or_skip!(Stage::new());
    let nvml = FakeNvml::install(stage.folder(), "h100x8-crowded").unwrap();
    let mut pids = vec![Vec::new(); 8];
    let mut workers = Vec::new();
    for number in 0..OWNERS {
        let name = format!("trainer-{number}");
        let (qos, driver) = (Qos::Burstable, Driver::Cgroupfs);
        let spec = PodSpec { namespace: "research", name: &name, container: "train", qos, driver };
        let pod = stage.pod(&spec).unwrap();
        let gpu = number % 8;
        let script = Script { gpus: vec![gpu], forks: 3, ..Script::default() };
        let worker = Worker::start(Some(&pod), &script).unwrap();
        let of_gpu: &mut Vec<Option<u32>> = &mut pids[gpu as usize];
        of_gpu.push(Some(worker.pid()));
        of_gpu.extend(worker.children().iter().map(|pid| Some(*pid)));
        workers.push(worker);
    }
    for (gpu, pids) in (0..).zip(&pids) {
        nvml.set_processes(gpu, pids).unwrap();
    }
    let pod_logs = Some(stage.pod_logs());
    let config = Config { pod_logs, default_metrics: true, ..Config::default() };
    within("guard_250_owners", &measure(stage.folder(), &config, Some(&nvml)).0);
}

/// What each switch leaves out is neither read nor has a thread.
#[test]
fn a_source_that_is_switched_off_costs_nothing() {
    let stage = or_skip!(Stage::new());
    let scene = Scene::start(&stage);
    let off =
        |(section, key, _): &(&str, &str, &str)| scene.config(&format!("[{section}]\n{key}\n"));
    let all: Vec<Config> =
        std::iter::once(scene.config("")).chain(SWITCHES.iter().map(off)).collect();
    // All at once, or it takes minutes.
    let measured: Vec<(Figures, BTreeSet<String>)> = thread::scope(|scope| {
        let measured = all.iter().zip(0..).map(|(config, number)| {
            let folder = stage.folder().join(format!("agent-{number}"));
            fs::create_dir(&folder).unwrap();
            // The section of a library is there already.
            let nvml = (!config.more.starts_with("[nvidia]")).then_some(&scene.nvml);
            scope.spawn(move || measure(&folder, config, nvml))
        });
        let measured: Vec<_> = measured.collect();
        measured.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let (on, off) = measured.split_first().unwrap();
    println!("on: {on:#?}");
    for ((section, key, thread), off) in SWITCHES.iter().zip(off) {
        println!("[{section}] {key}: {off:#?}");
        assert!(off.1.is_subset(&on.1) && !off.1.contains(*thread), "[{section}] {key}");
        assert!(on.1.contains(*thread) || thread.is_empty(), "{thread}");
        // Processes that are new to an agent are looked at more often by one that comes later to it.
        let most = on.0["reads_a_tick"] * 1.4;
        assert!(off.0["reads_a_tick"] <= most, "[{section}] {key}");
    }
}

/// Processes that hold the devices, and the driver that knows them.
struct Scene {
    _sleepers: Vec<Sleeper>,
    folder: PathBuf,
    node: PathBuf,
    nvml: FakeNvml,
}

impl Scene {
    fn start(stage: &Stage) -> Self {
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
        Self { _sleepers: sleepers, folder: stage.folder().to_owned(), node, nvml }
    }

    fn config(&self, more: &str) -> Config {
        let nodes = Some(vec![self.node.display().to_string()]);
        Config { nodes, more: more.to_owned(), ..Config::default() }
    }

    fn within(&self, part: &str, config: &Config) {
        within(part, &measure(&self.folder, config, Some(&self.nvml)).0);
    }
}

fn within(part: &str, figures: &Figures) {
    println!("{part}: {figures:#?}");
    let broken = budget::broken(part, figures);
    assert!(broken.is_empty(), "{part}: {broken:#?} of {figures:#?}");
}

/// What an agent costs, and the names of its threads.
fn measure(folder: &Path, config: &Config, nvml: Option<&FakeNvml>) -> (Figures, BTreeSet<String>) {
    Running::start(folder, config, nvml).figures()
}

/// An agent whose points are counted.
struct Running {
    agent: Agent,
    points: PathBuf,
}

impl Running {
    fn start(folder: &Path, config: &Config, nvml: Option<&FakeNvml>) -> Self {
        let points = folder.join("points");
        // Of an agent before.
        let _ = fs::remove_file(&points);
        let config = Config { file: Some(points.clone()), ..config.clone() };
        Self { agent: Agent::start(folder, &config, nvml).unwrap(), points }
    }

    fn figures(self) -> (Figures, BTreeSet<String>) {
        wait_for_ticks(&self.points, START);
        let (began, before) = (Instant::now(), footprint::of(&self.agent).unwrap());
        wait_for_ticks(&self.points, START + TICKS);
        let after = footprint::of(&self.agent).unwrap();
        let threads =
            after.iter().filter(|one| one.name == "agent").flat_map(|one| one.spent.keys());
        (figures(&before, &after, began.elapsed()), threads.cloned().collect())
    }
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
        thread::sleep(Duration::from_millis(100));
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
