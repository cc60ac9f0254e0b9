//! The agent and its sources.

use super::{Description, Identity, Registries, SeriesClass, SubjectKind};
use crate::catalog::MetricDef;
use crate::catalog::attributes as attr;
use crate::sample::{Agent, Source};

impl SubjectKind for Agent {
    const WORD: &'static str = "agent";
    const ABOUT: &'static str = "the agent";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Agent
    }

    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    fn describe(self, _: &MetricDef, _: &Identity, _: &mut Description) {}
}

impl SubjectKind for Source {
    const WORD: &'static str = "source";
    const ABOUT: &'static str = "a source of data";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Agent
    }

    fn identity(self, _: &Registries<'_>) -> Identity {
        Identity::default()
    }

    fn describe(self, _: &MetricDef, _: &Identity, set: &mut Description) {
        set.set(&attr::SOURCE, self.0);
    }
}
