//! A container runtime on a unix socket that speaks CRI, answers at once, and counts the time its
//! own answers take.

use crate::scene::Place;
use gpuwho_kubernetes::cri::{
    Container, ContainerMetadata, ListContainersRequest, ListContainersResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxMetadata, VersionResponse,
};
use gpuwho_owners::local::fake::{Call, Server};
use prost::Message as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::Code;

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
        let this = self.clone();
        std::mem::forget(Server::grpc(socket, move |call| this.answer(call)));
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

    fn answer(&self, call: Call) {
        let began = Instant::now();
        let mut world = self.0.lock().unwrap();
        match world.answer(&call.path, &call.message) {
            Some(message) => call.reply.only_bytes(&message),
            None => call.reply.end(Code::Unimplemented, ""),
        }
        world.took += began.elapsed();
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
