//! The whole source on a host made of files: which evidence counts if the cgroup, slurmstepd, drop
//! files and environments contradict each other.

use super::*;
use crate::attribute::fake::{FakeHost, opened, v2};
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::{self, Evidence};
use crate::host::boot_time_ns;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::ProcKey;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };
const SECOND: u64 = 1_000_000_000;
const SCOPE: &str = "/system.slice/slurmstepd.scope";
const SLUID: &str = "sDNDM7XZ1H3600";

fn text(set: &AttrSet) -> Vec<String> {
    set.iter().map(|(key, value)| format!("{}={value}", key.name)).collect()
}

/// The `slurm.*` attributes and the method of a process, from all facts.
fn labels(table: &Ownership, process: ProcKey) -> Vec<String> {
    let owner = table.attribution(process).unwrap();
    let mut set = AttrSet::new();
    if let Some(task) = &owner.workload.slurm {
        set.set(&attr::SLURM_JOB_ID, task.number());
        task.describe_task(&mut set);
        task.detail_job(&mut set);
        task.detail_task(&mut set);
    }
    let mut values = text(&set);
    values.push(owner.method.as_str().to_owned());
    values
}

fn with_slurm(host: &FakeHost, slurm: Settings) -> Ownership {
    Ownership::with_settings(&host.paths, attribute::Settings { slurm, nested: false })
}

/// A process in this cgroup that opens a device, with these variables.
fn open(host: &FakeHost, table: &Ownership, process: ProcKey, cgroup: &str, environ: &[&str]) {
    host.start(process, "python", &format!("0::{cgroup}\n"));
    host.write(process, "environ", environ.join("\0") + "\0");
    let mut opened = opened(process, u64::from(process.pid), SECOND);
    opened.cgroups.0.clear();
    table.observe(Evidence::Opened(opened));
}

/// The directory of a job's step, with processes of its tasks and its daemon.
fn step(host: &FakeHost, step: &str, daemons: &[u32], tasks: &[u32]) {
    let step = host.paths.cgroup.join(step.trim_start_matches('/'));
    let lines = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join("\n");
    for (place, pids) in [("slurm", daemons), ("user/task_0", tasks)] {
        fs::create_dir_all(step.join(place)).unwrap();
        fs::write(step.join(place).join("cgroup.procs"), lines(pids)).unwrap();
    }
}

