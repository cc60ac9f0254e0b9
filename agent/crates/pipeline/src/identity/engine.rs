//! Inference engines, and the devices that they run on.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::ids::EngineId;
use gpuwho_model::sample::EngineGpu;
use gpuwho_owners::attribute::quota::QuotaKey;

impl Lookup for EngineId {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let engine = registries.engines.facts(self);
        let owner = engine.as_ref().and_then(|engine| engine.owner);
        let owner = owner.and_then(|owner| registries.ownership.owner(owner));
        Identity { owner, engine, ..Identity::default() }
    }

    fn quota_key(self, _: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        let owner = identity.engine.as_ref()?.owner?;
        QuotaKey::of_owner(owner, &identity.owner.as_ref()?.owner)
    }

    fn describe(self, _: &MetricDef, identity: &Identity, set: &mut Description) {
        let Some(engine) = &identity.engine else { return };
        set.extend(&engine.labels);
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes);
        }
        set.set_some(&attr::ENGINE_NAME, engine.name);
        set.set_some(&attr::ENGINE_VERSION, engine.version.clone());
        set.set_some(&attr::SERVER_ADDRESS, engine.address.clone());
        set.set(&attr::SERVER_PORT, i64::from(engine.port));
    }
}

impl Lookup for EngineGpu {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let instance = |instance| registries.inventory.instance(instance);
        Identity {
            gpu: registries.inventory.get(self.gpu),
            instance: self.instance.and_then(instance),
            ..self.engine.identity(registries)
        }
    }

    fn quota_key(self, registries: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        self.engine.quota_key(registries, identity)
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        identity.describe_device(set);
        self.engine.describe(metric, identity, set);
    }
}
