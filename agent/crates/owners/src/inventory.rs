//! The identity of every device and partition (such as a MIG instance) that this agent has seen. It
//! stays for as long as the agent runs, so a device that disappears still has its attributes. The
//! [`register`] keeps devices over restarts.

pub mod register;

pub mod facts;
mod name;

use facts::Facts;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::ids::{GpuId, GpuUuid, InstanceId};
use parking_lot::RwLock;
use register::{DeviceStore, KnownDevice};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use name::DeviceName;

/// Identity of a device; changes only with its driver or configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The driver's name of the device.
    pub uuid: GpuUuid,
    /// Its id made of its place, which it has where its own cannot be read; `None` where it always can, or
    /// never.
    pub placed: Option<GpuUuid>,
    /// `nvidia`, ….
    pub vendor: String,
    /// Index in the driver's order.
    pub index: u32,
    /// Minor number of its device node, if the vendor's node names contain it.
    pub minor: Option<u32>,
    /// Its device nodes and those of its partitions, by their names below `/dev` (`nvidia0`,
    /// `dri/renderD128`) and by their numbers (`195:0`).
    pub nodes: Vec<String>,
    /// Product name.
    pub model: Option<String>,
    /// PCI address, lower case, `00000000:17:00.0` as the driver spells it.
    pub pci_address: Option<String>,
    /// Board serial number.
    pub serial: Option<String>,
    /// Kernel driver version.
    pub driver_version: Option<String>,
    /// CUDA version the driver supports, `13.0`.
    pub cuda_version: Option<String>,
    /// Whether MIG is enabled; `None` if the device has no MIG.
    pub mig: Option<bool>,
    /// Further facts about the board.
    pub facts: Facts,
}

/// The name of a node below `/dev`, or its number: evidence contains either.
pub fn node_name(node: &str) -> &str {
    node.rsplit_once("/dev/").map_or(node, |(_, name)| name)
}

impl GpuInfo {
    /// A device with only its required fields.
    pub fn new(uuid: GpuUuid, vendor: &str, index: u32) -> Self {
        Self {
            uuid,
            placed: None,
            vendor: vendor.to_owned(),
            index,
            minor: None,
            nodes: Vec::new(),
            model: None,
            pci_address: None,
            serial: None,
            driver_version: None,
            cuda_version: None,
            mig: None,
            facts: Facts::default(),
        }
    }

    /// Whether a node, by path or number, belongs to the device.
    pub fn has_node(&self, node: &str) -> bool {
        self.nodes.iter().any(|known| known == node_name(node))
    }

    /// The small identity for every point about the device.
    pub fn identity(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_UUID, self.uuid.as_str());
        set.set(&attr::GPU_INDEX, self.index.to_string().as_str());
        set.set_some(&attr::GPU_MODEL, self.model.as_deref());
        set.set(&attr::GPU_VENDOR, self.vendor.as_str());
        set
    }

    /// All attributes, for `gpu.info`.
    pub fn attributes(&self) -> AttrSet {
        let mut set = self.identity();
        set.set_some(&attr::GPU_PCI_ADDRESS, self.pci_address.as_deref());
        set.set_some(&attr::GPU_SERIAL, self.serial.as_deref());
        set.set_some(&attr::GPU_DRIVER_VERSION, self.driver_version.as_deref());
        set.set_some(&attr::GPU_CUDA_VERSION, self.cuda_version.as_deref());
        let mig = self.mig.map(|on| if on { "enabled" } else { "disabled" });
        set.set_some(&attr::GPU_MIG_MODE, mig);
        self.facts.add_to(&mut set);
        set
    }
}

/// Identity of a device's partition. A MIG instance is a compute instance with the GPU instance
/// around it; a new instance at the same place of the device has another UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInfo {
    /// The driver's name of the instance, `MIG-…`.
    pub uuid: GpuUuid,
    /// The device it is a part of.
    pub gpu: GpuId,
    /// GPU instance id (gi), unique on the device.
    pub gpu_instance: u32,
    /// Compute instance id (ci), unique in the GPU instance.
    pub compute_instance: Option<u32>,
    /// `3g.20gb`, `1c.3g.20gb`, `1g.10gb+me`, ….
    pub profile: Option<String>,
    /// How much of the device it is.
    pub extent: InstanceExtent,
}

/// A MIG instance's part of its device, as far as the driver reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceExtent {
    /// Compute slices of the whole device: seven on most.
    pub device_slices: Option<u32>,
    /// Those of the GPU instance.
    pub gpu_slices: Option<u32>,
    /// Those of the compute instance.
    pub compute_slices: Option<u32>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Bytes of memory of the GPU instance.
    pub memory: Option<u64>,
}

impl InstanceInfo {
    /// The attributes for every point about the instance, in addition to the device's identity.
    pub fn identity(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_MIG_UUID, self.uuid.as_str());
        set.set(&attr::GPU_MIG_GPU_INSTANCE, i64::from(self.gpu_instance));
        set.set_some(&attr::GPU_MIG_COMPUTE_INSTANCE, self.compute_instance.map(i64::from));
        set.set_some(&attr::GPU_MIG_PROFILE, self.profile.as_deref());
        set
    }
}

