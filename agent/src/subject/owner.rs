//! Owners, their parts of devices, and their allocations.

use super::{Description, Identity, Registries, SeriesClass, SubjectKind};
use crate::attribute::owner::OwnerId;
use crate::attribute::quota::QuotaKey;
use crate::catalog::MetricDef;
use crate::sample::{GpuAllocation, GpuOwner};

impl SubjectKind for GpuOwner {
    const WORD: &'static str = "owner";
    const ABOUT: &'static str = "an owner's part of a device";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

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

impl SubjectKind for GpuAllocation {
    const WORD: &'static str = "grant";
    const ABOUT: &'static str = "a device, or a part of one, allocated to an owner";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

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

impl SubjectKind for OwnerId {
    const WORD: &'static str = "refused";
    const ABOUT: &'static str = "an owner that was refused something";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Agent
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity { owner: registries.ownership.owner(self), ..Identity::default() }
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes);
        }
    }
}
