//! Looks up a subject's identity on first use and builds its labels. One or two lookups a subject;
//! labels are built for a new series and after a change of identity.

use super::Key;
use crate::attribute::quota::QuotaKey;
use crate::catalog::attributes::AttrSet;
use crate::export::Labels;
use crate::sample::Subject;
use crate::subject::{Identity, Registries};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A subject's identity and quota owner, looked up on first use, and the labels that were made of it.
pub(super) struct SubjectLookup<'a> {
    registries: &'a Registries<'a>,
    identity: Option<Identity>,
    owner: Share,
    made: HashSet<Shared>,
}

/// Labels, by their attributes.
struct Shared(Arc<Labels>);

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.0.set == other.0.set
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.set.hash(state);
    }
}

impl Borrow<AttrSet> for Shared {
    fn borrow(&self) -> &AttrSet {
        &self.0.set
    }
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

    /// The labels of a series: its subject's attributes, its dimensions, and its open labels. Metrics
    /// with the same ones share them, which is most of what a series would take.
    pub(super) fn labels(&mut self, key: &Key) -> Arc<Labels> {
        let mut set = AttrSet::new();
        key.subject.describe(key.metric, self.identity(key.subject), &mut set);
        for (dim, index) in key.metric.dims.iter().zip(key.dims) {
            set.set_some(dim.key, dim.values.get(usize::from(index)).copied());
        }
        if let Some(labels) = &key.labels {
            set.extend(labels.set());
        }
        if let Some(Shared(labels)) = self.made.get(&set) {
            return Arc::clone(labels);
        }
        let labels = Arc::new(Labels::new(set));
        self.made.insert(Shared(Arc::clone(&labels)));
        labels
    }
}
