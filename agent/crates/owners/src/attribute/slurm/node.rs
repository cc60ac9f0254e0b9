//! Slurm on this node: its jobs, from the kernel's announcements and from listings.
//!
//! One walk over the upper levels of the cgroup trees at the start; after that one listing of the
//! directories with jobs every [`LIST_NS`], on hosts with such directories.

use super::Settings;
use super::claims::SlurmEnv;
use super::dropfiles::DropFiles;
use super::inspect::{self, JobInspector, ProcessEvidence};
use super::jobs::{Job, Jobs};
use crate::attribute::Host;
use crate::attribute::cgroup::slurm::job_directory;
use crate::attribute::hierarchies::Hierarchies;
use crate::attribute::users::Users;
use crate::host::boot_time_ns;
use crate::process::Living;
use crate::tenant_files::{ProcFile, TenantFiles};
use gpuwho_model::ids::{CgroupId, Hierarchy, SlurmJobId};
use gpuwho_model::paths::Paths;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The state of Slurm on this node.
#[derive(Debug)]
pub(crate) struct Slurm {
    pub(super) paths: Paths,
    pub(super) settings: Settings,
    pub(super) dropped: DropFiles,
    pub(super) jobs: Mutex<Jobs>,
    /// Directories with jobs: `…/slurmstepd.scope`, `/slurm`.
    roots: Mutex<BTreeSet<String>>,
    /// The latest time given by a caller.
    now_ns: AtomicU64,
    listed_ns: AtomicU64,
    /// Reads environments and titles.
    files: TenantFiles,
}

/// How long a resolution of an owner waits for a file. A job's names may come later, from another
/// of its processes.
const TIMEOUT: Duration = Duration::from_millis(200);
/// How often the directories with jobs are listed, for lost announcements.
const LIST_NS: u64 = 30_000_000_000;
/// Maximum number of directories visited by one walk.
const MAX_WALK: usize = 4096;
/// Depth of the first walk: `/a.slice/a-b.slice/NODE_slurmstepd.scope/job_1`, and one more.
const START_DEPTH: usize = 5;
/// Depth from a root to its jobs: `uid_N/job_N`.
const ROOT_DEPTH: usize = 2;
/// Maximum number of roots: one for each slurmd.
const MAX_ROOTS: usize = 64;

impl Slurm {
    pub(crate) fn new(files: &TenantFiles, settings: Settings, hierarchies: &Hierarchies) -> Self {
        let slurm = Self {
            paths: files.paths().clone(),
            dropped: DropFiles::new(&settings),
            settings,
            jobs: Mutex::default(),
            roots: Mutex::default(),
            now_ns: AtomicU64::new(boot_time_ns()),
            listed_ns: AtomicU64::new(0),
            files: files.within(TIMEOUT),
        };
        slurm.walk(hierarchies, "", START_DEPTH);
        slurm
    }

    /// Records a new cgroup: perhaps a job's, or a step's of a job with missing facts.
    pub(crate) fn made(&self, id: CgroupId, path: &str, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let Some((job, workload)) = job_directory(path) else { return };
        let Some(task) = workload.slurm else { return };
        self.note_root(job);
        let mut jobs = self.jobs.lock();
        if job == path {
            jobs.appeared(job, &task.job, &[id], now_ns);
        } else {
            jobs.touched(job, now_ns);
        }
    }

    /// Records a removed cgroup.
    pub(crate) fn removed(&self, id: CgroupId, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.jobs.lock().removed(id, now_ns);
    }

