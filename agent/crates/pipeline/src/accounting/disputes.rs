//! Claims of one device by several.
//!
//! A driver of dynamic resource allocation gives a device to one claim, or divides it into shares with an id
//! each. Another claim without one is for administration (`adminAccess`: monitors, debugging), which the
//! kubelet does not tell (`cm/container_manager_linux.go` GetDynamicResources). It is found where a claim of
//! a DaemonSet's pods has all devices of a vendor, and one of them is somebody else's too: then it is no
//! allocation of any device, as long as it is listed. Where that does not decide, a device with several
//! claims has no owner.

use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_owners::attribute::allocations::{Allocation, Disputes};
use gpuwho_owners::inventory::GpuInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An allocation, and the device or instance that it is of.
pub(super) type Placed<'a> = (GpuId, Option<InstanceId>, &'a Allocation);

/// Who has a device: a claim, or what is allocated otherwise.
type Title<'a> = Option<&'a str>;

/// The claims that are known to be for administration.
#[derive(Debug, Default)]
pub(super) struct Administrative(BTreeSet<String>);

impl Administrative {
    /// Removes what counts for nobody.
    pub(super) fn settle(
        &mut self,
        placed: &mut Vec<Placed<'_>>,
        devices: &[(GpuId, Arc<GpuInfo>)],
    ) -> Disputes {
        let listed: BTreeSet<_> = placed.iter().filter_map(|(.., one)| title(one)?).collect();
        self.0.retain(|claim| listed.contains(claim.as_str()));
        let suspects = suspects(placed, devices);
        let held = titles(placed);
        for ((gpu, _), on) in &held {
            // A device that is divided is nobody's as a whole.
            let whole = held.get(&(*gpu, None)).into_iter().flatten();
            let titles: BTreeSet<_> = on.iter().chain(whole).collect();
            let is_suspect = |title: &Title<'_>| title.is_some_and(|of| suspects.contains(of));
            let others = titles.iter().filter(|title| !is_suspect(title)).count();
            if titles.len() > 1 && others == 1 {
                let found = titles.into_iter().filter(|title| is_suspect(title)).copied().flatten();
                self.0.extend(found.map(str::to_owned));
            }
        }
        let before = placed.len();
        placed.retain(|(.., one)| !title(one).flatten().is_some_and(|c| self.0.contains(c)));
        let left = placed.len();
        let disputed = titles(placed);
        placed.retain(|(gpu, instance, one)| {
            let several = disputed.get(&(*gpu, *instance)).is_some_and(|titles| titles.len() > 1);
            !several || title(one).is_none()
        });
        let (administrative, contested) = (before - left, left - placed.len());
        Disputes { administrative, contested, ..Disputes::default() }
    }
}

/// Who has each device and instance.
fn titles<'a>(placed: &[Placed<'a>]) -> BTreeMap<(GpuId, Option<InstanceId>), BTreeSet<Title<'a>>> {
    let mut titles: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (gpu, instance, one) in placed {
        titles.entry((*gpu, *instance)).or_default().extend(title(one));
    }
    titles
}

/// By what an allocation of the kubelet's is the only one of its device; `None` for a part of it. (A job
/// of Slurm may be in the pod that has the device.)
fn title(allocation: &Allocation) -> Option<Title<'_>> {
    if allocation.source != GrantSource::Kubelet {
        return None;
    }
    match (&allocation.claim, allocation.kind) {
        (Some(claim), _) => Some(Some(&claim.name)),
        (None, GrantKind::Exclusive | GrantKind::Instance) => Some(None),
        (None, GrantKind::Replica | GrantKind::Claim) => None,
    }
}

/// The claims of DaemonSets that have every device of a vendor.
fn suspects<'a>(placed: &[Placed<'a>], devices: &[(GpuId, Arc<GpuInfo>)]) -> BTreeSet<&'a str> {
    let mut claims: BTreeMap<&str, BTreeSet<GpuId>> = BTreeMap::new();
    for (gpu, _, one) in placed {
        if let Some(claim) = one.claim.as_ref().filter(|claim| claim.is_of_daemon_set) {
            claims.entry(&claim.name).or_default().insert(*gpu);
        }
    }
    claims.retain(|_, held| {
        let of = devices.iter().find(|(gpu, _)| held.contains(gpu)).map(|(_, info)| &info.vendor);
        devices.iter().all(|(gpu, info)| Some(&info.vendor) != of || held.contains(gpu))
    });
    claims.into_keys().collect()
}
