//! What one runtime has said so far: its sandboxes and containers, and from each new saying what
//! there is to tell of pods and containers. Reads nothing and keeps no clock.
//!
//! A container's pod is that of its sandbox, because the sandbox's metadata is what the kubelet
//! made the pod's cgroup from. The kubelet's own label on the container stands in where the
//! sandbox is not known; where the two differ nothing is told.

use super::wire::{Container, DELETED, Event, ImageSpec, PodSandbox};
use crate::attribute::names::{Change, ContainerFacts, PodFacts};
use crate::attribute::workload::{PodMeta, WantedLabels, describe};
use crate::catalog::attributes::AttrSet;
use crate::ids::{ContainerId, PodUid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The kubelet's label with the UID of the pod, on sandboxes and containers.
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";

/// What one runtime has said.
#[derive(Debug)]
pub(super) struct Book {
    runtime: &'static str,
    wanted: WantedLabels,
    /// The node's name, which the runtime does not know.
    node: Option<Arc<str>>,
    /// By the sandbox's id.
    sandboxes: HashMap<String, Sandbox>,
    containers: HashSet<ContainerId>,
}

#[derive(Debug)]
struct Sandbox {
    pod: PodUid,
    /// Of several sandboxes of one pod the later attempt is the pod's.
    age: (u32, i64),
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Pod(PodFacts),
    Container(ContainerFacts),
    Gone(Change),
}

impl Book {
    pub(super) fn new(wanted: WantedLabels, node: Option<&str>) -> Self {
        Self {
            runtime: "unknown",
            wanted,
            node: node.map(Arc::from),
            sandboxes: HashMap::new(),
            containers: HashSet::new(),
        }
    }

    /// Which runtime it is, as `Version` says.
    pub(super) fn is_about(&mut self, runtime: &str) {
        let known = ["containerd", "cri-o", "docker"];
        self.runtime = known.into_iter().find(|known| *known == runtime).unwrap_or("unknown");
    }

    pub(super) fn has_sandbox(&self, id: &str) -> bool {
        self.sandboxes.contains_key(id)
    }

    /// How many containers there are.
    pub(super) fn containers(&self) -> usize {
        self.containers.len()
    }

    /// A complete list: what is not in it has ended.
    pub(super) fn list(&mut self, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Vec<Told> {
        let listed: HashSet<_> = pods.iter().map(|sandbox| sandbox.id.as_str()).collect();
        let ended = self.sandboxes.keys().filter(|id| !listed.contains(id.as_str()));
        let ended: Vec<_> = ended.cloned().collect();
        let ids = containers.iter().map(|one| &one.id).chain(pods.iter().map(|one| &one.id));
        let running: HashSet<_> = ids.map(|id| ContainerId::new(id)).collect();
        let mut told = self.some(pods, containers);
        for id in ended {
            self.end_sandbox(&id, &mut told);
        }
        let ended: Vec<_> = self.containers.difference(&running).cloned().collect();
        for id in ended {
            self.end_container(id, &mut told);
        }
        told
    }

    /// An incomplete list.
    pub(super) fn some(&mut self, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Vec<Told> {
        let mut told = Vec::new();
        // Known first, all of them: which of a pod's sandboxes is the last depends on the others.
        for sandbox in &pods {
            self.note(sandbox);
        }
        for sandbox in pods {
            self.sandbox(sandbox, &mut told);
        }
        for container in containers {
            self.container(container, &mut told);
        }
        told
    }

    /// One event: what it carries is the pod's state after it.
    pub(super) fn event(&mut self, event: Event) -> Vec<Told> {
        let sandbox = event.sandbox.map(PodSandbox::from);
        let id = sandbox.as_ref().map(|sandbox| sandbox.id.clone()).unwrap_or_default();
        let containers = event.containers.into_iter().map(|one| one.in_sandbox(&id)).collect();
        let mut told = self.some(sandbox.into_iter().collect(), containers);
        if event.kind == DELETED {
            self.end_sandbox(&event.container_id, &mut told);
            self.end_container(ContainerId::new(&event.container_id), &mut told);
        }
        told
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

    fn sandbox(&mut self, sandbox: PodSandbox, told: &mut Vec<Told>) {
        let Some(Sandbox { pod, age }) = self.sandboxes.get(&sandbox.id) else { return };
        let Some(metadata) = sandbox.metadata else { return };
        let is_last = self.sandboxes.values().all(|other| other.pod != *pod || other.age <= *age);
        let uid = pod.clone();
        if is_last {
            let (namespace, name) =
                (metadata.namespace.as_str().into(), metadata.name.as_str().into());
            let meta = PodMeta {
                namespace: metadata.namespace,
                name: metadata.name,
                labels: sandbox.labels,
                annotations: sandbox.annotations,
                owners: Vec::new(),
                node: self.node.as_deref().map(str::to_owned),
                created_s: Some(sandbox.created_at / 1_000_000_000),
            };
            let (workload, details) = describe(&meta, &self.wanted);
            let (uid, node) = (uid.clone(), self.node.clone());
            told.push(Told::Pod(PodFacts { uid, namespace, name, node, workload, details }));
        }
        // The sandbox's own process is the pod's and in no container of it.
        told.push(self.facts(ContainerId::new(&sandbox.id), uid, None, None));
    }

    fn container(&mut self, container: Container, told: &mut Vec<Told>) {
        let sandbox = self.sandboxes.get(&container.pod_sandbox_id).map(|sandbox| &sandbox.pod);
        let label = container.labels.get(POD_UID).map(|uid| PodUid::new(uid));
        let pod = match (sandbox, label) {
            (Some(pod), Some(label)) if *pod != label => return,
            (Some(pod), _) => pod.clone(),
            (None, Some(label)) => label,
            (None, None) => return,
        };
        let Some(name) = container.metadata.map(|metadata| metadata.name) else { return };
        if container.id.is_empty() || name.is_empty() {
            return;
        }
        let id = ContainerId::new(&container.id);
        let image = image(container.image, container.image_ref);
        told.push(self.facts(id, pod, Some(Arc::from(name)), image));
    }

    fn facts(
        &mut self,
        id: ContainerId,
        pod: PodUid,
        name: Option<Arc<str>>,
        image: Option<Arc<str>>,
    ) -> Told {
        self.containers.insert(id.clone());
        Told::Container(ContainerFacts {
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
    fn end_sandbox(&mut self, id: &str, told: &mut Vec<Told>) {
        let Some(Sandbox { pod, .. }) = self.sandboxes.remove(id) else { return };
        if self.sandboxes.values().all(|other| other.pod != pod) {
            told.push(Told::Gone(Change::Pod(pod)));
        }
        self.end_container(ContainerId::new(id), told);
    }

    fn end_container(&mut self, id: ContainerId, told: &mut Vec<Told>) {
        if self.containers.remove(&id) {
            told.push(Told::Gone(Change::Container(id)));
        }
    }
}

/// The name a person knows the image by: as the pod asks for it, else as the runtime has it. A
/// runtime that was asked by digest says the digest.
fn image(spec: Option<ImageSpec>, reference: String) -> Option<Arc<str>> {
    let spec = spec.unwrap_or_default();
    let named = [spec.user_specified_image, spec.image].into_iter();
    let name = named.chain([reference]).find(|name| !name.is_empty() && !is_digest(name))?;
    Some(Arc::from(name))
}

fn is_digest(name: &str) -> bool {
    let digest = name.strip_prefix("sha256:").unwrap_or(name);
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