/// A slurmstepd, or a process that only has its name.
fn daemon(host: &FakeHost, pid: u32, uid: u32, comm: &str, title: &str) -> ProcKey {
    let process = ProcKey { pid, start_ticks: 50 };
    host.start(process, comm, "0::/\n");
    let status = format!("Name:\t-\nTgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
    host.write(process, "status", status);
    host.write(process, "cmdline", format!("{title}\0"));
    process
}

fn drop_file(host: &FakeHost, job: u32, variables: &[&str]) {
    let dir = host.paths.run.join("slurm/jobs");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(job.to_string());
    fs::write(&file, variables.join("\n") + "\n").unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn the_environment_labels_what_the_cgroup_names_and_the_drop_file_outranks_it() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    drop_file(&host, 42, &["SLURM_JOB_ID=42", "SLURM_JOB_ACCOUNT=ml", "SLURM_JOB_GPUS=2,3"]);
    let environ = [
        "SLURM_JOB_ID=42",
        "SLURM_JOB_ACCOUNT=evil",
        "SLURM_JOB_NAME=train",
        "SLURM_JOB_PARTITION=gpu",
        "SLURM_JOB_GPUS=0,1,2,3",
        "SLURM_STEP_ID=0",
        "SLURM_LOCALID=1",
        "SLURM_PROCID=9",
    ];
    open(&host, &table, KEY, &format!("{SCOPE}/job_42/step_0/user/task_1"), &environ);
    assert_eq!(
        labels(&table, KEY),
        [
            "slurm.job.id=42",
            "slurm.step.id=0",
            "slurm.task.id=1",
            "slurm.job.user=ada",
            "slurm.job.uid=1000",
            "slurm.job.account=ml",
            "slurm.job.partition=gpu",
            "slurm.job.name=train",
            "slurm.job.gpus=2,3",
            "slurm.facts.source=environment",
            "slurm.task.rank=9",
            "slurm.task.local_rank=1",
            "cgroup",
        ]
    );
    let attributes = table.attribution(KEY).unwrap().attributes();
    assert_eq!(
        text(&attributes)[3..],
        [
            "slurm.job.id=42",
            "slurm.job.user=ada",
            "slurm.job.account=ml",
            "slurm.job.partition=gpu",
            "slurm.job.name=train",
            "slurm.facts.source=environment",
            "slurm.step.id=0",
            "slurm.task.id=1",
            "systemd.unit=slurmstepd.scope",
            "gpuwho.owner.method=cgroup",
        ]
    );
}

#[test]
fn an_environment_that_names_another_job_changes_nothing() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    drop_file(&host, 99, &["SLURM_JOB_ID=99", "SLURM_JOB_ACCOUNT=theirs"]);
    let environ = ["SLURM_JOB_ID=99", "SLURM_JOB_ACCOUNT=evil", "SLURM_JOB_USER=eve"];
    open(&host, &table, KEY, &format!("{SCOPE}/job_42/step_0/user/task_0"), &environ);
    assert_eq!(
        labels(&table, KEY),
        [
            "slurm.job.id=42",
            "slurm.step.id=0",
            "slurm.task.id=0",
            "slurm.job.user=ada",
            "slurm.job.uid=1000",
            "slurm.facts.source=process",
            "cgroup",
        ]
    );
}

#[test]
fn a_process_without_variables_is_labelled_by_another_of_its_job() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let sibling = ProcKey { pid: 8, start_ticks: 90 };
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    host.start(sibling, "bash", &format!("0::{path}\n"));
    host.write(sibling, "environ", "SLURM_JOB_ID=42\0SLURM_JOB_NAME=train\0");
    // A PID that was reused by a process of another job.
    let foreign = ProcKey { pid: 9, start_ticks: 95 };
    host.start(foreign, "bash", &format!("0::{SCOPE}/job_43/step_0/user/task_0\n"));
    host.write(foreign, "environ", "SLURM_JOB_ID=42\0SLURM_JOB_NAME=theirs\0");
    step(&host, &format!("{SCOPE}/job_42/step_0"), &[], &[9, 8]);
    open(&host, &table, KEY, &path, &["ray::IDLE\0\0\0"]);
    assert!(labels(&table, KEY).contains(&"slurm.job.name=train".to_owned()));
}

#[test]
fn a_sluid_gets_its_number_from_slurmstepd() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    daemon(&host, 50, 0, "slurmstepd", "slurmstepd: [123.0]");
    let path = format!("{SCOPE}/{SLUID}/step_0");
    step(&host, &path, &[50], &[7]);
    drop_file(&host, 123, &["SLURM_JOB_ID=123", "SLURM_JOB_ACCOUNT=ml"]);
    open(&host, &table, KEY, &format!("{path}/user/task_0"), &[]);
    assert_eq!(
        labels(&table, KEY),
        [
            "slurm.job.id=123",
            "slurm.step.id=0",
            "slurm.task.id=0",
            "slurm.job.sluid=sDNDM7XZ1H3600",
            "slurm.job.user=ada",
            "slurm.job.uid=1000",
            "slurm.job.account=ml",
            "slurm.facts.source=process",
            "cgroup",
        ]
    );
}

