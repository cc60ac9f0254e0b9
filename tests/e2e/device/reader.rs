//! The NVIDIA reader against the fake driver library: real child process, real library calls.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends there; clippy knows test functions but not their helpers"
)]
#![expect(clippy::float_cmp, reason = "readings are exact: whole numbers and one division")]

pub(super) mod amd;
mod broken;
mod cost;
mod fields;
mod gpm;
mod health;
mod links;
mod mig;
mod mps;
pub(crate) mod rig;
pub(crate) mod truth;

use gpuwho_collect::Collector as _;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::device::DeviceState;
use rig::{Rig, alone, in_a_process_of_its_own};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// What a device still says when it cannot be read.
const STATUS_ONLY: [&str; 4] = ["gpu.info", "gpu.read.age", "gpu.status", "gpu.up"];
/// Added to a scenario: one device's memory reading never returns.
const HANG: &str = "[[failure]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ndevice = 5\nhang = true\n";
/// Added to a scenario: one device's memory reading ends the process.
const CRASH: &str =
    "[[failure]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ndevice = 5\ncrash = true\n";

#[test]
fn every_value_of_eight_devices_and_64_processes_is_exact() {
    let mut rig = Rig::new("h100x8");
    let before = rig.seconds();
    let mut read = rig.tick();
    let after = rig.seconds();
    assert_eq!(rig.reader.report().state, SourceState::Ready, "{:?}", rig.reader.report());
    for device in rig.scenario().devices() {
        let ranges =
            truth::counters(device, before).into_iter().zip(truth::counters(device, after));
        for ((name, dim, least), (_, _, most)) in ranges {
            let key = (name.to_owned(), device.index, 0, dim.to_owned());
            let read = read.remove(&key).unwrap();
            let close = (least - 1e-6..=most + 1e-6).contains(&read);
            assert!(close, "{name} {dim}: {least} <= {read} <= {most}");
        }
        let age =
            read.remove(&("gpu.read.age".to_owned(), device.index, 0, String::new())).unwrap();
        assert!((0.0..after - before).contains(&age), "{age}");
    }
    let expected = truth::of(&rig.scenario(), |device, slot| rig.pid(device, slot));
    let missing: Vec<_> = expected.iter().filter(|(key, _)| !read.contains_key(*key)).collect();
    assert!(missing.is_empty(), "missing: {missing:#?}");
    assert_eq!(read, expected);
}

#[test]
fn readings_are_in_base_units() {
    let mut rig = Rig::new("h100x8");
    let read = rig.tick();
    let value = |name: &str, dim: &str| read[&(name.to_owned(), 3, 0, dim.to_owned())];
    let seen = [
        value("gpu.power", ""),
        value("gpu.power.limit", "enforced"),
        value("gpu.clock.speed", "memory"),
        value("gpu.utilization", "general"),
        value("gpu.memory.limit", ""),
        value("gpu.temperature", "memory"),
    ];
    assert_eq!(seen, [426.25, 680.0, 2.619e9, 0.68, 85_520_809_984.0, 56.0]);
}

#[test]
fn identity_is_the_drivers() {
    let mut rig = Rig::new("a10x1");
    rig.tick();
    let (_, info) = rig.inventory.all().remove(0);
    assert_eq!(info.uuid.as_str(), "GPU-9a1b7c44-2d3e-4f50-8a61-000000000000");
    assert_eq!(info.model.as_deref(), Some("NVIDIA A10"));
    assert_eq!(info.pci_address.as_deref(), Some("00000000:3b:00.0"));
    assert_eq!(info.serial.as_deref(), Some("1320721000000"));
    assert_eq!(info.driver_version.as_deref(), Some("550.163.01"));
    assert_eq!(info.cuda_version.as_deref(), Some("12.4"));
    assert_eq!((info.index, info.minor, info.mig), (0, Some(0), None));
}

#[test]
fn each_fan_of_a_board_is_read_and_how_many_there_are_is_asked_once() {
    let mut rig = Rig::new("rtx-pro-fans");
    rig.tick();
    let read = rig.tick();
    let fans = read.iter().filter(|((name, ..), _)| name == "gpu.fan.speed_ratio");
    let fans: Vec<_> = fans.map(|((.., fan), ratio)| (fan.as_str(), *ratio)).collect();
    assert_eq!(fans, [("0", 0.34), ("1", 0.57)]);
    assert_eq!((rig.calls("nvmlDeviceGetNumFans"), rig.calls("nvmlDeviceGetFanSpeed_v2")), (1, 4));
}

