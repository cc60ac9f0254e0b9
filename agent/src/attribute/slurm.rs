//! Slurm, from what the node itself knows: whose a process is from its cgroup, and the job's names
//! from slurmstepd's title, its device program, drop files and the environment, in that order
//! (`docs/decisions/0005-slurm-without-asking-slurm.md`). No Slurm command and no Slurm daemon is
//! ever asked.
//!
//! A job is looked into when it is first seen and a few times after that while something is
//! missing; the process that is asked about costs one read of its environment. The tick costs
//! nothing while no job comes or goes.

mod belief;
mod claims;
mod devices;
mod dropfiles;
mod facts;
mod jobs;
mod outside;
mod sluid;
mod stepd;
mod study;

pub use belief::Rank;
pub use devices::{DeviceNumber, Granted, Untold};
pub use facts::{Fact, Facts, Label, Source};
pub use jobs::Job;
pub use sluid::Sluid;

use super::cgroup::slurm::job_directory;
use super::hierarchies::Hierarchies;
use super::process::Living;
use super::users::Users;
use super::{Host, KernelCgroups, Method, Owner};
use crate::catalog::attributes::{self as attr, AttrSet};
use crate::host::boot_time_ns;
use crate::ids::{CgroupId, Hierarchy, SlurmJobId};
use crate::paths::Paths;
use claims::Claims;
use dropfiles::DropFiles;
use jobs::Jobs;
use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use study::{Study, Witness};

/// A Slurm step or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmTask {
    /// The job as the cgroup names it.
    pub job: SlurmJobId,
    /// `0`, `batch`, `extern`, `interactive`, ….
    pub step: Option<Arc<str>>,
    /// Task on this node.
    pub task: Option<Arc<str>>,
    /// The step's own slurmstepd, which is not the user's work.
    pub daemon: bool,
    /// Slurm runs in the pod that is the owner: the name is the pod's word, not the host's.
    pub in_pod: bool,
    /// What else is known of the job.
    pub facts: Option<Arc<Facts>>,
    /// What the task's environment says of the task.
    pub rank: Option<Rank>,
}

impl SlurmTask {
    /// A job of which only the cgroup's name is known.
    pub fn new(job: SlurmJobId) -> Self {
        Self { job, step: None, task: None, daemon: false, in_pod: false, facts: None, rank: None }
    }

    /// The id the user knows: the number, where it is known.
    pub fn number(&self) -> Arc<str> {
        let number = self.facts.as_ref().and_then(|facts| facts.value(Label::JobId));
        number.map_or_else(|| Arc::from(self.job.as_str()), Arc::clone)
    }

    /// The small identity that is on every point.
    pub fn describe(&self, set: &mut AttrSet) {
        self.place(set);
        if let Some(facts) = &self.facts {
            facts.describe(set);
        }
    }

    /// Everything that is known, for an info series.
    pub fn describe_all(&self, set: &mut AttrSet) {
        self.place(set);
        if let Some(facts) = &self.facts {
            facts.describe_all(set);
        }
        if let Some(rank) = &self.rank {
            set.set_some(&attr::SLURM_TASK_RANK, rank.rank.map(i64::from));
            set.set_some(&attr::SLURM_TASK_LOCAL_RANK, rank.local_rank.map(i64::from));
            set.set_some(&attr::SLURM_STEP_GPUS, rank.gpus.clone());
        }
    }

    fn place(&self, set: &mut AttrSet) {
        set.set(&attr::SLURM_JOB_ID, self.number());
        set.set_some(&attr::SLURM_STEP_ID, self.step.clone());
        set.set_some(&attr::SLURM_TASK_ID, self.task.clone());
    }
}

impl Job {
    /// Everything that is known of the job, for an info series.
    pub fn describe_all(&self, set: &mut AttrSet) {
        set.set(&attr::SLURM_JOB_ID, self.name.as_str());
        self.facts.describe_all(set);
    }
}

/// What may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Our Prolog's drop files, one a job.
    pub jobs: PathBuf,
    /// dcgm-exporter's job mapping directory, where the site has one.
    pub gpu_map: Option<PathBuf>,
    /// jobstats' mapping directory.
    pub gpustat: PathBuf,
    /// Whether environments are read at all.
    pub environment: bool,
    /// Namespaces whose pods run slurmd: their processes get the labels of the jobs inside.
    pub pod_namespaces: Vec<String>,
}

