//! The test bed's Slurm itself: that its jobs look like those of a cluster, and leave nothing.

mod claims;
pub(crate) mod grants;
pub(crate) mod hooks;
pub(crate) mod jobs;
pub(crate) mod owners;

use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{ALICE, BOB, Component, JobId, JobSpec, Plugin, Slurm, SlurmError, User};
use gpuwho_tests::slurm::{Job, Setup, Task};
use gpuwho_tests::until::until;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Tells the copy of this program that [`sweep_removes_what_a_killed_owner_left`] kills from the
/// test itself.
const OWNER: &str = "GPUWHO_TEST_SLURM_OWNER";

/// `open` of a device that the job's cgroup does not allow.
const DENIED: Result<(), Errno> = Err(Errno::PERM);

/// A cluster; the error is what the machine lacks for one. Anything else fails the test.
pub(crate) fn cluster(setup: Setup) -> Result<Slurm, SlurmError> {
    match Slurm::start(setup) {
        Err(error) if !matches!(error, SlurmError::Unavailable(_)) => panic!("{error}"),
        result => result,
    }
}

/// Where a process is, of all the cgroups of the cluster.
fn places(slurm: &Slurm, pid: u32) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let names = slurm.node_names();
    let ours = paths.filter(|path| names.iter().any(|name| path.contains(name)));
    ours.map(str::to_owned).collect()
}

/// Where Slurm 22.05, built for several slurmd on a host, puts a task. Its v1 plugin has no level
/// of tasks in the freezer.
fn task_of(
    slurm: &Slurm,
    node: usize,
    user: User,
    job: JobId,
    rest: [&str; 2],
) -> BTreeSet<String> {
    let (node, [step, task]) = (slurm.node_names()[node].to_owned(), rest);
    match slurm.plugin() {
        Plugin::V1 => {
            let step = format!("/slurm_{node}/uid_{}/job_{job}/step_{step}", user.uid);
            [step.clone(), format!("{step}/task_{task}")].into()
        }
        Plugin::V2 => {
            let scope = format!("/system.slice/{node}_slurmstepd.scope");
            [format!("{scope}/job_{job}/step_{step}/user/task_{task}")].into()
        }
    }
}

fn open(task: &mut Task, gpu: u32) -> Result<(), Errno> {
    task.open(gpu).unwrap()
}

fn one(slurm: &Slurm, spec: &JobSpec<'_>) -> (Job, Task) {
    let job = slurm.sbatch(spec).unwrap();
    let mut tasks = slurm.wait_started(&job, 1).unwrap();
    (job, tasks.remove(0))
}

fn has_its_gpus_and_no_others(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let (job, mut task) = one(&slurm, &JobSpec { gpus: 2, ..JobSpec::default() });
    assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, job.id, ["batch", "0"]));
    assert_eq!((task.job(), task.held()), (Some(job.id.0), vec![0, 1]));
    assert_eq!([2, 3].map(|gpu| open(&mut task, gpu)), [DENIED, DENIED]);

    let (second, mut other) = one(&slurm, &JobSpec { user: BOB, ..JobSpec::default() });
    assert_eq!(places(&slurm, other.pid()), task_of(&slurm, 0, BOB, second.id, ["batch", "0"]));
    assert_eq!(other.held(), [2]);
    assert_eq!([0, 1, 3].map(|gpu| open(&mut other, gpu)), [DENIED; 3]);
    let uid = fs::read_to_string(format!("/proc/{}/status", other.pid())).unwrap();
    assert!(uid.contains("Uid:\t20002\t20002\t20002\t20002\n"), "{uid}");

    let pid = task.pid();
    drop(task);
    slurm.wait_ended(&job).unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_job_of_the_v1_plugin_has_its_gpus_and_no_others() {
    has_its_gpus_and_no_others(Plugin::V1);
}

#[test]
fn a_job_of_the_v2_plugin_has_its_gpus_and_no_others() {
    has_its_gpus_and_no_others(Plugin::V2);
}

