//! Processes that say they are a Slurm job's: a container's stay the container's, and a user's own
//! are charged to the user.

use crate::fixture::{owner, wait_for_holder};
use crate::kubernetes::pods::{USAGE, wait_for_names, watch};
use crate::points::{ALONE, WatchedAgent, is, of_process, words};
use gpuwho_tests::agent::Config;
use gpuwho_tests::containerd::{self, ContainerSpec, PodSpec, Run, WORKER};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Whose the job is that others would like to be.
const VICTIM: u32 = 1001;

/// Who is no job's.
const USER: u32 = 54_321;

/// Told by owner; the driver's list is the test's own.
const PROCESSES: &str = "gpu.owner.processes";

/// Readings in which nothing may be said of Slurm.
const READINGS: usize = 4;

/// A job on the node, as its prolog and cgroup have it.
struct Victim {
    id: String,
    _task: Worker,
}

impl Victim {
    fn new(stage: &mut Stage, gpu: u32) -> (Self, u32) {
        let group = stage.slurm_task(VICTIM, None, 0).unwrap();
        let id = group.expected.slurm_job.clone().unwrap();
        let jobs = stage.folder().join("jobs");
        fs::create_dir_all(&jobs).unwrap();
        let file = format!("SLURM_JOB_ID={id}\nSLURM_JOB_UID={VICTIM}\nSLURM_JOB_ACCOUNT=rich\n");
        fs::write(jobs.join(&id), file).unwrap();
        let script = Script { uid: Some(VICTIM), gpus: vec![gpu], ..Script::default() };
        let task = Worker::start(Some(&group), &script).unwrap();
        let pid = task.pid();
        (Self { id, _task: task }, pid)
    }
}

fn prolog(folder: &Path) -> String {
    format!("[slurm]\njobs = \"{}\"\n", folder.join("jobs").display())
}

/// Whether anything of Slurm is on a point.
fn of_slurm(point: &Value) -> bool {
    !words(point, &["slurm."]).is_empty()
}

#[test]
fn a_container_that_plays_a_slurm_step_stays_its_pods() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let (victim, task) = Victim::new(containerd.stage(), 1);
    let mut reported = watch(&containerd, "", &prolog(containerd.scratch()));
    let spec = PodSpec { namespace: "mallory", name: "miner-0", ..PodSpec::default() };
    let pod = containerd.pod(&spec).unwrap();
    let comm = "slurmstepd".to_owned();
    let script = Script { gpus: vec![0], contained: true, comm, ..Script::default() };
    let arguments = script.to_arguments().join("' '");
    let shell = format!("exec -a 'slurmstepd: [{}.0]' {WORKER} '{arguments}'", victim.id);
    let run = Run::Command(["/bin/bash", "-c", &shell].map(str::to_owned).into());
    let env = &[
        ("SLURM_JOB_ID", victim.id.as_str()),
        ("SLURM_JOB_UID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_JOB_ACCOUNT", "rich"),
    ];
    let spec = ContainerSpec { run, gpus: &[0], env, ..ContainerSpec::default() };
    let container = pod.container(&spec).unwrap();
    // The agent sees its own child too, which has a forged step for a parent.
    let child = container.start(&Script { gpus: vec![0], ..Script::default() }).unwrap();
    reported.nvml.set_processes(0, &[Some(container.pid), Some(child.pid)]).unwrap();
    reported.nvml.set_processes(1, &[Some(task)]).unwrap();
    wait_for_names(&mut reported, "the container", container.pid, &container.expected);
    wait_for_names(&mut reported, "its child", child.pid, &container.expected);
    let title = fs::read_to_string(format!("/proc/{}/cmdline", container.pid)).unwrap();
    assert!(title.starts_with(&format!("slurmstepd: [{}.0]\0", victim.id)), "{title}");
    reported.wait("the job's account", |points| {
        let own = of_process(points, USAGE, task);
        (own.last()?["attributes"]["slurm.job.account"] == "rich").then_some(())
    });
    reported.wait_for_readings(READINGS);
    let points = reported.points();
    // Where the driver lists only the container, nobody ever speaks of Slurm. Other tests' jobs on
    // this host may open the device as well, or be granted it.
    let listed = ["gpu.owner.busy.time", "gpu.owner.memory.byte_seconds"];
    let slurm: Vec<_> = points
        .iter()
        .filter(|point| {
            let pid = &point["attributes"]["process.pid"];
            let metric = point["metric"].as_str().unwrap_or_default();
            listed.iter().any(|metric| is(point, metric, 0))
                || is(point, PROCESSES, 0) && point["attributes"]["gpuwho.presence"] == "listed"
                || metric.starts_with("gpu.process.")
                    && (*pid == container.pid || *pid == child.pid)
        })
        .filter(|point| of_slurm(point))
        .collect();
    assert!(slurm.is_empty(), "{slurm:#?}");
    for pid in [container.pid, child.pid] {
        let found = wait_for_holder(&reported.agent, pid);
        assert_eq!(owner(&found), container.expected, "{found:#}");
        assert_eq!(found["method"], "cgroup", "{found:#}");
    }
}

