//! Which of several lines of one process counts, and which lines contradict each other.

use crate::attribute::Workload;
use gpuwho_model::ids::{PodUid, SlurmJobId};

/// The specificity of a workload: names the host wrote come before those that a user, a machine or
/// a service may have written; then container, pod, Slurm task and weaker names.
pub(super) fn specificity(workload: &Workload) -> u32 {
    let host = is_host_written(workload);
    let slurm = workload.slurm.as_ref();
    let facts = [
        host && workload.container.is_some(),
        host && workload.pod.is_some(),
        slurm.is_some(),
        slurm.is_some_and(|slurm| slurm.step.is_some()),
        slurm.is_some_and(|slurm| slurm.task.is_some()),
        workload.container.is_some(),
        workload.pod.is_some(),
        workload.allocation.is_some(),
        workload.machine.is_some(),
        workload.unit.is_some(),
        workload.uid.is_some(),
    ];
    facts.iter().fold(0, |rank, fact| rank << 1 | u32::from(*fact))
}

fn is_host_written(workload: &Workload) -> bool {
    // A job counts only if slurmd made its directory; its scope is a unit.
    let is_units = workload.slurm.is_none() && workload.is_in_unit();
    workload.machine.is_none() && !workload.user_slice && !is_units
}

/// Whether two paths of one process, both written by the host, name different owners.
pub(super) fn contradicts(one: &Workload, other: &Workload) -> bool {
    fn differ<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.is_some() && other.is_some() && one != other
    }
    fn pod(workload: &Workload) -> Option<&PodUid> {
        workload.pod.as_ref().map(|pod| &pod.uid)
    }
    fn job(workload: &Workload) -> Option<&SlurmJobId> {
        workload.slurm.as_ref().map(|slurm| &slurm.job)
    }
    if !is_host_written(one) || !is_host_written(other) {
        return false;
    }
    differ(one.container.as_ref(), other.container.as_ref())
        || differ(pod(one), pod(other))
        || differ(job(one), job(other))
        || (pod(one).is_some() && job(other).is_some())
        || (job(one).is_some() && pod(other).is_some())
}
