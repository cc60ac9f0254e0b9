//! Inspects a job: reads all of this node's evidence about it, the most trusted first: the cgroup's
//! name, slurmstepd's title, the device program, drop files, and the environment of the job's own
//! processes.
//!
//! Reads a few files of `/proc` and of the job's directories, of at most [`MAX_STEPS`] steps and
//! [`MAX_PROCESSES`] processes: some tenths of a millisecond, when a job is first seen and a few
//! more times while facts are missing. Never on a tick.

use super::claims::SlurmEnv;
use super::devices::{self, DeviceAccess, Undecided};
use super::facts::{Facts, LABELS, Label, Source};
use super::jobs::ReadProcesses;
use super::trust::{JobIdentity, labels};
use super::{Slurm, stepd};
use crate::attribute::cgroup::Placement;
use crate::attribute::cgroup::slurm::job_directory;
use crate::attribute::users::Users;
use crate::process::Living;
use gpuwho_model::ids::{Hierarchy, SlurmJobId};
use std::fs::{File, read_dir};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum number of inspected steps of a job.
const MAX_STEPS: usize = 16;
/// Maximum number of inspected task directories of a step.
const MAX_TASKS: usize = 8;
/// Maximum number of processes of a job with their environment read.
const MAX_PROCESSES: usize = 8;
/// Maximum number of bytes read of one `cgroup.procs`.
const MAX_PROCS_BYTES: u64 = 4096;

/// A job to inspect.
#[derive(Debug)]
pub(super) struct JobInspector<'a> {
    pub(super) slurm: &'a Slurm,
    pub(super) users: &'a Users,
    /// The job's cgroup path.
    pub(super) path: &'a str,
    /// Its directories, one for each hierarchy that has it.
    pub(super) directories: Vec<(Hierarchy, PathBuf)>,
    /// Its processes whose environment is in the facts already: until they execute another program,
    /// it stays as it was.
    pub(super) read: ReadProcesses,
}

/// A process of the job that is being resolved.
#[derive(Debug)]
pub(super) struct ProcessEvidence<'a> {
    pub(super) claims: Option<&'a SlurmEnv>,
    pub(super) uid: u32,
}

