//! A client of the real protocols against the fake.

use crate::cri;
use crate::{
    Allocation, Claim, ClaimDevice, Container, ContainerKind, Devices, Fault, Kubelet, Memory, Pod,
};
use gpuwho_kubernetes::cri::{
    ContainerEventResponse, ContainerEventType, ContainerFilter, GetEventsRequest,
    ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    PodSandboxFilter, VersionRequest, VersionResponse,
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
            self.kubelet.cri()
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

    fn watch(&self) -> Streaming<ContainerEventResponse> {
        self.runtime.block_on(async {
            let mut client = connect(&self.kubelet.cri()).await.unwrap();
            let path = PathAndQuery::from_static("/runtime.v1.RuntimeService/GetContainerEvents");
            let request = Request::new(GetEventsRequest {});
            client
                .server_streaming(request, path, ProstCodec::default())
                .await
                .unwrap()
                .into_inner()
        })
    }

    fn next(
        &self,
        events: &mut Streaming<ContainerEventResponse>,
    ) -> Result<Option<ContainerEventResponse>, Status> {
        let next = async { tokio::time::timeout(SOON, events.message()).await.unwrap() };
        self.runtime.block_on(next)
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

/// A pod with containers of each kind and one that is still to be made.
fn labelled() -> Pod {
    let of_kind = |name: &str, kind| Container {
        kind,
        ..Container::new(name, &format!("containerd://{name}"))
    };
    Pod {
        labels: [("app".to_owned(), "llm".to_owned())].into(),
        annotations: [("note".to_owned(), "x".to_owned())].into(),
        containers: vec![
            of_kind("server", ContainerKind::Regular),
            of_kind("fetch", ContainerKind::Init),
            Container::new("late", ""),
        ],
        ..Pod::new("research", "llm-0", UID)
    }
}

#[test]
fn the_runtime_lists_sandboxes_and_containers_also_of_one_id_or_label() {
    let client = Client::new();
    client.kubelet.set_pod(labelled());
    client.kubelet.set_pod(Pod::new("research", "llm-1", "bbbbbbbb"));
    let sandboxes = |filter| -> ListPodSandboxResponse {
        let request = ListPodSandboxRequest { filter };
        client.ask("/runtime.v1.RuntimeService/ListPodSandbox", request).unwrap()
    };
    assert_eq!(sandboxes(None).items.len(), 2);
    let of_uid = [("io.kubernetes.pod.uid".to_owned(), UID.to_owned())].into();
    let filter = PodSandboxFilter { label_selector: of_uid, ..<_>::default() };
    let [sandbox] = &sandboxes(Some(filter)).items[..] else { panic!("more than one") };
    let metadata = sandbox.metadata.as_ref().unwrap();
    assert_eq!((&*metadata.name, &*metadata.namespace, &*metadata.uid), ("llm-0", "research", UID));
    assert_eq!((&*sandbox.labels["app"], &*sandbox.annotations["note"]), ("llm", "x"));

    let containers = |id: &str| -> Vec<String> {
        let filter = ContainerFilter { id: id.to_owned() };
        let request = ListContainersRequest { filter: Some(filter) };
        let method = "/runtime.v1.RuntimeService/ListContainers";
        let found: ListContainersResponse = client.ask(method, request).unwrap();
        assert!(found.containers.iter().all(|container| container.pod_sandbox_id == sandbox.id));
        found.containers.into_iter().map(|container| container.metadata.unwrap().name).collect()
    };
    assert_eq!(
        (containers(""), containers("fetch")),
        (vec!["server".to_owned(), "fetch".to_owned()], vec!["fetch".to_owned()])
    );
}

#[test]
fn a_watch_tells_what_happens_from_then_on() {
    let client = Client::new();
    let mut events = client.watch();
    client.kubelet.set_pod(labelled());
    assert_eq!(client.next(&mut events).unwrap(), Some(cri::started(&labelled())));
    assert_eq!(client.kubelet.remove_pod(UID), Some(labelled()));
    let sandbox = cri::sandbox(&labelled()).id;
    for id in ["server", "fetch", &sandbox] {
        let event = client.next(&mut events).unwrap().unwrap();
        assert_eq!(
            (event.container_event_type(), &*event.container_id),
            (ContainerEventType::ContainerDeletedEvent, id)
        );
    }
}

#[test]
fn a_list_of_allocations_is_what_kubernetes_itself_writes() {
    let theirs = include_bytes!("../../../fixtures/kubernetes/fake-pod-resources.binpb");
    let ours = resources::ListPodResourcesResponse { pod_resources: vec![every_allocation()] };
    assert_eq!(ours.encode_to_vec(), theirs);
}

#[test]
fn faults_are_pod_resources_alone_until_they_are_taken_back() {
    let client = Client::new();
    let refuse = Fault::Refuse(Code::ResourceExhausted, "rejected by rate limit".to_owned());
    client.kubelet.set_fault(Some(refuse));
    let error = client.list().unwrap_err();
    let refused = (Code::ResourceExhausted, "rejected by rate limit");
    assert_eq!((error.code(), error.message()), refused);
    let version: VersionResponse =
        client.ask("/runtime.v1.RuntimeService/Version", VersionRequest::default()).unwrap();
    assert_eq!(version.runtime_name, "containerd");

    assert!(client.is_answered(SOON));
    client.kubelet.set_fault(Some(Fault::Hang));
    assert!(!client.is_answered(Duration::from_millis(50)));

    let delay = Duration::from_millis(30);
    client.kubelet.set_fault(Some(Fault::Delay(delay)));
    let begun = std::time::Instant::now();
    client.list().unwrap();
    assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed());
    client.kubelet.set_fault(None);
    client.list().unwrap();
    assert_eq!(client.kubelet.calls(), 5);
}

#[test]
fn a_stopped_kubelet_leaves_its_sockets_and_a_new_one_knows_what_it_knew() {
    let mut client = Client::new();
    let mut events = client.watch();
    client.kubelet.set_pod(labelled());
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
    assert!(!client.kubelet.cri().exists());
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