#[test]
fn a_process_that_only_has_slurmstepds_name_gives_no_number() {
    for (uid, comm) in [(1000, "slurmstepd"), (0, "bash")] {
        let host = FakeHost::new();
        let table = Ownership::new(&host.paths);
        daemon(&host, 50, uid, comm, "slurmstepd: [99.0]");
        let path = format!("{SCOPE}/{SLUID}/step_0");
        step(&host, &path, &[50], &[7]);
        open(&host, &table, KEY, &format!("{path}/user/task_0"), &[]);
        assert_eq!(labels(&table, KEY)[0], format!("slurm.job.id={SLUID}"), "{uid} {comm}");
    }
    // A setuid program that a user started: effective user root, real user not.
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let forged = daemon(&host, 50, 0, "slurmstepd", "slurmstepd: [99.0]");
    host.write(forged, "status", "Name:\t-\nTgid:\t50\nUid:\t1000\t0\t0\t0\n");
    let path = format!("{SCOPE}/{SLUID}/step_0");
    step(&host, &path, &[50], &[7]);
    open(&host, &table, KEY, &format!("{path}/user/task_0"), &[]);
    assert_eq!(labels(&table, KEY)[0], format!("slurm.job.id={SLUID}"));
}

#[test]
fn a_drop_file_of_an_earlier_run_is_rejected() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    daemon(&host, 50, 0, "slurmstepd", "slurmstepd: [123.0]");
    let path = format!("{SCOPE}/{SLUID}/step_0");
    step(&host, &path, &[50], &[7]);
    let earlier = ["SLURM_JOB_ID=123", "SLURM_JOB_SLUID=sDNDM7XZ1HGS00", "SLURM_JOB_ACCOUNT=ml"];
    drop_file(&host, 123, &earlier);
    open(&host, &table, KEY, &format!("{path}/user/task_0"), &[]);
    assert!(!labels(&table, KEY).iter().any(|value| value.starts_with("slurm.job.account")));
}

#[test]
fn without_a_cgroup_the_environment_names_a_claim_and_no_job() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    drop_file(&host, 44, &["SLURM_JOB_ID=44", "SLURM_JOB_UID=1001"]);
    let session = "/user.slice/user-1000.slice/session-1.scope";
    for (pid, place, environ, claimed) in [
        (20, session, ["SLURM_JOB_ID=42", "SLURM_JOB_UID=1000"], Some("42")),
        (21, "/", ["SLURM_JOB_ID=42", "SLURM_JOB_UID=1001"], Some("42")),
        (22, "/", ["SLURM_JOB_ID=44", "SLURM_JOB_UID=1000"], Some("44")),
        (23, "/", ["SLURM_JOB_ID=4\u{1b}2", "SLURM_JOB_UID=1000"], None),
        (24, "/", ["SLURM_JOB_ID=00000000042", "SLURM_JOB_NAME=x"], Some("42")),
    ] {
        let process = ProcKey { pid, start_ticks: 100 };
        open(&host, &table, process, place, &environ);
        assert_eq!(labels(&table, process), ["cgroup"], "{environ:?}");
        let owner = table.attribution(process).unwrap();
        assert_eq!(table.owner(owner.owner).unwrap().owner, Owner::User(1000), "{environ:?}");
        let reported = owner.details();
        let reported = reported.get(&attr::CLAIMED_SLURM_JOB_ID).map(ToString::to_string);
        assert_eq!(reported.as_deref(), claimed, "{environ:?}");
        assert_eq!(owner.attributes().get(&attr::CLAIMED_SLURM_JOB_ID), None, "{environ:?}");
    }
}

#[test]
fn the_environment_of_a_pods_or_containers_process_makes_it_no_job() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let id = "c".repeat(64);
    let environ = ["SLURM_JOB_ID=42", "SLURM_JOB_UID=1000", "SLURM_JOB_NAME=x"];
    for (pid, cgroup) in [
        (31, format!("/kubepods/podaaaaaaaa-0000-4000-8000-000000000001/{id}")),
        (32, format!("/docker/{id}")),
        (33, "/lxc.payload.web01".to_owned()),
        (34, "/htcondor/condor_execute_slot1@node".to_owned()),
    ] {
        let process = ProcKey { pid, start_ticks: 100 };
        open(&host, &table, process, &cgroup, &environ);
        assert_eq!(labels(&table, process), ["cgroup"], "{cgroup}");
    }
}