/// All devices and instances by number and by UUID.
#[derive(Debug, Default)]
pub struct Inventory {
    gpus: RwLock<Table<GpuInfo>>,
    instances: RwLock<Table<InstanceInfo>>,
    changes: AtomicU64,
    register: DeviceStore,
}

/// Identities in the order in which they were first added.
#[derive(Debug)]
struct Table<T> {
    places: HashMap<GpuUuid, u16>,
    infos: Vec<Arc<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), infos: Vec::new() }
    }
}

impl<T: PartialEq> Table<T> {
    fn put(&mut self, uuid: &GpuUuid, info: T, changes: &AtomicU64) -> u16 {
        if let Some(&place) = self.places.get(uuid) {
            if let Some(slot) = self.infos.get_mut(usize::from(place))
                && **slot != info
            {
                *slot = Arc::new(info);
                changes.fetch_add(1, Ordering::Release);
            }
            return place;
        }
        changes.fetch_add(1, Ordering::Release);
        let place = u16::try_from(self.infos.len()).unwrap_or(u16::MAX);
        self.places.insert(uuid.clone(), place);
        self.infos.push(Arc::new(info));
        place
    }

    fn get(&self, place: u16) -> Option<Arc<T>> {
        self.infos.get(usize::from(place)).map(Arc::clone)
    }

    fn all(&self) -> impl Iterator<Item = (u16, Arc<T>)> {
        (0_u16..).zip(self.infos.iter().map(Arc::clone))
    }
}

impl From<&KnownDevice> for GpuInfo {
    /// Copies the stored fields; those that may have changed since stay empty.
    fn from(known: &KnownDevice) -> Self {
        Self {
            model: known.model.clone(),
            pci_address: known.pci_address.clone(),
            serial: known.serial.clone(),
            ..Self::new(known.uuid.clone(), &known.vendor, known.index)
        }
    }
}

impl Inventory {
    /// Creates an empty inventory with a device store.
    pub fn beside(register: DeviceStore) -> Self {
        Self { register, ..Self::default() }
    }

    /// The store of known devices.
    pub fn register(&self) -> &DeviceStore {
        &self.register
    }

    /// The number of a device, if it was ever added.
    pub fn find(&self, uuid: &GpuUuid) -> Option<GpuId> {
        let table = self.gpus.read();
        table.places.get(uuid).copied().map(GpuId)
    }

    /// Adds or updates a device and returns its number.
    pub fn put(&self, info: GpuInfo) -> GpuId {
        let uuid = info.uuid.clone();
        let mut gpus = self.gpus.write();
        GpuId(gpus.put(&uuid, info, &self.changes))
    }

    /// Changes whenever the identity of a device or an instance changes.
    pub fn version(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// A device's identity; the `Arc` changes with the identity.
    pub fn get(&self, id: GpuId) -> Option<Arc<GpuInfo>> {
        self.gpus.read().get(id.0)
    }

    /// All devices, in the order in which they were first added.
    pub fn all(&self) -> Vec<(GpuId, Arc<GpuInfo>)> {
        let table = self.gpus.read();
        table.all().map(|(place, info)| (GpuId(place), info)).collect()
    }

    /// Adds or updates a MIG instance and returns its number; a UUID keeps its number.
    pub fn put_instance(&self, info: InstanceInfo) -> InstanceId {
        let uuid = info.uuid.clone();
        let mut instances = self.instances.write();
        InstanceId(instances.put(&uuid, info, &self.changes))
    }

    /// An instance's identity; the `Arc` changes with the identity.
    pub fn instance(&self, id: InstanceId) -> Option<Arc<InstanceInfo>> {
        self.instances.read().get(id.0)
    }

    /// All instances, in the order in which they were first added, destroyed ones included.
    pub fn instances(&self) -> Vec<(InstanceId, Arc<InstanceInfo>)> {
        let table = self.instances.read();
        table.all().map(|(place, info)| (InstanceId(place), info)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(uuid: &str, gpu_instance: u32) -> InstanceInfo {
        InstanceInfo {
            uuid: GpuUuid::new(uuid),
            gpu: GpuId(0),
            gpu_instance,
            compute_instance: Some(0),
            profile: Some("3g.20gb".into()),
            extent: InstanceExtent::default(),
        }
    }

    #[test]
    fn an_instance_keeps_its_number_and_its_place_is_reused_by_another() {
        let inventory = Inventory::default();
        let first = inventory.put_instance(instance("MIG-1", 1));
        let second = inventory.put_instance(instance("MIG-2", 1));
        assert_ne!(first, second, "the same place after a re-partitioning is another instance");
        assert_eq!(inventory.put_instance(instance("MIG-1", 1)), first);
        assert_eq!(inventory.instance(first).as_deref(), Some(&instance("MIG-1", 1)));
        assert_eq!(inventory.instances().len(), 2);
    }

    #[test]
    fn an_identity_is_replaced_only_when_it_changed() {
        let inventory = Inventory::default();
        let id = inventory.put_instance(instance("MIG-1", 1));
        let before = inventory.instance(id).unwrap();
        inventory.put_instance(instance("MIG-1", 1));
        assert!(Arc::ptr_eq(&before, &inventory.instance(id).unwrap()));
        inventory.put_instance(instance("MIG-1", 2));
        assert_eq!(inventory.instance(id).unwrap().gpu_instance, 2);
    }
}
