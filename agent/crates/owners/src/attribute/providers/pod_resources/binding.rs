//! Turns the kubelet's list into allocations: the pod and the device of each entry.
//!
//! The list names pods by namespace and name. Another pod may reuse a name, so an entry counts only
//! if its pod is certain: an entry of an unknown pod, of a pod that is listed twice, or with other
//! devices than a moment ago waits until the pod is known.
//!
//! A pod has one allocation of a device or instance, whatever the list repeats: a claim is listed for each of
//! its containers and requests (`cm/dra/manager.go` GetContainerClaimInfos), and again with each retry.

use super::devices::{AllocatedDevice, NameContext, Unnamed, node_ids};
use crate::attribute::allocations::{Allocation, Claim, PinnedResources};
use crate::attribute::names::PodFacts;
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::{Pod, Workload};
use crate::inventory::DeviceName;
use gpuwho_kubernetes::pod_resources::{ContainerMemory, ContainerResources, PodResources};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::PodUid;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A pod's devices do not change. If they seem to, another pod has the name, and its UID is
/// reported within this time; after it, the change counts.
const UNSETTLED: Duration = Duration::from_secs(90);

/// The entries of the previous list, to detect changes.
#[derive(Debug, Default)]
pub(super) struct Binding {
    bound: HashMap<PodName, Bound>,
}

/// The memory type that is not huge pages (`v1.ResourceMemory`).
const PLAIN_MEMORY: &str = "memory";

type PodName = (String, String);

#[derive(Debug)]
struct Bound {
    uid: PodUid,
    /// Hashes of container and device, as the kubelet names them.
    devices: HashSet<u64>,
    /// Since when the list contradicts the devices.
    contradicted: Option<Instant>,
}

/// The result of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) allocations: Vec<Allocation>,
    /// Allocated devices of pods that are not certain.
    pub(super) waiting: usize,
    /// Devices listed for two pods, one of which must have ended.
    pub(super) contested: usize,
    /// Devices of namespaces and claims that are for administration.
    pub(super) administrative: usize,
    /// Devices that their names do not identify, by reason.
    pub(super) unnamed: BTreeMap<Unnamed, usize>,
    /// The pods of each exclusive device.
    exclusive: HashMap<DeviceName, HashSet<PodUid>>,
}

/// A device of a pod, whatever the list repeats.
#[derive(Debug)]
struct PodDevice {
    /// As it is first listed.
    device: AllocatedDevice,
    /// The container that has it; `None` if several have it.
    container: Option<String>,
    /// The kubelet's names of its parts.
    parts: HashSet<String>,
}

/// The devices of a pod.
#[derive(Debug, Default)]
struct PodDevices {
    all: Vec<PodDevice>,
    places: HashMap<Result<DeviceName, String>, usize>,
    /// See [`Bound::devices`].
    listed: HashSet<u64>,
    /// The kubelet's names of devices for administration.
    administrative: HashSet<String>,
}

impl Binding {
    /// Processes a complete list. Namespaces, and claims as `NAMESPACE/CLAIM`, in `administrative` have
    /// no allocations.
    pub(super) fn bind(
        &mut self,
        list: Vec<PodResources>,
        names: &NameContext<'_>,
        administrative: &[String],
        ownership: &Ownership,
    ) -> Outcome {
        let mut times: HashMap<PodName, usize> = HashMap::new();
        for pod in &list {
            *times.entry((pod.namespace.clone(), pod.name.clone())).or_default() += 1;
        }
        let mut outcome = Outcome::default();
        let mut previous = std::mem::take(&mut self.bound);
        for pod in list {
            let devices = PodDevices::of(&pod, names, administrative);
            outcome.administrative += devices.administrative.len();
            if devices.all.is_empty() {
                continue;
            }
            let name = (pod.namespace, pod.name);
            let facts = ownership.pod_named(&name.0, &name.1);
            let facts = facts.filter(|_| times.get(&name) == Some(&1));
            let previous = previous.remove(&name);
            let Some(facts) = facts else {
                outcome.waiting += devices.all.len();
                self.bound.extend(previous.map(|bound| (name, bound)));
                continue;
            };
            let bound = Bound::next(previous, &facts.uid, devices.listed);
            if bound.contradicted.is_some() {
                outcome.waiting += devices.all.len();
            } else {
                for one in devices.all {
                    outcome.add(&facts, one, ownership);
                }
            }
            self.bound.insert(name, bound);
        }
        outcome.contest();
        outcome
    }
}

