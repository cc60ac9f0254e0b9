//! The kubelet's pods, and from each answer the updates of pods and containers. Reads no file and
//! no clock.

use super::wire::{ContainerStatus, ObjectMeta, Pod, PodStatus};
use crate::attribute::names::{Change, ContainerFacts, PodFacts};
use crate::attribute::workload::{OwnerReference, PodMeta, WantedLabels, describe};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::{ContainerId, PodUid};
use std::collections::{HashMap, HashSet};

/// The kubelet's source of a pod: `api`, `file` or `http`. The kubelet sets this annotation on
/// every pod and overwrites the pod's own (`pkg/kubelet/config`, `podStorage.merge`).
const SOURCE: &str = "kubernetes.io/config.source";
/// The UID of a pod from a file or a URL.
const HASH: &str = "kubernetes.io/config.hash";
/// The same on the mirror of such a pod, which has a UID from the API server that is in no cgroup.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Runtimes by the scheme of their container ids.
const RUNTIMES: &[(&str, &str)] =
    &[("containerd", "containerd"), ("cri-o", "cri-o"), ("docker", "docker")];

/// The kubelet's pods.
#[derive(Debug)]
pub(super) struct PodCache {
    wanted: WantedLabels,
    pods: HashMap<PodUid, KnownPod>,
    /// Pods seen since the sync started.
    seen: HashSet<PodUid>,
    /// The last sync contained none of the known pods from the API server: which of them have ended
    /// is undecided.
    doubted: bool,
}

#[derive(Debug)]
struct KnownPod {
    /// Whether only a mirror described it.
    mirrored: bool,
    /// Whether it is from the API server, not from a file on the node.
    from_api: bool,
    containers: Vec<ContainerId>,
}

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetadataUpdate {
    Pod(PodFacts),
    Container(ContainerFacts),
    Gone(Change),
}

impl PodCache {
    pub(super) fn new(wanted: WantedLabels) -> Self {
        Self { wanted, pods: HashMap::new(), seen: HashSet::new(), doubted: false }
    }

    /// The number of pods.
    pub(super) fn pods(&self) -> usize {
        self.pods.len()
    }

    /// Starts a sync: every pod follows, until [`PodCache::synced`].
    pub(super) fn begin_sync(&mut self) {
        self.seen.clear();
    }

    /// Ends a sync: pods that it did not contain have ended, unless it contained no pod from the
    /// API server. For about a second after its start, and as long as its API server is
    /// unreachable, a kubelet knows none of those (seen with 1.36).
    pub(super) fn synced(&mut self) -> Vec<MetadataUpdate> {
        let mut of_api = self.pods.values().filter(|known| known.from_api).peekable();
        if of_api.peek().is_some() && !self.has_seen_api() {
            self.doubted = true;
            return Vec::new();
        }
        self.end_unseen()
    }

    /// Whether it is undecided which pods have ended.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Whether a pod from the API server was seen since the sync started.
    pub(super) fn has_seen_api(&self) -> bool {
        self.pods.iter().any(|(uid, known)| known.from_api && self.seen.contains(uid))
    }

    /// Ends the pods that were not seen since the sync started.
    pub(super) fn end_unseen(&mut self) -> Vec<MetadataUpdate> {
        self.doubted = false;
        let ended = self.pods.keys().filter(|uid| !self.seen.contains(*uid));
        let ended: Vec<_> = ended.cloned().collect();
        self.seen = HashSet::new();
        ended.into_iter().flat_map(|uid| self.end(uid)).collect()
    }

    /// Applies a pod's current state.
    pub(super) fn pod(&mut self, pod: Pod) -> Vec<MetadataUpdate> {
        let node = pod.spec.map(|spec| spec.node_name).filter(|node| !node.is_empty());
        let Some(metadata) = pod.metadata else { return Vec::new() };
        let Some((uid, mirrored)) = identity(&metadata) else { return Vec::new() };
        let from_api = !is_static(uid.as_str());
        self.seen.insert(uid.clone());
        let known = self.pods.get(&uid);
        if mirrored && known.is_some_and(|known| !known.mirrored) {
            // The static pod itself was described.
            return Vec::new();
        }
        let status = pod.status.unwrap_or_default();
        let containers = containers(&uid, status);
        let now: Vec<_> = containers.iter().map(|container| container.id.clone()).collect();
        let previous =
            self.pods.insert(uid.clone(), KnownPod { mirrored, from_api, containers: now.clone() });
        let previous = previous.map(|known| known.containers).unwrap_or_default();
        let mut updates = vec![MetadataUpdate::Pod(self.facts(uid, metadata, node))];
        updates.extend(containers.into_iter().map(MetadataUpdate::Container));
        let ended = previous.into_iter().filter(|id| !now.contains(id));
        updates.extend(ended.map(|id| MetadataUpdate::Gone(Change::Container(id))));
        updates
    }

