//! Runs a real Slurm: one slurmctld and one or two slurmd of the system's packages, with
//! configuration, state and spool below a temporary folder, ports and node names of their own, and
//! no munge or database. Any number can stand side by side, and beside a cluster's own slurmd. All of
//! them grant the same GPUs; who looks at what is granted asks to be [`Setup::alone`].
//!
//! Every program of it has mounts of its own ([`enter`]): a `/dev` whose `nvidia0…` have the numbers
//! of the stage's, so that the agent watches for them and Slurm grants and denies them; and users
//! [`ALICE`] and [`BOB`], who exist nowhere else. A job's processes are workers that report to the
//! harness ([`task`]).
//!
//! ```no_run
//! # fn main() -> Result<(), gpuwho_tests::slurm::SlurmError> {
//! use gpuwho_tests::slurm::{JobSpec, Plugin, Setup, Slurm};
//! let slurm = Slurm::start(Setup::of(Plugin::V1))?;
//! let job = slurm.sbatch(&JobSpec { gpus: 2, ..JobSpec::default() })?;
//! let tasks = slurm.wait_started(&job, 1)?;
//! assert_eq!(tasks[0].held(), [0, 1]);
//! let ended = tasks; // A job whose tasks are dropped ends by itself; else `slurm.scancel(&job)`.
//! drop(ended);
//! slurm.wait_ended(&job)
//! # }
//! ```

mod conf;
mod daemons;
pub mod enter;
pub mod job;
pub mod task;
mod traces;

pub use job::{ALICE, BOB, Component, Job, JobId, JobSpec, User};
pub use task::Task;

use crate::program;
use crate::skip::Lack;
use crate::stage::record::Record;
use crate::stage::{Hierarchies, Reach, StageError, available, end_processes, random_hex};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use tempfile::TempDir;

/// GPUs of each node. Two nodes share them, as they share the host.
pub const GPUS_PER_NODE: u32 = 4;

/// A port that somebody took between its choice and its use is worth another try.
const TRIES: usize = 3;

/// Why Slurm did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// This machine cannot have one.
    #[error("{0}")]
    Unavailable(&'static str),
    /// Its place on the host could not be made.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A program of ours is missing.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// A file or process operation.
    #[error("{what}: {source}")]
    Os {
        /// On what.
        what: String,
        /// What happened.
        source: io::Error,
    },
    /// A client was refused.
    #[error("{command}: {said}")]
    Refused {
        /// What was asked.
        command: String,
        /// The answer.
        said: String,
    },
    /// It did not come.
    #[error("waited for {what}; {last}")]
    NotSeen {
        /// For what.
        what: String,
        /// What there was instead, and what the daemons logged.
        last: String,
    },
}

impl Lack for SlurmError {
    fn lack(&self) -> Option<String> {
        matches!(self, Self::Unavailable(_)).then(|| self.to_string())
    }
}

impl SlurmError {
    pub(crate) fn os(what: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let what = what.as_ref().display().to_string();
        move |source| Self::Os { what, source }
    }
}

/// Which of Slurm's plugins makes the cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// `cgroup/v1`, where the host has those hierarchies.
    V1,
    /// `cgroup/v2`, on hybrid hosts too.
    V2,
}

/// The GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// Four of NVIDIA's.
    Nvidia,
    /// Two of AMD's.
    Amd,
}

/// What varies between clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Who makes the cgroups.
    pub plugin: Plugin,
    /// One or two.
    pub nodes: u32,
    /// Whether a job may open only the GPUs it was granted (`ConstrainDevices`).
    pub constrain: bool,
    /// Whether the prolog and epilog of `deploy/slurm` run.
    pub hooks: bool,
    /// Whose its GPUs are.
    pub gpus: Gpus,
    /// Whether there is no other cluster of [`Plugin::V2`] on the host meanwhile. Waits for that.
    pub alone: bool,
}

impl Setup {
    /// What a site does that cares, on one node.
    pub fn of(plugin: Plugin) -> Self {
        Self { plugin, nodes: 1, constrain: true, hooks: true, gpus: Gpus::Nvidia, alone: false }
    }
}

/// A node of the cluster, which is a slurmd on this host.
#[derive(Debug)]
struct Node {
    name: String,
    port: u16,
    slurmd: Option<Child>,
}

