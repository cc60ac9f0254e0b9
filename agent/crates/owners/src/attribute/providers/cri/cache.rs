//! The sandboxes and containers of one runtime, and from each answer the updates of pods and
//! containers. Reads no file and no clock.
//!
//! A container's pod is its sandbox's pod, because the kubelet made the pod's cgroup from the
//! sandbox's metadata. If the sandbox is unknown, the kubelet's label on the container counts; if
//! the two differ, the container is ignored.

use crate::attribute::names::{Change, ContainerFacts, PodFacts};
use crate::attribute::workload::{PodMeta, WantedLabels, describe};
use gpuwho_kubernetes::cri::{
    Container, ContainerEventResponse, ContainerEventType, ContainerStatus, Image, ImageSpec,
    PodSandbox, PodSandboxStatus,
};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::{ContainerId, PodUid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The kubelet's label with the pod's UID, on sandboxes and containers.
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";

/// Maximum number of digests; beyond it all are removed, and read again when needed.
const MAX_IMAGES: usize = 4096;

/// The known state of one runtime.
#[derive(Debug)]
pub(super) struct PodCache {
    runtime: &'static str,
    wanted: WantedLabels,
    /// The node's name, which the runtime does not have.
    node: Option<Arc<str>>,
    /// By sandbox id.
    sandboxes: HashMap<String, Sandbox>,
    containers: HashSet<ContainerId>,
    /// Tags by digest, for the digests looked up; `None` if there is no tag.
    images: HashMap<String, Option<Arc<str>>>,
}

#[derive(Debug)]
struct Sandbox {
    pod: PodUid,
    /// Attempt and creation time: the latest sandbox describes the pod.
    age: (u32, i64),
}

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetadataUpdate {
    Pod(PodFacts),
    Container(ContainerFacts),
    Gone(Change),
}

impl PodCache {
    pub(super) fn new(wanted: WantedLabels, node: Option<&str>) -> Self {
        Self {
            runtime: "unknown",
            wanted,
            node: node.map(Arc::from),
            sandboxes: HashMap::new(),
            containers: HashSet::new(),
            images: HashMap::new(),
        }
    }

    /// Sets the runtime's name, from `Version`.
    pub(super) fn set_runtime(&mut self, runtime: &str) {
        let known = ["containerd", "cri-o", "docker"];
        self.runtime = known.into_iter().find(|known| *known == runtime).unwrap_or("unknown");
    }

    pub(super) fn has_sandbox(&self, id: &str) -> bool {
        self.sandboxes.contains_key(id)
    }

    /// The number of containers and sandboxes.
    pub(super) fn containers(&self) -> usize {
        self.containers.len()
    }

    /// Whether containers reference images by digests without known tags.
    pub(super) fn lacks_tags(&self, containers: &[Container]) -> bool {
        containers.iter().any(|one| {
            image(one.image.as_ref(), &one.image_ref).is_none()
                && digest(one).is_some_and(|digest| !self.images.contains_key(digest))
        })
    }

    /// Stores the tags of these containers' images.
    pub(super) fn tags(&mut self, images: Vec<Image>, containers: &[Container]) {
        let tag = |image: Image| (image.id, image.repo_tags.first().map(|tag| Arc::from(&**tag)));
        let known: HashMap<_, _> = images.into_iter().map(tag).collect();
        let digests = containers.iter().filter_map(digest);
        let tags = digests.map(|id| (id.to_owned(), known.get(id).cloned().flatten()));
        if self.images.len() >= MAX_IMAGES {
            self.images.clear();
        }
        self.images.extend(tags);
    }

    /// Applies a complete list: what is not in it has ended.
    pub(super) fn list(
        &mut self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Vec<MetadataUpdate> {
        let listed: HashSet<_> = pods.iter().map(|sandbox| sandbox.id.as_str()).collect();
        let ended = self.sandboxes.keys().filter(|id| !listed.contains(id.as_str()));
        let ended: Vec<_> = ended.cloned().collect();
        let ids = containers.iter().map(|one| &one.id).chain(pods.iter().map(|one| &one.id));
        let running: HashSet<_> = ids.map(|id| ContainerId::new(id)).collect();
        let mut updates = self.some(pods, containers);
        for id in ended {
            self.end_sandbox(&id, &mut updates);
        }
        let ended: Vec<_> = self.containers.difference(&running).cloned().collect();
        for id in ended {
            self.end_container(id, &mut updates);
        }
        updates
    }

    /// Applies an incomplete list.
    pub(super) fn some(
        &mut self,
        mut pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Vec<MetadataUpdate> {
        let mut updates = Vec::new();
        // Of two pods of one name the younger one comes last, in any order of the runtime's.
        pods.sort_by_key(|sandbox| sandbox.created_at);
        // All are stored first: which of a pod's sandboxes is the latest depends on the others.
        for sandbox in &pods {
            self.note(sandbox);
        }
        for sandbox in pods {
            self.sandbox(sandbox, &mut updates);
        }
        for container in containers {
            self.container(&container, &mut updates);
        }
        updates
    }

    /// Applies one event, which contains the pod's state after it.
    pub(super) fn event(&mut self, event: ContainerEventResponse) -> Vec<MetadataUpdate> {
        let is_deleted = event.container_event_type() == ContainerEventType::ContainerDeletedEvent;
        let sandbox = event.pod_sandbox_status.map(listed);
        let id = sandbox.as_ref().map(|sandbox| sandbox.id.clone()).unwrap_or_default();
        let containers =
            event.containers_statuses.into_iter().map(|one| in_sandbox(one, &id)).collect();
        let mut updates = self.some(sandbox.into_iter().collect(), containers);
        if is_deleted {
            self.end_sandbox(&event.container_id, &mut updates);
            self.end_container(ContainerId::new(&event.container_id), &mut updates);
        }
        updates
    }

    fn note(&mut self, sandbox: &PodSandbox) {
        let Some(metadata) = &sandbox.metadata else { return };
        if sandbox.id.is_empty() || metadata.uid.is_empty() {
            return;
        }
        let pod = PodUid::new(&metadata.uid);
        let age = (metadata.attempt, sandbox.created_at);
        self.sandboxes.insert(sandbox.id.clone(), Sandbox { pod, age });
    }

    fn sandbox(&mut self, sandbox: PodSandbox, updates: &mut Vec<MetadataUpdate>) {
        let Some(Sandbox { pod, age }) = self.sandboxes.get(&sandbox.id) else { return };
        let Some(metadata) = sandbox.metadata else { return };
        let is_latest = self.sandboxes.values().all(|other| other.pod != *pod || other.age <= *age);
        let uid = pod.clone();
        if is_latest {
            let (namespace, name) =
                (metadata.namespace.as_str().into(), metadata.name.as_str().into());
            let meta = PodMeta {
                namespace: metadata.namespace,
                name: metadata.name,
                labels: sandbox.labels,
                annotations: sandbox.annotations,
                node: self.node.as_deref().map(str::to_owned),
                created_s: Some(sandbox.created_at / 1_000_000_000),
            };
            let (workload, details) = describe(&meta, &self.wanted);
            let (uid, node) = (uid.clone(), self.node.clone());
            updates.push(MetadataUpdate::Pod(PodFacts {
                uid,
                namespace,
                name,
                node,
                workload,
                details,
            }));
        }
        // The sandbox's own process belongs to the pod, but to none of its containers.
        updates.push(self.facts(ContainerId::new(&sandbox.id), uid, None, None));
    }

    fn container(&mut self, container: &Container, updates: &mut Vec<MetadataUpdate>) {
        let sandbox = self.sandboxes.get(&container.pod_sandbox_id).map(|sandbox| &sandbox.pod);
        let label = container.labels.get(POD_UID).map(|uid| PodUid::new(uid));
        let pod = match (sandbox, label) {
            (Some(pod), Some(label)) if *pod != label => return,
            (Some(pod), _) => pod.clone(),
            (None, Some(label)) => label,
            (None, None) => return,
        };
        let Some(name) = container.metadata.as_ref().map(|metadata| &*metadata.name) else {
            return;
        };
        if container.id.is_empty() || name.is_empty() {
            return;
        }
        let id = ContainerId::new(&container.id);
        let tag = || digest(container).and_then(|digest| self.images.get(digest)?.clone());
        let image = image(container.image.as_ref(), &container.image_ref).or_else(tag);
        updates.push(self.facts(id, pod, Some(Arc::from(name)), image));
    }

    fn facts(
        &mut self,
        id: ContainerId,
        pod: PodUid,
        name: Option<Arc<str>>,
        image: Option<Arc<str>>,
    ) -> MetadataUpdate {
        self.containers.insert(id.clone());
        MetadataUpdate::Container(ContainerFacts {
            id,
            name,
            image,
            runtime: self.runtime,
            pod: Some(pod),
            cgroup: None,
            details: AttrSet::new(),
        })
    }

    /// A pod ends with its last sandbox.
    fn end_sandbox(&mut self, id: &str, updates: &mut Vec<MetadataUpdate>) {
        let Some(Sandbox { pod, .. }) = self.sandboxes.remove(id) else { return };
        if self.sandboxes.values().all(|other| other.pod != pod) {
            updates.push(MetadataUpdate::Gone(Change::Pod(pod)));
        }
        self.end_container(ContainerId::new(id), updates);
    }

    fn end_container(&mut self, id: ContainerId, updates: &mut Vec<MetadataUpdate>) {
        if self.containers.remove(&id) {
            updates.push(MetadataUpdate::Gone(Change::Container(id)));
        }
    }
}

/// A sandbox as a list has it.
fn listed(status: PodSandboxStatus) -> PodSandbox {
    let PodSandboxStatus { id, metadata, created_at, labels, annotations } = status;
    PodSandbox { id, metadata, created_at, labels, annotations }
}

/// A container as a list has it.
fn in_sandbox(status: ContainerStatus, sandbox: &str) -> Container {
    let ContainerStatus { id, metadata, image, image_ref, labels, .. } = status;
    Container { id, pod_sandbox_id: sandbox.to_owned(), metadata, image, image_ref, labels }
}

/// The readable name of an image: as the pod requests it, else as the runtime has it. A kubelet
/// requests by digest, and containerd before 1.7 reports no more than that.
fn image(spec: Option<&ImageSpec>, reference: &str) -> Option<Arc<str>> {
    let requested = spec.map_or("", |spec| &spec.user_specified_image);
    let named = [requested, spec.map_or("", |spec| &spec.image), reference];
    let name = named.into_iter().find(|name| !name.is_empty() && !is_digest(name))?;
    Some(Arc::from(name))
}

fn digest(container: &Container) -> Option<&str> {
    let spec = container.image.as_ref().map_or("", |spec| &spec.image);
    [spec, &container.image_ref].into_iter().find(|name| is_digest(name))
}

fn is_digest(name: &str) -> bool {
    let digest = name.strip_prefix("sha256:").unwrap_or(name);
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
