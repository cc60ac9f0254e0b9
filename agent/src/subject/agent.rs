//! The agent and its sources.

use super::{Identity, Registries, SeriesClass, SubjectKind};
use crate::catalog::MetricDef;
use crate::catalog::attributes::{self as attr, AttrSet};
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

    fn describe(self, _: &MetricDef, _: &Identity, _: &mut AttrSet) {}
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

    fn describe(self, _: &MetricDef, _: &Identity, set: &mut AttrSet) {
        set.set(&attr::SOURCE, self.0);
    }
}
