//! The shortest way that export.md recommends: an agent sends to Prometheus 3 itself, whose own API then
//! answers the first queries.

use crate::fixture::TRAINER;
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::prometheus::Prometheus;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use std::collections::BTreeSet;
use std::time::Duration;

/// A few ticks of half a second, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

const PAGE: &str = include_str!("../../../agent/docs/export.md");
const QUERIES: &str = include_str!("../../../agent/docs/queries.md");

/// The first queries that have results for eight devices of which one has an owner, and how many: what has no
/// owner is a result of its own.
const ANSWERED: &[(&str, usize)] = &[
    ("Which devices are there?", 8),
    ("How busy is each device?", 8),
    ("Who uses how many devices?", 2),
    ("Whose energy, in kilowatt-hours a day?", 2),
    ("Which process holds how much memory?", 1),
    ("How much has no owner?", 1),
];

/// Prometheus' configuration on the page.
fn configuration() -> &'static str {
    let (_, from) = PAGE.split_once("```yaml\notlp:\n").unwrap();
    let (block, _) = from.split_once("```").unwrap();
    block
}

/// The query of a question.
fn query(question: &str) -> &'static str {
    let row = QUERIES.lines().find(|line| line.starts_with(&format!("| {question} |"))).unwrap();
    row.split('`').nth(1).unwrap()
}

#[test]
fn prometheus_3_takes_points_under_their_names_and_answers_the_first_queries() {
    let mut stage = or_skip!(Stage::new());
    let configuration = format!("otlp:\n{}", configuration());
    let folder = stage.folder().join("prometheus");
    let prometheus = or_skip!(Prometheus::otlp(&folder, &configuration));
    let pod = stage.pod(&TRAINER).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    nvml.set_processes(0, &[Some(worker.pid())]).unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(stage.pod_logs()),
        otlp: Some(Otlp { endpoint: prometheus.otlp_url(), protocol: None }),
        // It takes no events.
        more: format!(
            "{ALONE}[otlp.filter]\nevents = []\n[resource]\nk8s_cluster_name = \"lab\"\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();

    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let of_pod = [
        ("k8s_namespace_name", "research"),
        ("k8s_pod_name", "trainer-0"),
        ("k8s_pod_uid", pod.expected.pod_uid.as_deref().unwrap()),
        ("k8s_cluster_name", "lab"),
        ("host_name", host.as_str()),
    ];
    let labels: Vec<_> = of_pod.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
    let owner = format!("gpu_owner_busy_time_seconds_total{{{}}}", labels.join(","));
    let answers = |(query, count): (&str, usize)| {
        let found = || prometheus.query(query).ok().filter(|found| found.len() == count);
        until(WITHIN, found).unwrap_or_else(|| {
            panic!("{query}: {:#?}; {:#?}", prometheus.query(query), agent.log())
        })
    };
    answers((&owner, 1));
    for (question, count) in ANSWERED {
        answers((query(question), *count));
    }
    // Every name is one that the agent's own page has, with the same suffix.
    let ours: BTreeSet<String> = gpuwho_export::prometheus::names().collect();
    let is_ours = |name: &String| {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        ours.contains(name) || parts.is_some_and(|name| ours.contains(name))
    };
    let names = prometheus.names().unwrap();
    let others: Vec<_> = names.iter().filter(|name| !is_ours(name)).collect();
    assert_eq!(others, ["target_info"], "of {} names", names.len());
    assert!(names.len() > 100, "{names:?}");
    let log = agent.log();
    assert!(log.iter().all(|line| !line.contains("refuses")), "{log:#?}");
}
