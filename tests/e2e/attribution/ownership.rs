//! Whose a process is, as `gpuwho --json` says it, for processes that really open device nodes.

use crate::fixture::{
    SEEN_WITHIN, TRAINER, ended, holder, owner, wait_for_holder, watch, watch_with, without_kernel,
};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::program;
use gpuwho_tests::stage::{Driver, Expected, Group, PodSpec, Qos, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Opener, Script};
use gpuwho_tests::{or_skip, skip};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Shorter than any scan of `/proc` could be.
const FLASH: Duration = Duration::from_millis(30);

#[test]
fn a_holder_has_the_owner_its_cgroup_says() {
    let mut stage = or_skip!(Stage::new());
    let systemd = PodSpec { driver: Driver::Systemd, qos: Qos::Guaranteed, ..TRAINER };
    let groups: [Group; 4] = [
        stage.pod(&TRAINER).unwrap(),
        stage.pod(&systemd).unwrap(),
        stage.slurm_task(1001, None, 3).unwrap(),
        stage.service("ollama").unwrap(),
    ];
    let agent = watch(&stage);
    for group in &groups {
        let worker = Worker::on(group, &[1]).unwrap();
        let found = wait_for_holder(&agent, worker.pid());
        assert_eq!(owner(&found), group.expected, "in {}: {found:#}", group.path);
        assert_eq!(ended(&agent.who().unwrap(), worker.pid()), None);
        assert_eq!(found["comm"], "python3");
    }
}

#[test]
fn a_process_that_exits_within_50_ms_of_opening_is_owned_by_its_pod() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    flash_is_owned(&stage, &pod);
}

#[test]
fn a_process_that_exits_within_50_ms_of_opening_is_owned_by_its_job() {
    let mut stage = or_skip!(Stage::new());
    let task = stage.slurm_task(1001, None, 0).unwrap();
    flash_is_owned(&stage, &task);
}

fn flash_is_owned(stage: &Stage, group: &Group) {
    let agent = watch(stage);
    if let Some(reason) = without_kernel(&agent) {
        skip!("{reason}");
    }
    let pid = Worker::flash(group, &[0], FLASH).unwrap();
    let found =
        agent.wait_for("the end of a short holder", SEEN_WITHIN, |who| ended(who, pid).cloned());
    let found = found.unwrap();
    assert_eq!(owner(&found), group.expected, "{found:#}");
}

#[test]
fn a_process_outside_every_workload_has_a_user_and_nothing_else() {
    let stage = or_skip!(Stage::new());
    let agent = watch(&stage);
    let script = Script { uid: Some(54_321), gpus: vec![0], ..Script::default() };
    let worker = Worker::start(None, &script).unwrap();
    let found = wait_for_holder(&agent, worker.pid());
    assert_eq!(found["user"], "54321");
    // A machine may run the tests themselves inside a unit or container.
    let own = Expected { unit: owner(&found).unit, ..Expected::default() };
    assert_eq!(Expected { container_id: None, ..owner(&found) }, own, "{found:#}");
}

#[test]
fn who_already_holds_a_device_is_found_at_start() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let worker = Worker::on(&pod, &[2]).unwrap();
    let agent = watch(&stage);
    assert_eq!(owner(&wait_for_holder(&agent, worker.pid())), pod.expected);
}

#[test]
fn forked_children_are_owned_like_their_parent() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let script = Script { gpus: vec![0], forks: 2, ..Script::default() };
    let worker = Worker::start(Some(&pod), &script).unwrap();
    assert_eq!(worker.children().len(), 2);
    for child in worker.children() {
        assert_eq!(owner(&wait_for_holder(&agent, *child)), pod.expected);
    }
}

#[test]
fn a_child_that_is_forked_right_after_its_parents_opens_has_all_of_its_nodes() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch_with(&stage, Config { hook: Some("cgroup"), ..Config::default() });
    if let Some(reason) = without_kernel(&agent) {
        skip!("{reason}");
    }
    let nodes = |pid: u32| {
        agent.wait_for("a holder of every node", SEEN_WITHIN, |who| {
            let nodes = holder(who, pid)?["nodes"].as_array()?.len();
            (nodes >= 8).then_some(())
        })
    };
    for _ in 0..4 {
        let script = Script { gpus: (0..8).collect(), forks: 3, ..Script::default() };
        let worker = Worker::start(Some(&pod), &script).unwrap();
        for pid in worker.children().iter().copied().chain([worker.pid()]) {
            nodes(pid).unwrap();
        }
    }
}

#[test]
fn a_holder_that_becomes_another_program_has_its_new_name_and_its_old_owner() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let exec = Some("trainer".to_owned());
    let script = Script { gpus: vec![0], exec, ..Script::default() };
    let worker = Worker::start(Some(&pod), &script).unwrap();
    let found = agent.wait_for("the new name", SEEN_WITHIN, |who| {
        holder(who, worker.pid()).filter(|holder| holder["comm"] == "trainer").cloned()
    });
    assert_eq!(owner(&found.unwrap()), pod.expected);
}

#[test]
fn a_holder_that_is_moved_belongs_to_where_it_is_now() {
    let mut stage = or_skip!(Stage::new());
    let first = stage.pod(&TRAINER).unwrap();
    let second = stage.pod(&PodSpec { name: "trainer-1", ..TRAINER }).unwrap();
    let agent = watch(&stage);
    let worker = Worker::on(&first, &[0]).unwrap();
    assert_eq!(owner(&wait_for_holder(&agent, worker.pid())), first.expected);
    worker.move_to(&second).unwrap();
    let moved = agent.wait_for("the holder's new pod", SEEN_WITHIN, |who| {
        holder(who, worker.pid()).map(owner).filter(|owner| *owner == second.expected)
    });
    assert_eq!(moved.unwrap(), second.expected);
}

