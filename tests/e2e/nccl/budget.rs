//! What the agent gives up when a rank calls without a pause: the event and the coverage, to the
//! receiver. How all comes back, after minutes, is in the live tests of the probe, whose pauses are short.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, ReceivedRecord as Record, of};
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use rustix::process::geteuid;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A device of this test's own: the agents of others are not to meet its storm.
const NODE: &str = "/dev/zero";
/// Hits a second: a thirtieth of what a rank makes that calls without a pause, where nothing else runs.
const BUDGET: u64 = 30_000;
const WITHIN: Duration = Duration::from_mins(1);

/// The changes of level reported so far.
fn steps(collector: &Collector) -> Vec<Record> {
    let records = collector.records().unwrap().into_iter();
    records.filter(|record| record.event == "nccl.probe.level.change").collect()
}

fn attr<'a>(record: &'a Record, name: &str) -> &'a str {
    record.attrs.get(name).map_or("", String::as_str)
}

fn number(record: &Record, name: &str) -> u64 {
    attr(record, name).parse().unwrap_or_else(|_| panic!("{name}: {record:?}"))
}

/// The part of the time between readings in which a kind of probe was there, reading by reading.
fn coverage(points: &[ReceivedPoint], metric: &str, part: &str) -> Vec<f64> {
    let all = of(points, metric, &[("nccl.probe", part)]);
    all.iter().filter_map(|point| point.number()).collect()
}

#[test]
fn a_rank_that_calls_without_a_pause_is_let_go_with_word_of_it() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    or_skip!(is_probed_here());
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let library = library(folder.path()).unwrap();
    let mut rank = Rank::holding(Path::new(NODE), &library, &[]).unwrap();
    let config = Config {
        interval: Some("4s".to_owned()),
        nodes: Some(vec![NODE.to_owned()]),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: format!("[nvidia]\nenabled = false\n[nccl]\nbudget = {BUDGET}\n"),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, None).unwrap();
    agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    let id = rank.order("id").unwrap();
    assert_eq!(rank.order(&format!("init world 1 0 {id}")).unwrap(), "0");
    let reported = || {
        rank.order("storm 500 ncclAllReduce world 16 7").unwrap();
        steps(&collector).into_iter().next()
    };
    let first = until(WITHIN, reported).expect("a change of level");
    let pid = rank.pid().to_string();
    assert_eq!(attr(&first, "nccl.probe.level.before"), "full", "{first:?}");
    assert_ne!(attr(&first, "nccl.probe.level"), "full", "{first:?}");
    assert_eq!(attr(&first, "nccl.library"), library.to_str().unwrap(), "{first:?}");
    assert_eq!(number(&first, "nccl.probe.hits_allowed"), BUDGET);
    assert!(number(&first, "nccl.probe.hit_rate") > BUDGET, "{first:?}");
    // Who pays most is named, with whose it is.
    assert_eq!(attr(&first, "process.pid"), pid, "{first:?}");
    assert!(first.attrs.contains_key("gpuwho.owner.method"), "{first:?}");
    let fallen = || {
        let points = collector.points().unwrap();
        let part = |metric| coverage(&points, metric, "return").into_iter().reduce(f64::min);
        let (host, own) = (part("nccl.probe.coverage")?, part("nccl.communicator.coverage")?);
        (host < 0.9 && own < 0.9).then_some((host, own))
    };
    let fallen = until(WITHIN, fallen).expect("coverage that falls");
    println!("{fallen:?} covered at least");
}