impl JobInspector<'_> {
    /// All known facts, including `before`, and the processes whose environment need not be read
    /// again.
    pub(super) fn facts(
        &self,
        before: &Facts,
        evidence: Option<&ProcessEvidence<'_>>,
    ) -> (Facts, ReadProcesses) {
        let (mut facts, mut read) = (before.clone(), ReadProcesses::new());
        let Some((_, workload)) = job_directory(self.path) else { return (facts, read) };
        let Some(task) = workload.slurm else { return (facts, read) };
        self.name(&task.job, &mut facts);
        if let Some(uid) = workload.uid {
            facts.put(Label::Uid, &uid.to_string(), Source::Cgroup);
        }
        self.drop_files(&task.job, &mut facts);
        if let Some(evidence) = evidence {
            evidence.add_claims(&task.job, &mut facts);
        }
        if !is_labelled(&facts) {
            read = self.read_processes(&task.job, &mut facts);
        }
        name_user(self.users, &mut facts);
        (facts, read)
    }

    /// The known facts with those of one process, without reading anything else.
    pub(super) fn with_evidence(&self, before: &Facts, evidence: &ProcessEvidence<'_>) -> Facts {
        let mut facts = before.clone();
        if let Some(task) = job_directory(self.path).and_then(|(_, workload)| workload.slurm) {
            evidence.add_claims(&task.job, &mut facts);
            name_user(self.users, &mut facts);
        }
        facts
    }

    /// The devices that slurmstepd allows the job to open.
    pub(super) fn devices(&self) -> DeviceAccess {
        let in_v2 = self.directories.iter().find(|(hierarchy, _)| *hierarchy == Hierarchy::V2);
        match in_v2 {
            Some((_, directory)) => devices::read(directory),
            None if self.directories.is_empty() => DeviceAccess::Unknown(Undecided::Gone),
            None => DeviceAccess::Unknown(Undecided::CgroupV1),
        }
    }

    /// Adds the job's number: the cgroup's own name of it, else from slurmstepd's title.
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
            for def in &LABELS {
                if let Some(value) = claims.label(def.label) {
                    facts.put(def.label, value, Source::Prolog);
                }
            }
        }
        if facts.get(Label::Gpus).is_none_or(|fact| fact.source < Source::Mapping)
            && let Some(gpus) = facts.number().and_then(|job| self.slurm.dropped.gpus(job))
        {
            facts.put(Label::Gpus, &gpus, Source::Mapping);
        }
    }

    /// Reads the processes in the first hierarchy that shows any: Slurm puts a job's processes into
    /// each hierarchy that it uses.
    fn read_processes(&self, name: &SlurmJobId, facts: &mut Facts) -> ReadProcesses {
        let mut read = ReadProcesses::new();
        let is_read = |(_, directory): &(Hierarchy, PathBuf)| {
            self.read_processes_in(directory, name, facts, &mut read) > 0
        };
        let _found = self.directories.iter().any(is_read);
        read
    }

    /// Returns how many processes of the job were read.
    fn read_processes_in(
        &self,
        directory: &Path,
        name: &SlurmJobId,
        facts: &mut Facts,
        read: &mut ReadProcesses,
    ) -> usize {
        let mut count = 0;
        for pid in steps(below(directory, "step_")).flat_map(|step| processes(&step)) {
            if count >= MAX_PROCESSES || is_labelled(facts) {
                break;
            }
            let Some(living) = Living::find(&self.slurm.paths, pid) else { continue };
            let program = (living.key, living.arguments_at);
            if self.read.contains(&program) {
                read.push(program);
                count += 1;
                continue;
            }
            // The PID may have been reused since `cgroup.procs` was read.
            let Some(Placement::Known { path, .. }) = living.placement() else { continue };
            if job_directory(&path).map(|(job, _)| job) != Some(self.path) {
                continue;
            }
            let Some(uid) = living.uid() else { continue };
            let claims = self.slurm.environment(&living);
            count += 1;
            let are_added =
                ProcessEvidence { claims: claims.as_ref(), uid }.add_claims(name, facts);
            if are_added || claims.is_some_and(|claims| claims.is_empty()) {
                read.push(program);
            }
        }
        count
    }

    /// The job's step directories in all hierarchies.
    fn steps(&self) -> impl Iterator<Item = PathBuf> {
        steps(self.directories.iter().flat_map(|(_, directory)| below(directory, "step_")))
    }
}

/// The first step directories: batch and numbered ones before `extern`.
fn steps(all: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = PathBuf> {
    let mut steps: Vec<PathBuf> = all.into_iter().take(MAX_STEPS).collect();
    steps.sort_by_key(|step| step.ends_with("step_extern"));
    steps.into_iter()
}

impl ProcessEvidence<'_> {
    /// Adds a process's claims, as far as they agree with the kernel's data. Returns whether they
    /// are about this job.
    fn add_claims(&self, name: &SlurmJobId, facts: &mut Facts) -> bool {
        // A root process in a job is Slurm's, or runs by sudo.
        if self.uid != 0 {
            facts.put(Label::Uid, &self.uid.to_string(), Source::Process);
        }
        let known = JobIdentity { name, facts };
        let labels = self.claims.and_then(|claims| labels(claims, known, self.uid));
        if let Some(labels) = &labels {
            facts.merge(labels);
        }
        labels.is_some()
    }
}

/// Whether the most important facts are known; otherwise an environment may still add some.
pub(super) fn is_labelled(facts: &Facts) -> bool {
    [Label::Name, Label::Account, Label::Partition, Label::User]
        .iter()
        .all(|label| facts.get(*label).is_some())
}

/// Adds the host's name of the user, which counts before an environment's.
pub(super) fn name_user(users: &Users, facts: &mut Facts) {
    let Some(uid) = facts.get(Label::Uid) else { return };
    let source = uid.source;
    if let Some(name) = uid.value.parse().ok().and_then(|uid| users.name(uid)) {
        facts.put(Label::User, &name, source);
    }
}

/// Processes of a step's tasks: v2 has them in `user/task_N`, v1 in `task_N` or the step itself.
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

/// The first PIDs of a `cgroup.procs`.
pub fn pids(file: &Path, max: usize) -> Vec<u32> {
    let mut text = String::new();
    let read =
        File::open(file).and_then(|file| file.take(MAX_PROCS_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => text.lines().take(max).filter_map(|line| line.parse().ok()).collect(),
        // The step has ended.
        Err(_) => Vec::new(),
    }
}
