//! What a sample's subject is at the moment (device, instance, process and its owner, party,
//! membership), and the attributes that says. A lookup or two a subject; attributes are built when a
//! series begins or is called otherwise.

use super::Key;
use crate::attribute::Owner;
use crate::attribute::grants::GrantWords;
use crate::attribute::ownership::Ownership;
use crate::attribute::party::PartyFacts;
use crate::attribute::quota::QuotaKey;
use crate::catalog::attributes::{self as attr, AttrSet};
use crate::catalog::{device, inspector, nccl, process};
use crate::communicators::{Communicators, MemberFacts};
use crate::export::Labels;
use crate::inventory::{GpuInfo, InstanceInfo, Inventory};
use crate::sample::{GpuGrant, GpuParty, Recent, Subject};
use std::sync::Arc;

/// What the attributes were built from; a change of any pointer makes a new series.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    gpu: Option<Arc<GpuInfo>>,
    instance: Option<Arc<InstanceInfo>>,
    owner: Option<Arc<Owner>>,
    party: Option<Arc<PartyFacts>>,
    member: Option<Arc<MemberFacts>>,
    grant: Option<Arc<GrantWords>>,
}

impl Identity {
    pub(super) fn same(&self, other: &Self) -> bool {
        fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            }
        }
        same(self.gpu.as_ref(), other.gpu.as_ref())
            && same(self.instance.as_ref(), other.instance.as_ref())
            && same(self.owner.as_ref(), other.owner.as_ref())
            && same(self.party.as_ref(), other.party.as_ref())
            && same(self.member.as_ref(), other.member.as_ref())
            && same(self.grant.as_ref(), other.grant.as_ref())
    }
}

/// What a subject is, looked up when it is needed first.
pub(super) struct Looked<'a> {
    names: &'a Names<'a>,
    identity: Option<Identity>,
    owner: Share,
}

/// Whose share a subject's series take.
#[derive(Clone, Copy)]
enum Share {
    NotLookedUp,
    Of(Option<QuotaKey>),
}

impl<'a> Looked<'a> {
    pub(super) fn new(names: &'a Names<'a>, identity: Option<Identity>) -> Self {
        Self { names, identity, owner: Share::NotLookedUp }
    }

    /// Whose share the subject's series take; `None` for those that are nobody's.
    pub(super) fn owner(&mut self, subject: Subject) -> Option<QuotaKey> {
        if let Share::Of(owner) = self.owner {
            return owner;
        }
        let names = self.names;
        let owner = names.quota_key(subject, self.identity(subject));
        self.owner = Share::Of(owner);
        owner
    }

    pub(super) fn identity(&mut self, subject: Subject) -> &Identity {
        self.identity.get_or_insert_with(|| self.names.identity(subject))
    }
}

/// Where names come from.
pub(super) struct Names<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) ownership: &'a Ownership,
    pub(super) communicators: &'a Communicators,
}

