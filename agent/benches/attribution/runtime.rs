//! A container runtime on a unix socket that speaks CRI, answers at once, and counts the time its
//! own answers take.

use crate::scene::Place;
use bytes::{BufMut as _, Bytes, BytesMut};
use gpuwho_kubernetes::cri::{
    Container, ContainerMetadata, ListContainersRequest, ListContainersResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxMetadata, VersionResponse,
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// What it runs, and what it took to say so.
#[derive(Clone, Default)]
pub(crate) struct Runtime(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    places: Vec<Place>,
    lists: usize,
    took: Duration,
}

impl Runtime {
    /// Answers until the process ends.
    pub(crate) fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let this = self.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(this.accept(listener));
        };
        thread::Builder::new().name("runtime".into()).spawn(work).unwrap();
    }

    /// Starts a container.
    pub(crate) fn start(&self, place: Place) {
        self.0.lock().unwrap().places.push(place);
    }

    /// How often everything was listed.
    pub(crate) fn lists(&self) -> usize {
        self.0.lock().unwrap().lists
    }

    /// The time its answers took since this was last asked.
    pub(crate) fn take_time(&self) -> Duration {
        std::mem::take(&mut self.0.lock().unwrap().took)
    }

    async fn accept(self, listener: UnixListener) {
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let this = self.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                let this = this.clone();
                async move { Ok::<_, Infallible>(this.answer(request).await) }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Response<impl Body<Data = Bytes, Error = Infallible> + use<>> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let began = Instant::now();
        let mut world = self.0.lock().unwrap();
        let (code, message) = match world.answer(&path, &body.slice(5..)) {
            Some(message) => (Code::Ok, framed(&message)),
            None => (Code::Unimplemented, Bytes::new()),
        };
        let mut trailers = HeaderMap::new();
        Status::new(code, "").add_header(&mut trailers).unwrap();
        let body = Full::new(message).with_trailers(std::future::ready(Some(Ok(trailers))));
        let mut response = Response::new(body);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        world.took += began.elapsed();
        response
    }
}

impl World {
    fn answer(&mut self, path: &str, question: &[u8]) -> Option<Vec<u8>> {
        match path.strip_prefix("/runtime.v1.RuntimeService/")? {
            "Version" => Some(
                VersionResponse {
                    runtime_name: "containerd".into(),
                    runtime_version: "2.1.0".into(),
                }
                .encode_to_vec(),
            ),
            "ListPodSandbox" => {
                let question = ListPodSandboxRequest::decode(question).unwrap();
                let filter = question.filter.unwrap_or_default();
                let uid = filter.label_selector.values().next();
                self.lists += usize::from(filter.id.is_empty() && uid.is_none());
                let is_meant = |pod: &&Place| {
                    (filter.id.is_empty() || filter.id == sandbox_id(pod))
                        && uid.is_none_or(|uid| *uid == pod.uid)
                };
                let items = self.places.iter().filter(is_meant).map(sandbox).collect();
                Some(ListPodSandboxResponse { items }.encode_to_vec())
            }
            "ListContainers" => {
                let question = ListContainersRequest::decode(question).unwrap();
                let id = question.filter.unwrap_or_default().id;
                let is_meant = |one: &&Place| id.is_empty() || id == one.id;
                let containers = self.places.iter().filter(is_meant).map(container).collect();
                Some(ListContainersResponse { containers }.encode_to_vec())
            }
            _ => None,
        }
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap());
    framed.put_slice(message);
    framed.freeze()
}

fn sandbox_id(place: &Place) -> String {
    place.id.replacen("00000000", "5a5a5a5a", 1)
}

fn sandbox(place: &Place) -> PodSandbox {
    let metadata = PodSandboxMetadata {
        name: place.name.clone(),
        uid: place.uid.clone(),
        namespace: "research".into(),
        attempt: 0,
    };
    let labels = [
        ("io.kubernetes.pod.uid", place.uid.as_str()),
        ("io.kubernetes.pod.name", &place.name),
        ("io.kubernetes.pod.namespace", "research"),
        ("app.kubernetes.io/name", "trainer"),
        ("app.kubernetes.io/part-of", "research-platform"),
        ("pod-template-hash", "5d8f7c9b4d"),
    ];
    PodSandbox {
        id: sandbox_id(place),
        metadata: Some(metadata),
        created_at: 1,
        labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
        annotations: [("kubernetes.io/config.source".into(), "api".into())].into(),
    }
}

fn container(place: &Place) -> Container {
    Container {
        id: place.id.clone(),
        pod_sandbox_id: sandbox_id(place),
        metadata: Some(ContainerMetadata { name: "train".into(), attempt: 0 }),
        image: None,
        image_ref: "registry.example/train:1".into(),
        labels: [("io.kubernetes.pod.uid".into(), place.uid.clone())].into(),
    }
}
