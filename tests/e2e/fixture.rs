//! What the tests of ownership share: an agent that watches a stage, and its answers.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::stage::{Driver, Expected, Group, PodSpec, Qos, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The agent's evidence comes within milliseconds; this is for a machine under load.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(30);

pub(crate) const TRAINER: PodSpec<'_> = PodSpec {
    namespace: "research",
    name: "trainer-0",
    container: "train",
    qos: Qos::Burstable,
    driver: Driver::Cgroupfs,
};

/// The groups of two pods and a job.
pub(crate) fn two_pods_and_a_job(stage: &mut Stage) -> [Group; 3] {
    [
        stage.pod(&TRAINER).unwrap(),
        stage.pod(&PodSpec { name: "trainer-1", ..TRAINER }).unwrap(),
        stage.slurm_task(0, None, 1).unwrap(),
    ]
}

/// An agent that knows the stage's pod logs and watches only for NVIDIA's nodes.
pub(crate) fn watch(stage: &Stage) -> Agent {
    watch_with(stage, Config::default())
}

/// The same with more of a configuration.
pub(crate) fn watch_with(stage: &Stage, config: Config) -> Agent {
    let pod_logs = Some(stage.pod_logs());
    let more = format!("[nvidia]\nenabled = false\n{}", config.more);
    Agent::start(stage.folder(), &Config { pod_logs, more, ..config }, None).unwrap()
}

/// Why the kernel's own evidence is missing, if it is: what lives shorter than a scan cannot be
/// seen without it.
pub(crate) fn without_kernel(agent: &Agent) -> Option<String> {
    let who = agent.who().unwrap();
    let sources = who["sources"].as_array().unwrap();
    let kernel = sources.iter().find(|source| source["name"] == "device_users");
    match kernel {
        Some(source) if source["state"] == "ready" => None,
        Some(source) => Some(format!("BPF: {}", source["reason"].as_str().unwrap_or("no reason"))),
        None => Some("BPF: the agent has no such source".to_owned()),
    }
}

/// A process among the holders, dead or alive, as soon as its owner is known.
pub(crate) fn holder(who: &Value, pid: u32) -> Option<&Value> {
    let living = who["holders"].as_array()?.iter();
    let is_known = |holder: &&Value| holder["pid"] == pid && holder["method"] != "pending";
    living.clone().find(is_known).or_else(|| ended(who, pid))
}

/// A process among those that have ended, as soon as its owner is known.
pub(crate) fn ended(who: &Value, pid: u32) -> Option<&Value> {
    let mut ended = who["ended"].as_array()?.iter();
    ended.find(|holder| holder["pid"] == pid && holder["method"] != "pending")
}

/// Waits until a process is among the holders.
pub(crate) fn wait_for_holder(agent: &Agent, pid: u32) -> Value {
    agent.wait_for("the holder", SEEN_WITHIN, |who| holder(who, pid).cloned()).unwrap()
}

/// Whose the agent says a holder is.
pub(crate) fn owner(holder: &Value) -> Expected {
    let text = |key: &str| holder[key].as_str().map(str::to_owned);
    Expected {
        namespace: text("namespace"),
        pod: text("pod"),
        pod_uid: text("pod_uid"),
        container: text("container"),
        container_id: text("container_id"),
        slurm_job: text("slurm_job"),
        slurm_step: text("slurm_step"),
        slurm_task: text("slurm_task"),
        unit: text("unit"),
    }
}

/// What all sources say they have lost.
pub(crate) fn counted_loss(who: &Value) -> u64 {
    let sources = who["sources"].as_array().unwrap().iter();
    let reasons = sources.filter_map(|source| source["dropped"].as_object());
    reasons.flat_map(|reasons| reasons.values()).filter_map(Value::as_u64).sum()
}

/// A number that no process has, and that the kernel gives nobody soon.
pub(crate) fn free_pid(mut among: Range<u32>) -> u32 {
    among.find(|pid| !Path::new(&format!("/proc/{pid}")).exists()).unwrap()
}

/// A process in the first group opens a GPU's node and gives it over a socket to one in the second,
/// which opens nothing.
pub(crate) fn hand_over(stage: &Stage, from: &Group, to: &Group, gpu: u32) -> (Worker, Worker) {
    let socket = stage.folder().join("give");
    let path = Some(socket.display().to_string());
    let gives = Script { give: path.clone(), gpus: vec![gpu], ..Script::default() };
    let takes = Script { take: path, ..Script::default() };
    std::thread::scope(|scope| {
        let giver = scope.spawn(|| Worker::start(Some(from), &gives).unwrap());
        until(SEEN_WITHIN, || socket.exists().then_some(())).unwrap();
        let taker = Worker::start(Some(to), &takes).unwrap();
        (giver.join().unwrap(), taker)
    })
}

/// A process by the name of the MPS server.
pub(crate) struct MpsServer {
    child: Child,
    _folder: TempDir,
}

impl MpsServer {
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let program = folder.path().join("nvidia-cuda-mps-server");
        fs::copy("/bin/sleep", &program).unwrap();
        let child = Command::new(&program).arg("600").stdin(Stdio::null()).spawn().unwrap();
        Self { child, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for MpsServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
