//! Pods and containers, made with the calls, labels and annotations of a kubelet.

use super::ContainerdError;
use super::cri::Cri;
use super::restricted::{Restricted, security};
use crate::stage::{Driver, Expected, Group, Qos};
use crate::worker::script::Script;
use gpuwho_kubernetes::cri::{
    ContainerConfig, ContainerMetadata, Device, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::container::{Container, Executed, Inside};

/// Labels and annotations.
type Words = BTreeMap<String, String>;

/// Where the worker is in every container.
pub const WORKER: &str = "/gpuwho-worker";

/// The host's folders that its programs need; those it has are mounted into every container.
const OF_THE_HOST: &[&str] = &["/bin", "/lib", "/lib64", "/usr"];

/// What the pods of one containerd are made with.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) cri: Cri,
    /// The workload image: the name a pod's author would write, and the id a kubelet passes on.
    pub(super) image: (String, String),
    /// The worker of this build.
    pub(super) worker: PathBuf,
    /// Where the nodes are that stand for NVIDIA's.
    pub(super) nodes: PathBuf,
    /// The folder of the pods' logs.
    pub(super) logs: PathBuf,
}

/// A pod to make.
#[derive(Clone, Copy, Debug)]
pub struct PodSpec<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID; without, a random one.
    pub uid: Option<&'a str>,
    /// Which sandbox of the pod this is, counted from 0.
    pub attempt: u32,
    /// Quality-of-service class.
    pub qos: Qos,
    /// Shape of the cgroup's path. With [`Driver::Systemd`] the runtime, which has no systemd
    /// here, makes a group that is literally called `<slice>:cri-containerd:<id>`.
    pub driver: Driver,
    /// Shares the node's PID namespace.
    pub host_pid: bool,
    /// The pod's labels, beside those a kubelet adds.
    pub labels: &'a [(&'a str, &'a str)],
    /// The pod's annotations, beside those a kubelet adds.
    pub annotations: &'a [(&'a str, &'a str)],
}

impl Default for PodSpec<'_> {
    fn default() -> Self {
        Self {
            namespace: "research",
            name: "trainer-0",
            uid: None,
            attempt: 0,
            qos: Qos::Burstable,
            driver: Driver::Cgroupfs,
            host_pid: false,
            labels: &[],
            annotations: &[],
        }
    }
}

/// What a container runs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a test has a handful of them")]
pub enum Run {
    /// The worker, which has its nodes open before the container counts as started.
    Worker(Script),
    /// A program of the host.
    Command(Vec<String>),
}

/// A container to make.
#[derive(Clone, Debug)]
pub struct ContainerSpec<'a> {
    /// Name.
    pub name: &'a str,
    /// How often it was restarted.
    pub attempt: u32,
    /// What it runs.
    pub run: Run,
    /// GPUs it may open, by minor number; those a worker is to open are in its script.
    pub gpus: &'a [u32],
    /// Its environment.
    pub env: &'a [(&'a str, &'a str)],
    /// The container whose processes it sees, as an ephemeral one of `kubectl debug --target`.
    pub target: Option<&'a Container>,
    /// What is mounted beside the host's programs: path in the container, path on the host, whether
    /// it is read-only.
    pub mounts: &'a [(String, String, bool)],
    /// What a `securityContext` restricts it to; without, nothing is said of it.
    pub restricted: Option<Restricted<'a>>,
}

impl Default for ContainerSpec<'_> {
    fn default() -> Self {
        Self {
            name: "train",
            attempt: 0,
            run: Run::Worker(Script::default()),
            gpus: &[],
            env: &[],
            target: None,
            mounts: &[],
            restricted: None,
        }
    }
}

/// A pod with its sandbox.
#[derive(Debug)]
pub struct Pod {
    means: Arc<Means>,
    /// The sandbox's id.
    pub sandbox: String,
    /// UID.
    pub uid: String,
    /// Its cgroup, which the kubelet makes; the containers' are below it.
    pub group: Group,
    config: PodSandboxConfig,
    host_pid: bool,
    expected: Expected,
}

