//! Owners, their parts of devices, and what was allocated to them.

use super::{Identity, Registries, SeriesClass, SubjectKind};
use crate::attribute::party::PartyId;
use crate::attribute::quota::QuotaKey;
use crate::catalog::MetricDef;
use crate::catalog::attributes::AttrSet;
use crate::sample::{GpuGrant, GpuParty};

impl SubjectKind for GpuParty {
    const WORD: &'static str = "owner";
    const ABOUT: &'static str = "an owner's part of a device";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity {
            gpu: registries.inventory.get(self.gpu),
            party: registries.ownership.party(self.party),
            ..Identity::default()
        }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        QuotaKey::of_party(self.party, &identity.party.as_ref()?.party)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut AttrSet) {
        identity.describe_device(set);
        if let Some(party) = &identity.party {
            set.extend(&party.attributes);
        }
    }
}

impl SubjectKind for GpuGrant {
    const WORD: &'static str = "grant";
    const ABOUT: &'static str = "a device, or a part of one, granted to an owner";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Basic
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = |instance| registries.inventory.instance(instance);
        Identity {
            gpu: registries.inventory.get(self.gpu),
            instance: self.instance.and_then(instance),
            party: registries.ownership.party(self.party),
            grant: self.words.and_then(|id| registries.ownership.grants().words(id)),
            ..Identity::default()
        }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        QuotaKey::of_party(self.party, &identity.party.as_ref()?.party)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut AttrSet) {
        identity.describe_device(set);
        if let Some(words) = &identity.grant {
            words.describe(set);
        }
        if let Some(party) = &identity.party {
            set.extend(&party.details);
        }
    }
}

impl SubjectKind for PartyId {
    const WORD: &'static str = "refused";
    const ABOUT: &'static str = "an owner that was refused something";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Agent
    }

    fn identity(self, registries: &Registries<'_>) -> Identity {
        Identity { party: registries.ownership.party(self), ..Identity::default() }
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut AttrSet) {
        if let Some(party) = &identity.party {
            set.extend(&party.attributes);
        }
    }
}
