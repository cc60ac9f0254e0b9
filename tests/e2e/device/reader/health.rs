//! What wears out and what holds the clocks down, as it comes and goes; values that cannot be true.

use super::rig::{Rig, Values};
use super::{names, truth};
use gpuwho_collect::Collector as _;
use gpuwho_model::catalog::agent::DropReason;

/// A value of a device.
fn of(read: &Values, device: u32, name: &str, dim: &str) -> Option<f64> {
    read.get(&(name.to_owned(), device, 0, dim.to_owned())).copied()
}

#[test]
fn an_ecc_storm_is_counted_as_it_goes_on_and_ends_with_the_reset() {
    // Before, while a row waits for the reset, and after.
    for (seconds, uncorrected, pending, remapped) in
        [(5.0, 0.0, 0.0, [0.0, 0.0]), (45.0, 2.0, 1.0, [2.0, 0.0]), (75.0, 2.0, 0.0, [2.0, 1.0])]
    {
        let mut rig = Rig::at("ecc-storm", seconds);
        let before = rig.seconds();
        let read = rig.tick();
        let after = rig.seconds();
        let volatile = |error: &str| of(&read, 3, "gpu.ecc.errors", &format!("{error},volatile"));
        let at = |seconds: f64| (80.0 * seconds).min(4800.0) + 5.0;
        let corrected = volatile("corrected").unwrap();
        assert!((at(before).floor()..=at(after)).contains(&corrected), "{seconds}: {corrected}");
        let dram = |error: &str| {
            of(&read, 3, "gpu.ecc.location.errors.volatile", &format!("{error},dram"))
        };
        assert_eq!(dram("uncorrected"), Some(uncorrected), "{seconds}");
        // 12 errors of this memory were corrected before the driver was loaded.
        let aggregate = of(&read, 3, "gpu.ecc.location.errors.aggregate", "corrected,dram");
        assert_eq!(aggregate, dram("corrected").map(|errors| errors + 12.0));
        assert_eq!(of(&read, 3, "gpu.memory.remap.pending", ""), Some(pending), "{seconds}");
        let rows = ["corrected", "uncorrected"];
        let rows = rows.map(|cause| of(&read, 3, "gpu.memory.remapped_rows", cause).unwrap());
        assert_eq!(rows, remapped, "{seconds}");
    }
}

#[test]
fn memories_of_a_device_before_turing_are_told_apart() {
    let mut rig = Rig::new("old-driver");
    let read = rig.tick();
    let expected = truth::health::at(rig.scenario().device(1).unwrap(), 0.0);
    for (name, dim, value) in expected {
        assert_eq!(of(&read, 1, name, &dim), Some(value), "{name} {dim}");
    }
    assert_eq!(
        of(&read, 1, "gpu.ecc.location.errors.aggregate", "uncorrected,barrier"),
        Some(121.0)
    );
    assert_eq!(of(&read, 1, "gpu.memory.retired_pages", "corrected"), Some(6.0));
}

#[test]
fn a_driver_without_fields_is_asked_call_by_call() {
    let without = "[[failure]]\ncall = \"nvmlDeviceGetFieldValues\"\ncode = 13\n";
    let mut rig = Rig::new("h100x8");
    let before = rig.seconds();
    rig.play_with("h100x8", without);
    let read = rig.tick();
    let after = rig.seconds();
    let scenario = rig.scenario();
    let device = scenario.device(3).unwrap();
    let has = |name: &str, dim: &str| of(&read, 3, name, dim).is_some();
    for (name, dim, value) in truth::health::at(device, 0.0) {
        // What only fields tell.
        let only = ["gpu.ecc.errors", "gpu.pcie.errors", "gpu.temperature.margin.limit"];
        let reported = !only.contains(&name) && !dim.ends_with("dram");
        assert_eq!(of(&read, 3, name, &dim), reported.then_some(value), "{name} {dim}");
    }
    let ranges = truth::counters(device, before).into_iter().zip(truth::counters(device, after));
    for ((name, dim, least), (_, _, most)) in ranges {
        let only = ["software_thermal", "hardware_thermal", "power_brake", "transmit", "receive"];
        if only.contains(&dim) {
            assert!(!has(name, dim), "{name} {dim}");
            continue;
        }
        let read = of(&read, 3, name, dim).unwrap();
        assert!((least - 1e-6..=most + 1e-6).contains(&read), "{name} {dim}: {read}");
    }
    assert_eq!(of(&read, 3, "gpu.power", ""), Some(426.25));
    assert_eq!(of(&read, 3, "gpu.power.limit", "enforced"), Some(680.0));
    rig.tick();
    assert_eq!(rig.calls("nvmlDeviceGetFieldValues"), 8, "a missing function is asked for once");
}

