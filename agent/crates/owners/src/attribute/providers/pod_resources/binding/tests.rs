use super::*;
use crate::attribute::names::{Change, Provider};
use crate::nodes::fixture::VENDORS;
use gpuwho_kubernetes::pod_resources::{
    CdiDevice, ClaimResource, ContainerDevices, ContainerMemory, DynamicResource, NumaNode,
    TopologyInfo,
};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use std::path::Path;
use std::sync::LazyLock;

const GPU: &str = "GPU-11111111-2222-3333-4444-555555555555";
const OTHER: &str = "GPU-aaaaaaaa-2222-3333-4444-555555555555";
const MIG: &str = "MIG-0f3a1b2c-3d4e-5f60-7182-93a4b5c6d7e8";
fn names() -> NameContext<'static> {
    static NOWHERE: LazyLock<Paths> = LazyLock::new(|| Paths::under(Path::new("/nowhere")));
    NameContext::new(&NOWHERE, VENDORS, &[])
}

fn ownership() -> Ownership {
    Ownership::with_clock(&Paths::under(Path::new("/nowhere")), || 1)
}

fn runs(ownership: &Ownership, uid: &str, name: &str) {
    ownership.put_pod(
        Provider::Cri,
        PodFacts {
            uid: PodUid::new(uid),
            namespace: "ml".into(),
            name: name.into(),
            node: None,
            workload: AttrSet::new(),
            details: AttrSet::new(),
        },
    );
}

fn line(pod: &str, devices: &[(&str, &str)]) -> PodResources {
    let devices = devices.iter().map(|(resource, id)| ContainerDevices {
        resource_name: (*resource).into(),
        device_ids: vec![(*id).into()],
        topology: None,
    });
    let devices = devices.collect();
    let main = ContainerResources { name: "main".into(), devices, ..ContainerResources::default() };
    let containers = vec![main];
    PodResources { name: pod.into(), namespace: "ml".into(), containers, ..PodResources::default() }
}

fn on_nodes(ids: &[i64]) -> TopologyInfo {
    let nodes = ids.iter().map(|id| NumaNode { id: *id });
    TopologyInfo { nodes: nodes.collect() }
}

fn memory(kind: &str, size: u64, ids: &[i64]) -> ContainerMemory {
    ContainerMemory { memory_type: kind.into(), size, topology: Some(on_nodes(ids)) }
}

/// The allocations as text.
fn reported(outcome: &Outcome, ownership: &Ownership) -> Vec<String> {
    let mut texts = Vec::new();
    for allocation in &outcome.allocations {
        let facts = ownership.owner(allocation.owner).unwrap();
        let Owner::Pod { uid, container, within: None } = &facts.owner else { panic!("{facts:?}") };
        let container = container.as_deref().unwrap_or_default();
        let (kind, resource) =
            (allocation.kind.as_str(), allocation.details.resource.as_deref().unwrap());
        let replicas =
            allocation.details.replicas.map_or("-".to_owned(), |count| count.to_string());
        let device = &allocation.device;
        texts.push(format!("{uid}/{container} {kind} {device:?} {resource} {replicas}"));
    }
    texts
}

fn uuid(text: &str) -> String {
    format!("{:?}", DeviceName::Uuid(GpuUuid::new(text)))
}

