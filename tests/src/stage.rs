//! Makes real cgroups shaped like the work of Kubernetes, Slurm and systemd, below whatever is
//! there already, and removes all of it again: on drop, after a panic too, and by [`Stage::sweep`]
//! what a killed process left. Works on hosts with cgroup v1, v2 or both.
//!
//! Names are random, so any number of stages can stand side by side.

mod hierarchies;
pub(crate) mod record;

pub use hierarchies::{Hierarchies, Layout, Reach};

use crate::until::until;
use cgroups_rs::cgroup::Cgroup;
use cgroups_rs::hierarchies::V1;
use record::Record;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Capabilities a stage needs: CAP_SYS_ADMIN (private mounts) and CAP_MKNOD (device nodes).
const NEEDED_CAPABILITIES: u64 = 1 << 21 | 1 << 27;

/// A killed process leaves its cgroup within milliseconds; this is for a machine under load.
const GROUP_EMPTIES_WITHIN: Duration = Duration::from_secs(5);

/// Why a stage could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The machine or the user cannot have one.
    #[error("{0}")]
    Unavailable(&'static str),
    /// A file operation.
    #[error("{path}: {source}")]
    File {
        /// On what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The cgroup library.
    #[error("cgroup {path}: {source}")]
    Cgroup {
        /// On what.
        path: String,
        /// What happened.
        source: cgroups_rs::error::Error,
    },
}

impl StageError {
    fn at(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

/// How the kubelet and the runtime lay out a pod's cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `/kubepods/burstable/pod<uid>/<container>`.
    Cgroupfs,
    /// `/kubepods.slice/….slice/cri-containerd-<container>.scope`.
    Systemd,
}

/// A pod's quality-of-service class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Requests equal limits.
    Guaranteed,
    /// Some requests.
    Burstable,
    /// None.
    BestEffort,
}

/// A pod to stage.
#[derive(Clone, Copy, Debug)]
pub struct PodSpec<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Its only container.
    pub container: &'a str,
    /// Quality-of-service class.
    pub qos: Qos,
    /// Shape of the path.
    pub driver: Driver,
}

/// What the agent should say about a process in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
    /// The pod's UID.
    pub pod_uid: Option<String>,
    /// The container's name.
    pub container: Option<String>,
    /// The container's id.
    pub container_id: Option<String>,
    /// The Slurm job.
    pub slurm_job: Option<String>,
    /// The Slurm step.
    pub slurm_step: Option<String>,
    /// The Slurm task.
    pub slurm_task: Option<String>,
    /// The systemd unit.
    pub unit: Option<String>,
}

/// A cgroup, in as many hierarchies as its owner would make it in.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its path within the hierarchies, starting with `/`.
    pub path: String,
    /// Its directories.
    pub directories: Vec<PathBuf>,
    /// Whose it is.
    pub expected: Expected,
}

/// Everything made on this host for one test or demo.
#[derive(Debug)]
pub struct Stage {
    hierarchies: Hierarchies,
    record: Record,
    folder: TempDir,
    leaves: Vec<PathBuf>,
}

impl Stage {
    /// An empty stage. [`StageError::Unavailable`] says what is missing to have one.
    pub fn new() -> Result<Self, StageError> {
        let hierarchies = available()?;
        let folder = tempfile::Builder::new()
            .prefix("gpuwho-stage-")
            .tempdir()
            .map_err(|source| StageError::at(&std::env::temp_dir(), source))?;
        let stage = Self { hierarchies, record: Record::new()?, folder, leaves: Vec::new() };
        let pods = stage.pod_logs();
        fs::create_dir(&pods).map_err(|source| StageError::at(&pods, source))?;
        Ok(stage)
    }

    /// Removes what stages left whose process was killed; gives the number of such stages.
    pub fn sweep() -> Result<usize, StageError> {
        available()?;
        record::sweep()
    }

    /// The hierarchies it makes groups in.
    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// A folder that goes with the stage.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The stage's own `/var/log/pods`.
    pub fn pod_logs(&self) -> PathBuf {
        self.folder.path().join("pods")
    }

    /// A pod of one container, with its log directory.
    pub fn pod(&mut self, spec: &PodSpec<'_>) -> Result<Group, StageError> {
        self.pod_within(spec, Reach::All)
    }

