//! Allocations on each device, and how long their owners used, idled or left them.
//!
//! Allocations are bound to the inventory's devices only when either changes. A batch scans the
//! device's processes once for each allocation.

mod find;

use super::accounts::NANO;
use super::disputes::{Administrative, Placed};
use super::instances::{GpuInstance, Slice};
use super::presence::DeviceOpeners;
use super::reading::{Occupancy, Reading};
use find::{find, is_told_apart, starts};
use gpuwho_model::catalog::share::{self as metric, AllocationState, GrantKind, GrantSource};
use gpuwho_model::ids::AllocationId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_model::sample::{Batch, GpuAllocation, GpuOwner};
use gpuwho_owners::attribute::allocations::{Allocation, AllocationRegistry, Disputes};
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
    /// The owner, or its pod where several of the pod's containers are on the device: they are there at
    /// the same time.
    pub(super) holder: OwnerId,
    /// The allocated MIG instance, if the allocation is of one.
    pub(super) instance: Option<InstanceId>,
    source: GrantSource,
    kind: GrantKind,
    details: Option<AllocationId>,
    /// How many replicas, if the device has some.
    replicas: u128,
}

/// The owners with a right to a device or instance, and their parts of it: equal ones, but by their number
/// among owners that have replicas only.
pub(super) fn rights(
    allocations: &[Bound],
    is_of: impl Fn(&Bound) -> bool + Clone,
) -> impl Iterator<Item = (OwnerId, u128)> + Clone {
    let on = allocations.iter().filter(move |bound| is_of(bound));
    let is_sliced = on.clone().all(|bound| bound.kind == GrantKind::Replica);
    on.map(move |bound| (bound.owner, if is_sliced { bound.replicas } else { 1 }))
}

/// The owners of a device's processes that are on it as containers of a pod, with the pod as a whole.
pub(super) type Members = Vec<(OwnerId, OwnerId)>;

/// Whether a process's owner is an allocation's, or a container of the allocation's pod.
pub(super) fn is_of(process: OwnerId, allocated: OwnerId, members: &Members) -> bool {
    process == allocated || members.contains(&(process, allocated))
}

