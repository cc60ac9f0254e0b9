//! The container runtime's `runtime.v1.RuntimeService` and `ImageService` beside the kubelet, for the
//! same pods: the messages of `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto` (v0.37) as containerd
//! 2 fills them for a kubelet. What no client here reads is not declared.

use crate::model;
use crate::route::{Answers, streaming, unary, unimplemented};
use crate::state::State;
use prost::Message;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

/// When everything was made, in nanoseconds since 1970.
const CREATED_AT: i64 = 1_795_000_000_000_000_000;
/// `ContainerState`; of a sandbox `SANDBOX_READY` is 0.
const RUNNING: i32 = 1;

/// Labels and annotations.
type Words = BTreeMap<String, String>;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionResponse {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(string, tag = "2")]
    pub(crate) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(crate) runtime_version: String,
    #[prost(string, tag = "4")]
    pub(crate) runtime_api_version: String,
}

/// `PodSandboxFilter`, and of `ContainerFilter` the id.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Filter {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) sandbox_labels: Words,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<Filter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxMetadata>,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) labels: Words,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: Words,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) sandbox: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
    #[prost(int64, tag = "7")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) labels: Words,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    #[prost(string, tag = "18")]
    pub(crate) user_specified_image: String,
}

/// `ContainerEventResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(enumeration = "EventType", tag = "2")]
    pub(crate) kind: i32,
    #[prost(int64, tag = "3")]
    pub(crate) created_at: i64,
    #[prost(message, optional, tag = "4")]
    pub(crate) sandbox: Option<SandboxStatus>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) containers: Vec<ContainerStatus>,
}

/// `ContainerEventType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Created = 0,
    Started = 1,
    Stopped = 2,
    Deleted = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxMetadata>,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) labels: Words,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) annotations: Words,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(message, optional, tag = "8")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) labels: Words,
}

/// The labels that the kubelet puts on a pod's sandbox and containers.
fn kubelets(pod: &model::Pod) -> Words {
    let words = [("name", &pod.name), ("namespace", &pod.namespace), ("uid", &pod.uid)];
    words.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.clone())).into()
}

impl Sandbox {
    pub(crate) fn of(pod: &model::Pod) -> Self {
        let mut labels = pod.labels.clone();
        labels.extend(kubelets(pod));
        let (name, namespace) = (pod.name.clone(), pod.namespace.clone());
        Self {
            id: format!("{:0>64}", pod.uid.replace('-', "")),
            metadata: Some(SandboxMetadata { name, uid: pod.uid.clone(), namespace }),
            created_at: CREATED_AT,
            labels,
            annotations: pod.annotations.clone(),
        }
    }

    fn matches(&self, filter: &Filter) -> bool {
        let has = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        (filter.id.is_empty() || filter.id == self.id) && filter.sandbox_labels.iter().all(has)
    }
}

impl Container {
    /// A pod's containers that there are.
    pub(crate) fn all(pod: &model::Pod) -> Vec<Self> {
        let created = pod.containers.iter().filter(|container| !container.id.is_empty());
        created.map(|container| Self::of(pod, container)).collect()
    }

    fn of(pod: &model::Pod, container: &model::Container) -> Self {
        let (name, image) = (container.name.clone(), container.image.clone());
        let mut labels = kubelets(pod);
        labels.insert("io.kubernetes.container.name".to_owned(), name.clone());
        let id = container.id.split_once("://").map_or(&*container.id, |(_, id)| id);
        Self {
            id: id.to_owned(),
            sandbox: Sandbox::of(pod).id,
            metadata: Some(ContainerMetadata { name }),
            image: Some(ImageSpec { image: image.clone(), user_specified_image: image }),
            state: RUNNING,
            created_at: CREATED_AT,
            labels,
        }
    }
}

impl Event {
    /// What runs of a pod has started.
    pub(crate) fn started(pod: &model::Pod) -> Self {
        let Sandbox { id, metadata, created_at, labels, annotations } = Sandbox::of(pod);
        let status = |one: Container| {
            let Container { id, metadata, image, state, labels, .. } = one;
            ContainerStatus { id, metadata, state, image, labels }
        };
        Self {
            id: id.clone(),
            kind: EventType::Started.into(),
            created_at,
            sandbox: Some(SandboxStatus { id, metadata, created_at, labels, annotations }),
            containers: Container::all(pod).into_iter().map(status).collect(),
        }
    }

    /// A pod's containers and then its sandbox are deleted.
    pub(crate) fn deleted(pod: &model::Pod) -> Vec<Self> {
        let (kind, created_at) = (EventType::Deleted.into(), CREATED_AT);
        let containers = Container::all(pod).into_iter().map(|container| container.id);
        let ids = containers.chain([Sandbox::of(pod).id]);
        ids.map(|id| Self { id, kind, created_at, ..Self::default() }).collect()
    }
}

/// The runtime's service.
#[derive(Clone, Debug)]
pub(crate) struct Runtime(pub(crate) Arc<State>);

/// Its service of images.
#[derive(Clone, Debug)]
pub(crate) struct Images(pub(crate) Arc<State>);

impl NamedService for Runtime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl NamedService for Images {
    const NAME: &'static str = "runtime.v1.ImageService";
}

/// Both are called alike.
macro_rules! service {
    ($name:ident) => {
        impl Service<http::Request<Body>> for $name {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<Self::Response, Infallible>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let state = Arc::clone(&self.0);
                Box::pin(async move { Ok(answer(request, state).await) })
            }
        }
    };
}

service!(Runtime);
service!(Images);

async fn answer(request: http::Request<Body>, state: Arc<State>) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    match path.rsplit('/').next() {
        Some("Version") => unary(request, state, version).await,
        Some("ListPodSandbox") => unary(request, state, sandboxes).await,
        Some("ListContainers") => unary(request, state, containers).await,
        Some("ListImages") => unary(request, state, images).await,
        Some("GetContainerEvents") => streaming(request, state, events).await,
        _ => unimplemented(),
    }
}

async fn version(_: Arc<State>, _: Nothing) -> Result<VersionResponse, Status> {
    Ok(VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2.2.0".to_owned(),
        runtime_api_version: "v1".to_owned(),
    })
}

async fn sandboxes(state: Arc<State>, asked: ListRequest) -> Result<Sandboxes, Status> {
    let filter = asked.filter.unwrap_or_default();
    let all = state.running().into_iter().map(|pod| Sandbox::of(&pod));
    Ok(Sandboxes { items: all.filter(|sandbox| sandbox.matches(&filter)).collect() })
}

async fn containers(state: Arc<State>, asked: ListRequest) -> Result<Containers, Status> {
    let id = asked.filter.unwrap_or_default().id;
    let all = state.running().into_iter().flat_map(|pod| Container::all(&pod));
    let containers = all.filter(|container| id.is_empty() || container.id == id).collect();
    Ok(Containers { containers })
}

/// Every container names its image: nobody has to look one up.
async fn images(_: Arc<State>, _: Nothing) -> Result<Nothing, Status> {
    Ok(Nothing {})
}

async fn events(state: Arc<State>, _: Nothing) -> Result<Answers<Event>, Status> {
    Ok(Box::pin(UnboundedReceiverStream::new(state.watch())))
}
