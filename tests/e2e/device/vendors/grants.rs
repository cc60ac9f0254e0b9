//! What the kubelet grants of each vendor, by the names that the vendor's plugin gives its devices.

use super::{Host, VENDORS, WITHIN, arrived, pod_of, workers};
use crate::fixture::TRAINER;
use fake_kubelet::{Allocation, Container, Devices, Kubelet, Pod};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::ReceivedPoint;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, Stage};

/// Vendor, resource, the plugin's name of the device, the device, and what kind of grant it is.
type Grant = (&'static str, &'static str, &'static str, &'static str, &'static str);

const GRANTS: [Grant; 6] = [
    ("amd", "amd.com/gpu", "0000:05:00.0", "GPU-e3a98f4e6c9d0100", "exclusive"),
    ("gaudi", "habana.ai/gaudi", "AN50012340", "01P4-HL3090A0-18-U4V193-22-07-00", "exclusive"),
    ("tenstorrent", "tenstorrent.com/n300", "0", "TT-00112233aabbcc00", "exclusive"),
    ("tpu", "google.com/tpu", "0", "TPU-0000:80:00.0", "exclusive"),
    ("intel", "gpu.intel.com/xe", "card0-0", "GPU-0000:c0:00.0", "replica"),
    ("neuron", "aws.amazon.com/neuron", "0", "NEURON-0123456789abcde0", "exclusive"),
];

pub(in crate::device) fn pod(name: &str, group: &Group, resource: &str, device: &str) -> Pod {
    let expected = &group.expected;
    let mut pod = Pod::new(TRAINER.namespace, name, expected.pod_uid.as_deref().unwrap());
    let id = format!("containerd://{}", expected.container_id.as_deref().unwrap());
    let devices = vec![Devices::of(resource, &[device])];
    let allocation = Allocation { devices, ..Allocation::default() };
    pod.containers.push(Container { allocation, ..Container::new(TRAINER.container, &id) });
    pod
}

/// Whether a grant has arrived, and that its own process is on it, so that it does not lie idle.
fn is_granted(points: &[ReceivedPoint], grant: &Grant) -> bool {
    let (vendor, resource, _, uuid, kind) = *grant;
    let pod = pod_of(vendor);
    let on = [("gpu.uuid", uuid), ("k8s.pod.name", pod.as_str())];
    let words = [
        ("gpu.allocation.source", "kubelet"),
        ("gpu.allocation.kind", kind),
        ("gpu.allocation.resource", resource),
    ];
    let granted = arrived(points, "gpu.allocation.info", &[&on[..], &words].concat());
    let owners = arrived(points, "gpu.owner.processes", &on);
    granted.last() == Some(&1.0) && owners.last() == Some(&1.0)
}

#[test]
fn each_vendors_grants_are_bound_to_its_own_device_and_to_the_pod_that_uses_it() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let host = Host::new(&stage);
    let kubelet = Kubelet::start(&stage.folder().join("kubelet")).unwrap();
    let workers = workers(&mut stage, &host);
    for (vendor, resource, device, _, _) in GRANTS {
        let (_, group, _) = workers.iter().find(|(known, _, _)| *known == vendor).unwrap();
        kubelet.set_pod(pod(&pod_of(vendor), group, resource, device));
    }
    let own = host.config(&stage);
    let config = Config {
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: format!(
            "{}[kubernetes]\ncri = [\"{}\"]\npod_resources = \"{}\"\n\
             [containers]\ndocker = \"\"\npodman = \"\"\n",
            own.more,
            kubelet.cri().display(),
            kubelet.pod_resources().display()
        ),
        ..own
    };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let ready = |points: &[ReceivedPoint]| {
        host.play();
        GRANTS.iter().all(|grant| is_granted(points, grant)).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| {
        let all = collector.points().unwrap();
        let lacks: Vec<_> = GRANTS.iter().filter(|grant| !is_granted(&all, grant)).collect();
        panic!("{lacks:#?} {:#?} {:#?}", agent.who(), agent.log())
    });
    // One device each, whatever has the same index at another vendor.
    for (vendor, _, _) in VENDORS {
        let pod = pod_of(vendor);
        let on = gpuwho_tests::collector::received::of(
            &points,
            "gpu.allocation.info",
            &[("k8s.pod.name", &pod)],
        );
        assert!(on.iter().all(|point| point.has(&[("gpu.vendor", vendor)])), "{on:#?}");
    }
}
