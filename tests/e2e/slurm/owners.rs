//! Whose the agent says the tasks of a real Slurm are.

use super::{cluster, one, open};
use crate::fixture::{owner, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{ALICE, BOB, Component, JobId, JobSpec, Plugin, Setup, Slurm, Task};
use gpuwho_tests::stage::Expected;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// An agent on the node of a cluster, which knows the cluster's users.
pub(crate) fn watch(slurm: &Slurm) -> Agent {
    let config = Config {
        passwd: Some(slurm.passwd()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    Agent::start(slurm.folder(), &config, None).unwrap()
}

/// The owner of a job's task.
pub(crate) fn expected(
    slurm: &Slurm,
    node: usize,
    job: JobId,
    [step, task]: [&str; 2],
) -> Expected {
    // The v2 plugin's cgroups are in a scope as systemd has them, which is a unit.
    let scope = || format!("{}_slurmstepd.scope", slurm.node_names()[node]);
    Expected {
        unit: (slurm.plugin() == Plugin::V2).then(scope),
        slurm_job: Some(job.to_string()),
        slurm_step: Some(step.to_owned()),
        slurm_task: Some(task.to_owned()),
        ..Expected::default()
    }
}

fn each_task_is_its_jobs(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    let agent = watch(&slurm);
    let job = slurm.srun(&JobSpec { gpus: 2, tasks: 2, ..JobSpec::default() }).unwrap();
    let mut tasks = slurm.wait_started(&job, 2).unwrap();
    tasks.sort_by_key(Task::rank);
    let prefix: &[&str] = &["env", "SLURM_JOB_ID=999"];
    let (forged, other) = one(&slurm, &JobSpec { user: BOB, prefix, ..JobSpec::default() });
    for (task, number) in tasks.iter().zip(["0", "1"]) {
        let found = wait_for_holder(&agent, task.pid());
        assert_eq!(owner(&found), expected(&slurm, 0, job.id, ["0", number]), "{found:#}");
        assert_eq!((&found["user"], &found["comm"]), (&"alice".into(), &"python3".into()));
    }
    let found = wait_for_holder(&agent, other.pid());
    assert_eq!(owner(&found), expected(&slurm, 0, forged.id, ["batch", "0"]), "{found:#}");
    assert_eq!(found["user"], "bob");
}

#[test]
fn each_task_of_a_v1_step_is_its_jobs() {
    each_task_is_its_jobs(Plugin::V1);
}

#[test]
fn each_task_of_a_v2_step_is_its_jobs() {
    each_task_is_its_jobs(Plugin::V2);
}

fn each_component_is_a_job(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup { nodes: 2, ..Setup::of(plugin) }));
    let agent = watch(&slurm);
    let second = Component { gpus: 2, tasks: 2, partition: "debug" };
    let spec = JobSpec { het: &[second], step: Some(&[]), ..JobSpec::default() };
    let leader = slurm.sbatch(&spec).unwrap();
    let mut tasks = slurm.wait_started(&leader, 3).unwrap();
    tasks.sort_by_key(Task::rank);
    // All of them say in their environment that they are the leader's.
    let follower = JobId(leader.id.0 + 1);
    let wheres = [(0, leader.id, "0"), (1, follower, "0"), (1, follower, "1")];
    for (task, (node, job, number)) in tasks.iter().zip(wheres) {
        let found = wait_for_holder(&agent, task.pid());
        assert_eq!(owner(&found), expected(&slurm, node, job, ["0", number]), "{found:#}");
    }
}

#[test]
fn each_component_of_a_heterogeneous_v1_job_is_a_job() {
    each_component_is_a_job(Plugin::V1);
}

#[test]
fn each_component_of_a_heterogeneous_v2_job_is_a_job() {
    each_component_is_a_job(Plugin::V2);
}

/// What enroot (under pyxis) and Apptainer do to a step without the runtime's help: namespaces in
/// which its user is root and its number 1, another root directory, and the image's environment,
/// which knows nothing of Slurm. The cgroup namespace is other runtimes'.
const CONTAINED: [&str; 11] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--cgroup",
    "/bin/sh",
    "-c",
    "mount --rbind / /mnt && exec chroot /mnt env -i \"$@\"",
    "entrypoint",
];

/// Or why users may not do that here.
fn users_have_namespaces() -> Result<(), &'static str> {
    let mut command = Command::new(CONTAINED[0]);
    let done = command.args(&CONTAINED[1..]).arg("true").uid(ALICE.uid).gid(ALICE.uid).output();
    let is_done = done.is_ok_and(|output| output.status.success());
    is_done.then_some(()).ok_or("user namespaces that any user may make")
}

fn a_contained_step_is_its_jobs(plugin: Plugin) {
    let slurm = or_skip!(cluster(Setup::of(plugin)));
    or_skip!(users_have_namespaces());
    let agent = watch(&slurm);
    let job = slurm.srun(&JobSpec { prefix: &CONTAINED, ..JobSpec::default() }).unwrap();
    let mut task = slurm.wait_started(&job, 1).unwrap().remove(0);
    assert_eq!((task.job(), task.held()), (None, vec![]));
    let root = std::fs::read_link(format!("/proc/{}/root", task.pid())).unwrap();
    assert_eq!(root.to_str(), Some("/mnt"));
    assert_eq!(open(&mut task, 0), Ok(()));
    let found = wait_for_holder(&agent, task.pid());
    assert_eq!(owner(&found), expected(&slurm, 0, job.id, ["0", "0"]), "{found:#}");
    assert_eq!((&found["user"], &found["method"]), (&"alice".into(), &"cgroup".into()));
}

#[test]
fn a_v1_step_in_a_container_of_its_own_is_its_jobs() {
    a_contained_step_is_its_jobs(Plugin::V1);
}

#[test]
fn a_v2_step_in_a_container_of_its_own_is_its_jobs() {
    a_contained_step_is_its_jobs(Plugin::V2);
}