impl Pod {
    /// Runs the sandbox of a pod whose cgroup is there.
    pub(super) fn run(
        means: &Arc<Means>,
        spec: &PodSpec<'_>,
        uid: &str,
        group: Group,
    ) -> Result<Self, ContainerdError> {
        let logs = means.logs.join(format!("{}_{}_{uid}", spec.namespace, spec.name));
        let config = sandbox_config(spec, uid, &group.path, &logs);
        super::make_folder(&logs)?;
        let sandbox = means.cri.run_sandbox(config.clone())?;
        let expected = Expected {
            namespace: Some(spec.namespace.to_owned()),
            pod: Some(spec.name.to_owned()),
            pod_uid: Some(uid.to_owned()),
            ..Expected::default()
        };
        Ok(Self {
            means: Arc::clone(means),
            sandbox,
            uid: uid.to_owned(),
            group,
            config,
            host_pid: spec.host_pid,
            expected,
        })
    }

    /// The pod's folder of logs, as a kubelet names it.
    pub fn logs(&self) -> &Path {
        Path::new(&self.config.log_directory)
    }

    /// Creates and starts a container; a worker has its nodes open then.
    pub fn container(&self, spec: &ContainerSpec<'_>) -> Result<Container, ContainerdError> {
        super::make_folder(&self.logs().join(spec.name))?;
        let config = self.container_config(spec);
        let log = self.logs().join(&config.log_path);
        let id = self.means.cri.create(&self.sandbox, config, &self.config)?;
        self.means.cri.start(&id)?;
        let expected = Expected {
            container: Some(spec.name.to_owned()),
            container_id: Some(id.clone()),
            ..self.expected.clone()
        };
        Container::started(self.means.cri.clone(), expected, log, spec)
    }

    /// What a kubelet knows of it, for a fake one to be told: granted devices are the
    /// caller's to add.
    pub fn as_kubelets(&self, containers: &[&Container]) -> fake_kubelet::Pod {
        let own = |words: &Words| {
            let own = words.iter().filter(|(key, _)| !key.starts_with("io.kubernetes."));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let metadata = self.config.metadata.clone().unwrap_or_default();
        let containers = containers.iter().map(|container| fake_kubelet::Container {
            image: self.means.image.0.clone(),
            ..fake_kubelet::Container::new(
                container.expected.container.as_deref().unwrap_or_default(),
                &format!("containerd://{}", container.id),
            )
        });
        fake_kubelet::Pod {
            labels: own(&self.config.labels),
            annotations: own(&self.config.annotations),
            containers: containers.collect(),
            ..fake_kubelet::Pod::new(&metadata.namespace, &metadata.name, &self.uid)
        }
    }

    /// Ends its containers and its sandbox, which the runtime goes on listing.
    pub fn stop(&self) -> Result<(), ContainerdError> {
        self.means.cri.stop_sandbox(&self.sandbox)
    }

    /// Ends it, and the runtime forgets it; its cgroup and its folder of logs go as well.
    pub fn remove(self) -> Result<(), ContainerdError> {
        self.stop()?;
        self.means.cri.remove_sandbox(&self.sandbox)?;
        for directory in &self.group.directories {
            fs::remove_dir(directory).map_err(|source| ContainerdError::at(directory, source))?;
        }
        let logs = self.logs();
        fs::remove_dir_all(logs).map_err(|source| ContainerdError::at(logs, source))
    }

    fn container_config(&self, spec: &ContainerSpec<'_>) -> ContainerConfig {
        let (name, id) = &self.means.image;
        let image = ImageSpec { image: id.clone(), user_specified_image: name.clone() };
        let env = spec
            .env
            .iter()
            .map(|(key, value)| KeyValue { key: (*key).to_owned(), value: (*value).into() });
        let target = spec.target.map(|target| target.id.clone());
        let namespaces = NamespaceOption {
            network: NamespaceMode::Node.into(),
            pid: match &target {
                Some(_) => NamespaceMode::Target.into(),
                None => pid_namespace(self.host_pid),
            },
            ipc: NamespaceMode::Pod.into(),
            target_id: target.unwrap_or_default(),
        };
        let security = security(namespaces, spec.restricted);
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: spec.name.to_owned(), attempt: spec.attempt }),
            image: Some(image),
            command: command(&spec.run),
            envs: env.collect(),
            mounts: self.mounts(spec.mounts),
            devices: self.devices(spec.gpus),
            labels: self.container_labels(spec.name),
            annotations: container_annotations(spec.attempt),
            log_path: format!("{}/{}.log", spec.name, spec.attempt),
            linux: Some(LinuxContainerConfig { security_context: Some(security) }),
        }
    }

    fn mounts(&self, more: &[(String, String, bool)]) -> Vec<Mount> {
        let there = OF_THE_HOST.iter().filter(|folder| Path::new(folder).is_dir());
        let of_the_host = there.map(|folder| ((*folder).to_owned(), (*folder).to_owned()));
        let worker = (WORKER.to_owned(), self.means.worker.display().to_string());
        let all = of_the_host.chain([worker]).map(|(inside, host)| (inside, host, true));
        all.chain(more.iter().cloned())
            .map(|(container_path, host_path, readonly)| Mount {
                container_path,
                host_path,
                readonly,
            })
            .collect()
    }

    /// What NVIDIA's runtime would put into a container that was granted these GPUs.
    fn devices(&self, gpus: &[u32]) -> Vec<Device> {
        let always: &[&str] = if gpus.is_empty() { &[] } else { &["nvidiactl", "nvidia-uvm"] };
        let always = always.iter().map(|name| (*name).to_owned());
        let names = always.chain(gpus.iter().map(|gpu| format!("nvidia{gpu}")));
        names
            .map(|name| Device {
                container_path: format!("/dev/{name}"),
                host_path: self.means.nodes.join(&name).display().to_string(),
                permissions: "rwm".to_owned(),
            })
            .collect()
    }

    /// Only these four: a container does not carry its pod's own labels.
    fn container_labels(&self, name: &str) -> Words {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        words(&[
            ("io.kubernetes.container.name", name),
            ("io.kubernetes.pod.name", &metadata.name),
            ("io.kubernetes.pod.namespace", &metadata.namespace),
            ("io.kubernetes.pod.uid", &metadata.uid),
        ])
    }
}

