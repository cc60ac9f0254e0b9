//! Files and memory that never answer a read.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, NOBODY, Running};
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::{or_skip, program};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::Value;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Some readings and a helper's deadline, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// The console that stands for a GPU, of its own for each test: no other's processes are seen.
const CONSOLES: [u32; 4] = [60, 61, 62, 63];
/// A source counts as hung after 30 s.
const HUNG_WITHIN: Duration = Duration::from_mins(3);

/// Starts a process and waits for its first line.
fn start(command: &mut Command) -> (Running, String) {
    Running::start_and_hear(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap()
}

/// An agent that looks for the Inspector, and a place for what it tells.
struct Scene {
    stage: Stage,
    agent: Agent,
    file: PathBuf,
    /// The GPU's node.
    node: String,
    /// Alice's.
    job: u32,
}

impl Scene {
    fn new(stage: Stage, console: u32) -> Self {
        Self::with(stage, console, None)
    }

    /// With another file of the host's users.
    fn with(stage: Stage, console: u32, passwd: Option<PathBuf>) -> Self {
        let node = stage.folder().join("gpu");
        mknodat(CWD, &node, FileType::CharacterDevice, Mode::empty(), makedev(4, console)).unwrap();
        fs::set_permissions(&node, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(stage.folder(), Permissions::from_mode(0o755)).unwrap();
        let node = node.to_str().unwrap().to_owned();
        let file = stage.folder().join("points.jsonl");
        let config = Config {
            interval: Some("500ms".to_owned()),
            nodes: Some(vec![node.clone()]),
            file: Some(file.clone()),
            passwd,
            more: "[nvidia]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, None).unwrap();
        Self { stage, agent, file, node, job: 50_000_000 + console }
    }

    /// Mallory's process, in a service of a name.
    fn mallory(&mut self, attack: &str, name: &str) -> (Running, Group) {
        let folder = self.stage.folder().join(name);
        fs::create_dir(&folder).unwrap();
        let group = self.stage.service(name).unwrap();
        let mut arguments = vec![folder.to_str().unwrap(), &self.node];
        arguments.extend(group.directories.iter().map(|path| path.to_str().unwrap()));
        let (running, said) = start(&mut attacker::command(attack, &arguments).unwrap());
        assert!(said.starts_with("ready "), "{said}");
        (running, group)
    }

    /// Another process of hers, that holds the device.
    fn mallorys_second(&self, group: &Group) -> Running {
        let drop = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
        let hold = "exec 4<\"$0\"; echo; read go";
        let script = format!("set -e; {}; exec {drop} sh -c '{hold}' \"$1\"", join(group));
        start(Command::new("sh").args(["-c", &script, "sh", &self.node])).0
    }

    /// Alice's process of a Slurm job, with the Inspector's records in a plain folder.
    fn alice(&mut self, task: u32) -> (Running, PathBuf) {
        let group = self.stage.slurm_task(20_001, Some(self.job), task).unwrap();
        let folder = self.stage.folder().join(format!("alice-{task}"));
        fs::create_dir(&folder).unwrap();
        let script = format!(
            "set -e; {}; exec 3>>\"$1/node-pid$$.log\" 4<\"$2\"; echo $$; read go",
            join(&group)
        );
        let mut command = Command::new(program::shell_with_nccl(&folder).unwrap());
        command.args(["-c", &script, "sh"]).args([folder.as_os_str(), self.node.as_ref()]);
        command.env("SLURM_JOB_ID", self.job.to_string()).env("SLURM_JOB_NAME", "alices-training");
        let (running, said) = start(&mut command);
        let records = folder.join(format!("node-pid{}.log", said.trim()));
        (running, records)
    }

    /// Waits until the newest point of a metric with these attributes is as wanted.
    fn wait(&self, metric: &str, attributes: &[(&str, &str)], is: impl Fn(i64) -> bool) -> i64 {
        let found = until(WITHIN, || last(&self.file, metric, attributes).filter(|n| is(*n)));
        let who =
            || self.agent.who().map_or_else(|error| error.to_string(), |who| format!("{who:#}"));
        found.unwrap_or_else(|| panic!("no such {metric}; {}\n{:#?}", who(), self.agent.log()))
    }

    /// Waits until the agent says of a source what is wanted.
    fn wait_for_source(&self, name: &str, is: impl Fn(&Value) -> bool) {
        let what = format!("the source {name}");
        let found = self.agent.wait_for(&what, HUNG_WITHIN, |who| {
            let mut sources = who["sources"].as_array()?.iter();
            sources.find(|source| source["name"] == name && is(source)).map(drop)
        });
        found.unwrap();
    }

    /// Waits until a source is hung, which the receiver is told, and `gpuwho` with its age.
    fn wait_for_hung(&self, name: &str) {
        self.wait_for_source(name, |source| {
            let reason = source["reason"].as_str().unwrap_or_default();
            let words: Vec<&str> = reason.split([' ', ';']).collect();
            let mut ages = words.windows(2).filter(|pair| pair[1] == "s");
            source["state"] == "hung" && ages.any(|pair| pair[0].parse::<u64>().is_ok())
        });
        let source = ("gpuwho.source", name);
        let is_hung = [source, ("gpuwho.source.state", "hung")];
        self.wait("gpuwho.source.status", &is_hung, |hung| hung == 1);
        self.wait("gpuwho.source.hangs", &[source], |hangs| hangs == 1);
    }
}

fn join(group: &Group) -> String {
    let paths = group.directories.iter().map(|path| path.display());
    paths.map(|path| format!("echo $$ > '{path}/cgroup.procs'")).collect::<Vec<_>>().join("; ")
}

/// The newest value of a metric with these attributes.
fn last(file: &Path, metric: &str, attributes: &[(&str, &str)]) -> Option<i64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let points = text.lines().rev().filter(|line| line.contains(metric));
    let points = points.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut wanted = points.filter(|point| {
        point["metric"] == metric
            && attributes.iter().all(|(key, value)| point["attributes"][key] == *value)
    });
    wanted.find_map(|point| point["value"].as_i64())
}

/// Records of one process, as the Inspector wrote them.
fn records(path: &Path) -> String {
    let pid = path.file_stem().and_then(|stem| stem.to_str()?.rsplit_once("-pid")).unwrap().1;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/nccl-inspector/inspector-2.30.7-v4.0-plain.jsonl"
    );
    fs::read_to_string(file).unwrap().replace("11229", pid)
}

fn write(path: &Path) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(records(path).as_bytes()).unwrap();
}

