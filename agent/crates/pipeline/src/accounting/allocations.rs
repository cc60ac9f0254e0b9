//! Allocations on each device, and how long their owners used, idled or left them.
//!
//! Allocations are bound to the inventory's devices only when either changes. A batch scans the
//! device's processes once for each allocation.

use super::accounts::NANO;
use super::instances::GpuInstance;
use super::presence::DeviceOpeners;
use super::reading::{Occupancy, Reading};
use gpuwho_model::catalog::share::{self as metric, AllocationState, GrantKind, GrantSource};
use gpuwho_model::ids::AllocationId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_model::sample::{Batch, GpuAllocation, GpuOwner};
use gpuwho_owners::attribute::allocations::{Allocation, AllocationRegistry};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::DeviceName;
use gpuwho_owners::inventory::{GpuInfo, InstanceInfo, Inventory};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An allocation on a device of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) owner: OwnerId,
    /// The allocated MIG instance, if the allocation is of one.
    pub(super) instance: Option<InstanceId>,
    source: GrantSource,
    kind: GrantKind,
    details: Option<AllocationId>,
}

/// All allocations by device, and the time spent in each state.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    lists: Vec<Arc<[Allocation]>>,
    devices: Vec<(GpuId, Arc<GpuInfo>)>,
    instances: Vec<(InstanceId, Arc<InstanceInfo>)>,
    bound: BTreeMap<GpuId, Vec<Bound>>,
    unbound: i64,
    offered: Arc<[DeviceName]>,
    /// Allocatable parts of each device; 0 for devices of a vendor whose other devices are offered.
    parts: BTreeMap<GpuId, i64>,
    /// When each device was last accounted.
    accounted: BTreeMap<GpuId, SystemTime>,
    /// Longer times between two batches are not counted.
    max_gap: Duration,
    spent: BTreeMap<(GpuId, OwnerId), Spent>,
}

/// Nanoseconds in each state, indexed by position in [`AllocationState::ALL`].
type Spent = [u128; AllocationState::ALL.len()];

impl Allocations {
    /// Starts with no allocations.
    pub(super) fn new(max_gap: Duration) -> Self {
        Self { max_gap, ..Self::default() }
    }
    /// Binds the current allocations to the devices, if either changed.
    pub(super) fn bind(&mut self, registry: &AllocationRegistry, inventory: &Inventory) {
        let (lists, devices) = (registry.all(), inventory.all());
        let (instances, offered) = (inventory.instances(), registry.offered());
        if Arc::ptr_eq(&offered, &self.offered)
            && same(&lists, &self.lists, Arc::ptr_eq)
            && same(&devices, &self.devices, |a, b| Arc::ptr_eq(&a.1, &b.1))
            && same(&instances, &self.instances, |a, b| Arc::ptr_eq(&a.1, &b.1))
        {
            return;
        }
        (self.lists, self.devices, self.instances) = (lists, devices, instances);
        self.offered = offered;
        self.count_parts();
        self.bound.clear();
        self.unbound = 0;
        for allocation in self.lists.iter().flat_map(|list| list.iter()) {
            match find(&allocation.device, &self.devices, &self.instances) {
                Some((gpu, instance)) => {
                    let Allocation { owner: owner_id, source, kind, .. } = *allocation;
                    let details = registry.id(allocation);
                    let bound = Bound { owner: owner_id, instance, source, kind, details };
                    self.bound.entry(gpu).or_default().push(bound);
                }
                None => self.unbound += 1,
            }
        }
        let bound = &self.bound;
        self.spent.retain(|(gpu, owner_id), _| {
            let mut on_gpu = bound.get(gpu).into_iter().flatten();
            on_gpu.any(|allocation| allocation.owner == *owner_id)
        });
    }

    fn count_parts(&mut self) {
        let Self { offered, devices, instances, parts, .. } = self;
        parts.clear();
        for name in offered.iter() {
            if let Some((gpu, _)) = find(name, devices, instances) {
                *parts.entry(gpu).or_default() += 1;
            }
        }
        let vendor = |gpu| devices.iter().find(|(of, _)| *of == gpu).map(|(_, info)| &info.vendor);
        let vendors: BTreeSet<_> = parts.keys().filter_map(|gpu| vendor(*gpu)).collect();
        for (gpu, info) in devices.iter() {
            if vendors.contains(&info.vendor) {
                parts.entry(*gpu).or_default();
            }
        }
    }

