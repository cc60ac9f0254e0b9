//! Files that are not as they should be: a device that sleeps, leaves or does not answer, readings that
//! are none, tables of every kind.

use super::{Key, Rig, values};
use gpuwho_devices::wire::{Outcome, Reading};
use gpuwho_devices::{OpenOptions, vendor};
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_tests::amd::table::Table;
use gpuwho_tests::attacker::fuse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use tempfile::TempDir;

/// The driver has these ready; reading any other file wakes the device.
const ASLEEP: [&str; 8] = [
    "device",
    "driver",
    "hwmon",
    "power",
    "product_name",
    "serial_number",
    "unique_id",
    "vbios_version",
];

#[test]
fn a_suspended_device_is_not_woken() {
    for state in ["suspended", "suspending"] {
        let rig = Rig::new("mi300x8");
        fs::write(rig.at(0).join("power/runtime_status"), format!("{state}\n")).unwrap();
        for entry in fs::read_dir(rig.at(0)).unwrap().map(Result::unwrap) {
            if entry.path().is_file() && !ASLEEP.contains(&entry.file_name().to_str().unwrap()) {
                Bad::Error.put(&entry.path());
            }
        }
        let mut device = rig.device(0);
        let reading = device.read(&[]);
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
        assert_eq!(values(&reading.values), BTreeMap::from([(("gpu.info", String::new()), 1.0)]));
        let facts = |reading: &Reading| {
            reading.identity.as_ref().map(|info| info.facts.get(Fact::ComputePartition).is_some())
        };
        assert_eq!(facts(&reading), Some(false));
        assert_eq!(facts(&device.read(&[])), None, "told once");
        let file = rig.at(0).join("current_compute_partition");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "SPX\n").unwrap();
        fs::write(rig.at(0).join("power/runtime_status"), "active\n").unwrap();
        assert_eq!(facts(&device.read(&[])), Some(true), "what was not read while it slept");
    }
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
    /// A list of pages without a known state is one without pages.
    fn is_text(&self) -> bool {
        matches!(self, Self::Text(text) if !text.is_empty())
    }

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
            // Two boards: fewer files to make.
            let rig = Rig::new("mi300x2-cpx");
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
fn a_file_that_the_driver_refuses_as_busy_costs_that_reading_only() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    // On a thread of its own, which alone sees the mount.
    let on_its_own = || {
        let rig = Rig::new("mi300x8");
        let mut expected = values(&rig.read(0).values);
        let busy = rig.folder.path().join("busy");
        fs::create_dir(&busy).unwrap();
        fuse::refuse_reads(&busy).unwrap();
        let file = rig.at(0).join("gpu_busy_percent");
        fs::remove_file(&file).unwrap();
        symlink(busy.join("percent"), &file).unwrap();
        let errno = fs::read(&file).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::BUSY.raw_os_error()));
        let reading = rig.read(0);
        expected.remove(&("gpu.utilization", "general".to_owned()));
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 1), "{reading:#?}");
        assert_eq!(values(&reading.values), expected);
    };
    thread::spawn(on_its_own).join().unwrap();
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
    let file = rig.at(0).join("gpu_metrics");
    let read = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let reading = rig.read(0);
        let of = |name, dims: &str| values(&reading.values).get(&(name, dims.to_owned())).copied();
        let energy = of("gpu.energy", "");
        let revision = of("gpu.unknown_code", "metrics_table");
        (energy, revision, reading.cost.implausible)
    };
    let mut table = Table::mi300();
    table.energy(1234.5);
    let table = table.bytes().to_vec();
    assert_eq!(read(&table), (Some(1234.5), None, 0));
    let mut old = Table::mi210();
    old.energy(1234.5);
    assert_eq!(read(old.bytes()), (Some(1234.5), None, 0));
    let with = |at: usize, byte: u8| {
        let mut table = table.clone();
        table[at] = byte;
        table
    };
    for revision in [0, 1, 2, 3, 4, 5, 6, 8] {
        assert_eq!(read(&with(3, revision)), (None, None, 1), "1.{revision} has another length");
    }
    assert_eq!(read(&with(3, 255)), (None, Some(511.0), 0), "unknown");
    assert_eq!(read(&with(2, 9)), (None, Some(2311.0), 0), "unknown");
    let mut ones = table.clone();
    ones[24..32].fill(0xff);
    assert_eq!(read(&ones), (None, None, 0));
    ones[24..32].fill(0);
    assert_eq!(read(&ones), (None, None, 0), "a counter that stands still");
    for length in [1, 3, 4, 25, 31, 2207] {
        assert_eq!(read(&table[..length]), (None, None, 1), "{length} bytes");
    }
    assert_eq!(read(&[table.clone(), vec![0; 4096]].concat()), (None, None, 0), "too long");
    // Where hwmon has the counter it is that.
    fs::write(rig.at(0).join("hwmon/hwmon0/energy1_input"), "7500000\n").unwrap();
    assert_eq!(read(&table).0, Some(7.5));
}

#[test]
fn a_block_or_a_list_of_pages_that_cannot_be_read_takes_only_its_own_values() {
    let all = [
        ("ras/umc_err_count", ["gpu.ecc.errors", "gpu.ecc.block.errors"].as_slice()),
        ("ras/gpu_vram_bad_pages", &["gpu.memory.retired_pages"]),
        ("ras/features", &["gpu.ecc.enabled"]),
    ];
    for (file, gone) in all {
        for bad in [Bad::Text(""), Bad::Error, Bad::Endless, Bad::Text("\u{0}\u{1}\n")] {
            let rig = Rig::new("mi300x8");
            bad.put(&rig.at(0).join(file));
            let reading = rig.read(0);
            let names: BTreeSet<_> =
                values(&reading.values).into_keys().map(|(name, _)| name).collect();
            assert_eq!(reading.outcome, Outcome::Ok);
            for metric in ["gpu.ecc.errors", "gpu.memory.retired_pages", "gpu.ecc.enabled"] {
                let is_gone = gone.contains(&metric) && !(file.ends_with("pages") && bad.is_text());
                assert_eq!(names.contains(metric), !is_gone, "{file}: {metric}");
            }
        }
    }
}

#[test]
fn bits_of_throttle_reasons_of_a_table_of_mi210_are_reasons() {
    let rig = Rig::new("mi300x8");
    let mut table = Table::mi210();
    table.throttle_bits(1 << 1 | 1 << 34 | 1 << 61);
    fs::write(rig.at(0).join("gpu_metrics"), table.bytes()).unwrap();
    let values = values(&rig.read(0).values);
    let active = |reason: &str| values[&("gpu.throttle.active", reason.to_owned())];
    let reasons = ["power_cap", "memory_thermal", "other", "thermal", "current_limit"];
    assert_eq!(reasons.map(active), [1.0, 1.0, 1.0, 0.0, 0.0]);
    let unknown = values[&("gpu.unknown_code", "throttle_reasons".to_owned())];
    assert_eq!(unknown, (1_u64 << 61) as f64);
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
