//! Claims about others: forged owners, names that hide a process; and the control sockets.

mod socket;

use super::usage::Attacker;
use crate::fixture::{TRAINER, ended, holder, wait_for_holder, watch_with};
use crate::points::{ALONE, WatchedAgent, of_process, words};
use gpuwho_tests::agent::{Config, Otlp};
use gpuwho_tests::attacker::{self, NOBODY, Running};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::prometheus::free_address;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use gpuwho_tests::{or_skip, program};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Commands answer in milliseconds; this is for a machine under load.
const ANSWERS_WITHIN: Duration = Duration::from_mins(1);
/// A process's own points.
const USAGE: &str = "gpu.process.memory.usage";
/// What all is said of a process.
const INFO: &str = "gpu.process.info";
/// Whose a process is by its points: everything that names somebody's work.
const WORK: &[&str] = &[
    "k8s.",
    "container.",
    "slurm.",
    "systemd.",
    "gpuwho.machine",
    "gpuwho.claimed",
    "gpuwho.node",
];
/// A pod that is on no node.
const GHOST: &str = "99999999-9999-4999-8999-999999999999";

/// A running attack; ended when dropped.
struct Attack(Running);

impl Attack {
    /// Starts it and waits until it is in place.
    fn start(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = attacker::command(name, arguments).unwrap();
        let command = command.envs(environment.iter().copied());
        let (child, said) = Running::start_and_hear(command).unwrap();
        assert_eq!(said.trim(), format!("ready {}", child.id()));
        Self(child)
    }

