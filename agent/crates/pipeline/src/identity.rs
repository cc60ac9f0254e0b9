//! Looks up what is known of a subject, by kind: its identity, the owner whose share of the series
//! limit it counts on, and its attributes.

mod agent;
mod collective;
mod description;
mod device;
mod engine;
mod host;
mod owner;
mod process;

pub use description::Description;

use gpuwho_model::catalog::MetricDef;
use gpuwho_model::sample::Subject;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::allocations::AllocationDetails;
use gpuwho_owners::attribute::owner::OwnerFacts;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::communicators::{Communicators, MemberFacts};
use gpuwho_owners::engines::{EngineFacts, Engines};
use gpuwho_owners::inventory::{GpuInfo, InstanceInfo, Inventory};
use std::sync::Arc;

/// What is known of a subject.
pub trait Lookup: Copy {
    /// Looks up its current identity.
    fn identity(self, registries: &Registries<'_>) -> Identity;

    /// The owner on whose share of the series limit it counts; `None` if it counts on no share.
    fn quota_key(self, _registries: &Registries<'_>, _identity: &Identity) -> Option<QuotaKey> {
        None
    }

    /// Adds its attributes for a metric.
    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description);
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

/// Does the same with the subject of any kind.
macro_rules! of_kind {
    ($subject:expr, $of:ident => $then:expr) => {
        match $subject {
            Subject::Agent($of) => $then,
            Subject::Source($of) => $then,
            Subject::Gpu($of) => $then,
            Subject::Instance($of) => $then,
            Subject::Process($of) => $then,
            Subject::GpuOwner($of) => $then,
            Subject::Allocation($of) => $then,
            Subject::Member($of) => $then,
            Subject::Xid($of) => $then,
            Subject::Recent($of) => $then,
            Subject::Owner($of) => $then,
            Subject::Host($of) => $then,
            Subject::Cgroup($of) => $then,
            Subject::Engine($of) => $then,
            Subject::EngineGpu($of) => $then,
        }
    };
}

impl Lookup for Subject {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        of_kind!(self, of => of.identity(registries))
    }

    fn quota_key(self, registries: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        of_kind!(self, of => of.quota_key(registries, identity))
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        of_kind!(self, of => of.describe(metric, identity, set));
    }
}
