//! `v1.PodResourcesLister`, with the messages of Kubernetes' own `.proto`.

use crate::model::{self, ContainerKind};
use crate::route::{service, unary, unimplemented};
use crate::state::State;
use gpuwho_kubernetes::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource,
    ContainerDevices, ContainerMemory, ContainerResources, DynamicResource, GetPodResourcesRequest,
    GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode,
    PodResources, TopologyInfo,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

service! {
    /// The service.
    PodResourcesLister, "v1.PodResourcesLister", answer
}

async fn answer(request: http::Request<Body>, state: Arc<State>) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/v1.PodResourcesLister/List" => unary(request, state, list).await,
        "/v1.PodResourcesLister/Get" => unary(request, state, get).await,
        "/v1.PodResourcesLister/GetAllocatableResources" => {
            unary(request, state, allocatable).await
        }
        _ => unimplemented(),
    }
}

async fn list(
    state: Arc<State>,
    _: ListPodResourcesRequest,
) -> Result<ListPodResourcesResponse, Status> {
    state.gate().await?;
    let turn = state.next_list();
    let mut pods: Vec<_> = state.pods().values().map(pod_resources).collect();
    // Pods and devices are in no order: in another one each time.
    turned(&mut pods, turn);
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        turned(&mut container.devices, turn);
    }
    Ok(ListPodResourcesResponse { pod_resources: pods })
}

fn turned<T>(list: &mut [T], turn: usize) {
    let by = turn.checked_rem(list.len()).unwrap_or_default();
    list.rotate_left(by);
}

async fn get(
    state: Arc<State>,
    asked: GetPodResourcesRequest,
) -> Result<GetPodResourcesResponse, Status> {
    state.gate().await?;
    let is_asked =
        |pod: &&model::Pod| pod.name == asked.pod_name && pod.namespace == asked.pod_namespace;
    let pod = state.pods().values().find(is_asked).map(pod_resources);
    // The kubelet returns a plain error, which gRPC calls unknown.
    let missing =
        || format!("pod {} in namespace {} not found", asked.pod_name, asked.pod_namespace);
    let pod = pod.ok_or_else(|| Status::unknown(missing()))?;
    Ok(GetPodResourcesResponse { pod_resources: Some(pod) })
}

async fn allocatable(
    state: Arc<State>,
    _: AllocatableResourcesRequest,
) -> Result<AllocatableResourcesResponse, Status> {
    state.gate().await?;
    let node = state.allocatable();
    Ok(AllocatableResourcesResponse {
        devices: node.devices.iter().map(devices).collect(),
        cpu_ids: node.cpus.clone(),
        memory: node.memory.iter().map(memory).collect(),
    })
}

/// Init containers that end and ephemeral ones are not listed.
fn pod_resources(pod: &model::Pod) -> PodResources {
    let is_listed = |container: &&model::Container| {
        matches!(container.kind, ContainerKind::Regular | ContainerKind::Sidecar)
    };
    PodResources {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        containers: pod.containers.iter().filter(is_listed).map(container).collect(),
        cpu_ids: pod.cpus.clone(),
        memory: pod.memory.iter().map(memory).collect(),
    }
}

fn container(container: &model::Container) -> ContainerResources {
    let granted = &container.allocation;
    ContainerResources {
        name: container.name.clone(),
        // Each device is an entry of its own.
        devices: granted.devices.iter().flat_map(each).collect(),
        cpu_ids: granted.cpus.clone(),
        memory: granted.memory.iter().map(memory).collect(),
        dynamic_resources: granted.claims.iter().map(claim).collect(),
    }
}

fn each(all: &model::Devices) -> impl Iterator<Item = ContainerDevices> {
    let whole = devices(all);
    all.ids.iter().map(move |id| ContainerDevices { device_ids: vec![id.clone()], ..whole.clone() })
}

fn devices(devices: &model::Devices) -> ContainerDevices {
    ContainerDevices {
        resource_name: devices.resource.clone(),
        device_ids: devices.ids.clone(),
        topology: topology(&devices.numa),
    }
}

fn memory(memory: &model::Memory) -> ContainerMemory {
    let topology = topology(&memory.numa);
    ContainerMemory { memory_type: memory.kind.clone(), size: memory.size, topology }
}

fn topology(numa: &[i64]) -> Option<TopologyInfo> {
    let nodes: Vec<_> = numa.iter().map(|id| NumaNode { id: *id }).collect();
    (!nodes.is_empty()).then_some(TopologyInfo { nodes })
}

/// As `GetDynamicResources` lists a claim (kubernetes/kubernetes 001332b
/// `pkg/kubelet/cm/container_manager_linux.go`): its devices each with the CDI names of the driver's
/// devices before it, too.
fn claim(claim: &model::Claim) -> DynamicResource {
    let mut so_far: BTreeMap<&str, Vec<CdiDevice>> = BTreeMap::new();
    let mut claim_resources = Vec::new();
    for device in &claim.devices {
        let cdi = so_far.entry(&device.driver).or_default();
        cdi.extend(device.cdi.iter().map(|name| CdiDevice { name: name.clone() }));
        claim_resources.push(ClaimResource {
            cdi_devices: cdi.clone(),
            driver_name: device.driver.clone(),
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
            share_id: device.share.clone(),
        });
    }
    DynamicResource {
        claim_name: claim.name.clone(),
        claim_namespace: claim.namespace.clone(),
        claim_resources,
    }
}
