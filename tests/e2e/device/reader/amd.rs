//! The AMD reader on trees of MI300X: values, partitions, processes, and files that are not as they
//! should be.

use gpuwho::collect::device::wire::{Outcome, Reading, WireValue};
use gpuwho::collect::device::{DeviceRead, OpenLibrary, OpenOptions, vendor};
use gpuwho::paths::Paths;
use gpuwho::sample::Value;
use gpuwho_tests::amd::{self, On, Tree, address};
use nvidia_ml::scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// The second of a scenario that the trees show.
const NOW: f64 = 100.0;
/// Metric and dimension.
type Key = (&'static str, String);

struct Rig {
    tree: Tree,
    scenario: Scenario,
    folder: TempDir,
}

impl Rig {
    fn new(scenario: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let scenario = Scenario::load(&super::rig::shipped(scenario)).unwrap();
        let tree = Tree::new(folder.path(), &scenario, NOW).unwrap();
        Self { tree, scenario, folder }
    }

    fn paths(&self) -> Paths {
        Paths::under(self.folder.path())
    }

    fn open(&self) -> OpenLibrary {
        let opening = OpenOptions { library: Path::new(""), paths: &self.paths(), off: &[] };
        let opened = (vendor("amd").unwrap().open)(&opening);
        opened.map_err(|error| error.to_string()).unwrap()
    }

    /// One of its devices.
    fn device(&self, index: usize) -> Box<dyn DeviceRead> {
        self.open().devices.swap_remove(index)
    }

    fn read(&self, index: usize) -> Reading {
        self.device(index).read(&[])
    }

    /// The folder of a device.
    fn at(&self, index: u32) -> std::path::PathBuf {
        self.tree.folder(&address(&self.scenario.device(index).unwrap()))
    }
}

fn values(values: &[WireValue]) -> BTreeMap<Key, f64> {
    values.iter().map(key).collect()
}

fn key(value: &WireValue) -> (Key, f64) {
    let metric = value.metric().unwrap();
    let dims = metric.dims.iter().zip(value.dims());
    let dims: Vec<&str> = dims.map(|(dim, index)| dim.values[usize::from(index)]).collect();
    let number = match value.value() {
        #[expect(clippy::cast_precision_loss, reason = "values of a scenario have few digits")]
        Value::Int(number) => number as f64,
        Value::Double(number) => number,
        Value::Histogram(_) => panic!("no file has a distribution"),
    };
    ((metric.name, dims.join(",")), number)
}

/// PID, partition and bytes of each process.
fn processes(reading: &Reading) -> BTreeSet<(u32, Option<u32>, String)> {
    let all = reading.processes.iter().map(|on| {
        let ((name, kind), bytes) = key(&on.value);
        assert_eq!(name, "gpu.process.memory.usage");
        (on.pid, on.place.map(|place| place.gpu_instance), format!("{kind} {bytes}"))
    });
    all.collect()
}

#[test]
fn every_value_of_eight_mi300x_is_the_scenarios() {
    let rig = Rig::new("mi300x8");
    let mut opened = rig.open();
    assert_eq!(opened.devices.len(), 8);
    for (device, reader) in rig.scenario.devices().zip(&mut opened.devices) {
        let reading = reader.read(&[]);
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
        let info = reading.identity.as_ref().unwrap();
        let index = device.index;
        assert_eq!(info.uuid.as_str(), format!("GPU-e3a98f4e6c9d010{index}"));
        assert_eq!(info.pci_address.as_deref(), Some(&*address(&device)));
        assert_eq!(info.model.as_deref(), Some("AMD Instinct MI300X"));
        assert_eq!(info.driver_version.as_deref(), Some("6.12.12"));
        let render = amd::FIRST_RENDER + index;
        assert_eq!(info.nodes, [format!("dri/renderD{render}"), format!("226:{render}")]);
        let i = f64::from(index);
        let used = 34_359_738_368.0 + i * 1_073_741_824.0;
        let watts = 420.25 + i * 20.5;
        // The counter's step is 2^-16 J; the scenario's energy is of whole millijoules.
        let joules = (watts * NOW * 65536.0).round() / 65536.0;
        let expected = BTreeMap::from([
            (("gpu.info", String::new()), 1.0),
            (("gpu.utilization", "general".into()), (20.0 + 7.0 * i) / 100.0),
            (("gpu.memory.bandwidth.utilization", String::new()), (10.0 + 3.0 * i) / 100.0),
            (("gpu.memory.limit", String::new()), 206_141_652_992.0),
            (("gpu.memory.usage", "used".into()), used),
            (("gpu.memory.usage", "free".into()), 206_141_652_992.0 - used),
            (("gpu.pcie.replays", String::new()), 0.0),
            (("gpu.power", String::new()), watts),
            (("gpu.power.limit", "management".into()), 750.0),
            (("gpu.clock.speed", "graphics".into()), (1900.0 + 10.0 * i) * 1e6),
            (("gpu.clock.speed", "memory".into()), 1300e6),
            (("gpu.temperature", "gpu".into()), 51.0 + 2.0 * i),
            (("gpu.temperature", "hotspot".into()), 51.0 + 2.0 * i),
            (("gpu.temperature", "memory".into()), 44.0 + 2.0 * i),
            (("gpu.energy", String::new()), joules),
            (("gpu.process.count", String::new()), 0.0),
        ]);
        assert_eq!(values(&reading.values), expected, "device {index}");
        assert!(reader.read(&[]).identity.is_none(), "told once");
    }
}

#[test]
fn a_process_is_on_the_devices_where_it_has_memory_or_a_queue() {
    let rig = Rig::new("mi300x8");
    rig.tree.compute(&On { pid: 7, render: 129, bytes: 5 << 30 }).unwrap();
    rig.tree.compute(&On { pid: 8, render: 129, bytes: 0 }).unwrap();
    rig.tree.compute(&On { pid: 9, render: 129, bytes: 0 }).unwrap();
    let id = amd::FIRST_ID + 1;
    rig.tree.write("sys/class/kfd/kfd/proc/9/queues/0/gpuid", &id.to_string()).unwrap();
    let expected = [(7, None, "compute 5368709120".into()), (9, None, "compute 0".into())];
    assert_eq!(processes(&rig.read(1)), expected.into());
    assert_eq!(processes(&rig.read(0)), BTreeSet::new(), "a file for each device is no memory");
}

#[test]
fn a_graphics_process_is_told_by_its_client_once_and_a_compute_one_by_kfd() {
    let rig = Rig::new("mi300x8");
    let at = address(&rig.scenario.device(0).unwrap());
    for pid in [7, 8] {
        rig.tree.graphics(&On { pid, render: 128, bytes: 3 << 20 }, &at).unwrap();
    }
    rig.tree.compute(&On { pid: 8, render: 128, bytes: 9 << 20 }).unwrap();
    let reading = rig.device(0).read(&[7, 8, 4_000_000]);
    let expected = [(7, None, "graphics 3145728".into()), (8, None, "compute 9437184".into())];
    assert_eq!(processes(&reading), expected.into());
    assert_eq!(processes(&rig.device(1).read(&[7, 8])), BTreeSet::new(), "of another device");
}

#[test]
fn partitions_of_a_device_share_its_board_and_have_their_own_nodes_and_processes() {
    let rig = Rig::new("mi300x2-cpx");
    rig.tree.compute(&On { pid: 7, render: 128 + 8 + 3, bytes: 1 << 30 }).unwrap();
    let mut opened = rig.open();
    assert_eq!(opened.devices.len(), 2, "one for each board");
    let reading = opened.devices[1].read(&[]);
    let named = reading.instances.iter().map(|part| {
        let identity = part.identity.as_ref().unwrap();
        (part.place.gpu_instance, identity.uuid.as_str(), identity.profile.as_deref())
    });
    let uuids: Vec<_> = (0..8).map(|part| format!("GPU-e3a98f4e6c9d0101-xcp{part}")).collect();
    let expected = (0..).zip(&uuids).map(|(part, uuid)| (part, uuid.as_str(), Some("cpx")));
    assert!(named.eq(expected), "{:#?}", reading.instances);
    let extent = reading.instances[0].identity.as_ref().unwrap().extent;
    assert_eq!((extent.device_slices, extent.multiprocessors), (Some(8), Some(38)));
    assert_eq!(extent.memory, Some(25_767_706_624));
    assert_eq!(processes(&reading), [(7, Some(3), "compute 1073741824".into())].into());
    let power = values(&reading.values)[&("gpu.power", String::new())];
    assert_eq!(power, 440.75, "the board's, once");
    let nodes = (vendor("amd").unwrap().partition_nodes)(&rig.paths());
    let opened = nodes.only_one_of(&["/dev/dri/renderD139".into()], &reading.identity.unwrap());
    assert_eq!(opened.map(|place| place.gpu_instance), Some(3));
}

#[test]
fn a_suspended_device_is_not_woken() {
    let rig = Rig::new("mi300x8");
    fs::write(rig.at(0).join("power/runtime_status"), "suspended\n").unwrap();
    let reading = rig.read(0);
    assert_eq!(reading.outcome, Outcome::Ok);
    assert_eq!(values(&reading.values), BTreeMap::from([(("gpu.info", String::new()), 1.0)]));
}

/// What a file may be instead of a reading, and whether that counts as failed or as implausible.
enum Bad {
    Missing,
    Text(&'static str),
    /// Reading it fails, as with `EBUSY`.
    Error,
    /// More bytes than any file of sysfs has.
    Endless,
}

impl Bad {
    fn put(&self, path: &Path) {
        fs::remove_file(path).unwrap();
        match self {
            Self::Missing => {}
            Self::Text(text) => fs::write(path, text).unwrap(),
            Self::Error => fs::create_dir(path).unwrap(),
            Self::Endless => symlink("/dev/zero", path).unwrap(),
        }
    }
}

#[test]
fn a_file_that_is_no_reading_costs_that_reading_only() {
    let all = [
        (Bad::Missing, [0, 0]),
        (Bad::Text(""), [1, 0]),
        (Bad::Text("\n"), [0, 0]),
        (Bad::Text("n/a\n"), [0, 1]),
        (Bad::Text("-5\n"), [0, 1]),
        (Bad::Text("4294967295\n"), [0, 1]),
        (Bad::Text("18446744073709551615\n"), [0, 1]),
        (Bad::Text("99999999999999999999999\n"), [0, 1]),
        (Bad::Error, [1, 0]),
        (Bad::Endless, [1, 0]),
    ];
    let files: [(&str, &[&str]); 5] = [
        ("gpu_busy_percent", &["gpu.utilization"]),
        ("mem_info_vram_used", &["gpu.memory.usage"]),
        ("mem_info_vram_total", &["gpu.memory.limit", "gpu.memory.usage"]),
        ("hwmon/hwmon0/power1_input", &["gpu.power"]),
        ("hwmon/hwmon0/freq1_input", &["gpu.clock.speed"]),
    ];
    for (file, metrics) in files {
        for (bad, [failed, implausible]) in &all {
            let rig = Rig::new("mi300x8");
            let mut expected = values(&rig.read(0).values);
            let of_sclk = |key: &Key| key.0 != "gpu.clock.speed" || key.1 == "graphics";
            expected.retain(|key, _| !(metrics.contains(&key.0) && of_sclk(key)));
            bad.put(&rig.at(0).join(file));
            let reading = rig.read(0);
            assert_eq!(reading.outcome, Outcome::Ok);
            assert_eq!(values(&reading.values), expected, "{file}");
            let cost = [reading.cost.failed, reading.cost.implausible];
            assert_eq!(cost, [*failed, *implausible], "{file}: {:#?}", reading.cost);
        }
    }
}

#[test]
fn more_than_all_of_it_is_no_percentage_and_no_memory() {
    let rig = Rig::new("mi300x8");
    fs::write(rig.at(0).join("gpu_busy_percent"), "101\n").unwrap();
    fs::write(rig.at(0).join("mem_info_vram_used"), "206141652993\n").unwrap();
    let reading = rig.read(0);
    let names: BTreeSet<_> = values(&reading.values).into_keys().map(|(name, _)| name).collect();
    assert!(!names.contains("gpu.utilization") && !names.contains("gpu.memory.usage"), "{names:?}");
    assert_eq!(reading.cost.implausible, 2);
}

#[test]
fn energy_is_read_of_known_revisions_of_the_drivers_table_only() {
    let rig = Rig::new("mi300x8");
    let joules = || values(&rig.read(0).values).get(&("gpu.energy", String::new())).copied();
    let file = rig.at(0).join("gpu_metrics");
    let table = amd::metrics(1234.5);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut table = table.clone();
        change(&mut table);
        fs::write(&file, table).unwrap();
        joules()
    };
    assert_eq!(with(&|_| {}), Some(1234.5));
    assert_eq!(with(&|table| table[3] = 8), Some(1234.5), "1.8 begins as 1.7");
    for revision in [0, 1, 2, 5, 9, 255] {
        assert_eq!(with(&|table| table[3] = revision), None, "1.{revision}");
    }
    assert_eq!(with(&|table| table[2] = 2), None, "of an APU");
    assert_eq!(with(&|table| table[24..32].fill(0xff)), None, "all ones");
    for length in [1, 3, 4, 25, 31, 2207] {
        assert_eq!(with(&|table| table.truncate(length)), None, "{length} bytes");
    }
    assert_eq!(with(&|table| table.extend([0; 4096])), None, "too long");
    // Where hwmon has the counter it is that.
    fs::write(&file, &table).unwrap();
    fs::write(rig.at(0).join("hwmon/hwmon0/energy1_input"), "7500000\n").unwrap();
    assert_eq!(joules(), Some(7.5));
}

#[test]
fn a_board_with_a_mean_of_its_power_only_has_that_as_its_power() {
    let rig = Rig::new("mi300x8");
    let hwmon = rig.at(0).join("hwmon/hwmon0");
    fs::rename(hwmon.join("power1_input"), hwmon.join("power1_average")).unwrap();
    let values = values(&rig.read(0).values);
    let watts = ["gpu.power", "gpu.power.average"].map(|name| values[&(name, String::new())]);
    assert_eq!(watts, [420.25, 420.25]);
}

#[test]
fn a_device_that_leaves_between_listing_and_reading_is_lost_and_the_others_are_not() {
    let rig = Rig::new("mi300x8");
    let mut opened = rig.open();
    fs::remove_dir_all(rig.at(2)).unwrap();
    let outcomes = opened.devices.iter_mut().map(|device| device.read(&[]).outcome);
    let lost: Vec<_> = outcomes.map(|outcome| matches!(outcome, Outcome::Lost(_))).collect();
    assert_eq!(lost, [false, false, true, false, false, false, false, false]);
    fs::remove_file(rig.at(3).join("driver")).unwrap();
    assert!(matches!(opened.devices[3].read(&[]).outcome, Outcome::Lost(_)), "unbound");
}

#[test]
fn a_device_of_which_no_file_can_be_read_is_failing() {
    let rig = Rig::new("mi300x8");
    let mut device = rig.device(0);
    assert_eq!(device.read(&[]).outcome, Outcome::Ok);
    for entry in fs::read_dir(rig.at(0)).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.path().is_file() && !["unique_id"].map(Into::into).contains(&name) {
            Bad::Error.put(&entry.path());
        }
    }
    fs::remove_dir_all(rig.at(0).join("hwmon")).unwrap();
    let reading = device.read(&[]);
    assert!(matches!(&reading.outcome, Outcome::Failing(why) if why.contains("directory")));
    assert_eq!(reading.values, []);
}

#[test]
fn the_drivers_absence_is_said_and_no_child_is_needed_to_know() {
    let folder = TempDir::new().unwrap();
    let amd = vendor("amd").unwrap();
    let paths = Paths::under(folder.path());
    assert!((amd.listed)(&paths).is_empty());
    let error = (amd.open)(&OpenOptions { library: Path::new(""), paths: &paths, off: &[] }).err();
    assert_eq!(error.unwrap().to_string(), "no device is bound to amdgpu");
}
