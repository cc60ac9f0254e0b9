//! Jobs of a real Slurm: the names on their points, and where they come from.

use crate::points::{ALONE, WatchedAgent, expected, is, longest_gap, of_process, words};
use crate::slurm::cluster;
use gpuwho_tests::agent::Config;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{
    ALICE, BOB, Component, JobId, JobSpec, Plugin, Setup, Slurm, Task, User,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a process says of its memory has the small identity.
const USAGE: &str = "gpu.process.memory.usage";

/// Everything that is known is here.
const INFO: &str = "gpu.process.info";

/// Readings while slurmctld is stopped.
const READINGS: usize = 6;

/// The agent's interval.
const INTERVAL: Duration = Duration::from_millis(500);

/// An agent on a cluster's node, which reads what its prolog leaves.
pub(crate) fn watch(slurm: &Slurm, nvml: FakeNvml) -> WatchedAgent {
    let config = Config {
        passwd: Some(slurm.passwd()),
        more: format!("[slurm]\njobs = \"{}\"\n{ALONE}", slurm.prolog_dir().display()),
        ..Config::default()
    };
    WatchedAgent::start_with(slurm.folder(), nvml, config)
}

/// The names that a process's points should carry.
fn names(task: &Named<'_>) -> BTreeMap<String, String> {
    let User { name, .. } = task.user;
    let id = task.job.to_string();
    let mut all = expected([
        ("slurm.job.id", id.as_str()),
        ("slurm.step.id", task.place[0]),
        ("slurm.task.id", task.place[1]),
        ("slurm.cluster.name", "lab"),
        ("slurm.job.user", name),
        ("slurm.job.account", task.account),
        ("slurm.job.partition", task.partition),
        ("slurm.facts.source", task.source),
        ("process.owner", name),
        ("gpuwho.owner.method", "cgroup"),
    ]);
    all.extend(expected(task.more.iter().copied()));
    all
}

/// A task and what is to be said of it.
struct Named<'a> {
    what: &'a str,
    pid: u32,
    job: JobId,
    user: User,
    place: [&'a str; 2],
    account: &'a str,
    partition: &'a str,
    source: &'a str,
    more: Vec<(&'a str, &'a str)>,
}

const STARTS: [&str; 3] = ["slurm.", "process.owner", "gpuwho.owner.method"];

/// Waits until the last point of each has its names, and none of another job ever.
fn wait_for_names(reported: &mut WatchedAgent, all: &[Named<'_>]) {
    for task in all {
        let wanted = names(task);
        reported.wait(&format!("the names of {}: {wanted:#?}", task.what), |points| {
            let own = of_process(points, USAGE, task.pid);
            (words(own.last()?, &STARTS) == wanted).then_some(())
        });
    }
    for task in all {
        let ids = of_process(reported.points(), USAGE, task.pid).into_iter().filter_map(|point| {
            point["attributes"]["slurm.job.id"].as_str().filter(|id| *id != task.job.to_string())
        });
        assert_eq!(ids.collect::<Vec<_>>(), [] as [&str; 0], "{}", task.what);
    }
}

/// Every reading has the names, and all of them.
fn names_stay(points: &[Value], all: &[Named<'_>]) {
    for task in all {
        let own = of_process(points, USAGE, task.pid);
        assert!(own.len() >= READINGS, "{}: {}", task.what, own.len());
        let other: Vec<_> =
            own.into_iter().filter(|point| words(point, &STARTS) != names(task)).collect();
        assert!(other.is_empty(), "{}: {other:#?}", task.what);
    }
}

fn points_have_the_names_of_their_job(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let nvml = FakeNvml::install(slurm.folder(), "h100x8").unwrap();
    let mut reported = watch(&slurm, nvml);
    let spec = JobSpec { tasks: 2, name: "pretrain", ..JobSpec::default() };
    let step = slurm.srun(&spec).unwrap();
    let array = JobSpec {
        user: BOB,
        name: "sweep",
        account: "chem",
        partition: "debug",
        array: Some("3"),
        ..JobSpec::default()
    };
    let array = slurm.sbatch(&array).unwrap();
    let mut tasks = slurm.wait_started(&step, 2).unwrap();
    tasks.sort_by_key(Task::rank);
    tasks.extend(slurm.wait_started(&array, 1).unwrap());
    let pids: Vec<_> = tasks.iter().map(|task| Some(task.pid())).collect();
    reported.nvml.set_processes(0, &pids).unwrap();

    let number = array.id.to_string();
    let of_step = |rank: usize| Named {
        what: "a task of a step",
        pid: tasks[rank].pid(),
        job: step.id,
        user: ALICE,
        place: ["0", ["0", "1"][rank]],
        account: "ml",
        partition: "gpu",
        // The prolog of this Slurm is not told a job's name.
        source: "environment",
        more: vec![("slurm.job.name", "pretrain")],
    };
    let of_array = Named {
        what: "a task of an array",
        pid: tasks[2].pid(),
        job: array.id,
        user: BOB,
        place: ["batch", "0"],
        account: "chem",
        partition: "debug",
        source: "environment",
        more: vec![
            ("slurm.job.name", "sweep"),
            ("slurm.array.job.id", number.as_str()),
            ("slurm.array.task.id", "3"),
        ],
    };
    let all = [of_step(0), of_step(1), of_array];
    wait_for_names(&mut reported, &all);

    // Nothing asks slurmctld: it may as well be dead.
    slurm.pause_controller().unwrap();
    let from = reported.wait_for_readings(READINGS);
    let points = &reported.points()[from..];
    names_stay(points, &all);
    let gap = longest_gap(points);
    assert!(gap < INTERVAL * 2, "{gap:?} between two readings");
    slurm.resume_controller().unwrap();
}

#[test]
fn points_have_the_names_of_their_v1_job_while_slurmctld_is_stopped() {
    points_have_the_names_of_their_job(Plugin::V1);
}

#[test]
fn points_have_the_names_of_their_v2_job_while_slurmctld_is_stopped() {
    points_have_the_names_of_their_job(Plugin::V2);
}

/// What a job's environment says is only believed where it names the job of its cgroup.
fn environments_change_nothing(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let nvml = FakeNvml::install(slurm.folder(), "h100x8").unwrap();
    let mut reported = watch(&slurm, nvml);
    let victim = slurm.sbatch(&JobSpec { account: "rich", ..JobSpec::default() }).unwrap();
    let rich = slurm.wait_started(&victim, 1).unwrap();
    let id = format!("SLURM_JOB_ID={}", victim.id);
    let forge: &[&str] = &[
        "env",
        &id,
        "SLURM_JOBID=1",
        "SLURM_JOB_ACCOUNT=rich",
        "SLURM_JOB_USER=alice",
        "SLURM_JOB_UID=20001",
        "SLURM_JOB_PARTITION=vip",
        "SLURM_STEP_ID=7",
    ];
    let spec = JobSpec { user: BOB, account: "poor", ..JobSpec::default() };
    // srun's own tasks: no shell of the job has its first environment.
    let forged = slurm.srun(&JobSpec { prefix: forge, ..spec }).unwrap();
    let hidden = slurm.srun(&JobSpec { prefix: &["env", "-i"], ..spec }).unwrap();
    let mut tasks = slurm.wait_started(&forged, 1).unwrap();
    tasks.extend(slurm.wait_started(&hidden, 1).unwrap());
    assert_eq!((tasks[0].job(), tasks[1].job()), (Some(victim.id.0), None));
    let pids: Vec<_> = rich.iter().chain(&tasks).map(|task| Some(task.pid())).collect();
    reported.nvml.set_processes(0, &pids).unwrap();
    let poor = |what, pid, job| Named {
        what,
        pid,
        job,
        user: BOB,
        place: ["0", "0"],
        account: "poor",
        partition: "gpu",
        source: "prolog",
        more: Vec::new(),
    };
    let all = [
        poor("a forged environment", tasks[0].pid(), forged.id),
        poor("an empty environment", tasks[1].pid(), hidden.id),
    ];
    wait_for_names(&mut reported, &all);
    let from = reported.wait_for_readings(READINGS);
    let points = &reported.points()[from..];
    names_stay(points, &all);
    for task in &all {
        let info = of_process(points, INFO, task.pid);
        let text = format!("{info:?}");
        assert!(!info.is_empty() && !text.contains("rich") && !text.contains("vip"), "{info:#?}");
    }
    // Nor is anything charged to the victim by them.
    let ids = [victim.id, forged.id, hidden.id].map(|id| (id.to_string(), vec![1]));
    assert_eq!(listed(points), BTreeMap::from(ids));
}

/// How many processes on the first device each job has, by the driver's list.
fn listed(points: &[Value]) -> BTreeMap<String, Vec<i64>> {
    let all = points.iter().filter(|point| is(point, "gpu.owner.processes", 0));
    let listed = all.filter(|point| point["attributes"]["gpuwho.presence"] == "listed");
    let mut count: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for point in listed {
        let job = words(point, &["slurm.job.id"]).remove("slurm.job.id").unwrap_or_default();
        count.entry(job).or_default().extend(point["value"].as_i64());
    }
    count.values_mut().for_each(Vec::dedup);
    count
}

#[test]
fn a_forged_or_empty_environment_takes_a_v1_job_no_names_and_gives_it_none() {
    environments_change_nothing(Plugin::V1);
}

#[test]
fn a_forged_or_empty_environment_takes_a_v2_job_no_names_and_gives_it_none() {
    environments_change_nothing(Plugin::V2);
}

#[test]
fn a_component_of_a_heterogeneous_job_says_which_one_it_is() {
    let slurm = or_skip!(cluster(Setup { nodes: 2, ..Setup::of(Plugin::V2) }));
    let nvml = FakeNvml::install(slurm.folder(), "h100x8").unwrap();
    let mut reported = watch(&slurm, nvml);
    let second = Component { gpus: 1, tasks: 1, partition: "debug" };
    let spec = JobSpec { het: &[second], step: Some(&[]), ..JobSpec::default() };
    let leader = slurm.sbatch(&spec).unwrap();
    let mut tasks = slurm.wait_started(&leader, 2).unwrap();
    tasks.sort_by_key(Task::rank);
    // Both say in their environment that they are the leader's.
    assert!(tasks.iter().all(|task| task.job() == Some(leader.id.0)));
    let pids: Vec<_> = tasks.iter().map(|task| Some(task.pid())).collect();
    reported.nvml.set_processes(0, &pids).unwrap();
    let (first, follower) = (leader.id.to_string(), (leader.id.0 + 1).to_string());
    for (task, id, offset, partition) in
        [(&tasks[0], &first, "0", "gpu"), (&tasks[1], &follower, "1", "debug")]
    {
        let wanted = expected([
            ("slurm.job.id", id.as_str()),
            ("slurm.het.job.id", &first),
            ("slurm.het.job.offset", offset),
            ("slurm.job.partition", partition),
            ("slurm.job.account", "ml"),
            ("slurm.job.user", "alice"),
        ]);
        let starts: Vec<_> = wanted.keys().map(String::as_str).collect();
        reported.wait(&format!("component {offset}: {wanted:#?}"), |points| {
            let info = of_process(points, INFO, task.pid());
            let mut found = words(info.last()?, &starts);
            found.retain(|key, _| wanted.contains_key(key));
            (found == wanted).then_some(())
        });
    }
}