#[test]
fn a_device_that_did_not_tell_its_name_is_asked_again() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", &failing("nvmlDeviceGetUUID", 999));
    assert!(rig.tick().is_empty());
    rig.play("h100x8");
    rig.tick();
    assert_eq!(rig.inventory.all().len(), 8);
}

#[test]
fn a_pid_without_identity_is_left_out_and_counted() {
    let mut rig = Rig::new("h100x8");
    rig.write_pids(0, &[rig::NOBODY]);
    let read = rig.tick();
    let of_nobody = read.keys().filter(|(_, _, pid, _)| *pid == rig::NOBODY).count();
    assert_eq!(of_nobody, 0);
    assert_eq!(read[&("gpu.process.count".to_owned(), 0, 0, String::new())], 1.0);
    let reason = rig.reader.report().reason;
    assert!(reason.starts_with("1 processes are left out"), "{reason}");
}

#[test]
fn a_lost_device_keeps_its_status_only_and_comes_back() {
    let mut rig = Rig::new("h100x8");
    let before = rig.tick();
    rig.play("gpu-lost");
    let read = rig.tick();
    assert_eq!(names(&read, 3), BTreeSet::from(STATUS_ONLY.map(str::to_owned)));
    for device in [0, 1, 2, 4, 5, 6, 7] {
        assert_eq!(names(&read, device), names(&before, device), "device {device}");
    }
    assert_eq!(rig.state(3), DeviceState::Lost);
    let report = rig.reader.report();
    assert_eq!(report.state, SourceState::Degraded);
    assert!(report.reason.contains("device 3 is lost: device fell off the bus"), "{report:?}");
    rig.play("h100x8");
    let after = rig.tick();
    assert_eq!(names(&after, 3), names(&before, 3));
}

#[test]
fn a_slow_device_does_not_slow_the_others_and_its_late_answer_has_its_own_time() {
    let mut rig = Rig::hasty("h100x8");
    rig.tick();
    rig.play("slow-driver");
    let mut ages = Vec::new();
    for _ in 0..3 {
        let read = rig.tick();
        assert_eq!(names(&read, 2), BTreeSet::from(STATUS_ONLY.map(str::to_owned)));
        assert!((0..8).filter(|d| *d != 2).all(|d| names(&read, d).contains("gpu.power")));
        assert_eq!(rig.state(2), DeviceState::Hung);
        ages.push(read[&("gpu.read.age".to_owned(), 2, 0, String::new())]);
    }
    assert!(ages.is_sorted_by(|one, next| one < next), "{ages:?}");
    let late =
        rig.until(|batch, rig| rig.time_of(batch, "gpu.power", 2).map(|at| (at, batch.time)));
    let (read_at, sent_at) = late;
    assert!(read_at < sent_at, "read at {read_at:?}, sent at {sent_at:?}");
}

#[test]
fn a_device_that_hangs_for_ever_costs_its_own_series_only() {
    let mut rig = Rig::hasty("h100x8");
    let before = rig.tick();
    rig.play_with("h100x8", HANG);
    for _ in 0..3 {
        let read = rig.tick();
        assert_eq!(names(&read, 5), BTreeSet::from(STATUS_ONLY.map(str::to_owned)));
        assert_eq!(names(&read, 6), names(&before, 6));
    }
    assert_eq!(rig.reader.report().restarts, 0, "a hung child is not replaced");
    let child = rig.reader.control().snapshot().child.unwrap();
    let threads = fs::read_dir(format!("/proc/{child}/task")).unwrap().count();
    assert!(threads <= 4, "main, listener, worker and the stuck one, not {threads}");
    assert!(rig.reader.control().release(None), "a hung call kept the process");
    assert!(!holds_library(child));
}

