//! What the node's own runtimes and kubelet say about its pods and containers: an index in memory,
//! filled by the suppliers on a thread of their own and read by the resolvers.
//!
//! A lookup is one hash lookup and never waits. What is not there is asked of the suppliers, and
//! the owners concerned are named again when the answer comes. What a supplier has told stays when
//! the supplier is gone; what it says has ended stays for a while, for evidence that comes late.

mod provider_cache;

use super::{Host, KernelCgroups, ProcessAttribution, Workload};
use crate::catalog::attributes::AttrSet;
use crate::ids::{ContainerId, PodUid};
use provider_cache::ProviderCache;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, watch};

/// A pod as the kubelet or the runtime describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its UID, as it is in the cgroup path.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The node's name, where told.
    pub node: Option<Arc<str>>,
    /// What it belongs to, as attributes: Deployment, Job, queue, …. On every point.
    pub workload: AttrSet,
    /// Labels and annotations that the operator asked for. On info series only.
    pub details: AttrSet,
}

impl PodFacts {
    /// Of which only the name is known.
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
    /// For a container outside pods: the cgroup its first process is in, so that a directory of
    /// the same name elsewhere is not taken for it.
    pub cgroup: Option<Arc<str>>,
    /// What else is worth telling, on info series only.
    pub details: AttrSet,
}

/// Who told. Of two that describe one pod the first of this list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// The kubelet's Pods API: the whole pod, with its owner references.
    PodsApi,
    /// The runtime's CRI socket.
    Cri,
    /// Docker's or Podman's own API.
    Engine,
}

/// What a resolver missed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LookupKey {
    /// A pod.
    Pod(PodUid),
    /// A container.
    Container(ContainerId),
}

/// What became known or changed.
pub type Change = LookupKey;

/// The index, shared by its suppliers and its readers.
#[derive(Clone, Debug)]
pub struct MetadataCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    index: Mutex<Index>,
    /// `None` for whatever there is.
    wants: broadcast::Sender<Option<LookupKey>>,
    /// Counts what became known, changed or ended.
    changes: watch::Sender<u64>,
    /// Pods that nobody had told of before.
    arrivals: broadcast::Sender<PodUid>,
    /// Suppliers that are told of every change as it happens.
    followers: watch::Sender<usize>,
}

/// A supplier is told of every change as it happens, until this is dropped.
#[derive(Debug)]
pub struct Following(MetadataCache);

#[derive(Debug, Default)]
struct Index {
    pods: ProviderCache<PodUid, PodFacts>,
    containers: ProviderCache<ContainerId, ContainerFacts>,
    /// The latest pod of a namespace and name: the kubelet's allocations name pods so.
    named: HashMap<(Arc<str>, Arc<str>), PodUid>,
    asked: HashMap<LookupKey, Instant>,
    asked_all: Option<Instant>,
}

/// How long what has ended is kept.
const KEEP_GONE_NS: u64 = 300_000_000_000;
/// How soon the same thing is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Questions remembered; all are forgotten when there are more, and asked again.
const MAX_ASKED: usize = 4096;
/// Questions that wait for a slow supplier; one that missed some lists everything.
const WAITING: usize = 1024;

impl Default for MetadataCache {
    fn default() -> Self {
        let wants = broadcast::Sender::new(WAITING);
        let changes = watch::Sender::new(0);
        let arrivals = broadcast::Sender::new(WAITING);
        let followers = watch::Sender::new(0);
        Self(Arc::new(Shared { index: Mutex::default(), wants, changes, arrivals, followers }))
    }
}

