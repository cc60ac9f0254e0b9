//! Slurm, from the node's own evidence: the cgroup identifies the owner, and slurmstepd's title,
//! its device program, drop files and the environment, in that order, provide the job's names
//! (`docs/decisions/0005-slurm-without-asking-slurm.md`). No Slurm command or daemon is ever
//! called.
//!
//! A job is inspected when it is first seen, and a few more times while facts are missing; each
//! resolved process costs one read of its environment. The tick costs nothing while no job starts
//! or ends.

mod allocations;
mod claims;
mod devices;
mod dropfiles;
mod facts;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
pub mod inspect;
mod jobs;
mod node;
mod outside;
mod sluid;
mod stepd;
mod trust;

pub use allocations::JobAllocations;
pub use claims::SlurmEnv;
pub use devices::{DeviceAccess, DeviceNumber, Undecided};
pub use facts::{Fact, Facts, Label, Source};
pub use jobs::Job;
pub(crate) use node::Slurm;
pub use sluid::Sluid;
pub use trust::TaskClaim;

use super::cgroup::slurm::job_directory;
use super::{Host, KernelCgroups, Method, ProcessAttribution};
use crate::process::Living;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::ids::SlurmJobId;
use gpuwho_model::paths::Paths;
use inspect::ProcessEvidence;
use std::path::PathBuf;
use std::sync::Arc;

/// A Slurm step or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmTask {
    /// The job as the cgroup names it.
    pub job: SlurmJobId,
    /// `0`, `batch`, `extern`, `interactive`, ….
    pub step: Option<Arc<str>>,
    /// Task on this node.
    pub task: Option<Arc<str>>,
    /// Whether it is the step's own slurmstepd, which is not the user's work.
    pub daemon: bool,
    /// Whether Slurm runs in the owner's pod: the pod, not the host, named the job.
    pub in_pod: bool,
    /// Further facts about the job.
    pub facts: Option<Arc<Facts>>,
    /// The environment's claims about the task.
    pub rank: Option<TaskClaim>,
}

impl SlurmTask {
    /// A job with only its cgroup's name known.
    pub fn new(job: SlurmJobId) -> Self {
        Self { job, step: None, task: None, daemon: false, in_pod: false, facts: None, rank: None }
    }

    /// A job of a partition, as the node's Prolog names it or, false, its environment.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn with_partition(job: &str, partition: &str, is_from_prolog: bool) -> Self {
        let source = if is_from_prolog { Source::Prolog } else { Source::Environment };
        let mut known = Facts::default();
        known.put(Label::Partition, partition, source);
        Self { facts: Some(Arc::new(known)), ..Self::new(SlurmJobId::new(job)) }
    }

    /// The id that users see: the number, if it is known.
    pub fn number(&self) -> Arc<str> {
        let number = self.facts.as_ref().and_then(|facts| facts.value(Label::JobId));
        number.map_or_else(|| Arc::from(self.job.as_str()), Arc::clone)
    }

    /// Adds the job's small identity, for every point.
    pub fn describe_job(&self, set: &mut AttrSet) {
        set.set(&attr::SLURM_JOB_ID, self.number());
        if let Some(facts) = &self.facts {
            facts.describe(set);
        }
    }

    /// Adds the step and the task.
    pub fn describe_task(&self, set: &mut AttrSet) {
        set.set_some(&attr::SLURM_STEP_ID, self.step.clone());
        set.set_some(&attr::SLURM_TASK_ID, self.task.clone());
    }

    /// Adds all facts about the job, for an info series.
    pub fn detail_job(&self, set: &mut AttrSet) {
        set.set(&attr::SLURM_JOB_ID, self.number());
        if let Some(facts) = &self.facts {
            facts.describe_all(set);
        }
    }

    /// Adds further facts about the task, for the process's own info series.
    pub fn detail_task(&self, set: &mut AttrSet) {
        if let Some(rank) = &self.rank {
            set.set_some(&attr::SLURM_TASK_RANK, rank.rank.map(i64::from));
            set.set_some(&attr::SLURM_TASK_LOCAL_RANK, rank.local_rank.map(i64::from));
            set.set_some(&attr::SLURM_STEP_GPUS, rank.gpus.clone());
        }
    }

    /// The job's name.
    pub fn name(&self) -> Option<Arc<str>> {
        self.facts.as_ref()?.value(Label::Name).map(Arc::clone)
    }

    /// The name of the job's user.
    pub fn user(&self) -> Option<Arc<str>> {
        self.facts.as_ref()?.value(Label::User).map(Arc::clone)
    }
}

