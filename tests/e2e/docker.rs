//! The documented ways to run the image without Kubernetes, by the real Podman, and what arrives at a real
//! Collector. Only where `cargo xtask podman` has started it.

use gpuwho_tests::cluster::MACHINE_ID;
use gpuwho_tests::collector::Collector;
use gpuwho_tests::or_skip;
use gpuwho_tests::podman::Podman;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

const README: &str = include_str!("../../deploy/docker/README.md");
const COMPOSE: &str = include_str!("../../deploy/docker/compose.yaml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/docker");

/// Containers start in a second; this is for a busy machine.
const WITHIN: Duration = Duration::from_secs(90);
/// The receiver that both name.
const ENDPOINT: &str = "http://127.0.0.1:4318";
/// The image that both name.
const IMAGE: &str = concat!("gpuwho:", env!("CARGO_PKG_VERSION"));

/// The words of the documented command, behind `docker`.
fn documented() -> Vec<&'static str> {
    let (_, rest) = README.split_once("```sh\ndocker ").unwrap();
    let (line, _) = rest.split_once("\n```").unwrap();
    line.split_whitespace().filter(|word| *word != "\\").collect()
}

/// Of the command, the values of an option.
fn values(option: &str) -> BTreeSet<&'static str> {
    let words = documented();
    let pairs = words.windows(2).filter(|pair| pair[0] == option);
    pairs.map(|pair| pair[1]).collect()
}

#[test]
fn the_command_and_the_compose_file_say_the_same() {
    for option in ["--volume", "--device"] {
        for value in values(option) {
            assert!(COMPOSE.contains(value), "compose.yaml lacks {option} {value}");
        }
    }
    let volumes = COMPOSE.lines().filter(|line| line.starts_with("      - ")).count();
    assert_eq!(volumes, values("--volume").len());
    for list in ["--cap-add", "--security-opt"] {
        let all = values(list);
        let line = COMPOSE.lines().find(|line| all.iter().all(|value| line.contains(value)));
        let line = line.unwrap_or_else(|| panic!("compose.yaml lacks a list of {all:?}"));
        assert_eq!(line.split(", ").count(), all.len(), "{line}");
    }
    for (name, value) in values("--env").iter().map(|pair| pair.split_once('=').unwrap()) {
        let line = COMPOSE.lines().find(|line| line.contains(&format!("{name}: "))).unwrap();
        assert!(line.contains(value), "{line}");
    }
    for wanted in ["pid: host", "network_mode: host", "read_only: true", "cap_drop: [ALL]", IMAGE] {
        assert!(COMPOSE.contains(wanted), "{wanted}");
    }
    assert!(documented().contains(&IMAGE) && COMPOSE.contains(ENDPOINT));
}

#[test]
fn the_command_and_the_compose_file_run() {
    let podman = or_skip!(Podman::start());
    // As the page says: Docker makes it itself.
    fs::create_dir("/run/gpuwho").unwrap();
    podman.train("trainer", IMAGE).unwrap();
    let collector = or_skip!(Collector::start(&podman.folder().join("collector")));
    let endpoint = collector.http_endpoint();
    let line: Vec<_> = documented().iter().map(|word| word.replace(ENDPOINT, &endpoint)).collect();
    podman.run(&line.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    everything_arrives(&podman, &collector, "docker run");
    podman.run(&["rm", "--force", "--time=10", "gpuwho"]).unwrap();
    let file = Path::new(FOLDER).join("compose.yaml");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    podman.compose(&file, &["up", "--detach"], &variables).unwrap();
    everything_arrives(&podman, &collector, "compose");
    podman.compose(&file, &["down"], &variables).unwrap();
    let left = podman.run(&["ps", "--all", "--format", "{{.Names}}"]).unwrap();
    assert_eq!(left.trim(), "trainer");
}

/// Every device, the container that holds one under its name, the host's own id; and no capability is
/// missing.
fn everything_arrives(podman: &Podman, collector: &Collector, how: &str) {
    let from = collector.points().unwrap().len();
    let found = collector.wait_for(WITHIN, |points| {
        let points = points.get(from..)?.iter().filter(|point| !point.ended());
        let devices: BTreeSet<_> = points
            .clone()
            .filter(|point| point.metric == "gpu.up")
            .filter_map(|point| point.attrs.get("gpu.uuid"))
            .collect();
        let mut processes = points.filter(|point| point.metric == "gpu.process.info");
        let named = processes.find(|point| point.has(&[("container.name", "trainer")]))?;
        (devices.len() == 8).then(|| named.resource.get("host.id").cloned())
    });
    let log = || podman.run(&["logs", "gpuwho"]).unwrap_or_default();
    let host =
        found.unwrap().unwrap_or_else(|| panic!("{how}: not all arrived; the log:\n{}", log()));
    assert_eq!(host.as_deref(), Some(MACHINE_ID), "{how}");
    assert!(!log().contains("capability is missing"), "{how}: {}", log());
    println!("  {how}: eight devices, and trainer by its name");
}
