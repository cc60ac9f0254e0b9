//! Runs a real containerd with pods made the way a kubelet makes them: real sandboxes and
//! containers in real cgroups, images built on the spot, nothing fetched. It has its own root,
//! state and socket, is in a service's cgroup of its own, and leaves nothing behind: on drop,
//! after a panic too, and by the next start what a killed process left.
//!
//! ```no_run
//! use gpuwho_tests::containerd::{self, ContainerSpec, PodSpec, Run};
//! use gpuwho_tests::worker::script::Script;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut containerd = containerd::available()?.start()?;
//! let pod = containerd.pod(&PodSpec { labels: &[("app", "vllm")], ..PodSpec::default() })?;
//! let run = Run::Worker(Script { gpus: vec![0], ..Script::default() });
//! let container = pod.container(&ContainerSpec { run, gpus: &[0], ..ContainerSpec::default() })?;
//! println!("{} holds GPU 0 for {:?}", container.pid, container.expected);
//! # Ok(())
//! # }
//! ```

mod container;
mod cri;
mod image;
mod leftovers;
mod pod;
mod restricted;
mod settings;

pub use pod::{Container, ContainerSpec, Executed, Inside, Pod, PodSpec, Run, WORKER};
pub use restricted::Restricted;

use crate::program;
use crate::skip::Lack;
use crate::stage::{Stage, StageError, pod_group, random_uuid};
use crate::until::until;
use crate::worker::nodes::host_nodes;
use cri::Cri;
use pod::Means;
use rustix::process::{Pid, Signal, kill_process};
pub(crate) use settings::Programs;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The sandboxes' image.
const PAUSE: &str = "registry.test/pause:3.9";

/// The image of all other containers.
const WORKLOAD: &str = "registry.test/research/trainer:1.4";

/// The one program in both.
const PROGRAM: &str = "busybox";

/// It answers in a quarter of a second; this is for a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Why there is no containerd on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

