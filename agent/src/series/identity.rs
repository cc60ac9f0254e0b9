//! What a subject is at the moment, looked up when it is needed first, and the labels that says. A
//! lookup or two a subject; labels are built when a series begins or is called otherwise.

use super::Key;
use crate::attribute::quota::QuotaKey;
use crate::catalog::attributes::AttrSet;
use crate::export::Labels;
use crate::sample::Subject;
use crate::subject::{Identity, Registries};
use std::sync::Arc;

/// What a subject is, looked up when it is needed first.
pub(super) struct SubjectLookup<'a> {
    registries: &'a Registries<'a>,
    identity: Option<Identity>,
    owner: Share,
}

/// Whose share a subject's series take.
#[derive(Clone, Copy)]
enum Share {
    NotLookedUp,
    Of(Option<QuotaKey>),
}

impl<'a> SubjectLookup<'a> {
    pub(super) fn new(registries: &'a Registries<'a>, identity: Option<Identity>) -> Self {
        Self { registries, identity, owner: Share::NotLookedUp }
    }

    /// Whose share the subject's series take; `None` for those that are nobody's.
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
}

/// The labels of a series: of its subject, its dimensions, and its open ones.
pub(super) fn labels(key: &Key, identity: &Identity) -> Arc<Labels> {
    let mut set = AttrSet::new();
    key.subject.describe(key.metric, identity, &mut set);
    for (dim, index) in key.metric.dims.iter().zip(key.dims) {
        set.set_some(dim.key, dim.values.get(usize::from(index)).copied());
    }
    if let Some(labels) = &key.labels {
        set.extend(labels.set());
    }
    Arc::new(Labels::new(set))
}
