//! Looks up a subject's identity on first use and builds its labels. One or two lookups a subject;
//! labels are built for a new series and after a change of identity.

use super::Key;
use crate::attribute::quota::QuotaKey;
use crate::catalog::attributes::AttrSet;
use crate::export::Labels;
use crate::sample::Subject;
use crate::subject::{Identity, Registries};
use std::sync::Arc;

/// A subject's identity and quota owner, looked up on first use.
pub(super) struct SubjectLookup<'a> {
    registries: &'a Registries<'a>,
    identity: Option<Identity>,
    owner: Share,
}

/// The owner on whose share a subject's series count.
#[derive(Clone, Copy)]
enum Share {
    NotLookedUp,
    Of(Option<QuotaKey>),
}

impl<'a> SubjectLookup<'a> {
    pub(super) fn new(registries: &'a Registries<'a>, identity: Option<Identity>) -> Self {
        Self { registries, identity, owner: Share::NotLookedUp }
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
}

/// The labels of a series: its subject's attributes, its dimensions, and its open labels.
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
