//! The container runtime's `runtime.v1.RuntimeService` and `ImageService` beside the kubelet, for the
//! same pods: Kubernetes' own messages as containerd 2 fills them for a kubelet.

use crate::model;
use crate::route::{Answers, service, streaming, unary, unimplemented};
use crate::state::State;
use gpuwho_kubernetes::cri::{
    Container, ContainerEventResponse, ContainerEventType, ContainerMetadata, ContainerState,
    ContainerStatus, GetEventsRequest, ImageSpec, ListContainersRequest, ListContainersResponse,
    ListImagesRequest, ListImagesResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    PodSandbox, PodSandboxFilter, PodSandboxMetadata, PodSandboxStatus, VersionRequest,
    VersionResponse,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

/// When everything was made, in nanoseconds since 1970.
const CREATED_AT: i64 = 1_795_000_000_000_000_000;

/// Labels and annotations.
type Words = BTreeMap<String, String>;

/// The labels that the kubelet puts on a pod's sandbox and containers.
fn kubelets(pod: &model::Pod) -> Words {
    let words = [("name", &pod.name), ("namespace", &pod.namespace), ("uid", &pod.uid)];
    words.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.clone())).into()
}

pub(crate) fn sandbox(pod: &model::Pod) -> PodSandbox {
    let mut labels = pod.labels.clone();
    labels.extend(kubelets(pod));
    PodSandbox {
        id: format!("{:0>64}", pod.uid.replace('-', "")),
        metadata: Some(PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            attempt: 0,
        }),
        created_at: CREATED_AT,
        labels,
        annotations: pod.annotations.clone(),
    }
}

fn matches(sandbox: &PodSandbox, filter: &PodSandboxFilter) -> bool {
    let has = |(key, value): (&String, &String)| sandbox.labels.get(key) == Some(value);
    (filter.id.is_empty() || filter.id == sandbox.id) && filter.label_selector.iter().all(has)
}

/// A pod's containers that there are.
pub(crate) fn containers(pod: &model::Pod) -> Vec<Container> {
    let created = pod.containers.iter().filter(|container| !container.id.is_empty());
    created.map(|one| container(pod, one)).collect()
}

fn container(pod: &model::Pod, container: &model::Container) -> Container {
    let (name, image) = (container.name.clone(), container.image.clone());
    let mut labels = kubelets(pod);
    labels.insert("io.kubernetes.container.name".to_owned(), name.clone());
    let id = container.id.split_once("://").map_or(&*container.id, |(_, id)| id);
    Container {
        id: id.to_owned(),
        pod_sandbox_id: sandbox(pod).id,
        metadata: Some(ContainerMetadata { name, attempt: 0 }),
        image: Some(ImageSpec { image: image.clone(), user_specified_image: image }),
        image_ref: String::new(),
        labels,
    }
}

/// What runs of a pod has started.
pub(crate) fn started(pod: &model::Pod) -> ContainerEventResponse {
    let PodSandbox { id, metadata, created_at, labels, annotations } = sandbox(pod);
    let status = |one: Container| ContainerStatus {
        id: one.id,
        metadata: one.metadata,
        state: ContainerState::ContainerRunning.into(),
        image: one.image,
        image_ref: one.image_ref,
        labels: one.labels,
    };
    ContainerEventResponse {
        container_id: id.clone(),
        container_event_type: ContainerEventType::ContainerStartedEvent.into(),
        pod_sandbox_status: Some(PodSandboxStatus {
            id,
            metadata,
            created_at,
            labels,
            annotations,
        }),
        containers_statuses: containers(pod).into_iter().map(status).collect(),
    }
}

/// A pod's containers and then its sandbox are deleted.
pub(crate) fn deleted(pod: &model::Pod) -> Vec<ContainerEventResponse> {
    let containers = containers(pod).into_iter().map(|container| container.id);
    let ids = containers.chain([sandbox(pod).id]);
    ids.map(|container_id| ContainerEventResponse {
        container_id,
        container_event_type: ContainerEventType::ContainerDeletedEvent.into(),
        ..ContainerEventResponse::default()
    })
    .collect()
}

service! {
    /// The runtime's service.
    Runtime, "runtime.v1.RuntimeService", answer
}
service! {
    /// Its service of images.
    Images, "runtime.v1.ImageService", answer
}

async fn answer(request: http::Request<Body>, state: Arc<State>) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    match path.rsplit('/').next() {
        Some("Version") => unary(request, state, version).await,
        Some("ListPodSandbox") => unary(request, state, list_sandboxes).await,
        Some("ListContainers") => unary(request, state, list_containers).await,
        Some("ListImages") => unary(request, state, images).await,
        Some("GetContainerEvents") => streaming(request, state, events).await,
        _ => unimplemented(),
    }
}

async fn version(_: Arc<State>, _: VersionRequest) -> Result<VersionResponse, Status> {
    Ok(VersionResponse {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2.2.0".to_owned(),
    })
}

async fn list_sandboxes(
    state: Arc<State>,
    asked: ListPodSandboxRequest,
) -> Result<ListPodSandboxResponse, Status> {
    let filter = asked.filter.unwrap_or_default();
    let all = state.running().into_iter().map(|pod| sandbox(&pod));
    Ok(ListPodSandboxResponse { items: all.filter(|sandbox| matches(sandbox, &filter)).collect() })
}

async fn list_containers(
    state: Arc<State>,
    asked: ListContainersRequest,
) -> Result<ListContainersResponse, Status> {
    let id = asked.filter.unwrap_or_default().id;
    let all = state.running().into_iter().flat_map(|pod| containers(&pod));
    let containers = all.filter(|container| id.is_empty() || container.id == id).collect();
    Ok(ListContainersResponse { containers })
}

/// Every container names its image: nobody has to look one up.
async fn images(_: Arc<State>, _: ListImagesRequest) -> Result<ListImagesResponse, Status> {
    Ok(ListImagesResponse::default())
}

async fn events(
    state: Arc<State>,
    _: GetEventsRequest,
) -> Result<Answers<ContainerEventResponse>, Status> {
    Ok(Box::pin(UnboundedReceiverStream::new(state.watch())))
}
