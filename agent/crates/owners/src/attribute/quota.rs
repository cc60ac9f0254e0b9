//! Quota keys: the tenant on whose share of a host-wide resource a process counts, and counts of
//! what owners were refused.
//!
//! Everything that all tenants of a host share (series, files that are read, log lines, events) is
//! divided by [`QuotaKey`]. Refusals are counted for [`MAX_OWNERS`] owners, and together for the
//! others.

use super::owner::Owner;
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::ids::OwnerId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;

/// Owners with their own refusal counts: more than share a host, and fewer than one tenant can
/// pretend to be.
const MAX_OWNERS: usize = 32;

/// The tenant on whose share something counts. Two keys are equal if their tenants are, for any
/// owners.
#[derive(Clone, Copy, Debug)]
pub struct QuotaKey {
    /// A digest of the outermost owner: a pod (with all its containers), a job, a container, a service or a
    /// user. A tenant cannot make one, and so cannot multiply its share.
    tenant: NonZeroU64,
    /// The owner that refusals are counted for.
    owner: OwnerId,
}

impl QuotaKey {
    /// The key of all processes without any known owner.
    pub const UNKNOWN: Self = Self { tenant: NonZeroU64::MIN, owner: OwnerId::UNATTRIBUTED };

    /// The key of a user, for a process without an owner yet.
    pub fn of_user(uid: u32) -> Self {
        Self { tenant: tenant(&Owner::User(uid)), owner: OwnerId::UNATTRIBUTED }
    }

    /// An owner's key; `None` for the owners `other` and `unattributed`.
    pub fn of_owner(id: OwnerId, owner: &Owner) -> Option<Self> {
        let outermost = match owner {
            Owner::Other | Owner::Unattributed => return None,
            Owner::Pod { within: Some(outer), .. } => return Self::of_owner(id, outer),
            owner => owner,
        };
        Some(Self { tenant: tenant(outermost), owner: id })
    }

    /// The owner that refusals are counted for.
    pub fn owner(self) -> OwnerId {
        self.owner
    }
}

fn tenant(owner: &Owner) -> NonZeroU64 {
    let mut digest = DefaultHasher::new();
    match owner {
        Owner::Pod { uid, .. } => uid.hash(&mut digest),
        owner => owner.hash(&mut digest),
    }
    NonZeroU64::new(digest.finish()).unwrap_or(NonZeroU64::MAX)
}

impl PartialEq for QuotaKey {
    fn eq(&self, other: &Self) -> bool {
        self.tenant == other.tenant
    }
}

impl Eq for QuotaKey {}

impl Hash for QuotaKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tenant.hash(state);
    }
}

/// Counts of what owners were refused since the agent started.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<OwnerId, Counts>>);

/// Indexed by the limit's position in [`OwnerLimit::ALL`].
type Counts = [u64; OwnerLimit::ALL.len()];

impl Refusals {
    /// Counts what an owner was refused.
    pub(super) fn add(&self, owner_id: OwnerId, limit: OwnerLimit, count: u64) {
        let mut counts = self.0.lock();
        let has_place = counts.len() < MAX_OWNERS || counts.contains_key(&owner_id);
        let owner_id = if has_place { owner_id } else { OwnerId::OTHER };
        if let Some(sum) = counts.entry(owner_id).or_default().get_mut(limit as usize) {
            *sum += count;
        }
    }

    /// All counts; those of removed owners are added to `other`.
    pub(super) fn all(
        &self,
        is_known: impl Fn(OwnerId) -> bool,
    ) -> Vec<(OwnerId, OwnerLimit, u64)> {
        let mut counts = self.0.lock();
        let removed: Vec<_> =
            counts.keys().copied().filter(|owner_id| !is_known(*owner_id)).collect();
        let removed: Vec<Counts> =
            removed.iter().filter_map(|owner_id| counts.remove(owner_id)).collect();
        for gone in removed {
            let other = counts.entry(OwnerId::OTHER).or_default();
            other.iter_mut().zip(gone).for_each(|(sum, more)| *sum += more);
        }
        let each = counts.iter().flat_map(|(owner_id, counts)| {
            OwnerLimit::ALL.iter().zip(counts).map(|(limit, count)| (*owner_id, *limit, *count))
        });
        each.filter(|(_, _, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::ids::PodUid;

    #[test]
    fn a_tenant_is_one_with_any_containers_and_inner_pods() {
        let pod = |uid: &str, container: &str, within: Option<Owner>| Owner::Pod {
            uid: PodUid::new(uid),
            container: Some(container.into()),
            within: within.map(Box::new),
        };
        let key = |owner_id: Owner| QuotaKey::of_owner(OwnerId::OTHER, &owner_id);
        let (one, two) =
            ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555");
        assert_eq!(key(pod(one, "a", None)), key(pod(one, "b", None)));
        assert_ne!(key(pod(one, "a", None)), key(pod(two, "a", None)));
        assert_eq!(key(pod(one, "a", Some(Owner::User(7)))), Some(QuotaKey::of_user(7)));
        assert_eq!(key(pod(two, "a", Some(Owner::User(7)))), Some(QuotaKey::of_user(7)));
        assert_eq!(key(Owner::Unattributed), None);
    }

    fn owners(count: u32) -> Vec<OwnerId> {
        use crate::attribute::owner::Owner;
        use crate::attribute::ownership::Ownership;
        let ownership = Ownership::new(&gpuwho_model::paths::Paths::under("/nonexistent".as_ref()));
        let workload = crate::attribute::Workload::default();
        (0..count).map(|uid| ownership.allocation_owner(Owner::User(uid), &workload)).collect()
    }

    #[test]
    fn beyond_the_bound_owners_are_counted_together() {
        let refusals = Refusals::default();
        let owner_ids = owners(35);
        for owner_id in &owner_ids {
            refusals.add(*owner_id, OwnerLimit::Series, 2);
        }
        refusals.add(owner_ids[0], OwnerLimit::Events, 1);
        let mut all = refusals.all(|_| true);
        all.sort_by_key(|(owner_id, limit, _)| (*owner_id, *limit as usize));
        assert_eq!(all.len(), MAX_OWNERS + 2, "{all:?}");
        assert_eq!(all[0], (OwnerId::OTHER, OwnerLimit::Series, 6));
        assert_eq!(
            all[1..3],
            [(owner_ids[0], OwnerLimit::Series, 2), (owner_ids[0], OwnerLimit::Events, 1)]
        );
    }

    #[test]
    fn a_removed_owner_s_refusals_stay_counted() {
        let refusals = Refusals::default();
        let owner_ids = owners(2);
        refusals.add(owner_ids[0], OwnerLimit::LogLines, 5);
        refusals.add(owner_ids[1], OwnerLimit::LogLines, 7);
        let mut all =
            refusals.all(|owner_id| owner_id == owner_ids[1] || owner_id <= OwnerId::OTHER);
        all.sort_unstable_by_key(|(owner_id, ..)| *owner_id);
        let other = (OwnerId::OTHER, OwnerLimit::LogLines, 5);
        assert_eq!(all, [other, (owner_ids[1], OwnerLimit::LogLines, 7)]);
    }
}