impl Job {
    /// The job as part of a workload, without step and task.
    pub fn task(&self) -> SlurmTask {
        SlurmTask { facts: Some(Arc::clone(&self.facts)), ..SlurmTask::new(self.name.clone()) }
    }

    /// Whether a process's owner has these very facts.
    pub(crate) fn is_known_to(&self, owner: &ProcessAttribution) -> bool {
        let facts = owner.workload.slurm.as_ref().and_then(|task| task.facts.as_ref());
        facts.is_some_and(|facts| Arc::ptr_eq(facts, &self.facts))
    }

    /// Whether a cgroup is the job's or below it.
    pub(crate) fn holds(&self, cgroup: &str) -> bool {
        let below = cgroup.strip_prefix(&*self.path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What Slurm's evidence is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The drop files of gpuwho's Prolog, one for each job.
    pub jobs: PathBuf,
    /// dcgm-exporter's job mapping directory, if the site has one.
    pub gpu_map: Option<PathBuf>,
    /// jobstats' mapping directory.
    pub gpustat: PathBuf,
    /// Whether environments are read.
    pub environment: bool,
    /// Namespaces with pods that run slurmd: their processes get the labels of the jobs inside.
    pub pod_namespaces: Vec<String>,
}

impl Settings {
    /// The default places on the host of `paths`.
    pub fn default_settings(paths: &Paths) -> Self {
        let run = paths.run.parent().map_or_else(|| PathBuf::from("/run"), PathBuf::from);
        Self {
            jobs: paths.run.join("slurm/jobs"),
            gpu_map: None,
            gpustat: run.join("gpustat"),
            environment: true,
            pod_namespaces: Vec::new(),
        }
    }
}

/// The resolver after those of the cgroup: adds the job's names, and to a process without a unit of
/// work the job of its parents.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    if owner.method == Method::Pending {
        return;
    }
    if owner.workload.slurm.is_some() {
        label(host, owner);
    } else if owner.workload.pod.is_some() {
        outside::in_pod(host, owner);
    } else {
        outside::without_cgroup(host, owner);
    }
}

fn label(host: &Host, owner: &mut ProcessAttribution) {
    let slurm = &host.slurm;
    let Some(task) = &mut owner.workload.slurm else { return };
    let Some((path, _)) = owner.cgroup.as_deref().and_then(job_directory) else { return };
    if slurm.jobs.lock().get(path).is_none_or(|job| job.removed_ns.is_some()) {
        slurm.found(&host.hierarchies, path, &task.job);
    }
    let living = match owner.method {
        Method::Proc => Living::same(&host.paths, owner.process),
        _ => None,
    };
    let claims = living.as_ref().and_then(|living| slurm.environment(living));
    let source = ProcessEvidence { claims: claims.as_ref(), uid: owner.uid };
    slurm.add_evidence(host, path, &source);
    let Some(job) = slurm.jobs.lock().get(path).map(Arc::clone) else { return };
    let known = trust::JobIdentity { name: &task.job, facts: &job.facts };
    let trusted =
        claims.as_ref().filter(|claims| trust::labels(claims, known, owner.uid).is_some());
    if let Some(claims) = trusted {
        task.rank = trust::rank(claims, task.step.as_deref(), task.task.as_deref());
    }
    task.facts = (!job.facts.is_empty()).then(|| Arc::clone(&job.facts));
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
