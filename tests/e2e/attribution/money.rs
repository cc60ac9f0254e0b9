//! Money over restarts of the agent, seen at the real OpenTelemetry Collector: two pods and a job are clients
//! of one MPS server, a storm of short processes comes with each agent, one agent ends orderly and one is
//! killed. What nobody counted is in nobody's bill, and nothing is in two.

use crate::fixture::{MpsServer, two_pods_and_a_job};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Script};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Some ticks and a start of the agent, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// A price for an hour that no number of ticks divides.
const PRICE: f64 = 2.999_999_999;
/// A cent in a million.
const EXACT: f64 = 1e-8;
/// Points of each client's used time in the life of an agent.
const POINTS: usize = 4;

/// Clients of an MPS server on the first device.
struct Scene {
    // Ended before the stage under them.
    _workers: Vec<Worker>,
    _server: MpsServer,
    groups: [Group; 3],
    collector: Collector,
    nvml: FakeNvml,
    config: Config,
    stage: Stage,
}

impl Scene {
    fn new(mut stage: Stage, collector: Collector) -> Self {
        let groups = two_pods_and_a_job(&mut stage);
        let nvml = FakeNvml::install(stage.folder(), "mps").unwrap();
        let server = MpsServer::start();
        let workers: Vec<_> = groups.iter().map(|group| Worker::on(group, &[0]).unwrap()).collect();
        let clients = workers.iter().map(|worker| Some(worker.pid()));
        let pids: Vec<_> = [Some(server.pid())].into_iter().chain(clients).collect();
        nvml.set_processes(0, &pids).unwrap();
        let config = Config {
            interval: Some("200ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
            more: format!("[cost]\nprices = [{{ per_hour = {PRICE} }}]\n"),
            ..Config::default()
        };
        Self { _workers: workers, _server: server, groups, collector, nvml, config, stage }
    }

    /// An agent's life until each client has used the device for some ticks, with a storm in it; the
    /// moments of this life.
    fn live(&self) -> (Agent, Life) {
        let began = now_ns();
        let agent = Agent::start(self.stage.folder(), &self.config, Some(&self.nvml)).unwrap();
        let hold = Hold::Storm { count: 100, per_second: 500 };
        let script = Script { gpus: vec![0], hold, ..Script::default() };
        let _storm = Worker::start(Some(&self.groups[0]), &script).unwrap();
        let ready = |points: &[ReceivedPoint]| {
            let used =
                of(points, "gpu.owner.cost", &[("gpu.index", "0"), ("gpuwho.time.use", "used")]);
            let used: Vec<_> = used.into_iter().filter(|point| point.time >= began).collect();
            let count = |group: &Group| used.iter().filter(|point| is_of(point, group)).count();
            self.groups.iter().all(|group| count(group) >= POINTS).then_some(())
        };
        let found = self.collector.wait_for(WITHIN, ready).unwrap();
        assert!(found.is_some(), "no cost of every client; agent: {:#?}", agent.log());
        (agent, Life { began, ended: now_ns() })
    }
}

/// When an agent ran.
#[derive(Clone, Copy, Debug)]
struct Life {
    began: u64,
    ended: u64,
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

fn is_of(point: &ReceivedPoint, group: &Group) -> bool {
    let text = |key: &str| point.attrs.get(key).map(String::as_str);
    let expected = &group.expected;
    let is = |name: &Option<String>, key| name.is_some() && name.as_deref() == text(key);
    is(&expected.pod, "k8s.pod.name") || is(&expected.slurm_job, "slurm.job.id")
}

/// A metric's sum over all its points of a device at each moment.
fn sums(points: &[ReceivedPoint], metric: &str, gpu: &str) -> BTreeMap<u64, f64> {
    let mut sums = BTreeMap::new();
    for point in of(points, metric, &[("gpu.index", gpu)]) {
        *sums.entry(point.time).or_insert(0.0) += point.number().unwrap_or(0.0);
    }
    sums
}

#[test]
fn money_is_price_times_time_under_mps_over_restarts_in_the_middle_of_a_storm() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let scene = Scene::new(stage, collector);
    let begun = Instant::now();
    // Ended as an init system does.
    let (agent, first) = scene.live();
    drop(agent);
    let (mut agent, second) = scene.live();
    kill_process(Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap(), Signal::KILL)
        .unwrap();
    agent.wait(WITHIN).unwrap();
    drop(agent);
    let (agent, third) = scene.live();
    let points = scene.collector.points().unwrap();
    for gpu in ["0", "1"] {
        adds_up(&points, gpu);
        let starts: BTreeSet<u64> = of(&points, "gpu.cost", &[("gpu.index", gpu)])
            .iter()
            .map(|point| point.start)
            .collect();
        assert_eq!(starts.len(), 3, "a counter of each agent: {starts:?}");
        for life in [first, second, third] {
            is_no_more_than_the_life(&points, gpu, life);
        }
    }
    no_clients_work_is_its_servers(&points);
    let job = scene.groups[2].expected.slurm_job.clone().unwrap();
    receipt_is_of_all_lives(&agent, &job, begun);
}

/// At every moment of every life the owners' money is the device's, which is price times their time.
fn adds_up(points: &[ReceivedPoint], gpu: &str) {
    let [devices, owners, times] =
        ["gpu.cost", "gpu.owner.cost", "gpu.owner.time"].map(|metric| sums(points, metric, gpu));
    assert!(devices.len() >= 3 * POINTS, "{devices:?}");
    for (at, cost) in devices {
        let close = |what: &str, other: f64| {
            assert!(
                (cost - other).abs() <= other * EXACT,
                "{gpu} at {at}: {cost}, not {other} by {what}"
            );
        };
        close("owners", owners[&at]);
        close("time", times[&at] / 3600.0 * PRICE);
    }
}

/// No counter goes on from an earlier agent, and none has more time than its agent had.
fn is_no_more_than_the_life(points: &[ReceivedPoint], gpu: &str, Life { began, ended }: Life) {
    let costs = sums(points, "gpu.cost", gpu);
    let (at, last) = costs.range(began..=ended).next_back().expect("a point");
    let most = Duration::from_nanos(ended - began).as_secs_f64() / 3600.0 * PRICE;
    assert!(*last > 0.0 && *last <= most, "{gpu} at {at}: {last} of {most}");
}

/// The clients' samples are of 9 parts 2, 3 and 4; the server's own work is none.
fn no_clients_work_is_its_servers(points: &[ReceivedPoint]) {
    let used = of(points, "gpu.owner.cost", &[("gpu.index", "0"), ("gpuwho.time.use", "used")]);
    let of_kind = |kind: &str| {
        let of = used.iter().filter(|point| point.has(&[("gpuwho.owner.kind", kind)]));
        of.filter_map(|point| point.number()).fold(0.0, f64::max)
    };
    assert!(of_kind("pod") > 0.0 && of_kind("slurm_job") > 0.0);
    assert!(of_kind("systemd_unit") + of_kind("user") == 0.0, "{used:#?}");
}

/// The job's receipt is price times its time in all three lives.
fn receipt_is_of_all_lives(agent: &Agent, job: &str, begun: Instant) {
    let mut command = Command::new(program::gpuwho().unwrap());
    command.args(["receipt", job, "--json", "--socket"]).arg(agent.socket());
    let mut last = Value::Null;
    let number = |receipt: &Value, path: &str| receipt.pointer(path).and_then(Value::as_f64);
    let found = until(WITHIN, || {
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).ok()?;
        last = report["receipts"][0].clone();
        last["unknown"].to_string().contains("the agent restarted 2 times").then(|| last.clone())
    });
    let receipt = found.unwrap_or_else(|| panic!("{last:#}; agent: {:#?}", agent.log()));
    let parts = ["used", "idle", "unknown"].map(|part| format!("/gpu_hours/{part}"));
    let hours: f64 = parts.iter().filter_map(|path| number(&receipt, path)).sum();
    let cost = number(&receipt, "/cost/0/total").unwrap();
    assert!((cost - hours * PRICE).abs() <= cost * EXACT, "{receipt:#}");
    assert!(hours > 0.0 && hours * 3600.0 <= begun.elapsed().as_secs_f64(), "{receipt:#}");
}