#[test]
fn a_library_that_hangs_while_it_opens_is_reported_and_left_alone() {
    let mut rig = Rig::hasty("h100x8");
    rig.play_with("h100x8", "[[failure]]\ncall = \"nvmlInit_v2\"\nhang = true\n");
    rig.tick();
    // Half a minute, if each waited as the first does.
    let begun = Instant::now();
    (0..60).for_each(|_| drop(rig.tick()));
    assert!(begun.elapsed() < Duration::from_secs(10), "waited again: {:?}", begun.elapsed());
    let report = rig.reader.report();
    assert_eq!((report.state, report.restarts), (SourceState::Hung, 0), "{report:?}");
    assert!(rig.reader.control().release(None), "a hung call kept the process");
}

#[test]
fn no_second_child_is_started_beside_one_that_does_not_end() {
    let mut rig = Rig::hasty("h100x8");
    rig.tick();
    let control = rig.reader.control();
    let child = control.snapshot().child.unwrap();
    signal(child, "STOP");
    rig.tick();
    assert_eq!((rig.reader.report().state, rig.state(0)), (SourceState::Hung, DeviceState::Hung));
    assert!(!control.release(None), "a stopped process cannot let go");
    rig.tick();
    control.resume();
    rig.tick();
    let report = rig.reader.report();
    assert_eq!((report.state, report.restarts), (SourceState::Hung, 0));
    assert!(report.reason.contains(&child.to_string()), "{report:?}");
    signal(child, "CONT");
    rig.until(|_, rig| (rig.state(0) == DeviceState::Ok).then_some(()));
    assert_eq!(rig.reader.report().restarts, 1);
}

#[test]
fn a_crash_costs_one_tick_of_the_devices_behind_it() {
    let mut rig = Rig::new("h100x8");
    let before = rig.tick();
    rig.play_with("h100x8", CRASH);
    let crashed = rig.tick();
    assert_eq!(names(&crashed, 4), names(&before, 4), "read before the crash");
    assert_eq!(names(&crashed, 5), BTreeSet::from(STATUS_ONLY.map(str::to_owned)));
    let report = rig.reader.report();
    assert_eq!(report.state, SourceState::Failed);
    assert!(report.reason.contains("SIGABRT"), "{report:?}");
    rig.play("h100x8");
    assert_eq!(names(&rig.tick(), 5), names(&before, 5));
    let report = rig.reader.report();
    assert_eq!((report.state, report.restarts, report.errors), (SourceState::Ready, 2, 2));
}

#[test]
fn twenty_crashes_leak_no_file_descriptor() {
    if !alone() {
        in_a_process_of_its_own("device::reader::twenty_crashes_leak_no_file_descriptor");
        return;
    }
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", CRASH);
    rig.tick();
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    (0..10).for_each(|_| drop(rig.tick()));
    assert_eq!(rig.reader.report().restarts, 21, "two a tick, but for the first child");
    assert_eq!(open(), before);
}

#[test]
fn an_old_driver_sends_what_it_has() {
    let mut rig = Rig::new("old-driver");
    let read = rig.tick();
    assert_eq!(rig.reader.report().state, SourceState::Ready, "{:?}", rig.reader.report());
    let seen = names(&read, 1);
    for absent in
        ["gpu.memory.usage", "gpu.memory.limit", "gpu.process.count", "gpu.fan.speed_ratio"]
    {
        assert!(!seen.contains(absent), "{absent} in {seen:?}");
    }
    for present in ["gpu.utilization", "gpu.power", "gpu.energy", "gpu.temperature"] {
        assert!(seen.contains(present), "{present} not in {seen:?}");
    }
    let busy = read.keys().filter(|(name, ..)| name == "gpu.process.utilization").count();
    assert_eq!(busy, 2 * 2 * 4, "devices, processes and tasks");
}

#[test]
fn release_closes_everything_within_a_second_and_resume_opens_it() {
    let mut rig = Rig::new("h100x8");
    let before = rig.tick();
    let control = rig.reader.control();
    let child = control.snapshot().child.unwrap();
    assert!(holds_library(child));
    let begun = Instant::now();
    assert!(control.release(None));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!holds_library(child));
    let released = rig.tick();
    let quiet = ["gpu.info", "gpu.read.age", "gpu.status"];
    assert_eq!(
        names(&released, 0),
        BTreeSet::from(quiet.map(str::to_owned)),
        "neither up nor down"
    );
    assert_eq!(rig.state(0), DeviceState::Released);
    control.resume();
    assert_eq!(names(&rig.tick(), 0), names(&before, 0));
}

