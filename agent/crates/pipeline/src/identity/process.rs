//! Processes on devices.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::{MetricDef, process};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::GpuProcess;
use gpuwho_owners::attribute::quota::QuotaKey;

impl Lookup for GpuProcess {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = |instance| registries.inventory.instance(instance);
        Identity {
            gpu: registries.inventory.get(self.gpu),
            instance: self.instance.and_then(instance),
            process: registries.ownership.attribution(self.process),
            ..Identity::default()
        }
    }

    fn quota_key(self, registries: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        Some(registries.ownership.key_of(identity.process.as_deref()))
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        describe_process(self.process, identity, set);
        if let Some(owner) = identity.process.as_ref().filter(|_| *metric == *process::INFO.def()) {
            // Adds what is missing, as a part of its own: the rest is shared with the other metrics.
            set.extend(&owner.details());
        }
    }
}

/// Adds the process's owner, or the method `none` for a process without one.
pub(super) fn describe_process(process: ProcKey, identity: &Identity, set: &mut Description) {
    if let Some(owner) = &identity.process {
        owner.parts().iter().for_each(|part| set.extend(part));
    } else {
        set.set(&attr::PROCESS_PID, i64::from(process.pid));
        set.set(&attr::OWNER_METHOD, "none");
    }
}