const TAKEN: (&str, &str) = ("nccl.inspector.outcome", "taken");
const READ: (&str, &str) = ("nccl.inspector.file.state", "read");

fn without_fuse() -> bool {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err()
}

#[test]
fn a_hung_mount_stops_its_own_tenants_reads_only() {
    let stage = or_skip!(Stage::new());
    if without_fuse() {
        gpuwho_tests::skip!("/dev/fuse");
    }
    let mut scene = Scene::new(stage, CONSOLES[0]);
    let (_first, first) = scene.alice(0);
    scene.wait("nccl.inspector.files", &[READ], |files| files == 1);
    write(&first);
    let before = scene.wait("nccl.inspector.lines", &[TAKEN], |lines| lines > 0);

    let (_mallory, group) = scene.mallory("hung-file", "mallory");
    scene.wait_for_source("tenant_files", |source| source["state"] == "degraded");
    // What was read before is read on, and what comes is found.
    write(&first);
    scene.wait("nccl.inspector.lines", &[TAKEN], |lines| lines > before);
    let (_second, second) = scene.alice(1);
    scene.wait("nccl.inspector.files", &[READ], |files| files >= 2);
    let before = scene.wait("nccl.inspector.lines", &[TAKEN], |_| true);
    write(&second);
    scene.wait("nccl.inspector.lines", &[TAKEN], |lines| lines > before);
    scene.wait_for_source("nccl_inspector", |source| source["state"] != "hung");
    let _mallorys = scene.mallorys_second(&group);
    let hung = [("gpuwho.source", "tenant_files"), ("gpuwho.drop.reason", "tenant_hung")];
    scene.wait("gpuwho.dropped", &hung, |refused| refused > 0);
}

#[test]
fn an_environment_that_never_answers_holds_up_nobody_elses() {
    let stage = or_skip!(Stage::new());
    if without_fuse() {
        gpuwho_tests::skip!("/dev/fuse");
    }
    let mut scene = Scene::new(stage, CONSOLES[1]);
    let _mallory = scene.mallory("hung-environment", "mallory");
    scene.wait_for_source("tenant_files", |source| source["errors"].as_u64() > Some(0));
    let (_alice, records) = scene.alice(0);
    scene.wait("nccl.inspector.files", &[READ], |files| files == 1);
    write(&records);
    // Her environment still names her job.
    let job = scene.job.to_string();
    let attributes = [("slurm.job.id", job.as_str()), ("slurm.job.name", "alices-training")];
    scene.wait("nccl.inspector.bytes", &attributes, |bytes| bytes > 0);
    scene.wait_for_source("nccl_inspector", |source| source["state"] != "hung");
}

#[test]
fn who_hangs_every_helper_hangs_their_source_and_that_is_sent() {
    let stage = or_skip!(Stage::new());
    if without_fuse() {
        gpuwho_tests::skip!("/dev/fuse");
    }
    let mut scene = Scene::new(stage, CONSOLES[2]);
    let _mallories = ["a", "b", "c", "d"].map(|name| scene.mallory("hung-file", name));
    scene.wait_for_hung("tenant_files");
    for name in ["device_users", "nccl_inspector", "upkeep", "pipeline"] {
        scene.wait_for_source(name, |source| source["state"] != "hung");
    }
}

#[test]
fn a_pipe_in_the_place_of_the_hosts_users_costs_names_and_holds_up_nothing() {
    let stage = or_skip!(Stage::new());
    let passwd = stage.folder().join("passwd");
    mknodat(CWD, &passwd, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut scene = Scene::with(stage, CONSOLES[3], Some(passwd));
    let (alice, records) = scene.alice(0);
    let look = |who: &Value| {
        let mut holders = who["holders"].as_array()?.iter();
        holders.find(|held| held["pid"] == alice.id()).cloned()
    };
    let held = scene.agent.wait_for("alice's process", WITHIN, look).unwrap();
    assert_eq!((&held["user"], &held["uid"]), (&"0".into(), &0.into()), "{held:#}");
    scene.wait("nccl.inspector.files", &[READ], |files| files == 1);
    write(&records);
    scene.wait("nccl.inspector.lines", &[TAKEN], |lines| lines > 0);
    for name in ["device_users", "nccl_inspector", "upkeep", "pipeline"] {
        scene.wait_for_source(name, |source| source["state"] != "hung");
    }
}
