//! The stage itself: what the other tests and the demo stand on.

use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Driver, Expected, Group, Layout, PodSpec, Qos, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Script};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::os::linux::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Tells the copy of this program that [`sweep_removes_what_a_killed_owner_left`] kills from the
/// test itself.
const OWNER: &str = "GPUWHO_TEST_STAGE_OWNER";

const TRAINER: PodSpec<'_> = PodSpec {
    namespace: "research",
    name: "trainer-0",
    container: "train",
    qos: Qos::Burstable,
    driver: Driver::Cgroupfs,
};

/// The paths of a process by hierarchy, without the hierarchies' numbers.
fn cgroups(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let fields = text.lines().map(|line| line.splitn(3, ':').skip(1));
    let mut pairs = fields.map(|mut pair| (pair.next().unwrap(), pair.next().unwrap()));
    pairs.by_ref().map(|(name, path)| (name.to_owned(), path.to_owned())).collect()
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

/// The device nodes a process holds, as `/proc` names them.
fn nodes(pid: u32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let names = links.map(|link| link.display().to_string());
    names.filter(|name| name.contains("nvidia")).collect()
}

fn gpu_nodes(gpus: &[u32]) -> BTreeSet<String> {
    let gpus = gpus.iter().map(|gpu| format!("/dev/nvidia{gpu}"));
    gpus.chain(["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()]).collect()
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn groups_appear_everywhere_and_vanish_with_the_stage() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let uid = pod.expected.pod_uid.clone().unwrap();
    let container = pod.expected.container_id.clone().unwrap();
    assert_eq!(pod.path, format!("/kubepods/burstable/pod{uid}/{container}"));
    let hierarchies = stage.hierarchies().clone();
    assert_eq!(pod.directories.len(), hierarchies.v1.len() + usize::from(hierarchies.v2.is_some()));
    assert_eq!(missing(&pod.directories), Vec::<PathBuf>::new());
    let log = stage.pod_logs().join(format!("research_trainer-0_{uid}/train/0.log"));
    assert!(log.is_file(), "{log:?}");

    drop(stage);
    assert_eq!(missing(&pod.directories), pod.directories);
    let of_the_pod = pod.directories.iter().map(|path| path.parent().unwrap().to_owned());
    let of_the_pod: Vec<_> = of_the_pod.collect();
    assert_eq!(missing(&of_the_pod), of_the_pod);
    assert!(!log.exists(), "{log:?}");
}

fn missing(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter(|path| !path.exists()).cloned().collect()
}

#[test]
fn a_worker_is_in_its_pod_in_every_hierarchy() {
    let mut stage = or_skip!(Stage::new());
    for (qos, driver) in [
        (Qos::Burstable, Driver::Cgroupfs),
        (Qos::Guaranteed, Driver::Cgroupfs),
        (Qos::BestEffort, Driver::Systemd),
        (Qos::Guaranteed, Driver::Systemd),
    ] {
        let pod = stage.pod(&PodSpec { qos, driver, ..TRAINER }).unwrap();
        let worker = Worker::on(&pod, &[0]).unwrap();
        let cgroups = cgroups(worker.pid());
        let elsewhere: Vec<_> = cgroups.iter().filter(|(_, path)| *path != pod.path).collect();
        assert!(elsewhere.is_empty(), "not in {}: {elsewhere:?}", pod.path);
    }
}

#[test]
fn a_task_of_slurm_is_where_its_plugin_puts_it() {
    let mut stage = or_skip!(Stage::new());
    let task = stage.slurm_task(1001, None, 3).unwrap();
    let worker = Worker::on(&task, &[0]).unwrap();
    let job = task.expected.slurm_job.clone().unwrap();
    let cgroups = cgroups(worker.pid());
    let unified = &cgroups.iter().find(|(name, _)| name.is_empty()).unwrap().1;
    if stage.hierarchies().layout() == Some(Layout::V2) {
        let scope = format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_3");
        assert_eq!(*unified, scope);
    } else {
        assert!(!unified.contains(&job), "{cgroups:?}");
        let path = format!("/slurm/uid_1001/job_{job}/step_0/task_3");
        let v1: Vec<_> = cgroups.iter().filter(|(name, _)| !name.is_empty()).collect();
        assert!(v1.iter().all(|(_, found)| *found == path), "{cgroups:?}");
    }
    let expected = Expected {
        slurm_job: Some(job),
        slurm_step: Some("0".to_owned()),
        slurm_task: Some("3".to_owned()),
        ..Expected::default()
    };
    assert_eq!(task.expected, expected);
}

#[test]
fn a_worker_holds_the_nodes_of_its_gpus() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&pod, &[2, 5]).unwrap();
    assert_eq!(nodes(worker.pid()), gpu_nodes(&[2, 5]));
    let idle = Worker::on(&pod, &[]).unwrap();
    assert_eq!(nodes(idle.pid()), BTreeSet::new());
}

#[test]
fn a_worker_can_be_another_user_under_another_name() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let script = Script {
        comm: "vllm".to_owned(),
        uid: Some(1001),
        gpus: vec![0],
        relative: true,
        ..Script::default()
    };
    let worker = Worker::start(Some(&pod), &script).unwrap();
    assert_eq!(comm(worker.pid()), "vllm");
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap();
    assert!(status.contains("Uid:\t1001\t1001\t1001\t1001\n"), "{status}");
    assert_eq!(nodes(worker.pid()), gpu_nodes(&[0]));
}

