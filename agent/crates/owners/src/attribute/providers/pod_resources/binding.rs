//! Turns the kubelet's list into allocations: the pod and the device of each entry.
//!
//! The list names pods by namespace and name. Another pod may reuse a name, so an entry counts only
//! if its pod is certain: an entry of an unknown pod, of a pod that is listed twice, or with other
//! devices than a moment ago waits until the pod is known.

use super::devices::{AllocatedDevice, NameContext, Unnamed, node_ids};
use crate::attribute::allocations::{Allocation, PinnedResources};
use crate::attribute::names::PodFacts;
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::{Pod, Workload};
use crate::inventory::DeviceName;
use gpuwho_kubernetes::pod_resources::{ContainerResources, PodResources};
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::PodUid;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
    /// Container and device, as the kubelet names them.
    devices: HashSet<(String, String)>,
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
    /// Devices that their names do not identify, by reason.
    pub(super) unnamed: BTreeMap<Unnamed, usize>,
    /// The pods of each exclusive device.
    exclusive: HashMap<DeviceName, HashSet<PodUid>>,
}

impl Binding {
    /// Processes a complete list.
    pub(super) fn bind(
        &mut self,
        list: Vec<PodResources>,
        names: &NameContext<'_>,
        ownership: &Ownership,
    ) -> Outcome {
        let mut times: HashMap<PodName, usize> = HashMap::new();
        for pod in &list {
            *times.entry((pod.namespace.clone(), pod.name.clone())).or_default() += 1;
        }
        let mut outcome = Outcome::default();
        let mut previous = std::mem::take(&mut self.bound);
        for pod in list {
            let allocated = allocated(&pod, names);
            if allocated.is_empty() {
                continue;
            }
            let name = (pod.namespace, pod.name);
            let facts = ownership.pod_named(&name.0, &name.1);
            let facts = facts.filter(|_| times.get(&name) == Some(&1));
            let previous = previous.remove(&name);
            let Some(facts) = facts else {
                outcome.waiting += allocated.len();
                self.bound.extend(previous.map(|bound| (name, bound)));
                continue;
            };
            let bound = Bound::next(previous, &facts.uid, &allocated);
            if bound.contradicted.is_some() {
                outcome.waiting += allocated.len();
            } else {
                for (container, device) in allocated {
                    outcome.add(&facts, &container, device, ownership);
                }
            }
            self.bound.insert(name, bound);
        }
        outcome.contest();
        outcome
    }
}

impl Bound {
    /// The entry that replaces a previous one.
    fn next(previous: Option<Self>, uid: &PodUid, allocated: &[(String, AllocatedDevice)]) -> Self {
        let device =
            |(container, one): &(String, AllocatedDevice)| (container.clone(), one.id.clone());
        let devices: HashSet<_> = allocated.iter().map(device).collect();
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
    fn add(
        &mut self,
        facts: &Arc<PodFacts>,
        container: &str,
        allocated: AllocatedDevice,
        ownership: &Ownership,
    ) {
        let device = match allocated.device {
            Ok(device) => device,
            Err(why) => {
                *self.unnamed.entry(why).or_default() += 1;
                return;
            }
        };
        let container: Arc<str> = container.into();
        // The node's own kubelet allocates to its own pods.
        let (uid, name) = (facts.uid.clone(), Some(Arc::clone(&container)));
        let owner_id = Owner::Pod { uid, container: name, within: None };
        let runs = ownership.names().container_named(&facts.uid, &container);
        let pod = Pod {
            qos: ownership.pod_class(&facts.uid),
            name: Some(Arc::clone(&facts.name)),
            namespace: Some(Arc::clone(&facts.namespace)),
            container: Some(container),
            facts: Some(Arc::clone(facts)),
            ..Pod::unnamed(facts.uid.clone())
        };
        let workload = Workload { pod: Some(pod), facts: runs, ..Workload::default() };
        if is_exclusive(allocated.kind, &device) {
            self.exclusive.entry(device.clone()).or_default().insert(facts.uid.clone());
        }
        self.allocations.push(Allocation {
            device,
            owner: ownership.allocation_owner(owner_id, &workload),
            source: GrantSource::Kubelet,
            kind: allocated.kind,
            details: allocated.details,
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

/// The accelerators of a pod, each with its container.
fn allocated(pod: &PodResources, names: &NameContext<'_>) -> Vec<(String, AllocatedDevice)> {
    let mut all = Vec::new();
    for container in &pod.containers {
        let plugins = container.devices.iter().flat_map(|devices| names.plugin(devices));
        let claims = container.dynamic_resources.iter().flat_map(|dynamic| {
            let claim = |resource| names.claim(&dynamic.claim_name, resource);
            dynamic.claim_resources.iter().filter_map(claim)
        });
        let mut devices = plugins.chain(claims).peekable();
        // Most containers have no device.
        if devices.peek().is_none() {
            continue;
        }
        let host = pinned(pod, container);
        all.extend(devices.map(|mut one| {
            let pinned = PinnedResources { numa: std::mem::take(&mut one.numa), ..host.clone() };
            one.details.pinned = (pinned != PinnedResources::default()).then(|| Arc::new(pinned));
            (container.name.clone(), one)
        }));
    }
    all
}

/// The host resources of a container alone, or else those of its pod as a whole (pod-level
/// resources).
fn pinned(pod: &PodResources, container: &ContainerResources) -> PinnedResources {
    let cpus = Some(&container.cpu_ids).filter(|cpus| !cpus.is_empty()).unwrap_or(&pod.cpu_ids);
    let memory = Some(&container.memory).filter(|all| !all.is_empty()).unwrap_or(&pod.memory);
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

#[cfg(test)]
mod tests;
