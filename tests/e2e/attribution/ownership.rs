//! Whose a process is, as `gpuwho --json` says it, for processes that really open device nodes.

use crate::fixture::{
    SEEN_WITHIN, TRAINER, ended, holder, owner, wait_for_holder, watch, watch_with, without_kernel,
};
use gpuwho_tests::agent::Config;
use gpuwho_tests::stage::{Driver, Expected, Group, PodSpec, Qos, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Opener, Script};
use gpuwho_tests::{or_skip, skip};
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
