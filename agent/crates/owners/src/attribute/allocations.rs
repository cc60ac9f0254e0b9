//! The allocated devices: those that the kubelet or Slurm has allocated on this node, used or not.
//! Each source replaces its own list as a whole; if a source is down, its last list stays.

use crate::inventory::DeviceName;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::AllocationId;
use gpuwho_model::ids::OwnerId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// One device allocated to one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The device.
    pub device: DeviceName,
    /// The owner.
    pub owner: OwnerId,
    /// The pod as a whole, of a pod's container; otherwise the owner.
    pub holder: OwnerId,
    /// The allocator.
    pub source: GrantSource,
    /// Exclusive or shared.
    pub kind: GrantKind,
    /// The claim that has it, if its driver does not divide the device into shares.
    pub claim: Option<Arc<Claim>>,
    /// Further details from the allocator.
    pub details: AllocationDetails,
}

/// A claim of dynamic resource allocation. Two that have one device are a claim for use and one for
/// administration (`adminAccess`), which the kubelet does not tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// `NAMESPACE/CLAIM`.
    pub name: String,
    /// Whether the pod is of a DaemonSet, as monitors are.
    pub is_of_daemon_set: bool,
}

/// Allocations that count for nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disputes {
    /// Claims of monitors, which have all devices, beside the one claim for use.
    pub administrative: usize,
    /// Nothing shows which of the claims is for use.
    pub contested: usize,
    /// Their names are no device's that the agent reads, or several's.
    pub unbound: usize,
}

/// The requested resource of an allocation, its part of the device, and what came with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllocationDetails {
    /// The requested resource: `nvidia.com/gpu`, a claim, a gres.
    pub resource: Option<Arc<str>>,
    /// How many replicas of the device, if it is divided into them (time slicing, MPS).
    pub replicas: Option<usize>,
    /// The device as the driver of a claim names it.
    pub claimed: Option<Arc<DraDevice>>,
    /// Resources of the host pinned to the container.
    pub pinned: Option<Arc<PinnedResources>>,
}

/// A device of a claim of dynamic resource allocation, as its driver names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DraDevice {
    /// `gpu.nvidia.com`, ….
    pub driver: String,
    /// The driver's device pool, usually the node's.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// The share's id, if the driver divides the device.
    pub share: Option<String>,
    /// CDI names by which the runtime found the device.
    pub cdi: Vec<String>,
}

/// The host resources that a container has for itself, in addition to its device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PinnedResources {
    /// NUMA nodes of the device, from its plugin.
    pub numa: BTreeSet<i64>,
    /// Exclusive CPUs (the kubelet's CPU manager).
    pub cpus: BTreeSet<i64>,
    /// Bytes of exclusive memory (the kubelet's memory manager).
    pub memory: u64,
    /// NUMA nodes of that memory.
    pub memory_numa: BTreeSet<i64>,
}

/// All allocations by source, and all allocatable devices.
#[derive(Clone, Debug, Default)]
pub struct AllocationRegistry(Arc<Mutex<AllocationIndex>>);

#[derive(Debug, Default)]
struct AllocationIndex {
    lists: BTreeMap<&'static str, Arc<[Allocation]>>,
    /// Devices with the number of their parts.
    allocatable: Arc<[(DeviceName, i64)]>,
    disputes: Disputes,
    ids: HashMap<AllocationDetails, AllocationId>,
    details: HashMap<AllocationId, Arc<AllocationDetails>>,
    /// Details in no list at the last replacement; their series end meanwhile.
    idle: HashSet<AllocationId>,
    next: u32,
}

impl AllocationDetails {
    /// The attributes for `gpu.allocation.info`.
    pub fn attributes(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set_some(&attr::GRANT_RESOURCE, self.resource.clone());
        let replicas = self.replicas.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        set.set_some(&attr::GRANT_REPLICAS, replicas);
        if let Some(claimed) = &self.claimed {
            let cdi = claimed.cdi.join(",");
            set.set_some(&attr::CLAIM_SHARE, claimed.share.as_deref());
            for (key, text) in [
                (&attr::CLAIM_DRIVER, &claimed.driver),
                (&attr::CLAIM_POOL, &claimed.pool),
                (&attr::CLAIM_DEVICE, &claimed.device),
                (&attr::CLAIM_CDI, &cdi),
            ] {
                set.set_some(key, Some(text.as_str()).filter(|text| !text.is_empty()));
            }
        }
        if let Some(pinned) = &self.pinned {
            set.set_some(&attr::GRANT_NUMA, ranges(&pinned.numa));
            set.set_some(&attr::GRANT_CPUS, ranges(&pinned.cpus));
            let memory = i64::try_from(pinned.memory).unwrap_or(i64::MAX);
            set.set_some(&attr::GRANT_MEMORY, Some(memory).filter(|memory| *memory > 0));
            set.set_some(&attr::GRANT_MEMORY_NUMA, ranges(&pinned.memory_numa));
        }
        set
    }
}

