//! Shares, seen at the real OpenTelemetry Collector: what the agent says of each owner adds up to
//! what it says of the device, under the owner's name.

use crate::fixture::{TRAINER, two_pods_and_a_job};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::worker::Worker;
use std::collections::BTreeMap;
use std::time::Duration;

/// Some ticks of half a second and one start of the reader, on a machine under load.
const WITHIN: Duration = Duration::from_secs(40);

/// A device's total and the shares of it.
const PAIRS: [(&str, &str); 3] = [
    ("gpu.busy.time", "gpu.owner.busy.time"),
    ("gpu.memory.byte_seconds", "gpu.owner.memory.byte_seconds"),
    ("gpu.accounted.energy", "gpu.owner.energy"),
];

/// The same of money, which goes on while a device is not read.
const COST: (&str, &str) = ("gpu.cost", "gpu.owner.cost");

/// A price for an hour that no number of ticks divides.
const PRICE: f64 = 2.999_999_999;

/// The number of a process that is not on this host: above any `pid_max`.
const STRANGER: u32 = 99_999_999;

/// On the first device two pods and a job; on the second a job alone; on the third a process that
/// nobody knows beside a pod; on the others nobody.
struct Scene {
    // Ended and removed before the stage under them.
    agent: Agent,
    _workers: Vec<Worker>,
    groups: [Group; 3],
    collector: Collector,
    nvml: FakeNvml,
    _stage: Stage,
}

impl Scene {
    fn new(mut stage: Stage, collector: Collector) -> Self {
        let groups = two_pods_and_a_job(&mut stage);
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
        let [pod, other, job] = &groups;
        let places = [(0, 0, pod), (0, 1, other), (0, 2, job), (1, 0, job), (2, 0, pod)];
        let workers: Vec<Worker> =
            places.iter().map(|(gpu, _, group)| Worker::on(group, &[*gpu]).unwrap()).collect();
        let pids: Vec<_> = workers.iter().map(|worker| Some(worker.pid())).collect();
        nvml.set_processes(0, &pids[..3]).unwrap();
        nvml.set_processes(1, &pids[3..4]).unwrap();
        nvml.set_processes(2, &[pids[4], Some(STRANGER)]).unwrap();
        let otlp = Otlp { endpoint: collector.http_endpoint(), protocol: None };
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            otlp: Some(otlp),
            more: format!("[cost]\nprices = [{{ per_hour = {PRICE} }}]\n"),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { agent, _workers: workers, groups, collector, nvml, _stage: stage }
    }

    /// What was received when each device had some intervals.
    fn points(&self) -> Vec<ReceivedPoint> {
        let ready = |points: &[ReceivedPoint]| {
            let all = (0..8).all(|gpu| of(points, "gpu.busy.time", &on(gpu)).len() >= 8);
            all.then(|| points.to_vec())
        };
        let points = self.collector.wait_for(WITHIN, ready).unwrap();
        points.unwrap_or_else(|| panic!("no intervals; agent: {:#?}", self.agent.log()))
    }

    /// The name an owner's points should carry.
    fn name(&self, place: usize) -> String {
        let Group { expected, .. } = &self.groups[place];
        let pod = expected.pod.as_ref().map(|name| format!("pod {name}"));
        pod.or(expected.slurm_job.as_ref().map(|job| format!("job {job}"))).unwrap()
    }
}

fn on(gpu: u32) -> [(&'static str, &'static str); 1] {
    [("gpu.index", ["0", "1", "2", "3", "4", "5", "6", "7"][gpu as usize])]
}

/// Who a point about an owner names, and how its share was found.
fn who(point: &ReceivedPoint) -> (String, String) {
    let text = |key: &str| point.attrs.get(key).cloned().unwrap_or_default();
    let name = match text("gpuwho.owner.kind").as_str() {
        "pod" => format!("pod {}", text("k8s.pod.name")),
        "slurm_job" => format!("job {}", text("slurm.job.id")),
        kind => kind.to_owned(),
    };
    (name, text("gpuwho.share.method"))
}

