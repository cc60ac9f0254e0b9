//! A client of the real protocols against the fake.

use crate::core;
use crate::pods::{self, Event, EventType};
use crate::{
    Allocation, Api, Claim, ClaimDevice, Container, ContainerKind, Devices, Fault, Kubelet, Memory,
    Owner, Pod,
};
use gpuwho_kubernetes::pod_resources::{
    self as resources, AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice,
    ClaimResource, ContainerDevices, ContainerMemory, ContainerResources, DynamicResource,
    NumaNode, PodResources, TopologyInfo,
};
use prost::Message;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

const UID: &str = "7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f5a11";

/// Longer than anything here takes.
const SOON: Duration = Duration::from_mins(1);

struct Client {
    kubelet: Kubelet,
    runtime: Runtime,
    _folder: TempDir,
}

impl Client {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = Kubelet::start(folder.path()).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { kubelet, runtime, _folder: folder }
    }

    fn ask<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let socket = if method.starts_with("/v1.") {
            self.kubelet.pod_resources()
        } else {
            self.kubelet.pods_api()
        };
        self.runtime.block_on(async {
            let mut client = connect(&socket).await?;
            let path = PathAndQuery::from_static(method);
            let answer = client.unary(Request::new(request), path, ProstCodec::default());
            Ok(answer.await?.into_inner())
        })
    }

    fn list(&self) -> Result<resources::ListPodResourcesResponse, Status> {
        self.ask("/v1.PodResourcesLister/List", resources::ListPodResourcesRequest {})
    }

    /// Whether a call that can be made is answered within the time.
    fn is_answered(&self, within: Duration) -> bool {
        let answer = self.runtime.block_on(async {
            let mut client = connect(&self.kubelet.pod_resources()).await.unwrap();
            let path = PathAndQuery::from_static("/v1.PodResourcesLister/List");
            let request = Request::new(resources::ListPodResourcesRequest {});
            let codec = ProstCodec::<_, resources::ListPodResourcesResponse>::default();
            let answer = client.unary(request, path, codec);
            tokio::time::timeout(within, answer).await
        });
        answer.is_ok()
    }

    fn watch(&self) -> Streaming<Event> {
        self.runtime.block_on(async {
            let mut client = connect(&self.kubelet.pods_api()).await.unwrap();
            let path = PathAndQuery::from_static("/v1alpha1.Pods/WatchPods");
            let request = Request::new(pods::WatchRequest {});
            client
                .server_streaming(request, path, ProstCodec::default())
                .await
                .unwrap()
                .into_inner()
        })
    }

    fn next(
        &self,
        events: &mut Streaming<Event>,
    ) -> Result<Option<(EventType, core::Pod)>, Status> {
        let next = async { tokio::time::timeout(SOON, events.message()).await.unwrap() };
        let event = self.runtime.block_on(next)?;
        Ok(event.map(|event| {
            let pod = match event.kind() {
                EventType::InitialSyncComplete => {
                    assert_eq!(event.pod, []);
                    core::Pod::default()
                }
                _ => core::Pod::decode(event.pod.as_slice()).unwrap(),
            };
            (event.kind(), pod)
        }))
    }
}

async fn connect(socket: &Path) -> Result<Grpc<Channel>, Status> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    let channel = endpoint.connect().await;
    let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(client)
}

fn granted(name: &str, allocation: Allocation) -> Container {
    Container { allocation, ..Container::new(name, &format!("containerd://{name}")) }
}

fn devices(devices: Vec<Devices>) -> Allocation {
    Allocation { devices, ..Allocation::default() }
}

fn of_the_wire(resource: &str, id: &str) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: None,
    }
}

