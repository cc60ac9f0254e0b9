//! A reader on the fake library with a scenario, PIDs and a call log of its own.

use gpuwho_collect::Collector as _;
use gpuwho_devices::reader::{DeviceReader, Settings};
use gpuwho_devices::vendor;
use gpuwho_model::catalog::device::DeviceState;
use gpuwho_model::catalog::gpm;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, Sample, Subject, Value};
use gpuwho_owners::inventory::Inventory;
use nvidia_ml::counts::{self, Count};
use nvidia_ml::install::install;
use nvidia_ml::scenario::Scenario;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Metric, device index, PID (0 for the device itself) and dimension; in a MIG instance, its place
/// before the dimension, as in `1/0 used`.
pub(crate) type Key = (String, u32, u32, String);
/// Every value of a reading.
pub(crate) type Values = BTreeMap<Key, f64>;

/// A PID that nothing knows.
pub(super) const NOBODY: u32 = 4_000_000;
/// Set in the environment of a test that runs in a process of its own.
const ALONE: &str = "GPUWHO_TEST_ALONE";

pub(super) struct Rig {
    epoch: f64,
    pub(super) inventory: Arc<Inventory>,
    pub(super) reader: DeviceReader,
    /// Device nodes each PID was seen to open.
    nodes: Arc<Mutex<BTreeMap<u32, Vec<Arc<str>>>>>,
    /// Dropped after the reader, whose child reads files in it until it ends.
    folder: TempDir,
}

impl Rig {
    /// A reader of a shipped scenario that is well into its course.
    pub(super) fn new(scenario: &str) -> Self {
        Self::at(scenario, 1000.3)
    }

    /// The same, with a reader that waits for half a second only.
    pub(super) fn hasty(scenario: &str) -> Self {
        Self::with(scenario, 1000.3, Duration::from_secs(1))
    }

    /// A reader of a shipped scenario that began some seconds ago.
    pub(super) fn at(scenario: &str, seconds: f64) -> Self {
        Self::with(scenario, seconds, Duration::from_secs(10))
    }

    /// A reader that leaves performance counters alone.
    pub(super) fn without_counters(scenario: &str) -> Self {
        let mut settings = Settings::new(built("gpuwho"), Duration::from_secs(10));
        settings.off.push("gpm".to_owned());
        Self::of(scenario, 1000.3, settings)
    }

    /// A reader that tells of all links of a device together only.
    pub(super) fn without_links(scenario: &str) -> Self {
        let mut settings = Settings::new(built("gpuwho"), Duration::from_secs(10));
        settings.off.push("by_link".to_owned());
        Self::of(scenario, 1000.3, settings)
    }

    /// A reader that samples the PCIe throughput where there are no performance counters.
    pub(super) fn with_sampling(scenario: &str) -> Self {
        let default = Settings::new(built("gpuwho"), Duration::from_secs(10));
        Self::of(scenario, 1000.3, Settings { off: Vec::new(), ..default })
    }

    fn with(scenario: &str, seconds: f64, interval: Duration) -> Self {
        Self::of(scenario, seconds, Settings::new(built("gpuwho"), interval))
    }

    fn of(scenario: &str, seconds: f64, mut settings: Settings) -> Self {
        let folder = TempDir::new().unwrap();
        let epoch = unix(SystemTime::now()) - seconds;
        let inventory = Arc::new(Inventory::default());
        settings.library = Some(folder.path().join("libnvidia-ml.so.1"));
        settings.retry = Duration::ZERO;
        settings.max_pause = Duration::ZERO;
        settings.paths = Paths { proc: folder.path().join("proc"), ..Paths::default() };
        let path = |name: &str| folder.path().join(name).into_os_string();
        settings.environment = vec![
            ("FAKE_NVML_SCENARIO".into(), path("scenario.toml")),
            ("FAKE_NVML_LOG".into(), path("calls.jsonl")),
            ("FAKE_NVML_COUNTS".into(), path("counts")),
            ("FAKE_NVML_PIDS".into(), path("")),
            ("FAKE_NVML_EPOCH".into(), epoch.to_string().into()),
        ];
        let identify = |pids: &[u32], _| {
            let known = pids.iter().filter(|pid| **pid != NOBODY);
            Arc::new(known.map(|pid| (*pid, ProcKey { pid: *pid, start_ticks: 7 })).collect())
        };
        let nvidia = vendor("nvidia").unwrap();
        let known = Arc::clone(&inventory);
        let nodes: Arc<Mutex<BTreeMap<u32, Vec<Arc<str>>>>> = Arc::default();
        let held = Arc::clone(&nodes);
        let held = move |process: ProcKey| {
            held.lock().unwrap().get(&process.pid).cloned().unwrap_or_default()
        };
        // The reader of a driver that is there from the beginning waits for no second reading.
        fs::write(folder.path().join("libnvidia-ml.so.1"), "").unwrap();
        let reader = DeviceReader::new(nvidia, settings, known, Box::new(identify))
            .with_open_nodes(Box::new(held));
        let rig = Self { epoch, inventory, reader, nodes, folder };
        rig.play(scenario);
        for device in 0..8 {
            let pids: Vec<u32> = (0..8).map(|slot| rig.pid(device, slot)).collect();
            rig.write_pids(device, &pids);
        }
        rig.install_library();
        rig
    }

