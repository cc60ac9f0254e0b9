//! The agent and its sources.

use super::{Description, Identity, Lookup, Registries};
use crate::catalog::MetricDef;
use crate::catalog::attributes as attr;
use crate::sample::{Agent, Source};

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