#[test]
fn whole_devices_instances_replicas_and_claims_go_to_their_pods() {
    let ownership = ownership();
    for (uid, name) in [("u1", "llm-0"), ("u2", "mig"), ("u3", "shared"), ("u4", "dra")] {
        runs(&ownership, uid, name);
    }
    let mut dra = line("dra", &[]);
    dra.containers[0].dynamic_resources.push(DynamicResource {
        claim_namespace: "ml".into(),
        claim_name: "gpu-claim".into(),
        claim_resources: vec![ClaimResource {
            cdi_devices: vec![CdiDevice { name: "k8s.gpu.nvidia.com/claim=8f4b-gpu-3".into() }],
            driver_name: "gpu.nvidia.com".into(),
            pool_name: "node-a".into(),
            device_name: "gpu-3".into(),
            share_id: Some("s1".into()),
        }],
    });
    let list = vec![
        line("llm-0", &[("nvidia.com/gpu", GPU), ("rdma/hca", "mlx5_0")]),
        line("mig", &[("nvidia.com/mig-1g.10gb", MIG)]),
        line("shared", &[("nvidia.com/gpu.shared", &format!("{OTHER}::3"))]),
        dra,
        line("no-devices", &[]),
    ];
    let outcome = Binding::default().bind(list, &names(), &[], &ownership);
    let wanted = [
        format!("u1/main exclusive {} nvidia.com/gpu -", uuid(GPU)),
        format!("u2/main instance {} nvidia.com/mig-1g.10gb -", uuid(MIG)),
        format!("u3/main replica {} nvidia.com/gpu.shared 1", uuid(OTHER)),
        "u4/main claim Minor(3) gpu-claim -".to_owned(),
    ];
    assert_eq!(reported(&outcome, &ownership), wanted);
    assert_eq!((outcome.waiting, outcome.contested, outcome.unnamed.len()), (0, 0, 0));
}

#[test]
fn a_container_s_host_resources_come_with_its_device() {
    let ownership = ownership();
    let mut list = vec![line("whole", &[("nvidia.com/gpu", GPU)])];
    list.push(line("of-pod", &[("nvidia.com/gpu", OTHER)]));
    list.push(line("plain", &[("nvidia.com/gpu", MIG)]));
    for (uid, name) in [("u1", "whole"), ("u2", "of-pod"), ("u3", "plain")] {
        runs(&ownership, uid, name);
    }
    let container = &mut list[0].containers[0];
    container.devices[0].topology = Some(on_nodes(&[1]));
    container.cpu_ids = vec![9, 8];
    let huge = memory("hugepages-1Gi", 1 << 30, &[3]);
    container.memory = vec![memory("memory", 100, &[0]), memory("memory", 11, &[1]), huge];
    // The pod's own, if the container has none.
    list[0].cpu_ids = vec![1];
    list[1].cpu_ids = vec![4];
    list[1].memory = vec![memory("memory", 7, &[])];
    let outcome = Binding::default().bind(list, &names(), &[], &ownership);
    let pinned =
        outcome.allocations.iter().map(|allocation| allocation.details.pinned.as_deref().cloned());
    let expected = [
        Some(PinnedResources {
            numa: [1].into(),
            cpus: [8, 9].into(),
            memory: 111,
            memory_numa: [0, 1].into(),
        }),
        Some(PinnedResources { cpus: [4].into(), memory: 7, ..PinnedResources::default() }),
        None,
    ];
    assert_eq!(pinned.collect::<Vec<_>>(), expected);
}

#[test]
fn the_devices_of_an_unknown_pod_wait() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    let list = || vec![line("llm-0", &[("nvidia.com/gpu", GPU)])];
    let outcome = binding.bind(list(), &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.waiting), (0, 1));
    runs(&ownership, "u1", "llm-0");
    let outcome = binding.bind(list(), &names(), &[], &ownership);
    let wanted = format!("u1/main exclusive {} nvidia.com/gpu -", uuid(GPU));
    assert_eq!(reported(&outcome, &ownership), [wanted]);
}

#[test]
fn the_next_pod_of_a_name_never_gives_its_device_to_the_previous_one() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "llm-0");
    binding.bind(vec![line("llm-0", &[("nvidia.com/gpu", GPU)])], &names(), &[], &ownership);
    // The kubelet lists the next pod before a provider reports it.
    let next = || vec![line("llm-0", &[("nvidia.com/gpu", OTHER)])];
    let outcome = binding.bind(next(), &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.waiting), (0, 1));
    ownership.gone(Provider::Cri, &Change::Pod(PodUid::new("u1")));
    let outcome = binding.bind(next(), &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.waiting), (0, 1));
    runs(&ownership, "u2", "llm-0");
    let outcome = binding.bind(next(), &names(), &[], &ownership);
    let wanted = format!("u2/main exclusive {} nvidia.com/gpu -", uuid(OTHER));
    assert_eq!(reported(&outcome, &ownership), [wanted]);
}