/// A running Slurm; all of it is gone when dropped.
///
/// Its daemons end with the thread that started it too: keep it on the test's own thread.
#[derive(Debug)]
pub struct Slurm {
    setup: Setup,
    port: u16,
    nodes: Vec<Node>,
    controller: Option<Child>,
    record: Record,
    cgroups: Vec<PathBuf>,
    listener: UnixListener,
    arrived: Mutex<Vec<Task>>,
    next_tag: AtomicU32,
    folder: TempDir,
    /// Keeps others out, or those who want to be alone.
    turn: Option<File>,
}

impl Slurm {
    /// Starts a cluster and waits until its nodes are idle, having swept what killed tests left.
    /// [`SlurmError::Unavailable`] says what this machine lacks.
    pub fn start(setup: Setup) -> Result<Self, SlurmError> {
        let hierarchies = possible(setup.plugin)?;
        let turn = turn(setup)?;
        Self::sweep()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let mut slurm = Self::prepare(setup, &hierarchies)?;
            match slurm.launch() {
                Err(SlurmError::NotSeen { last, .. })
                    if last.contains("in use") && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    slurm.turn = turn;
                    return Ok(slurm);
                }
            }
        }
    }

    /// Ends and removes what clusters left whose test was killed; gives the number of such.
    pub fn sweep() -> Result<usize, SlurmError> {
        let swept = traces::sweep()?;
        crate::stage::Stage::sweep()?;
        Ok(swept)
    }

    /// The plugin that makes its cgroups.
    pub fn plugin(&self) -> Plugin {
        self.setup.plugin
    }

    /// The nodes' names, as they are in the cgroups' paths and in the jobs' environment.
    pub fn node_names(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    /// A folder that goes with the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the prolog's files land, one a job.
    pub fn prolog_dir(&self) -> PathBuf {
        self.folder().join("jobs")
    }

    /// A job's file of the prolog, if it is there.
    pub fn drop_file(&self, job: JobId) -> Option<String> {
        fs::read_to_string(self.prolog_dir().join(job.to_string())).ok()
    }

    /// The host's users, and Alice and Bob.
    pub fn passwd(&self) -> PathBuf {
        self.folder().join("passwd")
    }

    /// The top cgroup directories of a node, in every hierarchy Slurm may make them in.
    pub fn cgroups(&self) -> &[PathBuf] {
        &self.cgroups
    }

    /// Stops slurmctld in its tracks: whoever asks it waits.
    pub fn pause_controller(&self) -> Result<(), SlurmError> {
        self.signal_controller(Signal::STOP)
    }

    /// Lets it go on.
    pub fn resume_controller(&self) -> Result<(), SlurmError> {
        self.signal_controller(Signal::CONT)
    }

    /// Ends every slurmd as an upgrade would, starts it again and waits until it is registered.
    /// Jobs live on.
    pub fn restart_slurmd(&mut self) -> Result<(), SlurmError> {
        self.nodes.iter_mut().filter_map(|node| node.slurmd.take()).for_each(|mut slurmd| {
            // One that has ended already is what was wanted.
            let _ended = kill_process(Pid::from_child(&slurmd), Signal::TERM);
            let _reaped = slurmd.wait();
        });
        self.start_nodes()
    }

    fn signal_controller(&self, signal: Signal) -> Result<(), SlurmError> {
        let controller = self.controller.as_ref();
        let sent = controller.map(|child| kill_process(Pid::from_child(child), signal));
        sent.unwrap_or(Ok(())).map_err(|errno| SlurmError::os("slurmctld")(errno.into()))
    }

    /// Everything but the processes.
    fn prepare(setup: Setup, hierarchies: &Hierarchies) -> Result<Self, SlurmError> {
        let folder = tempfile::Builder::new().prefix(traces::PREFIX).tempdir();
        let folder = folder.map_err(SlurmError::os(std::env::temp_dir()))?;
        let world = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), world).map_err(SlurmError::os(folder.path()))?;
        traces::own(folder.path())?;
        let socket = folder.path().join("tasks");
        let listener = UnixListener::bind(&socket).map_err(SlurmError::os(&socket))?;
        let anybody = fs::Permissions::from_mode(0o666);
        fs::set_permissions(&socket, anybody).map_err(SlurmError::os(&socket))?;
        listener.set_nonblocking(true).map_err(SlurmError::os(&socket))?;
        let (name, mut ports) = (random_hex(6)?, conf::free_ports(setup.nodes + 1)?.into_iter());
        let port = ports.next().unwrap_or_default();
        let node =
            |(number, port)| Node { name: format!("gpu{name}n{number}"), port, slurmd: None };
        let mut slurm = Self {
            setup,
            port,
            nodes: (0..setup.nodes).zip(ports).map(node).collect(),
            controller: None,
            record: Record::new()?,
            cgroups: Vec::new(),
            listener,
            arrived: Mutex::default(),
            next_tag: AtomicU32::new(1),
            folder,
            turn: None,
        };
        conf::write(&slurm)?;
        slurm.reserve_cgroups(hierarchies)?;
        Ok(slurm)
    }

    /// Writes down what Slurm is about to make, so that it is removed whatever happens.
    fn reserve_cgroups(&mut self, hierarchies: &Hierarchies) -> Result<(), SlurmError> {
        let reach = if self.setup.plugin == Plugin::V1 { Reach::V1 } else { Reach::V2 };
        let top = |name: &str| match self.setup.plugin {
            Plugin::V1 => format!("slurm_{name}"),
            Plugin::V2 => format!("system.slice/{name}_slurmstepd.scope"),
        };
        let names: Vec<_> = self.nodes.iter().map(|node| top(&node.name)).collect();
        let points: Vec<_> = hierarchies.within(reach).collect();
        let all = points.iter().flat_map(|point| names.iter().map(|name| point.join(name)));
        self.cgroups = all.collect();
        self.record.make(&self.cgroups, || Ok(()))?;
        Ok(())
    }

    fn not_seen(&self, what: &str, last: &str) -> SlurmError {
        let last = format!("{last}\n{}", traces::logs(&self.folder().join("log")));
        SlurmError::NotSeen { what: what.to_owned(), last }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let daemons = self.nodes.iter_mut().map(|node| node.slurmd.take());
        for mut child in daemons.chain([self.controller.take()]).flatten() {
            // One that has ended already is what was wanted.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        self.cgroups.iter().for_each(|directory| end_processes(directory));
        // A slurmstepd outlives its job for a while, in no cgroup of ours.
        traces::end_strays(self.folder.path());
        if let Err(error) = self.record.remove() {
            // The record stays, so that the next sweep finds what is left.
            eprintln!("slurm: {error}");
        }
    }
}

