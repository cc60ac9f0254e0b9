//! One tenant that takes series, files, log lines or events from the others.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, Running};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::open_to_all;
use gpuwho_tests::{or_skip, program};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Some readings, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// The bound on log lines is for a minute: what was left out is said after it.
const MINUTE: Duration = Duration::from_secs(100);
/// The node in the folder that stands for a GPU's.
const NODE: &str = "gpu";
/// What the attacker's pod is called.
const MALLORY: &str = "mallory-0";

/// A host with two tenants, each in a pod of its own.
struct Host {
    agent: Agent,
    nvml: FakeNvml,
    mallory: Group,
    alice: Group,
    /// Everybody may write to it.
    folder: PathBuf,
    points: PathBuf,
    _stage: Stage,
}

impl Host {
    fn new(mut stage: Stage, which: u32, series_limit: Option<u32>) -> Self {
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
        nvml.set_processes(0, &[]).unwrap();
        let mallory = stage.pod(&PodSpec { name: MALLORY, ..TRAINER }).unwrap();
        let alice = stage.pod(&PodSpec { name: "alice-0", ..TRAINER }).unwrap();
        let folder = stage.folder().join("inspector");
        fs::create_dir(&folder).unwrap();
        // The agent's own folders are in the first: there nobody may replace what is another's.
        for (path, mode) in [(stage.folder(), 0o1777), (&folder, 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        open_to_all(&folder, NODE, which).unwrap();
        let points = stage.folder().join("points.jsonl");
        let config = Config {
            interval: Some("500ms".to_owned()),
            series_limit,
            pod_logs: Some(stage.pod_logs()),
            nodes: Some(vec![folder.join(NODE).display().to_string()]),
            file: Some(points.clone()),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { agent, nvml, mallory, alice, folder, points, _stage: stage }
    }

    fn attack(&self, name: &str) -> Running {
        let folder = self.folder.to_str().unwrap();
        let groups = self.mallory.directories.iter().map(|path| path.to_str().unwrap());
        let arguments: Vec<&str> = [folder].into_iter().chain(groups).collect();
        let mut command = attacker::command(name, &arguments).unwrap();
        let (child, said) = Running::start_and_hear(&mut command).unwrap();
        assert_eq!(said, "ready\n", "{name}");
        child
    }

    /// Alice's process with a file of the Inspector's, and one record in it.
    fn alice_writes(&self) -> Running {
        let joins = self.alice.directories.iter();
        let joins: Vec<String> =
            joins.map(|path| format!("echo $$ > '{}/cgroup.procs'; ", path.display())).collect();
        let joins = joins.concat();
        let script = format!(
            "set -e; {joins} exec 9<\"$1/{NODE}\" 3>>\"$1/node-pid$$.log\"; echo ready; \
             while read -r line; do echo \"$line\" >&3; done"
        );
        let mut shell = Command::new(program::shell_with_nccl(&self.folder).unwrap());
        shell.args(["-c", &script, "sh"]).arg(&self.folder);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (mut child, said) = Running::start_and_hear(shell).unwrap();
        assert_eq!(said, "ready\n");
        let fixture = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fixtures/nccl-inspector/inspector-2.30.7-v4.0-plain.jsonl"
        );
        let text = fs::read_to_string(fixture).unwrap().replace("11229", &child.id().to_string());
        child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        child
    }

    /// Reads the points that came since the last look; distributions, which nobody here looks at,
    /// are most of them.
    fn read_points(&self, known: &mut (u64, Vec<Value>)) {
        let (offset, points) = known;
        let mut text = String::new();
        let Ok(mut file) = fs::File::open(&self.points) else { return };
        file.seek(SeekFrom::Start(*offset)).unwrap();
        file.read_to_string(&mut text).unwrap();
        let Some((whole, _)) = text.rsplit_once('\n') else { return };
        *offset += whole.len() as u64 + 1;
        let lines = whole.lines().filter(|line| !line.contains("\"kind\":\"histogram\""));
        points.extend(lines.map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }

    fn wait<T>(&self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        let mut known = (0, Vec::new());
        let found = until(WITHIN, || {
            self.read_points(&mut known);
            look(&known.1)
        });
        found.unwrap_or_else(|| {
            panic!("{what} did not come; sources: {:#}", self.agent.who().unwrap()["sources"])
        })
    }

    /// Waits for a counter of the attacker's refusals.
    fn wait_for_refusal(&self, limit: &str) {
        self.wait(&format!("refused {limit}"), |points| {
            let is_it = |point: &&Value| {
                point["metric"] == "gpuwho.owner.refused"
                    && point["attributes"]["gpuwho.owner.limit"] == limit
                    && point["attributes"]["k8s.pod.name"] == MALLORY
                    && point["value"].as_i64().is_some_and(|count| count > 0)
            };
            points.iter().find(is_it).map(drop)
        });
    }
}

/// The metrics that a process has points of.
fn metrics_of(points: &[Value], pid: u32) -> BTreeSet<String> {
    let own = points.iter().filter(|point| point["attributes"]["process.pid"] == pid);
    let alive = own.filter(|point| !point["value"].is_null());
    alive.map(|point| point["metric"].as_str().unwrap().to_owned()).collect()
}

fn of<'a>(points: &'a [Value], metric: &str, pid: u32) -> Vec<&'a Value> {
    let of =
        |point: &&Value| point["metric"] == metric && point["attributes"]["process.pid"] == pid;
    points.iter().filter(of).collect()
}

#[test]
fn a_tenant_that_makes_series_without_end_takes_none_of_anothers_process() {
    // Some thousand are the devices' and the agent's own.
    let host = Host::new(or_skip!(Stage::new()), 0, Some(5_000));
    let control = Worker::on(&host.alice, &[0]).unwrap();
    host.nvml.set_processes(0, &[Some(control.pid())]).unwrap();
    let basic = host.wait("the control's metrics", |points| {
        // Whole after some readings: rates need two.
        let infos = of(points, "gpu.process.info", control.pid()).len();
        (infos > 4).then(|| metrics_of(points, control.pid()))
    });
    assert!(basic.len() > 2, "{basic:?}");
    let _attackers = [(); 3].map(|()| host.attack("all-series"));
    host.wait("the limit", |points| {
        let is_limit = |point: &&Value| {
            point["attributes"]["gpuwho.drop.reason"] == "series_limit"
                && point["value"].as_i64().is_some_and(|count| count > 100)
        };
        points.iter().find(is_limit).map(drop)
    });
    let process = Worker::on(&host.alice, &[0]).unwrap();
    let both = [Some(control.pid()), Some(process.pid())];
    host.nvml.set_processes(0, &both).unwrap();
    host.wait("every basic series of alice's process", |points| {
        metrics_of(points, process.pid()).is_superset(&basic).then_some(())
    });
    host.wait_for_refusal("series");
    let reason = host.agent.wait_for("the owner of the dropped series", WITHIN, |who| {
        let mut sources = who["sources"].as_array()?.iter();
        let series = sources.find(|source| source["name"] == "series")?;
        let reason = series["reason"].as_str()?;
        reason.contains(MALLORY).then(|| reason.to_owned())
    });
    assert!(reason.unwrap().contains("are dropped"));
}

#[test]
fn a_tenant_with_thousands_of_files_leaves_room_for_anothers() {
    let host = Host::new(or_skip!(Stage::new()), 1, None);
    let _attacker = host.attack("all-files");
    host.wait("every place taken", |points| {
        let is_full = |point: &&Value| {
            point["metric"] == "nccl.inspector.files"
                && point["attributes"]["nccl.inspector.file.state"] == "read"
                && point["value"] == 512
        };
        points.iter().find(is_full).map(drop)
    });
    let alice = host.alice_writes();
    let bytes = host.wait("what alice's job writes", |points| {
        of(points, "nccl.inspector.bytes", alice.id()).first().map(|point| (*point).clone())
    });
    assert_eq!(bytes["attributes"]["k8s.pod.name"], "alice-0");
    host.wait_for_refusal("inspector_files");
}

#[test]
fn a_rank_that_renames_itself_all_the_time_makes_no_series_all_the_time() {
    let host = Host::new(or_skip!(Stage::new()), 2, None);
    let attacker = host.attack("renames");
    let pid = attacker.id();
    let names = host.wait("twenty readings of the rank", |points| {
        let of_rank = of(points, "nccl.inspector.info", pid);
        let name = |point: &&Value| {
            point["attributes"]["nccl.communicator.name"].as_str().map(str::to_owned)
        };
        (of_rank.len() >= 20).then(|| of_rank.iter().filter_map(name).collect::<BTreeSet<_>>())
    });
    assert!(!names.is_empty() && names.len() <= 3, "{names:?}");
    host.wait_for_refusal("rank_names");
}

#[test]
fn a_tenants_processes_do_not_fill_the_log() {
    let host = Host::new(or_skip!(Stage::new()), 3, None);
    let _attacker = host.attack("many-processes");
    host.wait("the files of most", |points| {
        let is_read = |point: &&Value| {
            point["metric"] == "nccl.inspector.files"
                && point["attributes"]["nccl.inspector.file.state"] == "read"
                && point["value"].as_i64().is_some_and(|count| count >= 50)
        };
        points.iter().find(is_read).map(drop)
    });
    let about = "reading a file of NCCL's Inspector";
    let flood = host.agent.log();
    let lines = flood.iter().filter(|line| line.contains(about)).count();
    assert!(lines <= 10, "{lines} lines of one owner");
    let alice = host.alice_writes();
    let hers = format!("{}@", alice.id());
    let line = host.agent.wait_for_log(about, WITHIN).unwrap();
    assert!(line.contains(&hers), "{line}");
    host.agent.wait_for_log("log lines were left out", MINUTE).unwrap();
    host.wait_for_refusal("log_lines");
}
