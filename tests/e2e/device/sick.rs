//! Three sick devices of eight, end to end: the others keep their cadence.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use std::time::Duration;
use tempfile::TempDir;

/// One device hangs from second 5 to 65 (`three-sick.toml`).
const SICK: std::ops::Range<f64> = 5.0..65.0;
const WITHIN: Duration = Duration::from_secs(150);
/// Half the usual interval, of which a tenth is more than what a busy machine adds to a reading now and
/// then: at two seconds that was 0.15 s.
const TICK: f64 = 5.0;

/// The times of a device's readings of a metric, in the scenario's seconds.
fn times(points: &[ReceivedPoint], metric: &str, device: &str, epoch: f64) -> Vec<f64> {
    let all = of(points, metric, &[("gpu.index", device)]);
    let alive = all.iter().filter(|point| !point.ended());
    let mut times: Vec<f64> = alive.map(|point| point.time as f64 / 1e9 - epoch).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The last value of a metric of a device.
fn last(points: &[ReceivedPoint], metric: &str, attrs: &[(&str, &str)]) -> Option<f64> {
    of(points, metric, attrs).last()?.number()
}

#[test]
fn one_hung_one_lost_and_one_that_supports_nothing_delay_no_other() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let nvml = FakeNvml::install(folder.path(), "three-sick").unwrap().from_now();
    let epoch = nvml.epoch().unwrap();
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let interval = Some(format!("{TICK}s"));
    let config = Config { interval, otlp: Some(otlp), ..Config::default() };
    let _agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let over = |points: &[ReceivedPoint]| {
        let well =
            times(points, "gpu.power", "2", epoch).last().is_some_and(|at| *at > SICK.end + TICK);
        well.then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, over).unwrap().expect("the hung device's return");

    let hung = times(&points, "gpu.power", "2", epoch);
    let while_hung = hung.iter().filter(|at| (SICK.start + 1.0..SICK.end).contains(*at)).count();
    assert_eq!(while_hung, 0, "{hung:?}");
    assert_eq!(last(&points, "gpu.up", &[("gpu.index", "3")]), Some(0.0), "lost");
    assert_eq!(
        last(&points, "gpu.status", &[("gpu.index", "3"), ("gpu.state", "lost")]),
        Some(1.0)
    );
    assert_eq!(
        last(&points, "gpu.up", &[("gpu.index", "4")]),
        Some(1.0),
        "supports nothing, and is there"
    );
    assert_eq!(times(&points, "gpu.power", "4", epoch), Vec::<f64>::new());
    let ages = of(&points, "gpu.read.age", &[("gpu.index", "2")]);
    let oldest = ages.iter().filter_map(|point| point.number()).fold(0.0, f64::max);
    assert!(oldest > SICK.end - SICK.start - TICK - 1.0, "{oldest}");

    for device in ["0", "1", "5", "6", "7"] {
        let mut times = times(&points, "gpu.power", device, epoch);
        times.retain(|at| SICK.contains(at));
        let steps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = steps.iter().sum::<f64>() / steps.len() as f64;
        let off = steps.iter().filter(|step| (*step - TICK).abs() > 0.1 * TICK).count();
        let longest = steps.iter().copied().fold(0.0, f64::max);
        println!(
            "device {device}: {} points, mean {mean:.4} s, longest {longest:.3} s, {off} off",
            times.len()
        );
        assert!((mean - TICK).abs() < 0.01 * TICK, "device {device}: {mean} s: {steps:?}");
        // The first stall moves the devices behind it by a twentieth, once; the rest is the machine's.
        assert_eq!(off, 0, "device {device}: {steps:?}");
    }
}