/// Waits until there may be a cluster of this setup: any number of those that grant devices, or one
/// alone. The lock is on a program of Slurm's, the same for all tests on the host, and goes with the
/// process.
fn turn(setup: Setup) -> Result<Option<File>, SlurmError> {
    let Some(program) = conf::installed("slurmctld").filter(|_| setup.plugin == Plugin::V2) else {
        return Ok(None);
    };
    let lock = || {
        let file = File::open(&program)?;
        let whose =
            if setup.alone { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        flock(&file, whose)?;
        Ok(file)
    };
    lock().map(Some).map_err(SlurmError::os(&program))
}

/// The hierarchies, if the machine has what it takes.
fn possible(plugin: Plugin) -> Result<Hierarchies, SlurmError> {
    let hierarchies = available().map_err(|error| match error {
        StageError::Unavailable(what) => SlurmError::Unavailable(what),
        other => other.into(),
    })?;
    let programs = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo"];
    if !programs.iter().all(|name| conf::installed(name).is_some()) {
        return Err(SlurmError::Unavailable(conf::PACKAGES));
    }
    let has = |name: &str| hierarchies.v1.iter().any(|point| point.ends_with(name));
    match plugin {
        Plugin::V1 if !(has("freezer") && has("devices")) => {
            Err(SlurmError::Unavailable("the freezer and devices hierarchies of cgroup v1"))
        }
        Plugin::V2 if hierarchies.v2.is_none() => {
            Err(SlurmError::Unavailable("the unified cgroup hierarchy"))
        }
        Plugin::V2 if !hierarchies.v1.is_empty() && conf::installed("cc").is_none() => {
            Err(SlurmError::Unavailable("a C compiler (cargo xtask setup build)"))
        }
        _ => Ok(hierarchies),
    }
}
