//! The devices this agent has seen: their identity, kept for as long as the agent runs, so that a
//! device that vanished still has a name.

use crate::catalog::attributes::{self as attr, AttrSet};
use crate::ids::{GpuId, GpuUuid};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What a device is; changes only with its driver or configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The driver's name of the device.
    pub uuid: GpuUuid,
    /// `nvidia`, ….
    pub vendor: String,
    /// Index in the driver's order.
    pub index: u32,
    /// Minor number of its device node, where the driver tells.
    pub minor: Option<u32>,
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
    /// MIG on or off; `None` where the device has none.
    pub mig: Option<bool>,
}

impl GpuInfo {
    /// The small identity that is on every point about the device.
    pub fn identity(&self) -> AttrSet {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_UUID, self.uuid.as_str());
        set.set(&attr::GPU_INDEX, self.index.to_string().as_str());
        set.set_some(&attr::GPU_MODEL, self.model.as_deref());
        set.set(&attr::GPU_VENDOR, self.vendor.as_str());
        set
    }

    /// Everything known, for `gpu.info`.
    pub fn attributes(&self) -> AttrSet {
        let mut set = self.identity();
        set.set_some(&attr::GPU_PCI_ADDRESS, self.pci_address.as_deref());
        set.set_some(&attr::GPU_SERIAL, self.serial.as_deref());
        set.set_some(&attr::GPU_DRIVER_VERSION, self.driver_version.as_deref());
        set.set_some(&attr::GPU_CUDA_VERSION, self.cuda_version.as_deref());
        let mig = self.mig.map(|on| if on { "enabled" } else { "disabled" });
        set.set_some(&attr::GPU_MIG_MODE, mig);
        set
    }
}

/// All devices by number and by UUID.
#[derive(Debug, Default)]
pub struct Inventory {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    ids: HashMap<GpuUuid, GpuId>,
    infos: Vec<Arc<GpuInfo>>,
}

impl Inventory {
    /// Adds or refreshes a device; gives its number.
    pub fn put(&self, info: GpuInfo) -> GpuId {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&id) = table.ids.get(&info.uuid) {
            if let Some(slot) = table.infos.get_mut(usize::from(id.0))
                && **slot != info
            {
                *slot = Arc::new(info);
            }
            return id;
        }
        let id = GpuId(u16::try_from(table.infos.len()).unwrap_or(u16::MAX));
        table.ids.insert(info.uuid.clone(), id);
        table.infos.push(Arc::new(info));
        id
    }

    /// A device's identity; the `Arc` changes when the identity does.
    pub fn get(&self, id: GpuId) -> Option<Arc<GpuInfo>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.infos.get(usize::from(id.0)).map(Arc::clone)
    }

    /// Every device, in the order they were first seen.
    pub fn all(&self) -> Vec<(GpuId, Arc<GpuInfo>)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        (0_u16..).map(GpuId).zip(table.infos.iter().map(Arc::clone)).collect()
    }
}