#[test]
fn a_pod_listed_twice_has_no_devices_until_one_is_gone() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "llm-0");
    let list = vec![
        line("llm-0", &[("nvidia.com/gpu", GPU)]),
        line("llm-0", &[("nvidia.com/gpu", OTHER)]),
    ];
    let outcome = binding.bind(list, &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.waiting), (0, 2));
}

#[test]
fn a_device_still_listed_for_an_ended_pod_is_contested() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "done");
    runs(&ownership, "u2", "next");
    let shared = format!("{OTHER}::1");
    let list = |pods: &[&str]| {
        let devices = [("nvidia.com/gpu", GPU), ("nvidia.com/gpu.shared", &shared)];
        pods.iter().map(|pod| line(pod, &devices)).collect::<Vec<_>>()
    };
    let outcome = binding.bind(list(&["done", "next"]), &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.contested), (2, 2));
    assert!(outcome.allocations.iter().all(|allocation| allocation.kind == GrantKind::Replica));
    let outcome = binding.bind(list(&["next"]), &names(), &[], &ownership);
    assert_eq!((outcome.allocations.len(), outcome.contested), (2, 0));
}

/// A claim's devices as the kubelet lists them: each with the CDI names of those before it
/// (kubernetes/kubernetes 001332b `pkg/kubelet/cm/container_manager_linux.go` GetDynamicResources).
fn claim(driver: &str, devices: &[(&str, &str)]) -> DynamicResource {
    let mut cdi = Vec::new();
    let device = |(name, own): &(&str, &str)| {
        cdi.push(CdiDevice { name: (*own).into() });
        ClaimResource {
            cdi_devices: cdi.clone(),
            driver_name: driver.into(),
            pool_name: "node-a".into(),
            device_name: (*name).into(),
            share_id: None,
        }
    };
    DynamicResource {
        claim_namespace: "ml".into(),
        claim_name: "gpu-claim".into(),
        claim_resources: devices.iter().map(device).collect(),
    }
}

/// A pod whose containers have claims.
fn claims(pod: &str, containers: &[(&str, &[DynamicResource])]) -> PodResources {
    let container = |(name, claims): &(&str, &[DynamicResource])| ContainerResources {
        name: (*name).into(),
        dynamic_resources: claims.to_vec(),
        ..ContainerResources::default()
    };
    PodResources { containers: containers.iter().map(container).collect(), ..line(pod, &[]) }
}

#[test]
fn a_device_of_two_containers_is_their_pod_s() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "train");
    let mut pod = line("train", &[("nvidia.com/gpu", GPU), ("nvidia.com/gpu", OTHER)]);
    pod.cpu_ids = vec![1, 2, 3];
    let container = &mut pod.containers[0];
    container.cpu_ids = vec![2];
    container.devices[0].topology = Some(on_nodes(&[1]));
    let devices = container.devices[..1].to_vec();
    let init = ContainerResources { name: "init".into(), devices, ..ContainerResources::default() };
    pod.containers.push(init);
    let outcome = binding.bind(vec![pod], &names(), &[], &ownership);
    assert_eq!(
        reported(&outcome, &ownership),
        [
            format!("u1/ exclusive {} nvidia.com/gpu -", uuid(GPU)),
            format!("u1/main exclusive {} nvidia.com/gpu -", uuid(OTHER)),
        ]
    );
    let pinned = outcome.allocations.iter().map(|one| one.details.pinned.as_deref().unwrap());
    let cpus = pinned.map(|pinned| (pinned.cpus.len(), pinned.numa.len()));
    assert_eq!(
        cpus.collect::<Vec<_>>(),
        [(3, 1), (1, 0)],
        "what the pod has, what a container has"
    );
    assert_eq!(outcome.allocations[0].holder, outcome.allocations[0].owner);
    assert_eq!(outcome.allocations[1].holder, outcome.allocations[0].owner);
}

