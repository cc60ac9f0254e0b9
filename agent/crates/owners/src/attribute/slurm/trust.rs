//! How far an environment is trusted. The cgroup identifies the job; the environment, which the
//! user controls, may add labels to that job and never names another one.

use super::claims::{LOCAL_RANK, RANK, STEP, STEP_GPUS, SlurmEnv};
use super::facts::{Facts, LABELS, Label, Source};
use gpuwho_model::ids::SlurmJobId;
use std::sync::Arc;

/// The identity of a process's job, from the cgroup and slurmstepd.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobIdentity<'a> {
    /// The cgroup's name of the job.
    pub(super) name: &'a SlurmJobId,
    /// The known facts.
    pub(super) facts: &'a Facts,
}

/// A task environment's claims about the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskClaim {
    /// Its index among all tasks of the step (`SLURM_PROCID`).
    pub rank: Option<u32>,
    /// Its index among those on this node (`SLURM_LOCALID`).
    pub local_rank: Option<u32>,
    /// The GPUs of its step on this node, by Slurm's node-wide numbers.
    pub gpus: Option<Arc<str>>,
}

/// The only facts used from the environment of a heterogeneous job as a whole: the others are the
/// leader's, or of all components together (22.05: the tasks of one component have another's
/// partition).
const OF_WHOLE_HET_JOB: &[Label] = &[Label::Cluster, Label::User, Label::Uid, Label::Name];

/// The labels that an environment adds to the process's job; `None` if it names another job. `uid`
/// is the process's real user id.
pub(super) fn labels(claims: &SlurmEnv, known: JobIdentity<'_>, uid: u32) -> Option<Facts> {
    let claimed: u32 = claims.label(Label::JobId)?.parse().ok()?;
    let sluid = claims.label(Label::Sluid);
    let is_named_by_sluid = known.name.as_str().starts_with('s');
    if is_named_by_sluid && sluid.is_some_and(|sluid| sluid != known.name.as_str()) {
        return None;
    }
    let mut facts = Facts::default();
    let Some(number) = known.facts.number() else {
        // Only the SLUID connects this environment to the cgroup.
        sluid?;
        copy(claims, &mut facts, |_| true);
        return Some(without_foreign_user(facts, claims, uid));
    };
    let is_het = claims.label(Label::HetSize).is_some();
    if let Some(component) = claims.component_of(number).filter(|_| is_het) {
        of_component(claims, claimed, component, &mut facts)?;
    } else if claimed == number {
        copy(claims, &mut facts, |_| true);
    } else if known.facts.value(Label::HetJob).is_some_and(|leader| leader.parse() == Ok(claimed)) {
        copy(claims, &mut facts, |label| OF_WHOLE_HET_JOB.contains(&label));
    } else {
        return None;
    }
    Some(without_foreign_user(facts, claims, uid))
}

/// Adds a component's own facts, from the environment that all components share.
fn of_component(claims: &SlurmEnv, claimed: u32, component: u16, facts: &mut Facts) -> Option<()> {
    let leader = claims.component(0).find(|(label, _)| *label == Label::JobId)?.1;
    let size = claims.label(Label::HetSize)?;
    if leader.parse() != Ok(claimed) {
        return None;
    }
    copy(claims, facts, |label| OF_WHOLE_HET_JOB.contains(&label));
    facts.put(Label::HetJob, leader, Source::Environment);
    facts.put(Label::HetOffset, &component.to_string(), Source::Environment);
    facts.put(Label::HetSize, size, Source::Environment);
    for (label, value) in claims.component(component) {
        facts.put(label, value, Source::Environment);
    }
    Some(())
}

fn copy(claims: &SlurmEnv, facts: &mut Facts, is_wanted: impl Fn(Label) -> bool) {
    // Within a step, `SLURM_NTASKS` is the step's.
    let is_step = claims.get(STEP).is_some();
    for def in LABELS.iter().filter(|def| is_wanted(def.label)) {
        if let Some(value) = claims.label(def.label)
            && !(is_step && def.label == Label::Tasks)
        {
            facts.put(def.label, value, Source::Environment);
        }
    }
}

/// Removes a user that contradicts the kernel.
fn without_foreign_user(facts: Facts, claims: &SlurmEnv, uid: u32) -> Facts {
    if claims.label(Label::Uid).is_some_and(|claimed| claimed.parse() == Ok(uid)) {
        return facts;
    }
    let mut rest = Facts::default();
    for def in LABELS.iter().filter(|def| !matches!(def.label, Label::User | Label::Uid)) {
        if let Some(fact) = facts.get(def.label) {
            rest.put(def.label, &fact.value, fact.source);
        }
    }
    rest
}

/// The task's own numbers, if its index on the node agrees with the cgroup.
pub(super) fn rank(claims: &SlurmEnv, step: Option<&str>, task: Option<&str>) -> Option<TaskClaim> {
    let number = |names| claims.get(names).and_then(|text| text.parse::<u32>().ok());
    let own_step = claims.get(STEP).map(crate::attribute::cgroup::slurm::step_name);
    // The batch script's environment names no step; every other task's names its own.
    let is_same_step = own_step.unwrap_or("batch") == step?;
    let local_rank = number(LOCAL_RANK)?;
    let is_same_task = task.is_none_or(|task| task.parse() == Ok(local_rank));
    if !is_same_step || !is_same_task {
        return None;
    }
    let gpus = claims.get(STEP_GPUS).map(Arc::from);
    Some(TaskClaim { rank: number(RANK), local_rank: Some(local_rank), gpus })
}

#[cfg(test)]
mod tests;
