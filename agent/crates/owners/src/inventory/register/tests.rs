use super::*;
use crate::inventory::facts::Facts;
use std::fs;
use std::path::Path;

const THEN: SystemTime = UNIX_EPOCH;

fn at(seconds: u64) -> SystemTime {
    THEN + Duration::from_secs(seconds)
}

fn device(uuid: &str, pci: &str) -> GpuInfo {
    GpuInfo {
        uuid: GpuUuid::new(uuid),
        placed: None,
        vendor: "nvidia".into(),
        index: 3,
        minor: Some(3),
        nodes: vec!["nvidia3".to_owned()],
        model: Some("NVIDIA H100 80GB HBM3".into()),
        pci_address: Some(pci.into()),
        serial: Some("1650323000003".into()),
        driver_version: Some("580.95.05".into()),
        cuda_version: None,
        mig: None,
        facts: Facts::default(),
    }
}

fn known(uuid: &str, pci: &str, last_seen: u64) -> KnownDevice {
    let info = device(uuid, pci);
    KnownDevice {
        uuid: info.uuid,
        vendor: info.vendor,
        index: info.index,
        model: info.model,
        pci_address: info.pci_address,
        serial: info.serial,
        last_seen,
        replaced_by: None,
        best_link: [None; 2],
    }
}

/// The devices that the next agent knows.
fn next(folder: &Path) -> Vec<KnownDevice> {
    DeviceStore::read_only(folder).known("nvidia")
}

#[test]
fn a_device_is_known_to_the_next_agent_with_when_it_last_answered() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("made/anew");
    let register = DeviceStore::open(&state);
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    register.save(Instant::now());
    register.seen(&GpuUuid::new("GPU-1"), at(160));
    drop(register);
    assert_eq!(next(&state), [known("GPU-1", "00000000:13:00.0", 160)]);
}

#[test]
fn the_best_link_of_a_slot_is_kept_until_it_is_forgotten_or_another_board_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let link = |lanes, generation| [Some(lanes), Some(generation)];
    let uuid = GpuUuid::new("GPU-1");
    let at_13 = device("GPU-1", "00000000:13:00.0");
    let register = DeviceStore::open(folder.path());
    register.identified(&at_13, at(100));
    for seen in [link(8, 5), link(16, 1), link(4, 4)] {
        register.linked(&uuid, seen);
    }
    register.identified(&at_13, at(200));
    drop(register);
    let register = DeviceStore::open(folder.path());
    assert_eq!(register.best_link(&uuid), link(16, 5), "after a restart");
    assert!(register.forget_link("GPU-1") && !register.forget_link("GPU-2"));
    assert_eq!(register.best_link(&uuid), [None; 2]);
    for other in [
        GpuInfo { serial: Some("another".into()), ..at_13.clone() },
        device("GPU-1", "00000000:14:00.0"),
    ] {
        register.identified(&at_13, at(300));
        register.linked(&uuid, link(16, 5));
        register.identified(&other, at(400));
        assert_eq!(register.best_link(&uuid), [None; 2], "{other:?}");
    }
}

#[test]
fn an_identity_does_not_change_with_what_could_be_read() {
    let with = |uuid: &str, serial: Option<&str>| GpuInfo {
        placed: Some(GpuUuid::new("TT-0000:04:00.0")),
        serial: serial.map(str::to_owned),
        ..device(uuid, "0000:04:00.0")
    };
    let (own, placed) = ("TT-00112233", "TT-0000:04:00.0");
    // Seen with and without telemetry, in either order: what it was first is what it is.
    for (first, later, expected) in [
        (with(own, Some("a")), with(placed, None), own),
        (with(placed, None), with(own, Some("a")), placed),
        // Another board in the slot.
        (with(own, Some("a")), with("TT-99", Some("b")), "TT-99"),
        (with(placed, Some("a")), with(own, Some("b")), own),
    ] {
        let register = DeviceStore::default();
        for info in [&first, &later] {
            let info = register.same(info.clone());
            register.identified(&info, at(100));
        }
        let again = register.same(later.clone());
        assert_eq!(again.uuid.as_str(), expected, "{first:?} {later:?}");
        let present = register.known("nvidia").into_iter().filter(|one| one.replaced_by.is_none());
        assert_eq!(present.count(), 1, "{first:?} {later:?}");
    }
}

#[test]
fn an_unreadable_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE);
    let endless = " ".repeat(usize::try_from(MAX_FILE_LEN).unwrap() + 1);
    for text in ["{\"version\":1,\"devices\":[{\"uu", "{\"version\":2,\"devices\":[]}", &endless] {
        fs::write(&file, text).unwrap();
        let register = DeviceStore::open(folder.path());
        assert_eq!(register.known("nvidia"), []);
        register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
        drop(register);
        assert_eq!(next(folder.path()), [known("GPU-1", "00000000:13:00.0", 100)]);
    }
}

#[test]
fn a_removed_device_stays_removed() {
    let folder = tempfile::tempdir().unwrap();
    let register = DeviceStore::open(folder.path());
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    let before = register.generation();
    assert_eq!(register.remove("GPU-1"), Some(known("GPU-1", "00000000:13:00.0", 100)));
    assert_eq!(register.remove("GPU-1"), None);
    assert_ne!(register.generation(), before);
    drop(register);
    assert_eq!(next(folder.path()), []);
}

#[test]
fn another_device_at_the_same_address_replaces_it_for_a_day() {
    let register = DeviceStore::default();
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    register.identified(&device("GPU-2", "0000:13:00.0"), at(200));
    let replaced_by = Some(GpuUuid::new("GPU-2"));
    let old = KnownDevice { replaced_by, ..known("GPU-1", "00000000:13:00.0", 100) };
    let new = known("GPU-2", "0000:13:00.0", 200);
    assert_eq!(register.known("nvidia"), [old, new]);
    register.identified(&device("GPU-2", "0000:13:00.0"), at(90_000));
    assert!(!register.knows(&GpuUuid::new("GPU-1")));
}

#[test]
fn a_device_that_moved_is_one_device_and_replaces_no_other() {
    let register = DeviceStore::default();
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    register.identified(&device("GPU-1", "00000000:14:00.0"), at(200));
    assert_eq!(register.known("nvidia"), [known("GPU-1", "00000000:14:00.0", 200)]);
}

#[test]
fn a_replaced_device_that_returns_elsewhere_is_present_again() {
    let register = DeviceStore::default();
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    register.identified(&device("GPU-2", "00000000:13:00.0"), at(200));
    register.identified(&device("GPU-1", "00000000:14:00.0"), at(300));
    let replaced = register.known("nvidia").into_iter().filter(|one| one.replaced_by.is_some());
    assert_eq!(replaced.count(), 0);
}

#[test]
fn the_device_seen_longest_ago_is_removed_when_there_are_too_many() {
    let register = DeviceStore::default();
    for number in 0..=MAX_DEVICES {
        let info = GpuInfo { pci_address: None, ..device(&format!("GPU-{number}"), "") };
        register.identified(&info, at(1000 + number as u64));
    }
    let (removed, stored) = (GpuUuid::new("GPU-0"), GpuUuid::new("GPU-1"));
    assert!(!register.knows(&removed) && register.knows(&stored));
    assert_eq!(register.known("nvidia").len(), MAX_DEVICES);
}

#[test]
fn an_unwritable_folder_costs_only_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let register = DeviceStore::open(&folder.path().join("file/below"));
    register.identified(&device("GPU-1", "00000000:13:00.0"), at(100));
    register.save(Instant::now());
    assert!(register.knows(&GpuUuid::new("GPU-1")));
}