/// Whether a device is for administration by configuration: a namespace's, or a claim's.
fn is_administrative(namespace: &str, device: &AllocatedDevice, patterns: &[String]) -> bool {
    let claim = device.details.resource.as_deref();
    let claim = claim.filter(|_| device.kind == GrantKind::Claim);
    let claim = claim.map(|claim| format!("{namespace}/{claim}"));
    let matches = |pattern: &String, name: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    patterns.iter().any(|pattern| match (pattern.contains('/'), &claim) {
        (true, Some(claim)) => matches(pattern, claim),
        (true, None) => false,
        (false, _) => matches(pattern, namespace),
    })
}

impl Bound {
    /// The entry that replaces a previous one.
    fn next(previous: Option<Self>, uid: &PodUid, devices: HashSet<u64>) -> Self {
        if let Some(mut previous) = previous
            && previous.uid == *uid
            && !devices.is_subset(&previous.devices)
        {
            let since = *previous.contradicted.get_or_insert_with(Instant::now);
            if since.elapsed() < UNSETTLED {
                return previous;
            }
        }
        Self { uid: uid.clone(), devices, contradicted: None }
    }
}

impl Outcome {
    fn add(&mut self, facts: &Arc<PodFacts>, one: PodDevice, ownership: &Ownership) {
        let PodDevice { device: allocated, container, parts } = one;
        let device = match allocated.device {
            Ok(device) => device,
            Err(why) => {
                *self.unnamed.entry(why).or_default() += 1;
                return;
            }
        };
        // The node's own kubelet allocates to its own pods.
        let owner = |container: Option<Arc<str>>| {
            let runs = container.as_ref();
            let runs = runs.and_then(|name| ownership.names().container_named(&facts.uid, name));
            let pod = Pod {
                qos: ownership.pod_class(&facts.uid),
                name: Some(Arc::clone(&facts.name)),
                namespace: Some(Arc::clone(&facts.namespace)),
                container: container.clone(),
                facts: Some(Arc::clone(facts)),
                ..Pod::unnamed(facts.uid.clone())
            };
            let workload = Workload { pod: Some(pod), facts: runs, ..Workload::default() };
            let owner_id = Owner::Pod { uid: facts.uid.clone(), container, within: None };
            ownership.allocation_owner(owner_id, &workload)
        };
        let holder = owner(None);
        let owner = container.map_or(holder, |container| owner(Some(container.into())));
        if is_exclusive(allocated.kind, &device) {
            self.exclusive.entry(device.clone()).or_default().insert(facts.uid.clone());
        }
        let mut details = allocated.details;
        let name = details.resource.as_deref().filter(|_| !allocated.is_shared);
        let claim = name.filter(|_| allocated.kind == GrantKind::Claim).map(|name| Claim {
            name: format!("{}/{name}", facts.namespace),
            is_of_daemon_set: facts.workload.get(&attr::K8S_DAEMONSET_NAME).is_some(),
        });
        details.replicas = (allocated.kind == GrantKind::Replica).then_some(parts.len());
        self.allocations.push(Allocation {
            device,
            owner,
            holder,
            source: GrantSource::Kubelet,
            kind: allocated.kind,
            claim: claim.map(Arc::new),
            details,
        });
    }

    /// Removes exclusive devices listed for two pods: kubelets before 1.34 also list pods that have
    /// ended. Such a device has no owner until only one is listed.
    fn contest(&mut self) {
        let before = self.allocations.len();
        let exclusive = &self.exclusive;
        self.allocations.retain(|allocation| {
            !is_exclusive(allocation.kind, &allocation.device)
                || exclusive.get(&allocation.device).is_none_or(|pods| pods.len() == 1)
        });
        self.contested = before - self.allocations.len();
    }
}