fn tasks_have_groups_of_their_own(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let direct = slurm.srun(&JobSpec { gpus: 2, tasks: 2, ..JobSpec::default() }).unwrap();
    let mut tasks = slurm.wait_started(&direct, 2).unwrap();
    tasks.sort_by_key(Task::rank);
    for (task, number) in tasks.iter().zip(["0", "1"]) {
        assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, direct.id, ["0", number]));
        let said = (task.job(), task.step(), task.rank(), task.held());
        assert_eq!(said, (Some(direct.id.0), Some(0), number.parse().ok(), vec![0, 1]));
    }
    // What srun started directly knows the step's GPUs only.
    let environ = fs::read_to_string(format!("/proc/{}/environ", tasks[0].pid())).unwrap();
    let gpus: Vec<_> = environ.split('\0').filter(|pair| pair.contains("_GPUS=")).collect();
    assert_eq!(gpus, ["SLURM_STEP_GPUS=0,1"]);

    let step: &[&str] = &["--ntasks=2", "--gres=gpu:1"];
    let spec = JobSpec { user: BOB, gpus: 2, tasks: 2, step: Some(step), ..JobSpec::default() };
    let inner = slurm.sbatch(&spec).unwrap();
    let mut tasks = slurm.wait_started(&inner, 2).unwrap();
    tasks.sort_by_key(Task::rank);
    for (task, number) in tasks.iter_mut().zip(["0", "1"]) {
        assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, BOB, inner.id, ["0", number]));
        assert_eq!(task.held(), [2]);
        // The job's, but not the step's.
        assert_eq!(open(task, 3), DENIED);
    }
    drop(tasks);
    slurm.wait_ended(&inner).unwrap();
}

#[test]
fn tasks_of_a_v1_step_have_groups_of_their_own() {
    tasks_have_groups_of_their_own(Plugin::V1);
}

#[test]
fn tasks_of_a_v2_step_have_groups_of_their_own() {
    tasks_have_groups_of_their_own(Plugin::V2);
}

#[test]
fn each_task_of_an_array_is_a_job_with_a_number_of_its_own() {
    let slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let array = slurm.sbatch(&JobSpec { array: Some("3-4"), ..JobSpec::default() }).unwrap();
    let mut tasks = slurm.wait_started(&array, 2).unwrap();
    tasks.sort_by_key(Task::array_task);
    // The last one gets the array's own number.
    let jobs = [JobId(array.id.0 + 1), array.id];
    for ((task, job), index) in tasks.iter().zip(jobs).zip([3, 4]) {
        assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, job, ["batch", "0"]));
        assert_eq!((task.job(), task.array_task()), (Some(job.0), Some(index)));
    }
    slurm.scancel(&array).unwrap();
    slurm.wait_ended(&array).unwrap();
}

fn components_are_jobs_of_their_own(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup { nodes: 2, ..Setup::of(plugin) }));
    let second = Component { gpus: 2, tasks: 2, partition: "debug" };
    let spec = JobSpec { het: &[second], step: Some(&[]), ..JobSpec::default() };
    let leader = slurm.sbatch(&spec).unwrap();
    let mut tasks = slurm.wait_started(&leader, 3).unwrap();
    tasks.sort_by_key(Task::rank);
    let follower = JobId(leader.id.0 + 1);
    let wheres = [(0, leader.id, "0", "0"), (1, follower, "0", "1"), (1, follower, "1", "2")];
    for (task, (node, job, number, rank)) in tasks.iter().zip(wheres) {
        let mut expected = task_of(&slurm, node, ALICE, job, ["0", number]);
        if plugin == Plugin::V1 {
            // The accounting of the v1 plugin counts through all components, in cpuacct alone.
            expected.extend(task_of(&slurm, node, ALICE, job, ["0", rank]));
        }
        assert_eq!(places(&slurm, task.pid()), expected);
        // What the environment says is the leader, whatever the component.
        assert_eq!(task.job(), Some(leader.id.0));
    }
    assert_eq!(tasks.iter().map(Task::held).collect::<Vec<_>>(), [vec![0], vec![0, 1], vec![0, 1]]);
    drop(tasks);
    slurm.wait_ended(&leader).unwrap();
}

#[test]
fn components_of_a_heterogeneous_v1_job_are_jobs_of_their_own() {
    components_are_jobs_of_their_own(Plugin::V1);
}

#[test]
fn components_of_a_heterogeneous_v2_job_are_jobs_of_their_own() {
    components_are_jobs_of_their_own(Plugin::V2);
}

#[test]
fn jobs_live_on_while_slurmd_restarts_and_slurmctld_hangs() {
    let mut slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let (job, mut task) = one(&slurm, &JobSpec::default());
    let place = places(&slurm, task.pid());
    slurm.restart_slurmd().unwrap();
    assert_eq!(places(&slurm, task.pid()), place);
    slurm.pause_controller().unwrap();
    assert_eq!(open(&mut task, 0), Ok(()));
    assert_eq!(places(&slurm, task.pid()), place);
    slurm.resume_controller().unwrap();
    let (_second, later) = one(&slurm, &JobSpec { user: BOB, ..JobSpec::default() });
    assert_eq!(later.held(), [1]);
    drop(task);
    slurm.wait_ended(&job).unwrap();
}

