//! What the kubelet grants its containers, whole, in replicas, as MIG instances and by claims, beside
//! what they do with it.

use crate::fixture::TRAINER;
use crate::points::{WatchedAgent, longest_gap, words};
use crate::slurm::grants::{
    ALLOCATION, READINGS, Row, granted, granted_still, grown, is_grant, owner, rows,
};
use fake_kubelet::{Allocation, Claim, ClaimDevice, Container, Devices, Kubelet, Memory, Pod};
use gpuwho_tests::agent::Config;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All that a kubelet grants something here.
const PODS: [&str; 11] = [
    "astray",
    "first",
    "second",
    "claimant",
    "sliced",
    "whole",
    "gke",
    "placed",
    "monitor-x2x4z",
    "sharer",
    "many",
];

/// Pods of one container each, and a kubelet that knows them.
struct Node {
    // Ended and removed before the stage under them.
    reported: WatchedAgent,
    kubelet: Kubelet,
    _workers: Vec<Worker>,
    stage: Stage,
}

/// A pod by name, its grant, and on which device and in which place the driver lists its process.
type Tenant<'a> = (&'a str, Allocation, Option<(u32, usize)>);

impl Node {
    fn new(stage: Stage, scenario: &str, tenants: &[Tenant<'_>]) -> Self {
        Self::of(stage, scenario, tenants, |_| {})
    }

    /// The same; `complete` adds to a pod what is not in its tenant's row.
    fn of(
        mut stage: Stage,
        scenario: &str,
        tenants: &[Tenant<'_>],
        complete: fn(&mut Pod),
    ) -> Self {
        let folder = stage.folder().to_owned();
        let kubelet = Kubelet::start(&folder.join("kubelet")).unwrap();
        let nvml = FakeNvml::install(&folder, scenario).unwrap();
        let mut listed: BTreeMap<u32, Vec<Option<u32>>> = BTreeMap::new();
        let mut workers = Vec::new();
        let offered = tenants.iter().flat_map(|(_, allocation, _)| allocation.devices.clone());
        let offered = Allocation { devices: offered.collect(), ..Allocation::default() };
        kubelet.set_allocatable(offered);
        for (name, allocation, place) in tenants {
            let group = stage.pod(&PodSpec { name, ..TRAINER }).unwrap();
            let mut pod = pod(name, &group, allocation.clone());
            complete(&mut pod);
            kubelet.set_pod(pod);
            let gpus: Vec<_> = place.iter().map(|(gpu, _)| *gpu).collect();
            let worker = Worker::on(&group, &gpus).unwrap();
            if let Some((gpu, place)) = *place {
                let slots = listed.entry(gpu).or_default();
                slots.resize(slots.len().max(place + 1), None);
                slots[place] = Some(worker.pid());
            }
            workers.push(worker);
        }
        for (gpu, pids) in listed {
            nvml.set_processes(gpu, &pids).unwrap();
        }
        let config = Config {
            more: format!(
                "[kubernetes]\ncri = [\"{}\"]\npod_resources = \"{}\"\n\
                 [containers]\ndocker = \"\"\npodman = \"\"\n",
                kubelet.cri().display(),
                kubelet.pod_resources().display()
            ),
            ..Config::default()
        };
        let watched = WatchedAgent::start_with(&folder, nvml, config);
        Self { reported: watched, kubelet, _workers: workers, stage }
    }

    /// Waits until exactly these are granted: device, pod and kind.
    fn wait_for_grants<const N: usize>(&mut self, all: [[&str; 3]; N]) -> BTreeSet<Row> {
        let wanted: BTreeSet<Row> = all.into_iter().map(grant).collect();
        self.reported.wait(&format!("the grants {wanted:#?}"), |points| {
            (granted_still(points, &PODS) == wanted).then_some(())
        });
        wanted
    }
}

fn grant([gpu, pod, kind]: [&str; 3]) -> Row {
    crate::points::expected([
        ("gpu.index", gpu),
        ("gpu.allocation.source", "kubelet"),
        ("gpu.allocation.kind", kind),
        ("k8s.pod.name", pod),
        ("k8s.container.name", TRAINER.container),
    ])
}

fn pod(name: &str, group: &Group, allocation: Allocation) -> Pod {
    let expected = &group.expected;
    let mut pod = Pod::new(TRAINER.namespace, name, expected.pod_uid.as_deref().unwrap());
    let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
    pod.containers.push(Container { allocation, ..Container::new(TRAINER.container, &id) });
    pod
}

fn devices(resource: &str, ids: &[&str]) -> Allocation {
    Allocation { devices: vec![Devices::of(resource, ids)], ..Allocation::default() }
}

fn claim(driver: &str, device: &str) -> Allocation {
    claim_of("one-gpu", driver, &[device])
}

fn claim_of(name: &str, driver: &str, devices: &[&str]) -> Allocation {
    let device = |device: &&str| ClaimDevice {
        driver: driver.to_owned(),
        pool: "node-a".to_owned(),
        device: (*device).to_owned(),
        cdi: vec![format!("k8s.{driver}/claim=8f4b-{device}")],
        share: None,
    };
    let (namespace, name) = (TRAINER.namespace.to_owned(), name.to_owned());
    let claims = vec![Claim { namespace, name, devices: devices.iter().map(device).collect() }];
    Allocation { claims, ..Allocation::default() }
}

/// An allocation with CPUs and memory of its own, of a device on the second NUMA node.
fn aligned(mut allocation: Allocation) -> Allocation {
    for devices in &mut allocation.devices {
        devices.numa = vec![1];
    }
    let memory = vec![Memory { kind: "memory".to_owned(), size: 1 << 30, numa: vec![0] }];
    Allocation { cpus: vec![2, 3, 8], memory, ..allocation }
}

/// What else is said of a pod's grant.
fn row_of(points: &[Value], pod: &str) -> Row {
    let starts = ["gpu.allocation.claim", "gpu.allocation.numa", "gpu.allocation.cpus"];
    let point = points.iter().rfind(|point| is_grant(point, ALLOCATION, &[pod])).unwrap();
    let memory = "gpu.allocation.memory";
    words(point, &[&starts[..], &[memory]].concat())
}

/// How many parts of each device there are to grant.
fn allocatable(points: &[Value]) -> BTreeMap<String, i64> {
    let all = points.iter().filter(|point| point["metric"] == "gpu.allocatable");
    let parts = all.filter_map(|point| {
        Some((point["attributes"]["gpu.index"].as_str()?.to_owned(), point["value"].as_i64()?))
    });
    parts.collect()
}

/// Pods, and by which words they asked for what they were granted.
fn asked_for(points: &[Value]) -> BTreeSet<[String; 3]> {
    let words = points.iter().filter(|point| is_grant(point, ALLOCATION, &PODS)).map(|point| {
        let text = |key: &str| point["attributes"][key].as_str().unwrap_or_default().to_owned();
        let replicas = point["attributes"]["gpu.allocation.replicas"].as_i64();
        let replicas = replicas.map(|count| count.to_string()).unwrap_or_default();
        [owner(point).to_owned(), text("gpu.allocation.resource"), replicas]
    });
    words.collect()
}

/// The pods that are on the first device, and what shows it.
fn running_on_first(points: &[Value]) -> BTreeSet<BTreeMap<String, String>> {
    let running = points.iter().filter(|point| {
        point["metric"] == "gpu.owner.processes"
            && point["attributes"]["gpu.index"] == "0"
            && point["value"] == 1
    });
    running.map(|point| words(point, &["k8s.pod.name", "gpuwho.presence"])).collect()
}

/// Everything that the kubelet of the test below tells of its grants and its devices.
fn says_what_the_kubelet_says(points: &[Value]) {
    let aligned = crate::points::expected([
        ("gpu.allocation.numa_nodes", "1"),
        ("gpu.allocation.cpus", "2-3,8"),
        ("gpu.allocation.memory.size", "1073741824"),
        ("gpu.allocation.memory.numa_nodes", "0"),
    ]);
    let claimed = crate::points::expected([
        ("gpu.allocation.claim.driver", "gpu.nvidia.com"),
        ("gpu.allocation.claim.pool", "node-a"),
        ("gpu.allocation.claim.device", "gpu-3"),
        ("gpu.allocation.claim.cdi_devices", "k8s.gpu.nvidia.com/claim=8f4b-gpu-3"),
    ]);
    let said = ["astray", "first", "claimant"].map(|pod| row_of(points, pod));
    assert_eq!(said, [aligned, Row::new(), claimed]);
    // Claims are in no list of what there is to grant.
    let offered = (0..8).map(|gpu| (gpu.to_string(), [0, 1, 2, 0, 0, 0, 0, 0][gpu]));
    assert_eq!(allocatable(points), offered.collect());
}

#[test]
fn whole_shared_and_claimed_gpus_are_their_pods_whatever_those_hold() {
    let uuid = |gpu: u32| format!("GPU-4f6b1c1e-8f0a-4c55-9d10-00000000000{gpu}");
    let (astray, shared) = (uuid(1), uuid(2));
    let replicas = ["0", "1"].map(|replica| format!("{shared}::{replica}"));
    let mut node = Node::new(
        or_skip!(Stage::new()),
        "h100x8",
        &[
            // Got the second and is on the first.
            ("astray", aligned(devices("nvidia.com/gpu", &[&astray])), Some((0, 0))),
            ("first", devices("nvidia.com/gpu.shared", &[&replicas[0]]), Some((2, 0))),
            ("second", devices("nvidia.com/gpu.shared", &[&replicas[1]]), None),
            ("claimant", claim("gpu.nvidia.com", "gpu-3"), Some((3, 0))),
        ],
    );
    let wanted = node.wait_for_grants([
        ["1", "astray", "exclusive"],
        ["2", "first", "replica"],
        ["2", "second", "replica"],
        ["3", "claimant", "claim"],
    ]);
    node.reported.wait_for_readings(1);
    let from = node.reported.wait_for_readings(READINGS);
    let states = rows([
        ["1", "astray", "unused"],
        ["2", "first", "active"],
        ["2", "second", "unused"],
        ["3", "claimant", "active"],
    ]);
    assert_eq!(grown(&node.reported.points()[from..], &PODS), states);
    let asked = asked_for(&node.reported.points()[from..]);
    let wanted_words = rows([
        ["astray", "nvidia.com/gpu", ""],
        ["first", "nvidia.com/gpu.shared", "1"],
        ["second", "nvidia.com/gpu.shared", "1"],
        ["claimant", "one-gpu", ""],
    ]);
    assert_eq!(asked, wanted_words);
    says_what_the_kubelet_says(&node.reported.points()[from..]);
    // What runs is told apart from what was granted.
    let on_first = running_on_first(&node.reported.points()[from..]);
    let seen = crate::points::expected([("k8s.pod.name", "astray"), ("gpuwho.presence", "listed")]);
    assert!(on_first.contains(&seen), "{on_first:#?}");

    // The kubelet takes connections and answers nobody; a new pod makes the agent ask.
    node.kubelet.go_deaf().unwrap();
    node.stage.pod(&PodSpec { name: "late", ..TRAINER }).unwrap();
    node.reported.wait_for_source(
        "pod_resources",
        "hung",
        "4 devices of the last list stay allocated",
    );
    node.reported.wait_for_readings(2);
    assert_eq!(granted_still(node.reported.points(), &PODS), wanted);
    let points = &node.reported.points()[from..];
    assert_eq!(granted(points, &PODS), wanted);
    assert_eq!(grown(points, &PODS), states);
    let gap = longest_gap(points);
    assert!(gap < Duration::from_secs(5), "{gap:?} between two readings");
}

#[test]
fn a_mig_instance_is_granted_to_its_pod_and_a_pod_that_is_gone_has_nothing() {
    let instance = "MIG-5c0e8a3b-0000-5a31-9d10-000000000002";
    let whole = "GPU-a1000000-aaaa-4c55-9d10-000000000003";
    let mut node = Node::new(
        or_skip!(Stage::new()),
        "a100-mig-3g20",
        &[
            ("sliced", devices("nvidia.com/mig-3g.20gb", &[instance]), Some((0, 1))),
            ("whole", devices("nvidia.com/gpu", &[whole]), Some((3, 0))),
            // GKE's plugin, and NVIDIA's driver of claims: by minor and GPU instance, or profile.
            ("gke", devices("nvidia.com/gpu", &["nvidia0/gi1"]), None),
            ("placed", claim("gpu.nvidia.com", "gpu-1-mig-2g10gb-14-2"), None),
        ],
    );
    let mut wanted = node.wait_for_grants([
        ["0", "sliced", "instance"],
        ["3", "whole", "exclusive"],
        ["0", "gke", "instance"],
        ["1", "placed", "claim"],
    ]);
    let instances = ["gke", "placed"].map(|pod| {
        let mut points = node.reported.points().iter();
        let point = points.rfind(|point| is_grant(point, ALLOCATION, &[pod])).unwrap();
        let [id, profile] =
            ["gpu.mig.gpu_instance.id", "gpu.mig.profile"].map(|key| &point["attributes"][key]);
        (id.as_i64().unwrap(), profile.as_str().unwrap().to_owned())
    });
    assert_eq!(instances, [(1, "3g.20gb".to_owned()), (3, "2g.10gb".to_owned())]);
    let who = node.reported.who();
    let uid = who["holders"].as_array().unwrap().iter().find(|holder| holder["pod"] == "whole");
    let uid = uid.unwrap()["pod_uid"].as_str().unwrap().to_owned();
    node.kubelet.remove_pod(&uid).unwrap();
    wanted.remove(&grant(["3", "whole", "exclusive"]));
    node.reported.wait("all but the grant of the pod that is gone", |points| {
        (granted_still(points, &PODS) == wanted).then_some(())
    });
}

/// The DaemonSet's labels (`apps/v1.ControllerRevisionHashLabelKey`, `extensions`'
/// `DaemonSetTemplateGenerationKey`) for a monitor, and a second container for who shares a claim.
fn complete(pod: &mut Pod) {
    if pod.name.starts_with("monitor") {
        for label in ["controller-revision-hash", "pod-template-generation"] {
            pod.labels.insert(label.to_owned(), "5".to_owned());
        }
    }
    if pod.name == "sharer" {
        let side =
            Container { name: "side".to_owned(), id: String::new(), ..pod.containers[0].clone() };
        pod.containers.push(side);
    }
}

/// Seconds for which the pods have had each device.
fn allocated_seconds(points: &[Value]) -> BTreeMap<[String; 2], f64> {
    let mut last: BTreeMap<[String; 3], f64> = BTreeMap::new();
    for point in points.iter().filter(|point| is_grant(point, "gpu.allocation.time", &PODS)) {
        let text = |key: &str| point["attributes"][key].as_str().unwrap_or_default().to_owned();
        let key = [text("gpu.index"), owner(point).to_owned(), text("gpu.allocation.state")];
        last.extend(point["value"].as_f64().map(|value| (key, value)));
    }
    let mut seconds = BTreeMap::new();
    for ([gpu, pod, _], value) in last {
        *seconds.entry([gpu, pod]).or_default() += value;
    }
    seconds
}

#[test]
fn a_monitor_is_granted_nothing_two_containers_share_their_pods_grant_and_replicas_are_a_number() {
    let all: Vec<_> = (0..8).map(|gpu| format!("gpu-{gpu}")).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let many: Vec<_> =
        (0..4096).map(|of| format!("GPU-4f6b1c1e-8f0a-4c55-9d10-000000000006::{of}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let driver = "gpu.nvidia.com";
    let mut node = Node::of(
        or_skip!(Stage::new()),
        "h100x8",
        &[
            ("monitor-x2x4z", claim_of("all-gpus", driver, &all), None),
            ("sharer", claim_of("two-gpus", driver, &["gpu-3", "gpu-4"]), None),
            ("many", devices("nvidia.com/gpu.shared", &many), None),
        ],
        complete,
    );
    let of_pod = |gpu: &str, pod: &str, kind: &str| {
        let mut row = grant([gpu, pod, kind]);
        if pod == "sharer" {
            row.remove("k8s.container.name");
        }
        row
    };
    let wanted: BTreeSet<Row> = [
        of_pod("3", "sharer", "claim"),
        of_pod("4", "sharer", "claim"),
        of_pod("6", "many", "replica"),
    ]
    .into();
    node.reported.wait(&format!("the grants {wanted:#?}"), |points| {
        (granted_still(points, &PODS) == wanted).then_some(())
    });
    node.reported.wait_for_source("pod_resources", "ready", "8 are claimed for administration");
    node.reported.wait_for_readings(1);
    let began = allocated_seconds(node.reported.points());
    let from = node.reported.wait_for_readings(READINGS);
    let asked = asked_for(&node.reported.points()[from..]);
    let words = rows([["many", "nvidia.com/gpu.shared", "4096"], ["sharer", "two-gpus", ""]]);
    assert_eq!(asked, words);
    let ended = allocated_seconds(node.reported.points());
    let grown = |gpu: &str, pod: &str| {
        let key = [gpu.to_owned(), pod.to_owned()];
        ended[&key] - began.get(&key).copied().unwrap_or_default()
    };
    let alone = grown("6", "many");
    assert!(alone > 0.0 && (grown("3", "sharer") - alone).abs() < 1e-6, "{began:?} {ended:?}");
}
