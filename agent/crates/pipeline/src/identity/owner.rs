//! Owners, their parts of devices, and their allocations.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{GpuAllocation, GpuOwner};
use gpuwho_owners::attribute::quota::QuotaKey;

impl Lookup for GpuOwner {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity {
            gpu: registries.inventory.get(self.gpu),
            owner: registries.ownership.owner(self.owner),
            ..Identity::default()
        }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        QuotaKey::of_owner(self.owner, &identity.owner.as_ref()?.owner)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes);
        }
    }
}

impl Lookup for GpuAllocation {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = |instance| registries.inventory.instance(instance);
        Identity {
            gpu: registries.inventory.get(self.gpu),
            instance: self.instance.and_then(instance),
            owner: registries.ownership.owner(self.owner),
            allocation: self.details.and_then(|id| registries.ownership.allocations().details(id)),
            ..Identity::default()
        }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        QuotaKey::of_owner(self.owner, &identity.owner.as_ref()?.owner)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        if let Some(allocation) = &identity.allocation {
            set.extend(&allocation.attributes());
        }
        if let Some(owner) = &identity.owner {
            // The first is a part that all metrics of the owner share.
            set.extend(&owner.attributes);
            set.extend(&owner.details);
        }
    }
}

impl Lookup for OwnerId {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity { owner: registries.ownership.owner(self), ..Identity::default() }
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes);
        }
    }
}
