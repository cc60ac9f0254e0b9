//! The kinds of subjects: what a sample can be about, with one descriptor for each kind. To add a
//! kind, write its file here (the type and its [`SubjectKind`]) and its entry in
//! [`crate::sample::Subject`].

mod agent;
mod collective;
mod description;
mod device;
mod engine;
mod host;
mod owner;
mod process;

pub use collective::Method;
pub use description::Description;

use crate::attribute::ProcessAttribution;
use crate::attribute::allocations::AllocationDetails;
use crate::attribute::owner::OwnerFacts;
use crate::attribute::ownership::Ownership;
use crate::attribute::quota::QuotaKey;
use crate::catalog::MetricDef;
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

    /// Whether its counters start at zero with the agent. Others exist before the agent.
    const BEGINS_WITH_AGENT: bool;

    /// Whether its identity can change without a change of an owner or a device.
    const CHANGES_BY_ITSELF: bool = false;

    /// Which series are dropped first at the series limit.
    fn class(self, metric: &MetricDef) -> SeriesClass;

    /// Looks up its current identity.
    fn identity(self, registries: &Registries<'_>) -> Identity;

    /// The owner on whose share of the series limit it counts; `None` if it counts on no share.
    fn quota_key(self, _registries: &Registries<'_>, _identity: &Identity) -> Option<QuotaKey> {
        None
    }

    /// Adds its attributes for a metric.
    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description);
}

/// The importance of a series, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesClass {
    /// A process's collectives as the Inspector writes them.
    Inspector,
    /// A process's collectives as the probes and NCCL report them, and an inference engine's values.
    Collective,
    /// A process on a device, or an owner.
    Basic,
    /// A device.
    Device,
    /// The agent.
    Agent,
}

/// A kind of subject in documents.
#[derive(Clone, Copy, Debug)]
pub struct KindDef {
    /// See [`SubjectKind::WORD`].
    pub word: &'static str,
    /// See [`SubjectKind::ABOUT`].
    pub about: &'static str,
}

impl KindDef {
    /// The descriptor of a kind.
    pub(crate) const fn of<K: SubjectKind>() -> Self {
        Self { word: K::WORD, about: K::ABOUT }
    }
}

/// The registries of identities.
#[derive(Debug)]
pub struct Registries<'a> {
    /// Devices and instances.
    pub inventory: &'a Inventory,
    /// Owners of processes.
    pub ownership: &'a Ownership,
    /// Memberships in communicators.
    pub communicators: &'a Communicators,
    /// Inference engines.
    pub engines: &'a Engines,
}

/// A subject's current identity, from which its attributes are built. A change of any pointer
/// starts a new series.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    gpu: Option<Arc<GpuInfo>>,
    instance: Option<Arc<InstanceInfo>>,
    process: Option<Arc<ProcessAttribution>>,
    owner: Option<Arc<OwnerFacts>>,
    member: Option<Arc<MemberFacts>>,
    allocation: Option<Arc<AllocationDetails>>,
    engine: Option<Arc<EngineFacts>>,
}

impl Identity {
    /// Whether all facts of both are the same objects.
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
            && same(self.allocation.as_ref(), other.allocation.as_ref())
            && same(self.engine.as_ref(), other.engine.as_ref())
    }

    /// Adds the attributes of the device and the instance.
    fn describe_device(&self, set: &mut Description) {
        if let Some(gpu) = &self.gpu {
            set.extend(&gpu.identity());
        }
        if let Some(instance) = &self.instance {
            set.extend(&instance.identity());
        }
    }
}

/// Generates [`crate::sample::Subject`] from its entries: the enum, its conversions, and one method
/// for each member of [`SubjectKind`].
macro_rules! subjects {
    ($($(#[doc = $doc:literal])+ $kind:ident($of:ty),)+) => {
        /// What a sample is about: one variant for each kind.
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
            pub fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
                match self { $(Self::$kind(subject) => subject.describe(metric, identity, set),)+ }
            }
        }
    };
}

pub(crate) use subjects;