/// All allocations by device, and the time spent in each state.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    lists: Vec<Arc<[Allocation]>>,
    devices: Vec<(GpuId, Arc<GpuInfo>)>,
    instances: Vec<(InstanceId, Arc<InstanceInfo>)>,
    /// The instances that each device had when it was last read; the inventory keeps destroyed ones.
    live: BTreeMap<GpuId, Vec<Slice>>,
    bound: BTreeMap<GpuId, Vec<Bound>>,
    unbound: i64,
    offered: Arc<[(DeviceName, i64)]>,
    administrative: Administrative,
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

    /// Notes the instances of a device: what is allocated is bound anew if they changed. A device that was
    /// not read has those of its last reading.
    pub(super) fn note_instances(&mut self, reading: &mut Reading) {
        let known = self.live.entry(reading.gpu).or_default();
        if reading.at.is_none() {
            return reading.instances.clone_from(known);
        }
        if known.len() != reading.instances.len()
            || known.iter().zip(&reading.instances).any(|(a, b)| a.instance != b.instance)
        {
            self.lists.clear();
        }
        known.clone_from(&reading.instances);
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
        self.bind_all(registry);
        let bound = &self.bound;
        self.spent.retain(|(gpu, owner_id), _| {
            let mut on_gpu = bound.get(gpu).into_iter().flatten();
            on_gpu.any(|allocation| allocation.holder == *owner_id)
        });
    }

    fn bind_all(&mut self, registry: &AllocationRegistry) {
        self.bound.clear();
        let all = || self.lists.iter().flat_map(|list| list.iter());
        let starts = starts(all().map(|allocation| &allocation.device));
        let is_live = |id| self.live.values().flatten().any(|slice| slice.instance == id);
        let live = self.instances.iter().filter(|(instance, _)| is_live(*instance));
        let live: Vec<_> = live.cloned().collect();
        let mut placed: Vec<Placed<'_>> = Vec::new();
        for allocation in all().filter(|allocation| is_told_apart(&allocation.device, &starts)) {
            let device = &allocation.device;
            let is_place = matches!(device, DeviceName::Placed { .. });
            let instances = if is_place { &live } else { &self.instances };
            let found = find(device, &self.devices, instances);
            placed.extend(found.map(|(gpu, instance)| (gpu, instance, allocation)));
        }
        let unbound = all().count() - placed.len();
        self.unbound = i64::try_from(unbound).unwrap_or(i64::MAX);
        let settled = self.administrative.settle(&mut placed, &self.devices);
        registry.dispute(Disputes { unbound, ..settled });
        for (gpu, instance, allocation) in placed {
            let details = registry.id(allocation);
            let Allocation { owner, holder, source, kind, .. } = *allocation;
            let replicas = allocation.details.replicas.unwrap_or(1) as u128;
            let bound = Bound { owner, holder, instance, source, kind, details, replicas };
            let on_gpu = self.bound.entry(gpu).or_default();
            // One for each part, by whatever names: a device has nodes of its own and DRM's.
            match on_gpu
                .iter_mut()
                .find(|known| (known.instance, known.holder) == (instance, holder))
            {
                Some(known) if known.owner != owner => known.owner = holder,
                Some(_) => {}
                None => on_gpu.push(bound),
            }
        }
        for on_gpu in self.bound.values_mut() {
            let owners: Vec<_> = on_gpu.iter().map(|bound| (bound.holder, bound.owner)).collect();
            for bound in on_gpu {
                let mut same = owners.iter().filter(|(holder, _)| *holder == bound.holder);
                if same.all(|(_, owner)| *owner == bound.owner) {
                    bound.holder = bound.owner;
                }
            }
        }
    }

    fn count_parts(&mut self) {
        let Self { offered, devices, instances, parts, .. } = self;
        parts.clear();
        for (name, count) in offered.iter() {
            if let Some((gpu, _)) = find(name, devices, instances) {
                *parts.entry(gpu).or_default() += count;
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

    /// The allocations on a device, one for each owner and part.
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
        all.any(|allocation| [allocation.owner, allocation.holder].contains(&owner_id))
    }

    /// The containers of pods that are on a device as a whole.
    fn members(
        &self,
        reading: &Reading,
        openers: &DeviceOpeners,
        ownership: &Ownership,
    ) -> Members {
        let mut members = Members::new();
        for bound in self.on(reading.gpu) {
            let pod = ownership.owner(bound.holder).filter(|holder| holder.owner.is_pod());
            let Some(pod) = pod else { continue };
            let listed = reading.processes.iter().map(|on| on.owner);
            for owner in listed.chain(openers.owners_on(reading.gpu)) {
                let member = (owner, bound.holder);
                let facts = || ownership.owner(owner);
                if !members.contains(&member)
                    && facts().is_some_and(|facts| facts.owner.is_container_of(&pod.owner))
                {
                    members.push(member);
                }
            }
        }
        members
    }

    /// Adds the time since the last batch to the current state of each allocation on a device; returns
    /// the containers of the pods that have it as a whole.
    pub(super) fn account(
        &mut self,
        reading: &Reading,
        openers: &DeviceOpeners,
        ownership: &Ownership,
        out: &mut Batch,
    ) -> Members {
        let gpu = reading.gpu;
        let last = self.accounted.insert(gpu, out.time);
        let since = last.and_then(|last| out.time.duration_since(last).ok());
        let since_ns = since.filter(|since| *since <= self.max_gap).unwrap_or_default().as_nanos();
        if let Some(parts) = self.parts.get(&gpu) {
            out.push(metric::ALLOCATABLE_PARTS.sample(gpu, (), *parts));
        }
        let members = self.members(reading, openers, ownership);
        let Some(allocations) = self.bound.get(&gpu) else { return members };
        for (place, allocation) in allocations.iter().enumerate() {
            let Bound { owner, holder, instance, source, kind, details, .. } = *allocation;
            let of = GpuAllocation { gpu, instance, owner, details };
            out.push(metric::ALLOCATION_INFO.sample(of, (source, kind), 1));
            if allocations.iter().take(place).any(|earlier| earlier.holder == holder) {
                continue;
            }
            let subject = GpuOwner { gpu, owner: holder };
            let state = state(holder, reading, openers, &members, ownership);
            // An allocation missing from the last batch is new: its time starts now.
            let spent = self.spent.entry((gpu, holder));
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
        members
    }
}

/// What an owner does with its allocated device.
fn state(
    owner_id: OwnerId,
    reading: &Reading,
    openers: &DeviceOpeners,
    members: &Members,
    ownership: &Ownership,
) -> AllocationState {
    if reading.at.is_none() {
        return AllocationState::Unknown;
    }
    let is_mine = |owner| is_of(owner, owner_id, members);
    let mine = || reading.processes.iter().filter(|on| is_mine(on.owner));
    if mine().any(|on| on.busy() > 0) {
        return AllocationState::Active;
    }
    if mine().next().is_none() && !openers.owners_on(reading.gpu).any(is_mine) {
        let hides = reading.unidentified() > 0 || may_hide(owner_id, reading, ownership);
        return if hides { AllocationState::Unknown } else { AllocationState::Unused };
    }
    if let Some(instances) = reading.gpu_instances() {
        return state_in_instances(is_mine, &instances);
    }
    let is_alone =
        reading.unidentified() == 0 && reading.processes.iter().all(|on| is_mine(on.owner));
    match (reading.busy, reading.occupancy()) {
        (Some(0), _) => AllocationState::Idle,
        (Some(_), Occupancy::One(_) | Occupancy::Several) if is_alone => AllocationState::Active,
        // Another owner keeps it busy.
        (Some(_), Occupancy::One(_)) => AllocationState::Idle,
        (Some(_), Occupancy::Several) if reading.sampled() > 0 && !reading.is_served() => {
            AllocationState::Idle
        }
        _ => AllocationState::Unknown,
    }
}

/// The state on a partitioned device, from the partitions in which the owner has processes.
fn state_in_instances(
    is_mine: impl Fn(OwnerId) -> bool,
    instances: &[GpuInstance],
) -> AllocationState {
    let mut busy = instances.iter().filter(|instance| instance.busy > 0);
    let is_active = |instance: &GpuInstance| match instance.occupancy {
        Occupancy::One(owner) => is_mine(owner),
        // Several containers of one pod.
        Occupancy::Several => instance.owners.iter().all(|owner| is_mine(*owner)),
        _ => false,
    };
    if busy.clone().any(is_active) {
        return AllocationState::Active;
    }
    let may_be = |instance: &GpuInstance| {
        instance.occupancy == Occupancy::Unidentified
            || instance.owners.iter().any(|owner| is_mine(*owner))
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

fn same<T>(a: &[T], b: &[T], equal: impl Fn(&T, &T) -> bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
}

#[cfg(test)]
mod pods_tests;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole seconds and joules, which a double holds exactly")]
mod tests;
