//! What the kubelet has said so far of its pods, and from each new saying what there is to tell of
//! pods and containers. Reads nothing and keeps no clock.

use super::wire::{ContainerStatus, ObjectMeta, Pod, PodStatus};
use crate::attribute::names::{Change, ContainerFacts, PodFacts};
use crate::attribute::workload::{OwnerReference, PodMeta, WantedLabels, describe};
use crate::catalog::attributes::AttrSet;
use crate::ids::{ContainerId, PodUid};
use std::collections::{HashMap, HashSet};

/// Where the kubelet had a pod from: `api`, `file` or `http`. It sets this itself on every pod,
/// over what the pod came with (`pkg/kubelet/config`, `podStorage.merge`).
const SOURCE: &str = "kubernetes.io/config.source";
/// On a pod from a file or a URL: its UID.
const HASH: &str = "kubernetes.io/config.hash";
/// On the mirror of such a pod, which has a UID of the API server's that is in no cgroup.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Runtimes by the scheme of their containers' ids.
const RUNTIMES: &[(&str, &str)] =
    &[("containerd", "containerd"), ("cri-o", "cri-o"), ("docker", "docker")];

/// The kubelet's pods.
#[derive(Debug)]
pub(super) struct PodCache {
    wanted: WantedLabels,
    pods: HashMap<PodUid, KnownPod>,
    /// Pods seen since a sync began.
    seen: HashSet<PodUid>,
    /// The last sync named none of the API server's pods that were known: one that ended in it is
    /// still to be found out.
    doubted: bool,
}

#[derive(Debug)]
struct KnownPod {
    /// Told by a mirror only.
    mirrored: bool,
    /// From the API server, not from a file of the node's.
    from_api: bool,
    containers: Vec<ContainerId>,
}

/// Something to tell.
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

    /// How many pods there are.
    pub(super) fn pods(&self) -> usize {
        self.pods.len()
    }

    /// Every pod will be told from here on, until [`Book::synced`].
    pub(super) fn begin_sync(&mut self) {
        self.seen.clear();
    }

    /// Every pod has been told that the kubelet knows: what was not has ended, unless that is so of
    /// every pod of the API server's. For about a second after its start, and as long as its API
    /// server is away, a kubelet knows none of them (seen with 1.36).
    pub(super) fn synced(&mut self) -> Vec<MetadataUpdate> {
        let mut of_api = self.pods.values().filter(|known| known.from_api).peekable();
        if of_api.peek().is_some() && !self.has_seen_api() {
            self.doubted = true;
            return Vec::new();
        }
        self.settle()
    }

    /// Whether it is still to be found out which pods have ended.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Whether the kubelet has told of a pod of the API server's since a sync began.
    pub(super) fn has_seen_api(&self) -> bool {
        self.pods.iter().any(|(uid, known)| known.from_api && self.seen.contains(uid))
    }

    /// What was not told since a sync began has ended.
    pub(super) fn settle(&mut self) -> Vec<MetadataUpdate> {
        self.doubted = false;
        let ended = self.pods.keys().filter(|uid| !self.seen.contains(*uid));
        let ended: Vec<_> = ended.cloned().collect();
        self.seen = HashSet::new();
        ended.into_iter().flat_map(|uid| self.end(uid)).collect()
    }

    /// A pod as it is now.
    pub(super) fn pod(&mut self, pod: Pod) -> Vec<MetadataUpdate> {
        let node = pod.spec.map(|spec| spec.node_name).filter(|node| !node.is_empty());
        let Some(metadata) = pod.metadata else { return Vec::new() };
        let Some((uid, mirrored)) = identity(&metadata) else { return Vec::new() };
        let from_api = !is_static(uid.as_str());
        self.seen.insert(uid.clone());
        let known = self.pods.get(&uid);
        if mirrored && known.is_some_and(|known| !known.mirrored) {
            // The static pod itself has been told.
            return Vec::new();
        }
        let status = pod.status.unwrap_or_default();
        let containers = containers(&uid, status);
        let now: Vec<_> = containers.iter().map(|container| container.id.clone()).collect();
        let before =
            self.pods.insert(uid.clone(), KnownPod { mirrored, from_api, containers: now.clone() });
        let before = before.map(|known| known.containers).unwrap_or_default();
        let mut reported = vec![MetadataUpdate::Pod(self.facts(uid, metadata, node))];
        reported.extend(containers.into_iter().map(MetadataUpdate::Container));
        let ended = before.into_iter().filter(|id| !now.contains(id));
        reported.extend(ended.map(|id| MetadataUpdate::Gone(Change::Container(id))));
        reported
    }

    /// A pod that is no more.
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

/// The UID in the pod's cgroup, and whether a mirror told it.
///
/// Only of the shape that static pods' UIDs have is an annotation taken for one: whatever somebody
/// writes into a pod of the API server's, it names no other pod of the API server's.
fn identity(metadata: &ObjectMeta) -> Option<(PodUid, bool)> {
    let note = |key: &str| metadata.annotations.get(key).filter(|hash| is_static(hash));
    let from_api = metadata.annotations.get(SOURCE).is_none_or(|source| source == "api");
    let (hash, mirrored) =
        if from_api { (note(MIRROR), note(MIRROR).is_some()) } else { (note(HASH), false) };
    let uid = hash.unwrap_or(&metadata.uid);
    let named = !uid.is_empty() && !metadata.name.is_empty() && !metadata.namespace.is_empty();
    named.then(|| (PodUid::new(uid), mirrored))
}

/// 32 hexadecimal digits: the sum that the kubelet makes of a manifest.
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
    // A digest in the image's place is what the runtime has when the tag has moved on.
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
