//! The AMD reader on trees of MI300X: values, partitions, processes.

mod hostile;
mod processes;

use gpuwho_devices::wire::{Outcome, Reading, WireValue};
use gpuwho_devices::{DeviceRead, OpenLibrary, OpenOptions, vendor};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Value;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_tests::amd::{self, On, Tree, address};
use nvidia_ml::scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tempfile::TempDir;

/// The second of a scenario that the trees show.
const NOW: f64 = 100.0;
/// Metric and dimension.
pub(in crate::device) type Key = (&'static str, String);

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

pub(in crate::device) fn values(values: &[WireValue]) -> BTreeMap<Key, f64> {
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
        let all = truth(f64::from(index)).into_iter();
        let expected = all.map(|(name, dims, value)| ((name, dims.to_owned()), value)).collect();
        assert_eq!(values(&reading.values), expected, "device {index}");
        assert!(reader.read(&[]).identity.is_none(), "told once");
    }
}

/// Every value of a MI300X of the scenario without processes, by its number: metric, dimensions, value.
pub(in crate::device) fn truth(i: f64) -> Vec<(&'static str, &'static str, f64)> {
    let used = 34_359_738_368.0 + i * 1_073_741_824.0;
    let watts = 420.25 + i * 20.5;
    // The counter's step is 2^-16 J; the scenario's energy is of whole millijoules.
    let joules = (watts * NOW * 65536.0).round() / 65536.0;
    let load = [
        ("gpu.info", "", 1.0),
        ("gpu.utilization", "general", (20.0 + 7.0 * i) / 100.0),
        ("gpu.memory.bandwidth.utilization", "", (10.0 + 3.0 * i) / 100.0),
        ("gpu.memory.limit", "", 206_141_652_992.0),
        ("gpu.memory.usage", "used", used),
        ("gpu.memory.usage", "free", 206_141_652_992.0 - used),
        ("gpu.power", "", watts),
        ("gpu.clock.speed", "graphics", (1900.0 + 10.0 * i) * 1e6),
        ("gpu.clock.speed", "memory", 1300e6),
        ("gpu.temperature", "gpu", 51.0 + 2.0 * i),
        ("gpu.temperature", "hotspot", 51.0 + 2.0 * i),
        ("gpu.temperature", "memory", 44.0 + 2.0 * i),
        ("gpu.energy", "", joules),
        ("gpu.process.count", "", 0.0),
    ];
    load.into_iter().chain(board(i)).collect()
}

/// A board's links by number, and the times of its throttle reasons.
fn links_and_throttling(received: f64, sent: f64) -> Vec<(&'static str, &'static str, f64)> {
    let mut rows = Vec::new();
    for reason in
        ["hardware_slowdown", "power_cap", "thermal", "regulator_thermal", "memory_thermal"]
    {
        rows.push(("gpu.throttle.time", reason, 0.0));
    }
    for (link, both) in [
        ("0", ["0,receive", "0,transmit"]),
        ("1", ["1,receive", "1,transmit"]),
        ("2", ["2,receive", "2,transmit"]),
        ("3", ["3,receive", "3,transmit"]),
        ("4", ["4,receive", "4,transmit"]),
        ("5", ["5,receive", "5,transmit"]),
        ("6", ["6,receive", "6,transmit"]),
    ] {
        rows.push(("gpu.interconnect.link.active", link, 1.0));
        rows.push(("gpu.interconnect.link.speed", link, 64e9));
        rows.push(("gpu.interconnect.link.io", both[0], received));
        rows.push(("gpu.interconnect.link.io", both[1], sent));
    }
    rows
}