    /// The PID the rig binds a process to.
    #[expect(clippy::unused_self, reason = "reads as a fact of the rig")]
    pub(super) fn pid(&self, device: u32, slot: u32) -> u32 {
        1000 + 100 * device + slot
    }

    pub(super) fn write_pids(&self, device: u32, pids: &[u32]) {
        let text: Vec<String> = pids.iter().map(u32::to_string).collect();
        fs::write(self.folder.path().join(format!("gpu{device}")), text.join("\n")).unwrap();
    }

    /// Lets a process be seen to open nodes.
    pub(super) fn open_nodes(&self, pid: u32, nodes: &[&str]) {
        let nodes = nodes.iter().map(|node| Arc::from(*node)).collect();
        self.nodes.lock().unwrap().insert(pid, nodes);
    }

    /// The folder that stands for the host's `/proc`.
    pub(super) fn proc(&self) -> PathBuf {
        self.folder.path().join("proc")
    }

    /// Switches to a shipped scenario.
    pub(super) fn play(&self, scenario: &str) {
        self.play_with(scenario, "");
    }

    /// Switches to a shipped scenario with something added.
    pub(super) fn play_with(&self, scenario: &str, more: &str) {
        let text = fs::read_to_string(shipped(scenario)).unwrap();
        fs::write(self.scenario_path(), format!("{text}\n{more}")).unwrap();
    }

    /// Changes the scenario's text.
    pub(super) fn edit(&self, change: impl FnOnce(String) -> String) {
        let before = fs::read_to_string(self.scenario_path()).unwrap();
        let after = change(before.clone());
        assert_ne!(before, after, "the change found nothing to change");
        fs::write(self.scenario_path(), after).unwrap();
    }

    pub(super) fn scenario(&self) -> Scenario {
        Scenario::load(&self.scenario_path()).unwrap()
    }

    /// Scenario time.
    pub(super) fn seconds(&self) -> f64 {
        unix(SystemTime::now()) - self.epoch
    }

    /// A time since the Unix epoch as scenario time.
    pub(super) fn since_epoch(&self, seconds: f64) -> f64 {
        seconds - self.epoch
    }

    pub(super) fn install_library(&self) {
        let library = built("deps/libnvidia_ml.so");
        install(&library, &self.scenario_path(), self.folder.path()).unwrap();
    }

    pub(super) fn remove_library(&self) -> PathBuf {
        let path = self.folder.path().join("libnvidia-ml.so.1");
        fs::remove_file(&path).unwrap();
        path
    }

    /// Reads once.
    pub(super) fn tick(&mut self) -> Values {
        let batch = self.batch();
        self.values(&batch)
    }

    /// Reads until the library has been called.
    pub(super) fn tick_with_calls(&mut self) -> Values {
        let before = self.reader.control().snapshot().calls;
        let batch = self.until(|batch, rig| {
            (rig.reader.control().snapshot().calls > before).then(|| batch.clone())
        });
        self.values(&batch)
    }

