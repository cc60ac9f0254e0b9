//! `v1.PodResourcesLister`, with the messages of `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`
//! (v0.37).

use crate::model::{self, ContainerKind};
use crate::route::{unary, unimplemented};
use crate::state::State;
use prost::Message;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod: Option<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocatableRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) cpus: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) memory: Vec<ContainerMemory>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodResources {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) containers: Vec<ContainerResources>,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) cpus: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) memory: Vec<ContainerMemory>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) cpus: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) memory: Vec<ContainerMemory>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) claims: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(crate) resource: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMemory {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(uint64, tag = "2")]
    pub(crate) size: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NumaNode {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

/// Field 1 was the class's name, until v1.31.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DynamicResource {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) devices: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) cdi: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub(crate) driver: String,
    #[prost(string, tag = "3")]
    pub(crate) pool: String,
    #[prost(string, tag = "4")]
    pub(crate) device: String,
    #[prost(string, optional, tag = "5")]
    pub(crate) share: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct PodResourcesLister(pub(crate) Arc<State>);

impl NamedService for PodResourcesLister {
    const NAME: &'static str = "v1.PodResourcesLister";
}

impl Service<http::Request<Body>> for PodResourcesLister {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            Ok(match path.as_str() {
                "/v1.PodResourcesLister/List" => unary(request, state, list).await,
                "/v1.PodResourcesLister/Get" => unary(request, state, get).await,
                "/v1.PodResourcesLister/GetAllocatableResources" => {
                    unary(request, state, allocatable).await
                }
                _ => unimplemented(),
            })
        })
    }
}

async fn list(state: Arc<State>, _: ListRequest) -> Result<ListResponse, Status> {
    state.gate().await?;
    let turn = state.next_list();
    let mut pods: Vec<_> = state.pods().values().map(PodResources::of).collect();
    // Pods and devices are in no order: in another one each time.
    turned(&mut pods, turn);
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        turned(&mut container.devices, turn);
    }
    Ok(ListResponse { pods })
}

fn turned<T>(list: &mut [T], turn: usize) {
    let by = turn.checked_rem(list.len()).unwrap_or_default();
    list.rotate_left(by);
}

async fn get(state: Arc<State>, asked: GetRequest) -> Result<GetResponse, Status> {
    state.gate().await?;
    let is_asked = |pod: &&model::Pod| pod.name == asked.name && pod.namespace == asked.namespace;
    let pod = state.pods().values().find(is_asked).map(PodResources::of);
    // The kubelet returns a plain error, which gRPC calls unknown.
    let missing = || format!("pod {} in namespace {} not found", asked.name, asked.namespace);
    let pod = pod.ok_or_else(|| Status::unknown(missing()))?;
    Ok(GetResponse { pod: Some(pod) })
}

async fn allocatable(
    state: Arc<State>,
    _: AllocatableRequest,
) -> Result<AllocatableResponse, Status> {
    state.gate().await?;
    let node = state.allocatable();
    Ok(AllocatableResponse {
        devices: node.devices.iter().map(ContainerDevices::of).collect(),
        cpus: node.cpus.clone(),
        memory: node.memory.iter().map(ContainerMemory::of).collect(),
    })
}

impl PodResources {
    /// Init containers that end and ephemeral ones are not listed.
    fn of(pod: &model::Pod) -> Self {
        let is_listed = |container: &&model::Container| {
            matches!(container.kind, ContainerKind::Regular | ContainerKind::Sidecar)
        };
        Self {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            containers: pod
                .containers
                .iter()
                .filter(is_listed)
                .map(|container| ContainerResources::of(&container.name, &container.allocation))
                .collect(),
            cpus: pod.cpus.clone(),
            memory: pod.memory.iter().map(ContainerMemory::of).collect(),
        }
    }
}

impl ContainerResources {
    fn of(name: &str, granted: &model::Allocation) -> Self {
        Self {
            name: name.to_owned(),
            // Each device is an entry of its own.
            devices: granted.devices.iter().flat_map(ContainerDevices::each).collect(),
            cpus: granted.cpus.clone(),
            memory: granted.memory.iter().map(ContainerMemory::of).collect(),
            claims: granted.claims.iter().map(DynamicResource::of).collect(),
        }
    }
}

impl ContainerDevices {
    fn each(devices: &model::Devices) -> impl Iterator<Item = Self> {
        let whole = Self::of(devices);
        devices.ids.iter().map(move |id| Self { ids: vec![id.clone()], ..whole.clone() })
    }

    fn of(devices: &model::Devices) -> Self {
        Self {
            resource: devices.resource.clone(),
            ids: devices.ids.clone(),
            topology: Topology::of(&devices.numa),
        }
    }
}

impl ContainerMemory {
    fn of(memory: &model::Memory) -> Self {
        let topology = Topology::of(&memory.numa);
        Self { kind: memory.kind.clone(), size: memory.size, topology }
    }
}

impl Topology {
    fn of(numa: &[i64]) -> Option<Self> {
        let nodes: Vec<_> = numa.iter().map(|id| NumaNode { id: *id }).collect();
        (!nodes.is_empty()).then_some(Self { nodes })
    }
}

impl DynamicResource {
    fn of(claim: &model::Claim) -> Self {
        Self {
            name: claim.name.clone(),
            namespace: claim.namespace.clone(),
            devices: claim.devices.iter().map(ClaimResource::of).collect(),
        }
    }
}

impl ClaimResource {
    fn of(device: &model::ClaimDevice) -> Self {
        Self {
            cdi: device.cdi.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
            driver: device.driver.clone(),
            pool: device.pool.clone(),
            device: device.device.clone(),
            share: device.share.clone(),
        }
    }
}
