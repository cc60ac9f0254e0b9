//! The host, and the cgroups of owners on it.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::sample::{Host, OwnerCgroup};
use gpuwho_owners::attribute::quota::QuotaKey;

impl Lookup for Host {
    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    /// The resource names it.
    fn describe(self, _: &MetricDef, _: &Identity, _: &mut Description) {}
}

impl Lookup for OwnerCgroup {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity { owner: registries.ownership.owner(self.0), ..Identity::default() }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        QuotaKey::of_owner(self.0, &identity.owner.as_ref()?.owner)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes);
        }
    }
}
