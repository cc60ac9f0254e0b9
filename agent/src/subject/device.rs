//! Devices, their instances and their XIDs.

use super::{Description, Identity, Registries, SeriesClass, SubjectKind};
use crate::catalog::attributes as attr;
use crate::catalog::{MetricDef, device};
use crate::ids::{GpuId, InstanceId};
use crate::sample::GpuXid;

impl SubjectKind for GpuId {
    const WORD: &'static str = "gpu";
    const ABOUT: &'static str = "a device";
    const BEGINS_WITH_AGENT: bool = false;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Device
    }

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

impl SubjectKind for InstanceId {
    const WORD: &'static str = "instance";
    const ABOUT: &'static str = "a partition of a device (a MIG instance)";
    const BEGINS_WITH_AGENT: bool = false;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Device
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = registries.inventory.instance(self);
        let gpu = instance.as_ref().and_then(|instance| registries.inventory.get(instance.gpu));
        Identity { gpu, instance, ..Identity::default() }
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
    }
}

impl SubjectKind for GpuXid {
    const WORD: &'static str = "xid";
    const ABOUT: &'static str = "an XID code of a device";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        self.gpu.identity(registries)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        set.set(&attr::GPU_XID_CODE, i64::from(self.code));
    }
}