/// A container for each way to be granted a device, one with nothing, and one that is not listed.
fn with_every_allocation() -> Pod {
    let full = Devices { numa: vec![1], ..Devices::of("nvidia.com/gpu", &["GPU-1"]) };
    let memory = Memory { kind: "memory".to_owned(), size: 1 << 30, numa: vec![0] };
    let full =
        Allocation { devices: vec![full], cpus: vec![2, 3], memory: vec![memory], claims: vec![] };
    let claim = Claim {
        namespace: "research".to_owned(),
        name: "gpu-claim".to_owned(),
        devices: vec![ClaimDevice {
            driver: "gpu.nvidia.com".to_owned(),
            pool: "node-a".to_owned(),
            device: "gpu-0".to_owned(),
            cdi: vec!["k8s.gpu.nvidia.com/claim=1-gpu-0".to_owned()],
            share: Some("half".to_owned()),
        }],
    };
    Pod {
        containers: vec![
            granted("full", full),
            granted("mig", devices(vec![Devices::of("nvidia.com/mig-1g.10gb", &["MIG-1"])])),
            granted("shared", devices(vec![Devices::of("nvidia.com/gpu.shared", &["GPU-1::3"])])),
            granted("claim", Allocation { claims: vec![claim], ..Allocation::default() }),
            Container::new("nothing", "containerd://nothing"),
            Container { kind: ContainerKind::Init, ..Container::new("init", "") },
        ],
        ..Pod::new("research", "llm-0", UID)
    }
}

/// What the kubelet writes of that.
fn every_allocation() -> PodResources {
    let topology = |id| Some(TopologyInfo { nodes: vec![NumaNode { id }] });
    let container = |name: &str| ContainerResources { name: name.to_owned(), ..Default::default() };
    let with = |name: &str, devices| ContainerResources { devices, ..container(name) };
    let memory =
        ContainerMemory { memory_type: "memory".to_owned(), size: 1 << 30, topology: topology(0) };
    let full = of_the_wire("nvidia.com/gpu", "GPU-1");
    let full = ContainerDevices { topology: topology(1), ..full };
    let claimed = ClaimResource {
        cdi_devices: vec![CdiDevice { name: "k8s.gpu.nvidia.com/claim=1-gpu-0".to_owned() }],
        driver_name: "gpu.nvidia.com".to_owned(),
        pool_name: "node-a".to_owned(),
        device_name: "gpu-0".to_owned(),
        share_id: Some("half".to_owned()),
    };
    let claim = DynamicResource {
        claim_name: "gpu-claim".to_owned(),
        claim_namespace: "research".to_owned(),
        claim_resources: vec![claimed],
    };
    let containers = vec![
        ContainerResources {
            cpu_ids: vec![2, 3],
            memory: vec![memory],
            ..with("full", vec![full])
        },
        with("mig", vec![of_the_wire("nvidia.com/mig-1g.10gb", "MIG-1")]),
        with("shared", vec![of_the_wire("nvidia.com/gpu.shared", "GPU-1::3")]),
        ContainerResources { dynamic_resources: vec![claim], ..container("claim") },
        container("nothing"),
    ];
    PodResources {
        name: "llm-0".to_owned(),
        namespace: "research".to_owned(),
        containers,
        ..PodResources::default()
    }
}

#[test]
fn every_kind_of_allocation_is_listed_as_the_kubelet_writes_it() {
    let client = Client::new();
    client.kubelet.set_pod(with_every_allocation());
    assert_eq!(client.list().unwrap().pod_resources, vec![every_allocation()]);
    let get = |name: &str| {
        let (pod_name, pod_namespace) = (name.to_owned(), "research".to_owned());
        client.ask(
            "/v1.PodResourcesLister/Get",
            resources::GetPodResourcesRequest { pod_name, pod_namespace },
        )
    };
    let found: resources::GetPodResourcesResponse = get("llm-0").unwrap();
    assert_eq!(found.pod_resources, Some(every_allocation()));
    let missing = get("llm-1").unwrap_err();
    assert_eq!(missing.code(), Code::Unknown);
    assert_eq!(missing.message(), "pod llm-1 in namespace research not found");
}

#[test]
fn what_a_node_has_to_grant_is_what_was_set() {
    let client = Client::new();
    let gpus = devices(vec![Devices::of("nvidia.com/gpu", &["GPU-1"])]);
    client.kubelet.set_allocatable(Allocation { cpus: vec![0, 1], ..gpus });
    let method = "/v1.PodResourcesLister/GetAllocatableResources";
    let answer: AllocatableResourcesResponse =
        client.ask(method, AllocatableResourcesRequest {}).unwrap();
    let expected = AllocatableResourcesResponse {
        devices: vec![of_the_wire("nvidia.com/gpu", "GPU-1")],
        cpu_ids: vec![0, 1],
        memory: Vec::new(),
    };
    assert_eq!(answer, expected);
}