#[test]
fn without_bpf_scans_find_holders_where_they_go_and_their_end() {
    let mut stage = or_skip!(Stage::new());
    let first = stage.pod(&TRAINER).unwrap();
    let second = stage.pod(&PodSpec { name: "trainer-1", ..TRAINER }).unwrap();
    let agent = watch_with(&stage, Config { bpf: Some(false), ..Config::default() });
    assert!(without_kernel(&agent).is_some());
    let script = Script { gpus: vec![0], opener: Opener::PidNamespace, ..Script::default() };
    let inside = Worker::start(Some(&first), &script).unwrap();
    let worker = Worker::on(&first, &[1]).unwrap();
    for pid in [inside.children()[0], worker.pid()] {
        assert_eq!(owner(&wait_for_holder(&agent, pid)), first.expected);
    }
    worker.move_to(&second).unwrap();
    let moved = agent.wait_for("the holder's new pod", SEEN_WITHIN, |who| {
        holder(who, worker.pid()).map(owner).filter(|owner| *owner == second.expected)
    });
    assert_eq!(moved.unwrap(), second.expected);
    let pid = worker.pid();
    worker.stop();
    let last = agent.wait_for("the end", SEEN_WITHIN, |who| ended(who, pid).map(owner));
    assert_eq!(last.unwrap(), second.expected);
}

/// An agent as a container runtime starts it on a current distribution: it sees the unified hierarchy
/// alone, and its cgroup namespace begins at its own group. Where not even root may look into PID 1, this
/// process, which is in the host's namespace as well, stands for it.
fn contained(stage: &Stage, own: &Group, then: &str) -> Agent {
    let join = |directory: &PathBuf| format!("echo $$ >'{}/cgroup.procs'", directory.display());
    let join: Vec<_> = own.directories.iter().map(join).collect();
    let script = format!(
        "set -e; readlink /proc/1/ns/cgroup >/dev/null || mount --bind /proc/$PPID /proc/1; {}; \
         exec unshare --cgroup {then} \"$@\"",
        join.join("; ")
    );
    let launcher = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let launcher = launcher.map(str::to_owned).into();
    let cgroup = stage.hierarchies().v2.clone();
    watch_with(stage, Config { launcher, cgroup, ..Config::default() })
}

#[test]
fn in_a_cgroup_namespace_of_its_own_the_agent_finds_systemds_pods_in_the_unified_hierarchy() {
    let mut stage = or_skip!(Stage::new());
    if stage.hierarchies().v2.is_none() {
        skip!("the unified cgroup hierarchy");
    }
    // Of the unified hierarchy alone.
    let mut pod = |name| {
        let spec = PodSpec { name, driver: Driver::Systemd, ..TRAINER };
        stage.idle_pod(&spec).unwrap()
    };
    let [own, first, second] = [pod("gpuwho"), pod("trainer-0"), pod("trainer-1")];
    assert!(first.path.starts_with("/kubepods.slice/kubepods-burstable.slice/"), "{}", first.path);
    let before = Worker::on(&first, &[0]).unwrap();
    let agent = contained(&stage, &own, "");
    let after = Worker::on(&second, &[1]).unwrap();
    for (worker, pod) in [(&before, &first), (&after, &second)] {
        let found = wait_for_holder(&agent, worker.pid());
        assert_eq!(owner(&found), pod.expected, "in {}: {found:#}", pod.path);
    }
    drop(agent);
    // It is a namespace that cuts the others off: who cannot leave it says so and names nobody.
    let agent = contained(&stage, &own, "setpriv --bounding-set=-sys_admin");
    agent.wait_for_log("not in the host's cgroup namespace", SEEN_WITHIN).unwrap();
    let is_listed = |who: &Value| {
        let holders = who["holders"].as_array()?;
        holders.iter().find(|holder| holder["pid"] == before.pid()).cloned()
    };
    let found = agent.wait_for("the holder", SEEN_WITHIN, is_listed).unwrap();
    assert_eq!((&found["method"], owner(&found)), (&"pending".into(), Expected::default()));
}

#[test]
fn on_a_kernel_without_type_information_scans_find_holders_and_doctor_says_so() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let sys = stage.folder().join("sys");
    std::fs::create_dir(&sys).unwrap();
    let agent = watch_with(&stage, Config { sys: Some(sys.clone()), ..Config::default() });
    let why = without_kernel(&agent).unwrap();
    assert!(why.contains("scanning /proc, which misses processes that end between scans"), "{why}");
    let worker = Worker::on(&pod, &[1]).unwrap();
    assert_eq!(owner(&wait_for_holder(&agent, worker.pid())), pod.expected);
    let mut doctor = Command::new(program::gpuwho().unwrap());
    doctor.args(["doctor", "--all", "--config"]).arg(stage.folder().join("gpuwho.toml"));
    let said = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    let missing = format!("{}/kernel/btf/vmlinux is missing", sys.display());
    for words in [missing.as_str(), "scanning /proc every 2 s instead"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_process_that_touches_no_device_is_nobody() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let idle = Worker::on(&pod, &[]).unwrap();
    let script = Script { gpus: vec![0], hold: Hold::UntilTold, ..Script::default() };
    let busy = Worker::start(Some(&pod), &script).unwrap();
    // The one that came later is there: the one before it would be, too.
    wait_for_holder(&agent, busy.pid());
    assert_eq!(holder(&agent.who().unwrap(), idle.pid()), None);
}
