//! A driver that breaks: random crashes and nonsense, an unsupported reading, a passing error.

use super::rig::{Rig, Values};
use super::{failing, names};
use gpuwho_collect::Collector as _;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::device::DeviceState;
use std::fs;
use std::time::{Duration, Instant};

/// What a level of the scenario's devices can be at all.
fn is_possible((name, ..): &(String, u32, u32, String), value: f64) -> bool {
    match name.as_str() {
        "gpu.utilization" | "gpu.process.utilization" => (0.0..=2.0).contains(&value),
        "gpu.temperature" => (-273.0..=1000.0).contains(&value),
        "gpu.power" => (0.0..=1e6).contains(&value),
        _ => value.is_finite() && value >= 0.0,
    }
}

#[test]
fn sixteen_devices_of_a_driver_that_breaks_at_random_are_read_and_nonsense_is_left_out() {
    let mut rig = Rig::new("random-crashes");
    let (mut ticks, mut whole, mut worst) = (0, 0, 0);
    // Chance decides how often it breaks: once in five ticks, as a rule, so that three in sixty are
    // one case in twenty thousand.
    while ticks < 60 || (ticks < 200 && rig.reader.report().restarts <= 3) {
        // A tick in which the reader does not answer yet, because the machine is busy, asks nothing:
        // as many of them as one likes are over at once, and nothing has broken.
        let read = rig.tick_with_calls();
        ticks += 1;
        let wrong: Values = read
            .iter()
            .filter(|(k, v)| !is_possible(k, **v))
            .map(|(k, v)| (k.clone(), *v))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let up =
            read.iter().filter(|((name, ..), value)| name == "gpu.up" && **value == 1.0).count();
        whole += usize::from(up == 16);
        worst = worst.max(read.len());
    }
    let report = rig.reader.report();
    println!("{whole} of {ticks} ticks whole, {worst} values at most: {report:?}");
    assert!(report.restarts > 3 && report.errors > report.restarts, "{report:?}");
    assert!(whole * 2 > ticks, "{whole} ticks of {ticks} had all sixteen; {report:?}");
    assert!(worst > 16 * 20, "{worst}");
}

#[test]
fn an_unsupported_reading_is_asked_once_and_a_passing_error_disables_none() {
    let mut rig = Rig::new("h100x8");
    rig.tick();
    let passing = "\n[[failure]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ncode = 999\n";
    rig.play_with("h100x8", passing);
    (0..5).for_each(|_| drop(rig.tick()));
    let failed = rig.reader.report().errors;
    rig.play("h100x8");
    let read = rig.tick();
    assert_eq!(read.keys().filter(|(name, ..)| name == "gpu.memory.limit").count(), 8);
    (0..20).for_each(|_| drop(rig.tick()));
    assert_eq!(failed, 5 * 8);
    assert_eq!(rig.calls("nvmlDeviceGetFanSpeed_v2"), 8, "not supported: once a device");
    assert_eq!(rig.calls("nvmlDeviceGetMemoryInfo_v2"), 27 * 8, "failed: at each tick");
    assert_eq!((0..8).filter(|device| rig.state(*device) == DeviceState::Ok).count(), 8);
}

#[test]
fn a_hang_that_passes_is_read_again_by_the_same_reader() {
    let mut rig = Rig::hasty("h100x8");
    rig.until(|_, rig| (rig.reader.report().state == SourceState::Ready).then_some(()));
    let until = rig.seconds() + 3.0;
    let hang = "call = \"nvmlDeviceGetMemoryInfo_v2\"\ndevice = 5\nhang = true";
    rig.play_with("h100x8", &format!("[[failure]]\n{hang}\nuntil = {until}\n"));
    // A busy machine may be late with the others too, for a tick.
    rig.until(|_, rig| {
        let reason = rig.reader.report().reason;
        reason.contains("nvmlDeviceGetMemoryInfo_v2 has not returned").then_some(())
    });
    assert_eq!(rig.state(5), DeviceState::Hung);
    rig.until(|_, rig| (rig.state(5) == DeviceState::Ok).then_some(()));
    assert!(rig.seconds() >= until);
    assert_eq!(rig.reader.report().restarts, 0);
}

#[test]
fn one_device_for_which_the_driver_is_gone_costs_one_loading_anew_and_no_other_device() {
    let mut rig = Rig::new("h100x8");
    let well = rig.tick();
    let gone = "\n[[failure]]\ncall = \"*\"\ndevice = 3\ncode = 1\n";
    for round in 1..=2 {
        rig.play_with("h100x8", gone);
        for _ in 0..4 {
            let read = rig.tick();
            let others = (0..8).filter(|device| *device != 3);
            others.for_each(|device| assert_eq!(names(&read, device), names(&well, device)));
            assert_eq!(rig.state(3), DeviceState::Lost);
        }
        let report = rig.reader.report();
        assert_eq!((report.state, report.restarts), (SourceState::Degraded, round));
        rig.play("h100x8");
        assert_eq!(names(&rig.tick(), 3), names(&well, 3));
        assert_eq!(rig.reader.report().state, SourceState::Ready);
    }
}

