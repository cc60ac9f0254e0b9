//! The agent and its sources.

use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::sample::{Agent, Source};

impl Lookup for Agent {
    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    fn describe(self, _: &MetricDef, _: &Identity, _: &mut Description) {}
}

impl Lookup for Source {
    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    fn describe(self, _: &MetricDef, _: &Identity, set: &mut Description) {
        set.set(&attr::SOURCE, self.0);
    }
}
