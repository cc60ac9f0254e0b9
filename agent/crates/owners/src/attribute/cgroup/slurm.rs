//! Slurm's directories: 22.05 to 26.05, cgroup v1 and v2, one or several slurmd on a host.

use super::shapes::{is_sluid, number};
use super::{Walk, parse_path, unit};
use crate::attribute::{SlurmTask, Workload};
use gpuwho_model::ids::SlurmJobId;
use std::sync::Arc;

/// The position in a Slurm tree.
#[derive(Clone, Copy, Default, PartialEq)]
pub(in crate::attribute::cgroup) enum State {
    #[default]
    Outside,
    /// Below `slurmstepd.scope` (v2) or `uid_N` (v1).
    Root,
    Job,
    Step,
}

/// Slurm's directories: v2 below `[NODE_]slurmstepd.scope` (any slice), v1 below `uid_N`.
///
/// Only if the host's own slurmd can have made them: a container, a machine, a user's slice and a
/// unit with delegated cgroups (`Delegate=yes`) can all contain directories of these names.
pub(in crate::attribute::cgroup) fn slurm<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let in_unit = match walk.slurm {
        State::Outside => walk.found.unit.is_some(),
        _ => walk.found.unit.as_deref().is_some_and(|unit| unit.ends_with(".service")),
    };
    if walk.is_guests() || in_unit || walk.found.pod.is_some() {
        return false;
    }
    match walk.slurm {
        State::Outside => slurm_root(walk, component),
        State::Root => slurm_job(walk, component),
        State::Job => slurm_step(walk, component),
        State::Step => slurm_task(walk, component),
    }
}

fn slurm_root<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    if component == "slurmstepd.scope" || component.ends_with("_slurmstepd.scope") {
        walk.slurm = State::Root;
        return unit(walk, component);
    }
    let Some(uid) = component.strip_prefix("uid_").and_then(number) else { return false };
    // The directory above is `slurm`, `slurm_NODE`, or set by `CgroupPrepend`.
    if walk.previous.is_empty() {
        return false;
    }
    walk.found.uid = Some(uid);
    walk.slurm = State::Root;
    true
}

fn slurm_job<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let job = match component.strip_prefix("job_") {
        Some(job) if number(job).is_some() => job,
        _ if is_sluid(component) => component,
        _ => return false,
    };
    let job = SlurmJobId::new(job);
    walk.found.slurm = Some(SlurmTask::new(job));
    walk.slurm = State::Job;
    true
}

fn slurm_step<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let Some(step) = component.strip_prefix("step_").filter(|step| !step.is_empty()) else {
        return false;
    };
    if let Some(slurm) = &mut walk.found.slurm {
        slurm.step = Some(Arc::from(step_name(step)));
    }
    walk.slurm = State::Step;
    true
}

/// The name of a special step, from Slurm's number (`slurm.h`: `SLURM_BATCH_SCRIPT` and others).
pub(in crate::attribute) fn step_name(step: &str) -> &str {
    match step {
        "4294967290" => "interactive",
        "4294967291" => "batch",
        "4294967292" => "extern",
        other => other,
    }
}

fn slurm_task<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let Some(slurm) = &mut walk.found.slurm else { return false };
    match component {
        "slurm" if slurm.task.is_none() => slurm.daemon = true,
        "user" => {}
        _ => match component.strip_prefix("task_").filter(|task| !task.is_empty()) {
            Some(task) if slurm.task.is_none() => slurm.task = Some(Arc::from(task)),
            _ => return false,
        },
    }
    true
}

/// The part of a path that is a job's own directory, with its workload; `None` for a path outside
/// every job. The host's root made it, so it identifies the job on this node.
pub(in crate::attribute) fn job_directory(path: &str) -> Option<(&str, Workload)> {
    // Most cgroups of a host belong to no job: two searches exclude them.
    if !path.contains("slurmstepd.scope/") && !path.contains("/uid_") {
        return None;
    }
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    let mut prefixes = ends.filter_map(|end| path.get(..end));
    prefixes.find_map(|prefix| {
        let workload = parse_path(prefix);
        workload.slurm.is_some().then_some((prefix, workload))
    })
}
