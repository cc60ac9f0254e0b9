//! The real Podman, with containers, images and folders of its own: `cargo xtask podman` unpacks its programs
//! and starts the tests in namespaces for mounts and network. Its cgroups are the machine's, below one that
//! the [`Stage`] removes.

use crate::cluster::{ClusterError, node};
use crate::nvml::FakeNvml;
use crate::stage::Stage;
use crate::until::until;
use crate::worker::nodes::host_nodes;
use crate::{program, sys};
use serde_json::{Value, json};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that names the folder of the programs.
const PROGRAMS: &str = "GPUWHO_TEST_PODMAN";
/// Where it serves Docker's API, as its package `podman-docker` has it.
const SOCKET: &str = "/run/docker.sock";
/// It answers within a second.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// The cgroup of all its containers.
const PARENT: &str = "/libpod_parent";

/// Of images: this one is signed by nobody.
const POLICY: &str = "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}";

/// The machine may not let a container have more than this process: its limits stay as they are.
const RUNTIME: &str = r#"#!/bin/sh
for word; do
  if [ "$before" = --bundle ]; then
    sed -i 's/"rlimits":\[[^]]*\],//; s/,"rlimits":\[[^]]*\]//' "$word/config.json"
  fi
  before=$word
done
exec runc "$@"
"#;

/// Podman; its containers end when dropped.
#[derive(Debug)]
pub struct Podman {
    programs: PathBuf,
    service: Option<Child>,
    nvml: FakeNvml,
    stage: Stage,
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ClusterError {
    let path = path.to_owned();
    move |source| ClusterError::Os { path, source }
}

impl Podman {
    /// Makes the folders of a host, with the image and the fake driver, and starts the service.
    pub fn start() -> Result<Self, ClusterError> {
        let programs = env::var_os(PROGRAMS)
            .ok_or(ClusterError::Unavailable("Podman, of cargo xtask podman"))?;
        let mut stage = Stage::new()?;
        stage.parent(PARENT)?;
        let folder = stage.folder().to_owned();
        node::make(&folder)?;
        let nvml = FakeNvml::install(&folder, "h100x8")?.from_now();
        host_nodes(&folder).map_err(at(&folder))?;
        let mut podman = Self { programs: programs.into(), service: None, nvml, stage };
        podman.configure()?;
        let image = podman.programs.join("gpuwho.tar").display().to_string();
        let policy = folder.join("policy.json").display().to_string();
        podman.run(&["load", "--quiet", "--signature-policy", &policy, "--input", &image])?;
        let mut command = podman.command(&podman.programs.join("podman"));
        command.args(["system", "service", "--time=0", &format!("unix://{SOCKET}")]);
        let child = sys::die_with_us(command.stdout(Stdio::null())).spawn();
        podman.service = Some(child.map_err(at(Path::new("podman")))?);
        until(STARTS_WITHIN, || Path::new(SOCKET).exists().then_some(()))
            .ok_or(ClusterError::Deaf { name: "podman", log: String::new() })?;
        Ok(podman)
    }

    /// A folder that goes with it.
    pub fn folder(&self) -> &Path {
        self.stage.folder()
    }

    /// Runs `podman` with these words, and gives what it prints.
    pub fn run(&self, words: &[&str]) -> Result<String, ClusterError> {
        crate::cluster::run(self.command(&self.programs.join("podman")).args(words))
    }

