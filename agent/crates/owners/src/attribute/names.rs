//! Metadata of pods and containers from the node's runtimes: an index in memory, filled
//! by the providers on their own thread and read by the resolvers.
//!
//! A lookup is one hash lookup and never waits. A missing entry is requested from the providers,
//! and the owners concerned get their names when it arrives. Facts stay when their provider
//! disappears; facts about what has ended stay for [`KEEP_GONE_NS`], for late evidence.

mod provider_cache;

use super::{Host, KernelCgroups, ProcessAttribution, Workload};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::{ContainerId, PodUid};
use parking_lot::Mutex;
use provider_cache::ProviderCache;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, watch};

/// A pod as the runtime describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its UID, as it is in the cgroup path.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The node's name, if the provider reports it.
    pub node: Option<Arc<str>>,
    /// The workload it belongs to, as attributes: Deployment, Job, queue, …. On every point.
    pub workload: AttrSet,
    /// Labels and annotations that the operator selected. On info series only.
    pub details: AttrSet,
}

impl PodFacts {
    /// A pod with only its name known.
    pub(crate) fn named(uid: PodUid, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        let (workload, details) = (AttrSet::new(), AttrSet::new());
        Self { uid, namespace, name, node: None, workload, details }
    }
}

/// A container as its runtime describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Its id.
    pub id: ContainerId,
    /// Its name: in the pod, or the runtime's own.
    pub name: Option<Arc<str>>,
    /// Its image.
    pub image: Option<Arc<str>>,
    /// `containerd`, `cri-o`, `docker`, `podman`.
    pub runtime: &'static str,
    /// The pod it is in.
    pub pod: Option<PodUid>,
    /// For a container outside pods: the cgroup of its first process, so that a directory of the
    /// same name elsewhere is not taken for it.
    pub cgroup: Option<Arc<str>>,
    /// Further attributes, on info series only.
    pub details: AttrSet,
}

/// A source of metadata. If two describe one pod, the first in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// The runtime's CRI socket.
    Cri,
    /// Docker's or Podman's own API.
    Engine,
}

/// The subject of a lookup without result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LookupKey {
    /// A pod.
    Pod(PodUid),
    /// A container.
    Container(ContainerId),
}

/// The pod or container that became known, changed or ended.
pub type Change = LookupKey;

/// The index, shared by the providers and the resolvers.
#[derive(Clone, Debug)]
pub struct MetadataCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    index: Mutex<Index>,
    /// Lookup requests; `None` requests everything.
    requests: broadcast::Sender<Option<LookupKey>>,
    /// Counts additions, changes and ends.
    changes: watch::Sender<u64>,
    /// Pods that no provider had described before.
    arrivals: broadcast::Sender<PodUid>,
    /// Providers that receive every change as an event.
    followers: watch::Sender<usize>,
}

/// States, until it is dropped, that a provider receives every change as an event.
#[derive(Debug)]
pub struct FollowGuard(MetadataCache);

#[derive(Debug, Default)]
struct Index {
    pods: ProviderCache<PodUid, PodFacts>,
    containers: ProviderCache<ContainerId, ContainerFacts>,
    /// The latest pod of a namespace and name: the kubelet's allocations name pods so.
    named: HashMap<(Arc<str>, Arc<str>), PodUid>,
    requested: HashMap<LookupKey, Instant>,
    requested_all: Option<Instant>,
}

/// How long facts about what has ended stay.
const KEEP_GONE_NS: u64 = 300_000_000_000;
/// Minimum time between two requests for the same key.
const REQUEST_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of remembered requests; beyond it all are removed, and may be sent again.
const MAX_REQUESTED: usize = 4096;
/// Capacity of the request queue of a slow provider; one that missed requests lists everything.
const QUEUE_LEN: usize = 1024;

impl Default for MetadataCache {
    fn default() -> Self {
        let requests = broadcast::Sender::new(QUEUE_LEN);
        let changes = watch::Sender::new(0);
        let arrivals = broadcast::Sender::new(QUEUE_LEN);
        let followers = watch::Sender::new(0);
        Self(Arc::new(Shared { index: Mutex::default(), requests, changes, arrivals, followers }))
    }
}