fn owned() -> Pod {
    let owner = Owner {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: "llm-7d9f".to_owned(),
        uid: "aaaaaaaa-0000-4000-8000-000000000001".to_owned(),
        controller: true,
    };
    let of_kind = |name: &str, kind| Container {
        kind,
        restarts: 2,
        ..Container::new(name, &format!("containerd://{name}"))
    };
    Pod {
        labels: [("app".to_owned(), "llm".to_owned())].into(),
        annotations: [("note".to_owned(), "x".to_owned())].into(),
        owners: vec![owner],
        priority_class: "high".to_owned(),
        containers: vec![
            of_kind("server", ContainerKind::Regular),
            of_kind("fetch", ContainerKind::Init),
            of_kind("proxy", ContainerKind::Sidecar),
            of_kind("debugger", ContainerKind::Ephemeral),
        ],
        ..Pod::new("research", "llm-0", UID)
    }
}

#[test]
fn a_whole_pod_is_listed_with_its_owners_and_all_its_containers() {
    let client = Client::new();
    client.kubelet.set_pod(owned());
    let listed: pods::ListResponse =
        client.ask("/v1alpha1.Pods/ListPods", pods::ListRequest {}).unwrap();
    let [bytes] = &listed.pods[..] else { panic!("{listed:?}") };
    let pod = core::Pod::decode(bytes.as_slice()).unwrap();
    let metadata = &pod.metadata;
    assert_eq!((&*metadata.name, &*metadata.namespace, &*metadata.uid), ("llm-0", "research", UID));
    assert_eq!(metadata.labels["app"], "llm");
    assert_eq!(metadata.annotations["note"], "x");
    let owners = [core::OwnerReference {
        kind: "ReplicaSet".to_owned(),
        name: "llm-7d9f".to_owned(),
        uid: "aaaaaaaa-0000-4000-8000-000000000001".to_owned(),
        api_version: "apps/v1".to_owned(),
        controller: Some(true),
    }];
    assert_eq!(metadata.owners, owners);
    assert_eq!((&*pod.spec.node_name, &*pod.spec.priority_class_name), ("node-a", "high"));
    assert_eq!((&*pod.status.phase, &*pod.status.qos_class), ("Running", "Burstable"));
    let names = |list: &[core::ContainerStatus]| -> Vec<String> {
        list.iter().map(|status| format!("{} {}", status.name, status.container_id)).collect()
    };
    assert_eq!(names(&pod.status.containers), ["server containerd://server"]);
    let init = ["fetch containerd://fetch", "proxy containerd://proxy"];
    assert_eq!(names(&pod.status.init_containers), init);
    assert_eq!(names(&pod.status.ephemeral_containers), ["debugger containerd://debugger"]);
    assert_eq!(pod.status.containers[0].image, "registry.test/research/trainer:1.4");
    assert_eq!(pod.status.containers[0].restart_count, 2);

    let get =
        |uid: &str| client.ask("/v1alpha1.Pods/GetPod", pods::GetRequest { uid: uid.to_owned() });
    let found: pods::GetResponse = get(UID).unwrap();
    assert_eq!(&found.pod, bytes);
    let missing = get("x").unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "pod with UID x not found"));
}

#[test]
fn a_list_of_allocations_is_what_kubernetes_itself_writes() {
    let theirs = include_bytes!("../../../fixtures/kubernetes/fake-pod-resources.binpb");
    let ours = resources::ListPodResourcesResponse { pod_resources: vec![every_allocation()] };
    assert_eq!(ours.encode_to_vec(), theirs);
}

