//! The Collectors of `deploy/collector` between an agent and its receivers.

mod vendors;

use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::deployed::{Deployed, objections, path};
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// A few ticks of half a second through three Collectors, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// Files that the Collector of the tests has all components for, each with the others that it needs.
const CHECKED: &[&[&str]] = &[
    &["node.yaml"],
    &["gateway.yaml", "to-prometheus.yaml", "to-loki.yaml"],
    &["gateway.yaml", "gateway-tls.yaml", "to-datadog.yaml"],
    &["gateway.yaml", "to-grafana-cloud.yaml"],
    &["gateway.yaml", "to-last9.yaml"],
    &["gateway.yaml", "to-new-relic.yaml"],
    // Several destinations at once.
    &["gateway.yaml", "to-prometheus.yaml", "to-datadog.yaml", "to-last9.yaml"],
];

/// Those that need `cargo xtask collector --check`, which has more components, or no Collector.
const ELSEWHERE: &[&str] = &[
    "README.md",
    "cluster.yaml",
    "grafana-cloud.alloy",
    "kubelet.yaml",
    "kubernetes.yaml",
    "node-host.yaml",
    "to-clickhouse.yaml",
    "to-google-cloud.yaml",
    "to-remote-write.yaml",
];

/// Noise that the agent of these tests sends.
const SENT: &[&str] = &["gpu.nvlink.link.io", "gpuwho.source.duration"];

const VARIABLES: &[(&str, &str)] = &[
    ("OTLP_GATEWAY", "127.0.0.1:4317"),
    ("METRICS_URL", "http://127.0.0.1:9090/api/v1/otlp"),
    ("LOGS_URL", "http://127.0.0.1:3100/otlp"),
    ("DD_SITE", "datadoghq.com"),
    ("DD_API_KEY", "key"),
    ("GRAFANA_CLOUD_URL", "https://otlp-gateway-prod-eu-west-0.grafana.net/otlp"),
    ("GRAFANA_CLOUD_AUTHORIZATION", "Basic key"),
    ("LAST9_URL", "https://otlp.last9.io"),
    ("LAST9_AUTHORIZATION", "Basic key"),
    ("NEW_RELIC_LICENSE_KEY", "key"),
    ("TLS_CERT", "/etc/tls/cert.pem"),
    ("TLS_KEY", "/etc/tls/key.pem"),
    ("CLIENT_CA", "/etc/tls/ca.pem"),
];

#[test]
fn the_real_collector_accepts_each_configuration() {
    for files in CHECKED {
        let objections = or_skip!(objections(files, VARIABLES));
        assert_eq!(objections, None, "{files:?}");
    }
    let wrong = ["gateway.yaml", "to-last9.yaml", "yaml:exporters::otlp_http/last9::endpont: a"];
    let objections = objections(&wrong, VARIABLES).unwrap().expect("an unknown key is refused");
    assert!(objections.contains("endpont"), "{objections}");
}

#[test]
fn every_file_is_checked_here_or_known_to_be_elsewhere() {
    let known: BTreeSet<&str> =
        CHECKED.iter().flat_map(|files| files.iter()).chain(ELSEWHERE).copied().collect();
    let files = fs::read_dir(path("")).unwrap();
    let files: BTreeSet<String> =
        files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
}

#[test]
fn points_and_events_pass_node_and_gateway_and_only_noise_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let received = or_skip!(Collector::start(&folder.path().join("received")));
    let url = received.http_endpoint();
    let variables = [("METRICS_URL", url.as_str()), ("LOGS_URL", url.as_str())];
    let files = ["gateway.yaml", "to-prometheus.yaml", "to-loki.yaml"];
    let gateway = Deployed::start(&folder.path().join("gateway"), &files, &variables).unwrap();
    let address = gateway.grpc_address();
    let variables = [("OTLP_GATEWAY", address.as_str()), ("OTLP_INSECURE", "true")];
    let node = Deployed::start(&folder.path().join("node"), &["node.yaml"], &variables).unwrap();
    let sent = folder.path().join("sent.jsonl");
    let (agent, nvml) = agent(folder.path(), node.http_endpoint(), &sent);

    let noise = noise();
    let arrived = received.wait_for(WITHIN, |points| {
        let arrived: BTreeSet<_> = points.iter().map(|point| point.metric.clone()).collect();
        let missing: Vec<_> =
            names(&sent).into_iter().filter(|name| !arrived.contains(name)).collect();
        let left_out = |name: &str| missing.iter().any(|missing| missing == name);
        let is_complete = energy(points).len() == 8
            && SENT.iter().all(|name| left_out(name))
            && missing.iter().all(|name| noise.contains(name));
        is_complete.then_some((arrived, points.to_vec()))
    });
    let (arrived, points) = arrived.unwrap().unwrap_or_else(|| {
        panic!("{}\n{}\n{:#?}", node.log(), gateway.log(), agent.log());
    });
    let passed: Vec<_> = arrived.intersection(&noise).collect();
    assert!(passed.is_empty(), "noise arrived: {passed:?}");
    let point = points.iter().find(|point| point.metric == "gpu.energy").unwrap();
    assert_eq!((point.kind, point.unit.as_str()), (ReceivedKind::Counter, "J"));
    for key in ["host.name", "host.id", "service.instance.id"] {
        assert!(point.resource.contains_key(key), "{key} of {:?}", point.resource);
    }

    nvml.edit(|text| text + "\n[[event]]\ndevice = 0\ndata = 79\n").unwrap();
    let event = || {
        let records = received.records().unwrap();
        records.into_iter().find(|record| record.event == "gpu.xid")
    };
    let event = until(WITHIN, event).unwrap_or_else(|| panic!("{}", gateway.log()));
    assert_eq!(event.attrs["gpu.xid.code"], "79");
}