#[test]
fn power_now_and_its_mean_are_two_readings() {
    let mut rig = Rig::at("a10x1", 7.0);
    rig.edit(|text| text.replace("power = {", "module_power = 555.5\npower = {"));
    let before = rig.seconds();
    let read = rig.tick();
    let after = rig.seconds();
    let scenario = rig.scenario();
    let device = scenario.device(0).unwrap();
    let power = device.group.power.as_ref().unwrap();
    let value = |name: &str| of(&read, 0, name, "").unwrap();
    // The wave rises for fifteen seconds; a second's mean is half a second behind it.
    let now = device.value(power, before) - 1e-3..=device.value(power, after) + 1e-3;
    let mean = device.average(power, before) - 1e-3..=device.average(power, after) + 1e-3;
    assert!(now.contains(&value("gpu.power")), "{now:?}: {}", value("gpu.power"));
    assert!(mean.contains(&value("gpu.power.average")), "{mean:?}");
    assert_eq!(value("gpu.module.power"), 555.5);
}

#[test]
fn a_counter_of_bytes_that_wraps_is_not_read() {
    let mut rig = Rig::new("h100x8");
    assert!(names(&rig.tick(), 3).contains("gpu.pcie.io"));
    let mut rig = Rig::new("h100x8");
    rig.edit(|text| text.replace("[device.pcie]\n", "[device.pcie]\nnarrow = true\n"));
    assert!(!names(&rig.tick(), 3).contains("gpu.pcie.io"));
}

#[test]
fn a_device_that_does_not_tell_what_it_can_be_held_by_says_what_it_is_held_by() {
    let mut rig = Rig::new("h100x8");
    let unknown = "[[failure]]\ncall = \"nvmlDeviceGetSupportedClocksEventReasons\"\ncode = 3\n";
    rig.play_with("h100x8", unknown);
    let read = rig.tick();
    let active = |reason: &str| of(&read, 3, "gpu.throttle.active", reason);
    assert_eq!((active("hardware_slowdown"), active("sync_boost")), (Some(1.0), None));
}

#[test]
fn what_cannot_be_true_is_left_out_and_counted() {
    let mut rig = Rig::new("h100x8");
    let good = rig.tick();
    let lies = [
        ("utilization = { first = 50, device = 6 }", "utilization = 4294967295"),
        ("encoder = 0", "encoder = 101"),
        ("\ntemperature = { first = 40, device = 2 }", "\ntemperature = 0"),
        ("memory_temperature = { first = 50, device = 2 }", "memory_temperature = 255"),
        ("power = { first = 350.5, device = 25.25 }", "power = 4294967.295"),
        ("graphics = 1980", "graphics = 4294967295"),
        ("replays = { first = 5, device = 1 }", "replays = 4294967295"),
        ("width = [8, 16]", "width = [0, 16]"),
    ];
    for (truth, lie) in lies {
        rig.edit(|text| text.replacen(truth, lie, 1));
    }
    let read = rig.tick();
    let lost: Vec<_> = good.keys().filter(|key| key.1 == 3 && !read.contains_key(key)).collect();
    let lost: Vec<_> = lost.into_iter().map(|(name, _, _, dim)| (&**name, &**dim)).collect();
    let expected = [
        ("gpu.clock.speed", "graphics"),
        // It is the sum of such a power.
        ("gpu.energy", ""),
        ("gpu.pcie.link.width", ""),
        ("gpu.pcie.replays", ""),
        ("gpu.power", ""),
        ("gpu.power.average", ""),
        ("gpu.process.utilization", "decoder"),
        ("gpu.temperature", "gpu"),
        ("gpu.temperature", "memory"),
        ("gpu.utilization", "encoder"),
        ("gpu.utilization", "general"),
    ];
    let lost: Vec<_> = lost.into_iter().filter(|(name, _)| !name.contains("process")).collect();
    let expected: Vec<_> =
        expected.into_iter().filter(|(name, _)| !name.contains("process")).collect();
    assert_eq!(lost, expected);
    let dropped = rig.reader.report().dropped;
    assert_eq!(dropped, [(DropReason::Implausible, 8 * 10)]);
    assert_eq!(rig.reader.report().errors, 0);
}