    /// One that holds a GPU below a group that is its own, in cgroups that it names.
    fn holds(gpu: u32, name: &[u8], group: &Group, path: &str, env: &[(&str, &str)]) -> Self {
        let name = name.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let gpu = gpu.to_string();
        let mut arguments = vec![gpu.as_str(), &name, path];
        arguments.extend(group.directories.iter().map(|path| path.to_str().unwrap()));
        Self::start("claims-hold", &arguments, env)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// A part of a user's own service manager, which no other test has.
fn manager(stage: &mut Stage, uid: u32) -> Group {
    static PARTS: AtomicU32 = AtomicU32::new(0);
    let (pid, part) = (std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed));
    let slice = format!("/user.slice/user-{uid}.slice/user@{uid}.service/test-{pid}-{part}.slice");
    stage.parent(&slice).unwrap()
}

/// An agent on a fake driver that lists these processes, one a device.
fn reported(stage: &Stage, pids: &[u32]) -> WatchedAgent {
    let (pod_logs, more) = (Some(stage.pod_logs()), ALONE.to_owned());
    let config = Config { pod_logs, more, ..Config::default() };
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    for (gpu, pid) in (0..).zip(pids) {
        nvml.set_processes(gpu, &[Some(*pid)]).unwrap();
    }
    WatchedAgent::start_with(stage.folder(), nvml, config)
}

/// What names work on a process's points and on its info series, once there are some.
fn named(watched: &mut WatchedAgent, pid: u32) -> [BTreeMap<String, String>; 2] {
    watched.wait_for_readings(2);
    [USAGE, INFO].map(|metric| {
        watched.wait("the process's points", |points| {
            let all = of_process(points, metric, pid);
            // Of an early point the owner may not have been known yet.
            let last =
                all.last().filter(|last| last["attributes"]["gpuwho.owner.method"] != "none");
            last.map(|point| words(point, WORK))
        })
    })
}

/// Which owners a device is charged to.
fn charged(watched: &mut WatchedAgent, gpu: u32) -> Vec<BTreeMap<String, String>> {
    let from = watched.wait_for_readings(2);
    let gpu = gpu.to_string();
    let points = &watched.points()[from..];
    let is_charge = |point: &&Value| {
        point["metric"] == "gpu.owner.memory.byte_seconds"
            && point["attributes"]["gpu.index"] == gpu
            && point["attributes"]["gpuwho.owner.kind"] != "unattributed"
    };
    let starts = ["gpuwho.owner.kind", "process.owner", "k8s.", "container.", "slurm."];
    let mut all: Vec<_> =
        points.iter().filter(is_charge).map(|point| words(point, &starts)).collect();
    all.sort();
    all.dedup();
    all
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn user(uid: u32) -> Vec<BTreeMap<String, String>> {
    vec![pairs(&[("gpuwho.owner.kind", "user"), ("process.owner", &name_of(uid))])]
}

/// As the host's `passwd` has it.
fn name_of(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.find(|fields| fields.get(2) == Some(&uid.to_string().as_str()));
    found.map_or_else(|| uid.to_string(), |fields| fields[0].to_owned())
}

#[test]
fn pods_and_containers_that_a_user_names_in_the_own_slice_are_claims() {
    let mut stage = or_skip!(Stage::new());
    let victim = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&victim, &[2]).unwrap();
    let [uid, container] =
        [&victim.expected.pod_uid, &victim.expected.container_id].map(|id| id.clone().unwrap());
    let slice = manager(&mut stage, NOBODY);
    let unit = format!("user@{NOBODY}.service");
    // Beside the attacks on one host: a foreign pod, and one of this node.
    let paths =
        [format!("kubepods/pod{GHOST}/{container}"), format!("kubepods/pod{uid}/{container}")];
    for (path, pod) in paths.iter().zip([GHOST, &uid]) {
        let attack = Attack::holds(0, b"python3", &slice, path, &[]);
        let mut watched = reported(&stage, &[attack.pid(), worker.pid()]);
        let [usage, info] = named(&mut watched, attack.pid());
        assert_eq!(usage, pairs(&[("systemd.unit", &unit)]), "{path}");
        let claims = [
            ("systemd.unit", unit.as_str()),
            ("gpuwho.claimed.pod.uid", pod),
            ("gpuwho.claimed.container.id", &container),
        ];
        assert_eq!(info, pairs(&claims), "{path}");
        assert_eq!(charged(&mut watched, 0), user(NOBODY), "{path}");
        let [usage, _] = named(&mut watched, worker.pid());
        assert_eq!(usage.get("k8s.pod.uid"), Some(&uid), "the victim keeps its own");
        drop((watched, attack));
        end_below(&slice);
    }
}

/// Removes what an attack has made in its part, however deep.
fn end_below(group: &Group) {
    for directory in &group.directories {
        let mut find = Command::new("find");
        find.arg(directory).args(["-mindepth", "1", "-depth", "-type", "d", "-delete"]);
        // The killed process leaves its cgroup a moment later.
        let removed = until(ANSWERS_WITHIN, || {
            let output = find.stderr(Stdio::null()).status().unwrap();
            output.success().then_some(())
        });
        removed.unwrap();
    }
}

#[test]
fn a_pod_named_in_a_container_is_a_claim_unless_the_operator_runs_such_clusters() {
    let mut stage = or_skip!(Stage::new());
    let [outer, inner] = ['d', 'e'].map(|digit| {
        let mut id = format!("{:08x}", std::process::id());
        id.extend(std::iter::repeat_n(digit, 64 - id.len()));
        id
    });
    let container = stage.parent(&format!("/docker/{outer}")).unwrap();
    let path = format!("kubepods/besteffort/pod{GHOST}/{inner}");
    let attack = Attack::holds(0, b"python3", &container, &path, &[]);
    let pid = attack.pid();
    let mut quiet = reported(&stage, &[pid]);
    let own = [("container.id", outer.as_str())];
    let claims = [("gpuwho.claimed.pod.uid", GHOST), ("gpuwho.claimed.container.id", &inner)];
    assert_eq!(named(&mut quiet, pid), [pairs(&own), pairs(&[&own[..], &claims].concat())]);
    assert_eq!(
        charged(&mut quiet, 0),
        [pairs(&[("gpuwho.owner.kind", "container"), ("container.id", &outer)])]
    );
    drop(quiet);

    let more = ALONE.replace("[kubernetes]\n", "[kubernetes]\nnested = true\n");
    let config = Config { pod_logs: Some(stage.pod_logs()), more, ..Config::default() };
    let mut kind = WatchedAgent::start(stage.folder(), "h100x8", config);
    kind.nvml.set_processes(0, &[Some(pid)]).unwrap();
    let pod = [
        ("k8s.pod.uid", GHOST),
        ("k8s.pod.qos_class", "besteffort"),
        ("container.id", inner.as_str()),
    ];
    let node = [("gpuwho.node.container.id", outer.as_str())];
    assert_eq!(named(&mut kind, pid), [pairs(&pod), pairs(&[&pod[..], &node].concat())]);
}

#[test]
fn a_container_that_a_delegated_service_names_is_a_claim() {
    let mut stage = or_skip!(Stage::new());
    let victim = stage.pod(&TRAINER).unwrap();
    let container = victim.expected.container_id.unwrap();
    let service = stage.service("theirs").unwrap();
    let unit = service.expected.unit.clone().unwrap();
    let attack = Attack::holds(0, b"python3", &service, &format!("docker/{container}"), &[]);
    let mut watched = reported(&stage, &[attack.pid()]);
    let claims = [("systemd.unit", unit.as_str()), ("gpuwho.claimed.container.id", &container)];
    assert_eq!(named(&mut watched, attack.pid()), [pairs(&claims[..1]), pairs(&claims)]);
}

#[test]
fn a_job_that_only_an_environment_names_is_a_claim() {
    let mut stage = or_skip!(Stage::new());
    let slice = manager(&mut stage, NOBODY);
    let own = NOBODY.to_string();
    let environment = [
        ("SLURM_JOB_ID", "4242"),
        ("SLURM_JOB_UID", own.as_str()),
        ("SLURM_JOB_ACCOUNT", "rich"),
        ("SLURM_CLUSTER_NAME", "alpha"),
    ];
    let attack = Attack::holds(0, b"python3", &slice, "run", &environment);
    let mut watched = reported(&stage, &[attack.pid()]);
    let unit = format!("user@{NOBODY}.service");
    let claims = [("systemd.unit", unit.as_str()), ("gpuwho.claimed.slurm.job.id", "4242")];
    assert_eq!(named(&mut watched, attack.pid()), [pairs(&claims[..1]), pairs(&claims)]);
    assert_eq!(charged(&mut watched, 0), user(NOBODY));
    let who = watched.who();
    let found = holder(&who, attack.pid()).unwrap();
    assert_eq!((&found["slurm_job"], &found["method"]), (&Value::Null, &"cgroup".into()));
}

#[test]
fn a_flux_job_is_charged_to_its_user_and_a_tenant_gains_nothing_by_a_unit_of_that_name() {
    const JOBS_USER: u32 = 54_321;
    let mut stage = or_skip!(Stage::new());
    let unit = format!("imp-shell-0-f{}.service", std::process::id());
    let below = |uid: u32| format!("/user.slice/user-{uid}.slice/user@{uid}.service/{unit}");
    let job = stage.parent(&below(901)).unwrap();
    let job = Worker::start(
        Some(&job),
        &Script { uid: Some(JOBS_USER), gpus: vec![0], ..Script::default() },
    )
    .unwrap();
    // The tenant's own, where something runs as another user: sudo, a user namespace.
    let own = stage.parent(&below(NOBODY)).unwrap();
    let sudo =
        Worker::start(Some(&own), &Script { uid: Some(1001), gpus: vec![1], ..Script::default() })
            .unwrap();
    let mut watched = reported(&stage, &[job.pid(), sudo.pid()]);
    named(&mut watched, job.pid());
    named(&mut watched, sudo.pid());
    assert_eq!(
        [charged(&mut watched, 0), charged(&mut watched, 1)],
        [user(JOBS_USER), user(NOBODY)]
    );
}

#[test]
fn a_process_whose_name_is_no_text_is_not_told_to_have_ended() {
    let mut stage = or_skip!(Stage::new());
    let slice = manager(&mut stage, NOBODY);
    let agent = watch_with(&stage, Config { bpf: Some(false), ..Config::default() });
    let attack = Attack::holds(0, b"\xff\xfeA", &slice, "run", &[]);
    wait_for_holder(&agent, attack.pid());
    // Each is found by a later scan, which would have told the end of the first.
    for gpu in [1, 2] {
        let later = Worker::on(&slice, &[gpu]).unwrap();
        wait_for_holder(&agent, later.pid());
    }
    let who = agent.who().unwrap();
    let found = holder(&who, attack.pid()).unwrap();
    assert_eq!((ended(&who, attack.pid()), &found["comm"]), (None, &"\u{fffd}\u{fffd}A".into()));
}

#[test]
fn names_with_escapes_and_directions_reach_neither_terminal_nor_points() {
    let mut stage = or_skip!(Stage::new());
    let slice = manager(&mut stage, NOBODY);
    let path = "\u{1b}[2J\u{202e}x\u{200b}.service";
    let attack = Attack::holds(0, b"\x1b[2J\xe2\x80\xae", &slice, path, &[]);
    // As a service of the host's whose name holds them too.
    let service = stage.parent("/system.slice/\u{1b}]0;x\u{7}\u{202e}.service").unwrap();
    let worker = Worker::on(&service, &[1]).unwrap();
    let mut watched = reported(&stage, &[attack.pid(), worker.pid()]);
    let [_, info] = named(&mut watched, attack.pid());
    let claimed = "\u{fffd}[2J\u{fffd}x\u{fffd}.service";
    assert_eq!(info["gpuwho.claimed.systemd.unit"], claimed);
    let [usage, _] = named(&mut watched, worker.pid());
    assert_eq!(usage["systemd.unit"], "\u{fffd}]0;x\u{fffd}\u{fffd}.service");
    let all = watched.points().iter().map(ToString::to_string).collect::<String>();
    // JSON writes control characters as `\u001b`.
    for hidden in ["\\u001b", "\u{202e}", "\u{200b}"] {
        assert!(!all.contains(hidden), "{hidden:?}");
    }
    let mut command = Command::new(program::gpuwho().unwrap());
    let table = command.arg("--socket").arg(watched.agent.socket()).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("]0;x"), "{table}");
    let is_odd = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{200b}".contains(c));
    assert!(!table.contains(is_odd), "{table:?}");
}