impl Settings {
    /// The usual places on the host of `paths`.
    pub fn usual(paths: &Paths) -> Self {
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

/// All that is known of Slurm on this node.
#[derive(Debug)]
pub(crate) struct Slurm {
    paths: Paths,
    settings: Settings,
    dropped: DropFiles,
    jobs: Mutex<Jobs>,
    /// Directories that hold jobs: `…/slurmstepd.scope`, `/slurm`.
    roots: Mutex<BTreeSet<String>>,
    /// The latest moment that anybody has told.
    now_ns: AtomicU64,
    looked_ns: AtomicU64,
}

/// How often the directories that hold jobs are listed, for what was not announced.
const LOOK_NS: u64 = 30_000_000_000;
/// Directories one walk looks at.
const MAX_WALK: usize = 4096;
/// `/a.slice/a-b.slice/NODE_slurmstepd.scope/job_1`, and one more.
const START_DEPTH: usize = 5;
/// From a root to its jobs: `uid_N/job_N`.
const ROOT_DEPTH: usize = 2;
/// Roots kept: one for each slurmd.
const MAX_ROOTS: usize = 64;

impl Slurm {
    pub(crate) fn new(paths: &Paths, settings: Settings, hierarchies: &Hierarchies) -> Self {
        let slurm = Self {
            paths: paths.clone(),
            dropped: DropFiles::new(&settings),
            settings,
            jobs: Mutex::default(),
            roots: Mutex::default(),
            now_ns: AtomicU64::new(boot_time_ns()),
            looked_ns: AtomicU64::new(0),
        };
        slurm.walk(hierarchies, "", START_DEPTH);
        slurm
    }

    /// A cgroup was made: perhaps a job's, or a step's of a job of which more can be learnt now.
    pub(crate) fn made(&self, id: CgroupId, path: &str, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let Some((job, workload)) = job_directory(path) else { return };
        let Some(task) = workload.slurm else { return };
        self.note_root(job);
        let mut jobs = lock(&self.jobs);
        if job == path {
            jobs.appeared(job, &task.job, &[id], now_ns);
        } else {
            jobs.touched(job, now_ns);
        }
    }

    /// A cgroup was removed.
    pub(crate) fn removed(&self, id: CgroupId, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        lock(&self.jobs).removed(id, now_ns);
    }

    /// Every job on this node, those that ended within the last minutes included.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        lock(&self.jobs).all()
    }

    /// Once a tick, off the sampling path: looks into new jobs, forgets old ones. Gives the jobs
    /// of which more is known than at the last call.
    pub(crate) fn expire(
        &self,
        hierarchies: &Hierarchies,
        users: &Users,
        now_ns: u64,
    ) -> Vec<Arc<Job>> {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(looked_ns) >= LOOK_NS {
            self.looked_ns.store(now_ns, Ordering::Relaxed);
            self.look_around(hierarchies, now_ns);
        }
        let due = lock(&self.jobs).due(now_ns);
        for path in due {
            self.look_into(hierarchies, users, &path, None);
        }
        let mut jobs = lock(&self.jobs);
        jobs.expire(now_ns);
        jobs.take_changed()
    }

    /// What was not announced: jobs that came and jobs that went.
    fn look_around(&self, hierarchies: &Hierarchies, now_ns: u64) {
        let roots: Vec<String> = lock(&self.roots).iter().cloned().collect();
        for root in roots {
            self.walk(hierarchies, &root, ROOT_DEPTH);
        }
        let live = lock(&self.jobs).live();
        for path in live {
            if directories(hierarchies, &path).is_empty() {
                lock(&self.jobs).missing(&path, now_ns);
            }
        }
    }

    /// Finds the jobs below a path of every hierarchy.
    fn walk(&self, hierarchies: &Hierarchies, from: &str, depth: usize) {
        for (_, mount) in hierarchies.mounts() {
            let mut queue = VecDeque::from([(from.to_owned(), 0)]);
            let mut seen = 0;
            while let Some((path, level)) = queue.pop_front() {
                let below = mount.join(path.trim_start_matches('/'));
                for entry in std::fs::read_dir(below).into_iter().flatten().flatten() {
                    let name = entry.file_name();
                    let Some(name) = name.to_str().filter(|name| !name.contains("kubepods")) else {
                        continue;
                    };
                    seen += 1;
                    if seen > MAX_WALK || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        continue;
                    }
                    let path = format!("{path}/{name}");
                    if let Some((_, workload)) = job_directory(&path) {
                        let job = workload.slurm.map(|task| task.job);
                        job.into_iter().for_each(|job| self.found(hierarchies, &path, &job));
                    } else if level + 1 < depth {
                        queue.push_back((path, level + 1));
                    }
                }
            }
        }
    }

