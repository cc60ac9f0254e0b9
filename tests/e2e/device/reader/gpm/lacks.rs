//! Where the counters are not there, are somebody else's, fail or lie.

use super::*;

#[test]
fn a_device_without_them_is_unsupported_and_asked_once() {
    for scenario in ["a100-mig-3g20", "old-driver"] {
        let mut rig = Rig::new(scenario);
        let devices = rig.scenario().devices().count();
        for _ in 0..3 {
            let read = rig.counters();
            let count = u32::try_from(devices).unwrap();
            assert_eq!(states(&read), all(count, CounterState::Unsupported));
            assert_eq!(read.len(), devices * CounterState::ALL.len());
        }
        assert_eq!(rig.calls("nvmlGpmQueryDeviceSupport"), devices, "{scenario}");
        assert_eq!(rig.calls("nvmlGpmSampleAlloc"), 0);
        assert_eq!(rig.reader.report().errors, 0);
    }
}

#[test]
fn a_driver_that_has_only_a_part_of_it_has_none_of_it() {
    let mut rig = Rig::new("h100x8");
    rig.edit(|text| format!("omit = [\"nvmlGpmSampleFree\"]\n{text}"));
    rig.install_library();
    assert_eq!(states(&rig.counters()), all(8, CounterState::Unsupported));
    assert_eq!(rig.calls("nvmlGpmSampleAlloc"), 0, "samples that nothing could free");
}

#[test]
fn counters_that_a_profiler_has_are_a_state_and_tried_again_later() {
    let mut rig = Rig::new("h100x8");
    second(&mut rig);
    rig.play_with("h100x8", "[[failure]]\ncall = \"nvmlGpmSampleGet\"\ndevice = 2\ncode = 19\n");
    let read = until_state(&mut rig, 2, CounterState::Busy);
    assert!(!read.contains_key(&sm(2, "")), "{read:#?}");
    let report = rig.reader.report();
    let reason = "device 2 has no performance counters now: another program, a profiler perhaps";
    assert!(report.reason.starts_with(reason), "{report:?}");
    let asked = |rig: &Rig| rig.log("call").iter().filter(|line| is_sample(line, 2)).count();
    let before = asked(&rig);
    let (read, _) = second(&mut rig);
    assert_eq!(asked(&rig), before, "asked again at once");
    assert!(read.contains_key(&sm(1, "")), "the others go on");
    assert_eq!(rig.reader.report().errors, 0, "no failure");
}

#[test]
fn counters_that_are_forbidden_are_a_state() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", &super::super::failing("nvmlGpmSampleGet", 4));
    assert_eq!(states(&rig.counters()), all(8, CounterState::Forbidden));
    rig.counters();
    assert_eq!(rig.calls("nvmlGpmSampleGet"), 8, "not at each reading");
    assert!(rig.reader.report().reason.contains("this user may not read them"));
}

#[test]
fn a_failure_is_counted_told_and_asked_again() {
    let mut rig = Rig::new("h100x8");
    rig.counters();
    rig.play_with("h100x8", &super::super::failing("nvmlGpmSampleGet", 999));
    until_state(&mut rig, 0, CounterState::Failing);
    assert!(rig.reader.report().errors > 0);
    rig.play("h100x8");
    let (read, states) = second(&mut rig);
    assert_eq!(states, all(8, CounterState::Ok));
    assert_same(&read, &truth::gpm::counters(&rig.scenario(), 0.0));
}

#[test]
fn a_metric_that_fails_costs_itself_only_and_one_that_is_not_there_is_asked_once() {
    let mut rig = Rig::new("h100x8");
    rig.play_with("h100x8", "[[failure]]\ncall = \"nvmlGpmMetricsGet\"\nmetric = 2\ncode = 999\n");
    let (read, _) = second(&mut rig);
    let mut expected = truth::gpm::counters(&rig.scenario(), 0.0);
    expected.retain(|(name, ..), _| name != "gpu.sm.active");
    assert_same(&read, &expected);
    rig.play("h100x8");
    assert!(second(&mut rig).0.contains_key(&sm(0, "")), "a failure is no lack");
    rig.play_with("h100x8", "[[failure]]\ncall = \"nvmlGpmMetricsGet\"\nmetric = 2\ncode = 3\n");
    second(&mut rig);
    rig.play("h100x8");
    assert!(!second(&mut rig).0.contains_key(&sm(0, "")), "it was not there");
}

#[test]
fn numbers_that_are_none_or_cannot_be_are_dropped() {
    for nonsense in ["nan", "inf", "-3", "140", "1e300"] {
        let mut rig = Rig::new("h100x8");
        let with = format!("sm = {nonsense}\noccupancy");
        rig.edit(|text| text.replace("sm = { first = 41.5, device = 6.25 }\noccupancy", &with));
        let (read, _) = second(&mut rig);
        let mut expected = truth::gpm::counters(&rig.scenario(), 0.0);
        expected.retain(|(name, ..), _| name != "gpu.sm.active");
        assert_same(&read, &expected);
    }
}

#[test]
fn a_stream_that_somebody_switches_begins_anew_and_nobody_here_switches_it() {
    let mut rig = Rig::new("h100x8");
    let (_, before) = second(&mut rig);
    assert_eq!(before, all(8, CounterState::Ok));
    rig.edit(|text| text.replace("[device.gpm]\n", "[device.gpm]\nstreaming = 1\n"));
    assert_eq!(states(&rig.counters()), all(8, CounterState::Waiting));
    let (read, _) = second(&mut rig);
    assert_same(&read, &truth::gpm::counters(&rig.scenario(), 0.0));
    assert_eq!(rig.calls("nvmlGpmSetStreamingEnabled"), 0);
}

#[test]
fn an_older_driver_that_refuses_new_metrics_gives_the_others() {
    let mut rig = Rig::new("h100x8");
    rig.edit(|text| format!("gpm_metrics = 98\n{text}"));
    let (read, states) = second(&mut rig);
    assert_eq!(states, all(8, CounterState::Ok));
    assert_same(&read, &truth::gpm::counters(&rig.scenario(), 0.0));
    let refused = rig.calls("nvmlGpmMetricsGet");
    second(&mut rig);
    assert!(rig.calls("nvmlGpmMetricsGet") > refused, "it goes on");
    assert_eq!(rig.reader.report().errors, 0);
}