#[test]
fn a_claim_is_one_allocation_of_a_device_whoever_of_the_pod_uses_it_and_however_often_it_is_listed()
{
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "train");
    let devices = [("gpu-0", "k8s.gpu.nvidia.com/claim=8f4b-gpu-0"), ("gpu-3", "")];
    let one = claim("gpu.nvidia.com", &devices);
    // For each of its requests, and with each retry of another driver (kubernetes/kubernetes #141335).
    let retried = claim("gpu.nvidia.com", &[devices, devices, devices].concat());
    let a: &[DynamicResource] = &[one.clone(), one.clone(), retried];
    let pod = claims("train", &[("a", a), ("b", &[one])]);
    let outcome = binding.bind(vec![pod], &names(), &[], &ownership);
    let wanted = ["u1/ claim Minor(0) gpu-claim -", "u1/ claim Minor(3) gpu-claim -"];
    assert_eq!(reported(&outcome, &ownership), wanted);
}

#[test]
fn replicas_are_counted_however_many() {
    let (ownership, mut binding) = (ownership(), Binding::default());
    runs(&ownership, "u1", "a");
    let ids: Vec<_> = (0..4096).map(|replica| format!("{GPU}::{replica}")).collect();
    let devices: Vec<_> = ids.iter().map(|id| ("nvidia.com/gpu.shared", id.as_str())).collect();
    let outcome = binding.bind(vec![line("a", &devices)], &names(), &[], &ownership);
    let wanted = format!("u1/main replica {} nvidia.com/gpu.shared 4096", uuid(GPU));
    assert_eq!(reported(&outcome, &ownership), [wanted]);
}

#[test]
fn a_claim_s_device_is_the_one_of_the_cdi_name_that_no_earlier_one_has() {
    let ownership = ownership();
    let extra = ["npu.example.com".into()];
    let nowhere = Paths::under(Path::new("/nowhere"));
    let names = NameContext::new(&nowhere, VENDORS, &extra);
    runs(&ownership, "u1", "a");
    let of = |devices: &[(&str, &str)]| {
        let pod = claims("a", &[("main", &[claim("npu.example.com", devices)])]);
        Binding::default().bind(vec![pod], &names, &[], &ownership)
    };
    let [first, second] = [("left", "nvidia.com/gpu=0"), ("right", "nvidia.com/gpu=3")];
    let outcome = of(&[first, second]);
    let named = |at: usize| &outcome.allocations[at];
    let device = |index| DeviceName::IndexOf("nvidia", index);
    assert_eq!([0, 1].map(|at| named(at).device.clone()), [device(0), device(3)]);
    let cdi = [0, 1].map(|at| named(at).details.claimed.as_ref().unwrap().cdi.join(","));
    assert_eq!(cdi, [first.1, second.1]);
    // None of its own, and one that is no device's.
    for second in [("right", "nvidia.com/gpu=0"), ("right", "nvidia.com/gpu=all")] {
        let outcome = of(&[first, second]);
        assert_eq!(outcome.allocations.len(), 1, "{second:?}");
        assert_eq!(outcome.unnamed, BTreeMap::from([(Unnamed::Cdi, 1)]), "{second:?}");
    }
    // Several.
    let mut two = claim("npu.example.com", &[first, second]);
    two.claim_resources.remove(0);
    let pod = claims("a", &[("main", &[two])]);
    let outcome = Binding::default().bind(vec![pod], &names, &[], &ownership);
    assert_eq!(outcome.unnamed, BTreeMap::from([(Unnamed::Cdi, 1)]));
}