    /// Reads until there is what the test waits for.
    pub(super) fn until<T>(&mut self, mut found: impl FnMut(&Batch, &Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            let batch = self.batch();
            if let Some(found) = found(&batch, self) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.reader.report());
            super::breathe();
        }
    }

    /// The values of a batch, without those of performance counters: they lie between two readings,
    /// and the first of them has none.
    pub(super) fn values(&self, batch: &Batch) -> Values {
        let mut values = self.everything(batch);
        values.retain(|(name, ..), _| !is_counted(name));
        values
    }

    /// Reads once and gives the values of the performance counters only.
    pub(super) fn counters(&mut self) -> Values {
        let batch = self.batch();
        let mut values = self.everything(&batch);
        values.retain(|(name, ..), _| is_counted(name));
        values
    }

    pub(super) fn everything(&self, batch: &Batch) -> Values {
        batch.samples.iter().map(|(_, sample)| (self.key(sample), number(&sample.value))).collect()
    }

    /// The lines of the library's log that have a key, oldest first.
    pub(super) fn log(&self, key: &str) -> Vec<serde_json::Value> {
        let log = fs::read_to_string(self.folder.path().join("calls.jsonl")).unwrap();
        let lines =
            log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line.get(key).is_some()).collect()
    }

    /// When a metric of a device in a batch was read.
    pub(super) fn time_of(&self, batch: &Batch, name: &str, device: u32) -> Option<SystemTime> {
        let wanted = |sample: &Sample| sample.metric.name == name && self.key(sample).1 == device;
        batch.samples.iter().find(|(_, sample)| wanted(sample)).map(|(time, _)| *time)
    }

    /// The state of a device.
    pub(super) fn state(&self, device: u32) -> DeviceState {
        let devices = self.reader.control().snapshot().devices;
        let index = |gpu| self.inventory.get(gpu).unwrap().index;
        devices.iter().find(|row| index(row.gpu) == device).unwrap().state
    }

    /// How often a function of the library was called.
    pub(super) fn calls(&self, name: &str) -> usize {
        let log = fs::read_to_string(self.folder.path().join("calls.jsonl")).unwrap();
        log.lines().filter(|line| line.contains(&format!("\"call\":\"{name}\""))).count()
    }

    /// What was done to each function of the library so far.
    pub(super) fn counts(&self) -> BTreeMap<String, Count> {
        counts::read(&self.folder.path().join("counts")).unwrap()
    }

    fn batch(&mut self) -> Batch {
        let mut batch = Batch::new("nvidia", SystemTime::now());
        self.reader.collect(&mut batch);
        batch.time = SystemTime::now();
        batch
    }

    fn key(&self, sample: &Sample) -> Key {
        let (gpu, instance, pid) = match sample.subject {
            Subject::Gpu(gpu) => (gpu, None, 0),
            Subject::Instance(instance) => {
                (self.inventory.instance(instance).unwrap().gpu, Some(instance), 0)
            }
            Subject::Process(on) => (on.gpu, on.instance, on.process.pid),
            other => panic!("{other:?} is not the reader's to speak about"),
        };
        let place = instance.map_or_else(String::new, |instance| {
            let info = self.inventory.instance(instance).unwrap();
            format!("{}/{} ", info.gpu_instance, info.compute_instance.unwrap())
        });
        let dims = sample.metric.dims.iter().zip(sample.dims);
        let dims: Vec<&str> = dims.map(|(dim, index)| dim.values[usize::from(index)]).collect();
        let index = self.inventory.get(gpu).unwrap().index;
        (sample.metric.name.to_owned(), index, pid, place + &dims.join(","))
    }

    fn scenario_path(&self) -> PathBuf {
        self.folder.path().join("scenario.toml")
    }
}

/// Whether this test runs in a process of its own.
pub(super) fn alone() -> bool {
    env::var_os(ALONE).is_some()
}

/// Runs a test again in a process of its own, where other tests open no files.
pub(super) fn in_a_process_of_its_own(test: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args(["--exact", test]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Whether a metric is one of performance counters.
fn is_counted(name: &str) -> bool {
    gpm::ALL.iter().any(|def| def.name == name)
}

pub(crate) fn shipped(scenario: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fakes/nvml/scenarios");
    folder.join(format!("{scenario}.toml"))
}

/// Something built beside this test.
fn built(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    assert!(path.exists(), "{} is missing: run `cargo build` first", path.display());
    path
}

fn number(value: &Value) -> f64 {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "scenario values have few digits")]
        Value::Int(number) => *number as f64,
        Value::Double(number) => *number,
        Value::Histogram(_) => panic!("no device call gives a distribution"),
    }
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