#[test]
fn a_pod_that_kubernetes_itself_wrote_has_its_fields_where_ours_are() {
    let theirs = include_bytes!("../../../fixtures/kubernetes/fake-pod.binpb");
    let theirs = pods::GetResponse::decode(&theirs[..]).unwrap();
    let theirs = core::Pod::decode(theirs.pod.as_slice()).unwrap();
    let container = |name: &str, number: u32, kind| Container {
        kind,
        restarts: if name == "server" { 2 } else { 0 },
        ..Container::new(name, &format!("containerd://0{number}"))
    };
    let model = Pod {
        name: "llm-7d9f-abcde".to_owned(),
        labels: [("app", "llm"), ("pod-template-hash", "7d9f")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        annotations: [("kubernetes.io/config.source".to_owned(), "api".to_owned())].into(),
        containers: vec![
            container("server", 1, ContainerKind::Regular),
            container("fetch", 2, ContainerKind::Init),
            container("proxy", 3, ContainerKind::Sidecar),
            container("debugger", 4, ContainerKind::Ephemeral),
        ],
        ..owned()
    };
    let mut ours = core::Pod::of(&model);
    // What a model does not have.
    ours.metadata.generate_name = "llm-7d9f-".to_owned();
    ours.metadata.resource_version = "4711".to_owned();
    ours.metadata.generation = 1;
    ours.metadata.creation.seconds = Some(1_795_000_000);
    let status = &mut ours.status;
    let lists =
        [&mut status.containers, &mut status.init_containers, &mut status.ephemeral_containers];
    for status in lists.into_iter().flatten() {
        status.image_id = format!("registry.test/research/trainer@sha256:{:064}", 1);
    }
    assert_eq!(theirs, ours);
}

#[test]
fn events_are_what_kubernetes_itself_writes() {
    let modified = Event { kind: EventType::Modified.into(), pod: vec![1, 2] };
    assert_eq!(modified.encode_to_vec(), [8, 2, 18, 2, 1, 2]);
    assert_eq!(Event::initial_sync_complete().encode_to_vec(), [8, 4]);
}

#[test]
fn a_watch_tells_what_there_is_then_that_this_was_all_then_what_happens() {
    let client = Client::new();
    client.kubelet.set_pod(owned());
    let mut events = client.watch();
    let whole = core::Pod::of(&owned());
    assert_eq!(client.next(&mut events).unwrap(), Some((EventType::Added, whole)));
    let synced = Some((EventType::InitialSyncComplete, core::Pod::default()));
    assert_eq!(client.next(&mut events).unwrap(), synced);
    assert_eq!(client.kubelet.watchers(), 1);

    let later = Pod::new("research", "llm-1", "bbbbbbbb");
    client.kubelet.set_pod(later.clone());
    let added = Some((EventType::Added, core::Pod::of(&later)));
    assert_eq!(client.next(&mut events).unwrap(), added);

    let changed = Pod { phase: "Failed".to_owned(), ..owned() };
    client.kubelet.set_pod(changed.clone());
    let modified = Some((EventType::Modified, core::Pod::of(&changed)));
    assert_eq!(client.next(&mut events).unwrap(), modified);

    assert_eq!(client.kubelet.remove_pod(UID), Some(changed));
    let (kind, gone) = client.next(&mut events).unwrap().unwrap();
    assert_eq!((kind, gone.metadata.uid.as_str()), (EventType::Deleted, UID));
    assert_eq!(gone.metadata.owners, []);
    assert_eq!(gone.status, core::PodStatus::default());

    client.kubelet.drop_watchers();
    let ended = client.next(&mut events).unwrap_err();
    assert_eq!(ended.code(), Code::ResourceExhausted);
}

#[test]
fn a_watcher_that_goes_away_is_forgotten() {
    let client = Client::new();
    let mut events = client.watch();
    client.next(&mut events).unwrap();
    assert_eq!(client.kubelet.watchers(), 1);
    drop(events);
    // The end of the connection is on its way to the kubelet's thread.
    let end = std::time::Instant::now() + SOON;
    while client.kubelet.watchers() > 0 && std::time::Instant::now() < end {
        client.runtime.block_on(tokio::task::yield_now());
    }
    assert_eq!(client.kubelet.watchers(), 0);
}

#[test]
fn faults_are_of_one_api_until_they_are_taken_back() {
    let client = Client::new();
    let refuse = Fault::Refuse(Code::ResourceExhausted, "rejected by rate limit".to_owned());
    client.kubelet.set_fault(Api::PodResources, Some(refuse));
    let error = client.list().unwrap_err();
    let refused = (Code::ResourceExhausted, "rejected by rate limit");
    assert_eq!((error.code(), error.message()), refused);
    let pods: pods::ListResponse =
        client.ask("/v1alpha1.Pods/ListPods", pods::ListRequest {}).unwrap();
    assert_eq!(pods, pods::ListResponse::default());

    assert!(client.is_answered(SOON));
    client.kubelet.set_fault(Api::PodResources, Some(Fault::Hang));
    assert!(!client.is_answered(Duration::from_millis(50)));

    let delay = Duration::from_millis(30);
    client.kubelet.set_fault(Api::PodResources, Some(Fault::Delay(delay)));
    let begun = std::time::Instant::now();
    client.list().unwrap();
    assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed());
    client.kubelet.set_fault(Api::PodResources, None);
    client.list().unwrap();
    assert_eq!((client.kubelet.calls(Api::PodResources), client.kubelet.calls(Api::Pods)), (5, 1));
}