/// Increases of a metric on a device between two moments, by owner.
fn increases(
    points: &[ReceivedPoint],
    metric: &str,
    gpu: u32,
    [from, to]: [u64; 2],
) -> BTreeMap<(String, String), f64> {
    let mut sums = BTreeMap::new();
    for point in of(points, metric, &on(gpu)) {
        let value = point.number().unwrap_or(0.0);
        match point.time {
            time if time == from => *sums.entry(who(point)).or_insert(0.0) -= value,
            time if time == to => *sums.entry(who(point)).or_insert(0.0) += value,
            _ => {}
        }
    }
    sums
}

/// The first moment at which each owner of the device has a share under its name, and the last.
fn moments(points: &[ReceivedPoint], gpu: u32, owners: &[String]) -> [u64; 2] {
    let shares = of(points, "gpu.owner.busy.time", &on(gpu));
    let named = owners.iter().map(|owner| {
        let first = shares.iter().find(|point| {
            who(point).0 == *owner && point.number().is_some_and(|share| share > 0.0)
        });
        first.unwrap_or_else(|| panic!("no share of {owner} on {gpu}: {shares:#?}")).time
    });
    let from = named.max().unwrap_or_else(|| shares[0].time);
    let to = of(points, "gpu.busy.time", &on(gpu)).iter().map(|point| point.time).max().unwrap();
    assert!(to > from, "owners of {gpu} were named in the last interval");
    [from, to]
}

#[test]
fn the_shares_of_each_device_add_up_to_it_under_their_owners_names() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let scene = Scene::new(stage, collector);
    let points = scene.points();
    for gpu in 0..8 {
        for (total, share) in PAIRS {
            add_up_at_every_moment(&points, gpu, total, share);
        }
        add_up_at_every_moment(&points, gpu, COST.0, COST.1);
        cost_is_time_by_price(&points, gpu);
    }
    let [pod, other, job] = [0, 1, 2].map(|place| scene.name(place));
    // 2, 3 and 4 per cent of the multiprocessors, of a device that was busy for half the time.
    let owners = [pod.clone(), other.clone(), job.clone()];
    let parts = [2.0 / 9.0, 3.0 / 9.0, 4.0 / 9.0].map(|part| (part, "sampled"));
    share_is(&points, 0, &owners, &parts);
    share_is(&points, 1, std::slice::from_ref(&job), &[(1.0, "exclusive")]);
    // The device is busy for 62 per cent; 4 of them are the pod's, and the rest is nobody's.
    let owners = [pod, "unattributed".to_owned()];
    share_is(&points, 2, &owners, &[(4.0 / 62.0, "sampled"), (58.0 / 62.0, "none")]);
    share_is(&points, 3, &["unattributed".to_owned()], &[(1.0, "none")]);
    memory_is_what_the_driver_lists(&scene, &points);
}

#[test]
fn the_work_in_a_mig_instance_is_its_only_owner_s_by_its_part_of_the_device() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let groups = [
        stage.pod(&TRAINER).unwrap(),
        stage.pod(&PodSpec { name: "trainer-1", ..TRAINER }).unwrap(),
    ];
    let nvml = FakeNvml::install(stage.folder(), "h100-mig").unwrap();
    let workers = groups.each_ref().map(|group| Worker::on(group, &[0]).unwrap());
    nvml.set_processes(0, &workers.each_ref().map(|worker| Some(worker.pid()))).unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let owners =
        groups.each_ref().map(|group| format!("pod {}", group.expected.pod.as_deref().unwrap()));
    let ready = |points: &[ReceivedPoint]| {
        let shares = of(points, "gpu.owner.busy.time", &on(0));
        let named = |owner: &String| shares.iter().filter(|point| who(point).0 == *owner).count();
        owners.iter().all(|owner| named(owner) >= 6).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| panic!("no shares; agent: {:#?}", agent.log()));
    for (total, share) in PAIRS {
        add_up_at_every_moment(&points, 0, total, share);
    }
    let span = moments(&points, 0, &owners);
    let seconds: f64 = increases(&points, "gpu.accounted.time", 0, span).values().sum();
    let mut found = increases(&points, "gpu.owner.busy.time", 0, span);
    found.retain(|_, increase| *increase > 0.0);
    // Each in a half of three sevenths, of which one was at work for 40 % of the time and one for
    // 50; in the last seventh, which does not count, there is nobody.
    let expected = owners.iter().zip([0.4, 0.5].map(|busy| busy * 3.0 / 7.0));
    assert_eq!(found.len(), 2, "{found:?}");
    for (owner, part) in expected {
        let reported = found[&(owner.clone(), "instance".to_owned())] / seconds;
        assert!((reported - part).abs() < 1e-6, "{owner}: {reported} is not {part}");
    }
}