impl MetadataCache {
    /// A pod.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.0.index.lock().pods.get(uid)
    }

    /// The pod that has a name now: none once it has ended, because the next pod of that name is
    /// another one.
    pub fn pod_named(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        let index = self.0.index.lock();
        let uid = index.named.get(&(Arc::from(namespace), Arc::from(name)))?;
        index.pods.get(uid)
    }

    /// Whether no provider has described any pod.
    pub(crate) fn has_no_pods(&self) -> bool {
        self.0.index.lock().pods.is_empty()
    }

    /// A container.
    pub fn container(&self, id: &ContainerId) -> Option<Arc<ContainerFacts>> {
        self.0.index.lock().containers.get(id)
    }

    /// The live container with a name in a pod.
    pub(crate) fn container_named(&self, pod: &PodUid, name: &str) -> Option<Arc<ContainerFacts>> {
        let index = self.0.index.lock();
        let is_it = |facts: &ContainerFacts| {
            facts.pod.as_ref() == Some(pod) && facts.name.as_deref() == Some(name)
        };
        let mut found = index.containers.living().filter(|facts| is_it(facts));
        // During a restart there are briefly two; either has the same facts.
        found.next().map(Arc::clone)
    }

    /// Requests a lookup from the providers, at most once in [`REQUEST_AGAIN`].
    pub fn request(&self, key: LookupKey) {
        let mut index = self.0.index.lock();
        if index.requested.get(&key).is_some_and(|at| at.elapsed() < REQUEST_AGAIN) {
            return;
        }
        if index.requested.len() >= MAX_REQUESTED {
            index.requested.clear();
        }
        index.requested.insert(key.clone(), Instant::now());
        drop(index);
        // An error means that there is no provider.
        let _ = self.0.requests.send(Some(key));
    }

    /// Requests everything from the providers, at most once in [`REQUEST_AGAIN`]: a pod with
    /// allocated devices has a name that no provider has reported yet.
    pub(crate) fn request_all(&self) {
        let mut index = self.0.index.lock();
        if index.requested_all.is_some_and(|at| at.elapsed() < REQUEST_AGAIN) {
            return;
        }
        index.requested_all = Some(Instant::now());
        drop(index);
        // An error means that there is no provider.
        let _ = self.0.requests.send(None);
    }

    /// Subscribes to requests from now on.
    pub fn requests(&self) -> broadcast::Receiver<Option<LookupKey>> {
        self.0.requests.subscribe()
    }

    /// The number of requests that some provider has not received yet.
    pub fn unanswered(&self) -> usize {
        self.0.requests.len()
    }

    /// Notifies its receivers of additions, changes and ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Subscribes to pods that become known from now on, each once.
    pub fn arrivals(&self) -> broadcast::Receiver<PodUid> {
        self.0.arrivals.subscribe()
    }

    /// States that the caller receives every start and end on this node without requests, while the
    /// guard is held.
    pub fn follow(&self) -> FollowGuard {
        self.0.followers.send_modify(|count| *count += 1);
        FollowGuard(self.clone())
    }

    /// The number of held guards.
    pub fn followers(&self) -> watch::Receiver<usize> {
        self.0.followers.subscribe()
    }

    /// Counts a change, if there is one.
    fn changed(&self, is_change: bool) -> bool {
        if is_change {
            self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
        is_change
    }

    /// Stores a provider's facts about a pod; returns whether that changed anything.
    pub(super) fn put_pod(&self, provider: Provider, facts: PodFacts) -> bool {
        let mut index = self.0.index.lock();
        let name = (Arc::clone(&facts.namespace), Arc::clone(&facts.name));
        let uid = facts.uid.clone();
        let is_known = index.pods.has(&uid);
        let is_change = index.pods.put(provider, uid.clone(), facts);
        let arrived = (is_change && !is_known).then(|| uid.clone());
        if is_change {
            index.named.insert(name, uid);
        } else if index.pods.has(&uid) && !index.pods.is_gone(&uid) {
            index.named.entry(name).or_insert(uid);
        }
        drop(index);
        if let Some(uid) = arrived {
            // An error means that nothing subscribes.
            let _ = self.0.arrivals.send(uid);
        }
        self.changed(is_change)
    }

    /// Stores a provider's facts about a container; returns whether that changed anything.
    pub(super) fn put_container(&self, provider: Provider, facts: ContainerFacts) -> bool {
        let is_change = self.0.index.lock().containers.put(provider, facts.id.clone(), facts);
        self.changed(is_change)
    }

    /// Records that a provider reports the end of a pod or container. It is ignored if a preferred
    /// provider still describes it: a runtime's sandbox may be replaced under a live pod.
    pub(super) fn gone(&self, provider: Provider, what: &LookupKey, now_ns: u64) {
        let mut index = self.0.index.lock();
        match what {
            LookupKey::Pod(uid) => {
                if !index.pods.gone(provider, uid, now_ns) {
                    return;
                }
                if let Some(facts) = index.pods.get(uid) {
                    index.unname(&facts);
                }
            }
            LookupKey::Container(id) => {
                index.containers.gone(provider, id, now_ns);
            }
        }
        drop(index);
        self.changed(true);
    }

    /// Removes facts about what ended [`KEEP_GONE_NS`] ago or earlier.
    pub(super) fn expire(&self, now_ns: u64) {
        let mut index = self.0.index.lock();
        let before_ns = now_ns.saturating_sub(KEEP_GONE_NS);
        index.containers.expire(before_ns);
        for facts in index.pods.expire(before_ns) {
            index.unname(&facts);
        }
        index.requested.retain(|_, at| at.elapsed() < REQUEST_AGAIN);
    }
}