#[test]
fn a_stopped_kubelet_leaves_its_sockets_and_a_new_one_knows_what_it_knew() {
    let mut client = Client::new();
    client.kubelet.set_pod(owned());
    let mut events = client.watch();
    client.next(&mut events).unwrap();
    client.next(&mut events).unwrap();
    client.kubelet.stop();
    assert!(client.next(&mut events).is_err());
    assert!(client.kubelet.pod_resources().exists());
    assert_eq!(client.list().unwrap_err().code(), Code::Unavailable);

    client.kubelet.go_deaf().unwrap();
    assert!(!client.is_answered(Duration::from_millis(50)));

    client.kubelet.again().unwrap();
    assert_eq!(client.list().unwrap().pod_resources.len(), 1);
    client.kubelet.stop();
    client.kubelet.remove_sockets().unwrap();
    assert!(!client.kubelet.pods_api().exists());
}

#[test]
fn an_old_kubelet_has_no_pods_api() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start_old(folder.path()).unwrap();
    assert!(kubelet.pod_resources().exists());
    assert!(!kubelet.pods_api().exists());
}

#[test]
fn a_method_that_is_not_there_is_unimplemented() {
    let client = Client::new();
    let answer: Result<resources::ListPodResourcesResponse, _> =
        client.ask("/v1.PodResourcesLister/Watch", resources::ListPodResourcesRequest {});
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

#[test]
fn pods_and_devices_are_in_another_order_each_time_and_all_there() {
    let client = Client::new();
    let two = devices(vec![Devices::of("nvidia.com/gpu", &["GPU-1", "GPU-2"])]);
    for name in ["llm-0", "llm-1"] {
        let containers = vec![granted("server", two.clone())];
        client.kubelet.set_pod(Pod { containers, ..Pod::new("research", name, name) });
    }
    let order = |pods: &[PodResources]| {
        let names = |pod: &PodResources| {
            let devices =
                pod.containers[0].devices.iter().map(|device| device.device_ids.join(","));
            (pod.name.clone(), devices.collect::<Vec<_>>())
        };
        pods.iter().map(names).collect::<Vec<_>>()
    };
    let [mut first, mut second] = [(); 2].map(|()| order(&client.list().unwrap().pod_resources));
    assert_ne!(first, second);
    assert_eq!(client.kubelet.lists(), 2);
    for pods in [&mut first, &mut second] {
        pods.sort();
        for (_, devices) in pods.iter_mut() {
            devices.sort();
        }
    }
    assert_eq!(first, second);
}

#[test]
fn a_kubelet_that_was_started_again_has_nothing_to_grant_until_plugins_register() {
    let mut client = Client::new();
    let gpus = devices(vec![Devices::of("nvidia.com/gpu", &["GPU-1"])]);
    client.kubelet.set_allocatable(gpus);
    client.kubelet.again().unwrap();
    let method = "/v1.PodResourcesLister/GetAllocatableResources";
    let answer: AllocatableResourcesResponse =
        client.ask(method, AllocatableResourcesRequest {}).unwrap();
    assert_eq!(answer, AllocatableResourcesResponse::default());
}
