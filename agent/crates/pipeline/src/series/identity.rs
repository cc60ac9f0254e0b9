//! Looks up a subject's identity on first use and builds its labels. One or two lookups a subject;
//! labels are built for a new series and after a change of identity.

use super::parts::PartStore;
use crate::identity::{Description, Identity, Lookup as _, Registries};
use gpuwho_model::point::{Labels, SameParts};
use gpuwho_model::sample::{Sample, Subject};
use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::HashSet;
use std::sync::Arc;

/// A subject's identity and quota owner, looked up on first use, and the labels that were made of it.
pub(super) struct SubjectLookup<'a> {
    registries: &'a Registries<'a>,
    identity: Option<Identity>,
    owner: Share,
    made: HashSet<SameParts>,
}

/// The owner on whose share a subject's series count.
#[derive(Clone, Copy)]
enum Share {
    NotLookedUp,
    Of(Option<QuotaKey>),
}

impl<'a> SubjectLookup<'a> {
    pub(super) fn new(registries: &'a Registries<'a>, identity: Option<Identity>) -> Self {
        Self { registries, identity, owner: Share::NotLookedUp, made: HashSet::new() }
    }

    /// The owner on whose share the subject's series count; `None` if they count on no share.
    pub(super) fn owner(&mut self, subject: Subject) -> Option<QuotaKey> {
        if let Share::Of(owner) = self.owner {
            return owner;
        }
        let registries = self.registries;
        let owner = subject.quota_key(registries, self.identity(subject));
        self.owner = Share::Of(owner);
        owner
    }

    pub(super) fn identity(&mut self, subject: Subject) -> &Identity {
        self.identity.get_or_insert_with(|| subject.identity(self.registries))
    }

    /// The labels of a sample's series: its subject's attributes, its dimensions, and its open labels.
    /// Metrics with the same ones share them.
    pub(super) fn labels(&mut self, sample: &Sample, parts: &mut PartStore) -> Arc<Labels> {
        let Sample { metric, subject, dims, labels, .. } = sample;
        let mut all = Description::default();
        subject.describe(metric, self.identity(*subject), &mut all);
        all.close();
        for (dim, index) in metric.dims.iter().zip(dims) {
            all.set_some(dim.key, dim.values.get(usize::from(*index)).copied());
        }
        if let Some(labels) = labels {
            all.extend(labels.set());
        }
        let labels = SameParts(Arc::new(parts.labels(all)));
        if let Some(SameParts(made)) = self.made.get(&labels) {
            return Arc::clone(made);
        }
        let SameParts(made) = &labels;
        let made = Arc::clone(made);
        self.made.insert(labels);
        made
    }
}