/// What a board of the scenario has beside its load, by its number.
fn board(i: f64) -> Vec<(&'static str, &'static str, f64)> {
    let (aperture, host) = (206_141_652_992.0, 1_081_835_950_080.0);
    let (used, held) = (2_097_152.0, 268_435_456.0);
    let [received, sent] = [2_048_000.0, 1_024_000.0].map(|rate| (rate + i * 102_400.0) * NOW);
    let corrected = 3.0 + i;
    let mut rows = vec![
        ("gpu.memory.aperture.limit", "", aperture),
        ("gpu.memory.aperture.usage", "used", used),
        ("gpu.memory.aperture.usage", "free", aperture - used),
        ("gpu.memory.host.limit", "", host),
        ("gpu.memory.host.usage", "used", held),
        ("gpu.memory.host.usage", "free", host - held),
        ("gpu.power.limit", "management", 750.0),
        ("gpu.power.limit", "default", 750.0),
        ("gpu.power.limit", "minimum", 0.0),
        ("gpu.power.limit", "maximum", 750.0),
        ("gpu.temperature.limit", "shutdown", 105.0),
        ("gpu.temperature.limit", "slowdown", 100.0),
        ("gpu.temperature.limit", "memory_operating", 110.0),
        ("gpu.clock.speed", "soc", 1.2e9),
        ("gpu.clock.speed", "video", 1.1e9),
        ("gpu.pcie.link.generation", "", 5.0),
        ("gpu.pcie.link.generation.limit", "", 5.0),
        ("gpu.pcie.link.width", "", 16.0),
        ("gpu.pcie.link.width.limit", "", 16.0),
        ("gpu.pcie.replays", "", 1.0 + i),
        ("gpu.pcie.errors", "recovery", 2.0),
        ("gpu.pcie.errors", "replay_rollover", 0.0),
        ("gpu.pcie.errors", "nak_sent", 3.0),
        ("gpu.pcie.errors", "nak_received", 4.0),
        ("gpu.ecc.enabled", "", 1.0),
        ("gpu.ecc.errors", "corrected,volatile", corrected + 1.0),
        ("gpu.ecc.errors", "uncorrected,volatile", 0.0),
        ("gpu.ecc.location.errors.volatile", "corrected,dram", corrected),
        ("gpu.ecc.location.errors.volatile", "uncorrected,dram", 0.0),
        ("gpu.ecc.block.errors", "corrected,umc", corrected),
        ("gpu.ecc.block.errors", "uncorrected,umc", 0.0),
        ("gpu.ecc.block.errors", "deferred,umc", 0.0),
        ("gpu.ecc.block.errors", "corrected,gfx", 1.0),
        ("gpu.ecc.block.errors", "uncorrected,gfx", 0.0),
        ("gpu.ecc.block.errors", "deferred,gfx", 0.0),
        ("gpu.memory.retired_pages", "uncorrected", 1.0 + i),
        ("gpu.memory.retirement.pending", "", 0.0),
        ("gpu.interconnect.links", "active", 7.0),
        ("gpu.interconnect.links", "inactive", 0.0),
        ("gpu.interconnect.links", "sleep", 0.0),
        ("gpu.interconnect.links", "disabled", 0.0),
        ("gpu.interconnect.io", "receive", received * 7.0),
        ("gpu.interconnect.io", "transmit", sent * 7.0),
    ];
    rows.extend(links_and_throttling(received, sent));
    rows
}

#[test]
fn a_fraction_of_the_firmwares_cycles_is_that_fraction_of_the_time() {
    let rig = Rig::new("mi300x8");
    let mut device = rig.device(0);
    let first = device.read(&[]);
    rig.tree.play(&rig.scenario, NOW + 10.0).unwrap();
    let second = device.read(&[]);
    let of = |read: &Reading, name: &'static str, reason: &str| {
        values(&read.values).get(&(name, reason.to_owned())).copied()
    };
    assert_eq!(of(&first, "gpu.throttle.active", "power_cap"), None, "nothing to compare with");
    assert_eq!(of(&second, "gpu.throttle.active", "power_cap"), Some(1.0));
    assert_eq!(of(&second, "gpu.throttle.active", "thermal"), Some(0.0));
    #[expect(clippy::cast_precision_loss, reason = "the time between two readings")]
    let passed = (second.asked_ns - first.asked_ns) as f64 / 1e9;
    let held = of(&second, "gpu.throttle.time", "power_cap").unwrap();
    assert!((held - passed * 0.25).abs() < 1e-9, "{held} of {passed}");
    // The firmware has started again: its counters are smaller.
    rig.tree.play(&rig.scenario, 3.0).unwrap();
    let third = device.read(&[]);
    assert_eq!(of(&third, "gpu.throttle.time", "power_cap"), Some(held));
    assert_eq!(of(&third, "gpu.throttle.active", "power_cap"), None);
}

#[test]
fn what_kfd_counts_of_a_process_is_its_occupancy_and_its_evicted_time() {
    let rig = Rig::new("mi300x8");
    let on = On { pid: 7, render: 129, bytes: 5 << 30 };
    rig.tree.compute(&on).unwrap();
    let of = |units| {
        rig.tree.statistics(&on, units, 1500).unwrap();
        let reading = rig.read(1);
        let values = reading.processes.iter().map(|on| key(&on.value));
        (values.collect::<BTreeMap<_, _>>(), reading.cost.implausible)
    };
    let memory = (("gpu.process.memory.usage", "compute".to_owned()), 5_368_709_120.0);
    let evicted = (("gpu.process.evicted.time", String::new()), 1.5);
    let occupied = (("gpu.process.occupancy", String::new()), 0.5);
    assert_eq!(of(152), ([memory.clone(), evicted.clone(), occupied].into(), 0));
    assert_eq!(of(305), ([memory, evicted].into(), 1), "more units than there are");
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
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to make device nodes");
        return;
    }
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
    let busy = values(&reading.instances[3].values)[&("gpu.instance.utilization", String::new())];
    assert_eq!(busy, 0.27);
    let facts = &reading.identity.as_ref().unwrap().facts;
    let modes = [Fact::ComputePartition, Fact::MemoryPartition].map(|fact| facts.get(fact));
    assert_eq!(modes, [Some("CPX"), Some("NPS1")]);
    let nodes = (vendor("amd").unwrap().nodes.partition_nodes)(&rig.paths());
    let opened = nodes.only_one_of(&["/dev/dri/renderD139".into()], &reading.identity.unwrap());
    assert_eq!(opened.map(|place| place.gpu_instance), Some(3));
}