#[test]
fn a_claim_is_told_with_its_daemon_set_and_a_share_is_none() {
    let ownership = ownership();
    let mut facts = PodFacts::named(PodUid::new("u1"), "ml", "monitor-x2x4z");
    facts.workload.set(&attr::K8S_DAEMONSET_NAME, "monitor");
    ownership.put_pod(Provider::Cri, facts);
    runs(&ownership, "u2", "train");
    let mut shared = claim("gpu.nvidia.com", &[("gpu-1", "")]);
    shared.claim_resources[0].share_id = Some("s1".into());
    let all = claim("gpu.nvidia.com", &[("gpu-0", "")]);
    let list = vec![
        claims("monitor-x2x4z", &[("main", std::slice::from_ref(&all))]),
        claims("train", &[("main", &[all, shared])]),
    ];
    let outcome = Binding::default().bind(list, &names(), &[], &ownership);
    let claim =
        |is_of_daemon_set| Some(Arc::new(Claim { name: "ml/gpu-claim".into(), is_of_daemon_set }));
    let claimed = outcome.allocations.iter().map(|one| one.claim.clone());
    assert_eq!(claimed.collect::<Vec<_>>(), [claim(true), claim(false), None]);
}

#[test]
fn what_is_for_administration_by_configuration_is_no_allocation() {
    for (pattern, left, claims_left) in
        [("ml", 0, 0), ("m*", 0, 0), ("ml/gpu-claim", 1, 0), ("ml/gpu*", 1, 0), ("other", 1, 1)]
    {
        let ownership = ownership();
        runs(&ownership, "u1", "a");
        let mut pod = claims("a", &[("main", &[claim("gpu.nvidia.com", &[("gpu-0", "")])])]);
        pod.containers.extend(line("a", &[("nvidia.com/gpu", GPU)]).containers);
        let outcome =
            Binding::default().bind(vec![pod], &names(), &[pattern.to_owned()], &ownership);
        let of_claim = |one: &&Allocation| one.kind == GrantKind::Claim;
        let claims = outcome.allocations.iter().filter(of_claim).count();
        let plugins = outcome.allocations.len() - claims;
        assert_eq!((plugins, claims), (left, claims_left), "{pattern}");
        assert_eq!(outcome.administrative, 2 - left - claims_left, "{pattern}");
    }
}

#[test]
fn a_device_without_a_known_name_is_counted_by_reason() {
    let ownership = ownership();
    runs(&ownership, "u1", "a");
    let devices =
        [("amd.com/gpu", "amdgpu_xcp_9"), ("nvidia.com/gpu", "what"), ("amd.com/gpu", "7")];
    let outcome = Binding::default().bind(vec![line("a", &devices)], &names(), &[], &ownership);
    let wanted = BTreeMap::from([(Unnamed::Partition, 1), (Unnamed::Form, 2)]);
    assert_eq!((outcome.allocations.len(), &outcome.unnamed), (0, &wanted));
}

#[test]
fn an_allocation_removes_no_name_of_the_pods_processes() {
    let ownership = ownership();
    runs(&ownership, "u1", "a");
    let owner_id =
        Owner::Pod { uid: PodUid::new("u1"), container: Some("main".into()), within: None };
    let pod = Pod {
        qos: Some("guaranteed"),
        name: Some("a".into()),
        namespace: Some("ml".into()),
        container: Some("main".into()),
        ..Pod::unnamed(PodUid::new("u1"))
    };
    let richer = Workload { pod: Some(pod), ..Workload::default() };
    let id = ownership.allocation_owner(owner_id, &richer);
    let before = ownership.owner(id).unwrap();
    let list = vec![line("a", &[("nvidia.com/gpu", GPU)])];
    let outcome = Binding::default().bind(list, &names(), &[], &ownership);
    assert_eq!(outcome.allocations[0].owner, id);
    assert!(Arc::ptr_eq(&before, &ownership.owner(id).unwrap()));
}