    /// Applies a pod's deletion.
    pub(super) fn deleted(&mut self, pod: &Pod) -> Vec<MetadataUpdate> {
        let identity = pod.metadata.as_ref().and_then(identity);
        let Some((uid, mirrored)) = identity else { return Vec::new() };
        if mirrored && self.pods.get(&uid).is_some_and(|known| !known.mirrored) {
            return Vec::new();
        }
        self.end(uid)
    }

    fn end(&mut self, uid: PodUid) -> Vec<MetadataUpdate> {
        let Some(known) = self.pods.remove(&uid) else { return Vec::new() };
        let containers =
            known.containers.into_iter().map(|id| MetadataUpdate::Gone(Change::Container(id)));
        containers.chain([MetadataUpdate::Gone(Change::Pod(uid))]).collect()
    }

    fn facts(&self, uid: PodUid, metadata: ObjectMeta, node: Option<String>) -> PodFacts {
        let meta = PodMeta {
            namespace: metadata.namespace,
            name: metadata.name,
            labels: metadata.labels,
            annotations: metadata.annotations,
            owners: metadata.owner_references.into_iter().map(OwnerReference::from).collect(),
            node,
            created_s: metadata.creation_timestamp.map(|time| time.seconds),
        };
        let (workload, details) = describe(&meta, &self.wanted);
        PodFacts {
            uid,
            namespace: meta.namespace.into(),
            name: meta.name.into(),
            node: meta.node.map(Into::into),
            workload,
            details,
        }
    }
}

impl From<super::wire::OwnerReference> for OwnerReference {
    fn from(owner: super::wire::OwnerReference) -> Self {
        Self {
            api_version: owner.api_version,
            kind: owner.kind,
            name: owner.name,
            controller: owner.controller,
        }
    }
}

/// The UID in the pod's cgroup, and whether the pod is a mirror.
///
/// An annotation counts as a UID only if it has the form of a static pod's: an annotation that a
/// user writes on a pod from the API server can name no other such pod.
fn identity(metadata: &ObjectMeta) -> Option<(PodUid, bool)> {
    let note = |key: &str| metadata.annotations.get(key).filter(|hash| is_static(hash));
    let from_api = metadata.annotations.get(SOURCE).is_none_or(|source| source == "api");
    let (hash, mirrored) =
        if from_api { (note(MIRROR), note(MIRROR).is_some()) } else { (note(HASH), false) };
    let uid = hash.unwrap_or(&metadata.uid);
    let named = !uid.is_empty() && !metadata.name.is_empty() && !metadata.namespace.is_empty();
    named.then(|| (PodUid::new(uid), mirrored))
}

/// Whether a UID is 32 hexadecimal digits: the kubelet's hash of a manifest.
fn is_static(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn containers(uid: &PodUid, status: PodStatus) -> Vec<ContainerFacts> {
    let init = status.init;
    let all = init.into_iter().chain(status.regular);
    let all = all.chain(status.ephemeral);
    all.filter_map(|status| container(uid, &status)).collect()
}

fn container(uid: &PodUid, status: &ContainerStatus) -> Option<ContainerFacts> {
    let (scheme, id) = status.container_id.split_once("://")?;
    let runtime = RUNTIMES.iter().find(|(known, _)| *known == scheme);
    // The runtime reports a digest as the image if the tag has moved on.
    let image = Some(status.image.as_str()).filter(|image| !image.starts_with("sha256:"));
    (!id.is_empty()).then(|| ContainerFacts {
        id: ContainerId::new(id),
        name: Some(status.name.as_str().into()),
        image: image.filter(|image| !image.is_empty()).map(Into::into),
        runtime: runtime.map_or("unknown", |(_, name)| name),
        pod: Some(uid.clone()),
        cgroup: None,
        details: AttrSet::new(),
    })
}

#[cfg(test)]
mod tests;
