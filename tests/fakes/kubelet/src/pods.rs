//! `v1alpha1.Pods`, with the messages of `k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto` (v0.37).

use crate::core;
use crate::route::{Answers, streaming, unary, unimplemented};
use crate::state::{Api, State};
use prost::Message;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) pods: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetRequest {
    #[prost(string, tag = "1")]
    pub(crate) uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) pod: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {}

/// `WatchPodsEvent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) pod: Vec<u8>,
}

/// `EventType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Unspecified = 0,
    Added = 1,
    Modified = 2,
    Deleted = 3,
    InitialSyncComplete = 4,
}

impl Event {
    pub(crate) fn of(kind: EventType, pod: &core::Pod) -> Self {
        Self { kind: kind.into(), pod: pod.encode_to_vec() }
    }

    /// Carries no pod.
    pub(crate) fn initial_sync_complete() -> Self {
        Self { kind: EventType::InitialSyncComplete.into(), pod: Vec::new() }
    }
}

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct Pods(pub(crate) Arc<State>);

impl NamedService for Pods {
    const NAME: &'static str = "v1alpha1.Pods";
}

impl Service<http::Request<Body>> for Pods {
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
                "/v1alpha1.Pods/ListPods" => unary(request, state, list).await,
                "/v1alpha1.Pods/GetPod" => unary(request, state, get).await,
                "/v1alpha1.Pods/WatchPods" => streaming(request, state, watch).await,
                _ => unimplemented(),
            })
        })
    }
}

/// Sorted by UID, as the kubelet does it.
async fn list(state: Arc<State>, _: ListRequest) -> Result<ListResponse, Status> {
    state.gate(Api::Pods).await?;
    let pods = state.pods();
    let pods = pods.values().map(|pod| core::Pod::of(pod).encode_to_vec()).collect();
    Ok(ListResponse { pods })
}

async fn get(state: Arc<State>, asked: GetRequest) -> Result<GetResponse, Status> {
    state.gate(Api::Pods).await?;
    let pod = state.pods().get(&asked.uid).map(|pod| core::Pod::of(pod).encode_to_vec());
    let missing = || format!("pod with UID {} not found", asked.uid);
    let pod = pod.ok_or_else(|| Status::not_found(missing()))?;
    Ok(GetResponse { pod })
}

async fn watch(state: Arc<State>, _: WatchRequest) -> Result<Answers<Event>, Status> {
    state.gate(Api::Pods).await?;
    Ok(Box::pin(UnboundedReceiverStream::new(state.watch())))
}
