//! Names made where not only the host's root makes cgroups: below a user's slice, in a container,
//! in a machine, below a service. They are the workload's claims about itself, reported separately
//! from its identity, and no account is charged by them (`docs/decisions/0003-nested-pods.md`).
//!
//! Reads only memory; costs nothing for a workload without such names.

use super::{Host, KernelCgroups, ProcessAttribution, Workload};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use gpuwho_model::ids::{ContainerId, PodUid, SlurmJobId};
use std::sync::Arc;

/// The claims of a process about itself. Each has the form of the claimed id; none is longer than a
/// cgroup's name (255 bytes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfClaims {
    /// The pod that a directory in the delegated part names.
    pub pod: Option<PodUid>,
    /// The container that a directory in the delegated part names.
    pub container: Option<ContainerId>,
    /// The unit name from a user's or a machine's own service manager.
    pub unit: Option<Arc<str>>,
    /// The Slurm job in the environment of a process outside every job.
    pub job: Option<SlurmJobId>,
}

impl SelfClaims {
    /// All claims with their attributes.
    pub fn each(&self) -> impl Iterator<Item = (&'static AttrKey, &str)> {
        let all = [
            (&attr::CLAIMED_POD_UID, self.pod.as_ref().map(PodUid::as_str)),
            (&attr::CLAIMED_CONTAINER_ID, self.container.as_ref().map(ContainerId::as_str)),
            (&attr::CLAIMED_SYSTEMD_UNIT, self.unit.as_deref()),
            (&attr::CLAIMED_SLURM_JOB_ID, self.job.as_ref().map(SlurmJobId::as_str)),
        ];
        all.into_iter().filter_map(|(key, name)| Some((key, name?)))
    }

    pub(super) fn describe(&self, set: &mut AttrSet) {
        self.each().for_each(|(key, name)| set.set(key, name));
    }
}

impl Workload {
    /// The container that a service names and that a runtime of the host may still confirm.
    pub(super) fn unconfirmed(&self) -> Option<&ContainerId> {
        let is_services = self.is_in_unit() && !self.user_slice && self.machine.is_none();
        self.claimed.container.as_ref().filter(|_| is_services && self.claimed.pod.is_none())
    }

    /// Moves the unconfirmed container back, so that it is looked up like any other.
    pub(super) fn reconsider(&mut self) {
        if self.container.is_none() && self.unconfirmed().is_some() {
            self.container = self.claimed.container.take();
        }
    }

    fn disown_pod(&mut self) {
        self.claimed.pod = self.pod.take().map(|pod| pod.uid);
        self.claimed.container = self.container.take();
        self.container = self.node.take();
        self.nested = false;
    }

    fn disown_container(&mut self) {
        if let Some(id) = self.container.take() {
            self.claimed.container.get_or_insert(id);
        }
    }
}

/// The first naming step: a name from a delegated part is not an identity. If the operator allows
/// it (`kubernetes.nested`), pods in containers, machines and services are identities, unless the
/// host itself has such a pod; below a user's slice none ever is.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let is_flux = owner.cgroup.as_deref().is_some_and(is_flux_job);
    let workload = &mut owner.workload;
    if is_flux && workload.uid.is_some_and(|uid| is_flux_account(host, uid)) {
        // The process runs as the job's user: the IMP has changed to it.
        workload.uid = None;
    }
    if workload.nested && (!host.nested || workload.user_slice || is_hosts_own(host, workload)) {
        workload.disown_pod();
    }
    if workload.user_slice || (workload.machine.is_some() && workload.pod.is_none()) {
        workload.disown_container();
    }
}

/// The step after the runtimes: a container that only a service names stays a claim.
pub(crate) fn confirm(_host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let workload = &mut owner.workload;
    let is_known = workload.pod.is_some() || workload.slurm.is_some() || workload.facts.is_some();
    if !is_known && workload.is_in_unit() {
        workload.disown_container();
    }
}

/// Whether the node's own kubelet has a pod of this UID: then the inner name is forged.
fn is_hosts_own(host: &Host, workload: &Workload) -> bool {
    let Some(pod) = &workload.pod else { return false };
    host.names.pod(&pod.uid).is_some() || host.podlogs.pod(&pod.uid).is_some()
}

/// Whether a path is that of a Flux job: the Flux account's service manager starts each job in a
/// unit `imp-shell-RANK-JOB.service` (flux-core, `sdexec`), where the IMP becomes the job's user.
fn is_flux_job(path: &str) -> bool {
    let Some((_, below)) = path.split_once("/user@") else { return false };
    // A manager's units are in its own slices (`app.slice`), or in none.
    let mut units = below.split('/').skip(1).filter(|name| name.strip_suffix(".slice").is_none());
    units.next().is_some_and(|unit| {
        unit.strip_prefix("imp-shell-").is_some_and(|rest| rest.strip_suffix(".service").is_some())
    })
}

/// Whether a user's slice is that of the account Flux runs under: it has the name `flux`, or is a
/// system account. Any other user can name units freely, and owns what is in them.
fn is_flux_account(host: &Host, uid: u32) -> bool {
    /// `SYS_UID_MAX` of login.defs(5).
    const LAST_OF_SYSTEM: u32 = 999;
    uid <= LAST_OF_SYSTEM || host.users.name(uid).is_some_and(|name| *name == *"flux")
}

#[cfg(test)]
mod tests;