/// The command line of a container's process.
fn command(run: &Run) -> Vec<String> {
    match run {
        Run::Worker(script) => worker_command(script),
        Run::Command(command) => command.clone(),
    }
}

/// The command line of a worker inside a container.
pub(super) fn worker_command(script: &Script) -> Vec<String> {
    let script = Script { contained: true, ..script.clone() };
    [WORKER.to_owned()].into_iter().chain(script.to_arguments()).collect()
}

fn sandbox_config(spec: &PodSpec<'_>, uid: &str, cgroup: &str, logs: &Path) -> PodSandboxConfig {
    let mut labels = words(&[
        ("io.kubernetes.pod.name", spec.name),
        ("io.kubernetes.pod.namespace", spec.namespace),
        ("io.kubernetes.pod.uid", uid),
    ]);
    labels.extend(words(spec.labels));
    let mut annotations = words(&[
        ("kubernetes.io/config.seen", "2026-11-21T01:00:00.000000000Z"),
        ("kubernetes.io/config.source", "api"),
    ]);
    annotations.extend(words(spec.annotations));
    let pid = pid_namespace(spec.host_pid);
    let namespaces = NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid,
        ipc: NamespaceMode::Pod.into(),
        target_id: String::new(),
    };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: spec.name.to_owned(),
            uid: uid.to_owned(),
            namespace: spec.namespace.to_owned(),
            attempt: spec.attempt,
        }),
        log_directory: logs.display().to_string(),
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces),
            }),
        }),
    }
}

fn pid_namespace(of_the_node: bool) -> i32 {
    let mode = if of_the_node { NamespaceMode::Node } else { NamespaceMode::Container };
    mode.into()
}

fn container_annotations(attempt: u32) -> Words {
    words(&[
        ("io.kubernetes.container.hash", "5ec5b1b5"),
        ("io.kubernetes.container.restartCount", &attempt.to_string()),
        ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ])
}

fn words(pairs: &[(&str, &str)]) -> Words {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