/// Whether a text would do more on a terminal than to show letters.
fn is_odd(c: char) -> bool {
    c.is_control() || "\u{202e}\u{200b}".contains(c)
}

#[test]
fn words_of_a_receiver_a_process_and_a_kernel_line_are_printable_wherever_they_are_told() {
    let mut stage = or_skip!(Stage::new());
    let slice = manager(&mut stage, NOBODY);
    let attack = Attack::holds(0, b"\x1b[2J\xe2\x80\xaeodd", &slice, "run", &[]);
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap().from_now();
    nvml.set_processes(0, &[Some(attack.pid())]).unwrap();
    let mut kmsg = Kmsg::new(stage.folder()).unwrap();
    let address = free_address(stage.folder()).unwrap();
    let _receiver = Attacker::start(&mut attacker::command("words", &[&address]).unwrap());
    let otlp = Otlp { endpoint: format!("http://{address}"), protocol: Some("http/json") };
    let config = Config {
        pod_logs: Some(stage.pod_logs()),
        kmsg: Some(kmsg.path()),
        more: ALONE.to_owned(),
        otlp: Some(otlp),
        ..Config::default()
    };
    let mut watched = WatchedAgent::start_with(stage.folder(), nvml, config);
    named(&mut watched, attack.pid());
    // As the kernel writes a name with such bytes.
    let pid = attack.pid();
    let name = "\\x1b[2J\\xe2\\x80\\xaeodd";
    let line =
        format!("NVRM: Xid (PCI:0000:10:00): 13, pid={pid}, name={name}, Graphics Exception");
    kmsg.write_line(&line).unwrap();
    watched.wait("the fault", |points| {
        let is_it =
            |point: &&Value| point["event"] == "gpu.xid" && point.to_string().contains("odd");
        points.iter().find(is_it).map(drop)
    });
    let log = watched.agent.wait_for_log("refusal", ANSWERS_WITHIN).unwrap();
    let all = watched.points().iter().map(ToString::to_string).collect::<String>();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(program::gpuwho().unwrap());
        let output = command.args(arguments).arg("--socket").arg(watched.agent.socket()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let [events, table, json] = [&["events"][..], &[], &["--json"]].map(ask);
    for (what, text) in
        [("log", &log), ("points", &all), ("events", &events), ("table", &table), ("json", &json)]
    {
        assert!(text.contains("odd"), "{what}: {text}");
        let lines = text.lines().flat_map(|line| line.split("}{"));
        let mut odd = lines.filter(|line| line.contains(is_odd) || line.contains("\\u001b"));
        assert_eq!(odd.next(), None, "{what}");
    }
    assert!(!watched.agent.log().iter().any(|line| line.starts_with("WARN forged")));
}