fn add_up_at_every_moment(points: &[ReceivedPoint], gpu: u32, total: &str, share: &str) {
    let shares = of(points, share, &on(gpu));
    for point in of(points, total, &on(gpu)) {
        let at = shares.iter().filter(|share| share.time == point.time);
        let sum: f64 = at.filter_map(|share| share.number()).sum();
        let whole = point.number().unwrap();
        assert!((sum - whole).abs() <= whole * 1e-9, "{share} of {gpu}: {sum} of {whole}");
    }
}

/// A device's cost is its price times the time of all its owners, to a cent in a million.
fn cost_is_time_by_price(points: &[ReceivedPoint], gpu: u32) {
    let times = of(points, "gpu.owner.time", &on(gpu));
    for point in of(points, COST.0, &on(gpu)) {
        let at = times.iter().filter(|time| time.time == point.time);
        let seconds: f64 = at.filter_map(|time| time.number()).sum();
        let (cost, expected) = (point.number().unwrap(), seconds / 3600.0 * PRICE);
        assert!((cost - expected).abs() <= expected * 1e-8, "{gpu}: {cost} is not {expected}");
    }
}

/// The device's busy time and energy are in these parts its owners'.
fn share_is(points: &[ReceivedPoint], gpu: u32, owners: &[String], parts: &[(f64, &str)]) {
    let span = moments(points, gpu, owners);
    for (total, share) in [PAIRS[0], PAIRS[2]] {
        let whole: f64 = increases(points, total, gpu, span).values().sum();
        assert!(whole > 0.0, "{total} of {gpu} did not grow");
        let mut found = increases(points, share, gpu, span);
        found.retain(|_, increase| *increase > 0.0);
        let expected: Vec<_> = owners.iter().zip(parts).collect();
        assert_eq!(found.len(), expected.len(), "{share} of {gpu}: {found:?}");
        for (owner, (part, method)) in expected {
            let increase = found[&(owner.clone(), (*method).to_owned())];
            let error = (increase / whole - part).abs();
            assert!(error < 1e-6, "{share} of {owner} on {gpu}: {increase} of {whole}");
        }
    }
}

fn memory_is_what_the_driver_lists(scene: &Scene, points: &[ReceivedPoint]) {
    let scenario = scene.nvml.truth().unwrap();
    let device = scenario.devices().next().unwrap();
    let held = device
        .processes()
        .take(3)
        .map(|process| process.value(process.group.memory.as_ref().unwrap(), 0.0));
    let used = device.value(&device.group.memory.used, 0.0);
    let owners = [0, 1, 2].map(|place| scene.name(place));
    let span = moments(points, 0, &owners);
    let seconds: f64 = increases(points, "gpu.accounted.time", 0, span).values().sum();
    let found = increases(points, "gpu.owner.memory.byte_seconds", 0, span);
    let mut rest = used;
    for (owner, bytes) in owners.iter().zip(held) {
        let share = found[&(owner.clone(), "sampled".to_owned())];
        assert!((share / seconds / bytes - 1.0).abs() < 1e-6, "{owner}: {share} in {seconds} s");
        rest -= bytes;
    }
    let nobody = found[&("unattributed".to_owned(), "none".to_owned())];
    assert!((nobody / seconds / rest - 1.0).abs() < 1e-6, "{nobody} is not {rest}");
}