impl MetadataCache {
    /// A pod.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.lock().pods.get(uid)
    }

    /// The pod that has a name now: none once it has ended, because the next to have the name is
    /// another one.
    pub fn pod_named(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        let index = self.lock();
        let uid = index.named.get(&(Arc::from(namespace), Arc::from(name)))?;
        index.pods.get(uid)
    }

    /// Whether nobody has told of any pod.
    pub(crate) fn has_no_pods(&self) -> bool {
        self.lock().pods.is_empty()
    }

    /// A container.
    pub fn container(&self, id: &ContainerId) -> Option<Arc<ContainerFacts>> {
        self.lock().containers.get(id)
    }

    /// A container that a pod has under a name, and that has not ended.
    pub(crate) fn container_named(&self, pod: &PodUid, name: &str) -> Option<Arc<ContainerFacts>> {
        let index = self.lock();
        let is_it = |facts: &ContainerFacts| {
            facts.pod.as_ref() == Some(pod) && facts.name.as_deref() == Some(name)
        };
        let mut found = index.containers.living().filter(|facts| is_it(facts));
        // Two are there for a moment, when one is started again; either tells the same of it.
        found.next().map(Arc::clone)
    }

    /// Asks the suppliers for something, at most once in a while.
    pub fn want(&self, want: LookupKey) {
        let mut index = self.lock();
        if index.asked.get(&want).is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return;
        }
        if index.asked.len() >= MAX_ASKED {
            index.asked.clear();
        }
        index.asked.insert(want.clone(), Instant::now());
        drop(index);
        // An error means that there is no supplier.
        let _ = self.0.wants.send(Some(want));
    }

    /// Asks the suppliers for whatever there is, at most once in a while: a pod is granted devices
    /// under a name that nobody has told yet.
    pub(crate) fn want_all(&self) {
        let mut index = self.lock();
        if index.asked_all.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return;
        }
        index.asked_all = Some(Instant::now());
        drop(index);
        // As above.
        let _ = self.0.wants.send(None);
    }

    /// What is asked from now on.
    pub fn wants(&self) -> broadcast::Receiver<Option<LookupKey>> {
        self.0.wants.subscribe()
    }

    /// Questions that some supplier has not taken yet.
    pub fn unanswered(&self) -> usize {
        self.0.wants.len()
    }

    /// Wakes whoever waits for it when something became known, changed or ended.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Pods that become known from now on, each once.
    pub fn arrivals(&self) -> broadcast::Receiver<PodUid> {
        self.0.arrivals.subscribe()
    }

    /// Says that whatever begins or ends on this node is known without asking, while this is held.
    pub fn follow(&self) -> Following {
        self.0.followers.send_modify(|count| *count += 1);
        Following(self.clone())
    }

    /// How many say so.
    pub fn followers(&self) -> watch::Receiver<usize> {
        self.0.followers.subscribe()
    }

    fn changed(&self, news: bool) -> bool {
        if news {
            self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
        news
    }

    /// Takes what a supplier says of a pod; whether that is news.
    pub(super) fn put_pod(&self, provider: Provider, facts: PodFacts) -> bool {
        let mut index = self.lock();
        let name = (Arc::clone(&facts.namespace), Arc::clone(&facts.name));
        let uid = facts.uid.clone();
        let is_known = index.pods.has(&uid);
        let news = index.pods.put(provider, uid.clone(), facts);
        let arrived = (news && !is_known).then(|| uid.clone());
        if news {
            index.named.insert(name, uid);
        } else if index.pods.has(&uid) && !index.pods.is_gone(&uid) {
            index.named.entry(name).or_insert(uid);
        }
        drop(index);
        if let Some(uid) = arrived {
            // An error means that nobody listens.
            let _ = self.0.arrivals.send(uid);
        }
        self.changed(news)
    }

    /// Takes what a supplier says of a container; whether that is news.
    pub(super) fn put_container(&self, provider: Provider, facts: ContainerFacts) -> bool {
        let news = self.lock().containers.put(provider, facts.id.clone(), facts);
        self.changed(news)
    }

    /// A supplier says that a pod or container has ended. One that a better supplier still tells
    /// of has not: a runtime's sandbox may be replaced under a living pod.
    pub(super) fn gone(&self, provider: Provider, what: &LookupKey, now_ns: u64) {
        let mut index = self.lock();
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

    /// Forgets what ended long ago.
    pub(super) fn expire(&self, now_ns: u64) {
        let mut index = self.lock();
        let before_ns = now_ns.saturating_sub(KEEP_GONE_NS);
        index.containers.expire(before_ns);
        for facts in index.pods.expire(before_ns) {
            index.unname(&facts);
        }
        index.asked.retain(|_, at| at.elapsed() < ASK_AGAIN);
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.0.followers.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Index {
    /// A pod's name is free for another one, and is that one's at once which was there already: a
    /// runtime lists the sandbox of the last pod of a name beside the next pod's, in no order.
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

/// The first source of names: what the kubelet and the runtime say about the pod and the container
/// that the cgroup path names.
///
/// Only where the host's root alone can have made the path: a user's slice, a machine and a nested
/// pod can hold directories named like somebody else's container.
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
            None => host.names.want(LookupKey::Pod(pod.uid.clone())),
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
        None => host.names.want(LookupKey::Container(id.clone())),
    }
}

/// Whether others than the host's root can have made the path.
fn is_elsewhere(workload: &Workload) -> bool {
    workload.nested || workload.user_slice || workload.machine.is_some()
}

/// Whether the index knows something of the owner's pod or container that the owner does not have.
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

/// Whether the facts are about the container at this place: the same pod, or, outside pods, the
/// very cgroup of its first process.
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
