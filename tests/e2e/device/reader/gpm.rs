//! Performance counters: values between two readings, and nothing where two samples do not belong
//! together.

mod lacks;

use super::rig::{Key, Rig, Values};
use super::truth;
use gpuwho_collect::Collector as _;
use gpuwho_model::catalog::gpm::CounterState;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The driver renews its counters in this time.
const RENEWAL: Duration = Duration::from_millis(100);
/// The two numbers of a division are exact to about a nanosecond of a second.
const CLOSE: f64 = 1e-9;

#[test]
fn every_metric_of_eight_devices_is_the_scenarios_from_the_second_reading_on() {
    let mut rig = Rig::new("h100x8");
    let first = rig.counters();
    assert_eq!(states(&first), all(8, CounterState::Waiting));
    assert_eq!(first.len(), 8 * CounterState::ALL.len(), "no value between one sample and none");
    let (read, states) = second(&mut rig);
    assert_eq!(states, all(8, CounterState::Ok));
    let expected = truth::gpm::counters(&rig.scenario(), 0.0);
    assert_same(&read, &expected);
    let values = |name: &str| expected.keys().filter(|(known, ..)| known == name).count();
    assert_eq!(values("gpu.pipe.active"), 8 * 8, "the scenario's");
    assert_eq!(values("gpu.media.active"), 8 * 15, "the scenario's");
    assert_eq!(rig.reader.report().errors, 0);
}

#[test]
fn percentages_are_fractions_and_mebibytes_bytes_and_no_direction_is_swapped() {
    let mut rig = Rig::new("h100x8");
    let (read, _) = second(&mut rig);
    let value = |name: &str, dim: &str| read[&(name.to_owned(), 4, 0, dim.to_owned())];
    let seen = [
        value("gpu.sm.active", ""),
        value("gpu.pcie.throughput", "transmit"),
        value("gpu.pcie.throughput", "receive"),
        value("gpu.nvlink.throughput", "transmit"),
        value("gpu.nvlink.throughput", "receive"),
    ];
    let mebi = 1_048_576.0;
    let expected = [0.665, 2000.0 * mebi, 3200.0 * mebi, 96_000.0 * mebi, 100_000.0 * mebi];
    let close = seen.iter().zip(expected).all(|(seen, expected)| is_close(*seen, expected));
    assert!(close, "{seen:?}, not {expected:?}");
}

#[test]
fn a_value_is_the_mean_between_the_moments_of_two_readings() {
    let mut rig = Rig::new("h100x8");
    let sine = "sm = { sine = { mean = 50, amplitude = 40, period = 1.7 } }";
    rig.edit(|text| text.replace("sm = { first = 41.5, device = 6.25 }", sine));
    rig.counters();
    let key = ("gpu.sm.active".to_owned(), 0, 0, String::new());
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.extend(rig.counters().get(&key).copied());
        super::breathe();
    }
    let scenario = rig.scenario();
    let device = scenario.device(0).unwrap();
    let curve = device.group.gpm.as_ref().unwrap().sm.as_ref().unwrap();
    // Moments of the calls, as the library noted them.
    let taken = rig
        .log("call")
        .into_iter()
        .filter(|line| line["call"] == "nvmlGpmSampleGet" && line["device"] == 0);
    let moments: Vec<f64> =
        taken.map(|line| rig.since_epoch(line["time"].as_f64().unwrap())).collect();
    let area = |seconds| curve.integral(seconds, device.place());
    let means =
        moments.windows(2).map(|pair| (area(pair[1]) - area(pair[0])) / (pair[1] - pair[0]));
    for (seen, mean) in seen.iter().zip(means) {
        let difference = (seen - mean / 100.0).abs();
        assert!(difference < 0.02, "{seen}, not {mean} %, at {moments:?}");
    }
}

#[test]
fn readings_that_follow_too_soon_wait_instead_of_making_noise() {
    let mut rig = Rig::new("h100x8");
    let begun = Instant::now();
    let mut ticks = 0;
    let mut values = 0;
    while begun.elapsed() < Duration::from_millis(900) {
        values += usize::from(rig.counters().contains_key(&sm(0, "")));
        ticks += 1;
    }
    let samples = rig.log("call").iter().filter(|line| is_sample(line, 0)).count();
    assert!(values < 9, "{values} values of a source that is renewed every 100 ms");
    assert_eq!(samples, values + 1, "{ticks} readings");
    assert_eq!(rig.reader.report().errors, 0);
}