/// Numbers in the kernel's CPU list format: `0-3,8`.
fn ranges(numbers: &BTreeSet<i64>) -> Option<Arc<str>> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(",").into())
}

impl AllocationRegistry {
    /// Replaces a source's list.
    pub fn replace(&self, source: &'static str, allocations: Vec<Allocation>) {
        let mut known = self.0.lock();
        if known.lists.get(source).is_some_and(|list| **list == *allocations) {
            return;
        }
        known.lists.insert(source, allocations.into());
        known.number();
    }

    /// Sets what the node's allocator can allocate, one entry for each part; empty if the allocator
    /// does not report it.
    pub fn offer(&self, devices: impl IntoIterator<Item = DeviceName>) {
        let mut parts: BTreeMap<DeviceName, i64> = BTreeMap::new();
        for device in devices {
            *parts.entry(device).or_default() += 1;
        }
        let mut known = self.0.lock();
        if !known.allocatable.iter().map(|(device, parts)| (device, parts)).eq(&parts) {
            known.allocatable = parts.into_iter().collect();
        }
    }

    /// The allocatable devices as last set, with the number of their parts.
    pub fn offered(&self) -> Arc<[(DeviceName, i64)]> {
        Arc::clone(&self.0.lock().allocatable)
    }

    /// Sets how many allocations count for nobody, by whoever knows the devices behind the names.
    pub fn dispute(&self, disputes: Disputes) {
        self.0.lock().disputes = disputes;
    }

    /// The disputes as last set.
    pub fn disputes(&self) -> Disputes {
        self.0.lock().disputes
    }

    /// The number of a source's allocations.
    pub fn count(&self, source: &str) -> usize {
        self.0.lock().lists.get(source).map_or(0, |list| list.len())
    }

    /// The lists of all sources.
    pub fn all(&self) -> Vec<Arc<[Allocation]>> {
        self.0.lock().lists.values().map(Arc::clone).collect()
    }

    /// The number of a listed allocation's details.
    pub fn id(&self, allocation: &Allocation) -> Option<AllocationId> {
        self.0.lock().ids.get(&allocation.details).copied()
    }

    /// The details of a number; they never change.
    pub fn details(&self, id: AllocationId) -> Option<Arc<AllocationDetails>> {
        self.0.lock().details.get(&id).map(Arc::clone)
    }
}

