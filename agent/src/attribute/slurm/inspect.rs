//! Everything this node knows of one job, read in the order of trust: the cgroup's name,
//! slurmstepd's title, the device program, drop files, and the environment of the job's own
//! processes.
//!
//! Reads a few files of `/proc` and of the job's directories, at most [`MAX_STEPS`] steps and
//! [`MAX_PROCESSES`] processes: some tenths of a millisecond, when a job is first seen and a few
//! times after that while something is missing. Never on a tick.

use super::claims::SlurmEnv;
use super::devices::{self, Granted, Undecided};
use super::facts::{Facts, LABELS, Label, Source};
use super::trust::{JobIdentity, labels};
use super::{Slurm, stepd};
use crate::attribute::cgroup::Placement;
use crate::attribute::cgroup::slurm::job_directory;
use crate::attribute::process::Living;
use crate::attribute::users::Users;
use crate::ids::{Hierarchy, SlurmJobId};
use std::fs::{File, read_dir};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Steps of a job that are looked into.
const MAX_STEPS: usize = 16;
/// Task directories of a step that are looked into.
const MAX_TASKS: usize = 8;
/// Processes of a job whose environment is read.
const MAX_PROCESSES: usize = 8;
/// More than so many process numbers are not read of one `cgroup.procs`.
const MAX_PROCS_BYTES: u64 = 4096;

/// A job to look into.
#[derive(Debug)]
pub(super) struct JobInspector<'a> {
    pub(super) slurm: &'a Slurm,
    pub(super) users: &'a Users,
    /// The job's cgroup path.
    pub(super) path: &'a str,
    /// Its directory in each hierarchy that has one.
    pub(super) directories: Vec<(Hierarchy, PathBuf)>,
}

/// A process of the job that is looked at anyway.
#[derive(Debug)]
pub(super) struct ProcessEvidence<'a> {
    pub(super) claims: Option<&'a SlurmEnv>,
    pub(super) uid: u32,
}

impl JobInspector<'_> {
    /// What is known now, `before` included.
    pub(super) fn facts(&self, before: &Facts, evidence: Option<&ProcessEvidence<'_>>) -> Facts {
        let mut facts = before.clone();
        let Some((_, workload)) = job_directory(self.path) else { return facts };
        let Some(task) = workload.slurm else { return facts };
        self.name(&task.job, &mut facts);
        if let Some(uid) = workload.uid {
            facts.put(Label::Uid, &uid.to_string(), Source::Cgroup);
        }
        self.drop_files(&task.job, &mut facts);
        if let Some(evidence) = evidence {
            evidence.add_claims(&task.job, &mut facts);
        }
        if !is_labelled(&facts) {
            self.ask_processes(&task.job, &mut facts);
        }
        name_user(self.users, &mut facts);
        facts
    }

    /// What one process adds, without reading anything else.
    pub(super) fn heard(&self, before: &Facts, evidence: &ProcessEvidence<'_>) -> Facts {
        let mut facts = before.clone();
        if let Some(task) = job_directory(self.path).and_then(|(_, workload)| workload.slurm) {
            evidence.add_claims(&task.job, &mut facts);
            name_user(self.users, &mut facts);
        }
        facts
    }

    /// The devices that slurmstepd lets the job open.
    pub(super) fn granted(&self) -> Granted {
        let in_v2 = self.directories.iter().find(|(hierarchy, _)| *hierarchy == Hierarchy::V2);
        match in_v2 {
            Some((_, directory)) => devices::read(directory),
            None if self.directories.is_empty() => Granted::Untold(Undecided::Gone),
            None => Granted::Untold(Undecided::CgroupV1),
        }
    }

    /// The number: the cgroup's own name of the job, else from slurmstepd's title.
    fn name(&self, name: &SlurmJobId, facts: &mut Facts) {
        if !name.as_str().starts_with('s') {
            facts.put(Label::JobId, name.as_str(), Source::Cgroup);
            return;
        }
        facts.put(Label::Sluid, name.as_str(), Source::Cgroup);
        if facts.get(Label::JobId).is_some_and(|fact| fact.source >= Source::Slurmstepd) {
            return;
        }
        let title = self.steps().find_map(|step| stepd::of_step(&self.slurm.paths, &step));
        if let Some(title) = title {
            facts.put(Label::JobId, &title.job.to_string(), Source::Slurmstepd);
        }
    }

    fn drop_files(&self, name: &SlurmJobId, facts: &mut Facts) {
        let dropped = match facts.number() {
            Some(number) => self.slurm.dropped.job(number).map(|claims| (number, claims)),
            None => self.slurm.dropped.run(name),
        };
        // A file left by an earlier run of this number has another SLUID.
        let is_of_this_run = |claims: &SlurmEnv| match claims.label(Label::Sluid) {
            Some(sluid) => facts.value(Label::Sluid).is_none_or(|known| **known == *sluid),
            None => true,
        };
        if let Some((number, claims)) = dropped.filter(|(_, claims)| is_of_this_run(claims)) {
            facts.put(Label::JobId, &number.to_string(), Source::Prolog);
            for row in &LABELS {
                if let Some(value) = claims.label(row.label) {
                    facts.put(row.label, value, Source::Prolog);
                }
            }
        }
        if facts.get(Label::Gpus).is_none_or(|fact| fact.source < Source::Mapping)
            && let Some(gpus) = facts.number().and_then(|job| self.slurm.dropped.gpus(job))
        {
            facts.put(Label::Gpus, &gpus, Source::Mapping);
        }
    }

    fn ask_processes(&self, name: &SlurmJobId, facts: &mut Facts) {
        let mut asked = 0;
        for pid in self.steps().flat_map(|step| processes(&step)) {
            if asked >= MAX_PROCESSES || is_labelled(facts) {
                return;
            }
            let Some(living) = Living::find(&self.slurm.paths, pid) else { continue };
            // The number may have gone to another process since `cgroup.procs` was read.
            let Some(Placement::Known { path, .. }) = living.placement() else { continue };
            if job_directory(&path).map(|(job, _)| job) != Some(self.path) {
                continue;
            }
            let Some(uid) = living.uid() else { continue };
            let claims = self.slurm.environment(&living);
            asked += 1;
            ProcessEvidence { claims: claims.as_ref(), uid }.add_claims(name, facts);
        }
    }

    /// The job's step directories: batch and numbered ones before those of Slurm itself.
    fn steps(&self) -> impl Iterator<Item = PathBuf> {
        let all = self.directories.iter().flat_map(|(_, directory)| below(directory, "step_"));
        let mut steps: Vec<PathBuf> = all.take(MAX_STEPS).collect();
        steps.sort_by_key(|step| step.ends_with("step_extern"));
        steps.into_iter()
    }
}