#[test]
fn every_instance_has_its_own_and_the_device_its_own() {
    let mut rig = Rig::at("h100-mig", 2.0);
    let (read, states) = second(&mut rig);
    assert_eq!(states, all(3, CounterState::Ok));
    let expected = truth::gpm::counters(&rig.scenario(), 3.0);
    assert_same(&read, &expected);
    let instances: Vec<&Key> =
        expected.keys().filter(|(name, ..)| name == "gpu.instance.sm.active").collect();
    let places: Vec<_> = instances.iter().map(|(_, device, _, at)| (*device, at.trim())).collect();
    assert_eq!(places, [(0, "1/0"), (0, "2/0"), (1, "1/0"), (1, "2/0")], "one a GPU instance");
    let asked = |rig: &Rig| {
        let calls = rig.log("call");
        calls.iter().filter(|line| is_call(line, "nvmlGpmMigSampleGet", 0)).count()
    };
    let before = asked(&rig);
    super::wait_out(RENEWAL);
    rig.counters();
    assert_eq!(asked(&rig), before + 2, "an instance without counters is not asked again");
}

#[test]
fn a_place_cut_anew_between_two_readings_is_another_instance() {
    let mut rig = Rig::at("h100-mig", 100.0);
    let (read, _) = second(&mut rig);
    let key = sm(1, "1/0 ");
    assert!(is_close(read[&key], 0.655), "{read:#?}");
    rig.edit(|text| text.replace("4g.40gb", "3g.40gb").replace("sm = 65.5", "sm = 35.5"));
    super::wait_out(RENEWAL);
    let read = rig.counters();
    assert!(!read.contains_key(&key), "the new one's counters less the old one's: {read:#?}");
    assert!(read.contains_key(&sm(1, "5/0 ")), "the other goes on: {read:#?}");
    assert!(is_close(second(&mut rig).0[&key], 0.355));
}

#[test]
fn an_instance_at_anothers_place_begins_anew() {
    let mut rig = Rig::at("h100-mig", 8.0);
    let scenario = rig.scenario();
    let mut anew = None;
    while anew.is_none() {
        let begun = rig.seconds();
        let read = rig.counters();
        let ended = rig.seconds();
        for seconds in [begun, ended] {
            // A reading at the moment of a change may be of either side.
            if begun < 10.0 && ended >= 10.0 || begun < 11.0 && ended >= 11.0 {
                continue;
            }
            let expected = truth::gpm::counters(&scenario, seconds);
            for (key, value) in read.iter().filter(|((name, ..), _)| name != "gpu.counters.status")
            {
                let known = expected.get(key);
                assert!(
                    known.is_some_and(|known| is_close(*value, *known)),
                    "{key:?} {value} {known:?}"
                );
            }
        }
        if begun > 11.0 {
            anew = read.get(&sm(1, "1/0 ")).copied();
        }
        super::breathe();
    }
    assert!(is_close(anew.unwrap(), 0.655), "of the new instance: {anew:?}");
    // Two devices with two instances that have counters, and one without instances.
    assert_eq!(alive(&rig), 2 * (3 + 3 + 1), "{:#?}", rig.log("gpm_samples"));
    assert_eq!(rig.log("gpm_misuse"), Vec::<serde_json::Value>::new());
}

#[test]
fn mig_turned_off_and_on_begins_anew() {
    let mut rig = Rig::at("h100-mig", 2.0);
    second(&mut rig);
    rig.edit(|text| text.replace("mig = true", "mig = false"));
    let read = rig.counters();
    assert_eq!(states(&read)[&0], CounterState::Waiting);
    let (read, _) = second(&mut rig);
    assert!(!read.keys().any(|(name, ..)| name.starts_with("gpu.instance.")), "{read:#?}");
    assert_same(&read, &truth::gpm::counters(&rig.scenario(), 3.0));
}

#[test]
fn samples_stay_two_each_and_are_all_freed_at_the_release() {
    let mut rig = Rig::new("h100x8");
    for _ in 0..4 {
        second(&mut rig);
        assert_eq!(alive(&rig), 16);
    }
    assert_eq!(rig.calls("nvmlGpmSampleAlloc"), 16);
    assert!(rig.reader.control().release(None));
    assert_eq!(alive(&rig), 0, "freed before the library is closed");
    assert_eq!(rig.log("gpm_misuse"), Vec::<serde_json::Value>::new());
}

#[test]
fn a_lost_device_frees_its_samples_and_begins_anew() {
    let mut rig = Rig::new("h100x8");
    second(&mut rig);
    rig.play_with("h100x8", "[[failure]]\ncall = \"*\"\ndevice = 3\ncode = 15\n");
    rig.counters();
    assert_eq!(alive(&rig), 14);
    rig.play("h100x8");
    assert_eq!(states(&rig.counters())[&3], CounterState::Waiting);
    assert_same(&second(&mut rig).0, &truth::gpm::counters(&rig.scenario(), 0.0));
}