#[test]
fn forked_children_hold_what_their_parent_opened() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let script = Script { gpus: vec![1], forks: 2, ..Script::default() };
    let worker = Worker::start(Some(&pod), &script).unwrap();
    let children = worker.children().to_vec();
    assert_eq!(children.len(), 2);
    for child in &children {
        assert_eq!(nodes(*child), gpu_nodes(&[1]));
        assert_eq!(cgroups(*child), cgroups(worker.pid()));
    }
    worker.stop();
    assert_eq!(children.iter().filter(|child| lives(**child)).count(), 0);
}

#[test]
fn a_worker_that_becomes_another_program_keeps_its_nodes() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let exec = Some("trainer".to_owned());
    let worker =
        Worker::start(Some(&pod), &Script { gpus: vec![3], exec, ..Script::default() }).unwrap();
    assert_eq!(comm(worker.pid()), "trainer");
    assert_eq!(nodes(worker.pid()), gpu_nodes(&[3]));
}

#[test]
fn a_worker_can_be_moved_and_can_be_gone_at_once() {
    let mut stage = or_skip!(Stage::new());
    let (one, two) = (stage.pod(&TRAINER).unwrap(), stage.pod(&TRAINER).unwrap());
    let worker = Worker::on(&one, &[0]).unwrap();
    worker.move_to(&two).unwrap();
    assert!(cgroups(worker.pid()).iter().all(|(_, path)| *path == two.path));
    let gone = Worker::flash(&one, &[0], Duration::from_millis(30)).unwrap();
    assert!(!lives(gone));
}

#[test]
fn a_storm_names_every_process_it_was_made_of() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let hold = Hold::Storm { count: 200, per_second: 0 };
    let storm = Worker::start(Some(&pod), &Script { gpus: vec![0], hold, ..Script::default() });
    let storm = storm.unwrap();
    let different: BTreeSet<_> = storm.children().iter().collect();
    assert_eq!(different.len(), 200);
    assert_eq!(nodes(storm.pid()), BTreeSet::new());
}

#[test]
fn the_private_dev_does_not_touch_the_host() {
    let look = || {
        let entries = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().file_name());
        (entries.collect::<BTreeSet<_>>(), fs::metadata("/dev").unwrap().st_dev())
    };
    let before = look();
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&pod, &[0]).unwrap();
    assert_eq!(look(), before);
    let own = fs::metadata(format!("/proc/{}/root/dev", worker.pid())).unwrap();
    assert_ne!(own.st_dev(), before.1);
}

#[test]
fn dropping_the_stage_ends_workers_that_still_run() {
    let mut stage = or_skip!(Stage::new());
    let service = stage.service("ollama").unwrap();
    let worker = Worker::on(&service, &[0]).unwrap();
    drop(stage);
    assert_eq!(missing(&service.directories), service.directories);
    assert!(nothing_left_of(worker.pid()));
}

/// A killed process is a zombie until its parent, this test, reaps it.
fn nothing_left_of(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _stage = stage;
        panic!("a failing test");
    }));
    assert!(result.is_err());
    assert_eq!(missing(&pod.directories), pod.directories);
}

#[test]
fn one_stage_does_not_take_another_ones_parents_away() {
    let mut one = or_skip!(Stage::new());
    let mut two = Stage::new().unwrap();
    let (_first, second) = (one.pod(&TRAINER).unwrap(), two.pod(&TRAINER).unwrap());
    drop(one);
    assert_eq!(missing(&second.directories), Vec::<PathBuf>::new());
    let again: Group = two.pod(&TRAINER).unwrap();
    assert_eq!(missing(&again.directories), Vec::<PathBuf>::new());
}

#[test]
fn sweep_removes_what_a_killed_owner_left() {
    if env::var_os(OWNER).is_some() {
        return own_until_killed();
    }
    drop(or_skip!(Stage::new()));
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "harness::stage::sweep_removes_what_a_killed_owner_left", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let mut paths = lines.filter_map(|line| line.unwrap().strip_prefix("made ").map(PathBuf::from));
    let made = paths.next().unwrap();
    assert!(made.is_dir(), "{made:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    // Another test's sweep may have come first: what counts is that it is gone.
    Stage::sweep().unwrap();
    assert!(!made.exists(), "{made:?}");
}

fn own_until_killed() {
    let mut stage = Stage::new().unwrap();
    let pod = stage.pod(&TRAINER).unwrap();
    let _worker = Worker::on(&pod, &[0]).unwrap();
    println!("made {}", pod.directories.last().unwrap().display());
    std::thread::park();
}