impl AllocationIndex {
    /// Numbers new details, and removes those in no list for two changes.
    fn number(&mut self) {
        let Self { lists, ids, details, idle, next, .. } = self;
        let listed =
            lists.values().flat_map(|list| list.iter()).map(|allocation| &allocation.details);
        let mut used = HashSet::new();
        for reported in listed {
            let id = *ids.entry(reported.clone()).or_insert_with(|| {
                let id = AllocationId(*next);
                *next = next.wrapping_add(1);
                details.insert(id, Arc::new(reported.clone()));
                id
            });
            used.insert(id);
        }
        let is_over = |id: &AllocationId| !used.contains(id) && idle.contains(id);
        ids.retain(|_, id| !is_over(id));
        details.retain(|id, _| !is_over(id));
        *idle = details.keys().filter(|id| !used.contains(id)).copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes::AttrValue;
    use gpuwho_model::ids::GpuUuid;

    #[test]
    fn a_mapping_file_is_named_after_its_device() {
        let uuid = |text| DeviceName::Uuid(GpuUuid::new(text));
        for (name, expected) in [
            ("10", Some(DeviceName::Number(10))),
            ("0.3", Some(DeviceName::Part(0, 3))),
            ("GPU-4e1a", Some(uuid("GPU-4e1a"))),
            ("MIG-4e1a", Some(uuid("MIG-4e1a"))),
            ("-1", None),
            ("0.", None),
            ("0.3.1", None),
            ("README", None),
        ] {
            assert_eq!(DeviceName::of_map(name), expected, "{name}");
        }
    }

    #[test]
    fn the_allocator_s_details_become_attributes_and_absent_ones_do_not() {
        let text = |text: &str| AttrValue::from(text);
        let details = AllocationDetails {
            resource: Some("one-gpu".into()),
            replicas: Some(4),
            claimed: Some(Arc::new(DraDevice {
                driver: "gpu.nvidia.com".into(),
                pool: "node-a".into(),
                device: "gpu-3".into(),
                share: Some("s1".into()),
                cdi: vec!["a/b=c".into(), "a/b=d".into()],
            })),
            pinned: Some(Arc::new(PinnedResources {
                numa: [1].into(),
                cpus: [2, 3, 4, 8, 10, 11].into(),
                memory: 1 << 30,
                memory_numa: [0, 1].into(),
            })),
        };
        let reported = details.attributes();
        let mut expected = AttrSet::new();
        for (key, value) in [
            (&attr::GRANT_RESOURCE, text("one-gpu")),
            (&attr::GRANT_REPLICAS, AttrValue::from(4_i64)),
            (&attr::CLAIM_SHARE, text("s1")),
            (&attr::CLAIM_DRIVER, text("gpu.nvidia.com")),
            (&attr::CLAIM_POOL, text("node-a")),
            (&attr::CLAIM_DEVICE, text("gpu-3")),
            (&attr::CLAIM_CDI, text("a/b=c,a/b=d")),
            (&attr::GRANT_NUMA, text("1")),
            (&attr::GRANT_CPUS, text("2-4,8,10-11")),
            (&attr::GRANT_MEMORY, AttrValue::from(1_i64 << 30)),
            (&attr::GRANT_MEMORY_NUMA, text("0-1")),
        ] {
            expected.set(key, value);
        }
        assert_eq!(reported, expected);
        let nothing = AllocationDetails {
            claimed: Some(Arc::default()),
            pinned: Some(Arc::default()),
            ..AllocationDetails::default()
        };
        assert_eq!(nothing.attributes(), AttrSet::new());
    }

    #[test]
    fn a_source_replaces_its_own_list_only() {
        let allocation = |index| Allocation {
            device: DeviceName::Index(index),
            owner: OwnerId::UNATTRIBUTED,
            holder: OwnerId::UNATTRIBUTED,
            source: GrantSource::Slurm,
            kind: GrantKind::Exclusive,
            claim: None,
            details: AllocationDetails::default(),
        };
        let allocations = AllocationRegistry::default();
        allocations.replace("kubelet", vec![allocation(0)]);
        allocations.replace("slurm", vec![allocation(1), allocation(2)]);
        allocations.replace("slurm", vec![allocation(3)]);
        let all: Vec<Allocation> =
            allocations.all().iter().flat_map(|list| list.to_vec()).collect();
        assert_eq!(all, [allocation(0), allocation(3)]);
    }

    #[test]
    fn details_have_their_number_while_listed_and_for_one_more_change() {
        let allocation = |replicas| Allocation {
            device: DeviceName::Index(0),
            owner: OwnerId::UNATTRIBUTED,
            holder: OwnerId::UNATTRIBUTED,
            source: GrantSource::Kubelet,
            kind: GrantKind::Replica,
            claim: None,
            details: AllocationDetails {
                resource: Some("nvidia.com/gpu.shared".into()),
                replicas: Some(replicas),
                ..AllocationDetails::default()
            },
        };
        let allocations = AllocationRegistry::default();
        allocations.replace("kubelet", vec![allocation(0), allocation(1)]);
        let [zero, one] = [0, 1].map(|replicas| allocations.id(&allocation(replicas)).unwrap());
        assert_ne!(zero, one);
        allocations.replace("kubelet", vec![allocation(1)]);
        assert_eq!(allocations.id(&allocation(1)), Some(one));
        assert_eq!(allocations.details(zero).as_deref(), Some(&allocation(0).details));
        allocations.replace("kubelet", vec![allocation(1), allocation(2)]);
        assert_eq!((allocations.details(zero), allocations.id(&allocation(0))), (None, None));
        allocations.replace("kubelet", vec![allocation(0)]);
        assert!(![zero, one].contains(&allocations.id(&allocation(0)).unwrap()));
    }
}