/// A user's own session.
fn session(stage: &mut Stage) -> Group {
    let slice = format!("/user.slice/user-{USER}.slice/session-c{}.scope", std::process::id());
    stage.parent(&slice).unwrap()
}

/// A process of the user with this in its environment; its number and what is said of its job.
fn plays(
    reported: &WatchedAgent,
    group: &Group,
    gpu: u32,
    environment: &[(&str, &str)],
) -> (Worker, Value) {
    let script = Script { uid: Some(USER), gpus: vec![gpu], ..Script::default() };
    let worker = Worker::start_with(Some(group), &script, environment).unwrap();
    reported.nvml.set_processes(gpu, &[Some(worker.pid())]).unwrap();
    let found = wait_for_holder(&reported.agent, worker.pid());
    (worker, found)
}

#[test]
fn a_users_own_process_that_names_a_job_is_charged_to_its_user() {
    let mut stage = or_skip!(Stage::new());
    let (victim, task) = Victim::new(&mut stage, 4);
    let config = Config { more: prolog(stage.folder()) + ALONE, ..Config::default() };
    let mut reported = WatchedAgent::start(stage.folder(), "h100x8", config);
    reported.nvml.set_processes(4, &[Some(task)]).unwrap();
    assert_eq!(wait_for_holder(&reported.agent, task)["slurm_job"], victim.id.as_str());
    let group = session(&mut stage);
    let (user, others) = (USER.to_string(), VICTIM.to_string());
    let id = victim.id.as_str();
    // Somebody else's: as it is, as one's own, and with its real user.
    let forged = [
        vec![("SLURM_JOB_ID", id)],
        vec![("SLURM_JOB_ID", id), ("SLURM_JOB_UID", user.as_str())],
        vec![("SLURM_JOB_ID", id), ("SLURM_JOB_UID", others.as_str())],
    ];
    let mut workers = Vec::new();
    for (gpu, environment) in (1..).zip(&forged) {
        let (worker, found) = plays(&reported, &group, gpu, environment);
        let said = (&found["slurm_job"], &found["user"]);
        assert_eq!(said, (&Value::Null, &user.as_str().into()), "{environment:?}: {found:#}");
        workers.push(worker);
    }
    // One that nobody knows is a claim like the others.
    let own = [("SLURM_JOB_ID", "77"), ("SLURM_JOB_UID", user.as_str())];
    let (worker, found) = plays(&reported, &group, 5, &own);
    let claimed = &found["claims"]["gpuwho.claimed.slurm.job.id"];
    let said = (&found["slurm_job"], claimed, &found["user"]);
    assert_eq!(said, (&Value::Null, &"77".into(), &user.as_str().into()), "{found:#}");
    workers.push(worker);

    let from = reported.wait_for_readings(READINGS);
    let mut charged: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for point in &reported.points()[from..] {
        let is_listed = point["attributes"]["gpuwho.presence"] == "listed";
        if point["metric"] == PROCESSES && is_listed && point["value"].as_i64() > Some(0) {
            let index = point["attributes"]["gpu.index"].as_str().unwrap();
            let owner = words(point, &["gpuwho.owner.kind", "process.owner", "slurm.job.id"]);
            let owner: Vec<_> = owner.into_values().collect();
            charged.entry(index).or_default().insert(owner.join(" "));
        }
    }
    let mine = BTreeSet::from([format!("user {user}")]);
    let job = BTreeSet::from([format!("slurm_job {id}")]);
    let wanted = ["1", "2", "3", "4", "5"].map(|gpu| match gpu {
        "4" => (gpu, job.clone()),
        _ => (gpu, mine.clone()),
    });
    assert_eq!(charged, BTreeMap::from(wanted));
}
