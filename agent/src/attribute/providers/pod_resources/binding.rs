//! From the kubelet's list to grants: which pod each line is about, and which device.
//!
//! The list names pods by namespace and name. A name is used again by another pod, so a line counts
//! only where it is certain whose name it is: a pod that is not known yet, one that is listed
//! twice, and one whose devices are others than a moment ago wait until its pod is known.

use super::devices::{Granted, NameContext, Unnamed};
use super::wire::{ContainerResources, PodResources, TopologyInfo};
use crate::attribute::allocations::{Allocation, DeviceName, PinnedResources};
use crate::attribute::names::PodFacts;
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::{Pod, Workload};
use crate::catalog::share::{GrantKind, GrantSource};
use crate::ids::PodUid;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A pod cannot change its devices. One that seems to is another pod of the name, whose own UID is
/// told within this, or the kubelet has changed its ways.
const SETTLED: Duration = Duration::from_secs(90);

/// The lines of the list before, for what must not change.
#[derive(Debug, Default)]
pub(super) struct Binding {
    bound: HashMap<PodName, Bound>,
}

/// The kind of memory that is no huge pages (`v1.ResourceMemory`).
const PLAIN_MEMORY: &str = "memory";

type PodName = (String, String);

#[derive(Debug)]
struct Bound {
    uid: PodUid,
    /// Container and device, as the kubelet names them.
    devices: HashSet<(String, String)>,
    /// Since when the list says otherwise.
    doubted: Option<Instant>,
}

/// What a list comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) allocations: Vec<Allocation>,
    /// Granted devices whose pod is not known for certain.
    pub(super) waiting: usize,
    /// Devices listed for two pods, of which one must have ended.
    pub(super) contested: usize,
    /// Devices that cannot be found by their names, by why.
    pub(super) unnamed: BTreeMap<Unnamed, usize>,
    /// The pods for which a device is listed that only one can have.
    alone: HashMap<DeviceName, HashSet<PodUid>>,
}

impl Binding {
    /// Takes a complete list.
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
        let mut before = std::mem::take(&mut self.bound);
        for pod in list {
            let granted = granted(&pod, names);
            if granted.is_empty() {
                continue;
            }
            let name = (pod.namespace, pod.name);
            let facts = ownership.pod_named(&name.0, &name.1);
            let facts = facts.filter(|_| times.get(&name) == Some(&1));
            let before = before.remove(&name);
            let Some(facts) = facts else {
                outcome.waiting += granted.len();
                self.bound.extend(before.map(|bound| (name, bound)));
                continue;
            };
            let bound = Bound::next(before, &facts.uid, &granted);
            if bound.doubted.is_some() {
                outcome.waiting += granted.len();
            } else {
                for (container, granted) in granted {
                    outcome.take(&facts, &container, granted, ownership);
                }
            }
            self.bound.insert(name, bound);
        }
        outcome.contest();
        outcome
    }
}

impl Bound {
    /// The line after this one.
    fn next(before: Option<Self>, uid: &PodUid, granted: &[(String, Granted)]) -> Self {
        let device = |(container, one): &(String, Granted)| (container.clone(), one.id.clone());
        let devices: HashSet<_> = granted.iter().map(device).collect();
        if let Some(mut before) = before
            && before.uid == *uid
            && !devices.is_subset(&before.devices)
        {
            let since = *before.doubted.get_or_insert_with(Instant::now);
            if since.elapsed() < SETTLED {
                return before;
            }
        }
        Self { uid: uid.clone(), devices, doubted: None }
    }
}

impl Outcome {
    fn take(
        &mut self,
        facts: &Arc<PodFacts>,
        container: &str,
        granted: Granted,
        ownership: &Ownership,
    ) {
        let device = match granted.device {
            Ok(device) => device,
            Err(why) => {
                *self.unnamed.entry(why).or_default() += 1;
                return;
            }
        };
        let container: Arc<str> = container.into();
        // The node's own kubelet grants to its own pods.
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
        if is_alone(granted.kind) {
            self.alone.entry(device.clone()).or_default().insert(facts.uid.clone());
        }
        self.allocations.push(Allocation {
            device,
            owner: ownership.allocation_owner(owner_id, &workload),
            source: GrantSource::Kubelet,
            kind: granted.kind,
            details: granted.details,
        });
    }

    /// Kubelets before 1.34 list pods that have ended, beside the one that has their device now: a
    /// device that only one can have and two are listed for is nobody's until one of them is gone.
    fn contest(&mut self) {
        let before = self.allocations.len();
        let alone = &self.alone;
        self.allocations.retain(|allocation| {
            !is_alone(allocation.kind)
                || alone.get(&allocation.device).is_none_or(|pods| pods.len() == 1)
        });
        self.contested = before - self.allocations.len();
    }
}

/// Whether a device granted so can be one pod's only. Its init container and its main one may both
/// have it.
fn is_alone(kind: GrantKind) -> bool {
    matches!(kind, GrantKind::Exclusive | GrantKind::Instance)
}

/// The accelerators of a pod, each with its container.
fn granted(pod: &PodResources, names: &NameContext<'_>) -> Vec<(String, Granted)> {
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
        let host = beside(pod, container);
        all.extend(devices.map(|mut one| {
            let beside = PinnedResources { numa: std::mem::take(&mut one.numa), ..host.clone() };
            one.details.beside = (beside != PinnedResources::default()).then(|| Arc::new(beside));
            (container.name.clone(), one)
        }));
    }
    all
}

/// What a container has for itself on the host; where the pod has it as a whole (resources of the
/// pod's level), that.
fn beside(pod: &PodResources, container: &ContainerResources) -> PinnedResources {
    let cpus = Some(&container.cpu_ids).filter(|cpus| !cpus.is_empty()).unwrap_or(&pod.cpu_ids);
    let memory = Some(&container.memory).filter(|all| !all.is_empty()).unwrap_or(&pod.memory);
    // The others are huge pages, which are counted in pages of their own.
    let plain = || memory.iter().filter(|block| block.memory_type == PLAIN_MEMORY);
    let nodes = plain().filter_map(|block| block.topology.as_ref());
    PinnedResources {
        numa: BTreeSet::new(),
        cpus: cpus.iter().copied().collect(),
        memory: plain().map(|block| block.size).fold(0, u64::saturating_add),
        memory_numa: nodes.flat_map(TopologyInfo::ids).collect(),
    }
}

#[cfg(test)]
mod tests;