    /// The allocations on a device, one for each allocated part.
    pub(super) fn on(&self, gpu: GpuId) -> &[Bound] {
        self.bound.get(&gpu).map_or(&[], Vec::as_slice)
    }

    /// The number of allocations that match no device.
    pub(super) fn unbound(&self) -> i64 {
        self.unbound
    }

    /// Whether an owner has an allocation.
    pub(super) fn has_allocation(&self, owner_id: OwnerId) -> bool {
        let mut all = self.lists.iter().flat_map(|list| list.iter());
        all.any(|allocation| allocation.owner == owner_id)
    }

    /// Adds the time since the last batch to the current state of each allocation on a device.
    pub(super) fn account(
        &mut self,
        reading: &Reading,
        openers: &DeviceOpeners,
        ownership: &Ownership,
        out: &mut Batch,
    ) {
        let gpu = reading.gpu;
        let last = self.accounted.insert(gpu, out.time);
        let since = last.and_then(|last| out.time.duration_since(last).ok());
        let since_ns = since.filter(|since| *since <= self.max_gap).unwrap_or_default().as_nanos();
        if let Some(parts) = self.parts.get(&gpu) {
            out.push(metric::ALLOCATABLE_PARTS.sample(gpu, (), *parts));
        }
        let Some(allocations) = self.bound.get(&gpu) else { return };
        for (place, allocation) in allocations.iter().enumerate() {
            let earlier = || allocations.iter().take(place);
            let subject = GpuOwner { gpu, owner: allocation.owner };
            if !earlier().any(|other| other == allocation) {
                let Bound { owner: owner_id, instance, source, kind, details } = *allocation;
                let of = GpuAllocation { gpu, instance, owner: owner_id, details };
                out.push(metric::ALLOCATION_INFO.sample(of, (source, kind), 1));
            }
            if earlier().any(|other| other.owner == allocation.owner) {
                continue;
            }
            let state = state(allocation.owner, reading, openers, ownership);
            // An allocation missing from the last batch is new: its time starts now.
            let spent = self.spent.entry((gpu, allocation.owner));
            let spent = spent
                .and_modify(|spent| {
                    if let Some(spent) = spent.get_mut(state as usize) {
                        *spent += since_ns;
                    }
                })
                .or_default();
            for (&state, &ns) in AllocationState::ALL.iter().zip(spent.iter()) {
                let seconds = ns as f64 / NANO;
                out.push(metric::ALLOCATION_TIME.sample(subject, state, seconds));
            }
        }
    }
}

/// What an owner does with its allocated device.
fn state(
    owner_id: OwnerId,
    reading: &Reading,
    openers: &DeviceOpeners,
    ownership: &Ownership,
) -> AllocationState {
    if reading.at.is_none() {
        return AllocationState::Unknown;
    }
    let mine = || reading.processes.iter().filter(|on| on.owner == owner_id);
    let is_listed = mine().next().is_some();
    if mine().any(|on| on.busy() > 0) {
        return AllocationState::Active;
    }
    if !is_listed && !openers.has_opened(reading.gpu, owner_id) {
        let hides = reading.unidentified() > 0 || may_hide(owner_id, reading, ownership);
        return if hides { AllocationState::Unknown } else { AllocationState::Unused };
    }
    if let Some(instances) = reading.gpu_instances() {
        return state_in_instances(owner_id, &instances);
    }
    match (reading.busy, reading.occupancy()) {
        (Some(0), _) => AllocationState::Idle,
        (Some(_), Occupancy::One(only)) if only == owner_id => AllocationState::Active,
        // Another owner keeps it busy.
        (Some(_), Occupancy::One(_)) => AllocationState::Idle,
        (Some(_), Occupancy::Several) if reading.sampled() > 0 && !reading.is_served() => {
            AllocationState::Idle
        }
        _ => AllocationState::Unknown,
    }
}