#[test]
fn switched_off_nothing_is_asked_or_said() {
    let mut rig = Rig::without_counters("h100x8");
    assert_eq!((rig.counters(), rig.counters()), (Values::new(), Values::new()));
    assert_eq!(rig.log("call").iter().filter(|line| is_gpm(line)).count(), 0);
}

/// Reads until every device whose counters are read has told a value; devices do so at different
/// readings where these follow soon. All that they told, and the states at last.
fn second(rig: &mut Rig) -> (Values, BTreeMap<u32, CounterState>) {
    rig.counters();
    let begun = Instant::now();
    let mut reported = Values::new();
    loop {
        let read = rig.counters();
        let states = states(&read);
        reported.extend(read);
        let has_told = |device: u32| {
            reported.contains_key(&("gpu.gr_engine.active".to_owned(), device, 0, String::new()))
        };
        let is_over = |(device, state): (&u32, &CounterState)| match state {
            CounterState::Waiting => false,
            CounterState::Ok => has_told(*device),
            _ => true,
        };
        if states.iter().all(is_over) {
            reported.retain(|(name, ..), _| name != "gpu.counters.status");
            return (reported, states);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{states:?}");
        super::breathe();
    }
}

fn until_state(rig: &mut Rig, device: u32, state: CounterState) -> Values {
    let begun = Instant::now();
    loop {
        let read = rig.counters();
        if states(&read).get(&device) == Some(&state) {
            return read;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", states(&read));
        super::breathe();
    }
}

/// The state of each device; it is in one exactly.
fn states(read: &Values) -> BTreeMap<u32, CounterState> {
    let mut states = BTreeMap::new();
    for ((name, device, _, dim), value) in read {
        if name == "gpu.counters.status" && *value == 1.0 {
            let state = CounterState::ALL.iter().find(|state| state.as_str() == dim).unwrap();
            assert_eq!(states.insert(*device, *state), None, "two states of device {device}");
        }
    }
    states
}

fn all(devices: u32, state: CounterState) -> BTreeMap<u32, CounterState> {
    (0..devices).map(|device| (device, state)).collect()
}

fn sm(device: u32, place: &str) -> Key {
    let name = if place.is_empty() { "gpu.sm.active" } else { "gpu.instance.sm.active" };
    (name.to_owned(), device, 0, place.to_owned())
}

fn is_close(seen: f64, expected: f64) -> bool {
    (seen - expected).abs() <= expected.abs() * CLOSE
}

fn assert_same(read: &Values, expected: &Values) {
    let keys = |values: &Values| values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(read), keys(expected));
    for (key, value) in expected {
        assert!(is_close(read[key], *value), "{key:?} is {}, not {value}", read[key]);
    }
}

fn is_call(line: &serde_json::Value, name: &str, device: u32) -> bool {
    line["call"] == name && line["device"] == device
}

fn is_sample(line: &serde_json::Value, device: u32) -> bool {
    is_call(line, "nvmlGpmSampleGet", device)
}

fn is_gpm(line: &serde_json::Value) -> bool {
    line["call"].as_str().unwrap().contains("Gpm")
}

/// Samples there are in the library.
fn alive(rig: &Rig) -> u64 {
    let reported = rig.log("gpm_samples");
    reported.last().map_or(0, |line| line["gpm_samples"].as_u64().unwrap())
}

/// The link of a board before Hopper, which has no performance counters.
const OLDER: &str =
    "[device.pcie]\ngeneration = [4, 4]\nwidth = [16, 16]\nsampled = [1500, 2750]\n";

#[test]
fn the_link_of_a_board_without_counters_is_sampled_if_the_configuration_asks_for_it() {
    let name = "gpu.pcie.throughput.sampled";
    let mut rig = Rig::with_sampling("a10x1");
    rig.play_with("a10x1", OLDER);
    rig.install_library();
    let rates = rig.until(|batch, rig| {
        let values = rig.everything(batch);
        let rate = |way: &str| values.get(&(name.to_owned(), 0, 0, way.to_owned())).copied();
        rate("transmit").zip(rate("receive"))
    });
    assert_eq!(rates, (1_500_000.0, 2_750_000.0));
}

#[test]
fn the_link_is_not_sampled_by_default() {
    let mut rig = Rig::new("a10x1");
    rig.play_with("a10x1", OLDER);
    rig.install_library();
    for _ in 0..3 {
        rig.tick_with_calls();
    }
    assert_eq!(rig.calls("nvmlDeviceGetPcieThroughput"), 0);
}
