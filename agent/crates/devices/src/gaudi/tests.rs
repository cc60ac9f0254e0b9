use super::VENDOR;
use crate::sysfs::fake::{Tree, expected, values};
use crate::wire::Outcome;
use crate::{OpenLibrary, OpenOptions};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const ADDRESS: &str = "0000:19:00.0";

fn gaudi3(tree: &Tree) -> String {
    let folder = tree.pci(ADDRESS, "habanalabs");
    tree.put_all(
        &folder,
        &[
            ("status", "Operational"),
            ("device_type", "GAUDI3"),
            ("module_id", "5"),
            ("clk_cur_freq_mhz", "1600"),
            ("clk_max_freq_mhz", "1650"),
            ("max_power", "850000"),
            ("accel/accel3/dev", "261:3"),
        ],
    );
    folder
}

/// With a script as `hl-smi`.
fn open(tree: &Tree, body: &str) -> OpenLibrary {
    let program = tree.at("hl-smi");
    fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let paths = tree.paths();
    let opening = OpenOptions { library: &program, paths: &paths, off: &[] };
    (VENDOR.open)(&opening).map_err(|error| error.to_string()).unwrap()
}

const FILES: &[(&str, f64)] = &[
    ("gpu.clock.speed{graphics}", 1.6e9),
    ("gpu.clock.limit{graphics}", 1.65e9),
    ("gpu.power.limit{management}", 850.0),
];

#[test]
fn without_library_and_program_the_files_are_read_and_what_is_missing_is_said() {
    let tree = Tree::new();
    gaudi3(&tree);
    let reading = &tree.read(&VENDOR)[0];
    assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
    assert_eq!(values(&reading.values), expected(FILES));
    assert!(reading.note.contains("install libhlml.so or hl-smi"), "{}", reading.note);
    let info = reading.identity.as_ref().unwrap();
    assert_eq!(info.uuid.as_str(), "GAUDI-0000:19:00.0");
    assert_eq!(info.nodes, ["accel/accel3", "261:3"]);
    assert_eq!(info.model.as_deref(), Some("Intel Gaudi GAUDI3"));
}

#[test]
fn a_program_that_fails_costs_its_values_only() {
    let tree = Tree::new();
    gaudi3(&tree);
    let reading = open(&tree, "exit 1").devices[0].read(&[]);
    assert_eq!(reading.outcome, Outcome::Ok);
    assert_eq!(values(&reading.values), expected(FILES));
    assert!(!reading.note.is_empty());
}

#[test]
fn the_drivers_status_decides_whether_a_device_is_lost_or_failing() {
    let tree = Tree::new();
    let folder = gaudi3(&tree);
    let mut device = tree.open(&VENDOR).devices.remove(0);
    for (status, is_lost) in [("Needs reset", true), ("Malfunction", true), ("In reset", false)] {
        tree.put(&format!("{folder}/status"), status);
        let reading = device.read(&[]);
        let (Outcome::Lost(why) | Outcome::Failing(why)) = &reading.outcome else {
            panic!("{reading:#?}")
        };
        assert_eq!(matches!(reading.outcome, Outcome::Lost(_)), is_lost, "{status}");
        assert!(why.contains(status), "{why}");
        assert_eq!(reading.values, []);
    }
    for status in ["In reset after device release", "Operational"] {
        tree.put(&format!("{folder}/status"), status);
        assert_eq!(device.read(&[]).outcome, Outcome::Ok, "{status}");
    }
}

#[test]
fn a_device_that_is_unbound_is_lost() {
    let tree = Tree::new();
    let folder = gaudi3(&tree);
    let mut device = tree.open(&VENDOR).devices.remove(0);
    fs::remove_file(tree.at(&format!("{folder}/driver"))).unwrap();
    assert!(matches!(device.read(&[]).outcome, Outcome::Lost(why) if why.contains(ADDRESS)));
}

#[test]
fn a_library_that_is_none_is_refused() {
    let tree = Tree::new();
    gaudi3(&tree);
    let library = tree.at("libhlml.so");
    fs::write(&library, "no ELF").unwrap();
    let paths = tree.paths();
    let opening = OpenOptions { library: &library, paths: &paths, off: &[] };
    let error = (VENDOR.open)(&opening).err().unwrap();
    assert_eq!(error.refusal, crate::OpenErrorKind::Unloadable);
}
