//! What a reading of eight devices with everything on asks of the library: how many calls, and that
//! what is not there is asked for once.

use super::rig::Rig;
use nvidia_ml::counts::Count;
use std::collections::BTreeMap;

/// Readings that are looked at: every slow turn of every device is among them.
const READINGS: u64 = 36;
/// Devices of the scenario.
const DEVICES: u64 = 8;
/// Calls a device and reading, on average, the slow turns among them. Measured: 24.8, of which three
/// are process lists and their utilisation, three the performance counters and one is all the fields.
const CALLS: u64 = 27;
/// Calls a device in a reading at most: one with a slow turn.
const CALLS_AT_MOST: u64 = 40;
/// Says "not found" where no process was sampled since the last reading, which is an answer.
const SAMPLES: &str = "nvmlDeviceGetProcessUtilization";
/// Says "too small" when it is asked how many there are, which is its way to tell.
const ENDED: &str = "nvmlDeviceGetAccountingPids";

/// What was done to each function between two looks.
fn between(
    before: &BTreeMap<String, Count>,
    after: &BTreeMap<String, Count>,
) -> BTreeMap<String, Count> {
    let none = Count::default();
    let since = |(name, count): (&String, &Count)| {
        (name.clone(), count.since(*before.get(name).unwrap_or(&none)))
    };
    after.iter().map(since).filter(|(_, count)| count.calls > 0).collect()
}

fn calls(counts: &BTreeMap<String, Count>) -> u64 {
    counts.values().map(|count| count.calls).sum()
}

/// Reads a scenario until nothing is new any more: how many links there are is known after the first
/// reading, what they do not tell after the second.
fn settled(scenario: &str) -> Rig {
    let mut rig = Rig::new(scenario);
    rig.tick();
    rig.tick();
    rig
}

#[test]
fn a_reading_with_everything_on_makes_a_bounded_number_of_calls() {
    let mut rig = settled("h200x8-nvlink");
    let before = rig.counts();
    let mut last = before.clone();
    for _ in 0..READINGS {
        rig.tick();
        let now = rig.counts();
        let grown = between(&last, &now);
        assert!(calls(&grown) <= CALLS_AT_MOST * DEVICES, "{grown:#?}");
        last = now;
    }
    let all = between(&before, &last);
    assert!(calls(&all) <= CALLS * DEVICES * READINGS, "{} calls: {all:#?}", calls(&all));
    let fields = all.get("nvmlDeviceGetFieldValues").map(|count| count.calls);
    assert_eq!(fields, Some(DEVICES * READINGS), "all fields come with one call a reading");
}

#[test]
fn what_is_not_there_is_asked_for_once() {
    for scenario in ["h200x8-nvlink", "gb200", "v100x16"] {
        let mut rig = settled(scenario);
        let before = rig.counts();
        (0..READINGS).for_each(|_| drop(rig.tick()));
        let mut grown = between(&before, &rig.counts());
        grown.retain(|function, _| ![SAMPLES, ENDED].contains(&function.as_str()));
        grown.retain(|_, count| count.errors > 0);
        assert_eq!(grown, BTreeMap::new(), "{scenario}: asked again in vain");
    }
}

#[test]
fn a_field_of_a_link_that_is_not_there_is_asked_for_once_a_link() {
    let mut rig = settled("h200x8-nvlink");
    (0..READINGS).for_each(|_| drop(rig.tick()));
    // Malformed packets, symbol errors and the history of corrections: Blackwell's.
    let asked = [206, 221, 235, 250].map(|field| rig.calls(&format!("field {field}")));
    assert_eq!(asked, [18 * 8; 4]);
    // How many links there are to a CPU, of which there are none.
    assert_eq!(rig.calls("field 170"), 8);
}
