//! Memberships of processes in communicators.

use super::process::describe_process;
use super::{Description, Identity, Lookup, Registries};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::{MetricDef, inspector, nccl};
use gpuwho_model::ids::MemberId;
use gpuwho_model::sample::Recent;
use gpuwho_model::subject::Method;
use gpuwho_owners::attribute::quota::QuotaKey;

impl Lookup for MemberId {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        let member = registries.communicators.facts(self);
        let process = member.as_ref().map(|member| member.process);
        let process = process.and_then(|process| registries.ownership.attribution(process));
        Identity { process, member, ..Identity::default() }
    }

    fn quota_key(self, registries: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        Some(registries.ownership.key_of(identity.process.as_deref()))
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        let Some(member) = &identity.member else { return };
        describe_process(member.process, identity, set);
        let is_info = [nccl::INFO.def(), inspector::INFO.def()].contains(&metric);
        set.extend(&if is_info { member.details() } else { member.attributes() });
    }
}

impl Lookup for Recent {
    fn identity(self, registries: &Registries<'_>) -> Identity {
        self.member.identity(registries)
    }

    fn quota_key(self, registries: &Registries<'_>, identity: &Identity) -> Option<QuotaKey> {
        self.member.quota_key(registries, identity)
    }

    fn describe(self, metric: &MetricDef, identity: &Identity, set: &mut Description) {
        self.member.describe(metric, identity, set);
        set.set_some(&attr::NCCL_ALGORITHM, self.method.map(Method::algorithm));
        set.set_some(&attr::NCCL_PROTOCOL, self.method.map(Method::protocol));
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        set.set(&attr::NCCL_MESSAGE_SIZE, size);
    }
}