impl Lack for Unavailable {
    fn lack(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// What went wrong with a containerd.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// A cgroup.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// No worker.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// A file or process operation.
    #[error("{path}: {source}")]
    Os {
        /// On what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// It does not answer.
    #[error("containerd does not answer; its log:\n{log}")]
    Deaf {
        /// What it said.
        log: String,
    },
    /// It does not take the images.
    #[error("ctr images import: {said}")]
    Import {
        /// What its tool said.
        said: String,
    },
    /// It refused a call.
    #[error("{method}: {status}")]
    Call {
        /// Which.
        method: &'static str,
        /// The answer.
        status: Box<tonic::Status>,
    },
    /// A container is not as it should be.
    #[error("waited for {what} of container {container}, got {instead:?}")]
    NotSeen {
        /// For what.
        what: &'static str,
        /// In which.
        container: String,
        /// What there was instead.
        instead: String,
    },
}

impl ContainerdError {
    fn at(path: &Path, source: io::Error) -> Self {
        Self::Os { path: path.to_owned(), source }
    }
}

/// A machine that can run one.
#[derive(Debug)]
pub struct Available {
    programs: Programs,
    stage: Stage,
}

/// Whether this machine can run containerd.
pub fn available() -> Result<Available, Unavailable> {
    Programs::find().and_then(on_this_machine)
}

/// Whether this machine can run a containerd that has the CRI's event stream: 1.7 or newer.
pub fn available_with_events() -> Result<Available, Unavailable> {
    Programs::find_with_events().and_then(on_this_machine)
}

fn on_this_machine(programs: Programs) -> Result<Available, Unavailable> {
    for file in ["/etc/hosts", "/etc/resolv.conf"] {
        if !Path::new(file).is_file() {
            return Err(Unavailable(format!("{file}, which containerd mounts into every pod")));
        }
    }
    let stage = Stage::new();
    let stage = stage.map_err(|error| Unavailable(format!("{error}, for containerd")))?;
    Ok(Available { programs, stage })
}

/// The configuration of one that others start, with all of it in a folder.
pub(crate) fn settings_text(folder: &Path) -> String {
    settings::text(folder, PAUSE)
}

/// An archive with its images: of sandboxes, and of work.
pub(crate) fn node_images(programs: &Programs) -> io::Result<Vec<u8>> {
    let program = fs::read(&programs.busybox)?;
    let images = [
        image::Image { name: PAUSE, command: &["/busybox", "sleep", "2147483647"] },
        image::Image { name: WORKLOAD, command: &["/busybox", "true"] },
    ];
    Ok(image::archive((PROGRAM, &program), &images))
}

/// Removes what was left by containerds whose owner was killed; gives their number.
pub fn sweep() -> Result<usize, ContainerdError> {
    leftovers::sweep()
}

/// A running containerd and everything it was asked for.
#[derive(Debug)]
pub struct Containerd {
    child: Child,
    means: Arc<Means>,
    programs: Programs,
    /// The cgroup of its daemon and shims.
    service: Vec<PathBuf>,
    folder: PathBuf,
    stage: Stage,
}

impl Available {
    /// Whether it has the CRI's event stream.
    pub fn has_events(&self) -> bool {
        self.programs.have_events()
    }

    /// Starts it with its images and waits until it takes pods.
    pub fn start(self) -> Result<Containerd, ContainerdError> {
        sweep()?;
        let Self { programs, mut stage } = self;
        let worker = program::worker()?;
        let service = stage.service("containerd")?.directories;
        let folder = leftovers::folder()?;
        let nodes = host_nodes(&folder).map_err(|source| ContainerdError::at(&folder, source))?;
        let nodes = Path::new(&nodes).parent().unwrap_or(&folder).to_owned();
        let socket = folder.join("containerd.sock");
        let config = settings::text(&folder, PAUSE);
        let file = folder.join("containerd.toml");
        fs::write(&file, config).map_err(|source| ContainerdError::at(&file, source))?;
        let means = Means {
            cri: Cri::at(&socket)?,
            image: (WORKLOAD.to_owned(), String::new()),
            worker,
            nodes,
            logs: stage.pod_logs(),
        };
        let child = spawn(&programs, &folder, &service)?;
        let mut containerd =
            Containerd { child, means: Arc::new(means), programs, service, folder, stage };
        containerd.wait_until_up()?;
        containerd.import()?;
        Ok(containerd)
    }
}

impl Containerd {
    /// The socket that speaks the CRI.
    pub fn socket(&self) -> &Path {
        self.means.cri.socket()
    }

    /// Its own `/var/log/pods`.
    pub fn pod_logs(&self) -> PathBuf {
        self.stage.pod_logs()
    }

    /// A folder that goes with it, for an agent's files say.
    pub fn scratch(&self) -> &Path {
        self.stage.folder()
    }

    /// Groups that no runtime made, beside its pods.
    pub fn stage(&mut self) -> &mut Stage {
        &mut self.stage
    }

    /// What it says its version is.
    pub fn version(&self) -> Result<String, ContainerdError> {
        self.means.cri.version()
    }

    /// The daemon's PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name of the image in which [`Pod::container`] runs things.
    pub fn image(&self) -> &str {
        &self.means.image.0
    }

    /// Runs the sandbox of a pod in the cgroup that a kubelet would make for it.
    pub fn pod(&mut self, spec: &PodSpec<'_>) -> Result<Pod, ContainerdError> {
        let uid = spec.uid.map_or_else(random_uuid, |uid| Ok(uid.to_owned()))?;
        let group = self.stage.parent(&pod_group(spec.qos, spec.driver, &uid))?;
        Pod::run(&self.means, spec, &uid, group)
    }

    /// The ids of all containers that it lists, dead ones too, sandboxes not.
    pub fn containers(&self) -> Result<Vec<String>, ContainerdError> {
        self.means.cri.containers()
    }

    /// Ends the daemon; its pods run on.
    pub fn stop(&mut self) -> Result<(), ContainerdError> {
        self.signal(Signal::TERM)?;
        let ended = until(STARTS_WITHIN, || self.child.try_wait().ok().flatten());
        ended.map(drop).ok_or_else(|| ContainerdError::Deaf { log: self.log() })
    }

    /// Starts a daemon where [`Containerd::stop`] ended one, and waits until it answers.
    pub fn again(&mut self) -> Result<(), ContainerdError> {
        self.child = spawn(&self.programs, &self.folder, &self.service)?;
        self.wait_until_up()
    }

    /// Ends the daemon and starts another; the pods run on.
    pub fn restart(&mut self) -> Result<(), ContainerdError> {
        self.stop()?;
        self.again()
    }

    /// Ends the daemon and starts another version of it; the pods run on.
    pub fn upgrade(&mut self, to: Available) -> Result<(), ContainerdError> {
        self.stop()?;
        self.programs = to.programs;
        self.again()
    }

    /// The daemon takes connections and answers nothing until [`Containerd::resume`].
    pub fn pause(&self) -> Result<(), ContainerdError> {
        self.signal(Signal::STOP)
    }

    /// Ends a pause.
    pub fn resume(&self) -> Result<(), ContainerdError> {
        self.signal(Signal::CONT)
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("containerd.log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<(), ContainerdError> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|errno| ContainerdError::at(&self.programs.containerd, errno.into()))
    }

    fn wait_until_up(&mut self) -> Result<(), ContainerdError> {
        let up = until(STARTS_WITHIN, || {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            (ended || self.means.cri.containers().is_ok()).then_some(!ended)
        });
        if up == Some(true) { Ok(()) } else { Err(ContainerdError::Deaf { log: self.log() }) }
    }

    /// Gives it the images, and learns the id of the workload's, which a kubelet would pass on.
    fn import(&mut self) -> Result<(), ContainerdError> {
        let file = self.folder.join("images.tar");
        node_images(&self.programs)
            .and_then(|images| fs::write(&file, images))
            .map_err(|source| ContainerdError::at(&file, source))?;
        let ctr = &self.programs.ctr;
        let output = Command::new(ctr)
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io", "images", "import", "--no-unpack"])
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ContainerdError::at(ctr, source))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(ContainerdError::Import { said });
        }
        // The CRI learns of images from events.
        let found = until(STARTS_WITHIN, || {
            let image = |name| self.means.cri.image(name).ok().flatten();
            image(PAUSE)?;
            image(WORKLOAD)
        });
        let id = found.ok_or_else(|| ContainerdError::Deaf { log: self.log() })?;
        let means = Arc::get_mut(&mut self.means);
        means
            .map(|means| means.image.1 = id)
            .ok_or_else(|| ContainerdError::Deaf { log: self.log() })
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Whatever state it is in, a stopped one too. One that has ended already is fine.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        self.stage.end();
        if let Err(error) = leftovers::remove(&self.folder) {
            // The folder stays, so that the next sweep finds it.
            eprintln!("containerd: {}: {error}", self.folder.display());
        }
    }
}

/// Starts a daemon in the cgroup of its service, where its shims will be as well.
fn spawn(
    programs: &Programs,
    folder: &Path,
    service: &[PathBuf],
) -> Result<Child, ContainerdError> {
    let log = folder.join("containerd.log");
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|source| ContainerdError::at(&log, source))?;
    let mut command = Command::new(&programs.containerd);
    command.arg("--config").arg(folder.join("containerd.toml"));
    command.env("PATH", &programs.path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = crate::sys::die_with_us(&mut command)
        .spawn()
        .map_err(|source| ContainerdError::at(&programs.containerd, source))?;
    for directory in service {
        fs::write(directory.join("cgroup.procs"), child.id().to_string())
            .map_err(|source| ContainerdError::at(directory, source))?;
    }
    Ok(child)
}

fn make_folder(path: &Path) -> Result<(), ContainerdError> {
    fs::create_dir_all(path).map_err(|source| ContainerdError::at(path, source))
}
