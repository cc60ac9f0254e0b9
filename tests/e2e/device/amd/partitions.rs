//! A board in CPX, two of whose partitions the kubelet has granted to a pod each: at the real OpenTelemetry
//! Collector each pod has its own partition's work, memory and energy, and its grant is of that partition.

use super::{BYTES, NO_NVIDIA, NOW, WITHIN, config, tree};
use crate::device::reader::rig::shipped;
use crate::device::vendors::grants;
use crate::fixture::TRAINER;
use fake_kubelet::Kubelet;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd::On;
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::worker::Worker;
use nvidia_ml::scenario::Scenario;
use std::time::Instant;

const BOARD: (&str, &str) = ("gpu.uuid", "GPU-e3a98f4e6c9d0100");
/// Pod, render node, and how the device plugin and the agent call the partition. The first partition has the
/// board's address.
const PODS: [(&str, u32, &str, &str); 2] = [
    ("trainer-0", 128, "0000:05:00.0", "GPU-e3a98f4e6c9d0100-xcp0"),
    ("trainer-1", 129, "amdgpu_xcp_0", "GPU-e3a98f4e6c9d0100-xcp1"),
];
/// The board's total and the owners' shares.
const PAIRS: [(&str, &str); 3] = [
    ("gpu.busy.time", "gpu.owner.busy.time"),
    ("gpu.accounted.energy", "gpu.owner.energy"),
    ("gpu.memory.byte_seconds", "gpu.owner.memory.byte_seconds"),
];
/// Moments with both pods' names.
const MOMENTS: usize = 6;

/// A pod's points of a metric on the board.
fn of_pod<'a>(points: &'a [ReceivedPoint], metric: &str, pod: &str) -> Vec<&'a ReceivedPoint> {
    of(points, metric, &[BOARD, ("k8s.pod.name", pod)])
}

/// The grant of each pod is of its partition, and active.
fn are_granted(points: &[ReceivedPoint]) -> bool {
    PODS.iter().all(|(pod, _, _, partition)| {
        let of_it = [("gpu.mig.uuid", *partition), ("gpu.allocation.kind", "instance")];
        let grants = of_pod(points, "gpu.allocation.info", pod);
        let times = of_pod(points, "gpu.allocation.time", pod).into_iter();
        let is_active = |point: &ReceivedPoint| point.has(&[("gpu.allocation.state", "active")]);
        grants.last().is_some_and(|point| point.has(&of_it))
            && times.filter(|point| is_active(point)).any(|point| point.number() > Some(0.0))
    })
}

fn at(points: &[&ReceivedPoint], time: u64) -> f64 {
    points.iter().filter(|point| point.time == time).filter_map(|point| point.number()).sum()
}

#[test]
fn two_pods_on_partitions_of_a_board_have_their_own_work_energy_and_grants() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let scenario = Scenario::load(&shipped("mi300x2-cpx")).unwrap();
    let tree = tree(&stage, &scenario);
    let kubelet = Kubelet::start(&stage.folder().join("kubelet")).unwrap();
    let _workers = PODS.map(|(name, render, id, _)| {
        let group = stage.pod(&PodSpec { name, ..TRAINER }).unwrap();
        let worker = Worker::on(&group, &[render]).unwrap();
        tree.compute(&On { pid: worker.pid(), render, bytes: BYTES }).unwrap();
        kubelet.set_pod(grants::pod(name, &group, "amd.com/gpu", id));
        worker
    });
    let own = config(&stage, &tree);
    let more = format!(
        "{}{NO_NVIDIA}[kubernetes]\ncri = [\"{}\"]\npod_resources = \"{}\"\n",
        own.more,
        kubelet.cri().display(),
        kubelet.pod_resources().display()
    );
    let otlp = Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    let agent = Agent::start(stage.folder(), &Config { otlp, more, ..own }, None).unwrap();
    let begun = Instant::now();
    let ready = |points: &[ReceivedPoint]| {
        tree.play(&scenario, NOW + begun.elapsed().as_secs_f64()).unwrap();
        let has_all = |(pod, ..): &(&str, u32, &str, &str)| {
            of_pod(points, "gpu.owner.energy", pod).len() >= MOMENTS
                && of_pod(points, "gpu.owner.busy.time", pod).len() >= MOMENTS
        };
        (are_granted(points) && PODS.iter().all(has_all)).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| {
        let all = collector.points().unwrap();
        panic!("{:#?} {:#?}", of(&all, "gpu.allocation.info", &[]), agent.log())
    });
    for (total, share) in PAIRS {
        let shares = of(&points, share, &[BOARD]);
        for point in of(&points, total, &[BOARD]) {
            let (sum, whole) = (at(&shares, point.time), point.number().unwrap());
            assert!((sum - whole).abs() <= whole * 1e-9, "{share}: {sum} of {whole}");
        }
    }
    for (pod, ..) in PODS {
        for (total, share) in &PAIRS[..2] {
            let own = of_pod(&points, share, pod);
            let own: Vec<_> = own.into_iter().filter(|point| point.number() > Some(0.0)).collect();
            let by_partition =
                |point: &&ReceivedPoint| point.has(&[("gpuwho.share.method", "instance")]);
            assert!(own.iter().all(by_partition), "{own:#?}");
            let [from, to] = [own.first().unwrap().time, own.last().unwrap().time];
            let board = of(&points, total, &[BOARD]);
            let grown = |of: &[&ReceivedPoint]| at(of, to) - at(of, from);
            // All eight partitions are at work alike.
            let part = grown(&own) / grown(&board);
            assert!((part - 0.125).abs() < 1e-6, "{share} of {pod}: {part}");
        }
    }
}
