//! The host, and the cgroups of owners on it.

use super::{Description, Identity, Registries, SeriesClass, SubjectKind};
use crate::attribute::quota::QuotaKey;
use crate::catalog::MetricDef;
use crate::sample::{Host, OwnerCgroup};

impl SubjectKind for Host {
    const WORD: &'static str = "host";
    const ABOUT: &'static str = "the host";
    const BEGINS_WITH_AGENT: bool = false;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Device
    }

    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    /// The resource names it.
    fn describe(self, _: &MetricDef, _: &Identity, _: &mut Description) {}
}

impl SubjectKind for OwnerCgroup {
    const WORD: &'static str = "cgroup";
    const ABOUT: &'static str = "the cgroup of an owner that holds a device";
    const BEGINS_WITH_AGENT: bool = false;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

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