impl Names<'_> {
    pub(super) fn identity(&self, subject: Subject) -> Identity {
        match subject {
            Subject::Agent | Subject::Source(_) => Identity::default(),
            Subject::Gpu(gpu) => Identity { gpu: self.inventory.get(gpu), ..Identity::default() },
            Subject::Instance(instance) => {
                let instance = self.inventory.instance(instance);
                let gpu = instance.as_ref().and_then(|instance| self.inventory.get(instance.gpu));
                Identity { gpu, instance, ..Identity::default() }
            }
            Subject::Process(on) => Identity {
                gpu: self.inventory.get(on.gpu),
                instance: on.instance.and_then(|instance| self.inventory.instance(instance)),
                owner: self.ownership.owner(on.process),
                ..Identity::default()
            },
            Subject::Member(id) | Subject::Recent(Recent { member: id, .. }) => {
                let member = self.communicators.facts(id);
                let process = member.as_ref().map(|member| member.process);
                let owner = process.and_then(|process| self.ownership.owner(process));
                Identity { owner, member, ..Identity::default() }
            }
            Subject::Xid(xid) => {
                Identity { gpu: self.inventory.get(xid.gpu), ..Identity::default() }
            }
            Subject::Grant(of) => Identity {
                gpu: self.inventory.get(of.gpu),
                instance: of.instance.and_then(|instance| self.inventory.instance(instance)),
                party: self.ownership.party(of.party),
                grant: of.words.and_then(|id| self.ownership.grants().words(id)),
                ..Identity::default()
            },
            Subject::Owner(party) => {
                Identity { party: self.ownership.party(party), ..Identity::default() }
            }
            Subject::Party(on) => Identity {
                gpu: self.inventory.get(on.gpu),
                party: self.ownership.party(on.party),
                ..Identity::default()
            },
        }
    }

    fn quota_key(&self, subject: Subject, identity: &Identity) -> Option<QuotaKey> {
        match subject {
            Subject::Process(_) | Subject::Member(_) | Subject::Recent(_) => {
                Some(self.ownership.key_of(identity.owner.as_deref()))
            }
            Subject::Party(GpuParty { party, .. }) | Subject::Grant(GpuGrant { party, .. }) => {
                QuotaKey::of_party(party, &identity.party.as_ref()?.party)
            }
            _ => None,
        }
    }

    /// The membership and its process's owner.
    fn member(set: &mut AttrSet, key: Key, identity: &Identity) {
        let Some(member) = &identity.member else { return };
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes());
        } else {
            set.set(&attr::PROCESS_PID, i64::from(member.process.pid));
            set.set(&attr::OWNER_METHOD, "none");
        }
        let is_info = [nccl::INFO.def(), inspector::INFO.def()].contains(&key.metric);
        set.extend(&if is_info { member.details() } else { member.attributes() });
    }

    pub(super) fn labels(key: Key, identity: &Identity) -> Arc<Labels> {
        let mut set = match &identity.gpu {
            Some(info) if *key.metric == *device::INFO.def() => info.attributes(),
            Some(info) => info.identity(),
            None => AttrSet::new(),
        };
        if let Some(instance) = &identity.instance {
            set.extend(&instance.identity());
        }
        match (key.subject, &identity.owner) {
            (Subject::Process(_), Some(owner)) if *key.metric == *process::INFO.def() => {
                set.extend(&owner.details());
            }
            (Subject::Process(_), Some(owner)) => set.extend(&owner.attributes()),
            (Subject::Process(on), None) => {
                set.set(&attr::PROCESS_PID, i64::from(on.process.pid));
                set.set(&attr::OWNER_METHOD, "none");
            }
            (Subject::Member(_), _) => Self::member(&mut set, key, identity),
            (Subject::Recent(recent), _) => {
                Self::member(&mut set, key, identity);
                set.set_some(&attr::NCCL_ALGORITHM, recent.algorithm);
                set.set_some(&attr::NCCL_PROTOCOL, recent.protocol);
                let size = i64::try_from(recent.size).unwrap_or(i64::MAX);
                set.set(&attr::NCCL_MESSAGE_SIZE, size);
            }
            (Subject::Source(name), _) => set.set(&attr::SOURCE, name),
            (Subject::Xid(xid), _) => set.set(&attr::GPU_XID_CODE, i64::from(xid.code)),
            (Subject::Grant(_), _) => {
                if let Some(words) = &identity.grant {
                    words.describe(&mut set);
                }
            }
            (
                Subject::Agent
                | Subject::Gpu(_)
                | Subject::Instance(_)
                | Subject::Party(_)
                | Subject::Owner(_),
                _,
            ) => {}
        }
        match &identity.party {
            Some(party) if matches!(key.subject, Subject::Grant(_)) => {
                set.extend(&party.details);
            }
            Some(party) => set.extend(&party.attributes),
            None => {}
        }
        for (dim, index) in key.metric.dims.iter().zip(key.dims) {
            set.set_some(dim.key, dim.values.get(usize::from(index)).copied());
        }
        Arc::new(Labels::new(set))
    }
}