#[test]
fn a_parent_that_is_slurmstepd_names_the_job_without_cgroups() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    daemon(&host, 50, 0, "slurmstepd", "slurmstepd: [42.batch]");
    let shell = ProcKey { pid: 60, start_ticks: 60 };
    host.start(shell, "bash", "0::/\n");
    host.set_parent(shell, 50);
    host.start(KEY, "python", "0::/\n");
    host.set_parent(KEY, 60);
    host.write(KEY, "environ", "SLURM_JOB_ID=99\0SLURM_JOB_UID=1000\0SLURM_JOB_NAME=forged\0");
    table.process(KEY.pid, 10 * SECOND);
    let mut values = labels(&table, KEY);
    assert_eq!(values.pop().unwrap(), "slurmstepd");
    let expected = ["slurm.job.id=42", "slurm.step.id=batch", "slurm.job.user=ada"];
    assert_eq!(values[..3], expected);
    assert!(!values.iter().any(|value| value.contains("forged")), "{values:?}");

    // The same parents, but the process named slurmstepd is a user's.
    daemon(&host, 50, 1000, "slurmstepd", "slurmstepd: [42.batch]");
    let other = ProcKey { pid: 61, start_ticks: 100 };
    host.start(other, "python", "0::/\n");
    host.set_parent(other, 60);
    table.process(other.pid, 10 * SECOND);
    assert_eq!(labels(&table, other), ["cgroup"]);
}

#[test]
fn slurm_in_a_pod_is_reported_with_the_pod_if_the_operator_configures_it() {
    let uid = "aaaaaaaa-0000-4000-8000-000000000001";
    let path = format!("/kubepods/pod{uid}/{}{SCOPE}/job_5/step_0/user/task_0", "c".repeat(64));
    let environ = ["SLURM_JOB_ID=5", "SLURM_JOB_NAME=train", "SLURM_STEP_ID=0", "SLURM_LOCALID=0"];
    for (namespaces, expected) in [
        (vec![], vec!["cgroup"]),
        (vec!["other".to_owned()], vec!["cgroup"]),
        (
            vec!["slurm".to_owned()],
            vec![
                "slurm.job.id=5",
                "slurm.step.id=0",
                "slurm.task.id=0",
                "slurm.job.name=train",
                "slurm.facts.source=environment",
                "slurm.task.local_rank=0",
                "cgroup",
            ],
        ),
    ] {
        let host = FakeHost::new();
        host.pod("slurm", "worker-0", uid, &["slurmd"]);
        let slurm =
            Settings { pod_namespaces: namespaces, ..Settings::default_settings(&host.paths) };
        let table = with_slurm(&host, slurm);
        open(&host, &table, KEY, &path, &environ);
        assert_eq!(labels(&table, KEY), expected);
        let owner = table.attribution(KEY).unwrap();
        assert_eq!(owner.workload.pod.as_ref().unwrap().name.as_deref(), Some("worker-0"));
        assert!(owner.workload.slurm.as_ref().is_none_or(|task| task.in_pod));
    }
}

#[test]
fn a_container_below_a_step_does_not_hide_the_job() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let id = "c".repeat(64);
    let environ = ["SLURM_JOB_ID=42", "SLURM_JOB_NAME=train"];
    for (pid, inner) in [(41, format!("docker-{id}.scope")), (42, id.clone())] {
        let process = ProcKey { pid, start_ticks: 100 };
        let path = format!("{SCOPE}/job_42/step_0/user/task_0/{inner}{SCOPE}/job_99/step_1");
        open(&host, &table, process, &path, &environ);
        let labels = labels(&table, process);
        assert_eq!(labels[..3], ["slurm.job.id=42", "slurm.step.id=0", "slurm.task.id=0"]);
        assert!(labels.contains(&"slurm.job.name=train".to_owned()), "{labels:?}");
        let owner = table.attribution(process).unwrap();
        assert_eq!(owner.workload.container.as_ref().unwrap().as_str(), id);
    }
}

