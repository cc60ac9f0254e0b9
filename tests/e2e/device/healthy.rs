//! An hour of each healthy scenario by a simulated clock: no condition starts, no event is reported, no alert of
//! Prometheus fires.

use crate::export::rules::promtool;
use gpuwho_collect::Collector as _;
use gpuwho_devices::reader::{DeviceReader, Settings};
use gpuwho_devices::{DEVICES, Vendor};
use gpuwho_model::catalog::device::{self, MemoryState, Task};
use gpuwho_model::catalog::health::CONDITION;
use gpuwho_model::catalog::{MetricDef, NO_DIM, OneDim as _};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, Sample, Subject, Value};
use gpuwho_owners::inventory::Inventory;
use gpuwho_pipeline::health::HealthMonitor;
use gpuwho_pipeline::health::settings::HealthSettings;
use gpuwho_tests::fakes::{self, Host};
use gpuwho_tests::program;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Scenarios without a fault; those of the other names are about one.
const HEALTHY: &[&str] = &[
    "a100-mig-3g20",
    "a10x1",
    "blackhole2",
    "demo",
    "gaudi2x8",
    "gaudi3x8",
    "gpu-check",
    "h100x8-crowded",
    "intel-trio",
    "mi210x4",
    "mi300x2-cpx",
    "mi300x8",
    "mi325x8",
    "mixed",
    "mps",
    "rtx-pro-fans",
    "tpu-v5e4",
    "trainium4",
    "v100x16",
    "wormhole4",
];
/// Seconds between two readings, and of the whole.
const TICK: u32 = 10;
const HOUR: u32 = 3600;
/// What the alerts are about, besides conditions; of a metric with dimensions one value.
fn asked() -> [(&'static MetricDef, u8, &'static str); 4] {
    let used = "gpu_memory_usage_bytes{gpu_memory_state=\"used\",";
    let busy = "gpu_utilization_ratio{gpu_task=\"general\",";
    [
        (device::UP.def(), NO_DIM, "gpu_up{"),
        (device::MEMORY_LIMIT.def(), NO_DIM, "gpu_memory_limit_bytes{"),
        (device::MEMORY_USAGE.def(), MemoryState::Used.index(), used),
        (device::UTILIZATION.def(), Task::General.index(), busy),
    ]
}

/// One host in its simulated time.
struct Simulated {
    host: Host,
    /// Whether the other vendors' files change with the time.
    plays: bool,
    clock: std::path::PathBuf,
    readers: Vec<(&'static Vendor, DeviceReader)>,
    inventory: Arc<Inventory>,
    monitor: HealthMonitor,
    /// The samples of each series, one a minute.
    series: BTreeMap<String, Vec<f64>>,
}

impl Simulated {
    fn new(folder: &Path, scenario: &str) -> Self {
        let host = Host::install(folder, scenario).unwrap();
        let clock = folder.join("clock");
        fs::write(&clock, "0").unwrap();
        let inventory = Arc::new(Inventory::default());
        let groups = fakes::load(scenario).unwrap().groups;
        let names: BTreeSet<&str> = groups.iter().map(|group| group.vendor.as_str()).collect();
        let vendors: Vec<_> = DEVICES.iter().filter(|vendor| names.contains(vendor.name)).collect();
        let reader = |vendor: &&'static Vendor| {
            let interval = Duration::from_secs(u64::from(TICK));
            let mut settings = Settings::new(program::gpuwho().unwrap(), interval);
            settings.paths = Paths { sys: folder.join("host/sys"), ..Paths::default() };
            if let Some(nvml) = host.nvml().filter(|_| vendor.name == "nvidia") {
                settings.library = Some(nvml.library());
                settings.environment = vec![
                    ("FAKE_NVML_SCENARIO".into(), nvml.scenario().into()),
                    ("FAKE_NVML_CLOCK".into(), clock.clone().into()),
                ];
            }
            if vendor.name == "gaudi" {
                // Not a library that another test has built.
                settings.library = Some(folder.join("host/hl-smi"));
            }
            let identify = Box::new(|_: &[u32], _| Arc::default());
            (*vendor, DeviceReader::new(vendor, settings, Arc::clone(&inventory), identify))
        };
        let readers = vendors.iter().map(reader).collect();
        let names = vendors.iter().map(|vendor| vendor.name).collect();
        let interval = Duration::from_secs(u64::from(TICK));
        let monitor = HealthMonitor::new(HealthSettings::default(), interval, names);
        Self { clock, readers, inventory, monitor, series: BTreeMap::new(), host, plays: true }
    }

    /// One reading of all devices; what health reports of it.
    fn tick(&mut self, second: u32) -> Vec<String> {
        fs::write(&self.clock, second.to_string()).unwrap();
        if self.plays {
            self.host.play_at(second.into()).unwrap();
        }
        let time = UNIX_EPOCH + Duration::from_secs(1_800_000_000 + u64::from(second));
        let mut reported = Vec::new();
        for (vendor, reader) in &mut self.readers {
            let mut batch = Batch::new(vendor.name, time);
            reader.collect(&mut batch);
            let now = (1e6 + f64::from(second), time);
            let changes = self.monitor.evaluate(&mut batch, &self.inventory, now);
            reported.extend(changes.iter().map(|what| format!("{second} s: {}", what.message)));
            if second.is_multiple_of(60) {
                for (_, sample) in &batch.samples {
                    keep(&mut self.series, sample);
                }
            }
        }
        reported
    }