    /// All jobs on this node, including those that ended within the last minutes.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.lock().all()
    }

    /// Once a tick, off the sampling path: inspects new jobs and removes old ones. Returns the jobs
    /// with new facts since the last call.
    pub(crate) fn expire(
        &self,
        hierarchies: &Hierarchies,
        users: &Users,
        now_ns: u64,
    ) -> Vec<Arc<Job>> {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let listed_ns = self.listed_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(listed_ns) >= LIST_NS {
            self.listed_ns.store(now_ns, Ordering::Relaxed);
            self.list(hierarchies, now_ns);
        }
        let due = self.jobs.lock().due(now_ns);
        for path in due {
            self.inspect(hierarchies, users, &path, None);
        }
        let mut jobs = self.jobs.lock();
        jobs.expire(now_ns);
        jobs.take_changed()
    }

    /// Finds unannounced starts and ends of jobs.
    fn list(&self, hierarchies: &Hierarchies, now_ns: u64) {
        let roots: Vec<String> = self.roots.lock().iter().cloned().collect();
        let there: HashSet<String> =
            roots.iter().flat_map(|root| self.walk(hierarchies, root, ROOT_DEPTH)).collect();
        let live = self.jobs.lock().live();
        for path in live.into_iter().filter(|path| !there.contains(&**path)) {
            if directories(hierarchies, &path).next().is_none() {
                self.jobs.lock().missing(&path, now_ns);
            }
        }
    }

    /// Finds the jobs below a path of every hierarchy; returns the paths of all.
    fn walk(&self, hierarchies: &Hierarchies, from: &str, depth: usize) -> HashSet<String> {
        // A job is in several hierarchies.
        let mut known = HashSet::new();
        for (hierarchy, mount) in hierarchies.mounts() {
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
                        // Of a cgroup that is known already nothing more is read.
                        let id = CgroupId { hierarchy, id: entry.ino() };
                        if let Some(task) = workload.slurm
                            && known.insert(path.clone())
                            && !self.jobs.lock().has(id)
                        {
                            self.found(hierarchies, &path, &task.job);
                        }
                    } else if level + 1 < depth {
                        queue.push_back((path, level + 1));
                    }
                }
            }
        }
        known
    }

    /// Records a job's directory, present or gone.
    pub(super) fn found(&self, hierarchies: &Hierarchies, path: &str, name: &SlurmJobId) {
        self.note_root(path);
        let inode = |(hierarchy, directory): (Hierarchy, PathBuf)| {
            let id = std::fs::metadata(directory).ok()?.ino();
            Some(CgroupId { hierarchy, id })
        };
        let ids: Vec<CgroupId> = directories(hierarchies, path).filter_map(inode).collect();
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let mut jobs = self.jobs.lock();
        jobs.appeared(path, name, &ids, now_ns);
        // Only known from a process that outlived it.
        if ids.is_empty() {
            jobs.missing(path, now_ns);
        }
    }

    /// Stores the directory above a job's; on v1 the one above the user's.
    fn note_root(&self, job: &str) {
        let above = |path: &str| path.rsplit_once('/').map(|(above, _)| above.to_owned());
        let Some(parent) = above(job) else { return };
        let is_user = parent.rsplit('/').next().is_some_and(|name| name.starts_with("uid_"));
        let root = if is_user { above(&parent).unwrap_or(parent) } else { parent };
        let mut roots = self.roots.lock();
        if roots.len() < MAX_ROOTS && !roots.contains(&root) {
            roots.insert(root);
        }
    }

    /// Reads and stores all evidence about a job.
    pub(super) fn inspect(
        &self,
        hierarchies: &Hierarchies,
        users: &Users,
        path: &str,
        source: Option<&ProcessEvidence<'_>>,
    ) {
        let (before, read) = {
            let jobs = self.jobs.lock();
            let Some(job) = jobs.get(path) else { return };
            (Arc::clone(&job.facts), jobs.read(path))
        };
        let directories = directories(hierarchies, path).collect();
        let inspector = JobInspector { slurm: self, users, path, directories, read };
        let ((facts, read), devices) = (inspector.facts(&before, source), inspector.devices());
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let mut jobs = self.jobs.lock();
        jobs.inspected(path, &facts, devices, now_ns);
        jobs.set_read(path, read);
    }

    /// Reads a process's Slurm variables; `None` if environments are not to be read.
    pub(super) fn environment(&self, living: &Living) -> Option<SlurmEnv> {
        if !self.settings.environment {
            return None;
        }
        // Fails for a process that has ended, and for one with its memory on a file system that
        // does not answer.
        let environment = self.files.proc_file(living.key, ProcFile::Environment).ok()?;
        SlurmEnv::read(environment, 0).ok()
    }

    /// Adds a process's evidence to its job: inspects a job that is due, else adds only this
    /// process's facts while some are missing.
    pub(super) fn add_evidence(&self, host: &Host, path: &str, source: &ProcessEvidence<'_>) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let (is_due, facts) = {
            let jobs = self.jobs.lock();
            (jobs.is_due(path, now_ns), jobs.get(path).map(|job| Arc::clone(&job.facts)))
        };
        let Some(facts) = facts else { return };
        if is_due || facts.is_empty() {
            return self.inspect(&host.hierarchies, &host.users, path, Some(source));
        }
        if !inspect::is_labelled(&facts) {
            let (directories, read) = (Vec::new(), Vec::new());
            let inspector =
                JobInspector { slurm: self, users: &host.users, path, directories, read };
            let facts = inspector.with_evidence(&facts, source);
            self.jobs.lock().add_facts(path, &facts);
        }
    }
}

/// A job's cgroup directory in each hierarchy that has it.
fn directories(
    hierarchies: &Hierarchies,
    path: &str,
) -> impl Iterator<Item = (Hierarchy, PathBuf)> {
    let below = |(hierarchy, mount): (Hierarchy, PathBuf)| {
        (hierarchy, mount.join(path.trim_start_matches('/')))
    };
    hierarchies.mounts().into_iter().map(below).filter(|(_, place)| place.is_dir())
}