/// Whether a device of this kind can belong to one pod only. Its init container and its main one
/// may both have it. A part may have no name of its own (a core of a Neuron device): its device can
/// belong to several.
fn is_exclusive(kind: GrantKind, device: &DeviceName) -> bool {
    kind == GrantKind::Exclusive || (kind == GrantKind::Instance && device.is_part())
}

impl PodDevices {
    /// The accelerators of a pod.
    fn of(pod: &PodResources, names: &NameContext<'_>, administrative: &[String]) -> Self {
        let mut found = Self::default();
        for container in &pod.containers {
            let host = OnceCell::new();
            let plugins = container.devices.iter().flat_map(|devices| names.plugin(devices));
            for device in plugins.chain(claimed(container, names)) {
                if is_administrative(&pod.namespace, &device, administrative) {
                    found.administrative.insert(device.id);
                    continue;
                }
                let host = host.get_or_init(|| pinned(&container.cpu_ids, &container.memory, pod));
                found.put(&container.name, host, pod, device);
            }
        }
        found
    }

    fn put(
        &mut self,
        container: &str,
        host: &PinnedResources,
        pod: &PodResources,
        mut device: AllocatedDevice,
    ) {
        let mut hasher = DefaultHasher::new();
        (container, &device.id).hash(&mut hasher);
        if !self.listed.insert(hasher.finish()) {
            return;
        }
        let key = device.device.clone().map_err(|_| device.id.clone());
        let place = *self.places.entry(key).or_insert(self.all.len());
        let numa = std::mem::take(&mut device.numa);
        let Some(known) = self.all.get_mut(place) else {
            device.details.pinned = some(PinnedResources { numa, ..host.clone() });
            let (container, parts) = (Some(container.to_owned()), [device.id.clone()].into());
            return self.all.push(PodDevice { device, container, parts });
        };
        known.parts.insert(device.id);
        known.device.is_shared |= device.is_shared;
        if known.container.as_deref().is_some_and(|known| known != container) {
            known.container = None;
            // Each container has its own; only what the pod has as a whole is the device's.
            known.device.details.pinned = some(PinnedResources { numa, ..pinned(&[], &[], pod) });
        }
    }
}

/// The devices of a container's claims. A claim's device is listed with the CDI names of those before it,
/// too (`cm/container_manager_linux.go` GetDynamicResources).
fn claimed(container: &ContainerResources, names: &NameContext<'_>) -> Vec<AllocatedDevice> {
    let mut claimed = Vec::new();
    for dynamic in &container.dynamic_resources {
        let mut earlier: HashSet<(&str, &str)> = HashSet::new();
        for resource in &dynamic.claim_resources {
            let all = resource.cdi_devices.iter().map(|device| device.name.as_str());
            let new = all.filter(|name| earlier.insert((resource.driver_name.as_str(), name)));
            let new = new.map(str::to_owned).collect();
            claimed.extend(names.claim(&dynamic.claim_name, resource, new));
        }
    }
    claimed
}

/// The host resources of a container alone, or else those of its pod as a whole (pod-level
/// resources).
fn pinned(cpus: &[i64], memory: &[ContainerMemory], pod: &PodResources) -> PinnedResources {
    let cpus = Some(cpus).filter(|cpus| !cpus.is_empty()).unwrap_or(&pod.cpu_ids);
    let memory = Some(memory).filter(|all| !all.is_empty()).unwrap_or(&pod.memory);
    // The others are huge pages, which are counted in pages of their own.
    let plain = || memory.iter().filter(|block| block.memory_type == PLAIN_MEMORY);
    let nodes = plain().filter_map(|block| block.topology.as_ref());
    PinnedResources {
        numa: BTreeSet::new(),
        cpus: cpus.iter().copied().collect(),
        memory: plain().map(|block| block.size).fold(0, u64::saturating_add),
        memory_numa: nodes.flat_map(node_ids).collect(),
    }
}

fn some(pinned: PinnedResources) -> Option<Arc<PinnedResources>> {
    (pinned != PinnedResources::default()).then(|| Arc::new(pinned))
}

#[cfg(test)]
mod tests;