#[test]
fn a_device_added_to_the_kernel_drivers_list_makes_the_library_look_again() {
    let mut rig = Rig::new("h100x8");
    let gpus = rig.proc().join("driver/nvidia/gpus");
    fs::create_dir_all(gpus.join("0000:10:00.0")).unwrap();
    rig.tick();
    assert_eq!(rig.calls("nvmlInit_v2"), 1);
    fs::create_dir(gpus.join("0000:18:00.0")).unwrap();
    let read = rig.tick();
    assert_eq!(rig.calls("nvmlInit_v2"), 2);
    assert_eq!(read.keys().filter(|(name, ..)| name == "gpu.memory.limit").count(), 8, "no gap");
    rig.tick();
    assert_eq!((rig.calls("nvmlInit_v2"), rig.reader.report().errors), (2, 0));
}

#[test]
fn failed_is_counted_and_asked_again() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", &failing("nvmlDeviceGetMemoryInfo_v2", 999));
    (0..3).for_each(|_| drop(rig.tick()));
    assert_eq!((rig.calls("nvmlDeviceGetMemoryInfo_v2"), rig.reader.report().errors), (24, 24));
}

#[test]
fn a_driver_without_devices_is_absent() {
    let mut rig = Rig::new("empty");
    rig.tick();
    let report = rig.reader.report();
    let seen = (report.state, report.reason.as_str());
    assert_eq!(seen, (SourceState::Absent, "the driver lists no device"));
}

#[test]
fn a_driver_that_counts_more_devices_than_there_can_be_is_refused_and_asked_again() {
    let mut rig = Rig::new("h100x8");
    let nonsense = "\n[[failure]]\ncall = \"nvmlDeviceGetCount_v2\"\ngarbage = true\n";
    rig.play_with("h100x8", nonsense);
    drop(rig.tick());
    let report = rig.reader.report();
    assert_eq!(report.state, SourceState::Failed, "{report:?}");
    assert!(report.reason.ends_with(" devices, more than there can be"), "{report:?}");
    rig.play("h100x8");
    drop(rig.tick());
    assert_eq!((0..8).filter(|device| rig.state(*device) == DeviceState::Ok).count(), 8);
}

#[test]
fn the_call_that_hangs_is_told_and_not_one_that_was_only_late_before_it() {
    let mut rig = Rig::hasty("h100x8");
    rig.until(|_, rig| (rig.reader.report().state == SourceState::Ready).then_some(()));
    let failing =
        |call: &str, how: &str| format!("\n[[failure]]\ncall = \"{call}\"\ndevice = 5\n{how}\n");
    let late = failing("nvmlDeviceGetMigMode", "delay_ms = 300");
    let until = format!("hang = true\nuntil = {}", rig.seconds() + 60.0);
    rig.play_with("h100x8", &(late + &failing("nvmlDeviceGetMemoryInfo_v2", &until)));
    for late_or_hangs in ["nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo_v2"] {
        let said = format!("{late_or_hangs} has not returned");
        rig.until(|_, rig| rig.reader.report().reason.contains(&said).then_some(()));
    }
}

#[test]
fn what_was_not_told_of_a_device_at_first_is_asked_again() {
    let mut rig = Rig::new("h100x8");
    let passing = |call: &str| format!("\n[[failure]]\ncall = \"{call}\"\ncode = 999\n");
    let calls = ["nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial"];
    rig.play_with("h100x8", &calls.map(passing).concat());
    rig.tick();
    let known = |rig: &Rig| {
        let all = rig.inventory.all().into_iter();
        all.filter(|(_, info)| {
            info.pci_address.is_some() && info.minor.is_some() && info.serial.is_some()
        })
        .count()
    };
    assert_eq!((rig.inventory.all().len(), known(&rig)), (8, 0));
    rig.play("h100x8");
    rig.tick();
    assert_eq!(known(&rig), 8);
    let asked = rig.calls("nvmlDeviceGetPciInfo_v3");
    rig.tick();
    assert_eq!(rig.calls("nvmlDeviceGetPciInfo_v3"), asked, "once it is known");
}

#[test]
fn ticks_while_the_library_opens_late_are_over_at_once_and_ask_nothing() {
    let mut rig = Rig::hasty("h100x8");
    rig.play_with("h100x8", "\n[[failure]]\ncall = \"nvmlDeviceGetCount_v2\"\ndelay_ms = 6000\n");
    let begun = Instant::now();
    (0..60).for_each(|_| drop(rig.tick()));
    let calls = rig.reader.control().snapshot().calls;
    assert!(begun.elapsed() < Duration::from_secs(5), "the first waits for half a second");
    assert_eq!((calls, rig.reader.report().state), (0, SourceState::Hung));
    rig.tick_with_calls();
    assert_eq!(rig.reader.report().restarts, 0);
}

#[test]
fn a_library_that_cannot_be_loaded_is_no_missing_driver() {
    let mut rig = Rig::new("h100x8");
    let library = rig.remove_library();
    fs::write(&library, "no library").unwrap();
    rig.tick();
    let report = rig.reader.report();
    assert_eq!(report.state, SourceState::Failed, "{report:?}");
    assert!(report.remedy.starts_with("install the library that is named"), "{report:?}");
    fs::remove_file(&library).unwrap();
    rig.install_library();
    rig.until(|_, rig| (rig.reader.report().state == SourceState::Ready).then_some(()));
}