#[test]
fn environments_are_not_read_if_the_operator_forbids_it() {
    let host = FakeHost::new();
    let slurm = Settings { environment: false, ..Settings::default_settings(&host.paths) };
    let table = with_slurm(&host, slurm);
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    open(&host, &table, KEY, &path, &["SLURM_JOB_ID=42", "SLURM_JOB_NAME=secret"]);
    assert!(!labels(&table, KEY).iter().any(|value| value.contains("secret")));
}

#[test]
fn a_job_is_announced_known_and_removed_without_any_process_on_a_gpu() {
    let host = FakeHost::new();
    let table = Ownership::with_clock(&host.paths, || SECOND);
    let job = format!("{SCOPE}/job_42");
    for (id, path) in [(5, job.clone()), (6, format!("{job}/step_0")), (9, "/x/job_1".to_owned())] {
        table.observe(Evidence::CgroupMade { id: v2(id), path: Arc::from(path) });
    }
    let sibling = ProcKey { pid: 8, start_ticks: 90 };
    host.start(sibling, "bash", &format!("0::{job}/step_0/user/task_0\n"));
    host.write(sibling, "environ", "SLURM_JOB_ID=42\0SLURM_JOB_NAME=idle\0");
    step(&host, &format!("{job}/step_0"), &[], &[8]);
    table.expire(SECOND);
    let jobs = table.jobs();
    let [found] = jobs.as_slice() else { panic!("{jobs:?}") };
    let mut set = AttrSet::new();
    found.task().detail_job(&mut set);
    assert_eq!(
        text(&set),
        [
            "slurm.job.id=42",
            "slurm.job.user=ada",
            "slurm.job.uid=1000",
            "slurm.job.name=idle",
            "slurm.facts.source=environment",
        ]
    );
    assert_eq!((&*found.path, found.removed_ns), (job.as_str(), None));
    table.observe(Evidence::CgroupRemoved { id: v2(6) });
    assert_eq!(table.jobs()[0].removed_ns, None);
    table.observe(Evidence::CgroupRemoved { id: v2(5) });
    assert_eq!(table.jobs()[0].removed_ns, Some(SECOND));
}

#[test]
fn jobs_older_than_the_agent_and_unannounced_ends_are_found() {
    let host = FakeHost::new();
    step(&host, &format!("{SCOPE}/job_42/step_0"), &[], &[]);
    step(&host, "/gpu.slice/n1_slurmstepd.scope/job_43/step_0", &[], &[]);
    step(&host, &format!("/kubepods/x{SCOPE}/job_44/step_0"), &[], &[]);
    let table = Ownership::with_clock(&host.paths, || SECOND);
    let names = |table: &Ownership, is_live: bool| {
        let jobs = table.jobs();
        let those = jobs.iter().filter(|job| job.removed_ns.is_none() == is_live);
        let mut names: Vec<String> = those.map(|job| job.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&table, true), ["42", "43"]);
    // One starts and one ends, unannounced.
    step(&host, &format!("{SCOPE}/job_45/step_0"), &[], &[]);
    fs::remove_dir_all(host.paths.cgroup.join("gpu.slice/n1_slurmstepd.scope/job_43")).unwrap();
    table.expire(100 * SECOND);
    assert_eq!(
        (names(&table, true), names(&table, false)),
        (vec!["42".to_owned(), "45".to_owned()], vec!["43".to_owned()],)
    );
}

