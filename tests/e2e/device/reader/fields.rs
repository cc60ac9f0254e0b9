//! The batched fields: both numberings, what is unsupported, what fails, what is asked seldom.

use super::rig::{Rig, Values};
use super::{DeviceState, truth};
use gpuwho_collect::Collector as _;

/// A value of a device.
fn of(read: &Values, device: u32, name: &str, dim: &str) -> Option<f64> {
    read.get(&(name.to_owned(), device, 0, dim.to_owned())).copied()
}

/// Added to a scenario: a field of a number fails.
fn failing(field: u32, code: u32) -> String {
    format!("[[failure]]\ncall = \"nvmlDeviceGetFieldValues\"\nfield = {field}\ncode = {code}\n")
}

#[test]
fn time_held_down_is_right_in_both_numberings_of_the_fields() {
    let drivers = ["575.57.08", "580.65.06", "580.82.07", "580.95.05", "590.44.01"];
    for driver in drivers {
        let mut rig = Rig::new("h100x8");
        if driver != "580.95.05" {
            rig.edit(|text| text.replace("580.95.05", driver));
        }
        let before = rig.seconds();
        let read = rig.tick();
        let after = rig.seconds();
        let scenario = rig.scenario();
        let device = scenario.device(2).unwrap();
        let ranges =
            truth::counters(device, before).into_iter().zip(truth::counters(device, after));
        for ((name, dim, least), (_, _, most)) in ranges {
            let read = of(&read, 2, name, dim).unwrap();
            let close = (least - 1e-6..=most + 1e-6).contains(&read);
            assert!(close, "{driver}: {name} {dim}: {least} <= {read} <= {most}");
        }
    }
}

#[test]
fn without_the_drivers_version_no_field_of_two_meanings_is_read() {
    let mut rig = Rig::new("h100x8");
    rig.edit(|text| text.replace("580.95.05", "unreleased"));
    let read = rig.tick();
    assert_eq!(of(&read, 2, "gpu.throttle.time", "hardware_thermal"), None);
    assert_eq!(of(&read, 2, "gpu.power", ""), Some(401.0));
    assert!(of(&read, 2, "gpu.throttle.time", "power_cap").is_some(), "74 has one meaning");
}

#[test]
fn a_field_that_is_not_supported_is_asked_once_and_the_older_call_tells() {
    for code in [2, 3] {
        let mut rig = Rig::new("h100x8");
        rig.play_with("h100x8", &failing(186, code));
        for _ in 0..3 {
            assert_eq!(of(&rig.tick(), 2, "gpu.power", ""), Some(401.0));
        }
        assert_eq!((rig.calls("field 186"), rig.calls("field 82")), (2 * 8, 3 * 8), "{code}");
        assert_eq!(rig.calls("nvmlDeviceGetPowerUsage"), 3 * 8);
        assert_eq!(rig.reader.report().errors, 0);
    }
}

#[test]
fn a_field_that_fails_is_missing_and_counted_and_asked_again() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", &failing(186, 999));
    for tick in 1..=3 {
        let read = rig.tick();
        assert_eq!(of(&read, 2, "gpu.power", ""), None);
        assert!(of(&read, 2, "gpu.energy", "").is_some(), "its neighbour is read");
        assert_eq!(rig.reader.report().errors, 2 * 8 * tick, "device and module");
    }
    rig.play("h100x8");
    assert_eq!(of(&rig.tick(), 2, "gpu.power", ""), Some(401.0));
    assert_eq!(rig.calls("nvmlDeviceGetPowerUsage"), 0);
}

#[test]
fn a_device_that_one_field_calls_lost_is_lost() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", &(failing(186, 15) + "device = 2\n"));
    let read = rig.tick();
    assert_eq!((rig.state(2), rig.state(3)), (DeviceState::Lost, DeviceState::Ok));
    assert_eq!(of(&read, 2, "gpu.energy", ""), None);
}

#[test]
fn one_call_a_tick_reads_all_fields_and_limits_are_asked_seldom() {
    let mut rig = Rig::new("h100x8");
    let limits = |rig: &Rig| rig.calls("field 192") + rig.calls("nvmlDeviceGetMaxClockInfo");
    let first = rig.tick();
    assert_eq!(limits(&rig), 8 + 4 * 8);
    rig.edit(|text| text.replace("power_limit = 700", "power_limit = 650"));
    for _ in 0..2 {
        let read = rig.tick();
        for (name, dim) in [("gpu.power.limit", "management"), ("gpu.clock.limit", "sm")] {
            assert_eq!(of(&read, 2, name, dim), of(&first, 2, name, dim), "said again");
        }
    }
    assert_eq!(limits(&rig), 8 + 4 * 8);
    for _ in 3..31 {
        rig.tick();
    }
    let read = rig.tick();
    assert_eq!(of(&read, 2, "gpu.power.limit", "management"), Some(650.0));
    assert_eq!(limits(&rig), 2 * 8 + 4 * 8, "clocks are asked once");
    assert_eq!(rig.calls("nvmlDeviceGetFieldValues"), 32 * 8);
}