    /// Runs `podman-compose` on a file.
    pub fn compose(
        &self,
        file: &Path,
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<String, ClusterError> {
        let mut command = self.command(Path::new("python3"));
        command
            .arg(self.programs.join("podman_compose.py"))
            .arg("--podman-path")
            .arg(self.programs.join("podman"))
            .arg("--file")
            .arg(file);
        crate::cluster::run(command.args(words).envs(variables.iter().copied()))
    }

    /// Starts a container that holds the first device, with the programs of this machine.
    pub fn train(&self, name: &str, image: &str) -> Result<(), ClusterError> {
        let worker = format!("{}:/gpuwho-worker:ro", program::worker()?.display());
        let options =
            ["run", "--detach", "--network=none", "--name", name, "--device", "nvidia.com/gpu=0"];
        let host = ["/usr:/usr:ro", "/lib:/lib:ro", "/lib64:/lib64:ro", &worker];
        let volumes: Vec<_> = host.iter().flat_map(|volume| ["--volume", volume]).collect();
        let work = ["--entrypoint", "/gpuwho-worker", image, "--contained", "--gpu=0"];
        self.run(&[&options[..], &volumes, &work].concat())?;
        let pid = self.run(&["inspect", "--format", "{{.State.Pid}}", name])?;
        let pid = pid.trim().parse().map_err(std::io::Error::other).map_err(at(Path::new(name)))?;
        Ok(self.nvml.set_processes(0, &[Some(pid)])?)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.programs.join("lib")).stdin(Stdio::null());
        command.env("CONTAINERS_CONF", self.folder().join("containers.conf"));
        command
    }

    /// Podman's own configuration, and the driver's as `nvidia-ctk cdi generate` writes it.
    fn configure(&self) -> Result<(), ClusterError> {
        let write = |path: &Path, text: &str| fs::write(path, text).map_err(at(path));
        let runtime = self.folder().join("runc");
        write(&runtime, RUNTIME)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).map_err(at(&runtime))?;
        let programs = self.programs.display();
        let text = format!(
            "[containers]\nseccomp_profile = \"{programs}/seccomp.json\"\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n\
             conmon_path = [\"{programs}/conmon\"]\nruntime = \"runc\"\n\
             [engine.runtimes]\nrunc = [\"{}\"]\n\
             [network]\nnetwork_config_dir = \"{}/cni\"\ncni_plugin_dirs = [\"{programs}/cni\"]\n",
            runtime.display(),
            self.folder().display(),
        );
        write(&self.folder().join("containers.conf"), &text)?;
        write(&self.folder().join("policy.json"), POLICY)?;
        let folder = Path::new("/run/cdi");
        fs::create_dir_all(folder).map_err(at(folder))?;
        write(&folder.join("nvidia.json"), &self.devices()?.to_string())
    }

    fn devices(&self) -> Result<Value, ClusterError> {
        let nodes = self.folder().join("dev");
        let node =
            |name: &str| json!({ "path": format!("/dev/{name}"), "hostPath": nodes.join(name) });
        let mut all = Vec::new();
        for entry in fs::read_dir(&nodes).map_err(at(&nodes))? {
            let name = entry.map_err(at(&nodes))?.file_name().to_string_lossy().into_owned();
            all.extend(name.starts_with("nvidia").then(|| node(&name)));
        }
        let bind = |from: &Path, to: &Path| json!({ "hostPath": from, "containerPath": to, "options": ["ro", "rbind"] });
        let library = format!("/usr/lib/{}-linux-gnu/libnvidia-ml.so.1", env::consts::ARCH);
        let scenario = self.nvml.scenario();
        let data = scenario.parent().unwrap_or(self.folder());
        let mounts = [bind(&self.nvml.library(), Path::new(&library)), bind(data, data)];
        let mut command = Command::new("gpuwho");
        let variables = self.nvml.apply(&mut command).get_envs();
        let variables = variables.map(|(name, value)| {
            format!("{}={}", name.display(), value.unwrap_or_default().display())
        });
        let all = json!({
            "deviceNodes": all, "mounts": mounts, "env": variables.collect::<Vec<_>>(),
        });
        // The worker has this machine's /usr, where nothing can be mounted, and needs no library.
        let first = ["nvidia0", "nvidiactl", "nvidia-uvm"].map(node);
        Ok(json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                { "name": "all", "containerEdits": all },
                { "name": "0", "containerEdits": { "deviceNodes": first } },
            ],
        }))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Without it their monitors would stay.
        let _gone = self.run(&["rm", "--all", "--force", "--time=1"]);
        let _pods = self.run(&["pod", "rm", "--all", "--force"]);
        if let Some(mut service) = self.service.take() {
            let _killed = service.kill();
            let _reaped = service.wait();
        }
        self.stage.end();
    }
}