#[test]
fn a_job_that_has_ended_when_its_process_is_resolved_is_not_live() {
    let host = FakeHost::new();
    let table = Ownership::with_clock(&host.paths, || SECOND);
    drop_file(&host, 42, &["SLURM_JOB_ID=42", "SLURM_JOB_ACCOUNT=ml"]);
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    table.observe(Evidence::CgroupMade { id: v2(70), path: Arc::from(path) });
    table.observe(Evidence::Opened(opened(KEY, 70, SECOND)));
    let labels = labels(&table, KEY);
    assert!(labels.contains(&"slurm.job.account=ml".to_owned()), "{labels:?}");
    assert_eq!(labels.last().unwrap(), "kernel");
    let removed: Vec<_> = table.jobs().iter().map(|job| job.removed_ns.is_some()).collect();
    assert_eq!(removed, [true]);
}

#[test]
fn facts_learned_later_reach_the_known_processes() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    open(&host, &table, KEY, &path, &[]);
    assert!(!labels(&table, KEY).iter().any(|value| value.contains("train")));
    let second = ProcKey { pid: 8, start_ticks: 100 };
    open(&host, &table, second, &path, &["SLURM_JOB_ID=42", "SLURM_JOB_NAME=train"]);
    table.expire(2 * SECOND);
    assert!(labels(&table, KEY).contains(&"slurm.job.name=train".to_owned()));
    let owner_id = table.owner(table.attribution(KEY).unwrap().owner).unwrap();
    assert_eq!(
        text(&owner_id.attributes),
        [
            "gpuwho.owner.kind=slurm_job",
            "slurm.job.id=42",
            "slurm.job.user=ada",
            "slurm.facts.source=environment",
            "process.owner=ada",
            "slurm.job.name=train",
        ]
    );
}

#[test]
fn an_environment_is_read_once_until_its_process_executes_another_program() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    let (sibling, began_ns) = (ProcKey { pid: 8, start_ticks: 90 }, boot_time_ns());
    host.start(sibling, "bash", &format!("0::{path}\n"));
    host.write(sibling, "environ", "SLURM_JOB_ID=42\0SLURM_JOB_NAME=train\0");
    step(&host, &format!("{SCOPE}/job_42/step_0"), &[], &[8]);
    open(&host, &table, KEY, &path, &[]);
    let is_read_again = |account: &str, second| {
        let environ = format!("SLURM_JOB_ID=42\0SLURM_JOB_ACCOUNT={account}\0");
        host.write(sibling, "environ", environ);
        table.expire(began_ns + second * SECOND);
        labels(&table, KEY).contains(&format!("slurm.job.account={account}"))
    };
    assert!(!is_read_again("first", 2));
    assert!(!is_read_again("second", 5));
    let stat = host.paths.proc.join("8/stat");
    let text = fs::read_to_string(&stat).unwrap();
    fs::write(&stat, text.replace(" 0 0 0 0 0\n", " 4711 0 0 0 0\n")).unwrap();
    assert!(is_read_again("third", 12));
}

#[test]
fn a_process_with_the_jobs_facts_is_not_resolved_again() {
    let host = FakeHost::new();
    let table = Ownership::new(&host.paths);
    let path = format!("{SCOPE}/job_42/step_0/user/task_0");
    let environ = |rank| format!("SLURM_JOB_ID=42\0SLURM_STEP_ID=0\0SLURM_LOCALID=0\0{rank}\0");
    open(&host, &table, KEY, &path, &[&environ("SLURM_PROCID=1")]);
    host.write(KEY, "environ", environ("SLURM_PROCID=2"));
    let rank = |second| {
        table.expire(second * SECOND);
        table.attribution(KEY).unwrap().workload.slurm.as_ref().unwrap().rank.clone().unwrap().rank
    };
    assert_eq!(rank(2), Some(1));
    let second = ProcKey { pid: 8, start_ticks: 100 };
    open(&host, &table, second, &path, &["SLURM_JOB_ID=42", "SLURM_JOB_NAME=train"]);
    assert_eq!(rank(3), Some(2), "the job has more facts");
}