#[test]
fn datadog_gets_deltas_that_add_up_to_the_counter() {
    let folder = tempfile::tempdir().unwrap();
    let received = or_skip!(Collector::start(&folder.path().join("received")));
    let here = format!("yaml:exporters::otlp_http/datadog::endpoint: {}", received.http_endpoint());
    let files = ["gateway.yaml", "to-datadog.yaml", here.as_str()];
    let gateway = Deployed::start(&folder.path().join("gateway"), &files, VARIABLES).unwrap();
    let sent = folder.path().join("sent.jsonl");
    let (_agent, _nvml) = agent(folder.path(), gateway.http_endpoint(), &sent);
    let deltas = received.wait_for(WITHIN, |points| {
        let all = energy(points);
        all.get("0").filter(|deltas| deltas.len() >= 4).cloned()
    });
    let deltas = deltas.unwrap().unwrap_or_else(|| panic!("{}", gateway.log()));
    // Each delta begins where the one before it ended, so that nothing is missing between them.
    for pair in deltas.windows(2) {
        assert_eq!(pair[0].time, pair[1].start, "{deltas:#?}");
    }
    assert!(deltas.iter().all(|delta| delta.kind == ReceivedKind::Other), "{deltas:#?}");
    let counter = counter(&sent);
    let (first, last) = (deltas[0].start, deltas[deltas.len() - 1].time);
    let grown = counter[&last] - counter[&first];
    let sum: f64 = deltas.iter().filter_map(ReceivedPoint::number).sum();
    assert!(sum > 0.0 && (sum - grown).abs() < 1e-6 * grown, "{sum} J of {grown} J");
}

/// An agent that keeps what it sends in a file as well.
fn agent(folder: &Path, endpoint: String, sent: &Path) -> (Agent, FakeNvml) {
    let nvml = FakeNvml::install(folder, "h200x8-nvlink").unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(folder.join("no-pod-logs")),
        otlp: Some(Otlp { endpoint, protocol: None }),
        file: Some(sent.to_owned()),
        more: ALONE.to_owned(),
        ..Config::default()
    };
    (Agent::start(folder, &config, Some(&nvml)).unwrap(), nvml)
}

/// The points of each device's energy, by its index.
fn energy(points: &[ReceivedPoint]) -> BTreeMap<String, Vec<ReceivedPoint>> {
    let mut found: BTreeMap<String, Vec<ReceivedPoint>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.metric == "gpu.energy") {
        found.entry(point.attrs["gpu.index"].clone()).or_default().push(point.clone());
    }
    found
}

/// What `node.yaml` leaves out.
fn noise() -> BTreeSet<String> {
    let text = fs::read_to_string(path("node.yaml")).unwrap();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("- name == "));
    let noise: BTreeSet<_> = names.map(|name| name.trim_matches('"').to_owned()).collect();
    assert!(noise.len() > 5, "{noise:?}");
    noise
}

fn lines(sent: &Path) -> Vec<Value> {
    let text = fs::read_to_string(sent).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The names in the agent's file.
fn names(sent: &Path) -> BTreeSet<String> {
    let name = |line: Value| line["metric"].as_str().map(str::to_owned);
    lines(sent).into_iter().filter_map(name).collect()
}

/// The energy of the first device as sent, by its time in nanoseconds.
fn counter(sent: &Path) -> BTreeMap<u64, f64> {
    let of = |line: Value| {
        let is_it = line["metric"] == "gpu.energy" && line["attributes"]["gpu.index"] == "0";
        let time = humantime::parse_rfc3339(line["time"].as_str()?).ok()?;
        let time = time.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some((u64::try_from(time).ok()?, line["value"].as_f64()?)).filter(|_| is_it)
    };
    lines(sent).into_iter().filter_map(of).collect()
}