impl ProcessEvidence<'_> {
    /// A process's own words, as far as they fit what the kernel says.
    fn add_claims(&self, name: &SlurmJobId, facts: &mut Facts) {
        // Root's processes in a job are Slurm's or somebody's sudo.
        if self.uid != 0 {
            facts.put(Label::Uid, &self.uid.to_string(), Source::Process);
        }
        let known = JobIdentity { name, facts };
        let labels = self.claims.and_then(|claims| labels(claims, known, self.uid));
        if let Some(labels) = labels {
            facts.merge(&labels);
        }
    }
}

/// Whether an environment could still add something that is wanted on every point.
pub(super) fn is_labelled(facts: &Facts) -> bool {
    [Label::Name, Label::Account, Label::Partition, Label::User]
        .iter()
        .all(|label| facts.get(*label).is_some())
}

/// The host's own name of the user goes before what an environment says.
pub(super) fn name_user(users: &Users, facts: &mut Facts) {
    let Some(uid) = facts.get(Label::Uid) else { return };
    let source = uid.source;
    if let Some(name) = uid.value.parse().ok().and_then(|uid| users.name(uid)) {
        facts.put(Label::User, &name, source);
    }
}

/// Processes of a step's tasks: v2 keeps them in `user/task_N`, v1 in `task_N` or the step itself.
fn processes(step: &Path) -> Vec<u32> {
    let user = step.join("user");
    let tasks = below(&user, "task_").into_iter().chain(below(step, "task_")).take(MAX_TASKS);
    let places = tasks.chain([step.to_owned()]);
    places.flat_map(|place| pids(&place.join("cgroup.procs"), MAX_PROCESSES)).collect()
}

fn below(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = read_dir(directory).into_iter().flatten().flatten();
    let named = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    named.take(MAX_STEPS).map(|entry| entry.path()).collect()
}

/// The first process numbers of a `cgroup.procs`.
pub(crate) fn pids(file: &Path, most: usize) -> Vec<u32> {
    let mut text = String::new();
    let read =
        File::open(file).and_then(|file| file.take(MAX_PROCS_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => text.lines().take(most).filter_map(|line| line.parse().ok()).collect(),
        // The step ended.
        Err(_) => Vec::new(),
    }
}
