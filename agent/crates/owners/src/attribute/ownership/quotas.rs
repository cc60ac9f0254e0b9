//! The quota key of a process, and what owners were refused.

use super::Ownership;
use crate::attribute::ProcessAttribution;
use crate::attribute::quota::QuotaKey;
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;

impl Ownership {
    /// The key on whose share a process counts, of what the host's tenants share.
    pub fn quota_key(&self, process: ProcKey) -> QuotaKey {
        self.key_of(self.attribution(process).as_deref())
    }

    /// The same for a caller that may hold the table's lock: [`QuotaKey::UNKNOWN`] while the table
    /// is being written.
    pub fn try_quota_key(&self, process: ProcKey) -> QuotaKey {
        let table = self.0.table.try_read();
        self.key_of(table.and_then(|table| table.attribution(process)).as_deref())
    }

    /// The key of a process with this attribution.
    pub fn key_of(&self, owner: Option<&ProcessAttribution>) -> QuotaKey {
        let Some(owner) = owner else { return QuotaKey::UNKNOWN };
        let facts = self.owner(owner.owner);
        let key = facts.and_then(|facts| QuotaKey::of_owner(owner.owner, &facts.owner));
        key.unwrap_or_else(|| QuotaKey::of_user(owner.uid))
    }

    /// Counts what an owner was refused because its share was used up.
    pub fn refuse(&self, owner: QuotaKey, limit: OwnerLimit, count: u64) {
        self.0.refusals.add(owner.owner(), limit, count);
    }

    /// The counts of refusals by owner since the agent started.
    pub fn refused(&self) -> Vec<(OwnerId, OwnerLimit, u64)> {
        self.0.refusals.all(|owner_id| self.owner(owner_id).is_some())
    }
}
