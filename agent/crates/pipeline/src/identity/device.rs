//! Devices, their instances and their XIDs.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::{MetricDef, device};
use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_model::sample::GpuXid;

impl Lookup for GpuId {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity { gpu: registries.inventory.get(self), ..Identity::default() }
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        match &identity.gpu {
            Some(gpu) if *metric == *device::INFO.def() => set.extend(&gpu.attributes()),
            _ => identity.describe_device(set),
        }
    }
}

impl Lookup for InstanceId {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = registries.inventory.instance(self);
        let gpu = instance.as_ref().and_then(|instance| registries.inventory.get(instance.gpu));
        Identity { gpu, instance, ..Identity::default() }
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
    }
}

impl Lookup for GpuXid {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        self.gpu.identity(registries)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        set.set(&attr::GPU_XID_CODE, i64::from(self.code));
    }
}
