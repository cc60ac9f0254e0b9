//! Processes of a job that no cgroup of the host identifies: jobs without Slurm's cgroups
//! (`proctrack/linuxproc`), a shell of `salloc`, and slurmd inside a pod.
//!
//! Costs one environment and one walk up the parents (10 µs each) when such a process is first
//! seen. A process that belongs to a pod, a container, a machine or another scheduler stays there.

use super::claims::SlurmEnv;
use super::facts::{Facts, LABELS, Label, Source};
use super::inspect::name_user;
use super::trust::{JobIdentity, labels, rank};
use super::{Host, Method, ProcessAttribution, SlurmTask, stepd};
use crate::attribute::Workload;
use crate::attribute::cgroup::parse_path;
use crate::attribute::users::Users;
use crate::process::Living;
use gpuwho_model::ids::SlurmJobId;
use std::sync::Arc;

/// Slurm in a pod: the pod stays the owner; if its namespace runs slurmd by configuration, the job
/// named by the path inside the container is reported in addition.
pub(super) fn in_pod(host: &Host, owner: &mut ProcessAttribution) {
    let workload = &owner.workload;
    let namespace = workload.pod.as_ref().and_then(|pod| pod.namespace.as_deref());
    let is_slurm = |name| host.slurm.settings.pod_namespaces.iter().any(|known| known == name);
    if workload.nested || !namespace.is_some_and(is_slurm) {
        return;
    }
    let Some(inside) = inside(owner) else { return };
    let mut task = SlurmTask { in_pod: true, ..inside };
    let mut facts = Facts::default();
    let label = if task.job.as_str().starts_with('s') { Label::Sluid } else { Label::JobId };
    facts.put(label, task.job.as_str(), Source::Cgroup);
    // User ids inside are the pod's; no file of the host describes its jobs.
    let claims =
        Living::same(&host.paths, owner.process).and_then(|living| host.slurm.environment(&living));
    if let Some(claims) = claims {
        let known = JobIdentity { name: &task.job, facts: &facts };
        if let Some(labels) = labels(&claims, known, owner.uid) {
            facts.merge(&labels);
            task.rank = rank(&claims, task.step.as_deref(), task.task.as_deref());
        }
    }
    task.facts = Some(Arc::new(facts));
    owner.workload.slurm = Some(task);
}

/// The job named by the path below the container's own directory.
fn inside(owner: &ProcessAttribution) -> Option<SlurmTask> {
    let container = owner.workload.container.as_ref()?;
    let path = owner.cgroup.as_deref()?;
    let (_, tail) = path.split_once(container.as_str())?;
    // Skips the rest of the container's own component, `.scope`.
    let tail = tail.get(tail.find('/')?..)?;
    parse_path(tail).slurm
}

/// A process without a unit of work: a slurmstepd among its parents names the job. A job that only
/// the process's own environment names is a claim.
pub(super) fn without_cgroup(host: &Host, owner: &mut ProcessAttribution) {
    if !has_no_unit(&owner.workload) {
        return;
    }
    let Some(living) = Living::same(&host.paths, owner.process) else { return };
    let claims = host.slurm.environment(&living);
    let Some(title) = stepd::above(&host.paths, &living) else {
        let claimed = claims.as_ref().and_then(|claims| claims.label(Label::JobId));
        let number = claimed.and_then(|claimed| claimed.parse::<u32>().ok());
        owner.workload.claimed.job = number.map(|job| SlurmJobId::new(&job.to_string()));
        return;
    };
    let found = Found {
        job: title.job,
        step: title.step,
        dropped: host.slurm.dropped.job(title.job),
        environment: claims.filter(|claims| is_same_user(host, claims, owner.uid)),
    };
    owner.method = Method::Slurmstepd;
    owner.workload.slurm = Some(found.task(&host.users, owner.uid));
}

/// A job that slurmstepd names outside Slurm's cgroups.
struct Found {
    job: u32,
    step: Option<Arc<str>>,
    dropped: Option<SlurmEnv>,
    environment: Option<SlurmEnv>,
}

impl Found {
    fn task(self, users: &Users, uid: u32) -> SlurmTask {
        let name = SlurmJobId::new(&self.job.to_string());
        let mut facts = Facts::default();
        facts.put(Label::JobId, name.as_str(), Source::Slurmstepd);
        if uid != 0 {
            facts.put(Label::Uid, &uid.to_string(), Source::Process);
        }
        for def in &LABELS {
            if let Some(value) = self.dropped.as_ref().and_then(|claims| claims.label(def.label)) {
                facts.put(def.label, value, Source::Prolog);
            }
        }
        let mut task = SlurmTask { step: self.step, ..SlurmTask::new(name) };
        let known = JobIdentity { name: &task.job, facts: &facts };
        let labels = self.environment.as_ref().and_then(|claims| labels(claims, known, uid));
        if let (Some(labels), Some(claims)) = (labels, &self.environment) {
            facts.merge(&labels);
            task.rank = rank(claims, task.step.as_deref(), None);
        }
        name_user(users, &mut facts);
        task.facts = Some(Arc::new(facts));
        task
    }
}

/// Whether a process belongs to no pod, container, job, machine or other scheduler.
fn has_no_unit(workload: &Workload) -> bool {
    workload.pod.is_none()
        && workload.container.is_none()
        && workload.slurm.is_none()
        && workload.allocation.is_none()
        && workload.machine.is_none()
        && workload.node.is_none()
}

/// Whether an environment names the process's user.
fn is_same_user(host: &Host, claims: &SlurmEnv, uid: u32) -> bool {
    let by_number = claims.label(Label::Uid).map(|claimed| claimed.parse() == Ok(uid));
    let by_name = || {
        let claimed = claims.label(Label::User)?;
        Some(host.users.name(uid).is_some_and(|name| *name == *claimed))
    };
    by_number.or_else(by_name).unwrap_or(false)
}