#[test]
fn a_job_may_hide_or_forge_what_its_environment_says() {
    let slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let prefix: &[&str] = &["env", "-i"];
    let (hidden, task) = one(&slurm, &JobSpec { prefix, ..JobSpec::default() });
    assert_eq!((task.job(), task.held()), (None, vec![]));
    assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, hidden.id, ["batch", "0"]));
    let prefix: &[&str] = &["env", "SLURM_JOB_ID=999", "SLURM_JOB_ACCOUNT=evil"];
    let (forged, task) = one(&slurm, &JobSpec { prefix, ..JobSpec::default() });
    assert_eq!(task.job(), Some(999));
    assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, forged.id, ["batch", "0"]));
}

fn unconstrained_jobs_may_open_anything(plugin: Plugin) {
    let setup = Setup { constrain: false, hooks: false, ..Setup::of(plugin) };
    let slurm = or_skip!(cluster(setup));
    let (job, mut task) = one(&slurm, &JobSpec::default());
    assert_eq!((open(&mut task, 3), task.held()), (Ok(()), vec![0, 3]));
    // The v2 plugin then leaves every process of the step in one group.
    let number = if plugin == Plugin::V1 { "0" } else { "special" };
    assert_eq!(places(&slurm, task.pid()), task_of(&slurm, 0, ALICE, job.id, ["batch", number]));
    assert_eq!(slurm.drop_file(job.id), None);
}

#[test]
fn jobs_of_an_unconstrained_v1_node_may_open_anything() {
    unconstrained_jobs_may_open_anything(Plugin::V1);
}

#[test]
fn jobs_of_an_unconstrained_v2_node_may_open_anything() {
    unconstrained_jobs_may_open_anything(Plugin::V2);
}

/// What a cluster has on the host.
fn traces(slurm: &Slurm) -> Vec<PathBuf> {
    let groups = slurm.cgroups().iter().filter(|directory| directory.exists());
    groups.cloned().chain([slurm.folder().to_owned()]).collect()
}

fn left(traces: &[PathBuf]) -> Vec<&PathBuf> {
    traces.iter().filter(|path| path.exists()).collect()
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn a_panic_leaves_nothing(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let (job, task) = one(&slurm, &JobSpec::default());
    let (pid, traces) = (task.pid(), traces(&slurm));
    assert!(traces.len() > 1, "{traces:?}");
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _all = (slurm, job);
        panic!("a failing test");
    }));
    assert!(result.is_err());
    assert_eq!(left(&traces), Vec::<&PathBuf>::new());
    assert!(!lives(pid));
    drop(task);
}

#[test]
fn a_panic_beside_a_v1_job_leaves_nothing_behind() {
    a_panic_leaves_nothing(Plugin::V1);
}

#[test]
fn a_panic_beside_a_v2_job_leaves_nothing_behind() {
    a_panic_leaves_nothing(Plugin::V2);
}

#[test]
fn sweep_removes_what_a_killed_owner_left() {
    if env::var_os(OWNER).is_some() {
        return own_until_killed();
    }
    drop(or_skip!(cluster(Setup::of(Plugin::V1))));
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "slurm::sweep_removes_what_a_killed_owner_left", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let made = lines.take_while(|line| line != "made all");
    let made: Vec<_> = made.filter_map(|line| Some(line.strip_prefix("made ")?.into())).collect();
    assert!(made.len() > 1, "{made:?}");
    assert_eq!(left(&made), made.iter().collect::<Vec<_>>());
    owner.kill().unwrap();
    owner.wait().unwrap();
    // Another test's sweep may have come first: what counts is that it is gone.
    Slurm::sweep().unwrap();
    let gone = until(Duration::from_secs(5), || left(&made).is_empty().then_some(()));
    assert!(gone.is_some(), "{:?}", left(&made));
}

fn own_until_killed() {
    let slurm = Slurm::start(Setup::of(Plugin::V1)).unwrap();
    let (_job, _task) = one(&slurm, &JobSpec::default());
    for path in traces(&slurm) {
        println!("made {}", path.display());
    }
    println!("made all");
    std::thread::park();
}