    fn pod_within(&mut self, spec: &PodSpec<'_>, reach: Reach) -> Result<Group, StageError> {
        let (uid, container_id) = (random_uuid()?, random_hex(64)?);
        let path = pod_path(spec, &uid, &container_id);
        let expected = Expected {
            namespace: Some(spec.namespace.to_owned()),
            pod: Some(spec.name.to_owned()),
            pod_uid: Some(uid.clone()),
            container: Some(spec.container.to_owned()),
            container_id: Some(container_id),
            ..Expected::default()
        };
        // The kubelet makes the log directory before the runtime makes the cgroup.
        let log = format!("{}_{}_{uid}/{}", spec.namespace, spec.name, spec.container);
        let log = self.pod_logs().join(log);
        fs::create_dir_all(&log)
            .and_then(|()| fs::write(log.join("0.log"), ""))
            .map_err(|source| StageError::at(&log, source))?;
        self.group(path, reach, expected)
    }

    /// A container in which nothing runs, with its log directory: in the unified hierarchy alone
    /// where there is one, as hundreds in each of a dozen take seconds.
    pub fn idle_pod(&mut self, spec: &PodSpec<'_>) -> Result<Group, StageError> {
        let reach = if self.hierarchies.v2.is_some() { Reach::V2 } else { Reach::All };
        self.pod_within(spec, reach)
    }

    /// A task of a Slurm step: `/slurm/uid_…` where there is cgroup v1, `slurmstepd.scope` where
    /// there is only v2. Without `job` a random one.
    pub fn slurm_task(
        &mut self,
        uid: u32,
        job: Option<u32>,
        task: u32,
    ) -> Result<Group, StageError> {
        let job = job.map_or_else(random_job, Ok)?;
        let expected = Expected {
            slurm_job: Some(job.to_string()),
            slurm_step: Some("0".to_owned()),
            slurm_task: Some(task.to_string()),
            ..Expected::default()
        };
        if self.hierarchies.v1.is_empty() {
            let path = format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_{task}");
            return self.group(path, Reach::V2, expected);
        }
        self.group(format!("/slurm/uid_{uid}/job_{job}/step_0/task_{task}"), Reach::V1, expected)
    }

    /// A system service: `<name>@<random>.service`, so as not to meet a real one.
    pub fn service(&mut self, name: &str) -> Result<Group, StageError> {
        let unit = format!("{name}@{}.service", random_hex(8)?);
        let expected = Expected { unit: Some(unit.clone()), ..Expected::default() };
        self.group(format!("/system.slice/{unit}"), Reach::All, expected)
    }

    /// A group in which something else makes the groups that processes are in, as a container
    /// runtime does in a pod's.
    pub fn parent(&mut self, path: &str) -> Result<Group, StageError> {
        self.group(path.to_owned(), Reach::All, Expected::default())
    }

    /// Ends every process that is on it or below.
    pub fn end(&self) {
        // All at once, so that they end while the first is waited for.
        for leaf in &self.leaves {
            kill_processes(leaf);
        }
        self.leaves.iter().for_each(|leaf| end_processes(leaf));
    }

    /// Ends the processes of a group and removes its own directories.
    pub fn remove(&mut self, group: &Group) -> Result<(), StageError> {
        for directory in &group.directories {
            end_processes(directory);
            fs::remove_dir(directory).map_err(|source| StageError::at(directory, source))?;
        }
        self.leaves.retain(|leaf| !group.directories.contains(leaf));
        Ok(())
    }

    fn group(
        &mut self,
        path: String,
        reach: Reach,
        expected: Expected,
    ) -> Result<Group, StageError> {
        let relative = path.trim_start_matches('/');
        let directories: Vec<_> =
            self.hierarchies.within(reach).map(|point| point.join(relative)).collect();
        let v1 = reach != Reach::V2 && !self.hierarchies.v1.is_empty();
        self.record.make(&directories, || {
            if v1 {
                // The library also gives a cpuset its CPUs and memory nodes, without which no
                // process can join it.
                Cgroup::new(Box::new(V1::new()), relative)
                    .map_err(|source| StageError::Cgroup { path: path.clone(), source })?;
            }
            directories.iter().try_for_each(|directory| {
                fs::create_dir_all(directory).map_err(|source| StageError::at(directory, source))
            })
        })?;
        self.leaves.extend(directories.iter().cloned());
        Ok(Group { path, directories, expected })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
        if let Err(error) = self.record.remove() {
            // The record stays, so that the next sweep finds what is left.
            eprintln!("stage: {error}");
        }
    }
}