    /// The devices that are not well.
    fn sick(&self, second: u32) -> Vec<String> {
        let report = self.monitor.report("one", &self.inventory, 1e6 + f64::from(second));
        assert!(!report.devices.is_empty());
        let sick = report.devices.iter().filter(|device| device.status != "ok");
        sick.map(|device| format!("{} {}: {:?}", device.model, device.status, device.conditions))
            .collect()
    }
}

/// Adds a sample of what the alerts are about to its series.
fn keep(series: &mut BTreeMap<String, Vec<f64>>, sample: &Sample) {
    let Subject::Gpu(gpu) = sample.subject else { return };
    let number = match sample.value {
        Value::Int(number) => number as f64,
        Value::Double(number) => number,
        Value::Histogram(_) => return,
    };
    let gpu = gpu.0;
    let of_gpu = format!("gpu_uuid=\"{gpu}\",gpu_index=\"{gpu}\",host_name=\"one\"}}");
    let is_it = |(metric, dim, _): &&(&'static MetricDef, u8, &str)| {
        *sample.metric == **metric && sample.dims[0] == *dim
    };
    let name = if *sample.metric == *CONDITION.def() {
        let condition = sample.metric.dims[0].values[usize::from(sample.dims[0])];
        format!("gpu_health_condition{{gpu_health_condition=\"{condition}\",{of_gpu}")
    } else if let Some((_, _, name)) = asked().iter().find(is_it) {
        format!("{name}{of_gpu}")
    } else {
        return;
    };
    series.entry(name).or_default().push(number);
}

/// What `promtool` says of the alerts over these series; empty where none fires.
fn alerts(folder: &Path, series: &BTreeMap<String, Vec<f64>>) -> Option<String> {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards/alerts.yaml");
    let mut text = format!("rule_files: [{rules}]\nevaluation_interval: 1m\ntests:\n");
    text.push_str("  - interval: 1m\n    input_series:\n");
    for (name, values) in series {
        let values: Vec<_> = values.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "      - series: '{name}'\n        values: {}", values.join(" "));
    }
    text.push_str(
        "    promql_expr_test:\n      - expr: count by (alertname, gpu_uuid) \
         (count_over_time(ALERTS{alertstate=\"firing\"}[1h]))\n        eval_time: 60m\n        \
         exp_samples: []\n",
    );
    let file = folder.join("hour.test.yaml");
    fs::write(&file, text).unwrap();
    let (is_good, said) = promtool(&["test", "rules", file.to_str().unwrap()])?;
    Some(if is_good { String::new() } else { said })
}

#[test]
fn a_healthy_hour_of_each_scenario_raises_nothing() {
    let mut wrong = Vec::new();
    let mut has_promtool = true;
    for scenario in HEALTHY {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Simulated::new(folder.path(), scenario);
        let reported: Vec<_> = (0..=HOUR / TICK).flat_map(|tick| host.tick(tick * TICK)).collect();
        let sick = host.sick(HOUR);
        assert!(host.series.values().any(|values| values.len() > 60), "{scenario}");
        let fired = alerts(folder.path(), &host.series);
        has_promtool &= fired.is_some();
        let fired = fired.unwrap_or_default();
        if !reported.is_empty() || !sick.is_empty() || !fired.is_empty() {
            wrong.push(format!("{scenario}: {reported:#?} {sick:#?} {fired}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if !has_promtool {
        gpuwho_tests::skip!("promtool (Debian's prometheus)");
    }
}

/// `tenstorrent/tt-firmware` 9 on a Galaxy: the class folders have `dev` and `uevent` alone, and there is no
/// `hwmon`. Health said that each device is to be drained.
#[test]
fn devices_without_telemetry_are_well_and_doctor_says_that_they_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Simulated::new(folder.path(), "wormhole4");
    host.plays = false;
    let devices = folder.path().join("host/sys/bus/pci/drivers/tenstorrent");
    let devices: Vec<_> =
        fs::read_dir(devices).unwrap().map(|entry| entry.unwrap().path()).collect();
    for device in &devices {
        fs::remove_dir_all(device.join("hwmon")).unwrap();
        let class = fs::read_dir(device.join("tenstorrent")).unwrap().next().unwrap().unwrap();
        for entry in fs::read_dir(class.path()).unwrap().map(|entry| entry.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => fs::remove_dir_all(entry.path()).unwrap(),
                false if entry.file_name() == "dev" => {}
                false => fs::remove_file(entry.path()).unwrap(),
            }
        }
    }
    let reported: Vec<_> = (0..30).flat_map(|tick| host.tick(tick * TICK)).collect();
    assert_eq!((reported, host.sick(300)), (Vec::new(), Vec::new()));
    let up = host
        .series
        .iter()
        .filter(|(name, values)| name.starts_with("gpu_up{") && values.iter().all(|up| *up > 0.0));
    assert_eq!((up.count(), devices.len()), (4, 4));
    let reason = host.readers[0].1.report().reason;
    assert!(reason.contains("its driver has no reading of it"), "{reason}");
}
