//! Memberships of processes in communicators.

use super::process::describe_process;
use super::{Description, Identity, Registries, SeriesClass, SubjectKind};
use crate::attribute::quota::QuotaKey;
use crate::catalog::attributes as attr;
use crate::catalog::{MetricDef, inspector, nccl};
use crate::communicators::MemberId;
use crate::sample::Recent;

/// NCCL's names (`ncclAlgoToString`, `ncclProtoToString`) in lower case.
const ALGORITHMS: [&str; 7] =
    ["collnet_chain", "collnet_direct", "nvls", "nvls_tree", "pat", "ring", "tree"];
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
const UNKNOWN: &str = "unknown";

/// An algorithm and a protocol, by their places in the tables: it is in the subject of a sample, which two
/// names would make half as large again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Method {
    algorithm: u8,
    protocol: u8,
}

impl Method {
    /// Parses `RING_SIMPLE`, in either case.
    pub fn parse(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let (algorithm, protocol) = text.rsplit_once('_').unwrap_or((&text, ""));
        Self { algorithm: place(&ALGORITHMS, algorithm), protocol: place(&PROTOCOLS, protocol) }
    }

    /// The algorithm's name.
    pub fn algorithm(self) -> &'static str {
        name(&ALGORITHMS, self.algorithm)
    }

    /// The protocol's name.
    pub fn protocol(self) -> &'static str {
        name(&PROTOCOLS, self.protocol)
    }
}

fn place(table: &[&str], name: &str) -> u8 {
    let place = table.iter().position(|known| *known == name);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

fn name(table: &[&'static str], place: u8) -> &'static str {
    table.get(usize::from(place)).copied().unwrap_or(UNKNOWN)
}

impl SubjectKind for MemberId {
    const WORD: &'static str = "communicator";
    const ABOUT: &'static str = "a process's membership in a communicator";
    const BEGINS_WITH_AGENT: bool = true;
    const CHANGES_BY_ITSELF: bool = true;

    fn class(self, metric: &MetricDef) -> SeriesClass {
        if metric.name.starts_with("nccl.inspector.") {
            SeriesClass::Inspector
        } else {
            SeriesClass::Collective
        }
    }

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

impl SubjectKind for Recent {
    const WORD: &'static str = "recent";
    const ABOUT: &'static str = "a process's messages of one size, algorithm and protocol";
    const BEGINS_WITH_AGENT: bool = true;

    fn class(self, _: &MetricDef) -> SeriesClass {
        SeriesClass::Inspector
    }

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