#[test]
fn a_release_for_a_time_ends_by_itself() {
    let mut rig = Rig::new("h100x8");
    rig.tick();
    rig.reader.control().release(Some(Duration::from_millis(50)));
    rig.tick();
    assert_eq!(rig.state(0), DeviceState::Released);
    rig.until(|_, rig| (rig.state(0) == DeviceState::Ok).then_some(()));
}

#[test]
fn a_driver_that_appears_is_used() {
    let mut rig = Rig::new("h100x8");
    let library = rig.remove_library();
    let read = rig.tick();
    assert!(read.is_empty(), "{read:?}");
    let report = rig.reader.report();
    assert_eq!(report.state, SourceState::Absent);
    assert_eq!(report.reason, format!("{} does not exist", library.display()));
    assert!(!report.remedy.is_empty());
    rig.install_library();
    rig.tick();
    assert_eq!(rig.reader.report().state, SourceState::Ready);
}

#[test]
fn a_driver_replaced_under_the_reader_is_a_state_and_then_used_anew() {
    let mut rig = Rig::new("h100x8");
    rig.tick();
    rig.play_with("h100x8", &failing("*", 18));
    rig.tick();
    assert!(rig.reader.report().reason.starts_with("the driver went away"));
    rig.play_with("h100x8", &failing("nvmlInit_v2", 18));
    rig.tick();
    let report = rig.reader.report();
    assert!(report.remedy.contains("reload the kernel driver"), "{report:?}");
    rig.play_with("h100x8", &failing("nvmlInit_v2", 9));
    rig.tick();
    assert_eq!(rig.reader.report().state, SourceState::Absent);
    assert_eq!(rig.state(0), DeviceState::NoDriver);
    rig.play("h100x8");
    rig.tick();
    assert_eq!((rig.reader.report().state, rig.state(0)), (SourceState::Ready, DeviceState::Ok));
}

#[test]
fn unsupported_is_asked_once_a_device() {
    let mut rig = Rig::new("h100x8");
    (0..3).for_each(|_| drop(rig.tick()));
    assert_eq!(rig.calls("nvmlDeviceGetFanSpeed_v2"), 8);
    assert_eq!(rig.calls("nvmlDeviceGetMemoryInfo_v2"), 24);
    assert_eq!(rig.calls("nvmlDeviceGetUUID"), 8);
    assert_eq!(rig.calls("nvmlInit_v2"), 1);
}

#[test]
fn each_sample_of_a_process_counts_once() {
    // Samples are taken at full seconds; the first reading looks back to second 100 only.
    let mut rig = Rig::at("h100x8", 100.5);
    let steps = "sm = { steps = [[0, 10], [100, 40], [101, 70], [102, 0]] }";
    rig.edit(|text| text.replace("sm = { first = 2, device = 1, slot = 1 }", steps));
    let key = ("gpu.process.utilization".to_owned(), 0, rig.pid(0, 0), "sm".to_owned());
    assert_eq!(rig.tick().get(&key), Some(&0.4));
    assert_eq!(rig.tick().get(&key), None, "no new sample, no value");
    let next = rig.until(|batch, rig| rig.values(batch).get(&key).copied());
    assert!((next - 0.7).abs() < 1e-9, "{next}");
}

/// Names of the metrics of a device and its processes in a reading, without the utilisation of
/// processes: ticks that follow each other at once find no new sample of it.
fn names(read: &rig::Values, device: u32) -> BTreeSet<String> {
    let of_device = read.keys().filter(|(_, index, _, _)| *index == device);
    let names = of_device.map(|(name, ..)| name.clone());
    names.filter(|name| name != "gpu.process.utilization").collect()
}

fn failing(call: &str, code: u32) -> String {
    format!("[[failure]]\ncall = \"{call}\"\ncode = {code}\n")
}

/// Sends a signal to a child of this test's reader.
fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Whether a process has the library mapped.
fn holds_library(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("libnvidia-ml.so.1")
}

/// Waits until a time of the driver's own is over.
fn wait_out(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        breathe();
    }
}

/// Gives other processes the machine between two looks.
fn breathe() {
    thread::sleep(Duration::from_millis(20));
}