/// The state on a partitioned device, from the partitions in which the owner has processes.
fn state_in_instances(owner_id: OwnerId, instances: &[GpuInstance]) -> AllocationState {
    let mut busy = instances.iter().filter(|instance| instance.busy > 0);
    if busy.clone().any(|instance| instance.occupancy == Occupancy::One(owner_id)) {
        return AllocationState::Active;
    }
    let may_be = |instance: &GpuInstance| {
        instance.occupancy == Occupancy::Unidentified || instance.owners.contains(&owner_id)
    };
    if busy.any(may_be) { AllocationState::Unknown } else { AllocationState::Idle }
}

/// Whether a process on the device may belong to the owner although it is on another account: its
/// owner is not identified yet, or it is in the same pod and its container is not identified.
fn may_hide(owner_id: OwnerId, reading: &Reading, ownership: &Ownership) -> bool {
    let pod = |owner_id| match &ownership.owner(owner_id)?.owner {
        Owner::Pod { uid, container, within } => {
            Some(((uid.clone(), within.clone()), container.is_some()))
        }
        _ => None,
    };
    let own_pod = pod(owner_id);
    reading.processes.iter().any(|on| {
        let is_pod = |(pod_of, _): &(_, bool)| {
            pod(on.owner).is_some_and(|(other, is_named)| other == *pod_of && !is_named)
        };
        on.owner == OwnerId::UNATTRIBUTED || own_pod.as_ref().is_some_and(is_pod)
    })
}

/// The one device that a name matches, and the MIG instance if the name is an instance's. `None` if
/// none or several match.
fn find(
    name: &DeviceName,
    devices: &[(GpuId, Arc<GpuInfo>)],
    instances: &[(InstanceId, Arc<InstanceInfo>)],
) -> Option<(GpuId, Option<InstanceId>)> {
    let is_numbered =
        |info: &GpuInfo, number: &u32| info.index == *number || info.minor == Some(*number);
    let is_it = |info: &InstanceInfo| match name {
        DeviceName::Uuid(uuid) => info.uuid == *uuid,
        DeviceName::Part(number, part) => {
            let mut on = devices.iter().filter(|(_, device)| is_numbered(device, number));
            let is_on = on.next().is_some_and(|(gpu, _)| info.gpu == *gpu);
            info.gpu_instance == *part && is_on && on.next().is_none()
        }
        DeviceName::Instance { device, gpu_instance, compute_instance } => {
            let on = devices.iter().find(|(gpu, _)| info.gpu == *gpu);
            on.is_some_and(|(_, whole)| whole.has_node(device))
                && info.gpu_instance == *gpu_instance
                && (compute_instance.is_none() || info.compute_instance == *compute_instance)
        }
        _ => false,
    };
    let mut parts = instances.iter().filter(|(_, info)| is_it(info));
    if let Some((instance, info)) = parts.next() {
        return parts.next().is_none().then_some((info.gpu, Some(*instance)));
    }
    let mut named = devices.iter().filter(|(_, info)| match name {
        DeviceName::Uuid(uuid) => info.uuid == *uuid,
        DeviceName::Minor(minor) => info.minor == Some(*minor),
        DeviceName::Node(node) => info.has_node(node),
        DeviceName::Index(index) => info.index == *index,
        DeviceName::IndexOf(vendor, index) => info.vendor == *vendor && info.index == *index,
        DeviceName::Number(number) => is_numbered(info, number),
        DeviceName::Part(..) | DeviceName::Instance { .. } => false,
        DeviceName::Serial(serial) => info.serial.as_deref() == Some(&**serial),
        DeviceName::Pci(address) => {
            info.pci_address.as_deref().is_some_and(|known| bare(known) == bare(address))
        }
    });
    let (gpu, _) = named.next()?;
    named.next().is_none().then_some((*gpu, None))
}

/// A PCI address without leading zeros: drivers write the domain with four or eight digits.
fn bare(address: &str) -> &str {
    address.trim_start_matches('0')
}

fn same<T>(a: &[T], b: &[T], equal: impl Fn(&T, &T) -> bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole seconds and joules, which a double holds exactly")]
mod tests;
