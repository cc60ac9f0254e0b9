//! Gaudi by `hl-smi`, where its library is not installed: the confined child starts the program, and what it
//! prints arrives at the real OpenTelemetry Collector.

use super::{WITHIN, arrived};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::ReceivedPoint;
use gpuwho_tests::fakes::load;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::vendors::{GAUDI, gaudi};
use std::fs;

/// How the kernel says in `/proc/PID/status` that a process has a filter of system calls.
const FILTERED: &str = "Seccomp:\t2";

#[test]
fn the_confined_child_runs_hl_smi_and_its_power_and_ecc_arrive() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let root = stage.folder().join("host");
    let _files = (GAUDI.install)(&root, load("gaudi3x8").unwrap()).unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        sys: Some(root.join("sys")),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: format!(
            "[nvidia]\nenabled = false\n[gaudi]\nlibrary = \"{}\"\n",
            gaudi::program(&root).display()
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let of = |points: &[ReceivedPoint], name: &str, index: usize| {
        let uuid = format!("01P4-HL3090A0-18-U4V193-22-07-0{index}");
        arrived(points, name, &[("gpu.uuid", &uuid), ("gpu.vendor", "gaudi")])
    };
    let ready = |points: &[ReceivedPoint]| {
        let has = |name| (0..8).all(|index| !of(points, name, index).is_empty());
        (has("gpu.power") && has("gpu.ecc.errors")).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| {
        let all = collector.points().unwrap();
        let lacks = |name: &str| (0..8).filter(|index| of(&all, name, *index).is_empty()).count();
        let lacks = ["gpu.power", "gpu.ecc.errors"].map(lacks);
        panic!("{lacks:?} {:#?} {:#?}", agent.who(), agent.log())
    });
    for (index, watts) in (0..8).zip((0..8).map(|index| 226.0 + 30.0 * f64::from(index))) {
        assert!(
            of(&points, "gpu.power", index).iter().all(|power| (power - watts).abs() < 1e-9),
            "{index}"
        );
        assert!(of(&points, "gpu.ecc.errors", index).iter().all(|errors| errors.abs() < 1e-9));
    }
    let readers = agent.children().into_iter().filter(|(command, _)| command == "device-reader");
    let status = |(_, pid)| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let all: Vec<String> = readers.map(status).collect();
    assert!(!all.is_empty() && all.iter().all(|status| status.contains(FILTERED)), "{all:#?}");
}