/// Kills what is in a cgroup directory of ours, and below it, and waits until it is empty.
pub(crate) fn end_processes(directory: &Path) {
    until(GROUP_EMPTIES_WITHIN, || (!kill_processes(directory)).then_some(()));
}

/// Kills what is in a cgroup directory of ours and below it; whether there was anything.
fn kill_processes(directory: &Path) -> bool {
    let groups = directories_of(directory);
    let procs = groups.iter().map(|group| fs::read_to_string(group.join("cgroup.procs")));
    let pids: String = procs.map(Result::unwrap_or_default).collect();
    for pid in pids.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // One that ended by itself in between is what was wanted.
        let _ended = kill_process(pid, Signal::KILL);
    }
    !pids.is_empty()
}

/// A directory and all below it, parents first.
pub(crate) fn directories_of(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.extend(directories_of(&entry.path()));
        }
    }
    all
}

/// The hierarchies, where a stage can be had.
pub(crate) fn available() -> Result<Hierarchies, StageError> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if !rustix::process::geteuid().is_root()
        || capabilities.unwrap_or(0) & NEEDED_CAPABILITIES != NEEDED_CAPABILITIES
    {
        return Err(StageError::Unavailable("root (try sudo), with CAP_SYS_ADMIN and CAP_MKNOD"));
    }
    let hierarchies =
        Hierarchies::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let writable = |point: &Path| {
        rustix::fs::access(point, rustix::fs::Access::WRITE_OK).is_ok()
            && rustix::fs::statvfs(point)
                .is_ok_and(|stat| !stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    };
    if hierarchies.layout().is_none() || !hierarchies.within(Reach::All).all(writable) {
        return Err(StageError::Unavailable("writable cgroup hierarchies"));
    }
    Ok(hierarchies)
}

fn pod_path(spec: &PodSpec<'_>, uid: &str, container: &str) -> String {
    let pod = pod_group(spec.qos, spec.driver, uid);
    match spec.driver {
        Driver::Cgroupfs => format!("{pod}/{container}"),
        Driver::Systemd => format!("{pod}/cri-containerd-{container}.scope"),
    }
}

/// The group that a kubelet makes for a pod.
pub(crate) fn pod_group(qos: Qos, driver: Driver, uid: &str) -> String {
    let class = match qos {
        Qos::Guaranteed => None,
        Qos::Burstable => Some("burstable"),
        Qos::BestEffort => Some("besteffort"),
    };
    match driver {
        Driver::Cgroupfs => {
            let class = class.map(|class| format!("/{class}")).unwrap_or_default();
            format!("/kubepods{class}/pod{uid}")
        }
        Driver::Systemd => {
            let uid = uid.replace('-', "_");
            let dashed = class.map(|class| format!("-{class}")).unwrap_or_default();
            let above = class.map(|class| format!("/kubepods-{class}.slice")).unwrap_or_default();
            format!("/kubepods.slice{above}/kubepods{dashed}-pod{uid}.slice")
        }
    }
}

pub(crate) fn random_uuid() -> Result<String, StageError> {
    let source = Path::new("/proc/sys/kernel/random/uuid");
    let uuid = fs::read_to_string(source).map_err(|error| StageError::at(source, error))?;
    Ok(uuid.trim().to_owned())
}

pub(crate) fn random_hex(digits: usize) -> Result<String, StageError> {
    let nibbles = random_bytes(digits)?.into_iter().map(|byte| u32::from(byte & 15));
    Ok(nibbles.filter_map(|nibble| char::from_digit(nibble, 16)).collect())
}

/// Above what test clusters reach, so as not to look like a real one.
fn random_job() -> Result<u32, StageError> {
    let bytes = random_bytes(3)?;
    Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) + 50_000_000)
}

pub(crate) fn random_bytes(count: usize) -> Result<Vec<u8>, StageError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = vec![0; count];
    fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| StageError::at(source, error))?;
    Ok(bytes)
}