impl Drop for FollowGuard {
    fn drop(&mut self) {
        self.0.0.followers.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Index {
    /// Frees a pod's name and gives it to another live pod of that name: a runtime lists the
    /// sandbox of the previous pod of a name together with the next pod's, in any order.
    fn unname(&mut self, facts: &PodFacts) {
        let name = (Arc::clone(&facts.namespace), Arc::clone(&facts.name));
        if self.named.get(&name) == Some(&facts.uid) {
            self.named.remove(&name);
            let is_next = |pod: &&Arc<PodFacts>| {
                pod.uid != facts.uid && (&pod.namespace, &pod.name) == (&name.0, &name.1)
            };
            let next = self.pods.living().find(is_next).map(|pod| pod.uid.clone());
            self.named.extend(next.map(|uid| (name, uid)));
        }
    }
}

/// The first source of names: the runtime's facts about the pod and the container that
/// the cgroup path names.
///
/// Only if nobody except the host's root can have made the path: a user's slice, a machine and a
/// nested pod can contain directories named like another owner's container.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let place = owner.cgroup.clone();
    let workload = &mut owner.workload;
    if is_elsewhere(workload) {
        return;
    }
    if let Some(pod) = &mut workload.pod {
        match host.names.pod(&pod.uid) {
            Some(facts) => {
                pod.namespace = Some(Arc::clone(&facts.namespace));
                pod.name = Some(Arc::clone(&facts.name));
                pod.facts = Some(facts);
            }
            None => host.names.request(LookupKey::Pod(pod.uid.clone())),
        }
    }
    let Some(id) = &workload.container else { return };
    match host.names.container(id) {
        Some(facts) if is_about(&facts, workload, place.as_deref()) => {
            if let Some(pod) = &mut workload.pod {
                pod.container.clone_from(&facts.name);
            }
            workload.facts = Some(facts);
        }
        Some(_) => {}
        None => host.names.request(LookupKey::Container(id.clone())),
    }
}

/// Whether someone other than the host's root can have made the path.
fn is_elsewhere(workload: &Workload) -> bool {
    workload.nested || workload.user_slice || workload.machine.is_some()
}

/// Whether the index has other facts about the owner's pod or container than the owner.
pub(crate) fn is_behind(host: &Host, owner: &ProcessAttribution) -> bool {
    fn differ<T>(reported: Option<Arc<T>>, has: Option<&Arc<T>>) -> bool {
        reported.is_some_and(|reported| !has.is_some_and(|has| Arc::ptr_eq(&reported, has)))
    }
    let workload = &owner.workload;
    if is_elsewhere(workload) {
        return false;
    }
    let pod = workload.pod.as_ref();
    pod.is_some_and(|pod| differ(host.names.pod(&pod.uid), pod.facts.as_ref()))
        || workload
            .container
            .as_ref()
            .or(workload.unconfirmed())
            .is_some_and(|id| differ(host.names.container(id), workload.facts.as_ref()))
}

/// Whether the facts are about the container at this place: in the same pod, or, outside pods, in
/// the cgroup of its first process.
fn is_about(facts: &ContainerFacts, workload: &Workload, place: Option<&str>) -> bool {
    match (&workload.pod, &facts.pod) {
        (Some(pod), Some(uid)) => pod.uid == *uid,
        (None, None) => facts.cgroup.as_deref().is_some_and(|cgroup| {
            place
                .and_then(|place| place.strip_prefix(cgroup))
                .is_some_and(|below| below.is_empty() || below.starts_with('/'))
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
