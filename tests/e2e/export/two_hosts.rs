//! The rules, the board and the first queries over what the agent exports by default, of two hosts: one is
//! scraped, the other has the labels of one that pushes.

use crate::fixture::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::prometheus::{Prometheus, free_address, get};
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

const WITHIN: Duration = Duration::from_mins(2);
const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards");
const BOARD: &str = include_str!("../../../dashboards/overview.json");
const QUERIES: &str = include_str!("../../../agent/docs/queries.md");

/// Serves the agent's page as that of host `one` and of host `two`, by the path.
fn two_of(agent: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let agent = agent.to_owned();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
            let length = stream.read(&mut request).unwrap_or(0);
            let is_two = String::from_utf8_lossy(&request[..length]).starts_with("GET /two");
            let answer = get(&agent, "/metrics").unwrap_or_default();
            let page = answer.split_once("\r\n\r\n").map_or("", |(_, page)| page);
            let name = page.split_once(",host_name=\"").map_or("", |(_, rest)| rest);
            let name = name.split('"').next().unwrap_or_default();
            let host = if is_two { "two" } else { "one" };
            let page = page
                .replace(&format!("host_name=\"{name}\""), &format!("host_name=\"{host}\""))
                .replace("\"GPU-", &format!("\"GPU-{host}-"));
            let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
            let _gone = stream.write_all(format!("{head}{page}").as_bytes());
        }
    });
    address
}

/// The expressions of the board and of the first table of queries.
fn expressions() -> Vec<String> {
    let board: Value = serde_json::from_str(BOARD).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let of_board = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let table = QUERIES.split("## With").next().unwrap();
    let of_page = table.lines().filter_map(|line| line.split('`').nth(1).map(str::to_owned));
    let all = of_board.chain(of_page.filter(|query| query != "dashboards/queries.test.yaml"));
    let all = all.map(|text| text.replace("$host", ".+").replace("$__rate_interval", "5m"));
    all.collect()
}

/// Prometheus' own: what is at the address twice, the second time with the labels that a push has.
fn configuration(both: &str) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{DASHBOARDS}/alerts.yaml]\n\
         scrape_configs:\n\
         - {{job_name: gpuwho, metrics_path: /one, static_configs: [{{targets: ['{both}']}}]}}\n\
         - {{job_name: pushed, metrics_path: /two, static_configs: [{{targets: ['{both}'], \
         labels: {{job: gpuwho, instance: prod/two}}}}]}}\n"
    )
}

#[test]
fn rules_board_and_queries_keep_two_hosts_apart_and_have_data_by_default() {
    let mut stage = or_skip!(Stage::new());
    let folder = tempfile::tempdir().unwrap();
    let address = free_address(folder.path()).unwrap();
    let both = two_of(&address);
    let text = configuration(&both);
    let prometheus = or_skip!(Prometheus::configured(&folder.path().join("prometheus"), &text));
    let pod = stage.pod(&TRAINER).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    nvml.set_processes(0, &[Some(worker.pid())]).unwrap();
    let config = Config {
        interval: Some("1s".to_owned()),
        default_metrics: true,
        pod_logs: Some(stage.pod_logs()),
        more: format!("[prometheus]\nlisten = {address:?}\n"),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    wait_for_holder(&agent, worker.pid());

    let hosts = |query: &str| -> BTreeSet<String> {
        let found = prometheus.query(query).unwrap_or_default();
        let names = found.iter().filter_map(|series| series["metric"]["host_name"].as_str());
        names.map(str::to_owned).collect()
    };
    let two = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
    let rated = "rate(gpu_owner_energy_joules_total[1m])";
    let is_there = || (hosts("gpu:owner") == two && hosts(rated) == two).then_some(());
    until(WITHIN, is_there).unwrap_or_else(|| {
        let page = get(&address, "/metrics").unwrap_or_default();
        let of = |name: &str| page.lines().filter(|line| line.contains(name)).count();
        panic!("{:?} {:?} {}", hosts("gpu:owner"), hosts("gpu_info"), of("gpu_owner_processes"))
    });

    let nameless = "{__name__=~\"gpu.*|inference.*|nccl.*|system.*|process.*\", host_name=\"\"}";
    assert_eq!(prometheus.query(nameless).unwrap(), Vec::<Value>::new(), "a series without host");
    let mut found = 0;
    for query in expressions() {
        let answer = prometheus.ask(&query).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let of = hosts(&query);
        assert!(of.is_empty() || of == two, "{query}: {of:?}");
        let series = answer["data"]["result"].as_array().map_or(0, Vec::len);
        // A series of two hosts in one would have been merged by what it is summed by.
        let per_device = query.contains("gpu_index") && series > 0;
        assert!(!per_device || of == two, "{query}: {answer}");
        found += usize::from(series > 0);
    }
    assert!(found > 15, "{found} expressions have data");
    for query in [
        "gpu:owner",
        "gpu_power_watts * on (host_name, gpu_uuid) group_left (k8s_namespace_name, k8s_pod_name) gpu:owner",
    ] {
        assert_eq!(hosts(query), two, "{query}");
    }
    let rules = prometheus.rules().unwrap();
    let ill: Vec<_> = rules.iter().filter(|rule| rule["health"] == "err").collect();
    assert!(rules.len() > 60 && ill.is_empty(), "{ill:#?}");
}