    /// A job's directory is there.
    fn found(&self, hierarchies: &Hierarchies, path: &str, name: &SlurmJobId) {
        self.note_root(path);
        let inode = |(hierarchy, directory): (Hierarchy, PathBuf)| {
            let id = std::fs::metadata(directory).ok()?.ino();
            Some(CgroupId { hierarchy, id })
        };
        let places = directories(hierarchies, path);
        let ids: Vec<CgroupId> = places.into_iter().filter_map(inode).collect();
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        lock(&self.jobs).appeared(path, name, &ids, now_ns);
    }

    /// The directory above a job's, on v1 the one above the user's.
    fn note_root(&self, job: &str) {
        let above = |path: &str| path.rsplit_once('/').map(|(above, _)| above.to_owned());
        let Some(parent) = above(job) else { return };
        let is_user = parent.rsplit('/').next().is_some_and(|name| name.starts_with("uid_"));
        let root = if is_user { above(&parent).unwrap_or(parent) } else { parent };
        let mut roots = lock(&self.roots);
        if roots.len() < MAX_ROOTS && !roots.contains(&root) {
            roots.insert(root);
        }
    }

    /// Reads all there is of a job, and keeps it.
    fn look_into(
        &self,
        hierarchies: &Hierarchies,
        users: &Users,
        path: &str,
        witness: Option<&Witness<'_>>,
    ) {
        let before = lock(&self.jobs).get(path).map(|job| Arc::clone(&job.facts));
        let Some(before) = before else { return };
        let directories = directories(hierarchies, path);
        let study = Study { slurm: self, users, path, directories };
        let (facts, granted) = (study.facts(&before, witness), study.granted());
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        lock(&self.jobs).learnt(path, &facts, granted, now_ns);
    }

    /// A process's own words; nothing where environments are not to be read.
    fn environment(&self, living: &Living) -> Option<Claims> {
        if !self.settings.environment {
            return None;
        }
        // A process that has ended meanwhile says nothing.
        Claims::read(living.open("environ")?, 0).ok()
    }
}

/// Where a job's cgroup is in each hierarchy that has it.
fn directories(hierarchies: &Hierarchies, path: &str) -> Vec<(Hierarchy, PathBuf)> {
    let below = |(hierarchy, mount): (Hierarchy, PathBuf)| {
        (hierarchy, mount.join(path.trim_start_matches('/')))
    };
    hierarchies.mounts().into_iter().map(below).filter(|(_, place)| place.is_dir()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source after those of the cgroup: the job's names, and for a process that no cgroup gives
/// to anybody the job that its parents or its environment name.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut Owner) {
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

fn label(host: &Host, owner: &mut Owner) {
    let slurm = &host.slurm;
    let Some(task) = &mut owner.workload.slurm else { return };
    let Some((path, _)) = owner.cgroup.as_deref().and_then(job_directory) else { return };
    if lock(&slurm.jobs).get(path).is_none_or(|job| job.removed_ns.is_some()) {
        slurm.found(&host.hierarchies, path, &task.job);
    }
    let living = match owner.method {
        Method::Proc => Living::same(&host.paths, owner.process),
        _ => None,
    };
    let claims = living.as_ref().and_then(|living| slurm.environment(living));
    let witness = Witness { claims: claims.as_ref(), uid: owner.uid };
    slurm.hear(host, path, &witness);
    let Some(job) = lock(&slurm.jobs).get(path).map(Arc::clone) else { return };
    let known = belief::Known { name: &task.job, facts: &job.facts };
    let believed =
        claims.as_ref().filter(|claims| belief::labels(claims, known, owner.uid).is_some());
    task.rank = believed
        .and_then(|claims| belief::rank(claims, task.step.as_deref(), task.task.as_deref()));
    task.facts = (!job.facts.is_empty()).then(|| Arc::clone(&job.facts));
}

impl Slurm {
    /// What a process of a job adds to what is known of it: all is read of a job that is due, else
    /// only the process is heard while something is missing.
    fn hear(&self, host: &Host, path: &str, witness: &Witness<'_>) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let (is_due, facts) = {
            let jobs = lock(&self.jobs);
            (jobs.is_due(path, now_ns), jobs.get(path).map(|job| Arc::clone(&job.facts)))
        };
        let Some(facts) = facts else { return };
        if is_due {
            return self.look_into(&host.hierarchies, &host.users, path, Some(witness));
        }
        if !study::is_labelled(&facts) {
            let study = Study { slurm: self, users: &host.users, path, directories: Vec::new() };
            let heard = study.heard(&facts, witness);
            lock(&self.jobs).heard(path, &heard);
        }
    }
}

#[cfg(test)]
#[path = "slurm/tests.rs"]
mod tests;
