//! The kinds of subjects: what a sample can be about, one descriptor a kind. To add one, write its
//! file here (the type and its [`SubjectKind`]) and its row in [`crate::sample::Subject`].

mod agent;
mod collective;
mod device;
mod engine;
mod owner;
mod process;

use crate::attribute::ProcessAttribution;
use crate::attribute::allocations::AllocationDetails;
use crate::attribute::owner::OwnerFacts;
use crate::attribute::ownership::Ownership;
use crate::attribute::quota::QuotaKey;
use crate::catalog::MetricDef;
use crate::catalog::attributes::AttrSet;
use crate::communicators::{Communicators, MemberFacts};
use crate::engines::{EngineFacts, Engines};
use crate::inventory::{GpuInfo, InstanceInfo, Inventory};
use std::sync::Arc;

/// A kind of subject.
pub trait SubjectKind: Copy + Into<crate::sample::Subject> {
    /// The kind in the catalogue: `gpu`, `instance`, `process`.
    const WORD: &'static str;

    /// The kind in documents: `a device`.
    const ABOUT: &'static str;

    /// Whether its counters began at zero with the agent. Others were there before.
    const BEGINS_WITH_AGENT: bool;

    /// Whether what it is can change without any owner's or device's doing.
    const CHANGES_BY_ITSELF: bool = false;

    /// How important its series of a metric are where there is no room for all.
    fn class(self, metric: &MetricDef) -> SeriesClass;

    /// Looks up what it is at the moment.
    fn identity(self, registries: &Registries<'_>) -> Identity;

    /// Whose share of the series limit it takes; `None` for what is nobody's.
    fn quota_key(self, _registries: &Registries<'_>, _identity: &Identity) -> Option<QuotaKey> {
        None
    }

    /// Its attributes on a metric.
    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut AttrSet);
}

/// How important a series is, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesClass {
    /// What the Inspector writes of a process's collectives.
    Inspector,
    /// What the probes and NCCL say of them, and what an inference engine says of itself.
    Collective,
    /// Of a process on a device, and of an owner.
    Basic,
    /// Of a device.
    Device,
    /// Of the agent.
    Agent,
}

/// What a kind is in documents.
#[derive(Clone, Copy, Debug)]
pub struct KindDef {
    /// See [`SubjectKind::WORD`].
    pub word: &'static str,
    /// See [`SubjectKind::ABOUT`].
    pub about: &'static str,
}

impl KindDef {
    /// Of a kind.
    pub(crate) const fn of<K: SubjectKind>() -> Self {
        Self { word: K::WORD, about: K::ABOUT }
    }
}

/// Where identities are looked up.
#[derive(Debug)]
pub struct Registries<'a> {
    /// Devices and instances.
    pub inventory: &'a Inventory,
    /// Whose processes are.
    pub ownership: &'a Ownership,
    /// Memberships in communicators.
    pub communicators: &'a Communicators,
    /// Inference engines.
    pub engines: &'a Engines,
}

/// What a subject is at the moment; attributes are built from it. A change of any pointer makes a
/// new series.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    gpu: Option<Arc<GpuInfo>>,
    instance: Option<Arc<InstanceInfo>>,
    process: Option<Arc<ProcessAttribution>>,
    owner: Option<Arc<OwnerFacts>>,
    member: Option<Arc<MemberFacts>>,
    grant: Option<Arc<AllocationDetails>>,
    engine: Option<Arc<EngineFacts>>,
}

impl Identity {
    /// Whether both are of the same facts.
    pub fn same(&self, other: &Self) -> bool {
        fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            }
        }
        same(self.gpu.as_ref(), other.gpu.as_ref())
            && same(self.instance.as_ref(), other.instance.as_ref())
            && same(self.process.as_ref(), other.process.as_ref())
            && same(self.owner.as_ref(), other.owner.as_ref())
            && same(self.member.as_ref(), other.member.as_ref())
            && same(self.grant.as_ref(), other.grant.as_ref())
            && same(self.engine.as_ref(), other.engine.as_ref())
    }

    /// The identity of its device and instance.
    fn describe_device(&self, set: &mut AttrSet) {
        if let Some(gpu) = &self.gpu {
            set.extend(&gpu.identity());
        }
        if let Some(instance) = &self.instance {
            set.extend(&instance.identity());
        }
    }
}

/// Makes [`crate::sample::Subject`] from its rows: the enum, its conversions, and one call for each
/// of a kind's own.
macro_rules! subjects {
    ($($(#[doc = $doc:literal])+ $kind:ident($of:ty),)+) => {
        /// What a sample is about: one row a kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Subject { $($(#[doc = $doc])+ $kind($of),)+ }

        $(impl From<$of> for Subject {
            fn from(subject: $of) -> Self {
                Self::$kind(subject)
            }
        })+

        impl Subject {
            /// Every kind.
            pub const KINDS: &'static [$crate::subject::KindDef] =
                &[$($crate::subject::KindDef::of::<$of>()),+];

            /// See [`SubjectKind::BEGINS_WITH_AGENT`].
            pub fn begins_with_agent(self) -> bool {
                match self { $(Self::$kind(_) => <$of as SubjectKind>::BEGINS_WITH_AGENT,)+ }
            }

            /// See [`SubjectKind::CHANGES_BY_ITSELF`].
            pub fn changes_by_itself(self) -> bool {
                match self { $(Self::$kind(_) => <$of as SubjectKind>::CHANGES_BY_ITSELF,)+ }
            }

            /// See [`SubjectKind::class`].
            pub fn class(self, metric: &MetricDef) -> SeriesClass {
                match self { $(Self::$kind(subject) => subject.class(metric),)+ }
            }

            /// See [`SubjectKind::identity`].
            pub fn identity(self, registries: &Registries<'_>) -> Identity {
                match self { $(Self::$kind(subject) => subject.identity(registries),)+ }
            }

            /// See [`SubjectKind::quota_key`].
            pub fn quota_key(
                self,
                registries: &Registries<'_>,
                identity: &Identity,
            ) -> Option<QuotaKey> {
                match self { $(Self::$kind(subject) => subject.quota_key(registries, identity),)+ }
            }

            /// See [`SubjectKind::describe`].
            pub fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut AttrSet) {
                match self { $(Self::$kind(subject) => subject.describe(metric, identity, set),)+ }
            }
        }
    };
}

pub(crate) use subjects;
