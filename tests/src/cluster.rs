//! A real Kubernetes of one node: etcd, API server, controller manager, scheduler, containerd and kubelet,
//! and a device plugin that grants the fake driver's devices. `cargo xtask kubernetes` builds its programs
//! and starts the tests in namespaces of their own for mounts and network, in which this module makes the
//! node's folders and addresses: what the node's programs write there is gone with the last process.
//! Their cgroups are the machine's, below one that the [`Stage`] removes.

mod files;
pub(crate) mod node;

use crate::containerd::{Programs, Unavailable as NoContainerd, node_images};
use crate::nvml::{FakeNvml, NvmlError};
use crate::skip::Lack;
use crate::stage::{Stage, StageError, random_hex};
use crate::until::until;
use crate::worker::nodes::host_nodes;
use crate::{program, sys};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that names the folder of the programs.
const PROGRAMS: &str = "GPUWHO_TEST_CLUSTER";
/// The node's name.
pub const NODE: &str = "gpu-node";
/// The node's `/etc/machine-id`.
pub const MACHINE_ID: &str = "8f6b2c1d0e9a47f3b5d4c3a2918e7f60";
/// The node's address.
pub const ADDRESS: &str = "10.77.0.1";
/// What the fake driver plays.
const SCENARIO: &str = "h100x8";
/// GPUs of that.
const GPUS: u32 = 8;
/// A daemon answers in seconds; two busy cores are shared by seven.
const STARTS_WITHIN: Duration = Duration::from_mins(3);
/// It ends within a second; this is for a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// What went wrong with a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// This machine, or the way in which the test was started, cannot have one.
    #[error("{0}")]
    Unavailable(&'static str),
    /// No containerd.
    #[error(transparent)]
    Containerd(#[from] NoContainerd),
    /// A cgroup.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// No fake driver.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// Something is not built.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// A file, mount or process operation.
    #[error("{path}: {source}")]
    Os {
        /// On what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A program refused.
    #[error("{what}: {said}")]
    Refused {
        /// The command.
        what: String,
        /// What it said.
        said: String,
    },
    /// A daemon does not answer.
    #[error("{name} does not answer; the end of its log:\n{log}")]
    Deaf {
        /// Which.
        name: &'static str,
        /// What it said last.
        log: String,
    },
}

impl Lack for ClusterError {
    fn lack(&self) -> Option<String> {
        match self {
            Self::Unavailable(_) | Self::Containerd(_) => Some(self.to_string()),
            Self::Stage(error) => error.lack(),
            _ => None,
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ClusterError {
    let path = path.to_owned();
    move |source| ClusterError::Os { path, source }
}

/// A running cluster; all of it ends when dropped.
#[derive(Debug)]
pub struct Cluster {
    daemons: BTreeMap<&'static str, Child>,
    programs: PathBuf,
    containerd: Programs,
    /// The cgroup of the node's pods, within the hierarchies.
    pods: String,
    /// The cgroup of its daemons.
    service: Vec<PathBuf>,
    /// The node's driver.
    pub nvml: FakeNvml,
    stage: Stage,
}

impl Cluster {
    /// Starts it and waits until the node is ready and has its devices.
    pub fn start() -> Result<Self, ClusterError> {
        let programs = env::var_os(PROGRAMS)
            .ok_or(ClusterError::Unavailable("a real Kubernetes, of cargo xtask kubernetes"))?;
        let own = |namespace: &str| {
            let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).ok();
            of("self") != of("1")
        };
        if !own("mnt") || !own("net") {
            return Err(ClusterError::Unavailable(
                "namespaces of its own (cargo xtask kubernetes)",
            ));
        }
        let containerd = Programs::find_with_events().or_else(|_| Programs::find())?;
        let mut stage = Stage::new()?;
        let pods = format!("/gpuwho-cluster-{}", random_hex(8)?);
        stage.parent(&pods)?;
        let service = stage.service("gpuwho-cluster")?.directories;
        let programs = PathBuf::from(programs);
        node::make(stage.folder())?;
        let nvml = FakeNvml::install(stage.folder(), SCENARIO)?.from_now();
        let mut cluster =
            Self { daemons: BTreeMap::new(), programs, containerd, pods, service, nvml, stage };
        cluster.prepare()?;
        cluster.start_control_plane()?;
        cluster.start_node()?;
        Ok(cluster)
    }

    /// A folder that goes with it, at the same path on its node.
    pub fn folder(&self) -> &Path {
        self.stage.folder()
    }

    /// Definitions of the kinds that the chart can make and Kubernetes does not have.
    pub fn definitions(&self) -> PathBuf {
        self.programs.join("definitions")
    }

    /// The cgroup of the node's pods, within the hierarchies.
    pub fn pods(&self) -> &str {
        &self.pods
    }

    /// What `kubectl` prints.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        self.client("kubectl", arguments)
    }

    /// What `helm` prints.
    pub fn helm(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        self.client("helm", arguments)
    }

    /// An answer of the API server, read as JSON.
    pub fn get(&self, arguments: &[&str]) -> Result<Value, ClusterError> {
        let text = self.kubectl(&[&["get", "--output=json"], arguments].concat())?;
        serde_json::from_str(&text).map_err(|error| ClusterError::Refused {
            what: format!("kubectl get {}", arguments.join(" ")),
            said: error.to_string(),
        })
    }

    /// Applies the manifests of a text.
    pub fn apply(&self, text: &str, options: &[&str]) -> Result<String, ClusterError> {
        let path = self.folder().join("applied.yaml");
        fs::write(&path, text).map_err(at(&path))?;
        let path = path.display().to_string();
        self.kubectl(&[&["apply", "--filename", &path], options].concat())
    }

    /// Ends a daemon and starts it again; the pods run on.
    pub fn restart(&mut self, name: &'static str) -> Result<(), ClusterError> {
        self.stop(name)?;
        match name {
            "containerd" => self.start_containerd(),
            "kubelet" => self.start_kubelet(),
            _ => Err(ClusterError::Unavailable("a daemon that can be restarted")),
        }
    }

    /// Ends a daemon.
    pub fn stop(&mut self, name: &'static str) -> Result<(), ClusterError> {
        let Some(mut child) = self.daemons.remove(name) else { return Ok(()) };
        kill_process(Pid::from_child(&child), Signal::TERM)
            .map_err(|errno| at(Path::new(name))(errno.into()))?;
        if until(ENDS_WITHIN, || child.try_wait().ok().flatten()).is_none() {
            child.kill().and_then(|()| child.wait()).map_err(at(Path::new(name)))?;
        }
        Ok(())
    }

    /// Lets the driver list the workers in pods, each on the device that its container was granted.
    pub fn list_processes(&self) -> Result<(), ClusterError> {
        let mut listed: Vec<Vec<Option<u32>>> = vec![Vec::new(); GPUS as usize];
        for entry in fs::read_dir("/proc").map_err(at(Path::new("/proc")))?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that has ended meanwhile reads as nothing.
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
            if !text("cgroup").contains(&self.pods) || !text("cmdline").contains("gpuwho-worker\0")
            {
                continue;
            }
            let environment = text("environ");
            let mut words = environment.split('\0');
            let device = words.find_map(|word| word.strip_prefix("NVIDIA_VISIBLE_DEVICES=GPU-"));
            let gpu = device.and_then(|uuid| uuid.rsplit('-').next()?.parse::<usize>().ok());
            if let Some(pids) = gpu.and_then(|gpu| listed.get_mut(gpu)) {
                pids.push(Some(pid));
            }
        }
        for (gpu, pids) in (0..GPUS).zip(&listed) {
            self.nvml.set_processes(gpu, pids)?;
        }
        Ok(())
    }

    /// Every request that the API server has answered so far, as its audit log has them.
    pub fn audited(&self) -> Result<Vec<Value>, ClusterError> {
        let path = self.folder().join("audit.jsonl");
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let read = |line| serde_json::from_str(line).map_err(io::Error::other).map_err(at(&path));
        whole.lines().map(read).collect()
    }

    /// The end of what a daemon logged.
    pub fn log(&self, name: &str) -> String {
        let log = self.folder().join(format!("{name}.log"));
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The fake driver, the device nodes, and the files of the daemons.
    fn prepare(&self) -> Result<(), ClusterError> {
        let folder = self.folder();
        host_nodes(folder).map_err(at(folder))?;
        files::write_all(folder, &self.pods)?;
        let path = folder.join("nvidia-runtime.json");
        let spec = run(Command::new(&self.containerd.ctr).args(["oci", "spec"]))?;
        let spec = files::nvidia_spec(&spec, folder, &self.nvml).map_err(at(&path))?;
        fs::write(&path, spec).map_err(at(&path))?;
        let containerd = Path::new("/run/containerd");
        fs::create_dir_all(containerd).map_err(at(containerd))?;
        let config = folder.join("containerd.toml");
        let plugins = self.programs.join("cni");
        let text = files::containerd(containerd, &plugins, &folder.join("cni"), &path);
        fs::write(&config, text).map_err(at(&config))
    }

    fn start_control_plane(&mut self) -> Result<(), ClusterError> {
        let etcd = ["--data-dir=/var/lib/etcd", "--log-level=warn"];
        self.daemon("etcd", &etcd.map(str::to_owned))?;
        let folder = self.folder().display().to_string();
        self.daemon("kube-apiserver", &files::api_server(&folder))?;
        self.wait_for("kube-apiserver", |cluster| {
            cluster.kubectl(&["get", "--raw=/readyz"]).is_ok()
        })?;
        self.daemon("kube-controller-manager", &files::controller_manager(&folder))?;
        self.daemon("kube-scheduler", &files::scheduler(&folder))
    }

    fn start_node(&mut self) -> Result<(), ClusterError> {
        self.start_containerd()?;
        let images = self.folder().join("images.tar");
        fs::write(&images, node_images(&self.containerd).map_err(at(&images))?)
            .map_err(at(&images))?;
        for archive in [images, self.programs.join("gpuwho.tar")] {
            let mut import = self.ctr();
            run(import.args(["images", "import"]).arg(archive))?;
        }
        self.start_kubelet()?;
        let nodes = self.folder().join("dev").display().to_string();
        let gpus = (0..GPUS).map(|gpu| {
            format!("GPU-4f6b1c1e-8f0a-4c55-9d10-{gpu:012}=nvidia{gpu},nvidiactl,nvidia-uvm")
        });
        let plugins = "/var/lib/kubelet/device-plugins".to_owned();
        let arguments: Vec<_> = [plugins, nodes].into_iter().chain(gpus).collect();
        self.daemon("device-plugin", &arguments)?;
        self.wait_for("kubelet", |cluster| {
            let node = cluster.get(&["node", NODE]).unwrap_or_default();
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready =
                |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            conditions.iter().any(ready) && allocatable(&node) == Some(GPUS)
        })
    }

    fn start_containerd(&mut self) -> Result<(), ClusterError> {
        let config = self.folder().join("containerd.toml").display().to_string();
        self.daemon("containerd", &["--config".to_owned(), config])?;
        self.wait_for("containerd", |cluster| run(cluster.ctr().arg("version")).is_ok())
    }

    fn start_kubelet(&mut self) -> Result<(), ClusterError> {
        self.daemon("kubelet", &files::kubelet(&self.folder().display().to_string()))
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new(&self.containerd.ctr);
        command.args(["--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io"]);
        command
    }

    /// Starts a daemon in the cgroup of all daemons.
    fn daemon(&mut self, name: &'static str, arguments: &[String]) -> Result<(), ClusterError> {
        let log = self.folder().join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).map_err(at(&log))?;
        let program = match name {
            "containerd" => self.containerd.containerd.clone(),
            _ => self.programs.join(name),
        };
        let mut command = Command::new(&program);
        command.args(arguments).env("PATH", &self.containerd.path).stdin(Stdio::null());
        command.stdout(file.try_clone().map_err(at(&log))?).stderr(file);
        let child = sys::die_with_us(&mut command).spawn().map_err(at(&program))?;
        for directory in &self.service {
            fs::write(directory.join("cgroup.procs"), child.id().to_string())
                .map_err(at(directory))?;
        }
        self.daemons.insert(name, child);
        Ok(())
    }

    /// Waits for a daemon, and no longer than it lives.
    fn wait_for(
        &mut self,
        name: &'static str,
        is_up: impl Fn(&Self) -> bool,
    ) -> Result<(), ClusterError> {
        let up = until(STARTS_WITHIN, || {
            let child = self.daemons.get_mut(name)?;
            let ended = child.try_wait().is_ok_and(|status| status.is_some());
            (ended || is_up(self)).then_some(!ended)
        });
        if up == Some(true) {
            return Ok(());
        }
        Err(ClusterError::Deaf { name, log: self.log(name) })
    }

    fn client(&self, name: &str, arguments: &[&str]) -> Result<String, ClusterError> {
        let mut command = Command::new(self.programs.join(name));
        command.args(arguments).env("KUBECONFIG", self.folder().join("admin.kubeconfig"));
        // Their caches of what the API server has are of this cluster alone.
        command.env("HOME", self.folder());
        run(&mut command)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.daemons.values_mut() {
            // One that has ended already is fine.
            let _gone = child.kill();
            let _reaped = child.wait();
        }
        // Pods, shims and whatever a daemon started.
        self.stage.end();
    }
}

/// Devices of a node that its kubelet can grant.
fn allocatable(node: &Value) -> Option<u32> {
    node["status"]["allocatable"]["nvidia.com/gpu"].as_str()?.parse().ok()
}

/// What a program prints.
pub(crate) fn run(command: &mut Command) -> Result<String, ClusterError> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output().map_err(at(&program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ClusterError::Refused { what: format!("{command:?}"), said })
}
